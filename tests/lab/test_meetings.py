"""Messages that cannot meet, or meet in memory that is not free: told from the tapes alone, and nothing else is."""

import pytest

from course_lib.lab import meetings
from course_lib.lab.tape import Message

quote = "line {}".format


def message(kind, peer, begun, ended, memory=None, line=7, **more):
    start, end = memory or (1000 * begun, 1000 * begun + 8)
    return Message(
        kind, peer, line, (end - start) // 4, (start, end), more.pop("blocking", False), begun, ended, **more
    )


def ring(n, size=8):
    """A right step of a ring: everybody sends to the right and receives from the left."""
    size = (0, size), (5000, 5000 + size)
    return [
        [message("recv", (r - 1) % n, 0, 2, size[0]), message("send", (r + 1) % n, 1, 3, size[1])] for r in range(n)
    ]


def test_nothing_is_said_of_a_right_step():
    tapes = ring(3)
    assert meetings.shared_memory(tapes, quote) is None
    assert meetings.careless_send(tapes, range(3), quote) is None
    assert meetings.unequal_sizes(tapes, quote) is None
    assert meetings.out_of_step(tapes) is None


@pytest.mark.parametrize(
    ("receives", "words"),
    [
        (message("recv", 1, 1, 2, (4, 12)), "line 7 sends and receives in the same memory"),
        (message("recv", 1, 1, 2, (4, 12), line=9), "line 9 receives into the memory that line 7 sends from"),
        (message("recv", 1, 4, 5, (4, 12)), None),  # once the send has ended
        (message("recv", 1, 1, 2, (8, 16)), None),  # beside it
    ],
)
def test_memory_that_is_being_sent(receives, words):
    found = meetings.shared_memory([[message("send", 1, 0, 3, (0, 8)), receives]], quote)
    assert (found and found[1].partition(",")[0]) == words


def test_careless_sends():
    assert (
        "line 7 is changed before" in meetings.careless_send([[message("send", 1, 0, 1, changed=True)]], [0], quote)[1]
    )
    left = [[message("send", 1, 0, None)]]
    assert "line 7 is never waited for" in meetings.careless_send(left, [0], quote)[1]
    assert meetings.careless_send(left, [], quote) is None, "in a run that stopped it may still have come to it"


def test_sizes():
    tapes = [[message("send", 1, 0, 1, (0, 16))], [message("recv", 0, 0, 1, (0, 12))]]
    name, sentence = meetings.unequal_sizes(tapes, quote)
    assert name == "unequal_sizes"
    assert sentence.startswith("rank 1 received into 3 elements what rank 0 sent as 4 (line 7).")
    tapes[1][0].peer = None  # from whoever comes first: then nobody knows what met what
    assert meetings.unequal_sizes(tapes, quote) is None and meetings.out_of_step(tapes) is None


def test_a_step_left_out():
    tapes = ring(3)
    tapes[2] = []
    pair = meetings.out_of_step(tapes)
    assert (pair.source, pair.target, len(pair.sent), len(pair.asked)) == (1, 2, 1, 0)
