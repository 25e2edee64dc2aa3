"""What the measurements ask of numbers on their command lines, and the line that says what is being measured now."""

from __future__ import annotations

import argparse
import sys

from course_lib.doctor import facts

RANKS_EACH_CORE = 4  # beyond, ranks that wait for a core are all there is to measure
ALWAYS = 8  # ranks, however few cores there are: the course speaks of 8


def ranks(text: str) -> int:
    """A number of ranks, as argparse's `type`. Raises ArgumentTypeError for more than this machine's cores can run."""
    cores = facts.cores()
    most = max(ALWAYS, RANKS_EACH_CORE * cores)
    n = at_least_1(text)
    if n > most:
        raise argparse.ArgumentTypeError(
            f"{n} ranks on {cores} core{'s' * (cores > 1)} would only wait for one another: up to {most} can be "
            "measured"
        )
    return n


def at_least_1(text: str) -> int:
    """A whole number of 1 or more, as argparse's `type`. Raises ArgumentTypeError for anything else."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def say(what: str) -> None:
    """Tell the person who waits what is measured now; on stderr, so that the tables alone can go into a file."""
    print(f"measuring {what} ...", file=sys.stderr, flush=True)
