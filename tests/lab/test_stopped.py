"""Ranks that do not come to an end: the state of each, and what the states together mean."""

import pytest

from course_lib.lab.stopped import DONE, RUNNING, State, explain_hang


def state(rank, doing, peer=None, line=None):
    return State(rank, doing, peer, line, "while True:" if doing == RUNNING else "")


@pytest.mark.parametrize(
    ("states", "name", "words"),
    [
        (
            [state(0, "send", 1, 7), state(1, "send", 0, 7)],
            "all_send",
            "rank 0 waits in send to 1 (line 7); rank 1 waits in send to 0 (line 7). All send first and nobody",
        ),
        ([state(0, "recv", 1), state(1, "recv", 0)], "all_receive", "rank 0 waits in recv from 1; rank 1 waits"),
        (
            [state(0, DONE), state(1, "recv", 0, 3), state(2, DONE)],
            "unequal_steps",
            "rank 1 waits in recv from 0 (line 3); ranks 0 and 2 have returned. Who is left waits for a message that",
        ),
        (
            [state(0, DONE), state(1, "send", 0)],
            "unequal_steps",
            "rank 0 has returned. Who is left waits for a rank that",
        ),
        (
            [state(0, "recv", 1), state(1, "send", 2), state(2, "recv", 1)],
            "crossed",
            "who sends must meet who receives",
        ),
        ([state(0, RUNNING, line=4), state(1, "recv", 0)], "endless_loop", "still running at line 4: `while True:`."),
    ],
)
def test_hang(states, name, words):
    found = explain_hang(states)
    assert found[0] == name and words in found[1]
