"""Parameters that a backward does not reach on this rank, though it may on others.

A backward is one walk over the graph. Before it runs, the engine has already collected the nodes it will visit, so
there is no need to walk the graph a second time from the outputs: it can be asked. It also knows more than the outputs
do: one that the loss does not use, or several forwards under one backward, change what is visited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn import Parameter


def accumulators(parameters: Sequence[Parameter]) -> list[Node]:
    """The node of each parameter that adds to its `grad`. The graph alone keeps it alive only as long as it lives."""
    return [get_gradient_edge(p).node for p in parameters]


def unreached(nodes: Sequence[Node]) -> list[int]:
    """Called in the middle of a backward: the indices of the nodes that it will not visit."""
    return [index for index, node in enumerate(nodes) if not torch._C._will_engine_execute_node(node)]


class UsedSomewhere:
    """Which parameters have a gradient on at least one rank: one small all-reduce, started here, read when needed.

    used: one flag for each parameter, on this rank.
    """

    def __init__(self, used: Sequence[bool], device: torch.device, group: dist.ProcessGroup | None):
        self._used = used
        self._flags = torch.tensor(used, dtype=torch.uint8, device=device)
        self._work = dist.all_reduce(self._flags, dist.ReduceOp.MAX, group=group, async_op=True)

    def attach(self, parameters: Sequence[Parameter], means: Mapping[int, Tensor]) -> None:
        """Give a parameter that only others used its mean; one that nobody used keeps what it had.

        means: by index, complete. The flags come to the host, which waits for a GPU, only where this rank left a
        parameter unused.
        """
        self._work.wait()
        if all(self._used):
            return
        for index, somewhere in enumerate(self._flags.tolist()):
            if somewhere and not self._used[index]:
                parameters[index].grad = means[index]


def leads_to_any(output: Tensor, ids: Collection[int]) -> bool:
    """Whether the graph behind `output` holds one of the parameters with these `id`s.

    Nodes near the output come first: where the last layer is trained, only its few nodes are looked at.
    """
    seen = {output.grad_fn}
    left = deque(seen)
    while left:
        node = left.popleft()
        if id(getattr(node, "variable", None)) in ids:
            return True
        new = [following for following, _ in node.next_functions if following is not None and following not in seen]
        seen.update(new)
        left += new
    return False


def refusal(names: Sequence[str], rank: int) -> str:
    """What to say to a rank whose backward has not reached the parameters `names`."""
    some = ", ".join(f"`{name}`" for name in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f"rank {rank}'s backward gave no gradient to {some}, and the other ranks wait for it: use every parameter in "
        "the loss on every rank, freeze those you do not train before wrapping the module, or pass find_unused=True"
    )


def tensors_in(value: object) -> list[Tensor]:
    """All tensors in what a forward returned: in tuples, lists, dicts, dataclasses and any object with attributes."""
    found: list[Tensor] = []
    seen: set[int] = set()
    # A list of what is left, and no function that calls itself: that would be a cycle, which holds the forward's
    # outputs until the garbage collector comes by.
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif not isinstance(value, torch.nn.Module | str | bytes | type) and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                inside = value.values()
            elif isinstance(value, list | tuple | set | frozenset):
                inside = value
            else:
                inside = getattr(value, "__dict__", {}).values()
            left += reversed(list(inside))
    return found
