"""DistributedDataParallel: every rank holds the whole model and takes its own part of the batch.

    model = DistributedDataParallel(GPT(config))
    for tokens, labels in loader:           # other data on every rank
        loss(model(tokens), labels).backward()
        optimizer.step()                    # the same step on every rank: gradients are the mean over the ranks
        optimizer.zero_grad()

Parameters start equal, gradients become equal, so parameters stay equal. In this package: `reducer.py` (how gradients
become means while backward runs), `layout.py` (which travel together), `unused.py`, `agreement.py` (what ranks must
agree on), `join.py` (ranks that run out of data), `hooks.py` (fewer bytes).

Left out, because nothing here uses them: a static graph (the engine is asked each time which parameters it will reach),
local SGD after a start, and mixed precision inside the wrapper (autocast around the forward does it). Gradients of
backward(create_graph=True), sparse gradients and sharded parameters (DTensor) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.collectives.p2p import rank_and_size
from course_lib.parallel.data import agreement
from course_lib.parallel.data.join import Join
from course_lib.parallel.data.reducer import Hook, Reducer

MB = 2**20


class DistributedDataParallel(nn.Module):
    """A module whose gradients are the mean over the group, computed while backward runs.

    module: the same on every rank, on its device already; kept as `.module`. Its parameters and buffers are made equal
    to rank 0's. What is frozen (requires_grad is False) now is left alone, and must stay frozen.
    bucket_bytes, first_bucket_bytes: gradients travel in buckets of at least so many bytes; the first is small, so that
    the network starts early.
    find_unused: allow backwards that do not reach every parameter. One that other ranks reached gets the mean with a
    share of zero; one that nobody reached keeps its `grad` as it was. Costs a look at each parameter, and one more
    small all-reduce. Without it, a rank that misses a parameter raises RuntimeError at the end of its backward. (A rank
    whose loss does not use the outputs at all is told nothing, with it or without: the wrapper does not see its
    backward. The others wait for it.)
    broadcast_buffers: at each forward outside no_sync, with gradients or without, buffers are made equal to rank 0's.
    So all ranks must call it: for an evaluation on one rank alone call `.module`.
    hook: averages a bucket in place of the all-reduce (`hooks.py`).
    check_every: after so many reductions each, compare the ranks' parameters bit by bit; 0: never.

    After backward `p.grad` is a view of a bucket. A reference to it kept over the next backward sees new values.

    A backward is reduced where it passes through the outputs of a forward made outside `no_sync`, or runs outside of
    `no_sync` after such a forward. So `no_sync` must hold the forward too, as with torch's. After a backward that broke
    in the middle, the next forward drops its gradients and puts things in order again.

    Gradients that torch.autograd.grad returns are not reduced: only those that go into `p.grad` are seen. A forward of
    `.module`, without this wrapper, is not seen either. Before the first forward of the wrapper, and in `no_sync`, its
    backward is this rank's own; elsewhere it is reduced as any other, so that all ranks must make it.

    state_dict() has the module's own names, without `module.`: a checkpoint does not tell how it was trained, and the
    bare module loads it. Attributes of the module are reached by `.module` only: a method of it called by way of this
    wrapper would look as if it were reduced.

    Raises ValueError where ranks differ in names, shapes, dtypes, memory formats or in what is trained, or where the
    module has nothing to train or something that buckets cannot hold.

    Source: Li et al., "PyTorch Distributed", VLDB 2020, sections 3.2 and 4.2.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        bucket_bytes: int = 25 * MB,
        first_bucket_bytes: int = 1 * MB,
        find_unused: bool = False,
        broadcast_buffers: bool = True,
        hook: Hook | None = None,
        check_every: int = 0,
    ):
        super().__init__()
        rank_and_size(group)
        if min(bucket_bytes, first_bucket_bytes) < 1 or check_every < 0:
            raise ValueError(
                f"bucket_bytes is {bucket_bytes}, first_bucket_bytes {first_bucket_bytes}, check_every {check_every}: "
                "buckets need 1 byte or more, and check_every 0 (never) or more"
            )
        parameters = dict(module.named_parameters())  # a tied parameter once, by its first name
        tensors = parameters | dict(module.named_buffers())
        _refuse_unfit(module, tensors)
        settings = {
            "bucket_bytes:": bucket_bytes,
            "first_bucket_bytes:": first_bucket_bytes,
            "find_unused:": find_unused,
            "broadcast_buffers:": broadcast_buffers,
            "hook:": repr(hook).partition(" at 0x")[0],
            "check_every:": check_every,
        }
        lines = {name: str(value) for name, value in settings.items()} | agreement.describe(tensors)
        device = next((x.device for x in tensors.values()), torch.device("cpu"))
        agreement.require_same(lines, device, group)
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        if not trained:
            raise ValueError(
                f"none of the module's {len(parameters)} parameters has requires_grad: without any to train, use it "
                "as it is, unwrapped"
            )
        agreement.broadcast_together(list(tensors.values()), group)
        self.module = module
        self.group = group
        self._broadcast_buffers = broadcast_buffers
        self._check_every = check_every
        self._checked = 0  # the number of reductions at the last check
        self._frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
        # Where each buffer is kept, because modules replace them: `self.mean = self.mean * 0.9 + x`.
        self._buffer_places = [(m._buffers, name) for m in module.modules() for name in m._buffers]
        self._join: Join | None = None
        self.reducer = Reducer(
            list(trained), list(trained.values()), group, bucket_bytes, first_bucket_bytes, find_unused, hook
        )
        self.register_state_dict_post_hook(_without_module)
        self.register_load_state_dict_pre_hook(_with_module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward. Raises RuntimeError where parameters were unfrozen since it was wrapped."""
        reduces = torch.is_grad_enabled() and self.reducer.sync
        if torch._C._current_graph_task_id() == -1:  # else backward is running: this recomputes what was forgotten
            self._meet(reduces)
            if torch.is_grad_enabled():
                self.reducer.forward_synced = reduces
        outputs = self.module(*args, **kwargs)
        if reduces:
            self.reducer.watch(outputs)
        return outputs

    def _meet(self, reduces: bool) -> None:
        """All that ranks do together before a forward. `Join` does the same for ranks that have run out."""
        self.reducer.recover()
        if thawed := [name for name, p in self._frozen.items() if p.requires_grad]:
            raise RuntimeError(
                f"`{thawed[0]}` was frozen when the module was wrapped and is trained now; nothing would reduce its "
                "gradient: unfreeze parameters first, then wrap"
            )
        if self._join:
            self._join.announce(reduces, self.reducer.sync)
        if reduces:
            self.reducer.rebuild()
            self._check()
        if self.reducer.sync:
            self.sync_buffers()

    def _check(self) -> None:
        done = self.reducer.reductions
        if self._check_every and done >= self._checked + self._check_every and not self._join:
            self._checked = done
            agreement.require_same_values(dict(self.module.named_parameters()), self.group)

    def sync_buffers(self) -> None:
        """Make all buffers equal to rank 0's, where `broadcast_buffers` asks for it."""
        if self._broadcast_buffers and self._buffer_places:
            buffers = [kept[name] for kept, name in self._buffer_places if kept.get(name) is not None]
            agreement.broadcast_together(buffers, self.group)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards inside are not reduced: their gradients add up in `p.grad` until a backward that is.

        with model.no_sync():
            loss(model(first)).backward()
        loss(model(last)).backward()  # reduces the sum of both
        """
        before, self.reducer.sync = self.reducer.sync, False
        try:
            yield
        finally:
            self.reducer.sync = before

    def join(
        self, *, divide_by_initial_world_size: bool = True, step: Callable[[], object] | None = None
    ) -> AbstractContextManager[None]:
        """Inside, ranks may have different numbers of batches; see `join.py`. Every rank must enter it."""
        return Join(self, divide_by_initial_world_size, step)

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator:
        """The module's own names, as in state_dict()."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator:
        """The module's own names, as in state_dict()."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)


def _refuse_unfit(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Raises ValueError for what cannot be averaged in buckets. What one rank refuses, all do: they share the model."""
    for name, x in tensors.items():
        if isinstance(x, nn.parameter.UninitializedTensorMixin):
            raise ValueError(f"`{name}` has no shape yet: run one forward of the module before wrapping it")
        if type(x.detach()) is not Tensor:
            raise ValueError(
                f"`{name}` is a {type(x.detach()).__name__}, of which a rank may hold a part only: wrap modules of "
                "plain tensors"
            )
        if x.is_meta:
            raise ValueError(f"`{name}` is on the meta device and has no values: call to_empty and initialise it first")
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad:
            raise ValueError(
                f"`{name}.weight` will have sparse gradients, and buckets are dense: build `{name}` with sparse=False"
            )


def _without_module(ddp: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    _rename(state, f"{prefix}module.", prefix)


def _with_module(ddp: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    _rename(state, prefix, f"{prefix}module.")


def _rename(state: dict[str, Any], old: str, new: str) -> None:
    """Replace the beginning of keys, and keep their order."""
    items = list(state.items())
    state.clear()
    state.update((new + key.removeprefix(old) if key.startswith(old) else key, value) for key, value in items)
