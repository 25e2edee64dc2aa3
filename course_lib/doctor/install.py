"""Make .venv and install the workbook into it, once; or say what an environment that is used as it is lacks.

    python -m course_lib.doctor.install                       make .venv, install, leave the stamp
    python -m course_lib.doctor.install --missing labs,test   install nothing; name what is missing

Needs the standard library only, and parses on Pythons that are too old, to be able to say that they are.
"""
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (3, 11)


def python_too_old():
    """One sentence when this interpreter is older than the workbook needs, else None."""
    if sys.version_info[:2] >= OLDEST:
        return None
    return (
        f"The workbook needs Python {OLDEST[0]}.{OLDEST[1]} or newer, and {sys.executable} is "
        f"{sys.version_info[0]}.{sys.version_info[1]}: name a newer one, as in `make setup PYTHON=python3.12`."
    )


def release(version):
    """The numbers a version starts with: "2.11.0a0+nv25" -> (2, 11, 0). A vendor's pre-release counts as released."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version).group().strip(".").split(".") if part)


def missing(extras, pyproject=ROOT / "pyproject.toml"):
    """What this environment lacks of the workbook's dependencies and `extras`: ["papermill>=2.6", ...].

    Only absence and too old a version count: a newer one than was tried is the person's choice.
    """
    import tomllib  # Python >= 3.11: what is older never gets here
    from importlib.metadata import PackageNotFoundError, version

    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    lacking = []
    for requirement in wanted:
        name, oldest = re.match(r"([\w.-]+)>=([\d.]+)", requirement).groups()
        try:
            there = release(version(name))
        except PackageNotFoundError:
            lacking.append(f"{name}>={oldest}")
            continue
        if there < release(oldest):
            lacking.append(f"{name}>={oldest} (here: {version(name)})")
    return lacking


def works(python):
    """True when `python` starts and has pip: a venv whose making was interrupted, or that was moved, has not."""
    if not python.exists():
        return False
    return subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 0


def install(root=ROOT):
    """Make `root`/.venv and pip install the workbook into it; the stamp is written last. Exits with a sentence."""
    home = root / ".venv"
    stamp = home / ".installed"
    python = home / "bin" / "python"
    if stamp.exists():
        stamp.unlink()
    print("Setting up .venv: a few minutes the first time, mostly to fetch torch.", flush=True)
    if not works(python):
        try:
            venv.create(home, clear=True, with_pip=True)
        except (subprocess.CalledProcessError, OSError) as error:
            sys.exit(
                f"Could not make .venv ({error}). On Debian and Ubuntu the module is a package of its own: "
                f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
            )
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    if not sys.stdout.isatty():  # in a log nobody waits for the next line
        pip += ["--quiet", "--progress-bar", "off"]
    code = subprocess.run([*pip, "-c", "constraints.txt", "-e", ".[labs,test]"], cwd=root).returncode
    if code:
        sys.exit(f"pip could not install the workbook (exit code {code}); see above. Try again: make setup")
    stamp.touch()
    print("Ready.", flush=True)


def main():
    reason = python_too_old()
    if reason:
        sys.exit(reason)
    if sys.argv[1:2] == ["--missing"]:
        lacking = missing(sys.argv[2].split(","))
        if lacking:
            sys.exit(f"SETUP=0 installs nothing, and {sys.executable} lacks: {', '.join(lacking)}.")
        return
    try:
        install()
    except KeyboardInterrupt:
        os.write(2, b"\nInterrupted; the next make goes on from here.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
