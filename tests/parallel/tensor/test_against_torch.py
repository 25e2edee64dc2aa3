"""Our tensor-parallel GPT against torch's parallelize_module and loss_parallel, on the same ranks, in float64."""

import copy

import pytest
import torch
import torch.distributed as dist
from tensor_cases import all_of, same
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

from course_lib import spmd
from course_lib.bench.tensor import torch_parallel
from course_lib.models import GPT, GPTConfig
from course_lib.parallel.tensor import sum_partial_gradients, tensor_parallel, token_losses

CONFIG = GPTConfig(24, dim=24, n_layers=2, n_heads=12, n_kv_heads=12, ffn_dim=36, max_seq_len=12)


def step_by_step(sequence_parallel):
    """Loss and every gradient, each rank's part of it, of three steps."""
    plain = GPT(CONFIG, 4).double()
    ours = tensor_parallel(copy.deepcopy(plain), None, sequence_parallel)
    theirs = torch_parallel(plain, init_device_mesh("cpu", (dist.get_world_size(),)), sequence_parallel)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in (ours, theirs)]
    for step in range(3):
        tokens, labels = torch.randint(24, (2, 2, 12), generator=torch.Generator().manual_seed(step))
        labels[1, step] = -100
        losses, valid = token_losses(ours(tokens), labels, 24)
        loss = losses.sum() / valid.sum()
        loss.backward()
        sum_partial_gradients(ours)
        with loss_parallel():
            their_loss = cross_entropy(theirs(tokens).flatten(0, 1), labels.flatten())
            their_loss.backward()
        same(loss, their_loss.full_tensor(), "loss")
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            grad = q.grad
            if isinstance(grad, DTensor):  # of norms, torch keeps parts that are still to be summed
                grad = grad.redistribute(placements=q.placements).to_local()
            same(p.grad, grad, name)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("n", [2, 4])
def test_equal_to_torchs(n):
    spmd.run(all_of, [lambda: step_by_step(False), lambda: step_by_step(True)], ranks=n, timeout=300)
