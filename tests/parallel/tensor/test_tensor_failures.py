"""A rank that leaves the others alone: what it says, and that the run ends with the rank and the reason named."""

import pytest
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.models import GPT, GPTConfig
from course_lib.parallel.tensor import gather_parameters, sum_partial_gradients, tensor_parallel, token_losses

CONFIG = GPTConfig(23, dim=8, n_layers=1, n_heads=2, n_kv_heads=2, ffn_dim=8, max_seq_len=8)


def backward(tokens, sequence_parallel=False):
    model = tensor_parallel(GPT(CONFIG), None, sequence_parallel)
    losses, _ = token_losses(model(tokens), tokens % 23, 23)
    losses.sum().backward()
    return model


def foreign_token():
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    tokens[0, 3] = 23 * dist.get_rank()  # that of the padding, which rank 1 has a row for
    backward(tokens)


def other_length():
    backward(torch.zeros(1, 8 - 2 * dist.get_rank(), dtype=torch.int64))


def gradients_not_summed():
    model = backward(torch.zeros(1, 8, dtype=torch.int64), sequence_parallel=True)
    if dist.get_rank() != 1:
        sum_partial_gradients(model)
    dist.barrier()


def gathered_by_one():
    model = backward(torch.zeros(1, 8, dtype=torch.int64))
    if dist.get_rank() == 0:
        gather_parameters(model)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (foreign_token, "Rank 1 raised RuntimeError: a token is outside the vocabulary of 23: 0 to 22 exist"),
        (other_length, "The ranks call all_reduce with different shapes"),
        (gradients_not_summed, "sum_partial_gradients(model)"),
        (gathered_by_one, "gather_parameters(model)"),
    ],
)
def test_is_named(case, says):
    with pytest.raises(spmd.SpmdError) as error:
        spmd.run(case, ranks=2, show=False, timeout=20)
    assert says in str(error.value)
