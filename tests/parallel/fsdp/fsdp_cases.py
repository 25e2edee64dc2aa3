"""What the tests of FSDP share: small models, a plain run in one process, and the same run with sharded parameters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.models import GPT, GPTConfig
from course_lib.parallel.fsdp import fully_shard, no_sync, parts, sharding
from course_lib.training.clip import clip_grad_norm

# 7 rows of the embedding and a norm of 6 divide by few numbers of ranks.
SMALL = GPTConfig(7, dim=6, n_layers=3, n_heads=3, n_kv_heads=1, ffn_dim=10, max_seq_len=8)
TIED = GPTConfig(7, dim=6, n_layers=2, n_heads=3, n_kv_heads=3, ffn_dim=10, max_seq_len=8, tied=True)
STEPS, MICRO, ROWS = 4, 2, 2


def model_of(config: GPTConfig, freeze: str = "") -> GPT:
    model = GPT(config, seed=3).double()
    for name, p in model.named_parameters():
        if freeze and freeze in name:
            p.requires_grad_(False)
    return model


def batch(step: int, micro: int, rank: int, config: GPTConfig) -> Tensor:
    rng = torch.Generator().manual_seed(1000 * step + 100 * micro + rank)
    return torch.randint(config.vocab_size, (ROWS, 6), generator=rng)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def alone(config: GPTConfig, n: int, max_norm: float = 0.5, **more: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    """(losses of each step, parameters at the end) of one process that sees the micro-batches of all n ranks."""
    model = model_of(config, **more)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        loss = sum(loss_of(model, batch(step, m, r, config)) for m in range(MICRO) for r in range(n)) / (MICRO * n)
        loss.backward()
        clip_grad_norm(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


def shard_all(model: GPT, **options) -> GPT:
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def sharded(
    config: GPTConfig,
    group: dist.ProcessGroup | None = None,
    replicate: dist.ProcessGroup | None = None,
    max_norm: float = 0.5,
    freeze: str = "",
    quiet: Callable = no_sync,
    **options,
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The same on ranks. Parameters are put together again from the rows that the ranks of the group hold."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = shard_all(model_of(config, freeze), group=group, replicate=replicate, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        total = torch.zeros((), dtype=torch.float64)
        for m in range(MICRO):
            with nullcontext() if m == MICRO - 1 else quiet(model):
                loss = loss_of(model, batch(step, m, rank, config)) / MICRO
                loss.backward()
            total += loss.detach()
        replicated = parts(model)
        clip_grad_norm([], max_norm, parts=replicated)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total / n)
    return losses, whole_parameters(model, group)


def whole_parameters(model: nn.Module, group: dist.ProcessGroup | None = None) -> dict[str, Tensor]:
    found = {}
    for name, p in sharding(model).items():
        rows = [None] * dist.get_world_size(group)
        dist.all_gather_object(rows, p.shard.detach(), group=group)
        found[name] = torch.cat(rows)
    return found


def nothing(model: nn.Module):
    """Reduce after every micro-batch."""
    return nullcontext()
