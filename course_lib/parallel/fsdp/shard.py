"""fully_shard: each rank keeps its n-th of every parameter, gradient and optimizer state.

    for layer in model.layers:
        fully_shard(layer)              # what is gathered, and given up, together
    fully_shard(model)                  # what is left: embedding, last norm, head
    optimizer = AdamW(model.parameters())
    for tokens, labels in loader:       # other data on every rank, as in data parallelism
        loss(model(tokens), labels).backward()
        optimizer.step()                # of the shards: gradients are the mean over the ranks
        optimizer.zero_grad()

Before a block computes, its parameters are gathered; afterwards only the shards are kept. In this package: `shard.py`
(this: hooks on modules), `context.py` (who is gathered ahead of time), `group.py` (the messages of one block),
`parameter.py` (rows and padding), `policy.py` (mixed precision).

Source: Zhao et al., "PyTorch FSDP", VLDB 2023; the interface is that of torch's `fully_shard` ("FSDP2").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from course_lib.collectives.p2p import rank_and_size
from course_lib.parallel.data import agreement
from course_lib.parallel.data.unused import tensors_in
from course_lib.parallel.fsdp.context import Context, Unit
from course_lib.parallel.fsdp.group import ParameterGroup
from course_lib.parallel.fsdp.parameter import ShardedParameter
from course_lib.parallel.fsdp.policy import MixedPrecision
from course_lib.training.clip import Part

Group = dist.ProcessGroup | None


def fully_shard(
    module: nn.Module,
    group: Group = None,
    *,
    replicate: Group = None,
    policy: MixedPrecision | None = None,
    reshard_after_forward: bool | None = None,
    ahead: int = 1,
) -> nn.Module:
    """Cut the module's parameters into rows over the group, in place. Returns the module.

    To be called on the blocks first and then on the whole model; each call takes the parameters that no earlier call
    has taken. The parameters must have the same values on all ranks (build the model with one seed), or be on the meta
    device; then whoever calls fills the shards, and no rank ever holds the model. An optimizer is built
    afterwards. Outside of forward and backward, `module.parameters()` are the shards, some of them empty maybe.
    Frozen parameters are cut too. Buffers stay as they are, each rank its own.

    replicate: the ranks that hold the same shards as this one (HSDP): gradients are the mean over both groups. Shards
    are made equal to those of its rank 0. policy: see `MixedPrecision`. reshard_after_forward: False keeps what
    forward has gathered for backward: a third of the traffic less, and the memory of all parameters. None: False for
    the outermost module, whose parameters backward wants first, True for the rest. ahead: how many blocks are gathered
    ahead of time while another computes; the outermost call's counts.

    The module has a method `no_sync()` from now on, see the function. All ranks must run the same modules in the same
    order. After a forward or backward that broke in the same place on all ranks, the next forward puts things in order;
    gradients are dropped then. A rank that breaks alone leaves the others waiting.

    Raises ValueError where ranks differ in names, shapes, dtypes or options, for parameters that cannot be cut, and
    for one that is tied to a parameter which another call has taken; RuntimeError if the module is sharded already.

    An auxiliary loss that a module keeps aside must be added to a loss that uses the module's outputs as well.
    """
    rank, n = rank_and_size(group)
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        raise ValueError(
            f"a {type(module).__name__} has no forward, so nothing would gather its parameters: call fully_shard on "
            "each module in it"
        )
    if hasattr(module, "_sharded"):
        raise RuntimeError(f"this {type(module).__name__} is sharded already: call fully_shard once for each module")
    if ahead < 0:
        raise ValueError(f"ahead is {ahead}; 0 gathers nothing ahead of time, 1 one block, which is the usual choice")
    policy = policy or MixedPrecision()
    inner = [m._sharded for m in module.modules() if hasattr(m, "_sharded")]
    owners = _owners(module)
    _require_same(owners, policy, group, replicate)
    parameters = [
        ShardedParameter(its[0][0], p, [(m, attribute) for _, m, attribute in its], rank, n)
        for p, its in owners.items()
    ]
    for p in parameters:
        p.shard.taken = True  # what a second call looks for
    if replicate:
        agreement.broadcast_together([p.shard.detach() for p in parameters if not p.shard.is_meta], replicate)
    unit = Unit(type(module).__name__, ParameterGroup(parameters, group, replicate, policy))
    sharded = module._sharded = Sharded(unit, policy, reshard_after_forward)
    names = {id(m): name for name, m in module.named_modules()}
    for m in module.modules():
        if m is not module and hasattr(m, "_sharded"):
            m._sharded.unit.name = names[id(m)]
    context = Context([*(one.unit for one in inner), unit], ahead)
    for one in [*inner, sharded]:
        one.context = context
    module.register_forward_pre_hook(sharded.before_forward, with_kwargs=True)
    module.register_forward_hook(sharded.after_forward)
    module.register_state_dict_pre_hook(_settle)
    module.register_load_state_dict_pre_hook(_settle)
    module.no_sync = partial(no_sync, module)
    return module


class Sharded:
    """What fully_shard has added to a module: kept as `module._sharded`."""

    def __init__(self, unit: Unit, policy: MixedPrecision, reshard: bool | None):
        self.unit, self.policy, self.reshard = unit, policy, reshard
        self.context: Context

    @property
    def outermost(self) -> bool:
        return self.unit is self.context.units[-1]

    def before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        args, kwargs = self.policy.inputs(args), self.policy.inputs(kwargs)
        if _backward_is_running():  # this recomputes what a checkpoint forgot; what it made is hooked already
            self.unit.group.gather()
            return args, kwargs
        if self.outermost or not self.context.in_forward:
            self.context.begin_forward(self.unit)
        self.context.enter_forward(self.unit)
        if torch.is_grad_enabled():
            self._call_when_gradients_are_there((args, kwargs))
        return args, kwargs

    def _call_when_gradients_are_there(self, inputs: Any) -> None:
        """Backward has left this call when the gradients of all its inputs are complete."""
        wanted = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]
        if not wanted:
            return

        def leave(_: Any) -> None:
            self.context.leave_backward(self.unit)
            if leaves:
                handle.remove()  # a leaf lives on and would keep the hooks of all steps

        leaves = any(x.is_leaf for x in wanted)
        handle = register_multi_grad_hook(wanted, leave)

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        output = self.policy.outputs(output)
        if _backward_is_running():
            return output
        context = self.context
        watched = [x for x in tensors_in(output) if x.requires_grad]
        if watched:
            enter = partial(context.enter_backward, self.unit, context.sync, context.over_replicas)
            register_multi_grad_hook(watched, lambda _: enter(), mode="any")
        reshard = not self.outermost if self.reshard is None else self.reshard
        context.leave_forward(self.unit, free=reshard or not watched)
        if context.outermost is self.unit:
            context.end_forward()
        return output


@contextmanager
def no_sync(module: nn.Module, *, within_group: bool = False) -> Iterator[None]:
    """Gradients of forwards made inside add up on this rank, until the backward of a forward made outside.

    with no_sync(model):
        loss(model(first)).backward()
    loss(model(last)).backward()  # reduces the sum of both

    They are whole, not cut: memory for messages. within_group (HSDP): they are reduced within the group all the same,
    and cut, and only the replicas hear of them later. module: any sharded module; it counts for the whole model.
    """
    context = _sharded(module).context
    before = context.sync, context.over_replicas
    context.sync, context.over_replicas = within_group, False
    try:
        yield
    finally:
        context.sync, context.over_replicas = before


def sharding(module: nn.Module) -> dict[str, ShardedParameter]:
    """Of each sharded parameter, by its name in module.named_parameters(): its whole shape, its rows, its shard.

    A tied one stands there once. Outside of forward and backward only, as all that follows.
    """
    _settle(module)
    by_id = {}
    for m in module.modules():
        if hasattr(m, "_sharded"):
            by_id |= {id(p.find_shard()): p for p in m._sharded.unit.group.parameters}
    return {name: by_id[id(p)] for name, p in module.named_parameters() if id(p) in by_id}


def parts(module: nn.Module) -> list[Part]:
    """The parameters as `training.clip` wants them: clip_grad_norm([], max_norm, parts=parts(model)).

    One Part for each process group; shards have no padding, so each element counts once.
    """
    names = {id(p): name for name, p in module.named_parameters()}
    _settle(module)
    by_group: dict[Group, list] = {}
    for m in module.modules():
        if hasattr(m, "_sharded"):
            group = m._sharded.unit.group
            its = by_group.setdefault(group.group, [])
            its += [(names.get(id(p.find_shard()), p.name), p.shard) for p in group.parameters]
    return [Part(its, group) for group, its in by_group.items()]


def _sharded(module: nn.Module) -> Sharded:
    for m in module.modules():
        if hasattr(m, "_sharded"):
            return m._sharded
    raise ValueError(f"this {type(module).__name__} has nothing sharded in it: call fully_shard on it first")


def _settle(module: nn.Module, *_: Any) -> None:
    if not _backward_is_running():
        _sharded(module).context.settle()


def _backward_is_running() -> bool:
    return torch._C._current_graph_task_id() != -1


def _owners(module: nn.Module) -> dict[nn.Parameter, list[tuple[str, nn.Module, str]]]:
    """Each parameter that is still to be taken, with (full name, module, its name there) of all that use it."""
    found: dict[nn.Parameter, list[tuple[str, nn.Module, str]]] = {}

    def look(m: nn.Module, prefix: str) -> None:
        if hasattr(m, "_sharded") or id(m) in seen:
            return
        seen.add(id(m))
        for name, p in m._parameters.items():
            if p is not None:
                _refuse_unfit(prefix + name, p)
                found.setdefault(p, []).append((prefix + name, m, name))
        for name, child in m._modules.items():
            if child is not None:
                look(child, f"{prefix}{name}.")

    seen: set[int] = set()
    look(module, "")
    return found


def _refuse_unfit(name: str, p: nn.Parameter) -> None:
    """Raises ValueError for a parameter that cannot be cut into rows. What one rank refuses, all do."""
    if hasattr(p, "taken"):
        raise ValueError(
            f"`{name}` is tied to a parameter that another call of fully_shard has taken, and is gathered for that "
            "module alone: leave both to one call, on a module that holds them both, or untie them"
        )
    if isinstance(p, nn.parameter.UninitializedTensorMixin):
        raise ValueError(f"`{name}` has no shape yet: run one forward of the module before sharding it")
    if type(p.detach()) is not Tensor:
        raise ValueError(f"`{name}` is a {type(p.detach()).__name__}, which is cut already: shard plain tensors")
    if not p.is_contiguous():
        raise ValueError(
            f"`{name}`, of shape {tuple(p.shape)}, has strides {p.stride()} and so no rows one after the other in "
            "memory: make it contiguous first"
        )


def _require_same(owners: dict, policy: MixedPrecision, group: Group, replicate: Group) -> None:
    tensors = {its[0][0]: p for p, its in owners.items()}
    lines = {"policy:": str(policy)} | agreement.describe(tensors)
    device = next((p.device for p in owners if not p.is_meta), _device_of(group))
    agreement.require_same(lines, device, group)
    if replicate:
        agreement.require_same(lines, device, replicate)


def _device_of(group: Group) -> torch.device:
    if "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
