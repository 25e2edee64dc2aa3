"""How many floating point operations a model's mathematics takes: what MFU is measured against."""

from __future__ import annotations

from course_lib.models.config import GPTConfig, layer_matrices


def flops_per_token(config: GPTConfig, seq_len: int, causal: bool = False) -> int:
    """Operations of forward and backward for one token of a sequence of `seq_len`; an add and a multiply are two.

    6 * (parameters in matrix products) + 12 * n_layers * dim * seq_len, the formula of PaLM's appendix B (Chowdhery et
    al. 2022, arXiv 2204.02311). Megatron-LM counts the same (Narayanan et al., SC21, arXiv 2104.04473, appendix), with
    the recomputed forward on top, which MFU leaves out.

    6: a parameter multiplies and adds once in forward (2), and in backward once for the gradient of the input (2) and
    once for its own (2). The head counts, tied or not; looking up an embedding, the norms and the rotations do not.
    12: scores and mixed values take 2 * dim operations each for every key, and backward twice as many.
    causal=False counts the upper half of the scores too, as both papers do; with True a token counts the keys it sees,
    (seq_len + 1) / 2 on average, which is what a fused kernel computes. Say which one with every MFU you report.
    Of experts, top_k count: what a token costs where none is dropped. The router counts too.
    """
    c = config
    parameters = c.n_layers * layer_matrices(c, c.moe.top_k if c.moe else 0) + c.vocab_size * c.dim
    keys_twice = seq_len + 1 if causal else 2 * seq_len
    return 6 * parameters + 6 * c.n_layers * c.dim * keys_twice
