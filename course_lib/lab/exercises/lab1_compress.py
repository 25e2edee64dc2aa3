"""Lab 1, bonus: fewer bytes for a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.lab import calls, show
from course_lib.lab.evidence import Aside, Evidence
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Timing, Wrong, random_tensor
from course_lib.lab.exercises.wrong import bf16_compress as casts
from course_lib.lab.exercises.wrong import power_sgd_round as powers
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import signature
from course_lib.parallel.data import compress

LARGE = 4_000_000  # elements of the timed bucket: 16 MB of float32
ROWS, COLS, RANK = 1024, 512, 4  # of the timed matrix


# bfloat16


def compressed(answer: Callable, flat: Tensor, **group: Any) -> Any:
    """The mean, in bfloat16's precision, and whether its all-reduce ran between the call and `finish()`."""
    flat = flat.clone()
    file = answer.__code__.co_filename if hasattr(answer, "__code__") else ""
    with calls.record(file) as log:
        finish = answer(flat, **group)
        returned = log.tick()
        if callable(finish):
            finish()
        elif isinstance(finish, dist.Work):  # so that it is told what is wrong with it, and not that nobody waits
            finish.wait()
    begun = [call for call in log.collectives if call.begun < returned]
    waits = [call.line for call in begun if call.ended is not None and call.ended < returned]
    if not callable(finish):
        return finish if finish is None else f"an object of type {type(finish).__name__}"
    return {
        "mean": flat.to(torch.bfloat16),
        "waits": bool(waits),
        "started": bool(begun),
        "seen": Aside({"waits": waits, "dtypes": sorted({call.dtype for call in log.collectives})}),
    }


def compressed_expected(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    mean = sum(flat / n for (flat,) in inputs)
    return [{"mean": mean.to(torch.bfloat16), "waits": False, "started": True}] * n


def bucket(size: int, scale: float = 1.0) -> Case:
    many = f"{size} gradients" + (f" of about {scale:.0e}" if scale != 1.0 else "")
    return Case(lambda rank, n, rng: (random_tensor((size,), rng) * scale,), label=many)


def in_float32(flat: Tensor) -> Callable[[], None]:
    """The rival: all of the bytes."""
    work = dist.all_reduce(flat, async_op=True)

    def finish() -> None:
        work.wait()
        flat.div_(dist.get_world_size())

    return finish


@signature
def no_finish(e: Evidence) -> str | None:
    r = e.wrong[0]
    returned = (e.returned or e.observed)[r]
    if isinstance(returned, dict):
        return None
    what = "None" if returned is None else str(returned)
    return f"rank {r} returned {what}. Return the function `finish` itself: it is called later, when the mean is needed"


@signature
def another_16_bits(e: Evidence) -> str | None:
    if e.where != "`mean`":
        return None
    dtypes = e.aside(e.wrong[0]).get("dtypes", [])
    if "float16" in dtypes:
        return "float16 ends at 65,504: larger gradients become infinite. bfloat16 has float32's range"
    return None


@signature
def mean_not_written(e: Evidence) -> str | None:
    if e.where != "`mean`" or not any(e.collectives or []):
        return None
    if not all(bool((e.observed[r] == e.inputs[r][0].to(torch.bfloat16)).all()) for r in range(e.n)):
        return None
    return "`flat` holds each rank's own gradients, as before: write the mean into it, with `flat.copy_(...)`"


@signature
def waits_too_soon(e: Evidence) -> str | None:
    if e.where != "`waits`":
        return None
    line = e.aside(e.wrong[0])["waits"][0]
    quoted = e.quote(line) if line else "the all-reduce"
    how = "Keep the work, and wait in `finish`" if "async_op" in quoted else "`async_op=True`, and wait in `finish`"
    return f"right, but {quoted} is waited for before `finish()` is called, so nothing overlaps with it. {how}"


@signature
def starts_too_late(e: Evidence) -> str | None:
    if e.where != "`started`":
        return None
    return "right, but the all-reduce starts in `finish()`, when its result is needed already. Start it at once"


BF16_COMPRESS = Exercise(
    name="bf16_compress",
    lab="lab1",
    title="Bonus: half the bytes",
    minutes=10,
    difficulty=2,
    reference=compress.bf16_compress,
    cases=[bucket(8), bucket(101), bucket(8, 1e6)],
    expected=compressed_expected,
    call=compressed,
    may_change=True,
    may_use=COLLECTIVES,
    takes_group=True,
    least_bytes=lambda n, rank, args: 2 * args[0].numel(),
    timing=Timing(lambda rank, n, rng: (random_tensor((LARGE,), rng),), "16 MB", {"in float32": in_float32}),
    signatures=[no_finish, another_16_bits, mean_not_written, waits_too_soon, starts_too_late],
    hints=[
        "Three moments: before the sum, while it is under way, and when `finish()` is called. What belongs to which?",
        "What is where:\n"
        "    before    half = (flat / n) in bfloat16, then all_reduce(half), async\n"
        "    between   backward goes on\n"
        "    finish    wait; copy half into flat",
        "`half = (flat / n).to(torch.bfloat16)`; `work = dist.all_reduce(half, group=group, async_op=True)`; and a "
        "function `finish` that calls `work.wait()` and `flat.copy_(half)`.",
    ],
    advice={
        "too_many_bytes": "Cast to bfloat16 before the sum, not after it.",
        "never_waits": "Wait in `finish`.",
        "scaled": "Divide by n.",
    },
    wrong=[
        Wrong(casts.cast_after_the_sum, "Cast to bfloat16 before the sum"),
        Wrong(casts.not_asynchronous, "`async_op=True`, and wait in `finish`"),
        Wrong(casts.waiting_at_once, "Keep the work, and wait in `finish`"),
        Wrong(casts.starting_in_finish, "starts in `finish()`, when its result is needed"),
        Wrong(casts.never_written_back, "write the mean into it"),
        Wrong(casts.rebinding, "each rank's own gradients, as before"),
        Wrong(casts.sums, "a sum where a mean is needed"),
        Wrong(casts.never_waiting, "is never waited for"),
        Wrong(casts.in_float16, "bfloat16 has float32's range"),
        Wrong(casts.returning_the_work, "Return the function `finish` itself"),
        Wrong(casts.calling_finish, "returned None. Return the function `finish`"),
        Wrong(casts.without_group, "ight on the whole world, wrong in a group"),
    ],
)


# PowerSGD


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
    """Two rounds on all ranks, in one process; with one mistake if named."""
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
            ps = [sum(ps) / n] * n
        if mistake.get("p") not in ("as it is", "orthonormal too soon"):
            ps = [torch.linalg.qr(p)[0] for p in ps]
        own = [w.T @ p for w, p in zip(wanted, ps, strict=True)]
        new = own if mistake.get("q") == "own" else [sum(own) / n] * n
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
    timing=Timing(large_matrix, "two rounds of 4.2 MB, r = 4,", {"all of it": whole}),
    signatures=[
        other_shapes,
        mistaken(
            "p_as_it_is",
            "p was not made orthonormal: then p times p.T is no projection, and the approximation has another length. "
            "Use `torch.linalg.qr`.",
            "first approximation",
            p="as it is",
        ),
        mistaken(
            "orthonormal_too_soon",
            "each rank made its own p orthonormal, and then they were added: the sum is not orthonormal. Add first.",
            "first approximation",
            p="orthonormal too soon",
        ),
        mistaken(
            "p_of_its_own",
            "each rank uses a p of its own, so the ranks end with different approximations. Add p over the ranks "
            "before it is made orthonormal.",
            "first approximation",
            p="own",
        ),
        mistaken(
            "q_of_its_own",
            "each rank uses a q of its own: this approximates its own gradient, not the mean. Average q over the "
            "ranks.",
            "first approximation",
            q="own",
        ),
        mistaken(
            "without_feedback",
            "this is the approximation of the gradient alone: what earlier rounds did not send is lost. Begin with "
            "`gradient + error`.",
            "first approximation",
            feedback=False,
        ),
        mistaken(
            "old_q_in_the_product",
            "the approximation is p times the q that came in. The new q belongs there: `wanted.T @ p`, averaged over "
            "the ranks.",
            "first approximation",
            q="unused",
        ),
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
