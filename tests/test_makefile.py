"""What make says and starts, without letting it install or run anything that takes long."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


# `make test` runs these tests: what it was told must not reach the make under test.
TOLD = ("MAKEFLAGS", "MAKELEVEL", "RANKS", "SOLUTION")
CLEAN = {name: value for name, value in os.environ.items() if name not in TOLD}


def make(*arguments, cwd=ROOT):
    return subprocess.run(["make", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, env=CLEAN)


def test_help_names_every_target_in_one_line_each():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    out = make("help").stdout
    listed = re.findall(r"^make (\S+)", out, re.MULTILINE)
    assert set(phony) - {"FORCE", "help"} == set(listed) - {"lab0"}
    assert make().stdout == out


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["lab9"], "There is no lab9 here; the labs are: "),
        (["lab"], "No rule to make target 'lab'"),
        (["lab0", "RANKS=x"], "RANKS must be a whole number from 2 to 64, not 'x'."),
        (["lab0", "RANKS=0"], "RANKS must be a whole number from 2 to 64, not '0'."),
        (["lab0", "RANKS=3; echo pwned >&2"], "not '3; echo pwned >&2'."),
        (["lab0", "SOLUTION=maybe"], "SOLUTION must be 1 (run the solved notebook) or 0 (run yours), not 'maybe'."),
        (["lab0", "SETUP=maybe"], "SETUP must be 1"),
        (["lab0", "PYTHON=no-such-python"], "no-such-python"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_runs(arguments, sentence):
    result = make(*arguments)
    assert result.returncode != 0
    assert sentence in result.stderr
    assert result.stdout == "" and "pwned\n" not in result.stderr


def test_with_setup_0_the_persons_own_python_runs_and_nothing_is_installed():
    plan = make("--dry-run", "SETUP=0", "PYTHON=mypython", "notebooks").stdout
    assert plan.splitlines() == [
        "mypython -m course_lib.doctor.install --missing labs",
        "mypython -m course_lib.lab.build",
    ]


def test_a_setup_that_is_done_is_not_done_again(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    install, build = "python3 -m course_lib.doctor.install\n", ".venv/bin/python -m course_lib.lab.build\n"
    assert make("--dry-run", "notebooks", cwd=tmp_path).stdout == install + build
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    assert make("--dry-run", "notebooks", cwd=tmp_path).stdout == build
    later = (tmp_path / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(tmp_path / "constraints.txt", (later, later))
    assert make("--dry-run", "notebooks", cwd=tmp_path).stdout == install + build
