"""The comparison of records on its own: what it must find, and what it must leave alone."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.spmd.compare import first_mismatch
from course_lib.spmd.report import Frame, Op
from course_lib.spmd.words import name_ranks, ordinal

NAMES = ["all_reduce", "broadcast", "all_gather", "barrier"]
WORLD = (0, 1, 2, 3)


def op(index=0, name="all_reduce", group=WORLD, line=1, **fields):
    key = ",".join(map(str, group)) + "#0"
    values = {"shape": (4,), "dtype": "float32", "start_ns": index} | fields
    return Op(name, group, key, index, frame=Frame("train.py", line, "step"), **values)


programs = st.lists(st.sampled_from(NAMES), min_size=1, max_size=8)


@given(programs)
def test_equal_records_agree(names):
    records = {rank: [op(i, name) for i, name in enumerate(names)] for rank in WORLD}
    assert first_mismatch(records, ended=True) is None
    assert first_mismatch(records, ended=False) is None


CHANGES = {
    "call": {"name": "reduce_scatter_tensor"},
    "root": {"root": 3},
    "shape": {"shape": (5,)},
    "dtype": {"dtype": "int32"},
    "reduction": {"reduce": "MAX"},
}


@given(programs, st.data())
def test_one_change_on_one_rank_is_found_where_it_is(names, data):
    names = [name if name != "all_gather" else "all_reduce" for name in names]  # uneven shapes are fine there
    at = data.draw(st.integers(0, len(names) - 1))
    guilty = data.draw(st.sampled_from(WORLD))
    what = data.draw(st.sampled_from(list(CHANGES)))
    records = {rank: [op(i, name) for i, name in enumerate(names)] for rank in WORLD}
    records[guilty][at] = dataclasses.replace(records[guilty][at], **CHANGES[what])
    found = first_mismatch(records, ended=True)
    assert (found.what, found.index, found.guilty) == (what, at, (guilty,))


@given(programs, st.sampled_from(WORLD), st.integers(0, 7))
def test_a_missing_call_counts_only_when_all_have_ended(names, guilty, keep):
    records = {rank: [op(i, name) for i, name in enumerate(names)] for rank in WORLD}
    records[guilty] = records[guilty][: min(keep, len(names) - 1)]
    assert first_mismatch(records, ended=False) is None
    found = first_mismatch(records, ended=True)
    assert (found.what, found.guilty) == ("number", (guilty,))


def test_a_rank_that_never_called_anything_on_a_group_is_missing_there():
    records = {0: [op(0, group=(0, 1))], 1: [], 2: [], 3: []}
    found = first_mismatch(records, ended=True)
    assert (found.what, found.ops[1]) == ("number", None)
    assert set(found.ops) == {0, 1}


def test_two_against_two_leaves_nobody_guilty():
    records = {rank: [op(dtype="int32" if rank < 2 else "float32")] for rank in WORLD}
    assert first_mismatch(records, ended=True).guilty == ()


def test_the_earliest_of_several_groups_is_told():
    late = [op(0, group=(0, 1), start_ns=50), op(0, group=(0, 1), start_ns=50, dtype="int64")]
    early = [op(0, group=(2, 3), start_ns=10), op(0, group=(2, 3), start_ns=10, dtype="int64")]
    found = first_mismatch({0: [late[0]], 1: [late[1]], 2: [early[0]], 3: [early[1]]}, ended=True)
    assert set(found.ops) == {2, 3}


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([2], "rank 2"), ([1, 0], "ranks 0 and 1"), ([0, 1, 3], "ranks 0, 1 and 3"), (range(1, 8), "ranks 1 to 7")],
)
def test_ranks_in_words(ranks, words):
    assert name_ranks(ranks) == words


def test_ordinals():
    assert [ordinal(i) for i in (0, 1, 2, 3, 10, 11, 20, 21)] == [
        "first", "second", "third", "4th", "11th", "12th", "21st", "22nd",
    ]  # fmt: skip
