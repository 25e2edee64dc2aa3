"""What a person may say to `make labN`, and the one sentence that refuses anything else.

`python -m course_lib.doctor.options lab0` reads RANKS and SOLUTION as make hands them over. It runs before anything
is installed, so a typing error costs nothing; it needs the standard library only and parses on old Pythons.
"""
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_RANKS = 4
MAX_RANKS = 64  # each rank is a process of some 200 MB


class OptionError(ValueError):
    """A wrong value; its text is one sentence for the person who gave it."""


def ranks(text):
    """The world size that `text` names; DEFAULT_RANKS for an empty one.

    Raises OptionError unless it is a whole number from 2 to MAX_RANKS: a lab about talking needs two to talk.
    """
    if not text:
        return DEFAULT_RANKS
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not 2 <= number <= MAX_RANKS:
        raise OptionError(f"RANKS must be a whole number from 2 to {MAX_RANKS}, not {text!r}.")
    return number


def solution(text):
    """True for "1", False for "0" or an empty text; OptionError for anything else."""
    if text not in ("", "0", "1"):
        raise OptionError(f"SOLUTION must be 1 (run the solved notebook) or 0 (run yours), not {text!r}.")
    return text == "1"


def labs(root=ROOT):
    """The labs that exist under `root`: {"lab0": "lab0_ranks_and_collectives"}, by name."""
    stems = sorted(path.stem for path in (Path(root) / "solutions").glob("lab*_*.py"))
    return {stem.split("_")[0]: stem for stem in stems}


def chosen(name, root=ROOT):
    """The labs that `name` means, as labs() has them: "lab2b" is one; "lab2" is lab2a, lab2b and lab2c.

    Raises OptionError, naming the labs there are, when there is none.
    """
    known = labs(root)
    found = {short: stem for short, stem in known.items() if short == name or short.rstrip("abcdefgh") == name}
    if not found:
        there = ", ".join(f"{short} ({stem.split('_', 1)[1].replace('_', ' ')})" for short, stem in known.items())
        raise OptionError(f"There is no {name} here; the labs are: {there or 'none yet'}.")
    return found


def main():
    try:
        chosen(sys.argv[1])
        ranks(os.environ.get("RANKS", ""))
        solution(os.environ.get("SOLUTION", ""))
    except OptionError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
