"""Named sizes: their exact counts against models built on the meta device; shapes that do not fit are told."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.models import GPT, SIZES, GPTConfig, parameter_count, sized
from course_lib.models.sizes import PARAMETERS


def built(config):
    with torch.device("meta"):
        return GPT(config)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_the_parameters_that_the_table_says(name):
    assert sum(p.numel() for p in built(SIZES[name]).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name, about", [("tiny", 1e6), ("small", 10e6), ("124m", 124e6), ("350m", 350e6)])
def test_a_size_is_as_large_as_its_name(name, about):
    assert PARAMETERS[name] == pytest.approx(about, rel=0.06)


def test_published_models_have_their_published_counts():
    """From the model cards of Llama 3.2 1B and 3B, Llama 2 7B and SOLAR 10.7B."""
    published = {"1b": 1_235_814_400, "3b": 3_212_749_824, "7b": 6_738_415_616, "10b": 10_731_524_096}
    assert {name: PARAMETERS[name] for name in published} == published


def test_the_table_is_complete():
    assert list(PARAMETERS) == list(SIZES)


@given(
    st.builds(
        lambda vocab, heads, shared, pairs, layers, ffn, tied: GPTConfig(
            vocab, heads * shared * pairs * 2, layers, heads * shared, heads, ffn, max_seq_len=8, tied=tied
        ),
        *[st.integers(1, 5)] * 6,
        st.booleans(),
    )
)
def test_the_formula_is_exact_for_any_shape(config):
    assert parameter_count(config) == sum(p.numel() for p in built(config).parameters())


def test_a_size_with_changes():
    assert sized("tiny") == SIZES["tiny"]
    changed = sized("small", vocab_size=1000, n_layers=2)
    assert (changed.vocab_size, changed.n_layers, changed.dim) == (1000, 2, SIZES["small"].dim)
    assert SIZES["small"].n_layers == 6


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("tinny", {}, "There is no size 'tinny'. Did you mean tiny? There are tiny, small, 124m, 350m, 1b, 3b, 7b,"),
        ("350M", {}, "There is no size '350M'. Did you mean 350m"),
        ("huge", {}, "There is no size 'huge'. There are tiny, "),
        ("tiny", {"layers": 3}, "There is no field of GPTConfig 'layers'. Did you mean n_layers"),
        ("tiny", {"n_heads": 3}, "cannot be cut into n_heads = 3 heads of an even size; n_heads of 2 or 4 would fit."),
        ("tiny", {"n_heads": 128}, "n_heads of 32 or 64 would fit."),
        ("tiny", {"dim": 129}, "dim is 129; it must be even"),
        ("tiny", {"n_kv_heads": 3}, "n_heads = 4 cannot be shared out over n_kv_heads = 3; n_kv_heads of 2 or 4"),
        ("tiny", {"n_kv_heads": 8}, "shared out over n_kv_heads = 8; n_kv_heads of 2 or 4 would fit."),
        ("tiny", {"n_layers": 0}, "n_layers is 0; it must be a whole number of at least 1."),
        ("tiny", {"vocab_size": 257.0}, "vocab_size is 257.0; it must be a whole number of at least 1."),
        ("tiny", {"rope_theta": 0.0}, "rope_theta is 0.0"),
        ("tiny", {"norm_eps": -1e-5}, "norm_eps is -1e-05"),
        ("tiny", {"norm_eps": float("nan")}, "norm_eps is nan"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(name, changes, message):
    with pytest.raises(ValueError) as error:
        sized(name, **changes)
    assert message in str(error.value)
