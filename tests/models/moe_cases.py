"""A small dense model, and experts for it."""

from course_lib.models import GPTConfig, MoEConfig

DENSE = GPTConfig(vocab_size=19, dim=12, n_layers=2, n_heads=3, n_kv_heads=1, ffn_dim=20, max_seq_len=16)
MOE = MoEConfig(n_experts=6, top_k=2, expert_dim=10)


def with_experts(moe, **changes):
    return GPTConfig(**{**vars(DENSE), "moe": moe, **changes})
