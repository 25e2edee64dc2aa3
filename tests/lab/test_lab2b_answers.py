"""Lab 2b: right answers that are written otherwise than the library's pass, too."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest

from course_lib.lab import exercise, trial
from course_lib.lab.checking import PASSED, examine
from course_lib.parallel.pipeline import simple
from course_lib.parallel.pipeline.actions import Kind

RIGHT = {}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine makes no answer wrong."""
    monkeypatch.setattr(trial, "PATIENCE_S", 10)


def right(name):
    """Collects an answer to the exercise of that name."""

    def collect(answer):
        RIGHT[f"{name}: {answer.__name__}"] = (name, answer)
        return answer

    return collect


# Orders


@right("gpipe_order")
def in_one_line(rank, n_ranks, n_micro_batches):
    return [(kind, i) for kind in "FB" for i in range(n_micro_batches)]


@right("gpipe_order")
def lazily(rank, n_ranks, n_micro_batches):
    yield from itertools.product((Kind.F, Kind.B), range(n_micro_batches))


@right("gpipe_order")
def of_lists(rank, n_ranks, n_micro_batches):
    order = []
    for i in range(2 * n_micro_batches):
        order.append(["F" if i < n_micro_batches else "B", i % n_micro_batches])
    return tuple(order)


@right("one_f_one_b_order")
def by_what_is_under_way(rank, n_ranks, n_micro_batches):
    order, forward, backward = [], 0, 0
    while backward < n_micro_batches:
        if forward < n_micro_batches and forward - backward < n_ranks - rank:
            order.append(("F", forward))
            forward += 1
        else:
            order.append(("B", backward))
            backward += 1
    return order


@right("one_f_one_b_order")
def by_two_iterators(rank, n_ranks, n_micro_batches):
    forwards = [("F", i) for i in range(n_micro_batches)]
    backwards = [("B", i) for i in range(n_micro_batches)]
    warm_up = n_ranks - rank - 1
    order = forwards[:warm_up]
    for pair in itertools.zip_longest(forwards[warm_up:], backwards):
        order += [action for action in pair if action]
    return order


@right("one_f_one_b_order")
def by_popping(rank, n_ranks, n_micro_batches):
    waiting, left, order = list(range(n_micro_batches)), list(range(n_micro_batches)), []
    for _ in range(min(n_ranks - rank, n_micro_batches)):
        order.append(("F", waiting.pop(0)))
    while left:
        order.append(("B", left.pop(0)))
        if waiting:
            order.append(("F", waiting.pop(0)))
    return order


# The bubble


@right("micro_batches_for")
def first_of_all(n_ranks, share):
    return next(m for m in itertools.count(1) if (n_ranks - 1) / (m + n_ranks - 1) <= share)


@right("micro_batches_for")
def by_fractions(n_ranks, share):
    exact = Fraction(str(share))
    return max(1, math.ceil((n_ranks - 1) * (1 - exact) / exact))


@right("micro_batches_for")
def guessed_and_mended(n_ranks, share):
    guess = max(1, math.floor((n_ranks - 1) * (1 - share) / share) - 1)
    while simple.bubble(n_ranks, guess) > share:
        guess += 1
    return guess


@pytest.mark.parametrize("case", RIGHT.values(), ids=list(RIGHT))
def test_a_right_answer_written_otherwise_passes(case):
    name, answer = case
    one = exercise.find(name)
    few = (2, 3) if one.on_ranks else (1,)
    verdict = examine(replace(one, worlds=few, timing=None, timeline=False, overlap=False), answer)
    assert verdict.state == PASSED, verdict.message
