"""Parameters and FLOPs of a model with experts, counted and published; its initial values."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from moe_cases import DENSE, MOE, with_experts
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib.models import (
    GPT,
    GPTConfig,
    MoEConfig,
    active_parameter_count,
    flops_per_token,
    initial_value,
    parameter_count,
    sized,
)
from course_lib.models.moe import MoE


def shapes():
    return st.builds(
        lambda experts, k, width, shared, layers, tied: GPTConfig(
            11, 8, layers, 2, 1, 5, 8, tied, moe=MoEConfig(experts, min(k, experts), width, shared, renormalize=False)
        ),
        *[st.integers(1, 5)] * 3, st.integers(0, 3), st.integers(1, 3), st.booleans(),
    )  # fmt: skip


@given(shapes())
def test_the_counts_are_exact_for_any_shape(config):
    with torch.device("meta"):
        model = GPT(config)
        chosen_only = GPT(with_experts(MoEConfig(config.moe.top_k, config.moe.top_k, config.moe.expert_dim,
                                                 config.moe.shared_dim, renormalize=False),
                                       **{k: v for k, v in vars(config).items() if k != "moe"}))  # fmt: skip
    total = sum(p.numel() for p in model.parameters())
    assert parameter_count(config) == total
    idle_router = config.n_layers * (config.moe.n_experts - config.moe.top_k) * config.dim
    assert active_parameter_count(config) == sum(p.numel() for p in chosen_only.parameters()) + idle_router


def test_a_dense_model_is_active_throughout():
    assert active_parameter_count(DENSE) == parameter_count(DENSE)


def test_published_models_have_their_published_counts():
    """Mixtral 8x7B (arXiv 2401.04088): 46.7B parameters, of which a token uses 12.9B."""
    mixtral = GPTConfig(32_000, 4096, 32, 32, 8, 14_336, 32_768, moe=MoEConfig(8, 2, 14_336))
    assert parameter_count(mixtral) == 46_702_792_704
    assert active_parameter_count(mixtral) == pytest.approx(12.9e9, rel=0.002)


@pytest.mark.parametrize("moe", [MOE, MoEConfig(6, 1, 10, 7, renormalize=False), MoEConfig(4, 4, 10)])
def test_torch_counts_the_same_flops(moe):
    model = GPT(with_experts(moe)).double()  # float64: torch's counter does not know the call for all experts
    tokens = torch.randint(19, (2, 16))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert counter.get_total_flops() == flops_per_token(model.config, seq_len=16) * tokens.numel()


def test_work_grows_with_the_chosen_and_not_with_all():
    few, many = (with_experts(MoEConfig(n, 2, 10)) for n in (4, 64))
    router = 6 * DENSE.n_layers * 60 * DENSE.dim
    assert flops_per_token(many, 16) - flops_per_token(few, 16) == router
    assert parameter_count(many) > 5 * parameter_count(few)


def test_the_narrow_ones_are_those_that_write_into_the_stream():
    config = with_experts(MoEConfig(6, 2, 40, 40), dim=96, n_heads=4)
    wide = (2 / (5 * 96)) ** 0.5
    for name, p in GPT(config).named_parameters():
        if "norm" not in name:
            expected = wide / 2 if "down" in name or ".out." in name else wide
            assert p.std().item() == pytest.approx(expected, rel=0.1), name
    value = initial_value("layers.1.ffn.experts.up", (6, 40, 96), config, seed=0)
    assert torch.equal(value, GPT(config).layers[1].ffn.experts.up.detach())
    assert all(not torch.equal(value[0], value[e]) for e in range(1, 6))


def test_a_named_size_takes_experts():
    model = GPT(sized("tiny", n_layers=1, moe=MOE))
    assert isinstance(model.layers[0].ffn, MoE)
    assert model(torch.arange(8)[None]).shape == (1, 8, 257)
