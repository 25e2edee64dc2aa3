"""Initial values that depend on the seed and a parameter's name alone: the same in every layout, order and device."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from course_lib.models.config import GPTConfig

if TYPE_CHECKING:
    from course_lib.models.gpt import GPT


@torch.no_grad()
def init_weights(model: GPT, seed: int) -> None:
    """Give every parameter of the model its initial value, in place. A tied one is drawn once, as the embedding.
    Buffers, which are biases of routers, become 0.

    RuntimeError if a parameter is on the meta device, which holds no values.
    """
    parameters = dict(model.named_parameters())
    meta = [name for name, parameter in parameters.items() if parameter.is_meta]
    if meta:
        raise RuntimeError(
            f"{len(meta)} parameters are on the meta device and hold no values, {meta[0]} for one; "
            "call model.to_empty(device=...) first."
        )
    for name, parameter in parameters.items():
        parameter.copy_(initial_value(name, parameter.shape, model.config, seed))
    for buffer in model.buffers():
        buffer.zero_()


def initial_value(name: str, shape: Sequence[int], config: GPTConfig, seed: int) -> Tensor:
    """The initial value of one parameter, on the CPU in float32. Whoever holds a shard of it asks for all and slices.

    name, shape: as in GPT(config).named_parameters(), the whole shape.

    Norms begin as ones. Matrices are normal, of deviation sqrt(2 / (5 * dim)) (Nguyen & Salazar 2019, arXiv 1910.05895;
    GPT-NeoX-20B). At GPT-2's width that is about GPT-2's 0.02, from which narrow models learn more slowly. Those that
    write into the residual stream, two per layer (all experts' count as one), are narrower by sqrt(2 * n_layers), so
    that the stream's variance does not grow with depth (GPT-2, section 2.3).
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=torch.float32, device="cpu")
    std = (2 / (5 * config.dim)) ** 0.5
    if name.endswith(("attention.out.weight", "ffn.down.weight", "experts.down", "shared.down.weight")):
        std /= (2 * config.n_layers) ** 0.5
    # Python's own hash() of a string differs from process to process.
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8])
    generator = torch.Generator("cpu").manual_seed(key)
    return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(0, std, generator=generator)
