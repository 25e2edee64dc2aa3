"""What an environment that is used as it is lacks; what an interrupted setup leaves; what an old Python is told."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from course_lib.doctor import install

PROJECT = """
[project]
dependencies = ["torch>=2.11,<2.15", "numpy>=1.26"]
[project.optional-dependencies]
labs = ["papermill>=2.6"]
test = ["ruff>=0.12"]
"""


@pytest.fixture
def lacking(tmp_path, monkeypatch):
    """A function: what is missing for these extras where these versions are installed."""
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")

    def ask(installed, *extras):
        def version(name):
            if name not in installed:
                raise metadata.PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(metadata, "version", version)
        return install.missing(extras, tmp_path / "pyproject.toml")

    return ask


def test_nothing_is_missing_where_everything_is_there(lacking):
    everything = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "papermill": "2.7.0", "ruff": "0.17.6"}
    assert lacking(everything, "labs", "test") == []


def test_what_is_absent_or_too_old_is_named(lacking):
    assert lacking({"torch": "2.4.1", "numpy": "1.26"}, "labs") == ["torch>=2.11 (here: 2.4.1)", "papermill>=2.6"]


def test_only_the_extras_asked_for_count(lacking):
    assert lacking({"torch": "2.11", "numpy": "1.26"}) == []


@pytest.mark.parametrize("version", ["2.11.0a0+nv25.3", "2.11", "3.0", "2.100"])
def test_a_vendors_build_and_a_newer_one_are_good_enough(lacking, version):
    assert lacking({"torch": version, "numpy": "1.26"}) == []


def test_the_environment_of_this_run_lacks_nothing():
    assert install.missing(["labs", "test"]) == []


def test_missing_names_everything_in_one_sentence(tmp_path):
    """An empty environment, as SETUP=0 finds it: -S -I leaves nothing but the standard library."""
    code = "import sys; sys.path.insert(0, sys.argv.pop()); import course_lib.doctor.install as i; i.main()"
    command = [sys.executable, "-S", "-I", "-c", code, "--missing", "labs,test", str(install.ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith("SETUP=0 installs nothing, and ") and result.stderr.count("\n") == 1
    assert "torch>=2.11, numpy>=1.26" in result.stderr and "ruff" in result.stderr


def test_an_old_python_is_told_so_in_one_sentence(monkeypatch):
    monkeypatch.setattr(install.sys, "version_info", (3, 9, 2))
    assert "Python 3.11 or newer" in install.python_too_old() and "3.9" in install.python_too_old()
    monkeypatch.setattr(install.sys, "version_info", (3, 12, 0))
    assert install.python_too_old() is None


class Pip:
    """Stands in for `venv` and pip: makes what they make, fails when told to."""

    def __init__(self, monkeypatch, code=0):
        self.code, self.calls = code, []
        monkeypatch.setattr(install.venv, "create", self.create)
        monkeypatch.setattr(install.subprocess, "run", self.run)

    def create(self, home, **_):
        self.calls.append("venv")
        (home / "bin").mkdir(parents=True)
        os.symlink(sys.executable, home / "bin" / "python")

    def run(self, command, **_):
        self.calls.append(command[2] if command[1] == "-m" else "works?")
        if isinstance(self.code, BaseException):
            raise self.code
        return subprocess.CompletedProcess(command, self.code if command[1] == "-m" else 0)


def test_a_setup_ends_with_the_stamp(tmp_path, monkeypatch):
    pip = Pip(monkeypatch)
    install.install(tmp_path)
    assert pip.calls == ["venv", "pip"]
    assert (tmp_path / ".venv" / ".installed").exists()


def test_a_venv_that_works_is_kept_and_installed_into(tmp_path, monkeypatch):
    pip = Pip(monkeypatch)
    install.install(tmp_path)
    install.install(tmp_path)
    assert pip.calls == ["venv", "pip", "works?", "pip"]


@pytest.mark.parametrize("trouble", [1, KeyboardInterrupt()])
def test_a_setup_that_failed_or_was_interrupted_leaves_no_stamp(tmp_path, monkeypatch, trouble):
    Pip(monkeypatch)
    install.install(tmp_path)
    Pip(monkeypatch, trouble)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        install.install(tmp_path)
    assert not (tmp_path / ".venv" / ".installed").exists()


def test_a_half_made_venv_does_not_work(tmp_path):
    assert not install.works(tmp_path / "bin" / "python")
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    assert not install.works(tmp_path / "python")
