"""Mixed precision: in what a sharded module computes, in what its gradients travel, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class MixedPrecision:
    """Shards, and so the optimizer, keep the parameters' own dtype. None: as it comes.

    param_dtype: parameters are cast to it before they travel, so half the bytes do, and computed with; floating inputs
    are cast to it too, unless cast_inputs is False.
    reduce_dtype: gradients are added up in it, over the ranks and over micro-batches. None: in that of the computation.
    output_dtype: floating outputs are cast to it.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_inputs: bool = True

    def inputs(self, tree: Any) -> Any:
        """Arguments of the forward, cast."""
        return cast(tree, self.param_dtype) if self.cast_inputs else tree

    def outputs(self, tree: Any) -> Any:
        """What the forward returned, cast."""
        return cast(tree, self.output_dtype)


def cast(tree: Any, dtype: torch.dtype | None) -> Any:
    """The floating tensors in lists, tuples and dicts, cast to dtype; None leaves them."""
    if dtype is None:
        return tree

    def one(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

    return tree_map(one, tree)
