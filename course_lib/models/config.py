"""The shape of a GPT: frozen dataclasses that say at once what does not fit, and its number of parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MoEConfig:
    """The experts of each layer, which take the feed-forward's place. ValueError, in one sentence, if they do not fit.

    n_experts: in each layer; each token is computed by top_k of them.    expert_dim: width inside each.
    shared_dim: width of an expert that computes all tokens besides; 0: there is none.
    scores: "softmax" of the router's logits over all experts, or the "sigmoid" of each.
    renormalize: divide the scores of a token's chosen experts by their sum. Over one expert that would be 1, whatever
        the router says: with top_k = 1 it must be False.
    capacity_factor: an expert takes at most ceil(S * top_k / n_experts * capacity_factor) of the S tokens of each
        sequence; None: all that come ("dropless").
    drop: whom a full expert takes: the first by "position", or those of the highest score, by "probability".
    biased: the router has a bias for each expert, which is added to its scores to choose, not to weigh.
    groups, top_groups: experts stand in so many groups of one size, and a token chooses among those of the top_groups
        best groups only.
    jitter: in training, the router's input is multiplied by random numbers between 1 - jitter and 1 + jitter.
    """

    n_experts: int
    top_k: int
    expert_dim: int
    shared_dim: int = 0
    scores: str = "softmax"
    renormalize: bool = True
    capacity_factor: float | None = None
    drop: str = "position"
    biased: bool = False
    groups: int = 1
    top_groups: int = 1
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("n_experts", 1), ("top_k", 1), ("expert_dim", 1), ("shared_dim", 0), ("groups", 1)):
            _whole(name, getattr(self, name), least)
        if self.scores not in ("softmax", "sigmoid") or self.drop not in ("position", "probability"):
            raise ValueError(f"scores is {self.scores!r} and must be 'softmax' or 'sigmoid'; drop is {self.drop!r} and "
                             "must be 'position' or 'probability'.")  # fmt: skip
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            raise ValueError(f"capacity_factor is {self.capacity_factor}; it must be above 0, or None to drop nothing.")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter is {self.jitter}; it must be at least 0 and below 1.")
        if self.top_k == 1 and self.renormalize:
            raise ValueError(
                "renormalize with top_k = 1 makes every weight 1, and the router learns nothing from the loss; give "
                "renormalize=False."
            )
        if self.n_experts % self.groups:
            raise ValueError(
                f"n_experts = {self.n_experts} cannot be cut into {self.groups} groups of one size; groups of "
                f"{_nearest(self.groups, self.n_experts)} would fit."
            )
        choice = self.n_experts // self.groups * self.top_groups
        if not 1 <= self.top_groups <= self.groups or self.top_k > choice:
            raise ValueError(
                f"top_k = {self.top_k} of the {choice} experts in {self.top_groups} of {self.groups} groups is not "
                f"possible; top_groups goes from 1 to {self.groups}, and top_k to the experts in them."
            )


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT (Llama's form of it). ValueError, in one sentence, if the numbers do not fit together.

    vocab_size: token numbers 0 .. vocab_size - 1.    dim: width of the residual stream.
    n_heads: query heads, of dim / n_heads each.      n_kv_heads: key and value heads, shared by n_heads / n_kv_heads
    ffn_dim: width inside the feed-forward.               query heads each; n_heads of them: plain multi-head attention.
    max_seq_len: the longest sequence.                tied: whether the head's matrix is the embedding's.
    rope_theta: base of the rotary wavelengths.       norm_eps: added to the mean square in RMSNorm.
    moe: experts in every layer, in place of a feed-forward; ffn_dim says nothing then.
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
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "max_seq_len"):
            _whole(name, getattr(self, name), 1)
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
    norms = 2 * c.n_layers * c.dim + c.dim
    vocabulary = c.vocab_size * c.dim
    experts = c.moe.n_experts if c.moe else 0
    return c.n_layers * layer_matrices(c, experts) + norms + vocabulary * (1 if c.tied else 2)


def active_parameter_count(config: GPTConfig) -> int:
    """How many parameters take part in one token: all, but for the experts of each layer that it did not choose.

    This is the number behind names as "30B-A3B". The embedding counts whole, as it does in `parameter_count`.
    """
    if not config.moe:
        return parameter_count(config)
    idle = config.moe.n_experts - config.moe.top_k
    return parameter_count(config) - config.n_layers * idle * 3 * config.dim * config.moe.expert_dim


def layer_matrices(config: GPTConfig, experts: int) -> int:
    """The parameters of one layer's matrices, of whose experts `experts` count: all norms and tables left out."""
    c = config
    attention = 2 * c.dim * c.dim + 2 * c.dim * c.n_kv_heads * c.head_dim  # query and out, key and value
    if not c.moe:
        return attention + 3 * c.dim * c.ffn_dim  # gate, up, down
    return attention + c.moe.n_experts * c.dim + 3 * c.dim * (experts * c.moe.expert_dim + c.moe.shared_dim)


def _whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}.")


def _nearest(number: int, multiple: int) -> str:
    """The divisors of `multiple` nearest to `number`, in words."""
    divisors = [n for n in range(1, multiple + 1) if multiple % n == 0]
    return " or ".join(map(str, sorted(sorted(divisors, key=lambda n: abs(n - number))[:2])))
