"""Collectives that do not match: silent garbage is reported, and healthy programs raise no alarm."""

import contextlib
import os
import sys

import pytest
import torch
import torch.distributed as dist
from marks import SHORT, marked_lines

from course_lib import spmd


def swapped_all_reduces():
    a, b = torch.ones(4), torch.full((4,), 10.0)
    if dist.get_rank() == 0:
        dist.all_reduce(b)  # here
        dist.all_reduce(a)
    else:
        dist.all_reduce(a)  # here
        dist.all_reduce(b)
    return a[0].item()


def dtypes_of_one_size():
    x = torch.ones(4, dtype=torch.int32 if dist.get_rank() == 1 else torch.float32)
    dist.all_reduce(x)  # here


def one_call_too_many():
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4), async_op=True)  # here
    work.wait()


@pytest.mark.parametrize("function", [swapped_all_reduces, dtypes_of_one_size, one_call_too_many])
def test_silent_garbage_is_reported_with_both_lines(function):
    with pytest.raises(spmd.MismatchError) as caught:
        spmd.run(function, ranks=3, show=False)
    text = str(caught.value)
    for line in marked_lines(function):
        assert line in text, text
    assert all(r.status == "returned" for r in caught.value.ranks)


def healthy_point_to_point():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.full((4,), float(rank))
    if rank == 0:
        for peer in range(1, n):
            dist.recv(x, peer)
    else:
        dist.send(x, 0)


def healthy_sub_groups():
    rank = dist.get_rank()
    evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
    x = torch.ones(4)
    if rank % 2:
        dist.all_reduce(x, group=odds)
        dist.all_reduce(x, group=odds)
    else:
        dist.all_reduce(torch.ones(9), group=evens)
    dist.all_reduce(x)


def healthy_branches():
    rank = dist.get_rank()
    x = torch.ones(4)
    if rank == 0:
        dist.broadcast(x, 0)
    else:
        received = torch.empty(4)
        dist.broadcast(received, 0)
    for owner in range(dist.get_world_size()):
        if rank == owner:
            dist.all_reduce(x)
        else:
            nothing = torch.zeros(4)
            dist.all_reduce(nothing)


def healthy_uneven():
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = [peer + 1 for peer in range(n)]
    out = torch.empty(n * (rank + 1), 2)
    dist.all_to_all_single(out, torch.ones(sum(rows), 2), [rank + 1] * n, rows)
    gathered = [None] * n
    dist.all_gather_object(gathered, list(range(rank)))
    target = [torch.empty(3) for _ in range(n)] if rank == 1 else None
    dist.gather(torch.ones(3), target, dst=1)


def healthy_turns():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.ones(4)

    def give():
        dist.all_reduce(x)

    def take():
        dist.all_reduce(torch.zeros(4))

    for owner in range(n):
        give() if rank == owner else take()
    for owner in range(n):
        if rank == owner:
            dist.all_reduce(x)
            continue
        dist.all_reduce(torch.zeros(4))


def healthy_differences():
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        dist.gather(torch.ones(3), [torch.empty(3) for _ in range(n)])
    else:
        dist.gather(torch.ones(3), dst=0)
    x = torch.ones(2, 3)
    dist.broadcast(x if rank == 0 else x.view(6), 0)
    dist.all_reduce(torch.ones(()) if rank == 0 else torch.ones(1))
    dist.new_group() if rank == 0 else dist.new_group(list(range(n)))
    if rank < 2:
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(x, group=pair)
    if rank == 1:
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            dist.all_reduce("not a tensor")
    dist.all_reduce(x)


def healthy_groups_that_come_and_go():
    rank = dist.get_rank()
    for turn in range(4):
        group = dist.new_group([turn % 3, 3])
        if rank in (turn % 3, 3):
            dist.all_reduce(torch.ones(turn + 1), group=group)
            dist.destroy_process_group(group)


def healthy_worlds_of_two():
    rank = dist.get_rank()
    where = os.path.join(os.environ["COURSE_SPMD_FOLDER"], f"pair{rank // 2}")
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=rank % 2, world_size=2)
    for _ in range(rank // 2 + 1):
        dist.all_reduce(torch.ones(4))


def healthy_compiled():
    @torch.compile(fullgraph=True, backend="eager")
    def step(x):
        dist.all_reduce(x)
        return x + 1

    step(torch.ones(4))


def healthy_fork():
    if os.fork() == 0:
        return
    os.wait()
    dist.barrier()


def healthy_after_closing_stdout():
    sys.stdout.close()
    dist.barrier()


def healthy_async():
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
    for work in works if dist.get_rank() % 2 else reversed(works):
        work.wait()


@pytest.mark.parametrize(
    "function", [f for name, f in list(globals().items()) if name.startswith("healthy_")], ids=lambda f: f.__name__
)
def test_healthy_programs_raise_no_alarm(function):
    spmd.run(function, ranks=4, show=False)


def wrong_splits():
    rank = dist.get_rank()
    sends = [1, 3] if rank == 0 else [2, 2]
    takes = [1, 1] if rank == 0 else [2, 2]
    dist.all_to_all_single(torch.empty(sum(takes)), torch.ones(4), takes, sends)  # here


def test_splits_that_do_not_meet_are_reported():
    with pytest.raises(spmd.SpmdError) as caught:
        spmd.run(wrong_splits, ranks=2, timeout=SHORT, show=False)
    assert caught.value.cause.kind == "mismatch", str(caught.value)
    assert "input splits (1, 3)" in str(caught.value)


def two_groups_of_the_same_ranks():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    a, b = torch.ones(2), torch.ones(3)
    works = [dist.all_reduce(a, group=first, async_op=True), dist.all_reduce(b, group=second, async_op=True)]
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    return len(works)


def test_groups_of_the_same_ranks_and_a_second_world_are_told_apart():
    assert spmd.run(two_groups_of_the_same_ranks, ranks=2) == [2, 2]
