"""The one norm rule: gradients are clipped by the norm of the whole, unsharded gradient.

However the gradient is spread, each of its elements counts once:

- replicated parameters, whose gradient is alike on all ranks, count on each rank by themselves: nothing is sent;
- a gradient that is cut into parts over a group (ZeRO, tensor parallel), or whose parameters live on one rank of the
  group only (pipeline stages, experts), is a `Part`: p-norms are added up over its group, the infinity norm is the MAX;
- a tied parameter that appears twice counts once; a copy of it on another rank (first and last pipeline stage) is left
  out of the norm there, and scaled all the same: `grad_norm` and `scale_gradients` are apart for that.

The norm stays on its device: nothing here waits for a GPU, except where an error is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

# A parameter, or a pair as in model.named_parameters(): then an error can say which.
Named = Parameter | tuple[str, Parameter]


@dataclass(frozen=True)
class Part:
    """Parameters whose gradients, over all ranks of the group together, are the whole: no element is on two ranks.

    parameters: may be empty on a rank; it takes part in the exchange all the same.
    """

    parameters: Sequence[Named]
    group: dist.ProcessGroup | None = None


def clip_grad_norm(
    parameters: Iterable[Named],
    max_norm: float,
    norm_type: float = 2.0,
    parts: Sequence[Part] = (),
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale the gradients in place so that their norm together is at most `max_norm`. Returns the norm before.

    parameters: the replicated ones. parts: the others, in the same order of groups on all ranks. The norm is a scalar
    on the gradients' device, the same on all ranks of all groups. As in torch's `clip_grad_norm_`, gradients are
    multiplied by min(1, max_norm / (norm + 1e-6)); an infinite `max_norm` only measures.

    Raises ValueError for a `max_norm` or `norm_type` that is not above 0. With `error_if_nonfinite`, which waits for
    the device, raises RuntimeError on all ranks if the norm is infinite or NaN, and leaves the gradients as they were.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, not {max_norm}; inf measures the norm and clips nothing")
    parameters = list(parameters)
    norm = grad_norm(parameters, norm_type, parts)
    every = [*parameters, *(p for part in parts for p in part.parameters)]
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(_what_is_not_finite(every, norm))
    scale_gradients(every, max_norm, norm)
    return norm


@torch.no_grad()
def grad_norm(parameters: Iterable[Named], norm_type: float = 2.0, parts: Sequence[Part] = ()) -> Tensor:
    """The norm of the whole gradient, of which `parameters` are replicated and `parts` are spread. A scalar.

    norm_type: p of the p-norm, or inf. Parameters without a gradient count nothing; 16-bit gradients are measured in
    float32. Raises ValueError if a parameter is given as replicated and as a part, or as a part twice.
    """
    if not norm_type > 0:
        raise ValueError(f"norm_type must be above 0 (2 is the usual one, inf the largest element), not {norm_type}")
    lists = [unique(parameters), *(unique(part.parameters) for part in parts)]
    counted = {id(p) for some in lists for p in some}
    if len(counted) < sum(map(len, lists)):
        raise ValueError("a parameter stands in two lists, as replicated and as a part or in two parts: name it in one")
    device = next((p.device for some in lists for p in some), None) or _home(parts)
    groups = [None, *(part.group for part in parts)]
    powers = []  # of each list, the sum of |g| ** p over its group; for inf, the largest |g|
    for i, (some, group) in enumerate(zip(lists, groups, strict=True)):
        # In float64: squares of a norm leave float32's range long before the norm itself does.
        # An empty shard has no largest element, and torch refuses to look for one.
        gradients = [p.grad for p in some if p.grad is not None and p.grad.numel()]
        power = _norm(gradients, norm_type, device).double()
        if not math.isinf(norm_type):
            power = power**norm_type
        if i > 0:
            dist.all_reduce(power, dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM, group=group)
        powers.append(power)
    together = torch.stack(powers)
    norm = together.amax() if math.isinf(norm_type) else together.sum() ** (1 / norm_type)
    double = any(p.dtype == torch.float64 for some in lists for p in some)
    return norm if double else norm.float()


@torch.no_grad()
def scale_gradients(parameters: Iterable[Named], max_norm: float, norm: Tensor) -> None:
    """Multiply each gradient once by min(1, max_norm / (norm + 1e-6)), in place. norm: a scalar, from `grad_norm`."""
    # A factor of 1 is multiplied with too: to ask whether it is 1 would be to wait for the device.
    torch.nn.utils.clip_grads_with_norm_(unique(parameters), max_norm, norm)


def unique(parameters: Iterable[Named]) -> list[Parameter]:
    """Each parameter once, without names, in order."""
    bare = (p[1] if isinstance(p, tuple) else p for p in parameters)
    return list({id(p): p for p in bare}.values())


def _norm(gradients: list[Tensor], norm_type: float, device: torch.device) -> Tensor:
    """The norm of this rank's gradients, a scalar on `device`; 0 where there are none."""
    wide = [g for g in gradients if g.dtype not in (torch.float16, torch.bfloat16)]
    norms = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) for g in gradients if g.itemsize == 2]
    if wide:
        norms.append(torch.nn.utils.get_total_norm(wide, norm_type))
    if not norms:
        return torch.zeros((), device=device)
    return torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), norm_type)


def _home(parts: Sequence[Part]) -> torch.device:
    """Where a rank that holds no parameter at all puts its zero: where the groups' backend can carry it."""
    if any("nccl" in dist.get_backend(part.group) for part in parts):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _what_is_not_finite(parameters: Sequence[Named], norm: Tensor) -> str:
    """One sentence: which gradient, or that it is another rank's."""
    said = f"the norm of the gradients is {norm.item()}, so they cannot be clipped: "
    for index, item in enumerate(parameters):
        name, p = item if isinstance(item, tuple) else (f"number {index}", item)
        if p.grad is not None and not p.grad.isfinite().all():
            bad, shape = int((~p.grad.isfinite()).sum()), tuple(p.shape)
            return f"{said}{bad} elements of the gradient of parameter {name}, of shape {shape}, are infinite or NaN"
    return f"{said}all gradients of this rank are finite, so one of another rank is not, or the norm overflows"
