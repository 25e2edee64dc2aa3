"""`make test` itself: it cannot be green when a stage failed, crashed or ran nothing."""

import pytest
import run_all
from run_all import Stage


@pytest.fixture
def outcome(tmp_path, monkeypatch, capsys):
    """A function: the exit code and last line of a run over these test files (name -> text)."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the runs inside start faster
    monkeypatch.setattr(run_all, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(run_all.chromium, "find_or_install", lambda: "/usr/bin/chromium")

    def run(**files):
        plan = []
        for name, text in files.items():
            path = tmp_path / f"test_{name}.py"
            path.write_text(text, encoding="utf-8")
            plan.append(Stage(name, ["pytest", "-o", "addopts=", "-p", "no:cacheprovider", str(path)]))
        code = run_all.main(plan)
        return code, capsys.readouterr().out.splitlines()[-1]

    return run


GOOD, BAD = "def test_a(): pass\n", "def test_b(): assert 0\n"
SKIP = "import pytest\n@pytest.mark.skip\ndef test_c(): pass\n"


def test_all_green(outcome):
    assert outcome(one=GOOD, two=GOOD + SKIP) == (0, "2 passed, 0 failed, 1 skipped")


def test_a_failure_in_any_stage_is_a_failure_and_the_later_stages_still_run(outcome):
    assert outcome(one=BAD, two=GOOD) == (1, "1 passed, 1 failed, 0 skipped")


def test_a_stage_that_ran_no_test_is_a_failure(outcome):
    assert outcome(one="", two=GOOD) == (1, "1 passed, 1 failed, 0 skipped")


def test_a_stage_that_died_is_a_failure(outcome):
    assert outcome(one="import os\nos._exit(3)\n", two=GOOD) == (1, "1 passed, 1 failed, 0 skipped")


def test_skipped_browser_tests_are_said_loudly(monkeypatch, outcome, tmp_path, capsys):
    monkeypatch.setattr(run_all.chromium, "find_or_install", lambda: None)
    run_all.main([])
    assert "THE BROWSER TESTS WERE SKIPPED" in capsys.readouterr().out


def test_every_test_belongs_to_a_stage():
    pytest_stages = [stage.command for stage in run_all.stages() if stage.command[0] == "pytest"]
    assert [command[1] for command in pytest_stages] == ["tests", "tests", "tests/notebooks", "tests/browser"]
    assert ["not serial" in pytest_stages[0], pytest_stages[1][-1] == "serial"] == [True, True]
