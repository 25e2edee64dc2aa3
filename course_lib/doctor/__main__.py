"""`python -m course_lib.doctor`, `make doctor`: is this machine fit for the labs? Exit code 1 when it is not."""

import sys

from course_lib.doctor.checks import CHECKS, Finding


def examine(checks=CHECKS) -> list[Finding]:
    """All findings, printed as they come: a line each, and a second one with what to do when something is not right."""
    findings = []
    for check in checks:
        try:
            finding = check()
        except Exception as error:  # a doctor that stumbles over one thing still looks at the others
            finding = Finding("warn", f"{check.__name__}: {type(error).__name__}: {error}", "this could not be checked")
        findings.append(finding)
        print(f"{finding.level:5} {finding.text}", flush=True)
        if finding.level != "ok":
            print(f"      {finding.todo}.", flush=True)
    return findings


def main(checks=CHECKS) -> int:
    levels = [finding.level for finding in examine(checks)]
    failed, warned = levels.count("fail"), levels.count("warn")
    if failed:
        print(f"\nThe labs will not run: {failed} thing(s) to put right first.")
    else:
        print("\nThe labs will run here" + (f"; {warned} thing(s) could be better." if warned else "."))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
