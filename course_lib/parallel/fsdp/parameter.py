"""One parameter, cut into rows over the ranks: its shard, which is trained, and the whole, which is computed with.

    shape (5, 3) on 3 ranks     chunks of 2 rows: ranks have rows 0 1, 2 3, 4; one row of padding travels with the last
    shape (2, 3) on 3 ranks     chunks of 1 row: the last rank's shard is empty, of shape (0, 3)

Padding exists in messages only. A shard has none, so neither have norms, optimizer states and checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn import Parameter


class ShardedParameter:
    """A parameter of which this rank keeps the rows start .. stop - 1.

    name: by which errors call it. shape: of the whole. rows: of a chunk, the same for all ranks; the last ones may have
    fewer. owners: the modules that use it, several for a tied one, with the name they have for it.
    shard: the parameter that the optimizer steps. whole: the one that forward and backward see, whose memory is there
    only while it is gathered; None before the first time.

    A parameter without dimensions is taken for one row.
    """

    def __init__(self, name: str, parameter: Parameter, owners: list[tuple[nn.Module, str]], rank: int, n: int):
        self.name, self.owners, self.n = name, owners, n
        self.shape = tuple(parameter.shape)
        as_rows = self.shape or (1,)
        self.row_shape = as_rows[1:]
        self.rows = -(-as_rows[0] // n)
        self.start, self.stop = (min(place * self.rows, as_rows[0]) for place in (rank, rank + 1))
        self.numel = parameter.numel()
        row_numel = self.numel // as_rows[0] if as_rows[0] else 0
        self.chunk = self.rows * row_numel  # elements of a chunk with its padding
        self.own = (self.stop - self.start) * row_numel  # elements of this rank's shard
        self.whole: Parameter | None = None
        self.unreduced: Tensor | None = None  # gradients of earlier micro-batches, where they add up in another dtype
        # The object stays the same, so that an optimizer, or whoever else has it, sees the shard.
        self.shard = parameter
        parameter.data = self.cut(parameter.detach())

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's rows of a tensor of the whole shape; a tensor with memory of its own."""
        return whole.reshape(self.shape or (1,))[self.start : self.stop].clone(memory_format=torch.contiguous_format)

    def find_shard(self) -> Parameter:
        """The shard as the modules have it now: `to_empty` and others give a module new parameters."""
        module, name = self.owners[0]
        self.shard = module._parameters[name]
        for other, its_name in self.owners[1:]:
            other._parameters[its_name] = self.shard  # `to_empty` unties them
        return self.shard

    def copy_shard_to(self, sent: Tensor) -> None:
        """sent: (chunk,), what this rank sends; in its dtype."""
        sent[: self.own].copy_(self.shard.detach().reshape(-1))

    def fill_whole(self, chunks: Tensor) -> None:
        """chunks: (n, chunk), what all ranks sent. The modules have the whole from now on."""
        if self._unfit(chunks):
            flat = chunks.new_empty(self.n * self.chunk)
            self.whole = Parameter(flat[: self.numel].view(self.shape), self.shard.requires_grad)
            # Written to by another name: autograd, which counts writes, would take these for changes of a saved tensor.
            self._flat = flat.data
        storage = self._flat.untyped_storage()
        storage.resize_(self._flat.numel() * self._flat.element_size())
        self._flat.view(self.n, self.chunk).copy_(chunks)
        self._own(self.whole)

    def _unfit(self, chunks: Tensor) -> bool:
        w = self.whole
        fits = w is not None and (w.dtype, w.device) == (chunks.dtype, chunks.device)
        return not (fits and w.requires_grad == self.shard.requires_grad)

    def free_whole(self) -> None:
        """The modules have the shard again. The whole's memory is given back, though graphs still refer to it: it must
        be filled again before they are run."""
        self._own(self.shard)
        self._flat.untyped_storage().resize_(0)

    def _own(self, parameter: Parameter) -> None:
        for module, name in self.owners:
            module._parameters[name] = parameter

    def accumulator(self) -> Node:
        """The node of the graph that adds to the whole's gradient."""
        return get_gradient_edge(self.whole).node

    def take_gradient(self, dtype: torch.dtype) -> Tensor | None:
        """What has come together for the whole since the last reduction, in dtype; None: nothing. It is forgotten."""
        self.keep_gradient(dtype)
        if self.unreduced is not None:
            taken, self.unreduced = self.unreduced, None
            return taken
        taken, self.whole.grad = self.whole.grad, None
        return taken

    def keep_gradient(self, dtype: torch.dtype) -> None:
        """For a later reduction, in dtype. Where autograd adds up in it already, there is nothing to do."""
        grad = self.whole.grad
        if grad is None or grad.dtype == dtype:
            return
        self.unreduced = grad.to(dtype) if self.unreduced is None else self.unreduced.add_(grad)
        self.whole.grad = None

    def drop_gradients(self) -> None:
        self.unreduced = self.shard.grad = None
        if self.whole is not None:
            self.whole.grad = None

    def write_gradient(self, chunks: Tensor, grad: Tensor, factor: float) -> None:
        """factor * grad, of the whole shape, into chunks (n, chunk), of the same dtype. Padding is left as it is."""
        flat = grad.reshape(-1)
        full = self.numel // self.chunk if self.chunk else 0
        torch.mul(flat[: full * self.chunk].view(full, self.chunk), factor, out=chunks[:full])
        if rest := self.numel - full * self.chunk:
            torch.mul(flat[full * self.chunk :], factor, out=chunks[full, :rest])

    def add_gradient(self, reduced: Tensor) -> None:
        """reduced: (chunk,), this rank's rows of the mean, added to the shard's gradient."""
        mean = reduced[: self.own].view(self.shard.shape).to(self.shard.dtype)
        if self.shard.grad is None:
            self.shard.grad = mean
        else:
            self.shard.grad += mean
