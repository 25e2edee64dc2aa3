"""Lab 1, bonus: a round of PowerSGD."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Timing, Wrong, random_tensor
from course_lib.lab.exercises.wrong import power_sgd_round as powers
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.parallel.data import compress

NO_GAIN = (
    "The bytes fall, and the time does not: here the ranks share one machine, whose memory is the network, and the "
    "products take the cores' time. It pays where the network is slow."
)
ROWS, COLS, RANK = 1024, 512, 4  # of the timed matrix


def two_rounds(answer: Callable, first: Tensor, second: Tensor, error: Tensor, q: Tensor, **group: Any) -> Any:
    """Two rounds with two gradients. What is compared does not depend on which basis p is given in."""
    found: dict[str, Any] = {}
    for number, gradient in (("first", first), ("second", second)):
        results = answer(gradient.clone(), error, q, **group)
        if not isinstance(results, tuple | list) or [getattr(x, "shape", None) for x in results] != [
            first.shape,
            first.shape,
            q.shape,
        ]:
            return Shapes(
                [tuple(getattr(x, "shape", ())) for x in results] if isinstance(results, tuple | list) else []
            )
        approximation, error, q = results
        found |= {f"{number} approximation": approximation.clone(), f"{number} error": error.clone()}
        error, q = error.clone(), q.clone()
    return found


class Shapes(list):
    """The shapes of what was returned, where they are not those of a round."""


def simulate(inputs: list[tuple], n: int, **mistake: Any) -> list[dict[str, Tensor]]:
    """Two rounds on all ranks, in one process; with the mistakes that are named: feedback, p, q, error."""
    errors, qs = [args[2] for args in inputs], [args[3] for args in inputs]
    found: list[dict[str, Tensor]] = [{} for _ in inputs]
    for k, number in enumerate(("first", "second")):
        gradients = [args[k] for args in inputs]
        wanted = gradients
        if mistake.get("feedback", True):
            wanted = [g + e for g, e in zip(gradients, errors, strict=True)]
        ps = [w @ q for w, q in zip(wanted, qs, strict=True)]
        if mistake.get("p") == "orthonormal too soon":
            ps = [torch.linalg.qr(p)[0] for p in ps]
        if mistake.get("p") != "own":
            ps = [sum(ps) / (1 if mistake.get("p") == "a sum as it is" else n)] * n
        if mistake.get("p") not in ("as it is", "a sum as it is", "orthonormal too soon"):
            ps = [torch.linalg.qr(p)[0] for p in ps]
        own = [w.T @ p for w, p in zip(wanted, ps, strict=True)]
        new = own if mistake.get("q") == "own" else [sum(own) / (1 if mistake.get("q") == "a sum" else n)] * n
        right = [p @ q.T for p, q in zip(ps, qs if mistake.get("q") == "unused" else new, strict=True)]
        for r in range(n):
            found[r] |= {f"{number} approximation": right[r]}
        errors = [w - a for w, a in zip(wanted, right, strict=True)]
        if "error" in mistake:
            facts = zip(gradients, wanted, right, ps, own, errors, [args[2] for args in inputs], strict=True)
            errors = [mistake["error"](*fact) for fact in facts]
        for r in range(n):
            found[r] |= {f"{number} error": errors[r]}
        if mistake.get("q") != "old":
            qs = new
    return found


def mistaken(name: str, sentence: str, part: str, **mistake: Any) -> Callable[[Evidence], str | None]:
    """A signature: this part of what was returned is what one mistake gives."""
    return looks_like(
        lambda inputs, n: [{part: values[part]} for values in simulate(inputs, n, **mistake)], name, sentence, part
    )


def matrices(rows: int, cols: int, r: int, with_error: bool) -> Case:
    def make(rank: int, n: int, rng: torch.Generator) -> tuple:
        first, second, error = (random_tensor((rows, cols), rng, torch.float64) for _ in range(3))
        shared = torch.Generator().manual_seed(rows * cols + r)
        return first, second, error * with_error, random_tensor((cols, r), shared, torch.float64)

    left = ", an error from before" if with_error else ""
    return Case(make, label=f"{rows} x {cols}, r = {r}{left}, two rounds")


def large_matrix(rank: int, n: int, rng: torch.Generator) -> tuple:
    first, second = (random_tensor((ROWS, COLS), rng, torch.float64) for _ in range(2))
    q = random_tensor((COLS, RANK), torch.Generator().manual_seed(1), torch.float64)
    return first, second, torch.zeros_like(first), q


def thin_bytes(n: int, rank: int, args: tuple) -> int:
    rows, cols = args[0].shape
    return 2 * args[3].shape[1] * (rows + cols) * args[0].element_size()


def whole(gradient: Tensor, error: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rival: the whole gradient."""
    mean = gradient.clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size(), error, q


@signature
def other_shapes(e: Evidence) -> str | None:
    r = e.wrong[0]
    found = (e.returned or e.observed)[r]
    if not isinstance(found, Shapes):
        return None
    rows, cols = e.inputs[r][0].shape
    want = f"{(rows, cols)}, {(rows, cols)} and {(cols, e.inputs[r][3].shape[1])}"
    have = show.listing(found) if found else "something else"
    return f"rank {r} returned shapes {have}, it should be {want}: the approximation, the error, q"


APPROXIMATION = "first approximation"
NOT_ORTHONORMAL = (
    "p was not made orthonormal: then p times p.T is no projection, and the approximation has another length. Use "
    "`torch.linalg.qr`."
)
OF_THE_APPROXIMATION: list[tuple[str, str, dict[str, Any]]] = [
    ("p_as_it_is", NOT_ORTHONORMAL, {"p": "as it is"}),
    ("p_as_a_sum", NOT_ORTHONORMAL, {"p": "a sum as it is"}),
    (
        "orthonormal_too_soon",
        "each rank made its own p orthonormal, and then they were added: the sum is not orthonormal. Add first.",
        {"p": "orthonormal too soon"},
    ),
    (
        "p_of_its_own",
        "each rank uses a p of its own, so the ranks end with different approximations. Add p over the ranks before it "
        "is made orthonormal.",
        {"p": "own"},
    ),
    (
        "q_of_its_own",
        "each rank uses a q of its own: this approximates its own gradient, not the mean. Average q over the ranks.",
        {"q": "own"},
    ),
    (
        "without_feedback",
        "this is the approximation of the gradient alone: what earlier rounds did not send is lost. Begin with "
        "`gradient + error`.",
        {"feedback": False},
    ),
    (
        "old_q_in_the_product",
        "the approximation is p times the q that came in. The new q belongs there: `wanted.T @ p`, averaged over the "
        "ranks.",
        {"q": "unused"},
    ),
    # Alone it is told as what it is, a sum: by the general signatures.
    ("q_as_a_sum", "the new q is a sum over the ranks: divide it by n.", {"q": "a sum"}),
]


@signature
def two_at_once(e: Evidence) -> str | None:
    """The first approximation is what two mistakes together give."""
    if e.where != f"`{APPROXIMATION}`":
        return None
    for (_, one, first), (_, other, second) in itertools.combinations(OF_THE_APPROXIMATION, 2):
        if first.keys() & second.keys():
            continue
        both = simulate(e.inputs, e.n, **first, **second)
        if all(same(e.observed[r], both[r][APPROXIMATION]) for r in e.wrong):
            return f"there are two mistakes. One: {one} The other: {other}"
    return None


ERROR = "An error is what this rank wanted to send, less what was sent for all: `gradient + error - approximation`."

POWER_SGD_ROUND = Exercise(
    name="power_sgd_round",
    lab="lab1",
    title="Bonus: a round of PowerSGD",
    minutes=25,
    difficulty=3,
    reference=compress.power_sgd_round,
    cases=[matrices(4, 6, 2, True), matrices(5, 3, 1, False)],
    expected=simulate,
    call=two_rounds,
    may_change=True,
    may_use=COLLECTIVES,
    takes_group=True,
    least_bytes=thin_bytes,
    timing=Timing(large_matrix, "two rounds of 4.2 MB, r = 4,", {"all of it": whole}, no_gain=NO_GAIN),
    signatures=[
        other_shapes,
        *(mistaken(name, sentence, APPROXIMATION, **mistake) for name, sentence, mistake in OF_THE_APPROXIMATION[:-1]),
        two_at_once,
        mistaken(
            "error_dropped",
            f"the error is zero. {ERROR}",
            "first error",
            error=lambda gradient, wanted, approximation, p, q, right, before: torch.zeros_like(right),
        ),
        mistaken(
            "old_error",
            f"the error is the one that came in. {ERROR}",
            "first error",
            error=lambda gradient, wanted, approximation, p, q, right, before: before,
        ),
        mistaken(
            "error_of_the_gradient",
            f"the error forgets what was missing before. {ERROR}",
            "first error",
            error=lambda gradient, wanted, approximation, p, q, right, before: gradient - approximation,
        ),
        mistaken(
            "error_turned_round",
            f"the error has the wrong sign. {ERROR}",
            "first error",
            error=lambda gradient, wanted, approximation, p, q, right, before: -right,
        ),
        mistaken(
            "error_of_its_own",
            f"the error is measured against this rank's own approximation. What is applied is the mean's. {ERROR}",
            "first error",
            error=lambda gradient, wanted, approximation, p, q, right, before: wanted - p @ q.T,
        ),
        mistaken(
            "error_counted_twice",
            f"the old error is counted twice. {ERROR}",
            "first error",
            error=lambda gradient, wanted, approximation, p, q, right, before: right + before,
        ),
        mistaken(
            "old_q",
            "the second round begins with the q that the first began with. Return the new one: from round to round it "
            "turns towards what matters most.",
            "second approximation",
            q="old",
        ),
    ],
    hints=[
        "A matrix M of rank r is p times q.T. If p has orthonormal columns, q = M.T p is the best that goes with it. "
        "And M is a mean over ranks, so both products may be computed locally and then added.",
        "Who computes what:\n"
        "    wanted = gradient + error              (rows, cols)   each rank's own\n"
        "    p = wanted @ q,   added over the ranks  (rows, r)      the same on all\n"
        "    p made orthonormal\n"
        "    q = wanted.T @ p, mean over the ranks   (cols, r)      the same on all\n"
        "    p @ q.T                                (rows, cols)   the same on all\n"
        "    error = wanted - p @ q.T                              each rank's own",
        "`p = wanted @ q`, `dist.all_reduce(p, group=group)`, `p, _ = torch.linalg.qr(p)`; `q = wanted.T @ p`, "
        "`dist.all_reduce(q, group=group)`, `q /= n`. The approximation is `p @ q.T`, the error `wanted` less that.",
    ],
    advice={
        "scaled": "Divide q by n.",
        "too_many_bytes": "Only p and q travel, never a whole matrix.",
    },
    wrong=[
        Wrong(powers.without_feedback, "what earlier rounds did not send is lost"),
        Wrong(powers.error_dropped, "the error is zero"),
        Wrong(powers.old_error, "the error is the one that came in"),
        Wrong(powers.error_of_the_gradient, "forgets what was missing before"),
        Wrong(powers.error_turned_round, "the error has the wrong sign"),
        Wrong(powers.error_of_its_own_approximation, "this rank's own approximation"),
        Wrong(powers.error_counted_twice, "the old error is counted twice"),
        Wrong(powers.not_orthonormal, "p was not made orthonormal"),
        Wrong(powers.sum_not_orthonormal, "another length. Use `torch.linalg.qr`"),
        Wrong(
            powers.neither_feedback_nor_orthonormal, "Use `torch.linalg.qr`. The other: this is the approximation of"
        ),
        Wrong(
            powers.neither_feedback_nor_mean,
            "what earlier rounds did not send is lost. Begin with `gradient + error`. The",
        ),
        Wrong(powers.orthonormal_too_soon_and_sums, "Add first. The other: the new q is a sum"),
        Wrong(powers.orthonormal_too_soon, "Add first."),
        Wrong(powers.q_not_averaged, "exactly 4 times too large: a sum where a mean is needed. Divide q by n."),
        Wrong(powers.p_of_its_own, "a p of its own"),
        Wrong(powers.q_of_its_own, "a q of its own"),
        Wrong(powers.returning_the_old_q, "with the q that the first began with"),
        Wrong(powers.everything_reduced, "Only p and q travel"),
        Wrong(powers.order_of_results, "the approximation, the error, q"),
        Wrong(powers.old_q_in_the_product, "p times the q that came in"),
        Wrong(powers.without_group, "ight on the whole world, wrong in a group"),
    ],
)
