"""What passes between ranks is on the tape: who, what, from which line; a group has numbers of its own."""

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.collectives.p2p import send_recv
from course_lib.lab import tape


@pytest.fixture(scope="module", autouse=True)
def by_value(request):
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


def recorded(folder, talk, members):
    """By world rank: the messages of `talk(rank)`."""

    def on_a_rank():
        rank = dist.get_rank()
        with tape.record(folder / str(rank), members, talk.__code__.co_filename):
            talk(rank)
        dist.barrier()

    spmd.run(on_a_rank, ranks=max(members) + 1, timeout=20, show=False)
    return [tape.read(folder / str(rank)) for rank in range(max(members) + 1)]


def test_messages(tmp_path):
    def talk(rank):
        x = torch.full((3,), float(rank))
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        send_recv(x[:2], 1 - rank, torch.empty(2), 1 - rank)

    first = talk.__code__.co_firstlineno
    zero, one = recorded(tmp_path, talk, [0, 1])
    assert [(m.kind, m.peer, m.count, m.nbytes, m.blocking) for m in one] == [
        ("recv", 0, 3, 12, True),
        ("recv", 0, 2, 8, False),
        ("send", 0, 2, 8, False),
    ]
    assert [m.line - first for m in zero] == [3, 6, 6]
    assert [m.values.tolist() for m in one] == [[0, 0, 0], [0, 0], [0, 0]]
    assert all(m.ended is not None and not m.changed for m in zero + one)
    assert one[0].begun < one[0].ended < one[1].begun < one[2].begun < one[1].ended
    assert one[2].memory == (one[0].memory[0], one[0].memory[0] + 8), "a view of what was received"


def test_a_send_whose_tensor_changes_or_that_nobody_waits_for(tmp_path):
    def talk(rank):
        x, y = torch.zeros(2), torch.zeros(2)
        if rank == 0:
            work, kept = dist.isend(x, 1), dist.isend(y, 1)
            x += 1
            work.wait()
            dist.barrier()
            del kept
        else:
            dist.recv(x, 0)
            dist.recv(y, 0)
            dist.barrier()

    zero, _ = recorded(tmp_path, talk, [0, 1])
    assert [(m.changed, m.ended is None) for m in zero] == [(True, False), (False, True)]


def test_ranks_are_counted_within_the_group_and_nobody_leaves_it(tmp_path):
    def talk(rank):
        if rank == 0:
            return
        x = torch.zeros(1)
        if rank == 1:
            dist.send(x, 2)
        else:
            dist.recv(x, 1)
        with pytest.raises(tape.Outside, match=r"a message to rank 0, which is not in the group of ranks \[1, 2\]"):
            dist.send(x, 0)

    nobody, one, two = recorded(tmp_path, talk, [1, 2])
    assert nobody == [] and [m.peer for m in one] == [1] and [m.peer for m in two] == [0]


def test_a_tape_cut_short_is_read_as_far_as_it_goes(tmp_path):
    def talk(rank):
        x = torch.zeros(1)
        for _ in range(2):
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)

    recorded(tmp_path, talk, [0, 1])
    whole = (tmp_path / "0").read_bytes()
    (tmp_path / "0").write_bytes(whole[:-5])
    first, second = tape.read(tmp_path / "0")
    assert first.ended is not None and second.ended is None
    assert tape.read(tmp_path / "of nobody") == []
