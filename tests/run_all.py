"""All tests, which is `make test`: lint, stale notebooks, unit tests, serial tests, notebooks, browser. Then a summary.

Every stage runs, whatever the one before it said. Exit code 0 when all of them passed. The last line counts the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course_lib.doctor import chromium, facts  # noqa: E402  (the checkout may not be installed: SETUP=0)

REPORTS = ROOT / "runs" / "tests"
UNIT = ["tests", "--ignore=tests/notebooks", "--ignore=tests/browser"]
# What make or a learner's shell may have set would change what the tests see.
NOT_OURS = ("RANKS", "SOLUTION", "MAKEFLAGS", "MAKELEVEL", "COURSE_RANKS", "COURSE_PROGRESS")


@dataclass
class Stage:
    """One step. command: what runs, after "python -m". outcome: "ok", or why not."""

    name: str
    command: list[str]
    outcome: str = "not run"
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def junit(self) -> Path | None:
        return REPORTS / f"{self.name}.xml" if self.command[0] == "pytest" else None

    def run(self, env: dict[str, str]) -> None:
        command = [sys.executable, "-m", *self.command]
        if self.junit:
            self.junit.unlink(missing_ok=True)
            command += [f"--junitxml={self.junit}", "-rs"]
        print(f"\n=== {self.name}: {' '.join(self.command)}", flush=True)
        begin = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, env=env).returncode
        self.seconds = time.monotonic() - begin
        self.outcome = "ok" if code == 0 else f"FAILED (exit code {code})"
        if self.junit:
            self.counts = count(self.junit)
            if code == 5:
                self.outcome = "FAILED (ran no test)"


def count(junit: Path) -> dict[str, int]:
    """Passed, failed and skipped tests of a pytest run, from its JUnit file; no numbers when it wrote none."""
    if not junit.exists():
        return {}
    suite = ET.parse(junit).getroot()[0]
    number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    return {
        "passed": number["tests"] - failed - number["skipped"],
        "failed": failed,
        "skipped": number["skipped"],
    }


def stages() -> list[Stage]:
    cores = facts.cores()
    # A notebook needs little of the machine while its kernel starts, and all of it while ranks train: two at a time.
    two_at_once = ["-n", str(min(2, cores)), "--dist", "worksteal"]
    return [
        Stage("lint", ["ruff", "check", "."]),
        Stage("built", ["course_lib.lab.build", "--check"]),
        Stage("unit", ["pytest", *UNIT, "-m", "not serial", "-n", str(min(4, cores))]),
        Stage("serial", ["pytest", *UNIT, "-m", "serial"]),
        Stage("notebooks", ["pytest", "tests/notebooks", *two_at_once]),
        Stage("browser", ["pytest", "tests/browser"]),
    ]


def main(plan: list[Stage]) -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    env = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    browser = chromium.find_or_install()
    for stage in plan:
        stage.run(env)
    print("\n=== summary")
    for stage in plan:
        numbers = ", ".join(f"{n} {what}" for what, n in stage.counts.items() if n)
        print(f"{stage.name:10} {stage.seconds:6.1f} s  {stage.outcome}{'  ' if numbers else ''}{numbers}")
    if not browser:
        print("\n!!! NO CHROMIUM: THE BROWSER TESTS WERE SKIPPED. Debian: apt install chromium !!!")
    total = {what: sum(stage.counts.get(what, 0) for stage in plan) for what in ("passed", "failed", "skipped")}
    bad = [stage for stage in plan if stage.outcome != "ok"]
    # A stage that failed without a failed test (lint, a crash) still counts as one.
    total["failed"] += sum(1 for stage in bad if not stage.counts.get("failed"))
    print(f"\n{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(stages()))
    except KeyboardInterrupt:
        sys.exit(130)
