"""Column- and row-parallel layers equal nn.Linear in one process, with and without sequence parallelism and biases."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensor_cases import alike, all_of, error_of, leaf, mine, random, same
from torch.nn import Parameter

from course_lib import spmd
from course_lib.bench.tensor import Sent
from course_lib.models import GPT, GPTConfig
from course_lib.models.gpt import rotations
from course_lib.parallel.tensor import linear, simple, tensor_parallel
from course_lib.parallel.tensor.linear import ColumnLinear, RowLinear, columns, rows
from course_lib.parallel.tensor.tokens import start_gather

B, S, D, WIDE = 2, 12, 5, 24


def my_tokens(x):
    """This rank's part of (B, S, D): the r-th n-th of all B * S tokens."""
    n = dist.get_world_size()
    return leaf(x.reshape(n, B, S // n, -1)[dist.get_rank()])


def parameters():
    return [leaf(random(i, *shape)) for i, shape in enumerate([(B, S, D), (WIDE, D), (WIDE,), (D, WIDE), (D,)])]


def with_biases():
    """Also against the taught function, on whose tokens no sequence parallelism works."""
    for sequence_parallel in (False, True):
        x, *whole = parameters()
        y = F.linear(F.gelu(F.linear(x, *whole[:2])), *whole[2:])
        y.pow(3).sum().backward()
        up = ColumnLinear(Parameter(mine(whole[0])), Parameter(mine(whole[1])), None, sequence_parallel)
        down = RowLinear(Parameter(mine(whole[2], 1)), Parameter(leaf(whole[3])), None, sequence_parallel)
        taught_parts = [leaf(x.flatten(0, 1)), *map(leaf, (*up.parameters(), *down.parameters()))]
        my_x = my_tokens(x) if sequence_parallel else leaf(x)
        found = down(F.gelu(up(my_x)))
        found.pow(3).sum().backward()
        same(found, my_tokens(y) if sequence_parallel else y)
        same(my_x.grad, my_tokens(x.grad) if sequence_parallel else x.grad, "x")
        if sequence_parallel:
            dist.all_reduce(down.bias.grad)
        else:
            alike(found)
            taught = simple.column_then_row(*taught_parts)
            taught.pow(3).sum().backward()
            for part, p in zip(taught_parts[1:], [*up.parameters(), *down.parameters()], strict=True):
                same(part.grad, p.grad)
            same(taught.view(B, S, D), found)
        for part, p, dim in zip([*up.parameters(), *down.parameters()], whole, (0, 0, 1, None), strict=True):
            same(part.grad, p.grad if dim is None else mine(p.grad, dim), tuple(p.shape), 1e-8)


def several_weights():
    """Query, key and value from one input: its gradient is the sum of three, and travels once."""
    weights = [leaf(random(10 + i, size, D)) for i, size in enumerate((WIDE, 12, 12))]
    for sequence_parallel in (False, True):
        x = leaf(random(1, B, S, D))
        sum(F.linear(x, w).pow(2 + i).sum() for i, w in enumerate(weights)).backward()
        parts, my_x = [mine(w) for w in weights], my_tokens(x) if sequence_parallel else leaf(x)
        found = columns(my_x, parts, None, sequence_parallel)
        with spmd.traffic() as traffic:
            sum(y.pow(2 + i).sum() for i, y in enumerate(found)).backward()
        if dist.get_world_size() > 1:
            expected = {"all_gather_single": 1, "reduce_scatter_single": 1} if sequence_parallel else {"all_reduce": 1}
            counted = {name.replace("into_tensor", "single").replace("_tensor", "_single"): calls
                       for name, calls in traffic.calls.items()}  # fmt: skip
            assert counted == expected
        same(my_x.grad, my_tokens(x.grad) if sequence_parallel else x.grad, "x")
        for part, w in zip(parts, weights, strict=True):
            same(part.grad, mine(w.grad), "weight")
            w.grad = None


def an_output_unused():
    weights = [mine(random(10 + i, WIDE, D)) for i in range(2)]
    x = leaf(random(1, B, S, D))
    columns(x, weights)[1].sum().backward()
    assert not weights[0].grad.any()
    same(x.grad, random(11, WIDE, D).sum(0).expand(B, S, D))


def frozen():
    """No gradient for a frozen weight, and none for an input that wants none; then nothing is sent."""
    for sequence_parallel in (False, True):
        x, weight = my_tokens(random(1, B, S, D)) if sequence_parallel else leaf(random(1, B, S, D)), random(2, WIDE, D)
        (y,) = columns(x, [mine(weight).requires_grad_(False)], None, sequence_parallel)
        y.sum().backward()
        same(x.grad, weight.sum(0).expand_as(x))
        part = mine(weight)
        (y,) = columns(x.detach(), [part], None, sequence_parallel)
        with spmd.traffic() as traffic:
            y.sum().backward()
        assert part.grad is not None and ("all_reduce" not in traffic.calls)
        assert not any("reduce_scatter" in name for name in traffic.calls)
        h, down = mine(random(3, B, S, WIDE), -1), mine(random(4, D, WIDE), 1)
        rows(h, down.detach(), None, sequence_parallel).sum().backward()
        same(h.grad, mine(random(4, D, WIDE).sum(0).expand(B, S, WIDE), -1))
        rows(h.detach(), down, None, sequence_parallel).sum().backward()
        assert down.grad is not None


def other_memory():
    """Inputs and gradients that do not lie in memory row by row; nobody's tensors are written to."""
    for sequence_parallel in (False, True):
        x = random(1, D, S, B).permute(2, 1, 0)
        my_x, before = my_tokens(x) if sequence_parallel else leaf(x), x.clone()
        up, down = mine(random(2, WIDE, D)), mine(random(3, D, WIDE), 1)
        (h,) = columns(my_x, [up], None, sequence_parallel)
        y = rows(h, down, None, sequence_parallel)
        upstream = random(4, D, S, B).permute(2, 1, 0)
        mine_of_it = my_tokens(upstream).detach() if sequence_parallel else upstream
        mine_of_it = mine_of_it.transpose(0, 2).contiguous().transpose(0, 2)
        kept = mine_of_it.clone()
        y.backward(mine_of_it)
        assert torch.equal(mine_of_it, kept) and torch.equal(x, before)
        alone = leaf(x)
        F.linear(F.linear(alone, random(2, WIDE, D)), random(3, D, WIDE)).backward(upstream)
        same(my_x.grad, my_tokens(alone.grad) if sequence_parallel else alone.grad, "x", 1e-9)


def autocast():
    """Products in bfloat16, gradients of the parameters in float32, as nn.Linear's."""
    up, down = mine(random(2, WIDE, D).float()), mine(random(3, D, WIDE).float(), 1)
    x = leaf(random(1, B, S, D).float())
    with torch.autocast("cpu", torch.bfloat16):
        (h,) = columns(x, [up])
        y = rows(h, down)
    assert h.dtype == y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert up.grad.dtype == down.grad.dtype == x.grad.dtype == torch.float32
    alone = [leaf(random(i, *shape)) for i, shape in ((1, (B, S, D)), (2, (WIDE, D)), (3, (D, WIDE)))]
    F.linear(F.linear(*alone[:2]), alone[2]).sum().backward()
    for part, whole in zip((x.grad, up.grad, down.grad), (alone[0].grad, mine(alone[1].grad), mine(alone[2].grad, 1)),
                           strict=True):  # fmt: skip
        assert (part - whole).norm() < 0.03 * whole.norm()


def uneven_tokens():
    n = dist.get_world_size()
    if n == 1:
        return
    message = error_of(ValueError, rows, random(1, 1, n + 1, 4), random(2, D, 4), None, True)
    assert message == (
        f"a sequence of {n + 1} tokens cannot be cut into {n} equal parts, one for each rank: pad it to {2 * n} "
        "tokens, or do without sequence parallelism"
    )


def gathered_in_order():
    x = random(1, B, S, D)
    assert torch.equal(start_gather(my_tokens(x).detach(), None)(), x)


def sums_travel_while_weights_are_computed():
    """In backward the sum of the input's gradient has begun, and is not waited for, when the weight's is computed.

    And with sequence parallelism the input is gathered while its gradient is computed.
    """
    expected = {False: ["begin sum", "input", "end sum"]}
    expected[True] = ["begin gather", "gradient", "begin sum", "end gather", "input", "end sum"]
    expected[False].insert(0, "gradient")
    before = linear.start_sum, linear.start_gather, linear._flat
    for sequence_parallel in (False, True):
        inputs = leaf(random(1, B, S, D))
        x = my_tokens(inputs) if sequence_parallel else inputs
        (y,) = columns(x, [mine(random(2, WIDE, D))], None, sequence_parallel)
        seen = []

        def noted(name, start, seen=seen):
            def begin(*args, **kwargs):
                seen.append(f"begin {name}")
                wait = start(*args, **kwargs)
                return lambda: seen.append(f"end {name}") or wait()

            return begin

        def flat(tensor, seen=seen):
            seen.append("input" if tensor.shape[-1] == D else "gradient")
            return before[2](tensor)

        linear.start_sum, linear.start_gather = noted("sum", before[0]), noted("gather", before[1])
        linear._flat = flat
        y.sum().backward()
        linear.start_sum, linear.start_gather, linear._flat = before
        assert seen == expected[sequence_parallel], seen


def what_is_kept():
    """With sequence parallelism forward keeps this rank's tokens for backward, not the gathered ones."""
    up, x = mine(random(2, WIDE, D)), leaf(random(1, B, S, D))
    for sequence_parallel, its in ((False, x), (True, my_tokens(x))):
        (y,) = columns(its, [up], None, sequence_parallel)
        assert [kept.shape for kept in y.grad_fn.saved_tensors] == [its.shape, up.shape]


def layer_bytes_are_sent():
    """What the taught function predicts is what a layer sends, as rings, forward and backward."""
    n = dist.get_world_size()
    for sequence_parallel in (False, True):
        model = tensor_parallel(GPT(GPTConfig(7, 24, 1, 12, 12, 36, 12)), None, sequence_parallel)
        x = torch.randn(B, S // n if sequence_parallel else S, 24).requires_grad_()
        with Sent() as forward:
            y = model.layers[0](x, rotations(torch.arange(S), model.config, x.dtype), None)
        with Sent() as backward:
            y.sum().backward()
        assert (forward.total, backward.total) == simple.layer_bytes(B * S, 24, n, 4, sequence_parallel)


ALL = [
    with_biases,
    several_weights,
    an_output_unused,
    frozen,
    other_memory,
    autocast,
    uneven_tokens,
    gathered_in_order,
    sums_travel_while_weights_are_computed,
    what_is_kept,
    layer_bytes_are_sent,
]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_equal_to_one_process(n):
    spmd.run(all_of, ALL, ranks=n, timeout=300)
