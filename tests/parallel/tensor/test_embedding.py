"""The vocab-parallel embedding equals torch's, with padding, sequence parallelism and the taught function."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensor_cases import alike, all_of, error_of, leaf, mine, random, same
from torch.nn import Parameter

from course_lib import spmd
from course_lib.parallel.tensor import simple
from course_lib.parallel.tensor.embedding import VocabParallelEmbedding

D, B, S = 5, 2, 12


def my_rows(weight):
    n = dist.get_world_size()
    rows = -(-weight.shape[0] // n)
    return mine(F.pad(weight.detach(), (0, 0, 0, rows * n - weight.shape[0])))


def as_torchs():
    """Also a vocabulary that n does not divide, and one of which the last ranks have nothing; tokens that repeat."""
    n, rank = dist.get_world_size(), dist.get_rank()
    for V in (24, 38, 5):
        weight = leaf(random(V, V, D))
        tokens = torch.arange(B * S).view(B, S) * 7 % V
        expected = F.embedding(tokens, weight)
        expected.pow(3).sum().backward()
        for sequence_parallel in (False, True):
            part = my_rows(weight)
            x = VocabParallelEmbedding(Parameter(part), V, None, sequence_parallel)(tokens)
            x.retain_grad()
            if sequence_parallel:
                same(x, expected.reshape(n, B, S // n, D)[rank])
            else:
                same(x, expected)
                alike(x)
            module_weight = Parameter(part)
            x = VocabParallelEmbedding(module_weight, V, None, sequence_parallel)(tokens)
            x.pow(3).sum().backward()
            same(module_weight.grad, my_rows(weight.grad), V)


def as_the_taught_one():
    weight, tokens = random(1, 24, D), torch.arange(B * S).view(B, S) % 24
    module = VocabParallelEmbedding(Parameter(mine(weight)), 24)
    taught = mine(weight)
    found, expected = module(tokens), simple.vocab_parallel_embedding(tokens, taught)
    same(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    same(module.weight.grad, taught.grad)


def refused():
    """A token of the padding is foreign too; a sequence that n does not divide, under sequence parallelism only."""
    n = dist.get_world_size()
    module = VocabParallelEmbedding(Parameter(my_rows(random(1, 23, D))), 23)
    for foreign in (23, -1):
        message = error_of(RuntimeError, module, torch.tensor([[0, foreign]]))
        assert message.startswith("a token is outside the vocabulary of 23: 0 to 22 exist")
    if n > 1:
        module = VocabParallelEmbedding(Parameter(my_rows(random(1, 23, D))), 23, None, True)
        message = error_of(ValueError, module, torch.zeros(2, n + 1, dtype=torch.int64))
        assert message.startswith(f"a sequence of {n + 1} tokens cannot be cut into {n} equal parts")


ALL = [as_torchs, as_the_taught_one, refused]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_equal_to_torchs(n):
    spmd.run(all_of, ALL, ranks=n, timeout=300)
