"""Hooks that average a bucket with fewer bytes: `DistributedDataParallel(module, hook=bf16)`, `hook=PowerSGD(rank=2)`.

A hook is called with each bucket when its last gradient has come, in the middle of backward, in the same order on
every rank. It starts to send and returns a function; that one is called when backward has ended, again in the same
order, and leaves the mean in `bucket.flat`. `compress.py` has the two ideas in a few lines each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from course_lib.parallel.data.buckets import Bucket
from course_lib.parallel.data.compress import bf16_compress

Group = dist.ProcessGroup | None


def bf16(bucket: Bucket, group: Group = None) -> Callable[[], None]:
    """Half the bytes of float32: gradients travel and are added in bfloat16."""
    return bf16_compress(bucket.flat, group)


class PowerSGD:
    """Each matrix travels as two thin ones; what they leave out is kept, and added to the next gradient.

    rank: columns of the thin matrices. The more, the better the mean and the more bytes.
    start_step: so many steps are averaged in full first, while gradients change fast.
    min_compression: a gradient of (rows, cols) is compressed where that saves at least this factor:
    (rows + cols) * rank * min_compression < rows * cols. Others, and all vectors, are averaged as they are. A gradient
    of more than two dimensions counts as (first, all others).
    seed: of the first q, the same on all ranks.

    The error that a rank keeps is its own; state is kept per parameter, so it survives a rebuild of the buckets. It is
    not part of a checkpoint: a resumed run begins as the first one did, with start_step steps in full, no error and the
    first q. So it does not go on as the run that was interrupted would have.

    The same numbers as `power_sgd_round` gives matrix by matrix. Here the thin matrices of a whole bucket travel
    together, the first half of them while backward goes on.

    Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, algorithms 1 and 2.
    """

    def __init__(self, rank: int = 1, start_step: int = 1000, min_compression: float = 2.0, seed: int = 0):
        if rank < 1 or start_step < 0 or min_compression <= 0:
            raise ValueError(
                f"PowerSGD got rank {rank}, start_step {start_step} and min_compression {min_compression}: it needs "
                "rank 1 or more, start_step 0 or more, and min_compression above 0"
            )
        self.rank, self.start_step, self.min_compression, self.seed = rank, start_step, min_compression, seed
        self._steps: dict[Parameter, int] = {}
        self.reset()

    def __repr__(self) -> str:
        return f"PowerSGD({self.rank}, {self.start_step}, {self.min_compression}, {self.seed})"

    def reset(self) -> None:
        """Forget all errors and begin with a new q: after a backward that broke, on the ranks where it did."""
        self.errors: dict[Parameter, Tensor] = {}  # (rows, cols) each
        self.qs: dict[Parameter, Tensor] = {}  # (cols, rank) each

    def __call__(self, bucket: Bucket, group: Group = None) -> Callable[[], None]:
        n = dist.get_world_size(group)
        step = self._steps.get(bucket.parameters[0], 0)
        self._steps |= dict.fromkeys(bucket.parameters, step + 1)
        if step < self.start_step:
            bucket.flat.div_(n)
            return dist.all_reduce(bucket.flat, group=group, async_op=True).wait
        pairs = list(zip(bucket.parameters, bucket.views, strict=True))
        thin = [(p, view) for p, view in pairs if self.compresses(p)]
        whole = [view for p, view in pairs if not self.compresses(p)]
        wanted = [self._with_error(p, view) for p, view in thin]  # (rows, cols) each
        ps = _Together([m @ self.qs[p] for (p, _), m in zip(thin, wanted, strict=True)], group)
        rest = _Together([view / n for view in whole], group)

        def finish() -> None:
            orthonormal = [torch.linalg.qr(p)[0] for p in ps.summed()]
            qs = _Together([m.T @ p for m, p in zip(wanted, orthonormal, strict=True)], group)
            for view, mean in zip(whole, rest.summed(), strict=True):
                view.copy_(mean)
            for (parameter, view), m, p, q in zip(thin, wanted, orthonormal, qs.summed(), strict=True):
                self.qs[parameter] = q / n
                approximation = p @ self.qs[parameter].T
                self.errors[parameter] = m - approximation
                view.copy_(approximation.view(view.shape))

        return finish

    def compresses(self, p: Tensor) -> bool:
        """Whether the gradient of p travels as two thin matrices."""
        if p.dim() < 2 or not p.numel():
            return False
        rows, cols = p.shape[0], p.numel() // p.shape[0]
        return (rows + cols) * self.rank * self.min_compression < rows * cols

    def _with_error(self, p: Parameter, gradient: Tensor) -> Tensor:
        """The gradient as a matrix, plus what earlier rounds did not send. Half precision has no QR: float32 then."""
        m = gradient.reshape(p.shape[0], -1)
        m = m.float() if m.element_size() < 4 else m
        if p not in self.qs:
            generator = torch.Generator().manual_seed(self.seed)
            q = torch.randn(m.shape[1], min(self.rank, *m.shape), generator=generator, dtype=torch.float64)
            self.qs[p] = q.to(m)
            return m
        return m + self.errors[p]


class _Together:
    """The sums of several tensors over the group, by one all-reduce that starts at once."""

    def __init__(self, tensors: Sequence[Tensor], group: Group):
        self._shapes = [x.shape for x in tensors]
        self._flat = torch.cat([x.reshape(-1) for x in tensors]) if tensors else None
        self._work = dist.all_reduce(self._flat, group=group, async_op=True) if tensors else None

    def summed(self) -> list[Tensor]:
        if not self._work:
            return []
        self._work.wait()
        parts = self._flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
