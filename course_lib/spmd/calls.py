"""How to read a call into torch.distributed: its tensor, its group, its root or its peer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .report import Frame, Op


@dataclass(frozen=True)
class Call:
    """How to read the arguments of one function of torch.distributed."""

    tensor: str | None = None  # the argument whose shape and dtype must agree (a tensor or a list of tensors)
    root: str | None = None  # the argument that names the root
    peer: str | None = None  # the argument that names the other rank of a point-to-point call
    splits: bool = False
    sends: bool = False


CALLS: dict[str, Call] = {
    "all_reduce": Call("tensor"),
    "broadcast": Call("tensor", root="src"),
    "reduce": Call("tensor", root="dst"),
    "all_gather": Call("tensor"),
    "all_gather_into_tensor": Call("input_tensor"),
    "all_gather_single": Call("input_tensor"),
    "gather": Call("tensor", root="dst"),
    "scatter": Call("tensor", root="src"),
    "reduce_scatter": Call("output"),
    "reduce_scatter_tensor": Call("output"),
    "reduce_scatter_single": Call("output"),
    "all_to_all": Call("input_tensor_list"),
    "all_to_all_single": Call("input", splits=True),
    "barrier": Call(),
    "monitored_barrier": Call(),
    "broadcast_object_list": Call(root="src"),
    "all_gather_object": Call(),
    "gather_object": Call(root="dst"),
    "scatter_object_list": Call(root="src"),
    "new_group": Call(),
    "send": Call("tensor", peer="dst", sends=True),
    "recv": Call("tensor", peer="src"),
    "isend": Call("tensor", peer="dst", sends=True),
    "irecv": Call("tensor", peer="src"),
    "send_object_list": Call(peer="dst", sends=True),
    "recv_object_list": Call(peer="src"),
}

# The usual reductions by identity: str() of one takes longer than all else that is noted of a call.
_REDUCTIONS = {id(op): name for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT") if (op := getattr(dist.ReduceOp, name))}


def read(
    name: str, call: Call, args: dict[str, Any], members: tuple[int, ...], key: str, index: int, frame: Frame
) -> Op:
    """The call as an Op.

    Raises ValueError for a root or peer that is not in the group: torch itself would crash, or wait for it for ever.
    """
    tensor = args.get(call.tensor) if call.tensor else None
    if isinstance(tensor, list | tuple) and tensor:
        tensor = tensor[0]
    shape = dtype = splits = None
    if isinstance(tensor, torch.Tensor):
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if call.splits:
        splits = (_sizes(args.get("input_split_sizes")), _sizes(args.get("output_split_sizes")))
    elif name == "new_group":  # every rank must ask for the same members
        ranks = args.get("ranks")
        shape, dtype = tuple(range(len(members)) if ranks is None else sorted(ranks)), "ranks"
    reduce = _reduction(args.get("op")) if "reduce" in name else None
    root, peer = _member(name, args, call.root, members), _member(name, args, call.peer, members)
    if call.root is not None and root is None:
        root = 0  # torch's default, where it has one
    return Op(name, members, key, index, shape, dtype, frame, root, peer, reduce, splits, time.monotonic_ns())


def nbytes(tensor: Any) -> int:
    """Bytes of a tensor, or of a list of them; 0 for anything else."""
    if isinstance(tensor, torch.Tensor):
        return tensor.numel() * tensor.element_size()
    return sum(map(nbytes, tensor)) if isinstance(tensor, list | tuple) else 0


def _reduction(op: Any) -> str:
    if op is None:
        return "SUM"
    known = _REDUCTIONS.get(id(op))
    return known or str(op).rsplit(".", 1)[-1]


def _sizes(values: Any) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(value) for value in values)


def _member(name: str, args: dict[str, Any], which: str | None, members: tuple[int, ...]) -> int | None:
    """The global rank an argument means. torch takes it as `src` (global) or as `group_src` (within the group)."""
    if which is None:
        return None
    value = args.get(which)
    if value is not None:
        if value not in members:
            raise ValueError(f"{name} with {which}={value}: {_there_are(members)}")
        return int(value)
    within = args.get(f"group_{which}")
    if within is None:
        return None
    if not 0 <= within < len(members):
        raise ValueError(f"{name} with group_{which}={within}: in this group ranks count from 0 to {len(members) - 1}")
    return members[within]


def _there_are(members: tuple[int, ...]) -> str:
    if members == tuple(range(len(members))):
        return f"there are ranks 0 to {members[-1]}" if len(members) > 1 else "there is rank 0 alone"
    return f"this group has ranks {', '.join(map(str, members))}"
