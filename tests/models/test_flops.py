"""FLOPs per token against torch's counter, against the published formulas, and causal ones against a count by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib.models import GPT, GPTConfig, flops_per_token, parameter_count, sized


@pytest.mark.parametrize("config", [
    GPTConfig(vocab_size=19, dim=24, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=20, max_seq_len=16),
    GPTConfig(vocab_size=19, dim=24, n_layers=3, n_heads=4, n_kv_heads=4, ffn_dim=20, max_seq_len=16, tied=True),
])  # fmt: skip
def test_torch_counts_the_same_in_forward_and_backward(config):
    model = GPT(config)
    tokens = torch.randint(19, (2, 16))
    # Not the fused attention, whose backward makes the scores a second time.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert counter.get_total_flops() == flops_per_token(config, seq_len=16) * tokens.numel()


def test_it_is_the_formula_of_palm():
    """6N + 12LHQT; N without the parameters that multiply nothing: a table that is looked up, and the norms."""
    config = sized("7b")
    n = parameter_count(config) - 32_000 * 4096 - (2 * 32 + 1) * 4096
    assert flops_per_token(config, 2048) == 6 * n + 12 * 32 * 32 * 128 * 2048


def test_it_is_the_formula_of_megatron_without_its_recomputation():
    """72 B S l h^2 (1 + S / 6h + V / 12lh), for a feed-forward of 8 h^2 parameters."""
    h, layers, s, v = 96, 5, 40, 1000
    config = GPTConfig(v, h, layers, n_heads=4, n_kv_heads=4, ffn_dim=8 * h // 3, max_seq_len=s)
    assert flops_per_token(config, s) == pytest.approx(72 * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h)))


def test_causal_counts_the_keys_that_are_seen():
    config = sized("tiny")
    for seq_len in (1, 2, 7, 128):
        both = [flops_per_token(config, seq_len, causal) * seq_len for causal in (False, True)]
        unseen = sum(key > query for query in range(seq_len) for key in range(seq_len))
        assert both[0] - both[1] == 12 * config.n_layers * config.dim * unseen
