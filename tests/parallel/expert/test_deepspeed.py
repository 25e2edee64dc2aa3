"""DeepSpeed's MoE layer, on the same ranks with the same weights: output, gradients and balance loss are the same.

Where nothing is dropped: where a token is, DeepSpeed divides the weights of what is left by their sum, ours stay.
DeepSpeed is not among the course's packages; install it (`pip install deepspeed`) to run this.
"""

import importlib.util

import pytest
import torch
import torch.distributed as dist
from expert_cases import all_of, same

from course_lib import spmd
from course_lib.models import GPTConfig, MoEConfig
from course_lib.models.layers import FeedForward
from course_lib.models.moe import MoE, recorded
from course_lib.parallel.expert import balance_share, expert_load, expert_mesh, expert_parallel

T, D, F_, E = 13, 16, 24, 12
FLOAT32 = 1e-5  # its gate works in float32 whatever it is given


def both(k, ep_size):
    """Our layer and DeepSpeed's, with the same weights, and the group of a rank alone."""
    import deepspeed
    from deepspeed.moe.layer import MoE as Theirs

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    moe = MoEConfig(E, k, F_, renormalize=k > 1)
    ours = MoE(GPTConfig(5, D, 1, 2, 1, 1, T, moe=moe))
    generator = torch.Generator().manual_seed(k)
    for p in ours.parameters():
        p.data.normal_(0, 0.3, generator=generator)
    theirs = Theirs(
        D, FeedForward(D, F_), E, ep_size, k, min_capacity=0, drop_tokens=False, use_rts=False,
        top2_2nd_expert_sampling=False,
    )  # fmt: skip
    theirs.set_deepspeed_parallelism()
    mesh = expert_mesh(ep_size)
    expert_parallel(ours, mesh.ep)
    with torch.no_grad():
        theirs.deepspeed_moe.gate.wg.weight.copy_(ours.router.weight)
        for e, expert in enumerate(theirs.deepspeed_moe.experts.deepspeed_experts):
            for name in ("gate", "up", "down"):
                getattr(expert, name).weight.copy_(getattr(ours.experts, name)[e])
    return ours, theirs, dist.new_group([dist.get_rank()], use_local_synchronization=True)


def the_same():
    n = dist.get_world_size()
    for k in (1, 2, 3):
        for ep_size in (2, n):
            ours, theirs, alone = both(k, ep_size)
            x = torch.randn(1, T, D, generator=torch.Generator().manual_seed(dist.get_rank()))
            inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
            with recorded(ours) as routings:
                y = ours(inputs[0])
            expected, balance, counts = theirs(inputs[1])
            same(y, expected, "output", FLOAT32)
            assert torch.equal(expert_load(routings)[0], counts.long())
            share = balance_share(routings, expert_load(routings), alone)
            if k == 2:  # its loss counts first choices only
                share, balance = 0 * share, 0 * balance
            else:
                same(share, balance, "balance loss", FLOAT32)
            upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(99))
            ((y * upstream).sum() + share).backward()
            ((expected * upstream).sum() + balance).backward()
            same(inputs[0].grad, inputs[1].grad, "input", FLOAT32)
            same(ours.router.weight.grad, theirs.deepspeed_moe.gate.wg.weight.grad, "router", 10 * FLOAT32)
            for e, expert in enumerate(theirs.deepspeed_moe.experts.deepspeed_experts):
                for name in ("gate", "up", "down"):
                    same(getattr(ours.experts, name).grad[e], getattr(expert, name).weight.grad, name, 10 * FLOAT32)


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed: it is not among the course's packages; `pip install deepspeed` runs this test",
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_our_layer_is_deepspeeds_where_nothing_is_dropped(ranks):
    spmd.run(all_of, [the_same], ranks=ranks)
