"""The ring's engine: by hand for 3 and 4 ranks, and what must hold for any number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.lab.widgets.ring import ALL_GATHER, REDUCE_SCATTER, run


def written(state):
    """One string per rank, chunks parted by spaces: "01 2 2" holds the sum of ranks 0 and 1 in chunk 0."""
    return [" ".join("".join(map(str, sorted(content))) for content in row) for row in state.holds]


def messages(state):
    """ "0>1:2" is: rank 0 sent chunk 2 to rank 1."""
    return " ".join(f"{move.sender}>{move.receiver}:{move.chunk}" for move in state.moves)


def test_three_ranks_by_hand():
    states = run(3)
    assert [written(s) for s in states] == [
        ["0 0 0", "1 1 1", "2 2 2"],
        ["0 02 0", "1 1 01", "12 2 2"],
        ["012 02 0", "1 012 01", "12 2 012"],
        ["012 02 012", "012 012 01", "12 012 012"],
        ["012 012 012", "012 012 012", "012 012 012"],
    ]
    assert [messages(s) for s in states] == [
        "",
        "0>1:2 1>2:0 2>0:1",
        "0>1:1 1>2:2 2>0:0",
        "0>1:0 1>2:1 2>0:2",
        "0>1:2 1>2:0 2>0:1",
    ]
    assert [s.phase for s in states[1:]] == [REDUCE_SCATTER] * 2 + [ALL_GATHER] * 2


def test_four_ranks_by_hand():
    states = run(4)
    assert [written(s) for s in states[:4]] == [
        ["0 0 0 0", "1 1 1 1", "2 2 2 2", "3 3 3 3"],
        ["0 0 03 0", "1 1 1 01", "12 2 2 2", "3 23 3 3"],
        ["0 023 03 0", "1 1 013 01", "12 2 2 012", "123 23 3 3"],
        ["0123 023 03 0", "1 0123 013 01", "12 2 0123 012", "123 23 3 0123"],
    ]
    assert written(states[4]) == ["0123 023 03 0123", "0123 0123 013 01", "12 0123 0123 012", "123 23 0123 0123"]
    assert written(states[6]) == ["0123 0123 0123 0123"] * 4
    assert messages(states[1]) == "0>1:3 1>2:0 2>3:1 3>0:2"
    assert messages(states[4]) == "0>1:0 1>2:1 2>3:2 3>0:3"
    assert messages(states[6]) == "0>1:2 1>2:3 2>3:0 3>0:1"


@pytest.mark.parametrize("n", range(1, 13))
def test_after_the_first_half_rank_r_owns_chunk_r_and_no_more(n):
    state = run(n)[n - 1]
    complete = [(r, c) for r in range(n) for c in range(n) if state.complete(r, c)]
    assert complete == [(r, r) for r in range(n)]


@pytest.mark.parametrize("n", range(1, 13))
def test_at_the_end_everything_is_complete_and_not_a_step_sooner(n):
    states = run(n)
    assert len(states) == 2 * (n - 1) + 1
    finished = [all(s.complete(r, c) for r in range(n) for c in range(n)) for s in states]
    assert finished == [False] * (len(states) - 1) + [True]


@given(st.integers(2, 12))
def test_in_each_step_every_rank_sends_one_chunk_to_its_right_and_gets_one(n):
    for before, after in zip(run(n), run(n)[1:], strict=False):
        assert [m.sender for m in after.moves] == list(range(n))
        assert all(m.receiver == (m.sender + 1) % n for m in after.moves)
        assert len({m.chunk for m in after.moves}) == n  # and no two ranks send the same chunk
        assert all(m.content == before.holds[m.sender][m.chunk] for m in after.moves)
        arrived = {(m.receiver, m.chunk) for m in after.moves}
        for r in range(n):
            for c in range(n):
                if (r, c) not in arrived:
                    assert after.holds[r][c] == before.holds[r][c]


@given(st.integers(2, 12))
def test_no_share_is_added_twice(n):
    for before, after in zip(run(n), run(n)[1:], strict=False):
        if after.phase == REDUCE_SCATTER:
            for m in after.moves:
                assert not m.content & before.holds[m.receiver][m.chunk]


@given(st.integers(2, 12))
def test_what_a_rank_sends_is_what_it_got_in_the_step_before(n):
    states = run(n)
    for before, after in zip(states[1:], states[2:], strict=False):
        got = {m.receiver: m.chunk for m in before.moves}
        assert all(m.chunk == got[m.sender] for m in after.moves)


@given(st.integers(1, 12))
def test_spent_copies_are_those_that_only_wait_to_be_overwritten(n):
    states = run(n)
    for i, state in enumerate(states):
        to_be_used = {(m.sender, m.chunk) for s in states[i + 1 : n] for m in s.moves}
        to_be_used |= {(m.receiver, m.chunk) for s in states[i + 1 : n] for m in s.moves}
        for r in range(n):
            for c in range(n):
                expected = (r, c) not in to_be_used and not state.complete(r, c)
                assert state.spent(r, c) == expected


def test_the_words():
    states = run(3)
    assert states[0].text() == "Start. Each of 3 ranks holds its own share of each of 3 chunks."
    assert states[1].text() == (
        "Step 1 of 4, reduce-scatter. 0 → 1: chunk 2, 1 → 2: chunk 0, 2 → 0: chunk 1. "
        "What arrives is added to the receiver's chunk. Complete now: 0 of 9 copies."
    )
    assert "all-gather" in states[3].text() and "kept as" in states[3].text() and "6 of 9" in states[3].text()


def test_a_ring_of_nobody_is_refused():
    with pytest.raises(ValueError, match="at least 1 rank; 0 was"):
        run(0)
