"""Every misconception, built by construction, is called by its name; a right result never is called anything."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.lab.evidence import Evidence, collect
from course_lib.lab.signatures import VALUES, explain, looks_like


def reduce(inputs):
    return [sum(x for (x,) in inputs)] * len(inputs)


def mean(inputs):
    return [sum(x for (x,) in inputs) / len(inputs)] * len(inputs)


def scatter(inputs):
    return list(sum(x for (x,) in inputs).chunk(len(inputs)))


def gather(inputs):
    return [torch.cat([x for (x,) in inputs])] * len(inputs)


def make_inputs(n, size, seed=0, dtype=torch.float32):
    """Values that stay away from zero: one that rounds away in a sum leaves an element that nothing is wrong with."""
    rng = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(size, generator=rng, dtype=torch.float64) for _ in range(n)]
    return [((x.sign() * (x.abs() + 0.1)).to(dtype),) for x in drawn]


def named(observed, inputs, expect, **facts):
    """(name, sentence) for what the ranks returned."""
    evidence = collect(len(inputs), observed, expect(inputs), inputs, expect, **facts)
    assert evidence is not None, "nothing wrong was seen"
    return explain(evidence)


# A busy machine is no failure; forty examples find what four hundred do.
by_construction = settings(deadline=None, max_examples=40)
worlds = st.integers(2, 4)
chunks = st.integers(2, 5)
seeds = st.integers(0, 10_000)


@by_construction
@given(worlds, chunks, seeds, st.sampled_from([reduce, mean, scatter, gather]), st.sampled_from(["float32", "float64"]))
def test_a_right_result_matches_nothing(n, k, seed, expect, dtype):
    inputs = make_inputs(n, n * k, seed, getattr(torch, dtype))
    wanted = expect(inputs)
    # Summed in another order, as a ring does, and in tensors of their own.
    observed = [value.clone() for value in expect(inputs[::-1])] if expect is not gather else wanted
    assert collect(n, observed, wanted, inputs, expect) is None
    evidence = Evidence(n, wanted, observed, inputs, root=0, size=n * k)
    assert [find.__name__ for find in VALUES if find(evidence)] == []


@by_construction
@given(worlds, chunks, seeds)
def test_sum_where_a_mean_is_needed(n, k, seed):
    inputs = make_inputs(n, n * k, seed)
    assert named(reduce(inputs), inputs, mean) == (
        "scaled",
        f"every value is exactly {n} times too large: a sum where a mean is needed",
    )


@by_construction
@given(worlds, chunks, seeds)
def test_mean_where_a_sum_is_needed(n, k, seed):
    inputs = make_inputs(n, n * k, seed)
    name, sentence = named(mean(inputs), inputs, reduce)
    assert name == "scaled" and f"exactly 1/{n} of what it should be: a mean where a sum is needed" in sentence


def test_a_factor_that_differs_by_rank():
    inputs = make_inputs(3, 6)
    right = reduce(inputs)
    name, sentence = named([right[0], 2 * right[1], 4 * right[2]], inputs, reduce)
    assert name == "scaled" and "differs by rank: rank 1 2 times too large, rank 2 4 times too large" in sentence


@by_construction
@given(st.integers(3, 4), chunks, seeds, st.data())
def test_a_share_missing_from_a_sum(n, k, seed, data):
    lost = data.draw(st.integers(0, n - 1))
    inputs = make_inputs(n, n * k, seed)
    observed = [sum(x for j, (x,) in enumerate(inputs) if j != lost)] * n
    name, sentence = named(observed, inputs, reduce)
    assert name == "share_missing"
    whose = "rank 0's own values are" if lost == 0 else f"the values of rank {lost} are"
    assert sentence == f"rank 0: {whose} missing"


@by_construction
@given(worlds, chunks, seeds, st.data())
def test_a_share_counted_twice(n, k, seed, data):
    twice = data.draw(st.integers(1, n - 1))
    inputs = make_inputs(n, n * k, seed)
    observed = [reduce(inputs)[0] + inputs[twice][0]] * n
    assert named(observed, inputs, reduce) == ("share_twice", f"rank 0: the values of rank {twice} are counted twice")


@by_construction
@given(st.integers(3, 4), chunks, seeds)
def test_partial_sums(n, k, seed):
    inputs = make_inputs(n, n * k, seed)
    observed = [2 * inputs[0][0] + 3 * inputs[1][0] + sum(x for (x,) in inputs[3:])] * n
    name, sentence = named(observed, inputs, reduce)
    assert name == "partial_sums" and "rank 0's twice, rank 1's 3 times, rank 2's not at all" in sentence


@by_construction
@given(st.integers(3, 4), chunks, seeds, st.data())
def test_every_ranks_chunk_goes_to_another_rank(n, k, seed, data):
    shift = data.draw(st.integers(1, n - 1))
    inputs = make_inputs(n, n * k, seed)
    right = scatter(inputs)
    name, sentence = named([right[(r + shift) % n] for r in range(n)], inputs, scatter)
    assert name == "another_ranks_value"
    far = f"{shift} too far" if 2 * shift <= n else f"{n - shift} too short"
    assert far.replace("1 too", "one too") in sentence
    assert f"rank 1 returned what belongs to rank {(1 + shift) % n}" in sentence


@by_construction
@given(st.integers(3, 4), chunks, seeds)
def test_chunks_in_another_order(n, k, seed):
    inputs = make_inputs(n, k, seed)
    parts = [x for (x,) in inputs]
    name, sentence = named([torch.cat([parts[-1], *parts[:-1]])] * n, inputs, gather)
    assert name == "chunks_permuted" and "their place is one too far" in sentence
    name, sentence = named([torch.cat(parts[::-1])] * n, inputs, gather)
    assert name == "chunks_permuted" and "their order is not" in sentence
    name, sentence = named([torch.cat([parts[0], *parts[:-1]])] * n, inputs, gather)
    assert name == "chunks_permuted" and f"chunk 0 stands in 2 places, chunk {n - 1} is missing" in sentence


@by_construction
@given(worlds, chunks, seeds)
def test_shares_from_different_chunks(n, k, seed):
    inputs = make_inputs(n, n * k, seed)
    mixed = sum(x.chunk(n)[j] for j, (x,) in enumerate(inputs))
    name, sentence = named([mixed] * n, inputs, scatter)
    assert name == "mixed_chunks" and "it holds chunk 0 of rank 0" in sentence


@by_construction
@given(worlds, chunks, seeds)
def test_the_input_comes_back(n, k, seed):
    inputs = make_inputs(n, n * k, seed)
    name, sentence = named([x for (x,) in inputs], inputs, reduce)
    assert (name, sentence) == ("unchanged_input", "every rank returned its input unchanged")
    stale = [reduce(inputs)[0], *(x for (x,) in inputs[1:])]
    name, sentence = named(stale, inputs, reduce)
    assert name == "unchanged_input" and sentence.endswith("input unchanged")


def test_another_ranks_input():
    inputs = make_inputs(3, 4)
    name, sentence = named([inputs[0][0]] * 3, inputs, lambda xs: [xs[2][0]] * 3)
    assert (name, sentence) == ("another_ranks_input", "rank 1 holds rank 0's input, it should hold rank 2's")


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (lambda v: None, "nothing_returned", "rank 0 returned None, not a tensor of shape (6,)"),
        (lambda v: v.tolist(), "wrong_kind", "not a tensor of shape (6,)"),
        (lambda v: v.view(2, 3), "wrong_shape", "the number of elements is right, their arrangement is not"),
        (lambda v: v[:2], "wrong_shape", "one third of the elements"),
        (lambda v: torch.cat([v] * 3), "wrong_shape", "3 times as many elements"),
        (lambda v: v.double(), "wrong_dtype", "returned float64, it should stay float32"),
        (lambda v: torch.full_like(v, torch.nan), "not_finite", "rank 0, elements 0 to 5: nan"),
        (torch.zeros_like, "share_missing", "nothing arrived there, the values are all zero"),
        (lambda v: -v, "scaled", "wrong sign"),
        (lambda v: v + 1, "agree_but_wrong", "all ranks agree, but on a wrong value. rank 0, element 0: "),
    ],
)
def test_the_same_mistake_on_all_ranks(change, name, words):
    inputs = make_inputs(3, 6)
    found = named([change(value) for value in reduce(inputs)], inputs, reduce)
    assert found[0] == name and words in found[1]


def test_ranks_that_agree_on_a_maximum():
    """Element by element a maximum is a sum with shares missing; but each time other ones."""
    inputs = make_inputs(4, 24)
    highest = torch.stack([x for (x,) in inputs]).amax(0)
    assert named([highest] * 4, inputs, reduce)[0] == "agree_but_wrong"


def test_only_the_root_is_right():
    inputs, noise = make_inputs(4, 6), make_inputs(4, 6, seed=1)
    observed = [x for (x,) in noise]
    observed[2] = reduce(inputs)[0]
    name, sentence = named(observed, inputs, reduce, root=2)
    assert name == "one_rank_right" and sentence.startswith("only the root, rank 2, has the right value.")


def test_ranks_that_disagree():
    inputs = make_inputs(4, 6)
    right = reduce(inputs)[0]
    name, sentence = named([right, right, right + torch.arange(6), right], inputs, reduce)
    assert name == "ranks_disagree" and "element 1 is" in sentence and "on rank 2" in sentence


def test_never_written_where_no_shares_are_known():
    inputs = make_inputs(2, 4)
    highest = [torch.maximum(inputs[0][0], inputs[1][0])] * 2  # no sum, so no shares
    name, sentence = named([highest[0], torch.cat([highest[0][:2], torch.zeros(2)])], inputs, lambda xs: highest)
    assert (name, sentence) == ("never_written", "rank 1, elements 2 to 3: zeros, nothing was written there")


@by_construction
@given(worlds, chunks, seeds, st.data())
def test_one_wrong_element_is_found_and_its_rank_named(n, k, seed, data):
    inputs = make_inputs(n, n * k, seed)
    rank, i = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n * k - 1))
    observed = [value.clone() for value in reduce(inputs)]
    observed[rank][i] += 0.1
    _, sentence = named(observed, inputs, reduce)
    assert f"rank {rank}" in sentence and f"element {i}" in sentence


def test_whole_numbers_are_compared_exactly():
    inputs = [(torch.tensor([10**9 + r, 7]),) for r in range(2)]
    observed = [value.clone() for value in reduce(inputs)]
    observed[1][0] += 5
    name, sentence = named(observed, inputs, reduce)
    assert "element 0" in sentence and name == "ranks_disagree"


def test_the_part_of_a_result_that_is_wrong_is_named():
    inputs = make_inputs(2, 4)

    def both(xs):
        return [{"loss": 1.5, "grad": total} for total in reduce(xs)]

    observed = [{"loss": 1.5, "grad": v["grad"] + torch.arange(4)} for v in both(inputs)]
    name, sentence = named(observed, inputs, both)
    assert name == "agree_but_wrong" and "rank 0, `grad`, element 1: " in sentence
    name, sentence = named([{"loss": 2, "grad": v["grad"]} for v in both(inputs)], inputs, both)
    assert (name, sentence) == ("wrong_kind", "rank 0, `loss`: 2, it should be 1.5")
    name, sentence = named([v["grad"] for v in both(inputs)], inputs, both)
    assert name == "wrong_kind"


def test_a_pure_function_is_not_called_a_rank():
    name, sentence = named([torch.ones(2)], [(3,)], lambda xs: [torch.zeros(2)], on_ranks=False)
    assert sentence == "the answer, element 0: 1, it should be 0"


def test_an_exercise_names_a_misconception_by_computing_it():
    inputs = make_inputs(3, 6)
    mean_of_squares = looks_like(lambda xs, n: [sum(x * x for (x,) in xs)] * n, "squared", "squares were added")
    evidence = collect(3, [sum(x * x for (x,) in inputs)] * 3, reduce(inputs), inputs, reduce)
    assert explain(evidence, [mean_of_squares]) == ("squared", "squares were added")
    other = collect(3, [x for (x,) in inputs], reduce(inputs), inputs, reduce)
    assert explain(other, [mean_of_squares])[0] == "unchanged_input"
    assert mean_of_squares(Evidence(3, reduce(inputs), reduce(inputs), inputs)) is None


def test_shares_beside_what_is_no_tensor():
    """A number among the values does not hide that a share of a sum is missing."""

    def expect(inputs):
        return [{"x": sum(x for (x,) in inputs), "steps": 2}] * len(inputs)

    inputs = make_inputs(3, 5)
    short = {"x": inputs[0][0] + inputs[1][0], "steps": 2}
    assert named([short] * 3, inputs, expect)[0] == "share_missing"


def test_a_sum_for_a_mean_in_bfloat16():
    """Where rounding is coarse, a factor of about 3 is one of 3."""
    inputs = make_inputs(3, 40)
    expected = [mean(inputs)[0].bfloat16()] * 3
    e = Evidence(3, expected, [(x.float() * 3.02).bfloat16() for x in expected], inputs)
    assert explain(e) == ("scaled", "every value is exactly 3 times too large: a sum where a mean is needed")
