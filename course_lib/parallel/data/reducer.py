"""The machine inside DistributedDataParallel: gradients go in as backward makes them, their means come out.

    forward            watch(outputs): a backward that passes through them will be reduced
    backward begins    begin(): nothing has arrived yet, nothing is sent
      a gradient       counted; the bucket at the head of the line is sent when it is complete
    backward ends      wait for all that was sent

One rule holds it together: **every rank sends the same buckets in the same order**, whatever order its own gradients
come in, because the ranks' all-reduces are matched by nothing but their order. So a bucket that is complete waits for
those before it in line; what nobody used is sent as zeros; and a rank whose backward broke still sends what it owes.

A gradient meets its bucket when it is complete, not before. After `zero_grad()` autograd keeps the first gradient it
gets as it is, with no copy. While that is still in the cache it is moved into the bucket and divided by the number of
ranks, in one pass over memory, and `p.grad` becomes the view. (To add to a view full of zeros would read and write
everything once more, and to divide the sum once more still.) To divide first and add then also keeps a float16 sum from
overflowing. Whatever `p.grad` is at that moment is what counts: accumulated by earlier backwards, replaced by the user,
or the view itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Parameter

from course_lib.parallel.data import unused
from course_lib.parallel.data.buckets import Bucket
from course_lib.parallel.data.layout import arrange

# Starts to average a bucket over the group; the function it returns waits, and leaves the mean in bucket.flat.
Hook = Callable[[Bucket, dist.ProcessGroup | None], Callable[[], None]]


class Reducer:
    """Reduces the gradients of `parameters` over the group, bucket by bucket, while backward runs.

    names, parameters: of all that are trained, in the order of registration, the same on every rank.

    `sync` is False inside no_sync. `forward_synced` tells whether the last forward with gradients was outside of it.
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[Parameter],
        group: dist.ProcessGroup | None,
        bucket_bytes: int,
        first_bucket_bytes: int,
        find_unused: bool,
        hook: Hook | None,
    ):
        self.names, self.parameters, self.group = names, parameters, group
        self.rank, self.n = dist.get_rank(group), dist.get_world_size(group)
        self.hook, self.find_unused = hook, find_unused
        self.divisor = self.n  # Join may lower it: to the ranks that still have inputs
        self.sync, self.forward_synced = True, False
        self.reductions = 0  # backwards reduced so far
        self.running = False  # between the first gradient of a backward and the end of its reduction
        self._hopeless = False  # this backward came by an output that leads to no parameter
        self._caps = bucket_bytes, first_bucket_bytes
        self._order: list[int] | None = []  # indices as they come in the first backward; None once they are put to use
        self._nodes = unused.accumulators(parameters) if find_unused else []
        self._ids = frozenset(map(id, parameters))
        self._put_into_buckets(range(len(parameters))[::-1])
        # The parameters' hooks live as long as these do. They must not keep this object alive, nor work without it.
        told = [_telling(weakref.ref(self), index) for index in range(len(parameters))]
        handles = [p.register_post_accumulate_grad_hook(tell) for p, tell in zip(parameters, told, strict=True)]
        weakref.finalize(self, _remove, handles)

    def _put_into_buckets(self, ready: Sequence[int]) -> None:
        self.buckets = arrange(self.parameters, ready, *self._caps)
        index_of = {id(p): index for index, p in enumerate(self.parameters)}
        self._indices = [[index_of[id(p)] for p in bucket.parameters] for bucket in self.buckets]
        self._bucket_of = {index: place for place, its in enumerate(self._indices) for index in its}
        views = zip(sum(self._indices, []), (view for bucket in self.buckets for view in bucket.views), strict=True)
        self._view_of = dict(views)

    def rebuild(self) -> None:
        """After the first backward, once: buckets anew, in the order in which rank 0's gradients came.

        Gradients that are views of the old buckets stay valid; they move when next a backward completes them.
        """
        if self._order is None or not self.reductions:
            return
        came = dict.fromkeys(self._order)
        rest = [index for its in self._indices for index in its if index not in came]
        order = torch.tensor([*came, *rest], device=self.parameters[0].device)
        dist.broadcast(order, group=self.group, group_src=0)
        self._order = None
        self._put_into_buckets(order.tolist())

    def watch(self, outputs: object) -> None:
        """A backward that passes through these outputs of the module is to be reduced, wherever it is called.

        So the decision that `no_sync` makes in the forward travels with the graph.
        """
        tensors = unused.tensors_in(outputs)
        if not tensors:
            raise TypeError(
                f"the module's forward returned a {type(outputs).__name__} in which no tensor was found: return "
                "tensors in a tuple, list, dict, dataclass or object with attributes"
            )
        for tensor in tensors:
            if tensor.grad_fn is not None:
                hopeless = not self.find_unused and not unused.leads_to_any(tensor, self._ids)
                tensor.register_hook(partial(self._begin_at, hopeless))

    def _begin_at(self, hopeless: bool, _: Tensor) -> None:
        self.begin()
        self._hopeless |= hopeless

    def begin(self) -> None:
        """A backward has begun that is to be reduced. Called again in the same backward, it does nothing."""
        if self.running:
            return
        self.running, self._hopeless = True, False
        self._arrived = [False] * len(self.parameters)
        self._used = [False] * len(self.parameters)
        self._missing = [len(its) for its in self._indices]
        self._finish: list[Callable[[], object]] = []  # one for each bucket sent
        Variable._execution_engine.queue_callback(self._end)  # at the end of the backward that runs now, the outermost
        if self.find_unused:
            for index in unused.unreached(self._nodes):
                self._count(index)

    def arrived(self, index: int, p: Parameter) -> None:
        """Autograd has added to p.grad in this backward, or came with nothing to add (p.grad is None)."""
        if not self.running:
            if not (self.sync and self.forward_synced):
                return
            self.begin()  # by a way that does not pass through the outputs: an auxiliary loss kept in the module
        if self._arrived[index]:
            raise RuntimeError(
                f"`{self.names[index]}` got a second gradient in one backward, after the first was counted: "
                "checkpoint with use_reentrant=False, whose backward is one with the rest"
            )
        if p.grad is not None:
            if self._order is not None:
                self._order.append(index)
            self._count(index)

    def _count(self, index: int) -> None:
        """A parameter has what it will have in this backward: move it, and send the buckets that are complete now."""
        self._move(self.parameters[index], index)
        self._arrived[index] = True
        self._missing[self._bucket_of[index]] -= 1
        while len(self._finish) < len(self.buckets) and not self._missing[len(self._finish)]:
            self._finish.append(self._reduce(self.buckets[len(self._finish)]))

    def _move(self, p: Parameter, index: int) -> None:
        """This rank's share of the mean into the bucket: p.grad / n, or zeros where there is none. (A hook divides.)"""
        view, grad = self._view_of[index], p.grad
        if grad is None:
            view.zero_()
            return
        if grad.requires_grad or grad.layout is not torch.strided:
            raise RuntimeError(_unfit(self.names[index], grad))
        self._used[index] = True
        if not self.hook:
            torch.mul(grad, 1 / self.divisor, out=view)
        elif grad is not view:
            view.copy_(grad)
        p.grad = view

    def _reduce(self, bucket: Bucket) -> Callable[[], object]:
        if self.hook:
            finish = self.hook(bucket, self.group)
            if not callable(finish):
                raise TypeError(
                    f"the hook {getattr(self.hook, '__qualname__', repr(self.hook))} returned "
                    f"{'None' if finish is None else f'a {type(finish).__name__}'}: it must return a function without "
                    "arguments that waits and leaves the mean over the group in bucket.flat"
                )
            return finish
        return dist.all_reduce(bucket.flat, group=self.group, async_op=True).wait

    def _end(self) -> None:
        """Backward has ended. Raises RuntimeError where parameters have no gradient and that was not allowed for."""
        late = [index for index, arrived in enumerate(self._arrived) if not arrived]
        if late and not self.find_unused:
            if len(late) == len(self.parameters) and not self._hopeless:
                self.running = False  # torch.autograd.grad passed through, on its way to other tensors than parameters
                return
            raise RuntimeError(unused.refusal([self.names[index] for index in late], self.rank))
        for index in late:
            self._count(index)
        self._wait(attach=True)

    def _wait(self, attach: bool) -> None:
        """Wait for all that was sent: the end of a reduction."""
        if self.find_unused:
            somewhere = unused.UsedSomewhere(self._used, self.parameters[0].device, self.group)
        for bucket, finish in zip(self.buckets, self._finish, strict=True):
            finish()
            if self.hook and self.divisor != self.n:
                bucket.flat.mul_(self.n / self.divisor)  # hooks divide by n
        if self.find_unused and attach:
            somewhere.attach(self.parameters, self._view_of)
        self.running = False
        self.reductions += 1

    def shadow(self, attach: bool) -> None:
        """Take part in the others' reduction with zeros. attach: the means become this rank's gradients too."""
        for p in self.parameters:
            p.grad = None
        for bucket in self.buckets:
            bucket.flat.zero_()
        self._used = [False] * len(self.parameters)
        self._finish = [self._reduce(bucket) for bucket in self.buckets]
        self._wait(attach)
        if attach and not self.find_unused:
            for index, p in enumerate(self.parameters):
                p.grad = self._view_of[index]

    def recover(self) -> None:
        """Before a forward: if the last backward broke, send what it still owes, and drop its gradients.

        The other ranks may have broken elsewhere, or not at all. In either case their all-reduces must find ours, or
        those of the next step would be taken for them. What this rank no longer knows it sends as NaN: ranks that did
        not break then see that they have no mean, in place of one over fewer ranks.
        """
        if not self.running:
            return
        for p in self.parameters:
            p.grad = None
        for bucket in self.buckets[len(self._finish) :]:
            bucket.flat.fill_(torch.nan)
            self._finish.append(self._reduce(bucket))
        self._wait(attach=False)
        if hasattr(self.hook, "reset"):
            self.hook.reset()


def _telling(reducer: weakref.ref[Reducer], index: int) -> Callable[[Parameter], None]:
    def gradient_is_there(p: Parameter) -> None:
        if (alive := reducer()) is not None:
            alive.arrived(index, p)

    return gradient_is_there


def _remove(handles: Sequence) -> None:
    for handle in handles:
        handle.remove()


def _unfit(name: str, grad: Tensor) -> str:
    if grad.requires_grad:
        return f"the gradient of `{name}` has a graph: backward(create_graph=True) works in no_sync only"
    return f"the gradient of `{name}` is sparse, and buckets are dense: build its module with sparse=False"
