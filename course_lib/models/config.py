"""The shape of a GPT: one frozen dataclass that says at once what does not fit, and its number of parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT (Llama's form of it). ValueError, in one sentence, if the numbers do not fit together.

    vocab_size: token numbers 0 .. vocab_size - 1.    dim: width of the residual stream.
    n_heads: query heads, of dim / n_heads each.      n_kv_heads: key and value heads, shared by n_heads / n_kv_heads
    ffn_dim: width inside the feed-forward.               query heads each; n_heads of them: plain multi-head attention.
    max_seq_len: the longest sequence.                tied: whether the head's matrix is the embedding's.
    rope_theta: base of the rotary wavelengths.       norm_eps: added to the mean square in RMSNorm.
    """

    vocab_size: int
    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    ffn_dim: int
    max_seq_len: int
    tied: bool = False
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "max_seq_len"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1.")
        if not self.rope_theta > 0 or not self.norm_eps >= 0:
            raise ValueError(f"rope_theta is {self.rope_theta} and must be above 0; norm_eps is {self.norm_eps} and "
                             "must not be negative.")  # fmt: skip
        if self.dim % 2:
            raise ValueError(f"dim is {self.dim}; it must be even, for rotary positions turn pairs of numbers.")
        if self.dim % (2 * self.n_heads):
            raise ValueError(
                f"dim {self.dim} cannot be cut into n_heads = {self.n_heads} heads of an even size; n_heads of "
                f"{_nearest(self.n_heads, self.dim // 2)} would fit."
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads = {self.n_heads} cannot be shared out over n_kv_heads = {self.n_kv_heads}; n_kv_heads of "
                f"{_nearest(self.n_kv_heads, self.n_heads)} would fit."
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads


def parameter_count(config: GPTConfig) -> int:
    """How many parameters GPT(config) has, exactly. A tied embedding counts once."""
    c = config
    attention = 2 * c.dim * c.dim + 2 * c.dim * c.n_kv_heads * c.head_dim  # query and out, key and value
    ffn = 3 * c.dim * c.ffn_dim  # gate, up, down
    norms = 2 * c.dim
    vocabulary = c.vocab_size * c.dim
    return c.n_layers * (attention + ffn + norms) + c.dim + vocabulary * (1 if c.tied else 2)


def _nearest(number: int, multiple: int) -> str:
    """The divisors of `multiple` nearest to `number`, in words."""
    divisors = [n for n in range(1, multiple + 1) if multiple % n == 0]
    return " or ".join(map(str, sorted(sorted(divisors, key=lambda n: abs(n - number))[:2])))
