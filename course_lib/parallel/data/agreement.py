"""What the ranks must agree on: the same model before anything is sent, the same values at the start and later on.

A broadcast or an all-reduce between ranks whose tensors differ does not say so. It hangs, aborts, or returns garbage.
So the descriptions are compared first, as digests of one fixed size, and only where these differ are they told in full.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import native
from course_lib.parallel.data.buckets import dense_strides

BROADCAST_BYTES = 25 * 2**20  # what travels in one broadcast, about: more at a time only takes more memory


def describe(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Name -> all that must be equal on all ranks but the values."""
    return {
        f"`{name}`": f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
        f"{', trained' if x.requires_grad else ''}"
        f"{'' if x.is_contiguous() else f', strides {dense_strides(x)}'}"
        for name, x in tensors.items()
    }


def require_same(lines: Mapping[str, str], device: torch.device, group: dist.ProcessGroup | None = None) -> None:
    """Compare descriptions (what -> how it is) over the group.

    Raises ValueError, on every rank, with the first line in which a rank differs from rank 0, and the names of all
    ranks that differ there. device: where the digests travel: a GPU's for NCCL.
    """
    n = dist.get_world_size(group)
    digest = hashlib.sha256(repr(list(lines.items())).encode()).digest()
    mine = torch.tensor(list(digest), dtype=torch.uint8, device=device)
    everyone = mine.new_empty(n, len(digest))
    native.all_gather_into(everyone, mine, group)
    if bool((everyone == mine).all()):
        return
    told: list[list[tuple[str, str]]] = [[]] * n
    dist.all_gather_object(told, list(lines.items()), group=group)
    raise ValueError(first_difference(told))


def first_difference(told: Sequence[Sequence[tuple[str, str]]]) -> str:
    """told: the descriptions of all ranks, not all equal. Says where they part, and which ranks leave rank 0."""
    nothing = ("nothing", "")
    place = next(i for i in range(max(map(len, told))) if len({_at(lines, i, nothing) for lines in told}) > 1)
    at_rank_0 = _at(told[0], place, nothing)
    others = [rank for rank, lines in enumerate(told) if _at(lines, place, nothing) != at_rank_0]
    one = _at(told[others[0]], place, nothing)
    alike = [rank for rank in others if _at(told[rank], place, nothing) == one]
    more = [rank for rank in others if rank not in alike]
    and_more = f", and {_ranks(more)} something else" if more else ""
    return (
        f"the ranks did not wrap the same module: rank 0 has {_line(at_rank_0)} where {_ranks(alike)} "
        f"{'has' if len(alike) == 1 else 'have'} {_line(one)}{and_more}. "
        "Build the module from the same configuration, in the same order, on every rank"
    )


def _at(lines: Sequence[tuple[str, str]], place: int, default: tuple[str, str]) -> tuple[str, str]:
    return lines[place] if place < len(lines) else default


def _line(line: tuple[str, str]) -> str:
    return " ".join(filter(None, line))


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''}"


def broadcast_together(tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None, root: int = 0) -> None:
    """Copy the root's tensors to all ranks, in place, many in one broadcast. They may be of any dtypes and devices."""
    is_root = dist.get_rank(group) == root
    with torch.no_grad():
        for batch in _batches(tensors):
            flat = torch.cat([x.reshape(-1) for x in batch])
            dist.broadcast(flat.view(torch.uint8), group=group, group_src=root)  # bytes: no backend knows all dtypes
            if not is_root:
                for x, part in zip(batch, flat.split([x.numel() for x in batch]), strict=True):
                    x.copy_(part.view(x.shape))


def _batches(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in lists of one dtype and device, each of about BROADCAST_BYTES or of one larger tensor."""
    kinds: dict[tuple, list[Tensor]] = {}
    for x in tensors:
        if x.numel():
            kinds.setdefault((x.dtype, x.device), []).append(x)
    for alike in kinds.values():
        batch: list[Tensor] = []
        for x in alike:
            batch.append(x)
            if sum(y.numel() for y in batch) * x.element_size() >= BROADCAST_BYTES:
                yield batch
                batch = []
        if batch:
            yield batch


def require_same_values(named: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Compare tensors bit by bit over the group, by their hashes: 8 bytes travel for each.

    named: the same names, in the same order, on every rank. Raises RuntimeError, on every rank, with the first tensor
    that differs and the ranks that are not with the majority (at a tie, not with rank 0).
    """
    hashes = torch.stack([bits_hash(x) for x in named.values()])
    everyone = hashes.new_empty(dist.get_world_size(group), len(hashes))
    native.all_gather_into(everyone, hashes, group)
    differs = (everyone != everyone[0]).any(0)
    if not bool(differs.any()):
        return
    place = int(differs.int().argmax())
    values = everyone[:, place].tolist()
    usual, _ = Counter(values).most_common(1)[0]  # of equal counts, the one met first: rank 0's
    odd = [rank for rank, value in enumerate(values) if value != usual]
    raise RuntimeError(
        f"the parameters have drifted apart: {_ranks(odd)} {'has' if len(odd) == 1 else 'have'} other values in "
        f"`{list(named)[place]}` than the rest; "
        f"{int(differs.sum())} of {len(named)} parameters differ. Something changed them outside the reduction: an "
        "update that not all ranks made, a gradient changed after it was reduced, other optimizer states"
    )


def bits_hash(x: Tensor) -> Tensor:
    """A 64-bit hash of the bits of x, () int64, on x's device and without waiting for it.

    Each element is multiplied by an odd number of its own, so that errors in several do not cancel, as the plus and
    minus one of roundings would in a plain sum.
    """
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = x.detach().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    bits = flat.view(integers[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for chunk in bits.split(2**20):  # the products take 8 bytes an element
        odd = torch.arange(1, 2 * len(chunk), 2, device=x.device) * 0x5851F42D4C957F2D
        total = total * 0x5851F42D4C957F2D + (chunk * odd).sum()
    return total
