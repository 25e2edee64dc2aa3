"""A paced stage computes what a linear layer does, takes its time, and parts its backward."""

import torch
from torch import nn

from course_lib.lab import paced
from course_lib.lab.paced import Paced
from course_lib.parallel.pipeline.split import WeightGradients


def test_it_is_a_linear_layer_that_takes_its_time(monkeypatch):
    slept = []
    monkeypatch.setattr(paced.time, "sleep", slept.append)
    layer, plain = Paced(3, forward=1, input=2, weight=3), nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(plain.weight)
    x = torch.randn(2, 4, 3)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(ours).sin().sum().backward()
    plain(theirs).sin().sum().backward()
    assert slept == [1, 2, 3]
    assert torch.allclose(ours.grad, theirs.grad) and torch.allclose(layer.weight.grad, plain.weight.grad)
    store = WeightGradients(layer)
    slept.clear()
    with store.kept(0):
        layer(ours).sin().sum().backward()
    assert slept == [1, 2]
    store.compute(0)
    assert slept == [1, 2, 3] and torch.allclose(layer.weight.grad, 2 * plain.weight.grad)
