"""Ranks that raise, die or leave: the guilty one is named, with its line, and its peers are not blamed.

The line that must be named carries the comment `# here`; where two sides share the blame, both carry it.
"""

import ctypes
import itertools
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from marks import SHORT, marked_lines

from course_lib import spmd


def different_order():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.all_reduce(x)  # here
        dist.broadcast(x, 0)
    else:
        dist.broadcast(x, 0)  # here
        dist.all_reduce(x)


def different_shapes():
    x = torch.ones(4000 if dist.get_rank() == 1 else 14000)
    dist.all_reduce(x)  # here


def different_dtypes():
    x = torch.ones(4, dtype=torch.float64 if dist.get_rank() == 1 else torch.float32)
    dist.all_reduce(x)  # here


def different_roots():
    dist.broadcast(torch.ones(4), src=1 if dist.get_rank() == 2 else 0)  # here


def only_rank_0():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4))  # here


def early_return():
    x = torch.ones(4)
    dist.all_reduce(x)
    if dist.get_rank() == 2:
        return  # here
    dist.all_reduce(x)  # here


def raises():
    x = torch.ones(4)
    if dist.get_rank() == 1:
        raise KeyError("no such thing")  # here
    dist.all_reduce(x)


def raises_deep():
    def load(table):
        return table["missing"]  # here

    if dist.get_rank() == 3:
        load({})
    dist.barrier()


def segfault():
    if dist.get_rank() == 1:
        ctypes.string_at(0)  # here
    dist.barrier()


def killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # here
    dist.barrier()


def killed_while_it_waits():
    if dist.get_rank() == 1:
        pid = os.getpid()
        killer = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(.3); os.kill({pid}, 9)"])
        killer.wait()  # here
    dist.barrier()


def leaves_by_os_exit():
    if dist.get_rank() == 2:
        os._exit(3)  # here
    dist.barrier()


def leaves_by_sys_exit():
    if dist.get_rank() == 1:
        sys.exit("enough")  # here
    dist.barrier()


def busy_loop():
    if dist.get_rank() == 3:
        all(True for _ in itertools.count())  # here
    dist.barrier()  # here


def holds_the_gil():
    if dist.get_rank() == 3:
        re.match(r"(a+)+$", "a" * 60 + "b")  # here
    dist.barrier()  # here


def stopped_by_a_signal():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # here
    dist.barrier()  # here


def all_compute_for_ever():
    all(True for _ in itertools.count())  # here


def send_send():
    x, rank, n = torch.ones(4), dist.get_rank(), dist.get_world_size()
    dist.send(x, (rank + 1) % n)  # here
    dist.recv(x, (rank - 1) % n)


def recv_recv():
    x, rank, n = torch.ones(4), dist.get_rank(), dist.get_world_size()
    dist.recv(x, (rank - 1) % n)  # here
    dist.send(x, (rank + 1) % n)


def irecv_wait():
    x, rank, n = torch.ones(4), dist.get_rank(), dist.get_world_size()
    work = dist.irecv(x, (rank - 1) % n)
    work.wait()  # here


def recv_against_barrier():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(4), 1)  # here
    else:
        dist.barrier()  # here


def receives_what_nobody_sends():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(4), 2)  # here


def group_made_by_members_only():
    if dist.get_rank() < 2:
        dist.new_group([0, 1])  # here


# name: (function, error, kind, guilty ranks or None where nobody in particular, words that must be there)
CASES = {
    f.__name__: (f, *rest)
    for f, *rest in [
        (different_order, spmd.HangError, "mismatch", (0,), ["all_reduce", "broadcast", "rank 0", "ranks 1, 2 and 3"]),
        (different_shapes, spmd.RankError, "mismatch", (1,), ["float32[4000]", "float32[14000]"]),
        (different_dtypes, spmd.RankError, "mismatch", (1,), ["float64[4]", "float32[4]"]),
        (different_roots, spmd.SpmdError, "mismatch", (2,), ["root 1", "root 0"]),
        (only_rank_0, spmd.HangError, "early_return", (1, 2, 3), ["Rank 0 waits for ranks 1, 2 and 3"]),
        (early_return, spmd.HangError, "early_return", (2,), ["Rank 2 returned", "its last collective was all_reduce"]),
        (raises, spmd.RankError, "raised", (1,), ["KeyError: 'no such thing'", "ranks 0, 2 and 3: in all_reduce"]),
        (raises_deep, spmd.RankError, "raised", (3,), ["KeyError: 'missing'", "load({})"]),
        (segfault, spmd.RankError, "died", (1,), ["SIGSEGV"]),
        (killed, spmd.RankError, "died", (1,), ["SIGKILL", "out-of-memory"]),
        (killed_while_it_waits, spmd.RankError, "died", (1,), ["SIGKILL"]),
        (leaves_by_os_exit, spmd.RankError, "died", (2,), ["exit code 3"]),
        (leaves_by_sys_exit, spmd.RankError, "exited", (1,), ["sys.exit(enough)"]),
        (busy_loop, spmd.HangError, "missing", (3,), ["Rank 3 never came", "barrier"]),
        (holds_the_gil, spmd.HangError, "missing", (3,), ["Rank 3 never came"]),
        (stopped_by_a_signal, spmd.HangError, "missing", (1,), ["stopped by a signal"]),
        (all_compute_for_ever, spmd.HangError, "busy", (0, 1, 2, 3), ["still running"]),
        (
            send_send,
            spmd.HangError,
            "deadlock",
            (0, 1, 2, 3),
            ["All of them send", "rank 0: send of float32[4] to rank 1"],
        ),
        (recv_recv, spmd.HangError, "deadlock", (0, 1, 2, 3), ["All of them receive"]),
        (irecv_wait, spmd.HangError, "deadlock", (0, 1, 2, 3), ["irecv", "All of them receive"]),
        (recv_against_barrier, spmd.HangError, "deadlock", (0, 1), ["bring the calls into one order"]),
        (receives_what_nobody_sends, spmd.HangError, "early_return", (2,), ["Rank 0 waits for rank 2"]),
        (group_made_by_members_only, spmd.MismatchError, "mismatch", (), ["Only ranks 0 and 1 called new_group"]),
    ]
}


@pytest.mark.parametrize("name", CASES)
def test_the_guilty_rank_and_line_are_named(name):
    function, error, kind, guilty, words = CASES[name]
    with pytest.raises(error) as caught:
        spmd.run(function, ranks=4, timeout=SHORT, show=False)
    cause, text = caught.value.cause, str(caught.value)
    assert cause.kind == kind, text
    assert set(cause.ranks) == set(guilty), text
    for word in words:
        assert word in text, text
    for line in marked_lines(function):
        assert line in text, text


def test_a_raised_exception_is_the_cause_and_its_peers_are_echoes():
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(raises, ranks=4, show=False)
    assert isinstance(caught.value.__cause__, KeyError)
    assert [r.status for r in caught.value.ranks] == ["waiting", "raised", "waiting", "waiting"]
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(killed, ranks=3, show=False)
    died = caught.value.ranks[1]
    assert (died.status, died.exit_code) == ("died", -signal.SIGKILL)


def hides_the_lost_peer():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # here
    try:
        dist.barrier()
    except RuntimeError as error:
        raise ValueError("wrapped by the reader") from error


def leaves_after_the_lost_peer():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # here
    try:
        dist.barrier()
    except RuntimeError:
        sys.exit(1)


def loses_its_peer_in_backward():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # here
    loss.backward()


def speaks_of_the_lost_peer_later():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # here
    lost = False
    try:
        dist.barrier()
    except RuntimeError:
        lost = True
    if lost:  # outside of the handler: nothing ties this error to the first one
        raise ValueError("no peer")


@pytest.mark.parametrize(
    "function",
    [hides_the_lost_peer, leaves_after_the_lost_peer, loses_its_peer_in_backward, speaks_of_the_lost_peer_later],
)
def test_the_peers_of_a_killed_rank_are_not_blamed_whatever_they_raise(function):
    for _ in range(4):  # which of them is heard of first is a race
        with pytest.raises(spmd.RankError) as caught:
            spmd.run(function, ranks=3, show=False)
        assert (caught.value.cause.kind, caught.value.cause.ranks) == ("died", (1,)), str(caught.value)


def message_too_large():
    if dist.get_rank() == 0:
        dist.send(torch.ones(100_000), 1)
    else:
        dist.recv(torch.ones(10), 0)  # here


def test_a_message_larger_than_its_buffer_names_the_receive():
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(message_too_large, ranks=2, timeout=SHORT, show=False)
    assert caught.value.cause.ranks == (1,)
    assert marked_lines(message_too_large)[0] in str(caught.value), str(caught.value)


def two_fail_one_after_the_other():
    if dist.get_rank() == 0:
        raise KeyError("first")  # here
    if dist.get_rank() == 2:
        time.sleep(0.2)
        raise ValueError("second")
    dist.barrier()


def test_of_two_failures_the_first_is_the_cause():
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(two_fail_one_after_the_other, ranks=3, show=False)
    assert caught.value.cause.ranks == (0,), str(caught.value)
    assert marked_lines(two_fail_one_after_the_other)[0] in str(caught.value)
    assert "rank 2: raised ValueError: second" in str(caught.value)
