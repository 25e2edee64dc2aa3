"""What an exercise is: the answer it wants, the inputs it is tried on, and the wrong answers it must recognise.

An author writes one `Exercise` in `course_lib/lab/exercises/labN.py`:

    EXERCISES = [
        Exercise(
            name="ring_all_gather", lab="lab0", title="Ring all-gather", minutes=15, difficulty=2,
            reference=simple.ring_all_gather,          # the library's version: the par, and what a stub falls back to
            cases=[vector(lambda n: 2), vector(lambda n: 3)],
            expected=lambda inputs, n: [torch.cat([x for (x,) in inputs])] * n,   # one process, no ranks
            hints=["...", "..."],
            wrong=[Wrong(one_step_short, says="rank 2's values are missing")],
        ),
    ]

A pure function is an exercise with `worlds=(1,)` and no `expected`: the reference itself is the yardstick. A class or a
hook is one with its own `call`, which turns the answer and a rank's arguments into a value to compare.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import torch

from course_lib.spmd.calls import CALLS

# Collectives of torch, for exercises in which they may do the work.
COLLECTIVES = frozenset(name for name, call in CALLS.items() if call.peer is None)

LAB_MODULE = re.compile(r"lab\d+[a-z]?$")


@dataclass(frozen=True)
class Case:
    """One input of an exercise.

    make(rank, n, rng): the arguments of one rank, a tuple, drawn from `rng` (a torch.Generator of its own per rank).
        The kernel and the ranks both call it and must get the same, so it depends on nothing else.
    size(n): elements of the tensor in question. Names the case ("x = 9 elements") and tells sizes that n divides.
    root(n): the root rank, where the answer takes one.
    label: the case's name where size and root do not say it.
    worlds: the world sizes it is tried on, if not all of the exercise's.
    """

    make: Callable[[int, int, torch.Generator], tuple]
    size: Callable[[int], int] | None = None
    root: Callable[[int], int] | None = None
    label: str = ""
    worlds: tuple[int, ...] | None = None

    def name(self, n: int) -> str:
        """How messages call this case on n ranks: "x = 9 elements, root 2"."""
        parts = [self.label] if self.label else []
        if self.size is not None:
            parts.append(f"x = {self.size(n)} element{'s' * (self.size(n) != 1)}")
        if self.root is not None:
            parts.append(f"root {self.root(n)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Wrong:
    """A wrong answer that ships with its exercise, and a phrase its explanation must contain."""

    answer: Callable
    says: str


@dataclass(frozen=True)
class Timing:
    """How a right answer is timed: on one large input, against the library's version and others.

    make: as in Case. what: the input in words ("16 MB"). rivals: name -> function of the same arguments. ranks: on how
    many; None for the most of the exercise. no_gain: why, said where a right answer is no faster than the rivals.
    """

    make: Callable[[int, int, torch.Generator], tuple]
    what: str
    rivals: dict[str, Callable]
    ranks: int | None = None
    no_gain: str = ""


class Astray(Exception):
    """An exercise's `call` sees a mistake as it happens, and ends the run, which might hang otherwise.

    The text goes on from "rank 1 ..." and ends without a full stop.
    """


def call_it(answer: Callable, *args: Any, **group: Any) -> Any:
    """The ordinary way to try an answer: call it."""
    return answer(*args, **group)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The part of an exercise that its ranks need.

    name: the function (or class) the learner writes. reference: the library's version.
    cases: tried in order, the simplest first. worlds: the numbers of ranks they are tried on.
    call(answer, *args): runs on each rank, returns what is compared. For a class or a hook: build it, take a step,
        return gradients. It may raise Astray.
    may_change: the answer may change its arguments in place.
    may_call: functions of course_lib.collectives that it may call, by name.
    takes_group: the answer has a parameter `group`, and is tried in a group that is not the world, too; `call` hands
        it on. Numbers of ranks (a root) count within the group.
    timing: if time is worth telling.
    """

    name: str
    reference: Callable
    cases: Sequence[Case]
    worlds: tuple[int, ...] = (2, 3, 4)
    call: Callable = call_it
    may_change: bool = False
    may_call: frozenset[str] = frozenset()
    takes_group: bool = False
    timing: Timing | None = None

    def cases_on(self, n: int) -> list[tuple[int, Case]]:
        """The cases to try on n ranks, with their index."""
        return [(i, case) for i, case in enumerate(self.cases) if case.worlds is None or n in case.worlds]

    def arguments(self, index: int, rank: int, n: int) -> tuple:
        """The arguments of one rank in one case: the same in the kernel, on the rank, and tomorrow."""
        return self.cases[index].make(rank, n, generator(self.name, index, rank, n))

    def timing_arguments(self, rank: int, n: int) -> tuple:
        """The arguments of one rank in the timed call."""
        return self.timing.make(rank, n, generator(self.name, "timing", rank, n))


@dataclass(frozen=True, kw_only=True)
class Exercise(Task):
    """An exercise and everything its check needs.

    lab: "lab0", "lab2a". difficulty: 1 to 3.
    expected(inputs, n): the right value of each rank, computed in one process from the arguments of all ranks
        (inputs[rank] is a tuple). None: the reference, called on each rank's arguments without ranks.
    hints: the ladder, from a nudge to nearly all of it. The solution follows by itself.
    wrong: wrong answers, each with its phrase.
    advice: name of a signature or a scope (see signatures/, costs.py, stopped.py; scopes.py) -> a sentence to add where
        that one explains the answer.
    signatures: the exercise's own, asked before the general ones.
    causes: those of its own that go by what an answer did, not by values. They come first of all, and explain a race.
    may_use: collectives of torch.distributed that it may call. All others are gloo doing the work.
    least_bytes(n, rank, args): bytes this rank must send at least, or hand to collectives of torch, padding to full
        chunks allowed for. least_of: who cannot do with less, where that is not everybody ("the least a tree can").
    least_total(n, args of rank 0): bytes that all ranks together cannot do without, by any algorithm: who sends fewer
        has not done the work.
    ring: on three ranks or more, each sends to one other alone.
    timeline: show the learner's, of the timed call. overlap: communication must overlap computation there.
    closing: what a right answer goes to show, said when it passes.
    """

    lab: str
    title: str
    minutes: int
    difficulty: int
    expected: Callable[[list[tuple], int], list] | None = None
    hints: Sequence[str] = ()
    wrong: Sequence[Wrong] = ()
    advice: dict[str, str] = field(default_factory=dict)
    signatures: Sequence[Callable] = ()
    causes: Sequence[Callable] = ()
    may_use: frozenset[str] = frozenset()
    least_bytes: Callable[[int, int, tuple], int] | None = None
    least_total: Callable[[int, tuple], int] | None = None
    least_of: str = "the least possible"
    ring: bool = False
    timeline: bool = False
    overlap: bool = False
    closing: str = ""

    def __post_init__(self) -> None:
        if not self.worlds or any(not self.cases_on(n) for n in self.worlds):
            raise ValueError(f"Exercise {self.name} has a number of ranks without cases: any answer would pass there.")
        if not 1 <= self.difficulty <= 3:
            raise ValueError(f"Exercise {self.name}: difficulty is 1, 2 or 3, not {self.difficulty}.")
        if (self.timeline or self.overlap) and self.timing is None:
            raise ValueError(f"Exercise {self.name}: a timeline needs `timing`, the input it is drawn on.")
        if self.expected is None and self.worlds != (1,):
            raise ValueError(f"Exercise {self.name} runs on ranks, so it needs `expected`: the value in one process.")

    @property
    def task(self) -> Task:
        """What is sent to the ranks. Wrong answers, hints and words stay here."""
        return Task(**{part.name: getattr(self, part.name) for part in fields(Task)})

    @property
    def timed_on(self) -> int:
        """The number of ranks of the timed call."""
        return (self.timing.ranks if self.timing else None) or max(self.worlds)

    @property
    def by_collectives(self) -> bool:
        """Whether the answer may leave the work to torch's collectives: then nobody speaks of sends and receives."""
        return bool(self.may_use)

    @property
    def on_ranks(self) -> bool:
        """Whether ranks talk to each other here; a pure function is tried in one process."""
        return self.worlds != (1,)

    def expect(self, inputs: list[tuple], n: int) -> list:
        """The right value of each rank."""
        if self.expected is not None:
            return self.expected(inputs, n)
        return [self.call(self.reference, *args) for args in inputs]


def generator(*key: Any) -> torch.Generator:
    """A random generator that depends on its key alone."""
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


def vector(
    size: Callable[[int], int],
    dtype: torch.dtype = torch.float32,
    root: Callable[[int], int] | None = None,
    **case: Any,
) -> Case:
    """A case of one 1-d tensor of random values, different on every rank: the answer gets (x,) or (x, root)."""

    def make(rank: int, n: int, rng: torch.Generator) -> tuple:
        x = random_tensor((size(n),), rng, dtype)
        return (x,) if root is None else (x, root(n))

    if dtype != torch.float32:
        case.setdefault("label", str(dtype).removeprefix("torch."))
    return Case(make, size=size, root=root, **case)


def random_tensor(shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random values no answer could make up: normal ones, or whole numbers up to a million, none of them zero."""
    if dtype.is_floating_point:
        return torch.randn(shape, generator=rng, dtype=dtype)
    return torch.randint(1, 1_000_000, shape, generator=rng, dtype=dtype)


@cache
def all_exercises() -> dict[str, Exercise]:
    """Every exercise of every lab, by name, in the order of the labs. Raises ValueError if two share a name."""
    from course_lib.lab import exercises

    found: dict[str, Exercise] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(exercises.__path__) if LAB_MODULE.match(m.name)):
        for exercise in importlib.import_module(f"{exercises.__name__}.{module}").EXERCISES:
            if exercise.name in found:
                raise ValueError(
                    f"Two exercises are called {exercise.name}: in {found[exercise.name].lab} and {module}."
                )
            found[exercise.name] = exercise
    return found


def find(name: str) -> Exercise:
    """The exercise of that name. Raises LookupError, with the nearest names, if there is none."""
    known = all_exercises()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3) or list(known)
    raise LookupError(
        f"No exercise is called {name!r}. The check goes by the function's name; near it: {', '.join(near)}."
    )
