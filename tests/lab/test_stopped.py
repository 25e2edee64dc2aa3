"""Ranks that do not come to an end: the state of each, and what the states together mean."""

from types import SimpleNamespace

import pytest

from course_lib import spmd
from course_lib.lab import timing
from course_lib.lab.stopped import DONE, RUNNING, State, explain_hang, explain_stop, without_native
from course_lib.lab.tape import Message
from course_lib.spmd.report import Frame


def state(rank, doing, peer=None, line=None, **more):
    return State(rank, doing, peer, line, "while True:" if doing == RUNNING else "call()" if line else "", **more)


@pytest.mark.parametrize(
    ("states", "name", "words"),
    [
        (
            [state(0, "send", 1, 7), state(1, "send", 0, 7)],
            "all_send",
            "stopped at line 7: `call()`: rank 0 waits in send to 1; rank 1 waits in send to 0. All send first and",
        ),
        ([state(0, "recv", 1), state(1, "recv", 0)], "all_receive", "rank 0 waits in recv from 1; rank 1 waits"),
        (
            [state(0, DONE), state(1, "recv", 0, 3), state(2, DONE)],
            "unequal_steps",
            "rank 1 waits in recv from 0 (line 3: `call()`); ranks 0 and 2 have returned. Count the sends and receives",
        ),
        (
            [state(0, DONE), state(1, "all_reduce", line=3)],
            "out_of_step",
            "rank 1 waits in all_reduce (line 3: `call()`); rank 0 has returned. All ranks must call the same",
        ),
        (
            [state(0, DONE), state(1, "send", 0)],
            "unequal_steps",
            "rank 0 has returned. Count the sends and receives of each pair.",
        ),
        (
            [state(0, "recv", 1), state(1, "send", 2), state(2, "recv", 1)],
            "out_of_step",
            "Count the sends and receives of each pair.",
        ),
        (
            [state(0, "recv", 1), state(1, "send", 2), state(2, "send", 1), state(3, "recv", 2)],
            "both_send",
            "Ranks 1 and 2 each wait in a send to the other, and neither has come to its receive",
        ),
        (
            [state(0, "send", 1, 7, messages=2_000, moving=True), state(1, RUNNING, messages=1_999, moving=True)],
            "endless_messages",
            "messages still pass: 2,000 at rank 0 (line 7: `call()`). Does your loop end?",
        ),
        ([state(0, RUNNING, line=4), state(1, "recv", 0)], "endless_loop", "still running at line 4: `while True:`."),
        ([State(0, RUNNING, None, 4, ""), state(1, DONE)], "endless_loop", "still running at line 4. Is there"),
        ([State(0, RUNNING, None, None, ""), state(1, DONE)], "endless_loop", "rank 0 is still running. Is there"),
    ],
)
def test_hang(states, name, words):
    found = explain_hang(states, [])
    assert found[0] == name and words in found[1]


def test_who_has_asked_for_the_others_message_does_not_send_first():
    """A started send that is waited for last: what is missing is something else."""
    send, recv = (Message(kind, 1, 3, 1, (0, 4), blocking=False, begun=0) for kind in ("send", "recv"))
    states = [state(0, "send", 1), state(1, "send", 0)]
    assert explain_hang(states, [[send, recv], [send]])[0] == "out_of_step"
    assert explain_hang(states, [[send], [send]])[0] == "both_send"


def message(kind, peer, **more):
    return Message(kind, peer, 7, 2, (0, 8), **{"blocking": True, "begun": 0, **more})


def test_everybody_sent_and_asks_the_wrong_rank():
    n = 3
    tapes = [[message("send", (r + 1) % n, blocking=False), message("recv", (r + 1) % n)] for r in range(n)]
    name, sentence = explain_hang([state(r, "recv", (r + 1) % n, 7) for r in range(n)], tapes)
    assert name == "asks_the_wrong_rank"
    assert "Rank 0 has sent rank 1 a message, but rank 1 waits for one from 2: receive from the rank that" in sentence


def test_a_step_left_out():
    tapes = [[message("send", 1, blocking=False), message("recv", 1, blocking=False)], []]
    name, sentence = explain_hang([state(0, "recv", 1, 7), state(1, "recv", 0, 9)], tapes)
    assert name == "out_of_step"
    assert "Rank 0 has sent 1 message to rank 1, which has asked for none. Does a rank leave out a step?" in sentence


def test_what_torch_writes_for_its_own_authors_is_left_out():
    text = (
        "before\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at /__w/pytorch/third_party/gloo/transport/tcp/pair.cc:446] op.preamble <= 3\nafter"
    )
    assert without_native(text) == "before\nafter"


def stopped_in(*frames):
    """What is told of a run whose time was up while its one rank was in these frames."""
    report = spmd.RankReport(0, "unfinished", stack=[Frame(file, line, "f") for file, line in frames])
    return explain_stop(spmd.HangError(SimpleNamespace(kind="hang", rank=0, text=""), [report]), stopped_in)[1]


def test_lines_are_the_answers_own_and_never_the_courses():
    line = stopped_in.__code__.co_firstlineno
    assert f"at line {line}: `def stopped_in(*frames):`" in stopped_in((__file__, line), (timing.__file__, 20))
    assert "the answer is still running. Is there" in stopped_in((timing.__file__, 20))
