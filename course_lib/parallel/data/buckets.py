"""Buckets: gradients that travel together. One long vector, of which each gradient is a view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Parameter


@dataclass
class Bucket:
    """parameters: whose gradients it holds. flat: (elements,), one vector; every `p.grad` is a view of a part of it.

    views: those parts, one for each parameter, in its shape and its memory format. (Optimizers are slow, or refuse,
    where a gradient lies in memory otherwise than its parameter.)
    """

    parameters: list[Parameter]
    flat: Tensor
    views: list[Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = self.flat.split([p.numel() for p in self.parameters])
        self.views = [
            part.as_strided(p.shape, dense_strides(p), part.storage_offset())
            for p, part in zip(self.parameters, parts, strict=True)
        ]


def make_bucket(parameters: Sequence[Parameter]) -> Bucket:
    """A bucket of zeros for `parameters`, all of one dtype and device. Their `grad` becomes a view of it."""
    bucket = empty_bucket(parameters)
    for p, view in zip(bucket.parameters, bucket.views, strict=True):
        p.grad = view
    return bucket


def empty_bucket(parameters: Sequence[Parameter]) -> Bucket:
    """A bucket of zeros for `parameters`, all of one dtype and device. Their `grad` is left as it is."""
    flat = parameters[0].new_zeros(sum(p.numel() for p in parameters), requires_grad=False)
    return Bucket(list(parameters), flat)


def dense_strides(x: Tensor) -> tuple[int, ...]:
    """The strides of a tensor like x without gaps: x's own, unless it has gaps or overlaps."""
    return torch.empty_like(x, device="meta").stride()


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
