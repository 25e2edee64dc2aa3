"""What the messages add to a wrong value: only what they show, and of a right step nothing."""

import pytest
import torch

from course_lib.lab.evidence import collect
from course_lib.lab.signatures import tell
from course_lib.lab.signatures.messages import in_n
from course_lib.lab.tape import Message

N = 3
INPUTS = [(torch.randn(6, generator=torch.Generator().manual_seed(r)),) for r in range(N)]
TOTAL = sum(x for (x,) in INPUTS)
JUNK = [torch.randn(6, generator=torch.Generator().manual_seed(10 + r)) for r in range(N)]


def reduce(inputs):
    return [sum(x for (x,) in inputs)] * len(inputs)


def message(kind, peer, values):
    return Message(kind, peer, 7, len(values), (0, 4 * len(values)), False, 0, 1, values)


def ring(*parcels, by=1):
    """Every rank sends each of these (a function of its rank) to the rank `by` places on."""
    return [
        [
            m
            for p in parcels
            for m in (message("send", (r + by) % N, p(r)), message("recv", (r - by) % N, p((r - by) % N)))
        ]
        for r in range(N)
    ]


def inputs_of(rank):
    return INPUTS[rank][0]


def passed_on(rank):
    return INPUTS[(rank - 1) % N][0]


LIBRARY = ring(inputs_of, passed_on)


def told(observed, messages, library=LIBRARY, **facts):
    evidence = collect(
        N, observed, reduce(INPUTS), INPUTS, reduce, messages=messages, library=library, quote="line {}".format, **facts
    )
    return tell(evidence)


@pytest.mark.parametrize(
    ("messages", "name", "words"),
    [
        ([[], [], []], "no_message", "no rank sent a message"),
        (ring(lambda r: torch.full((6,), torch.nan)), "sends_what_was_never_written", "never written (nan) in line 7"),
        (ring(lambda r: TOTAL), "arrived_and_dropped", "right values came to rank 0 in line 7, but are not in what"),
        (ring(lambda r: TOTAL[:2]), "arrived_and_dropped", "right values of elements 0 to 1 came to rank 0"),
        (ring(inputs_of, passed_on, by=2), "to_the_other_side", "you send to the left: rank 0 sends to rank 2, to its"),
        (ring(inputs_of), "another_number", "each rank sends 1 message; the library's version, 2."),
        (ring(inputs_of, inputs_of), "never_passed_on", "rank 0 sends the same values in each of its 2 messages"),
    ],
)
def test_a_value_without_a_pattern_is_told_by_its_messages(messages, name, words):
    found = told(JUNK, messages)
    assert found.names == [name] and words in found.sentence
    assert any(detail.startswith("rank 0, element 0: ") or "rank 0" in detail for detail in found.details)


def test_of_right_messages_nothing_is_said():
    found = told(JUNK, LIBRARY)
    assert found.names == ["ranks_disagree"]
    assert "rank 0 sent: rank 0's input; rank 2's input" in found.details


def test_a_pattern_comes_first_and_the_messages_after_it():
    found = told([x for (x,) in INPUTS], ring(inputs_of), history={2: (0, 1)})
    assert found.names == ["unchanged_input", "another_number"]
    assert found.sentence == (
        "every rank returned its input unchanged. Each rank sends n - 2 messages; the library's version, n - 1."
    )


def test_other_messages_altogether_are_not_counted_against_the_librarys():
    halves = ring(*[lambda r, i=i: JUNK[r][i : i + 3] for i in (0, 3, 0)])
    assert told(JUNK, halves).names == ["ranks_disagree"]


def test_the_input_changed_in_place_is_told_where_nothing_else_is():
    found = told(JUNK, LIBRARY, changed=[[], [0], []])
    assert found.sentence == "rank 1 changed its input in place: work on a copy."


def test_the_number_that_is_another_rank_is_the_one_the_details_speak_of():
    observed = reduce(INPUTS)
    observed[2] = inputs_of(2)
    found = told(observed, LIBRARY)
    assert all(detail.startswith("rank 2") for detail in found.details)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({2: 1, 3: 2, 4: 3}, "n - 1"),
        ({2: 0, 3: 1, 4: 2}, "n - 2"),
        ({2: 2, 3: 3}, "n"),
        ({2: 2, 3: 4, 4: 6}, "2(n - 1)"),
        ({2: 1, 3: 3, 4: 5}, "2n - 3"),
        ({2: 3, 3: 3, 4: 3}, "3"),
        ({2: 1, 3: 4, 4: 9}, "9"),
        ({4: 3}, "3"),
    ],
)
def test_a_number_as_a_formula_in_n(numbers, words):
    assert in_n(numbers) == words
