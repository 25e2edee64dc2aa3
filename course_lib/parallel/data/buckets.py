"""Buckets: gradients that travel together. One long vector, of which each gradient is a view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor
from torch.nn import Parameter


@dataclass
class Bucket:
    """parameters: whose gradients it holds. flat: (elements,), one vector; every `p.grad` is a view of a part of it."""

    parameters: list[Parameter]
    flat: Tensor


def make_bucket(parameters: Sequence[Parameter]) -> Bucket:
    """A bucket of zeros for `parameters`, all of one dtype and device. Their `grad` becomes a view of it."""
    flat = parameters[0].new_zeros(sum(p.numel() for p in parameters))
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)
    return Bucket(list(parameters), flat)


@contextmanager
def when_gradients_are_there(buckets: Sequence[Bucket], call: Callable[[int], None]) -> Iterator[None]:
    """Inside, `call(i)` is called each time autograd has completed the gradient of a parameter of bucket i."""
    handles = [
        p.register_post_accumulate_grad_hook(lambda _, index=index: call(index))
        for index, bucket in enumerate(buckets)
        for p in bucket.parameters
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
