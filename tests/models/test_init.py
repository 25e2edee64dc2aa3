"""Initial values: the same whatever the device, the order, the layout or the process; drawn as the docstring says."""

import pytest
import torch

from course_lib.models import GPT, GPTConfig, init_weights, initial_value, sized

SMALL = GPTConfig(vocab_size=19, dim=24, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=20, max_seq_len=16)
TIED = GPTConfig(19, 24, 2, 4, 2, ffn_dim=20, max_seq_len=16, tied=True)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("config", [SMALL, TIED], ids=["free", "tied"])
def test_a_model_made_on_meta_gets_the_values_of_one_made_here(config):
    with torch.device("meta"):
        model = GPT(config)
    init_weights(model.to_empty(device="cpu"), seed=7)
    assert same(model, GPT(config, seed=7))


def test_values_do_not_depend_on_what_was_drawn_before():
    model = GPT(SMALL, seed=7)
    torch.manual_seed(123)
    torch.randn(5)
    init_weights(model, seed=7)
    assert same(model, GPT(SMALL, seed=7))


def test_values_do_not_depend_on_the_default_dtype_or_device():
    wanted = initial_value("layers.0.ffn.up.weight", (20, 24), SMALL, seed=7)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            drawn = initial_value("layers.0.ffn.up.weight", (20, 24), SMALL, seed=7)
            ones = initial_value("norm.weight", (24,), SMALL, seed=7)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(drawn, wanted)
    assert ones.dtype == drawn.dtype == torch.float32
    assert ones.device == drawn.device == torch.device("cpu")


def test_a_deeper_model_begins_as_the_shallower_one():
    """But for what writes into the stream, which is narrower."""
    shallow, deep = (GPT(sized("tiny", n_layers=n, dim=32, ffn_dim=8), seed=7).state_dict() for n in (1, 3))
    for name, value in shallow.items():
        ratio = 3**0.5 if "out" in name or "down" in name else 1
        torch.testing.assert_close(deep[name] * ratio, value)


def test_a_rank_with_a_part_of_the_model_draws_its_part():
    whole = GPT(SMALL, seed=7)
    part = GPT(SMALL, seed=8)
    part.layers = torch.nn.ModuleDict({"1": part.layers[1]})  # a pipeline stage keeps the names
    del part.embedding
    init_weights(part, seed=7)
    assert torch.equal(part.layers["1"].ffn.up.weight, whole.layers[1].ffn.up.weight)
    value = initial_value("layers.1.ffn.up.weight", (20, 24), SMALL, seed=7)
    assert torch.equal(value[5:10], whole.layers[1].ffn.up.weight[5:10])


def test_every_seed_and_every_parameter_has_its_own_values():
    model, other = GPT(SMALL, seed=7), GPT(SMALL, seed=8)
    matrices = [p.flatten()[:100] for m in (model, other) for name, p in m.named_parameters() if "norm" not in name]
    alike = torch.corrcoef(torch.stack(matrices)).abs() > 0.5
    assert torch.equal(alike, torch.eye(len(matrices), dtype=torch.bool))


def test_deviations_are_those_of_the_docstring():
    config = sized("tiny", n_layers=2)
    model = GPT(config)
    wide = (2 / (5 * 128)) ** 0.5
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == 1).all()
            continue
        wanted = wide / 2 if "out" in name or "down" in name else wide
        assert parameter.std().item() == pytest.approx(wanted, rel=0.03)
        assert abs(parameter.mean().item()) < 0.03 * wide


def test_the_first_loss_is_little_above_that_of_a_blind_guess():
    x = torch.randint(257, (2, 64))
    loss = torch.nn.functional.cross_entropy(GPT(sized("tiny"))(x).flatten(0, 1), x.roll(-1, 1).flatten())
    assert 0 < loss - torch.tensor(257.0).log() < 0.5


def test_frozen_parameters_and_other_dtypes_are_filled_too():
    model = GPT(SMALL, seed=1).bfloat16().requires_grad_(False)
    init_weights(model, seed=7)
    assert same(model, GPT(SMALL, seed=7).bfloat16())
    assert not any(p.requires_grad for p in model.parameters())


def test_values_are_the_same_in_every_process_and_version():
    """As they once were: another draw would begin every run anew, and part a resumed one from its record."""
    drawn = initial_value("head.weight", (2, 2), SMALL, seed=7)
    torch.testing.assert_close(
        drawn, torch.tensor([[-0.0264741, -0.1271364], [-0.0037048, 0.0165622]]), rtol=0, atol=1e-6
    )


def test_a_model_on_meta_is_refused():
    with torch.device("meta"):
        model = GPT(SMALL)
    with pytest.raises(RuntimeError, match="21 parameters are on the meta device and hold no values, embedding.weight"):
        init_weights(model, seed=0)
