"""The loss scale against torch's GradScaler in lockstep, the step against one process, and agreement of all ranks."""

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import Parameter

from course_lib import spmd
from course_lib.training.clip import Part
from course_lib.training.precision import LossScale, autocast, scaled_step, take_step

MAX_NORM = 0.5
INTERVAL = 3


def new_model():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def batch(step):
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(step))


# At which steps a gradient overflows, and how.
TROUBLE = {2: math.inf, 3: math.nan, 9: -math.inf, 10: math.inf}


def trained(step_of, scale_of):
    """Twelve steps. Of each: parameters and scale after it. step_of(model, optimizer) finds the gradients there."""
    model, optimizer = new_model()
    seen = []
    for step in range(12):
        optimizer.zero_grad()
        (model(batch(step)).square().mean() * scale_of()).backward()
        if step in TROUBLE:
            model[2].weight.grad[1, 2] = TROUBLE[step]
        step_of(model, optimizer)
        seen.append(([p.detach().clone() for p in model.parameters()], scale_of()))
    return seen


def in_lockstep():
    """With GradScaler, with scaled_step, with take_step; and what the last two said of each step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=INTERVAL)

    def theirs(model, optimizer):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()

    scaler.scale(torch.zeros(()))  # the scale exists from here on
    said = {"scaled_step": [], "take_step": []}
    taught, general = (LossScale(2.0**10, INTERVAL) for _ in range(2))

    def by_taught(model, optimizer):
        said["scaled_step"].append(bool(scaled_step(list(model.parameters()), optimizer, taught, MAX_NORM)))

    def by_general(model, optimizer):
        expected = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm() / general.value
        step = take_step(list(model.parameters()), optimizer, MAX_NORM, general)
        said["take_step"].append(step.taken)
        if step.taken:
            torch.testing.assert_close(step.norm, expected)

    expected = trained(theirs, scaler.get_scale)
    return expected, trained(by_taught, lambda: taught.value), trained(by_general, lambda: general.value), said


def test_in_lockstep_with_torchs_scaler():
    [(expected, taught, general, said)] = spmd.run(in_lockstep, ranks=1, show=False)
    assert len({scale for _, scale in expected}) >= 3, "the scale must grow and fall here, or nothing is shown"
    for name, seen in (("scaled_step", taught), ("take_step", general)):
        assert said[name] == [step not in TROUBLE for step in range(12)]
        assert [scale for _, scale in seen] == [scale for _, scale in expected]
        for (mine, _), (theirs, _) in zip(seen, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def overflow_on_one():
    """Each rank has gradients of its own, as shards are; now and then one of them overflows."""
    rank, n = dist.get_rank(), dist.get_world_size()
    seen = {}
    for name in ("scaled_step", "take_step", "take_step, a part"):
        p, scale = Parameter(torch.zeros(4)), LossScale(8.0, growth_interval=2)
        optimizer, steps = torch.optim.SGD([p], lr=1.0), []
        for step in range(6):
            p.grad = torch.full((4,), (rank + 1.0) * scale.value)
            if step == 1 and rank == n - 1 or step == 4 and rank == 0:
                p.grad[3] = math.inf if step == 1 else math.nan
            if name == "scaled_step":
                taken = scaled_step([p], optimizer, scale, 1e9)
            elif name == "take_step":
                taken = take_step([p], optimizer, 1e9, scale).taken
            else:
                taken = take_step([], optimizer, 1e9, scale, parts=[Part([p])]).taken
            steps.append((bool(taken), scale.value))
        seen[name] = steps, p.detach()
    return seen


@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_ranks_leave_the_same_steps_out_and_keep_one_scale(world):
    expected = [(True, 8.0), (False, 4.0), (True, 4.0), (True, 8.0), (False, 4.0), (True, 4.0)]
    for rank, seen in enumerate(spmd.run(overflow_on_one, ranks=world, show=False)):
        for steps, p in seen.values():
            assert steps == expected
            assert p.tolist() == [-4.0 * (rank + 1)] * 4


def a_rank_without_gradients():
    p = Parameter(torch.ones(2))
    if dist.get_rank() == 0:
        p.grad = torch.full((2,), 4.0)
    step = take_step([], torch.optim.SGD([p], lr=1.0), math.sqrt(2) / 2, LossScale(4.0), parts=[Part([p])])
    return step.taken, step.norm.item(), p.tolist()


def test_a_rank_may_have_no_gradients_and_parts_are_clipped_by_the_norm_of_the_whole():
    (taken, norm, stepped), others = spmd.run(a_rank_without_gradients, ranks=2, show=False)
    assert taken and norm == pytest.approx(math.sqrt(2)) and stepped == pytest.approx([0.5, 0.5])
    assert others == (True, norm, [1, 1])


def test_without_a_scale_a_step_is_clip_and_step():
    (model, optimizer), (plain, theirs) = new_model(), new_model()
    for some in (model, plain):
        some(batch(0)).square().mean().backward()
    step = take_step(list(model.parameters()), optimizer, 0.01)
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
    theirs.step()
    assert step.taken
    torch.testing.assert_close(step.norm, norm)
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))


@example([False] * 6, 2.0**126)
@given(st.lists(st.booleans(), max_size=30), st.sampled_from([1.0, 4.0, 2.0**126]))
def test_the_scale_stays_in_its_bounds_and_is_torchs_in_between(overflows, start):
    scale = LossScale(start, growth_interval=2)
    theirs, quiet = torch.tensor(start), torch.tensor(0, dtype=torch.int32)
    for overflow in overflows:
        scale.update(overflow)
        torch._amp_update_scale_(theirs, quiet, torch.tensor(float(overflow)), 2.0, 0.5, 2)
        theirs.clamp_(min=1.0)
        assert (scale.value, scale.quiet) == (theirs.item(), quiet.item())
        assert 1 <= scale.value < math.inf


def test_a_scale_comes_back_from_its_state():
    scale = LossScale(64.0, growth_interval=5)
    for overflow in (False, True, False, False):
        scale.update(overflow)
    back = LossScale(growth_interval=5, **scale.state_dict())
    assert back == scale and back.value == 32.0 and back.quiet == 2


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_products_run_in_the_precision_asked_for_and_gradients_stay_in_float32(precision, dtype):
    weight = Parameter(torch.randn(4, 4))
    with autocast(precision, "cpu"):
        product = torch.randn(2, 4) @ weight
        loss = F.cross_entropy(product.float(), torch.tensor([1, 2]))
    loss.backward()
    assert product.dtype == dtype and weight.grad.dtype == torch.float32


def test_an_unknown_precision_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no precision 'fp8': choose one of fp32, bf16, fp16"):
        autocast("fp8", "cpu")
