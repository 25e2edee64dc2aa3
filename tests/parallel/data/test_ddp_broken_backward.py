"""A backward that breaks in the middle, on all ranks or on one: the next step is right."""

import pytest
import torch.distributed as dist
from ddp_cases import Net, all_of, batch, error_of, expected_gradients, gradients, local, loss_of, same, seeded, wrapped

from course_lib import spmd


class Broken(RuntimeError):
    pass


def a_backward_that_breaks():
    """On all ranks, at different places; the next step is right, and takes nothing over from the broken one."""
    for set_to_none in (True, False):
        for options in ({}, {"find_unused": True}):
            model, single = wrapped(**options), seeded(Net)
            for step in range(4):
                if step in (1, 2):
                    victims = [p for p in model.parameters() if p.requires_grad]
                    victim = victims[(dist.get_rank() + step) % len(victims)]
                    handle = victim.register_hook(breaks)
                    assert error_of(Broken, loss_of(model, *local(9)).backward) == "in the middle"
                    handle.remove()
                    model.zero_grad(set_to_none)
                for net, data in ((model, local(step)), (single, batch(step))):
                    loss_of(net, *data).backward()
                same(gradients(model), gradients(single))
                model.zero_grad(set_to_none)
                single.zero_grad()


def breaks(_):
    raise Broken("in the middle")


def a_backward_that_breaks_on_one_rank():
    """The others see no mean over fewer ranks: what the broken one owes arrives as NaN. Then all go on."""
    model = wrapped()
    loss_of(model, *local(0)).backward()
    model.zero_grad()
    loss = loss_of(model, *local(0))
    last = model.module.embedding.weight  # its gradient comes last
    if dist.get_rank() == 0:
        handle = last.register_hook(breaks)
        error_of(Broken, loss.backward)
        handle.remove()
    else:
        loss.backward()
        assert last.grad.isnan().all()
    model.zero_grad()
    loss_of(model, *local(1)).backward()
    same(gradients(model), expected_gradients(1))


CASES = [
    a_backward_that_breaks,
    a_backward_that_breaks_on_one_rank,
]


@pytest.mark.parametrize("n", [2, 3])
def test_after_a_broken_backward(n):
    spmd.run(all_of, CASES, ranks=n)
