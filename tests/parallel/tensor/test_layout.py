"""Who has which part of a parameter: the parts are the whole, heads stay whole, what cannot be cut is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.models import GPT, GPTConfig
from course_lib.parallel.tensor import simple
from course_lib.parallel.tensor.layout import Cut, cut_of, require_divides


@st.composite
def configs(draw):
    n = draw(st.integers(1, 6))
    kv_heads = draw(st.sampled_from([k for k in range(1, 13) if k % n == 0 or n % k == 0]))
    heads = kv_heads * draw(st.integers(1, 3)) * (n if kv_heads % n else 1)
    dim = 2 * heads * draw(st.integers(1, 2))
    config = GPTConfig(draw(st.integers(1, 40)), dim, 1, heads, kv_heads, n * draw(st.integers(1, 4)), 4)
    return config, n


@given(configs())
def test_parts_are_the_whole_and_each_rank_has_its_heads(drawn):
    config, n = drawn
    require_divides(config, n)
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in GPT(config).named_parameters()}
    kv = {}
    for name, shape in shapes.items():
        whole = torch.arange(shape.numel(), dtype=torch.float64).view(shape) + 1
        cuts = [cut_of(name, shape, config, rank, n) for rank in range(n)]
        if "norm" in name:
            assert cuts == [None] * n
            continue
        parts = [cut.of(whole) for cut in cuts]
        assert all(cut.whole_shape(part.shape) == shape for cut, part in zip(cuts, parts, strict=True))
        assert all(part.untyped_storage().nbytes() == part.nbytes for part in parts)
        counted = [part for cut, part in zip(cuts, parts, strict=True) if cut.first]
        joined = torch.cat(counted, cuts[0].dim)
        real, padding = joined.split([shape[cuts[0].dim], joined.shape[cuts[0].dim] - shape[cuts[0].dim]], cuts[0].dim)
        assert torch.equal(real, whole) and not padding.any()
        if name.endswith(("query.weight", "key.weight", "value.weight")):
            kv[name.split(".")[-2]] = (whole, parts)
    fused = torch.cat([kv[kind][0] for kind in ("query", "key", "value")])
    for rank in range(n):
        mine = torch.cat([kv[kind][1][rank] for kind in ("query", "key", "value")])
        assert torch.equal(mine, simple.qkv_rows(fused, config.n_heads, config.n_kv_heads, rank, n))


@pytest.mark.parametrize(
    ("size", "parts", "expected"), [(5, 4, [[0, 1], [2, 3], [4, -1], [-1, -1]]), (4, 2, [[0, 1], [2, 3]])]
)
def test_padding(size, parts, expected):
    """On the first dim and on the last; -1 stands for a zero of the padding."""
    for dim in (0, 1):
        whole = torch.arange(size) + 1
        whole = whole[:, None].expand(size, 3) if dim == 0 else whole.expand(3, size)
        for part, values in enumerate(expected):
            found = Cut(dim, size, part, parts).of(whole) - 1
            assert torch.equal(
                found, torch.tensor(values)[:, None].expand(2, 3) if dim == 0 else torch.tensor(values).expand(3, 2)
            )


@pytest.mark.parametrize(
    ("changes", "n", "message"),
    [
        (
            {"n_heads": 6, "n_kv_heads": 6},
            4,
            "6 query heads cannot be shared out over 4 ranks: n_heads = 8 would do on 4 ranks, and 6 on 1 or 2 or 3",
        ),
        (
            {"ffn_dim": 10},
            4,
            "10 columns of the feed-forward cannot be shared out over 4 ranks: ffn_dim = 12 would do on 4 ranks, and "
            "10 on 1 or 2",
        ),
        (
            {"n_kv_heads": 6},
            4,
            "6 key and value heads cannot be shared out over 4 ranks: n_kv_heads must be a multiple of 4, or 4 a "
            "multiple of it, so that ranks share one",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(changes, n, message):
    config = GPTConfig(**{"vocab_size": 7, "dim": 48, "n_layers": 1, "n_heads": 12, "n_kv_heads": 12, "ffn_dim": 12,
                          "max_seq_len": 4} | changes)  # fmt: skip
    with pytest.raises(ValueError) as refused:
        require_divides(config, n)
    assert str(refused.value) == message
