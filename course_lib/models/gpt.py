"""A GPT in Llama's form: RMSNorm, rotary positions, grouped-query attention, SwiGLU. It knows nothing of parallelism.

Shape suffixes: B batch, S sequence, D dim, H query heads, G key and value heads, E head dim, F ffn dim, V vocabulary.
Heads are counted from the tensors, not from the config, so that a layer may hold some of the heads only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.models.config import GPTConfig
from course_lib.models.init import init_weights
from course_lib.models.layers import Embedding, FeedForward, Linear
from course_lib.models.moe import MoE


class GPT(nn.Module):
    """Tokens in, logits out. Its parameters are all there is to send, shard or save: it has no buffers, but for the
    bias of routers that have one (`moe.py`).

    GPT(config, seed) is ready to train. Built under `torch.device("meta")` it holds no values: call
    `to_empty(device=...)`, then `init_weights(model, seed)`, and it has the same.
    """

    def __init__(self, config: GPTConfig, seed: int = 0):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.head = Linear(config.dim, config.vocab_size)
        self._tie()
        if not self.head.weight.is_meta:
            init_weights(self, seed)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """tokens (B, S) int64 -> logits (B, S, V). ValueError if S is above config.max_seq_len.

        documents (B, S) int: a run of equal numbers is a document. Tokens attend within their own document only, and
        its positions count from 0, so that each document has the logits it would have alone. Without it, a row is one
        document, and attention takes its faster path without a mask.
        """
        S = tokens.shape[1]
        if self.config.max_seq_len < S:
            raise ValueError(f"A sequence of {S} tokens is too long: max_seq_len is {self.config.max_seq_len}.")
        x_BSD = self.embedding(tokens)
        if documents is None:
            positions, mask = torch.arange(S, device=tokens.device), None
        else:
            positions, mask = positions_and_mask(documents)
        turns = rotations(positions, self.config, x_BSD.dtype)
        for layer in self.layers:
            x_BSD = layer(x_BSD, turns, mask)
        return self.head(self.norm(x_BSD))

    def _tie(self) -> None:
        if self.config.tied:
            self.head.weight = self.embedding.weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GPT:
        # Module.to_empty gives each module a parameter of its own, and would untie the two without a word.
        super()._apply(fn, recurse)
        self._tie()
        return self


class Block(nn.Module):
    """Attention, then feed-forward or experts; each reads the normalised stream and adds to it."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.ffn = MoE(config) if config.moe else FeedForward(config.dim, config.ffn_dim)

    def forward(self, x_BSD: Tensor, turns: Turns, mask: Tensor | None) -> Tensor:
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), turns, mask)
        return x_BSD + self.ffn(self.ffn_norm(x_BSD))


class Attention(nn.Module):
    """Causal self-attention with rotary positions; each key and value head serves H / G query heads."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.head_dim = config.head_dim
        self.query = Linear(config.dim, config.n_heads * config.head_dim)
        self.key = Linear(config.dim, config.n_kv_heads * config.head_dim)
        self.value = Linear(config.dim, config.n_kv_heads * config.head_dim)
        self.core = AttentionCore()
        self.out = Linear(config.n_heads * config.head_dim, config.dim)

    def forward(self, x_BSD: Tensor, turns: Turns, mask: Tensor | None) -> Tensor:
        q_BSHE = rotate(self.query(x_BSD).unflatten(-1, (-1, self.head_dim)), turns)
        k_BSGE = rotate(self.key(x_BSD).unflatten(-1, (-1, self.head_dim)), turns)
        v_BSGE = self.value(x_BSD).unflatten(-1, (-1, self.head_dim))
        mixed_BHSE = self.core(q_BSHE.transpose(1, 2), k_BSGE.transpose(1, 2), v_BSGE.transpose(1, 2), mask)
        return self.out(mixed_BHSE.transpose(1, 2).flatten(2))


class AttentionCore(nn.Module):
    """softmax(q k / sqrt(E)) v: the part of attention without parameters, and the only one in which tokens meet."""

    def forward(self, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, mask: Tensor | None) -> Tensor:
        """mask (B, 1, S, S) bool: True where a query (row) sees a key (column); None: every key up to its own."""
        shared = q_BHSE.shape[1] // k_BGSE.shape[1]
        if mask is not None and shared > 1:
            # CUDA's fused kernel that takes a mask wants a key head for every query head.
            k_BGSE, v_BGSE = k_BGSE.repeat_interleave(shared, 1), v_BGSE.repeat_interleave(shared, 1)
            shared = 1
        return F.scaled_dot_product_attention(
            q_BHSE, k_BGSE, v_BGSE, attn_mask=mask, is_causal=mask is None, enable_gqa=shared > 1
        )


Turns = tuple[Tensor, Tensor]  # cos and sin, (S, 1, E/2) or (B, S, 1, E/2)


def rotations(positions: Tensor, config: GPTConfig, dtype: torch.dtype) -> Turns:
    """By how much to turn each pair of a head at each position, (S,) or (B, S): pair i by position * theta^(-2i/E).

    RoPE (Su et al. 2021, arXiv 2104.09864). The angles are worked out in float32 at least, whatever the model's dtype.
    """
    wide = torch.promote_types(dtype, torch.float32)
    pair = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=wide)
    angles = positions.to(wide)[..., None, None] * config.rope_theta ** (-pair / config.head_dim)
    return angles.cos(), angles.sin()


def rotate(x_BSHE: Tensor, turns: Turns) -> Tensor:
    """Turn the pairs (i, i + E/2) of every head. Then q . k depends on the distance of the two positions alone."""
    cos, sin = turns
    a, b = x_BSHE.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).type_as(x_BSHE)


def positions_and_mask(documents_BS: Tensor) -> tuple[Tensor, Tensor]:
    """The position of each token in its document, (B, S), and the mask (B, 1, S, S): same document, and not later."""
    here_S = torch.arange(documents_BS.shape[1], device=documents_BS.device)
    opens_BS = torch.ones_like(documents_BS, dtype=torch.bool)
    opens_BS[:, 1:] = documents_BS[:, 1:] != documents_BS[:, :-1]
    first_BS = torch.where(opens_BS, here_S, 0).cummax(dim=1).values  # where each token's document begins
    mask_BSS = (first_BS[:, :, None] <= here_S) & (here_S <= here_S[:, None])
    return here_S - first_BS, mask_BSS[:, None]
