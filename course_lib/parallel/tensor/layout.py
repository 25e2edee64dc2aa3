"""Which part of each parameter of a GPT a rank has: arithmetic on names and shapes alone.

    embedding, head                     rows (vocabulary), padded to a multiple of n
    query, key, value, gate, up         rows (output features); query, key and value by whole heads
    out, down                           columns (input features)
    norms                               whole, on every rank

Where there are fewer key and value heads than ranks, neighbouring ranks hold the same one, beside the query heads that
it serves: n / G of them share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from course_lib.models.config import GPTConfig


@dataclass(frozen=True)
class Cut:
    """One rank's part of a tensor: of `size` elements along `dim`, part `part` of `parts` equal ones.

    Where `parts` does not divide `size`, zeros are added at its end. copies: ranks that hold this same part, one after
    the other; `first` on one of them, the first.
    """

    dim: int
    size: int
    part: int
    parts: int
    copies: int = 1
    first: bool = True

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole, from that of a part."""
        return (*shape[: self.dim], self.size, *shape[self.dim + 1 :])

    def of(self, whole: Tensor) -> Tensor:
        """This part of the whole; a tensor with memory of its own."""
        length = -(-self.size // self.parts)
        start = min(self.part * length, self.size)
        end = min(start + length, self.size)
        part = whole.narrow(self.dim, start, end - start)
        missing = length - (end - start)
        if missing:
            # Padding counts from the last dim: two numbers for each dim after this one, then these.
            return F.pad(part, (0, 0) * (whole.ndim - 1 - self.dim) + (0, missing))
        return part.clone()


def cut_of(name: str, shape: Sequence[int], config: GPTConfig, rank: int, n: int) -> Cut | None:
    """Rank `rank`'s part of the parameter `name` of GPT(config), of the whole shape `shape`; None: it has all of it."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    if kind in ("embedding", "head", "query", "gate", "up"):
        return Cut(0, shape[0], rank, n)
    if kind in ("key", "value"):
        parts = min(n, config.n_kv_heads)
        copies = n // parts
        return Cut(0, shape[0], rank // copies, parts, copies, first=rank % copies == 0)
    if kind in ("out", "down"):
        return Cut(1, shape[1], rank, n)
    return None


def require_divides(config: GPTConfig, n: int) -> None:
    """Raises ValueError where the heads or the feed-forward of GPT(config) cannot be shared out evenly over n ranks."""
    c = config
    for field, what in (("n_heads", "query heads"), ("ffn_dim", "columns of the feed-forward")):
        size = getattr(c, field)
        if size % n:
            fitting = [k for k in range(1, n + 1) if size % k == 0]
            raise ValueError(
                f"{size} {what} cannot be shared out over {n} ranks: {field} = {-(-size // n) * n} would do on {n} "
                f"ranks, and {size} on {' or '.join(map(str, fitting))}"
            )
    if c.n_kv_heads % n and n % c.n_kv_heads:
        raise ValueError(
            f"{c.n_kv_heads} key and value heads cannot be shared out over {n} ranks: n_kv_heads must be a multiple of "
            f"{n}, or {n} a multiple of it, so that ranks share one"
        )
