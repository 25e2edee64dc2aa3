"""Lab 2a, bonus: what is drawn at random, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.lab.evidence import Aside, Evidence, same
from course_lib.lab.exercise import COLLECTIVES, Case, Exercise, Wrong, random_tensor
from course_lib.lab.exercises.lab2a_graded import in_part
from course_lib.lab.exercises.wrong import initial_shard as shards
from course_lib.lab.exercises.wrong import region_dropout as masks
from course_lib.lab.signatures import looks_like
from course_lib.lab.signatures.words import Signature, signature
from course_lib.parallel.tensor import simple

Group = dist.ProcessGroup | None
NEAR = 0.03  # by so much may a share of about 10,000 draws be off; chance alone makes it 0.005


# A shard to start from


def matrix(shape: tuple[int, int], dim: int, std: float, seed: int) -> Case:
    label = f"a matrix of {shape[0]} x {shape[1]}, cut along dim {dim}"
    return Case(lambda rank, n, rng: (shape, dim, std, seed), label=label)


def drawn(answer: Callable, *args: Any, **group: Any) -> dict[str, Any]:
    """The shard; how many elements its memory has; whether the default generator is as it was."""
    before = torch.get_rng_state()
    shard = answer(*args, **group)
    kept = shard.untyped_storage().nbytes() // shard.element_size() if isinstance(shard, Tensor) else 0
    untouched = torch.equal(before, torch.get_rng_state())
    return {"shard": shard, "elements in memory": kept, "default generator untouched": untouched}


def normal(shape: tuple[int, ...], std: float, seed: int) -> Tensor:
    return torch.empty(shape).normal_(0, std, generator=torch.Generator().manual_seed(seed))


def one_process(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    shape, dim, std, seed = inputs[0]
    parts = normal(shape, std, seed).chunk(n, dim)
    kept = shape[0] * shape[1] // n
    return [{"shard": part, "elements in memory": kept, "default generator untouched": True} for part in parts]


def draws_its_own(seed_of: Callable[[int, int], int]) -> Callable[[list[tuple], int], list[dict[str, Tensor]]]:
    """Each rank draws a shard, with the seed seed_of(seed, rank)."""

    def compute(inputs: list[tuple], n: int) -> list[dict[str, Tensor]]:
        shape, dim, std, seed = inputs[0]
        size = tuple(k // n if i == dim else k for i, k in enumerate(shape))
        return [{"shard": normal(size, std, seed_of(seed, rank))} for rank in range(n)]

    return compute


def part_of_rank_0(e: Evidence, rank: int) -> bool:
    return rank > 0 and same(e.observed[rank], e.expected[0])


@signature
def keeps_the_whole(e: Evidence) -> str | None:
    if e.where != "`elements in memory`":
        return None
    r = e.wrong[0]
    return (
        f"the values are right, but rank {r} keeps {e.observed[r]} elements in memory for its {e.expected[r]}: the "
        "shard is a view of the whole. `.clone()` it"
    )


@signature
def default_generator_touched(e: Evidence) -> str | None:
    if e.where != "`default generator untouched`":
        return None
    return (
        "the values are right, but the default generator was set or drawn from, and dropout and data that use it go on "
        "from elsewhere. Take a generator of your own"
    )


INITIAL_SHARD = Exercise(
    name="initial_shard",
    lab="lab2a",
    title="Bonus: a shard to start from",
    minutes=10,
    difficulty=1,
    reference=simple.initial_shard,
    cases=[matrix((12, 6), 0, 0.5, 7), matrix((5, 24), 1, 0.02, 8)],
    expected=one_process,
    call=drawn,
    may_use=COLLECTIVES,
    takes_group=True,
    least_bytes=lambda n, rank, args: 0,
    signatures=[
        looks_like(
            draws_its_own(lambda seed, rank: seed),
            "same_on_all",
            "each rank draws its part alone, all with the same seed: all parts are the same numbers. Draw the whole, "
            "and keep a part.",
            part="shard",
        ),
        looks_like(
            draws_its_own(lambda seed, rank: seed + rank),
            "seed_and_rank",
            "each rank draws its part alone, with its rank in the seed. So another number of ranks begins with another "
            "model, and no run can be compared with that of one process. Draw the whole, and keep a part.",
            part="shard",
        ),
        in_part(
            "shard",
            part_of_rank_0,
            "first_part",
            "every rank has the part of rank 0.",
        ),
        in_part(
            "shard",
            lambda e, r: same(e.observed[r] * e.inputs[0][2], e.expected[r]),
            "without_std",
            "these numbers have a standard deviation of 1, not of `std`.",
        ),
        keeps_the_whole,
        default_generator_touched,
    ],
    hints=[
        "What must not change when n does? Each rank may well draw more than it keeps.",
        "On 1 rank, on 2 and on 3, the same 6 numbers:\n    a b c d e f\n    a b c | d e f\n    a b | c d | e f",
        "`generator = torch.Generator().manual_seed(seed)`; `whole = torch.empty(shape).normal_(0, std, "
        "generator=generator)`; return `whole.chunk(n, dim)[rank].clone()`.",
    ],
    advice={"too_many_bytes": "With the seed, every rank can draw the whole by itself."},
    wrong=[
        Wrong(shards.same_on_all, "all parts are the same numbers"),
        Wrong(shards.seed_and_rank, "another number of ranks begins with another model"),
        Wrong(shards.first_part, "every rank has the part of rank 0"),
        Wrong(shards.without_std, "a standard deviation of 1"),
        Wrong(shards.a_view, "is a view of the whole"),
        Wrong(shards.by_the_default_generator, "Take a generator of your own"),
        Wrong(shards.sent_by_rank_0, "every rank can draw the whole by itself"),
        Wrong(shards.along_dim_0, "it should be (5, 8)"),
        Wrong(shards.std_by_ranks, "every value is exactly 1/2 of what it should be"),
    ],
    closing="The same model on 1 rank and on 64. For a moment a rank holds one whole matrix: draw one at a time.",
)


# Dropout


def ones(rows: int) -> Case:
    def make(rank: int, n: int, rng: torch.Generator) -> tuple[Tensor, float, int]:
        return random_tensor((rows, 50), rng).abs() + 1, 0.4, 7

    return Case(make, label=f"{rows} x 50 numbers, p = 0.4")


def dropped(answer: Callable, x: Tensor, p: float, seed: int, group: Group = None) -> dict[str, Any]:
    """What is true of the masks, on this rank and compared with the others'."""

    def mask(sharded: bool, seed: int = seed) -> Tensor:
        y = answer(x, p, seed, sharded, group=group)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            raise TypeError(f"it returned {y!r:.60}, not a tensor of the shape of x")
        values.append(y)
        return y == 0

    values: list[Tensor] = []
    replicated, sharded = mask(False), mask(True)
    again, other_seed = (mask(False), mask(True)), (mask(False, seed + 1), mask(True, seed + 1))
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    of_ranks = []
    for mine in (replicated, sharded):
        of_ranks.append([torch.empty_like(mine, dtype=torch.uint8) for _ in range(n)])
        dist.all_gather(of_ranks[-1], mine.to(torch.uint8), group=group)
    kept = [y[y != 0] / x[y != 0] for y in values]
    shares = [float((y == 0).float().mean()) for y in values]
    together = [_together(sharded, theirs.bool()) for r, theirs in enumerate(of_ranks[1]) if r != rank]
    return {
        "share": all(abs(share - p) < NEAR for share in shares),
        "scale": all(bool(((k - 1 / (1 - p)).abs() < 1e-4).all()) for k in kept),
        "replicated": all(torch.equal(theirs.bool(), replicated) for theirs in of_ranks[0]),
        "sharded": all(abs(t - p * p) < NEAR for t in together),
        "regions": all(abs(_together(replicated, theirs.bool()) - p * p) < NEAR for theirs in of_ranks[1]),
        "again": torch.equal(again[0], replicated) and torch.equal(again[1], sharded),
        "seed": all(
            abs(_together(a, b) - p * p) < NEAR for a, b in zip((replicated, sharded), other_seed, strict=True)
        ),
        "seen": Aside({"share": shares[0], "scale": float(kept[0].mean()) if len(kept[0]) else 0.0}),
    }


def _together(a: Tensor, b: Tensor) -> float:
    """The share of elements that both drop."""
    return float((a & b).float().mean())


def all_true(inputs: list[tuple], n: int) -> list[dict[str, bool]]:
    return [dict.fromkeys(("share", "scale", "replicated", "sharded", "regions", "again", "seed"), True)] * n


def not_true(part: str, sentence: str) -> Signature:
    @signature
    def find(e: Evidence) -> str | None:
        if e.where != f"`{part}`":
            return None
        seen, p = e.aside(e.wrong[0]), e.inputs[0][1]
        return sentence.format(share=seen["share"], scale=seen["scale"], p=p, right=1 / (1 - p), rank=e.wrong[0])

    find.__name__ = f"not_{part}"
    return find


REGION_DROPOUT = Exercise(
    name="region_dropout",
    lab="lab2a",
    title="Bonus: dropout by region",
    minutes=15,
    difficulty=2,
    reference=simple.region_dropout,
    cases=[ones(200)],
    expected=all_true,
    call=dropped,
    may_use=COLLECTIVES,
    takes_group=True,
    signatures=[
        not_true("share", "of all elements {share:.0%} are dropped. With p = {p} it should be about {p:.0%}."),
        not_true(
            "scale",
            "what is kept is multiplied by {scale:.3g}, it should be by 1 / (1 - p) = {right:.3g}: then the mean of x "
            "stays what it was.",
        ),
        not_true(
            "replicated",
            "in a region where x is alike, the ranks drop different elements: from here on their copies of x differ, "
            "and with them all gradients. The seed there must not depend on the rank.",
        ),
        not_true(
            "sharded",
            "where each rank has its own shard, the ranks drop the same places of it: the mask of the whole repeats, "
            "and what should be noise is a pattern. The rank must be in the seed there.",
        ),
        not_true(
            "regions",
            "some rank's mask for a sharded region is the one of the replicated regions: two layers drop the same "
            "places. Keep the two kinds of seed apart, on rank 0 too.",
        ),
        not_true(
            "again",
            "called again with the same seed, it drops other elements. A backward that recomputes forward must find "
            "the same mask: make a new generator of the seed in each call.",
        ),
        not_true("seed", "with another seed, the same elements are dropped: `seed` has no part in it."),
    ],
    hints=[
        "A generator with a seed is a stream of numbers that anybody can repeat. Who should have which stream?",
        "Streams on 2 ranks:\n"
        "                   rank 0        rank 1\n"
        "    replicated     seed          seed             alike\n"
        "    sharded        seed + a      seed + a + 1     all three differ",
        "`stream = seed + (2718 + rank if sharded else 0)`; a `torch.Generator(x.device).manual_seed(stream)`; drop "
        "where `torch.rand(x.shape, generator=generator, device=x.device) < p`; divide by `1 - p`.",
    ],
    wrong=[
        Wrong(masks.same_everywhere, "the mask of the whole repeats"),
        Wrong(masks.rank_everywhere, "in a region where x is alike, the ranks drop different elements"),
        Wrong(masks.rank_0_without_offset, "is the one of the replicated regions"),
        Wrong(masks.not_scaled, "what is kept is multiplied by 1,"),
        Wrong(masks.keeps_p, "With p = 0.4 it should be about 40%"),
        Wrong(masks.one_long_stream, "called again with the same seed"),
        Wrong(masks.without_seed, "`seed` has no part in it"),
        Wrong(masks.the_other_way_round, "their copies of x differ, and with them all gradients. The seed"),
        Wrong(masks.returns_the_mask, "what is kept is multiplied by 0."),
    ],
    closing="Nothing is sent, and no mask is kept: the seed says it all.",
)
