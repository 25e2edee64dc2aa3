"""The cost model against counts by hand, against what the code really sends, and its fit against known answers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib import collectives as c
from course_lib import spmd
from course_lib.collectives import cost, front, simple
from course_lib.collectives.cost import COSTS, Cost, crossover, fit

RING, HALVING, TREE, NAIVE = (cost.cost("all_reduce", name, 4) for name in ("ring", "halving", "tree", "naive"))


def test_costs_on_four_ranks_by_hand():
    assert Cost(6, 1.5) == RING
    assert Cost(4, 1.5) == HALVING
    assert Cost(4, 4) == TREE
    assert Cost(6, 6) == NAIVE
    assert cost.cost("all_reduce", "halving", 3) == Cost(2 + 2, 1 + 2)  # two ranks halve; one message before, one after
    assert cost.cost("reduce_scatter", "halving", 6) == Cost(2 + 2, 3 / 4 + 1 + 1 / 6)
    assert cost.cost("broadcast", "tree", 5) == Cost(3, 3)


def test_two_levels_put_less_on_the_network_between_nodes():
    within, across = cost.two_level(nodes=4, per_node=8)
    assert within == Cost(14, 14 / 8)
    assert across == Cost(6, 1.5 / 8)
    assert across.volume < cost.cost("all_reduce", "ring", 32).volume


@pytest.mark.parametrize("name", COSTS)
def test_one_rank_costs_nothing(name):
    assert cost.cost(*name, 1) == Cost(0, 0)


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="no cost is known of all_reduce butterfly: choose one of all_reduce naive, "):
        cost.cost("all_reduce", "butterfly", 4)


def sent_by_each_algorithm(numel):
    """(bytes sent, messages sent) of this rank, for every all-reduce there is."""
    runs = {name: lambda x, name=name: c.all_reduce(x, algorithm=name) for name in front.ALL_REDUCE}
    runs["naive"] = simple.naive_all_reduce
    moved = {}
    for name, run in runs.items():
        with spmd.traffic() as traffic:
            run(torch.ones(numel))
        moved[name] = (traffic.sent, traffic.messages)
    return moved


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_the_busiest_rank_sends_what_the_model_says(n):
    numel = 840  # a multiple of all the n
    ranks = spmd.run(sent_by_each_algorithm, numel, ranks=n, show=False)
    busiest = {name: max(rank[name][0] for rank in ranks) for name in ranks[0]}
    model = {name: cost.cost("all_reduce", name, n).volume * numel * 4 for name in busiest}
    assert busiest["ring"] == pytest.approx(model["ring"])
    if n in (2, 4, 8):
        assert busiest["halving"] == pytest.approx(model["halving"])
    else:  # the volume counts a pair's two transfers, one in each direction; the odd rank of a pair sends one of them
        assert busiest["halving"] == pytest.approx(model["halving"] - numel * 4)
    assert busiest["naive"] == pytest.approx(model["naive"] / 2)  # rank 0 receives as much as it sends, not at once
    assert busiest["tree"] == pytest.approx(model["tree"] / 2)  # up, then down
    assert all(rank["ring"][1] == cost.cost("all_reduce", "ring", n).steps for rank in ranks)


ALPHAS, BETAS = st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8)


@given(ALPHAS, BETAS)
def test_a_fit_finds_the_alpha_and_beta_that_made_the_times(alpha, beta):
    samples = [(how, nbytes, how.seconds(nbytes, alpha, beta)) for how in (RING, TREE) for nbytes in (1, 10**6, 10**9)]
    found = fit(samples)
    assert found.alpha == pytest.approx(alpha, rel=1e-6)
    assert found.beta == pytest.approx(beta, rel=1e-6)
    assert found.relative_error < 1e-6
    assert found.r2 > 0.999999


def test_small_sizes_count_as_much_as_large_ones():
    """With 10% of noise on every time, alpha comes out within 10%; plain least squares would lose it altogether."""
    noise = [1.1, 0.9, 1.1, 0.9, 1.1, 0.9]
    sizes = [1_000 * 8**i for i in range(6)]
    samples = [(RING, s, RING.seconds(s, 50e-6, 1e-9) * f) for s, f in zip(sizes, noise, strict=True)]
    found = fit(samples)
    assert found.alpha == pytest.approx(50e-6, rel=0.1)
    assert found.beta == pytest.approx(1e-9, rel=0.1)
    assert 0.05 < found.relative_error < 0.15
    assert str(found).startswith("alpha 5")


def test_a_term_too_small_to_be_seen_is_zero_and_not_negative():
    falling = [(RING, 1000, 2e-3), (RING, 2000, 1.9e-3), (RING, 4000, 1.8e-3)]
    found = fit(falling)
    assert found.beta == 0
    assert found.alpha == pytest.approx(1.9e-3 / 6, rel=0.05)
    assert "no limit seen" in str(found)


@pytest.mark.parametrize(
    "samples", [[(RING, 1000, 1e-3)], [(RING, 1000, 1e-3), (RING, 1000, 2e-3)], [(Cost(0, 0), 8, 1e-6)] * 3, []]
)
def test_samples_that_cannot_tell_are_refused(samples):
    with pytest.raises(ValueError, match=r"\d samples cannot tell alpha from beta: measure two sizes or more"):
        fit(samples)


def test_crossover_by_hand():
    # Two steps more cost 2 alpha = 100 us; 2.5 tensors less save 2.5 ns a byte.
    assert crossover(TREE, RING, alpha=50e-6, beta=1e-9) == pytest.approx(40_000)
    assert crossover(HALVING, RING, 50e-6, 1e-9) is None  # halving is never slower by this model
    assert crossover(RING, TREE, 50e-6, 1e-9) is None
    assert crossover(TREE, RING, 50e-6, 0.0) is None


@given(st.integers(2, 64), ALPHAS, BETAS)
def test_at_the_crossover_both_take_as_long(n, alpha, beta):
    tree, ring = cost.cost("all_reduce", "tree", n), cost.cost("all_reduce", "ring", n)
    size = crossover(tree, ring, alpha, beta)
    if size is not None:
        assert tree.seconds(size, alpha, beta) == pytest.approx(ring.seconds(size, alpha, beta))
        assert tree.seconds(2 * size, alpha, beta) > ring.seconds(2 * size, alpha, beta)


def test_the_fit_that_learners_write_agrees():
    sizes = torch.tensor([4.0**power for power in range(1, 13)], dtype=torch.float64)
    wobble = torch.tensor([1.1, 0.9] * 6, dtype=torch.float64)
    seconds = (60e-6 + 0.5e-9 * sizes) * wobble
    message = Cost(1, 1)
    ours = fit([(message, int(size), float(time)) for size, time in zip(sizes, seconds, strict=True)])
    assert cost.fit_alpha_beta(sizes, seconds) == pytest.approx((ours.alpha, ours.beta), rel=1e-6)
