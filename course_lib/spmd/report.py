"""What is known of each rank after a run, and the errors that carry it."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["returned", "raised", "died", "waiting", "running", "stopped"]

_PACKAGE = str(Path(__file__).resolve().parent.parent)  # .../course_lib
_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


_TYPED = ("<string>", "<stdin>")  # a program given with -c, or line by line


class Files(dict[str, str]):
    """Whose code a file is: "own" (the reader's), "course" (course_lib's) or "machinery" (Python's, torch's, spmd's).

    A dict that fills itself, because it is asked several times in every call that is recorded.
    """

    def __missing__(self, file: str) -> str:
        self[file] = whose = self._look(file)
        return whose

    @staticmethod
    def _look(file: str) -> str:
        if file.startswith("<"):
            return "own" if file in _TYPED else "machinery"
        real = os.path.realpath(file)
        if real.startswith(_LIBRARIES) or real.startswith(os.path.join(_PACKAGE, "spmd") + os.sep):
            return "machinery"
        return "course" if real.startswith(_PACKAGE + os.sep) else "own"


whose = Files()


def place_of(file: str) -> str:
    """A name for a file that a reader recognises: `cell In[5]`, or a path from the working folder."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        named = shell.compile.format_code_name(file)
        if named:
            return f"cell {named[1]}"
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return path.name


@dataclass(slots=True)
class Frame:
    """One level of a stack: `function` was at `line` of `file`."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The source line, stripped; empty where the source is not at hand."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def label(self) -> str:
        return f"{place_of(self.file)}, line {self.line}"

    def __str__(self) -> str:
        text = self.text
        return f"{self.label}: {text}" if text else f"{self.label}, in {self.function}"


def own_frames(stack: list[Frame]) -> list[Frame]:
    """The reader's own frames of a stack; where there are none, those of course_lib."""
    own = [frame for frame in stack if whose[frame.file] == "own"]
    return own or [frame for frame in stack if whose[frame.file] == "course"]


@dataclass(slots=True)
class Op:
    """One call into torch.distributed, as the rank that made it saw it.

    `group` holds the global ranks of the process group; `key` tells apart two groups of the same ranks.
    `peer` is the other rank of a point-to-point call (global; None for "any"), `root` the root of a rooted
    collective. `index` counts the collectives of this rank on this group, from 0; it is -1 for send and receive.
    `waits` is the line that waits for an asynchronous call (None: the call itself waits).
    """

    name: str
    group: tuple[int, ...]
    key: str
    index: int
    shape: tuple[int, ...] | None
    dtype: str | None
    frame: Frame
    root: int | None = None
    peer: int | None = None
    reduce: str | None = None
    splits: tuple[tuple[int, ...] | None, tuple[int, ...] | None] | None = None
    start_ns: int = 0
    waits: Frame | None = None

    @property
    def point_to_point(self) -> bool:
        return self.index < 0

    def describe(self) -> str:
        """`all_reduce of float32[8] (SUM)`, `recv of float32[4] from rank 1`."""
        text = self.name
        if self.shape is not None:
            text += f" of {self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.reduce:
            text += f" ({self.reduce})"
        if self.root is not None:
            text += f", root {self.root}"
        if not self.point_to_point and not self.key.endswith("/0") and self.key != "rendezvous":
            text += f" on the group of ranks {', '.join(map(str, self.group))}"  # "/0" is the group of all
        if self.point_to_point:
            where = "any rank" if self.peer is None else f"rank {self.peer}"
            text += f" {'to' if 'send' in self.name else 'from'} {where}"
        return text


@dataclass
class RankReport:
    """Everything known of one rank when the run ended.

    `status`: returned, raised (`error` holds the exception), died (`exit_code`; negative is a signal), or, when time
    ran out: waiting (in the communication call `waiting`), running (at `stack`) or stopped (by a signal).
    `stack` is the whole stack, innermost frame last; `own_stack` the reader's frames of it.
    `ops` are the collectives this rank called, in order. `output` is what it wrote to stdout and stderr.
    `messages` counts the sends and receives it began; `moving` says that they still grew in number when time was up.
    """

    rank: int
    status: Status
    result: Any = None
    error: BaseException | None = None
    error_text: str = ""
    chain: str = ""  # texts of the runtime errors that led to it, its own among them
    exit_code: int | None = None
    stack: list[Frame] = field(default_factory=list)
    waiting: Op | None = None
    ops: list[Op] = field(default_factory=list)
    output: str = ""
    ended_ns: int = 0
    failed_in: Op | None = None  # the communication call that `error` came out of
    begun: dict[str, int] = field(default_factory=dict)  # collectives begun, by group, where torch counted them
    last_seen: Frame | None = None  # where a rank that died was seen last
    messages: int = 0
    moving: bool = False

    def calls_on(self, key: str) -> int:
        """How many collectives this rank has begun on the group of this key."""
        return self.begun[key] if key in self.begun else sum(op.key == key for op in self.ops)

    @property
    def own_stack(self) -> list[Frame]:
        return own_frames(self.stack)

    @property
    def where(self) -> Frame | None:
        """The reader's own line this rank was at, as closely as it is known."""
        own = self.own_stack
        if own:
            return own[-1]
        if self.waiting:
            return self.waiting.waits or self.waiting.frame
        return self.last_seen or (self.ops[-1].frame if self.ops else None)


@dataclass(frozen=True)
class Cause:
    """Why a run failed. `ranks`: the guilty ones (empty where several share the blame equally).

    `kind`: raised, exited, died, mismatch, missing (others wait for a call it never made), early_return,
    deadlock, busy, lost.
    """

    kind: str
    ranks: tuple[int, ...]
    text: str

    @property
    def rank(self) -> int | None:
        return self.ranks[0] if self.ranks else None


class SpmdError(RuntimeError):
    """A run on several ranks failed. `str(error)` explains; `.cause` and `.ranks` hold the evidence."""

    def __init__(self, cause: Cause, ranks: list[RankReport]):
        super().__init__(cause.text)
        self.cause = cause
        self.ranks = ranks

    def _render_traceback_(self) -> list[str]:
        """IPython shows this in place of a traceback: the explanation without the launcher's frames."""
        return [f"{type(self).__name__}: {self}"]


class RankError(SpmdError):
    """A rank raised an exception or died. An exception of a rank is this error's `__cause__`."""


class HangError(SpmdError):
    """Time ran out before every rank had returned."""


class MismatchError(SpmdError):
    """Every rank returned, but their collectives did not match: what they computed cannot be trusted."""
