"""Lab 2c: right answers that are written otherwise than the library's pass, too."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from course_lib.lab import exercise, trial
from course_lib.lab.checking import PASSED, examine

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


# Choose, up to a capacity


@right("route_with_capacity")
def token_by_token(scores, k, capacity):
    room = [capacity] * scores.shape[1]
    chosen = scores.argsort(dim=-1, descending=True)[:, :k]
    weights = F.normalize(torch.take_along_dim(scores, chosen, -1), p=1, dim=-1)
    kept = torch.zeros_like(chosen, dtype=torch.bool)
    for t, row in enumerate(chosen.tolist()):
        for j, e in enumerate(row):
            kept[t, j] = room[e] > 0
            room[e] -= 1
    return [chosen, weights, kept]


@right("route_with_capacity")
def by_comparing_all_choices(scores, k, capacity):
    weights, chosen = torch.sort(scores, dim=-1, descending=True, stable=True)
    weights, chosen = weights[:, :k], chosen[:, :k]
    flat = chosen.reshape(-1)
    before = (flat.unsqueeze(0) == flat.unsqueeze(1)).tril(-1).sum(1)
    return chosen, weights / weights.sum(1, keepdim=True), (before < capacity).view_as(chosen)


@right("route_with_capacity")
def by_logits(scores, k, capacity):
    logits = scores.log()
    best, chosen = logits.topk(k, dim=-1)
    queue = torch.zeros_like(scores, dtype=torch.int64).scatter_(1, chosen, 1)
    place = torch.cumsum(queue, 0) * queue
    return chosen, best.softmax(-1), place.gather(1, chosen) <= capacity


@pytest.mark.parametrize("case", RIGHT.values(), ids=list(RIGHT))
def test_a_right_answer_written_otherwise_passes(case):
    name, answer = case
    one = exercise.find(name)
    verdict = examine(replace(one, worlds=(2, 3)) if one.on_ranks else one, answer)
    assert verdict.state == PASSED, verdict.message
