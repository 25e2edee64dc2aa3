"""Activation recomputation: forward keeps less, backward runs parts of forward again. Memory for time, same gradients.

    recompute(model.layers)                                       # keep each layer's input, recompute the rest
    recompute(model.layers, every=2)                              # of every second layer only
    recompute(model.layers, keep=MATMULS)                         # keep the products, recompute the cheap rest
    recompute([layer.attention.core for layer in model.layers])   # recompute the attention core only

All layers: Chen et al. 2016 (arXiv 1604.06174), one more forward, so about a third more time. The core only: called
"selective" by Korthikanti et al. 2022 (arXiv 2205.05198): where the core keeps its scores, they grow with the square of
the sequence and cost little to make anew. Fused attention keeps no scores; there is little to gain there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

aten = torch.ops.aten
# Matrix products and fused attention: nearly all the FLOPs of a transformer.
MATMULS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
)


def recompute(modules: Sequence[nn.Module], every: int = 1, keep: Collection = ()) -> None:
    """Let every `every`-th of the modules, from the first on, forget its activations and recompute them in backward.

    keep: operators (torch.ops.aten....) whose results are kept all the same. MATMULS keeps all that is dear to make.
    Torch then asks a Python function about every operator, which small layers take longer for than they save.

    Values and gradients stay the same to the bit, dropout included: the random numbers of a module are drawn again from
    the same state. Its name, parameters and class stay as they are. To be called before the model is wrapped.
    ValueError if `every` is below 1, there is no module, or one of them is recomputed already.
    """
    if every < 1:
        raise ValueError(f"every is {every}; it must be at least 1, which recomputes all {len(modules)} modules.")
    if not modules:
        raise ValueError("There is no module to recompute.")
    chosen = modules[::every]
    for i, module in enumerate(chosen):
        if any(module is earlier for earlier in chosen[:i]):
            raise ValueError(f"Module {i * every} ({type(module).__name__}) stands twice in the list.")
        # A bound method of the instance, as opposed to the class's function.
        if "forward" in vars(module):
            raise ValueError(
                f"Module {i * every} ({type(module).__name__}) has been given another forward already, perhaps by an "
                "earlier call of recompute; call it once for each module."
            )
    context_fn = functools.partial(create_selective_checkpoint_contexts, functools.partial(_policy, frozenset(keep)))
    options = {"context_fn": context_fn} if keep else {}
    for module in chosen:
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False, **options)


def _policy(keep: frozenset, context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in keep else CheckpointPolicy.PREFER_RECOMPUTE


def saved_bytes(fn: Callable[[], object]) -> int:
    """The bytes that fn() made and that are still held when it returns: what backward will need, and the result itself.

    fn: runs forward and returns what the graph hangs on, the loss. Parameters and inputs were there before and do not
    count. A storage counts once, however many tensors look at it. Works on any device: the memory is counted from the
    tensors, not read off the allocator.
    """
    made = _Storages()
    with made:
        result = fn()
    total = made.held()
    del result
    return total


class _Storages(TorchDispatchMode):
    """Remembers, weakly, the storage of every tensor that an operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        before = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(results):
            if storage._cdata not in before:
                # The weak reference keeps the address from being given to another storage.
                self.seen[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return results

    def held(self) -> int:
        return sum(size for reference, size in self.seen.values() if not reference.expired())


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
