"""The collectives of an answer, as they are written down: in order, with the moment each was waited for."""

import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.lab import calls, meetings
from course_lib.lab.calls import Collective


def several():
    x = torch.ones(3)
    with calls.record(__file__) as outer, calls.record(__file__) as inner:
        dist.all_reduce(x)
        waited = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
        waited.wait()
        dist.all_reduce(x, async_op=True).get_future().wait()
        left = dist.all_reduce(x, async_op=True)
        touched = dist.all_reduce(x, async_op=True)
        x += 1
        touched.wait()
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
    left.wait()
    assert outer.collectives == inner.collectives, "one record does not disturb another around it"
    return inner.collectives


def test_collectives_are_noted_with_their_waits():
    first, waited, by_future, left, touched = spmd.run(several, ranks=2, backend="gloo", show=False)[0]
    assert (first.name, first.nbytes, first.dtype, first.reduce) == ("all_reduce", 12, "float32", "SUM")
    assert first.begun < first.ended < waited.begun < waited.ended, "a call that is not asynchronous waits for itself"
    assert waited.reduce == "MAX" and waited.line == first.line + 1
    assert by_future.ended is None and by_future.by_future
    assert left.ended is None and not left.by_future
    assert touched.changed and not waited.changed
    assert touched.memory == first.memory and touched.nbytes == 12


def untouched():
    """Collectives by torch's own means, in whose tensors nobody else writes."""
    n = dist.get_world_size()
    with calls.record(__file__) as log:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                dist.all_reduce(torch.ones(3, dtype=dtype), op)
                dist.all_reduce(torch.ones(3, dtype=dtype), op, async_op=True).wait()
            dist.reduce(torch.ones(3), 0, op, async_op=True).wait()
            dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * n), op, async_op=True).wait()
            dist.reduce_scatter(torch.ones(2), [torch.ones(2)] * n, op, async_op=True).wait()
        dist.broadcast(torch.ones(2), 0, async_op=True).wait()
        dist.all_gather([torch.ones(2) for _ in range(n)], torch.ones(2), async_op=True).wait()
        dist.all_to_all_single(torch.ones(n), torch.ones(n), async_op=True).wait()
        whole = torch.ones(6)
        works = [dist.all_reduce(part, dist.ReduceOp.AVG, async_op=True) for part in whole.split(3)]
        works[0].wait()
        whole[:3] /= 2  # its own part, while the other is still being reduced
        works[1].wait()
    return [(call.name, call.reduce) for call in log.collectives if call.changed]


def test_what_a_collective_writes_itself_is_nobodys_mistake():
    assert list(spmd.run(untouched, ranks=2, backend="gloo", show=False)) == [[], []]


def touching_an_average():
    x = torch.ones(3)
    with calls.record(__file__) as log:
        work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
        x += 1
        work.wait()
    return log.collectives[0].changed


def test_a_write_beside_the_collectives_own_is_seen():
    assert list(spmd.run(touching_an_average, ranks=2, backend="gloo", show=False)) == [True, True]


def call(**facts):
    return Collective("all_reduce", 12, "float32", 7, 0, 1, **facts)


def test_what_is_careless():
    quote = "line {}".format
    assert meetings.careless_collective([[call(ended=2)], [call(by_future=True)]], quote) is None
    name, sentence = meetings.careless_collective([[call(ended=2)], [call()]], quote)
    assert name == "never_waits" and sentence.startswith("the all_reduce of line 7 is never waited for")
    name, sentence = meetings.careless_collective([[call()], [call(ended=2, changed=True)]], quote)
    assert name == "touches_what_it_reduces" and "line 7 is changed before that is waited for" in sentence
