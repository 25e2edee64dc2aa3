"""The norm rule: torch's own on the unsharded gradient, however that is spread. In float64."""

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from course_lib import spmd
from course_lib.training.clip import Part, clip_grad_norm, grad_norm, scale_gradients

WORLDS = [1, 2, 3, 4]
NORMS = [1.0, 2.0, 3.0, math.inf]


def with_gradient(gradient):
    p = Parameter(torch.zeros_like(gradient))
    p.grad = gradient.clone()
    return p


def random(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ---- spread over ranks

DENSE = [(5, 3), (7,)]  # replicated
SHARDED = [(11, 2), (3, 4), (1,)]  # cut along dim 0: sizes that do not divide, and a rank that holds nothing
EXPERTS = [(4, 4), (3, 2), (2, 2)]  # expert i lives on rank i % 2 of a pair of ranks


def gradients(shapes, seed):
    return [random(seed + i, *shape) for i, shape in enumerate(shapes)]


def whole():
    """All gradients, unsharded."""
    return gradients(DENSE, 0) + gradients(SHARDED, 10) + gradients(EXPERTS, 20)


def pairs():
    """The group of ranks (0, 1), (2, 3), ... that this rank is in, and its rank in there; made by all ranks."""
    rank, n = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(start, min(start + 2, n)))) for start in range(0, n, 2)]
    return groups[rank // 2], rank % 2


def spread(norm_type, max_norm, pair):
    """(norm, {index in whole(): (first row, this rank's clipped gradient)})."""
    rank, n = dist.get_rank(), dist.get_world_size()
    group, place = pair
    dense = [with_gradient(g) for g in gradients(DENSE, 0)]
    cut = [torch.tensor_split(g, n)[rank] for g in gradients(SHARDED, 10)]
    shards = [with_gradient(g) for g in cut]
    own = [i for i in range(len(EXPERTS)) if i % dist.get_world_size(group) == place]
    experts = [with_gradient(gradients(EXPERTS, 20)[i]) for i in own]
    parts = [Part(shards), Part(experts, group)]
    norm = clip_grad_norm([*dense, dense[0]], max_norm, norm_type, parts)
    return norm, [p.grad for p in dense], [p.grad for p in shards], [p.grad for p in experts]


def run_all_cases():
    pair, rank, n = pairs(), dist.get_rank(), dist.get_world_size()
    wrong = []
    for norm_type in NORMS:
        for max_norm in (0.5, 1e6):
            plain = [with_gradient(g) for g in whole()]
            expected = torch.nn.utils.clip_grad_norm_(plain, max_norm, norm_type)
            clipped = [p.grad for p in plain]
            norm, dense, shards, experts = spread(norm_type, max_norm, pair)
            cut = [torch.tensor_split(g, n)[rank] for g in clipped[2:5]]
            own = [g for i, g in enumerate(clipped[5:]) if i % dist.get_world_size(pair[0]) == pair[1]]
            wanted = [*clipped[:2], *cut, *own]
            try:
                torch.testing.assert_close(norm, expected, rtol=1e-10, atol=1e-10)
                torch.testing.assert_close([*dense, *shards, *experts], wanted, rtol=1e-10, atol=1e-10)
            except AssertionError as error:
                wrong.append(f"p = {norm_type}, max_norm = {max_norm}, rank {rank} of {n}: {error}")
    return wrong


@pytest.mark.parametrize("world", WORLDS)
def test_spread_over_groups_it_is_torchs_on_the_whole(world):
    assert spmd.run(run_all_cases, ranks=world, show=False) == [[]] * world


def with_empty_lists():
    """Rank 0 has a dense part only, the others experts only; then nobody has anything."""
    rank = dist.get_rank()
    mine = [with_gradient(torch.full((4,), float(rank + 1)))]
    dense, experts = (mine, []) if rank == 0 else ([], mine)
    both = clip_grad_norm([], 1e6, parts=[Part(dense), Part(experts)])
    return both.item(), clip_grad_norm([], 1.0, parts=[Part([]), Part([])]).item()


def test_a_rank_may_hold_nothing_of_a_part():
    assert spmd.run(with_empty_lists, ranks=3, show=False) == [(pytest.approx(math.sqrt(4 + 16 + 36)), 0.0)] * 3


def tied_over_stages():
    """First and last stage hold the same weight, with the same gradient: counted on the first, scaled on both."""
    rank = dist.get_rank()
    tied, own = with_gradient(random(1, 4, 3)), with_gradient(random(2 + rank, 5))
    norm = grad_norm([], parts=[Part([tied, own] if rank == 0 else [own])])
    scale_gradients([tied, own], 0.1, norm)
    plain = [with_gradient(g) for g in (random(1, 4, 3), random(2, 5), random(3, 5))]
    expected = torch.nn.utils.clip_grad_norm_(plain, 0.1)
    torch.testing.assert_close(norm, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close([tied.grad, own.grad], [plain[0].grad, plain[1 + rank].grad], rtol=1e-10, atol=1e-10)


def test_a_tied_copy_on_another_rank_is_scaled_and_not_counted():
    spmd.run(tied_over_stages, ranks=2, show=False)


def one_bad_rank():
    rank = dist.get_rank()
    p = with_gradient(torch.tensor([1.0, math.inf if rank == 1 else 2.0, math.nan if rank == 1 else 3.0]))
    bias, parts = with_gradient(torch.ones(2)), [Part([("expert", p)])]
    try:
        clip_grad_norm([("bias", bias)], 1.0, parts=parts, error_if_nonfinite=True)
    except RuntimeError as error:
        return str(error), p.grad[0].item()


def test_a_gradient_that_is_not_finite_is_an_error_on_all_ranks_and_named_on_its_own():
    clean, bad, _ = spmd.run(one_bad_rank, ranks=3, show=False)
    assert bad[0] == (
        "the norm of the gradients is nan, so they cannot be clipped: 2 elements of the gradient of parameter expert, "
        "of shape (3,), are infinite or NaN"
    )
    assert clean[0].endswith("of this rank are finite, so one of another rank is not, or the norm overflows")
    assert bad[1] == clean[1] == 1.0


# ---- on one rank

@given(
    st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), max_size=4),
    st.sampled_from(NORMS),
    st.sampled_from([1e-3, 1.0, 1e9, math.inf]),
)
def test_unsharded_it_is_torchs(rows, norm_type, max_norm):
    ours = [with_gradient(torch.tensor(row, dtype=torch.float64)) for row in rows]
    theirs = [with_gradient(p.grad) for p in ours if p.numel()]  # torch refuses the largest element of nothing
    norm = clip_grad_norm(ours, max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    torch.testing.assert_close(norm.double(), expected.double(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close([p.grad for p in ours if p.numel()], [p.grad for p in theirs], rtol=1e-10, atol=1e-10)


def test_a_tied_parameter_counts_and_is_scaled_once():
    p = with_gradient(torch.tensor([3.0, 4.0]))
    assert clip_grad_norm([p, p, ("again", p)], 1.0) == 5
    torch.testing.assert_close(p.grad.norm(), torch.tensor(1.0))


def test_frozen_and_unused_parameters_are_passed_over():
    frozen, unused = Parameter(torch.ones(3), requires_grad=False), Parameter(torch.ones(3))
    used = with_gradient(torch.ones(4))
    assert clip_grad_norm([frozen, unused, used], 10.0) == 2
    assert unused.grad is None


def test_many_small_bf16_gradients_are_measured_in_float32():
    mine = [with_gradient(torch.full((10,), 0.1, dtype=torch.bfloat16)) for _ in range(1000)]
    exact = torch.tensor(0.1, dtype=torch.bfloat16).double() * 100
    norm = grad_norm([*mine, with_gradient(torch.zeros(3))])
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm.double(), exact, rtol=1e-6, atol=0)


def test_parts_whose_squares_leave_float32_have_a_norm_all_the_same():
    def huge():
        return grad_norm([], parts=[Part([with_gradient(torch.tensor([1.5e19]))])]).item()  # squared: 2.25e38, twice

    assert spmd.run(huge, ranks=2, show=False)[0] == pytest.approx(1.5e19 * math.sqrt(2), rel=1e-6)


def test_a_gradient_that_is_not_finite_is_named():
    good, bad = with_gradient(torch.ones(2)), with_gradient(torch.tensor([[1.0, -math.inf]]))
    with pytest.raises(RuntimeError, match=r"is inf, .*: 1 elements .* of parameter number 1, of shape \(1, 2\)"):
        clip_grad_norm([good, bad], 1.0, error_if_nonfinite=True)
    assert good.grad.tolist() == [1, 1]


def test_nothing_is_read_back_to_the_host():
    with FakeTensorMode():  # reading a fake tensor's value is an error
        p = Parameter(torch.zeros(3, 2))
        p.grad = torch.ones(3, 2)
        half = Parameter(torch.zeros(3, dtype=torch.bfloat16))
        half.grad = torch.ones(3, dtype=torch.bfloat16)
        norm = clip_grad_norm([p, half], 1.0)
        with pytest.raises(Exception, match="aten._local_scalar_dense"):
            norm.item()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_norm": 0.0}, "max_norm must be above 0, not 0.0"),
        ({"max_norm": math.nan}, "max_norm must be above 0, not nan"),
        ({"max_norm": 1.0, "norm_type": -1.0}, "norm_type must be above 0 .* not -1.0"),
    ],
)
def test_bad_input_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        clip_grad_norm([with_gradient(torch.ones(2))], **arguments)


def test_a_parameter_that_is_replicated_and_a_part_is_refused():
    p = with_gradient(torch.ones(2))
    with pytest.raises(ValueError, match="stands in two lists"):
        grad_norm([p], parts=[Part([p])])
