"""Lab 2a: how answers are graded: by what they return, and by the gradient of everything that they were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same
from course_lib.lab.signatures.words import Signature, signature

# The library's collectives with gradients, which these exercises may be built from; autograd calls the last two.
GIVEN = frozenset(
    {"copy_to", "reduce_from", "all_gather", "reduce_scatter", "scatter", "gather", "all_gather_into"}
    | {"reduce_scatter_into", "forward", "backward"}
)


def gradient(name: str) -> str:
    """The name of a part of what is graded."""
    return f"gradient of {name}"


def graded(answer: Callable, given: dict[str, Tensor], upstream: Tensor, *rest: Any, **group: Any) -> Any:
    """What the answer returns, and the gradient of each of `given`, where its result has the gradient `upstream`.

    rest: further arguments, between `given` and the group.
    """
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    result = answer(*leaves.values(), *rest, **group)
    value = result.detach().clone() if isinstance(result, Tensor) else result
    if isinstance(result, Tensor) and result.shape == upstream.shape and result.requires_grad:
        result.backward(upstream.to(result.dtype))
    return {"result": value} | {gradient(name): leaf.grad for name, leaf in leaves.items()}


def cut(x: Tensor, dim: int, n: int) -> list[Tensor]:
    """The n parts of x along dim, each in a memory of its own."""
    return [part.clone() for part in x.chunk(n, dim)]


def joined(inputs: list[tuple], index: int, dim: int = 0) -> Tensor:
    """One argument of all ranks, joined along dim."""
    return torch.cat([args[index] for args in inputs], dim)


def in_part(part: str, holds: Callable[[Evidence, int], bool], name: str, sentence: str) -> Signature:
    """A signature: holds(evidence, rank) for every wrong rank, where `part` is what is wrong."""

    @signature
    def find(e: Evidence) -> str | None:
        if e.where != f"`{part}`" or not e.comparable or not all(holds(e, r) for r in e.wrong):
            return None
        return sentence.format(n=e.n, ranks=show.ranks(e.wrong))

    find.__name__ = name
    return find


def times_n(part: str, name: str, sentence: str) -> Signature:
    """`part` is n times too large, on every rank that has it wrong."""
    return in_part(part, lambda e, r: same(e.observed[r], e.expected[r] * e.n), name, sentence)


def nth_part(part: str, name: str, sentence: str) -> Signature:
    """`part` is 1/n of what it should be."""
    return in_part(part, lambda e, r: same(e.observed[r] * e.n, e.expected[r]), name, sentence)


def others(e: Evidence, rank: int) -> dict[str, Any]:
    """The whole value that a rank returned, by the names of its parts."""
    value = (e.returned or e.observed)[rank]
    return value if isinstance(value, dict) else {}


def reductions(e: Evidence, rank: int = 0) -> list[str]:
    """What the all-reduces of a rank do, in order: "SUM", "MAX"."""
    return [call.reduce or "" for call in (e.collectives or [[]] * e.n)[rank] if call.name == "all_reduce"]


@signature
def no_gradient(e: Evidence) -> str | None:
    """A tensor whose gradient is None."""
    if not e.where.startswith("`gradient of"):
        return None
    without = [r for r in e.wrong if e.observed[r] is None]
    if not without:
        return None
    name = e.where.strip("`").removeprefix("gradient of ")
    alone = "" if len(without) == e.n else f" on {show.ranks(without)}"
    return (
        f"the values before it are right, but backward never reaches `{name}`{alone}: it gets no gradient. Is the "
        "graph cut (`.detach()`, `.data`, `no_grad`, a new tensor written into), or is it not used?"
    )
