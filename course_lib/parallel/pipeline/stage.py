"""Cutting a GPT into stages: which layers each gets, and a stage as a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from course_lib.models.config import GPTConfig
from course_lib.models.gpt import Block, Embedding, Linear, positions_and_mask, rotations
from course_lib.models.init import init_weights, initial_value


def balance(costs: Sequence[float], n_stages: int, first: float = 0, last: float = 0) -> list[range]:
    """Cut layers of these costs into stages, neighbours together, such that the slowest stage is as fast as can be.

    first, last: what the first and last stage do besides (embedding; head and loss), in the same unit. Every stage gets
    one layer at least. The slowest stage sets the pace of the whole pipeline. ValueError for more stages than layers.
    """
    n = len(costs)
    if not 1 <= n_stages <= n:
        raise ValueError(f"{n} layers cannot be cut into {n_stages} stages: 1 to {n} would do, a layer each at least")
    total = [0, *accumulate(costs)]

    def cost(stage: int, start: int, end: int) -> float:
        return total[end] - total[start] + (first if stage == 0 else 0) + (last if stage == n_stages - 1 else 0)

    # best[e]: the slowest stage, and where each begins, when the stages so far hold the layers up to e.
    best = {end: (cost(0, 0, end), [0]) for end in range(1, n + 1)}
    for stage in range(1, n_stages):
        best = {
            end: min((max(best[at][0], cost(stage, at, end)), [*best[at][1], at]) for at in range(stage, end))
            for end in range(stage + 1, n + 1)
        }
    starts = best[n][1]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], n], strict=True)]


class GPTStage(nn.Module):
    """Some layers of GPT(config); the first stage has the embedding too, the last one the final norm and the head.

    layers: a part of range(config.n_layers). Parameters have the names and the initial values of the whole model's, so
    that a checkpoint of it loads with `strict=False`, and a stage is the same however many there are. Under
    `torch.device("meta")` it has no values: `to_empty(device=...)`, then `init_stage(stage, seed)`.

    A tied head that stands on another rank than the embedding is a copy of it, with the same initial value;
    `TiedWeight` keeps the two equal.
    """

    def __init__(self, config: GPTConfig, layers: range, seed: int = 0):
        super().__init__()
        self.config = config
        self.first, self.last = layers.start == 0, layers.stop == config.n_layers
        if self.first:
            self.embedding = Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleDict({str(i): Block(config) for i in layers})
        if self.last:
            self.norm = nn.RMSNorm(config.dim, config.norm_eps)
            self.head = Linear(config.dim, config.vocab_size)
        self._tie()
        if not next(self.layers.parameters()).is_meta:
            init_stage(self, seed)

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x: tokens (B, S) int64 on the first stage, else the stream (B, S, D) of the stage before.

        Returns the stream, on the last stage the logits (B, S, V). documents (B, S), as GPT takes them, are handed on
        to the next stage: then it returns both.
        """
        x_BSD = self.embedding(x) if self.first else x
        if documents is None:
            positions, mask = torch.arange(x.shape[1], device=x.device), None
        else:
            positions, mask = positions_and_mask(documents)
        turns = rotations(positions, self.config, x_BSD.dtype)
        for layer in self.layers.values():
            x_BSD = layer(x_BSD, turns, mask)
        if self.last:
            return self.head(self.norm(x_BSD))
        return x_BSD if documents is None else (x_BSD, documents)

    def _tie(self) -> None:
        if self.config.tied and self.first and self.last:
            self.head.weight = self.embedding.weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GPTStage:
        # As in GPT: Module.to_empty would untie the two without a word.
        super()._apply(fn, recurse)
        self._tie()
        return self


def init_stage(stage: GPTStage, seed: int) -> None:
    """Give the stage's parameters the values they have in GPT(config, seed), in place."""
    init_weights(stage, seed)
    if stage.config.tied and stage.last:
        with torch.no_grad():
            weight = stage.head.weight
            weight.copy_(initial_value("embedding.weight", weight.shape, stage.config, seed))
