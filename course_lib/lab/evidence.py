"""What one attempt did in one case, beside what it should have done: the facts that signatures judge by."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from course_lib.lab.calls import Collective
from course_lib.lab.tape import Message

# Sums in another order differ in the last digits; anything a learner can get wrong differs in the first ones.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
MOST_COMBINATIONS = 5_000  # of shares tried to explain a sum
MOST_ELEMENTS = 2_048  # looked at for it


@dataclass
class Aside:
    """What a `call` saw of an answer and nobody compares; signatures may read it. Stands among the values returned."""

    facts: dict[str, Any]


@dataclass
class Evidence:
    """One value of one case: what each rank returned and should have returned.

    n: number of ranks. expected, observed, inputs: by rank; inputs[rank] is the tuple of its arguments, untouched.
    shares[rank][j]: what rank j's arguments contribute to `expected[rank]`; they add up to it. None where the right
        value is no sum of contributions.
    where: which part of the returned value this is: "" for the whole, "item 1", "`grad` of item 0".
    root, size: the case's root and tensor size, None where it has none.
    sent, least: bytes by rank; least is None where the exercise sets no bound. total: bytes all ranks together need.
    timeline: of the run, where time is the point. returned: the whole values that `observed` are parts of, if they are.
    messages, library: by rank, what the answer sent and asked for, and what the library's version did; None where it
        was not watched. history: by number of ranks so far, how many messages each rank sends, the answer's and the
        library's, where all ranks send as many. quote: a line of the answer in words. changed: by rank, positions of
        arguments it changed in place without leave. collectives: by rank, those of torch that the answer called; None
    where it should have called none.
    """

    n: int
    expected: list[Any]
    observed: list[Any]
    inputs: list[tuple] = field(default_factory=list)
    shares: list[list[Tensor]] | None = None
    where: str = ""
    root: int | None = None
    size: int | None = None
    sent: list[int] = field(default_factory=list)
    least: list[int] | None = None
    total: int = 0
    timeline: Any = None
    on_ranks: bool = True
    returned: list[Any] | None = None
    messages: list[list[Message]] | None = None
    library: list[list[Message]] | None = None
    history: dict[int, tuple[int, int]] = field(default_factory=dict)
    quote: Callable[[int], str] = "line {}".format
    collectives: list[list[Collective]] | None = None
    changed: list[list[int]] = field(default_factory=list)

    @cached_property
    def wrong(self) -> list[int]:
        """The ranks whose value is not the expected one."""
        return [r for r in range(self.n) if not same(self.observed[r], self.expected[r])]

    @cached_property
    def comparable(self) -> bool:
        """Whether every wrong rank returned a tensor of the right shape and dtype: only its values are in question."""
        return bool(self.wrong) and all(
            isinstance(self.observed[r], Tensor)
            and isinstance(self.expected[r], Tensor)
            and self.observed[r].shape == self.expected[r].shape
            and self.observed[r].dtype == self.expected[r].dtype
            for r in self.wrong
        )

    @cached_property
    def counts(self) -> dict[int, Tensor] | None:
        """How often each rank's share is in each wrong element: {wrong rank: (elements, n) of whole numbers}.

        None where the values are no such combination. In wrong[r], row i belongs to the i-th *wrong* element of rank r
        (see `wrong_elements`). A share that is zero there is reported as counted once.
        """
        if self.shares is None or not self.comparable or not 1 < self.n <= 6:
            return None
        most = 4 if self.n <= 4 else 2
        weights = torch.tensor(list(itertools.product(range(most + 1), repeat=self.n)))
        if len(weights) > MOST_COMBINATIONS:
            weights = torch.tensor(list(itertools.product((0, 1, 2), repeat=self.n)))
        weights = weights[torch.argsort((weights - 1).abs().sum(1), stable=True)]  # the plainest explanation first
        found = {}
        for r in self.wrong:
            where = self.wrong_elements(r)[:MOST_ELEMENTS]
            shares = torch.stack([s.flatten()[where] for s in self.shares[r]]).double()  # (n, elements)
            seen = self.observed[r].flatten()[where].double()
            size = shares.abs().sum(0)
            hits = (weights.double() @ shares - seen).abs() <= tolerance(self.observed[r].dtype) * size  # (weights, e)
            if not bool(hits.any(0).all()):
                return None
            # One element may fit by chance: what explains more elements of this rank goes first.
            order = torch.argsort(hits.sum(1), descending=True, stable=True)
            found[r] = weights[order][hits[order].float().argmax(0)]
        return found

    def aside(self, rank: int) -> dict[str, Any]:
        """What the exercise's `call` noted on a rank; {} where the answer returned something else altogether."""
        value = (self.returned or self.observed)[rank]
        items = value.values() if isinstance(value, dict) else ()
        return next((item.facts for item in items if isinstance(item, Aside)), {})

    def wrong_elements(self, rank: int) -> Tensor:
        """Indices, in the flattened tensor, of the elements of a comparable rank that are wrong."""
        got, want = self.observed[rank].flatten(), self.expected[rank].flatten()
        return (~close(got, want)).nonzero().flatten()


def tolerance(dtype: torch.dtype) -> float:
    """The relative difference that rounding alone can make; 0 for whole numbers."""
    return TOLERANCE.get(dtype, 0.0)


def close(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise, for tensors of one shape: equal, up to rounding relative to the largest value at hand."""
    if not (a.is_floating_point() or b.is_floating_point()):
        return a == b
    scale = b.abs()[b.isfinite()].double()
    bound = tolerance(b.dtype) * (scale.max().item() if scale.numel() else 1.0)
    return ((a.double() - b.double()).abs() <= bound) | (a == b) | (a.isnan() & b.isnan())


def same(a: Any, b: Any) -> bool:
    """Whether `a` is the value `b`, up to rounding. Tensors must agree in shape and dtype."""
    if isinstance(b, Tensor):
        if not isinstance(a, Tensor) or a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
            return False
        return bool(close(a.detach(), b.detach()).all())
    if isinstance(b, float) and isinstance(a, int | float) and not isinstance(a, bool):
        return a == b or abs(a - b) <= 1e-9 * abs(b)
    return type(a) is type(b) and a == b


def alike(a: Any, b: Any) -> bool:
    """Whether two returned values have the same parts, each the same up to rounding."""
    mine, theirs = parts(a), parts(b)
    return [name for name, _ in mine] == [name for name, _ in theirs] and all(
        same(x, y) for (_, x), (_, y) in zip(mine, theirs, strict=True)
    )


def parts(value: Any, where: str = "") -> list[tuple[str, Any]]:
    """The tensors and plain values inside a returned value, each with the words that name it."""
    if isinstance(value, Aside):
        return []
    if isinstance(value, dict):
        named = [(f"`{key}`" if isinstance(key, str) else repr(key), item) for key, item in value.items()]
    elif isinstance(value, tuple | list):
        named = [(f"item {i}", item) for i, item in enumerate(value)]
    else:
        return [(where, value)]
    return [found for key, item in named for found in parts(item, f"{key} of {where}" if where else key)]


def shares_of(expect: Callable[[list[tuple]], list], inputs: list[tuple]) -> list[list[list[tuple[str, Any]]]] | None:
    """shares[j][rank]: the parts of the right value of `rank` if all ranks but j had zeros. None if they do not add up.

    Found by asking the reference, so no exercise has to say whether it is a sum, a mean or a gather.
    """
    n = len(inputs)
    whole = [parts(v) for v in expect([_map(args, torch.clone) for args in inputs])]
    alone = []
    for j in range(n):
        others_zero = [_map(args, torch.clone if r == j else torch.zeros_like) for r, args in enumerate(inputs)]
        alone.append([parts(v) for v in expect(others_zero)])
    for r in range(n):
        for i, (_, value) in enumerate(whole[r]):
            if not isinstance(value, Tensor):
                continue
            if any(len(one[r]) != len(whole[r]) or one[r][i][1].shape != value.shape for one in alone):
                return None
            if not same(torch.stack([one[r][i][1] for one in alone]).sum(0).to(value.dtype), value):
                return None
    return alone


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(_map(item, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_map(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return value


def tensors(value: Any) -> list[Tensor]:
    """The tensors inside some arguments."""
    return [item for _, item in parts(value) if isinstance(item, Tensor)]


def shapes(value: Any) -> Any:
    """The same arguments with tensors that have a shape and a dtype, and no memory."""
    return _map(value, lambda t: t.to("meta"))


def plain(value: Any) -> Any:
    """The same value with tensors that can be sent to another process: on the CPU, without a graph behind them."""
    return _map(value, lambda t: t.detach().cpu())


def copy(value: Any) -> Any:
    """The same arguments with tensors of their own."""
    return _map(value, torch.clone)


def collect(
    n: int,
    observed: list[Any],
    expected: list[Any],
    inputs: list[tuple],
    expect: Callable[[list[tuple]], list],
    **facts: Any,
) -> Evidence | None:
    """The evidence on the first part of the returned values that is wrong on any rank; None if all is right."""
    want = [parts(value) for value in expected]
    got = [parts(value) for value in observed]
    if any([key for key, _ in g] != [key for key, _ in w] for g, w in zip(got, want, strict=True)):
        return Evidence(n, expected, observed, inputs, **facts)  # the whole value: its structure is wrong
    for i in range(max(map(len, want), default=0)):
        name = next(w[i][0] for w in want if i < len(w))
        # A rank whose value has fewer parts than others' has nothing to compare here.
        here = Evidence(n, [_part(w, i) for w in want], [_part(g, i) for g in got], inputs, where=name, **facts)
        here.returned = observed
        if here.wrong:
            if here.comparable and n > 1 and (alone := _try(lambda: shares_of(expect, inputs))) is not None:
                here.shares = [[_part(alone[j][r], i) for j in range(n)] for r in range(n)]
            return here
    return None


def _part(found: list[tuple[str, Any]], i: int) -> Any:
    return found[i][1] if i < len(found) else None


def _try(compute: Callable[[], Any]) -> Any:
    # A reference need not accept zeros (a log, a division): then there are no shares to speak of.
    try:
        return compute()
    except Exception:
        return None
