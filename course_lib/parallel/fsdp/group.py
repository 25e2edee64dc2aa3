"""The parameters of one sharded module, which travel together: one all-gather, and one reduce-scatter, for all of them.

    SHARDED --start_gather--> GATHERING --gather--> GATHERED --free--> SHARDED

Between forward and backward a group is SHARDED again, or stays GATHERED where there is no point in giving it up.
Parameters of different dtypes travel in one message for each dtype.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import native
from course_lib.parallel.fsdp.parameter import ShardedParameter
from course_lib.parallel.fsdp.policy import MixedPrecision


class State(enum.Enum):
    SHARDED = "sharded"
    GATHERING = "gathering"
    GATHERED = "gathered"


class ParameterGroup:
    """parameters: may be none. group: the ranks over which they are cut. replicate: those that hold the same shards as
    this rank, each from another group; None: there are no others.
    """

    def __init__(
        self,
        parameters: Sequence[ShardedParameter],
        group: dist.ProcessGroup | None,
        replicate: dist.ProcessGroup | None,
        policy: MixedPrecision,
    ):
        self.parameters, self.group, self.replicate, self.policy = parameters, group, replicate, policy
        self.n = dist.get_world_size(group)
        self.divisor = self.n * (dist.get_world_size(replicate) if replicate else 1)
        self.state = State.SHARDED if parameters else State.GATHERED
        self._partial: dict[torch.dtype, Tensor] = {}  # reduced over the group, and not yet over the replicas
        self._told: Callable[[], None] = lambda: None

    def tell(self, gradient_is_there: Callable[[], None]) -> None:
        """To be called each time autograd has completed the gradient of a parameter."""
        self._told = gradient_is_there

    @torch.inference_mode(False)
    @torch.no_grad()
    def start_gather(self) -> None:
        """Start to gather the parameters, unless it has been done. Nothing is waited for."""
        if self.state is not State.SHARDED:
            return
        self.state = State.GATHERING
        self._gathers = []
        for p in self.parameters:
            p.find_shard()
        for alike in _by(self.parameters, self._computed_in):
            chunks = [p.chunk for p in alike]
            sent = alike[0].shard.new_zeros(sum(chunks), dtype=self._computed_in(alike[0]), requires_grad=False)
            for p, part in zip(alike, sent.split(chunks), strict=True):
                p.copy_shard_to(part)
            everyone = sent.new_empty(self.n, sent.numel())
            work = native.all_gather_into(everyone, sent, self.group, async_op=True)
            self._gathers.append((alike, everyone.split(chunks, dim=1), work))

    @torch.inference_mode(False)
    @torch.no_grad()
    def gather(self) -> None:
        """The modules have whole parameters on return."""
        self.start_gather()
        if self.state is State.GATHERED:
            return
        for alike, chunks, work in self._gathers:
            work.wait()
            for p, its_chunks in zip(alike, chunks, strict=True):
                before = p.whole
                p.fill_whole(its_chunks)
                if p.whole is not before and p.whole.requires_grad:
                    p.whole.register_post_accumulate_grad_hook(lambda _: self._told())
        self._gathers = []
        self.state = State.GATHERED

    def free(self) -> None:
        """The modules have shards on return, and the memory of whole parameters is given back."""
        if self.state is State.GATHERING:
            self.gather()  # what was asked for must arrive before its memory can go
        if self.state is State.GATHERED and self.parameters:
            for p in self.parameters:
                p.free_whole()
            self.state = State.SHARDED

    def trained(self) -> list[ShardedParameter]:
        """Those that have been gathered once, and are to have gradients."""
        return [p for p in self.parameters if p.whole is not None and p.whole.requires_grad]

    @torch.no_grad()
    def keep_gradients(self) -> None:
        """The end of a micro-batch whose gradients are not sent: they wait, whole, for the one that does."""
        for p in self.trained():
            p.keep_gradient(self._reduced_in(p))

    @torch.no_grad()
    def reduce(self, over_replicas: bool) -> Iterator[None]:
        """The mean of the gradients over all ranks, added to those of the shards. Stops whenever something is sent.

        over_replicas: False leaves the sum over the replicas to a later call.

        One number travels with each gradient: on how many ranks there was one. A rank without takes part with zeros;
        where no rank has one the shard's gradient stays as it is, so that an optimizer passes over it.
        """
        sent = []
        for alike in _by(self.trained(), self._reduced_in):
            dtype = self._reduced_in(alike[0])
            grads = [p.take_gradient(dtype) for p in alike]
            sizes = [*(p.chunk for p in alike), len(alike)]
            chunks = alike[0].whole.new_zeros(self.n, sum(sizes), dtype=dtype, requires_grad=False)
            *parts, counts = chunks.split(sizes, dim=1)
            for i, (p, grad, part) in enumerate(zip(alike, grads, parts, strict=True)):
                if grad is not None:
                    # Divided first, as in data/reducer.py: a float16 sum could overflow.
                    p.write_gradient(part, grad, 1 / self.divisor)
                    counts[:, i] = 1
            here = [grad is not None for grad in grads]
            del grads
            mine = chunks.new_empty(sum(sizes))
            work = native.reduce_scatter_into(mine, chunks, self.group, async_op=True)
            sent.append((alike, here, mine, sizes, work))
            del chunks, parts, counts, part, grad
        yield
        for *_, work in sent:
            work.wait()
        if self.replicate:
            for _, _, mine, _, _ in sent:
                if (partial := self._partial.pop(mine.dtype, None)) is not None:
                    mine += partial
            if not over_replicas:
                self._partial = {mine.dtype: mine for _, _, mine, _, _ in sent}
                return
            works = [dist.all_reduce(mine, group=self.replicate, async_op=True) for _, _, mine, _, _ in sent]
            yield
            for work in works:
                work.wait()
        for alike, here, mine, sizes, _ in sent:
            *parts, counts = mine.split(sizes)
            somewhere = here if all(here) else (counts > 0).tolist()  # waits for a GPU only where this rank has none
            for p, part, used in zip(alike, parts, somewhere, strict=True):
                if used:
                    p.add_gradient(part)

    def drop_gradients(self) -> None:
        """All of them, those of the shards too: a backward broke, and nobody knows what is in them."""
        self._partial = {}
        for p in self.parameters:
            p.drop_gradients()

    def _computed_in(self, p: ShardedParameter) -> torch.dtype:
        return self.policy.param_dtype if self.policy.param_dtype and p.shard.is_floating_point() else p.shard.dtype

    def _reduced_in(self, p: ShardedParameter) -> torch.dtype:
        return self.policy.reduce_dtype if self.policy.reduce_dtype else p.whole.dtype


def _by(
    parameters: Sequence[ShardedParameter], dtype_of: Callable[[ShardedParameter], torch.dtype]
) -> list[list[ShardedParameter]]:
    """Lists of parameters of one dtype, in order."""
    kinds: dict[torch.dtype, list[ShardedParameter]] = {}
    for p in parameters:
        kinds.setdefault(dtype_of(p), []).append(p)
    return list(kinds.values())
