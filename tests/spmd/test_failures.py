"""Every way a run can go wrong, each with the rank and the line that must be named.

The line that must be named carries the comment `# here`; where two sides share the blame, both carry it.
"""

import contextlib
import ctypes
import inspect
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.spmd.pickles import CannotSend

SHORT = 1.5  # seconds: for those that must run into their time-out


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


def marked_lines(function):
    lines, first = inspect.getsourcelines(function)
    return [first + i for i, line in enumerate(lines) if "# here" in line]


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
        assert f"test_failures.py, line {line}:" in text, text


def test_a_raised_exception_is_the_cause_and_its_peers_are_echoes():
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(raises, ranks=4, show=False)
    assert isinstance(caught.value.__cause__, KeyError)
    assert [r.status for r in caught.value.ranks] == ["waiting", "raised", "waiting", "waiting"]
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(killed, ranks=3, show=False)
    died = caught.value.ranks[1]
    assert (died.status, died.exit_code) == ("died", -signal.SIGKILL)


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
        assert f"line {line}:" in text, text
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


LOCK = threading.Lock()


def test_what_cannot_be_sent_is_named():
    def uses_lock():
        return LOCK

    def returns_lock():
        return {"fine": 1, "bad": threading.Lock()}

    with pytest.raises(CannotSend, match=r"`LOCK`, which `uses_lock` uses, .* a _thread.lock"):
        spmd.run(uses_lock, ranks=2)
    with pytest.raises(CannotSend, match=r"Argument 2 of `print`\[1\] cannot be sent"):
        spmd.run(print, 1, [0, threading.Lock()], ranks=2)
    with pytest.raises(spmd.RankError, match=r"What the rank returned\['bad'\] cannot be sent"):
        spmd.run(returns_lock, ranks=2, show=False)


class OnlyHere(Exception):
    def __init__(self, number):
        super().__init__(f"number {number}")
        self.number = number


def test_an_exception_class_of_the_caller_comes_back_as_itself():
    def fail():
        raise OnlyHere(7)

    with pytest.raises(spmd.RankError) as caught:
        spmd.run(fail, ranks=2, show=False)
    assert isinstance(caught.value.__cause__, OnlyHere)
    assert caught.value.__cause__.number == 7


def test_a_bad_call_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="ranks is 0: it must be a whole number, at least 1"):
        spmd.run(print, ranks=0)
    with pytest.raises(ValueError, match="timeout is -1: it must be a number of seconds"):
        spmd.run(print, ranks=2, timeout=-1)
    with pytest.raises(ValueError, match="backend is 'mpi'"):
        spmd.run(print, ranks=2, backend="mpi")
    with pytest.raises(TypeError, match="needs a function"):
        spmd.run("print", ranks=2)


def skipped_backward():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    if dist.get_rank() == 1:
        return
    loss.backward()  # here


def stuck_before_backward():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    if dist.get_rank() == 1:
        threading.Event().wait()  # here
    loss.backward()  # here


@pytest.mark.parametrize(("function", "kind"), [(skipped_backward, "early_return"), (stuck_before_backward, "missing")])
def test_a_hang_in_collectives_that_ddp_starts_itself_is_explained_too(function, kind):
    with pytest.raises(spmd.HangError) as caught:
        spmd.run(function, ranks=3, timeout=SHORT, show=False)
    cause, text = caught.value.cause, str(caught.value)
    assert (cause.kind, cause.ranks) == (kind, (1,)), text
    assert "Ranks 0 and 2 wait for rank 1 in\n  all_reduce of float32[20]" in text, text
    for line in marked_lines(function):
        assert f"test_failures.py, line {line}:" in text, text


def rendezvous_without_rank_1():
    if dist.get_rank() == 1:
        threading.Event().wait()  # here
    dist.init_process_group("gloo")  # here


def rendezvous_at_a_taken_port(port):
    os.environ["MASTER_PORT"] = str(port)
    try:
        dist.init_process_group("gloo")  # here
    except dist.DistNetworkError:
        return


def test_a_rendezvous_that_one_rank_misses_is_explained():
    with pytest.raises(spmd.HangError) as caught:
        spmd.run(rendezvous_without_rank_1, ranks=3, timeout=SHORT, show=False)
    cause, text = caught.value.cause, str(caught.value)
    assert (cause.kind, cause.ranks) == ("missing", (1,)), text
    for line in marked_lines(rendezvous_without_rank_1):
        assert f"test_failures.py, line {line}:" in text, text


def test_a_taken_port_is_rank_0s_error_and_the_others_wait():
    with socket.create_server(("127.0.0.1", 0)) as stranger, pytest.raises(spmd.HangError) as caught:
        spmd.run(rendezvous_at_a_taken_port, stranger.getsockname()[1], ranks=3, timeout=SHORT, show=False)
    cause, text = caught.value.cause, str(caught.value)
    assert cause.ranks == (0,), text
    assert "Ranks 1 and 2 wait for rank 0 in\n  init_process_group" in text, text
    assert "Rank 0 returned: its own init_process_group, at " in text
    assert "EADDRINUSE" in text


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


def play_ping_pong(balls):
    """Rank 0 serves, rank 1 returns; after so many balls rank 1 walks off."""
    x = torch.ones(1)
    for ball in itertools.count():
        if dist.get_rank() == 0:
            dist.send(x, 1)
        elif ball < balls:
            dist.recv(x, 0)
        else:
            threading.Event().wait()


def test_messages_that_never_end_are_told_from_ranks_that_stand_still():
    with pytest.raises(spmd.HangError) as endless:
        spmd.run(play_ping_pong, 10**9, ranks=2, timeout=SHORT, show=False)
    assert all(rank.messages > 100 and rank.moving for rank in endless.value.ranks)
    with pytest.raises(spmd.HangError) as still:
        spmd.run(play_ping_pong, 5, ranks=2, timeout=SHORT, show=False)
    assert [rank.messages for rank in still.value.ranks] == [6, 5]
    assert not any(rank.moving for rank in still.value.ranks)


def sends_to_nobody():
    dist.send(torch.ones(4), dist.get_rank() + 1)  # here


def receives_from_nobody():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(4), group_src=-1)  # here


@pytest.mark.parametrize(("function", "words"), [(sends_to_nobody, "send with dst=3: there are ranks 0 to 2"),
                                                 (receives_from_nobody, "ranks count from 0 to 2")])  # fmt: skip
def test_a_peer_that_does_not_exist_is_refused(function, words):
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(function, ranks=3, timeout=SHORT, show=False)
    assert caught.value.cause.kind == "raised"
    assert words in str(caught.value)
    assert f"line {marked_lines(function)[0]}:" in str(caught.value)


class NeedsTwo(Exception):
    def __init__(self, code, why):
        super().__init__(f"{code}: {why}")


def raises_what_cannot_be_rebuilt():
    if dist.get_rank() == 1:
        raise NeedsTwo(7, "for a reason")  # here
    dist.barrier()


class Stays:
    def __setstate__(self, state):
        raise RuntimeError("not in this process")

    def __getstate__(self):
        return {"a": 1}


def test_what_cannot_be_rebuilt_here_is_said_with_its_rank():
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(raises_what_cannot_be_rebuilt, ranks=2, show=False)
    assert "Rank 1 raised" in str(caught.value)
    assert "NeedsTwo: 7: for a reason" in str(caught.value)
    assert f"line {marked_lines(raises_what_cannot_be_rebuilt)[0]}:" in str(caught.value)
    with pytest.raises(spmd.RankError, match="what it returned cannot be rebuilt in this process"):
        spmd.run(Stays, ranks=2, show=False)


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


@pytest.mark.parametrize("function", [hides_the_lost_peer, leaves_after_the_lost_peer, loses_its_peer_in_backward])
def test_the_peers_of_a_killed_rank_are_not_blamed_whatever_they_raise(function):
    for _ in range(4):  # which of them is heard of first is a race
        with pytest.raises(spmd.RankError) as caught:
            spmd.run(function, ranks=3, show=False)
        assert (caught.value.cause.kind, caught.value.cause.ranks) == ("died", (1,)), str(caught.value)


def wrong_timeout():
    dist.new_group([0, 1], timeout=30)  # here


def wrong_type_on_one_rank():
    x = torch.ones(4)
    dist.all_reduce(x.numpy() if dist.get_rank() == 1 else x)  # here


def no_group():
    dist.all_reduce(torch.ones(2), group=[0, 1])  # here


@pytest.mark.parametrize("function", [wrong_timeout, wrong_type_on_one_rank, no_group])
def test_an_error_of_arguments_is_the_cause(function):
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(function, ranks=2, timeout=SHORT, show=False)
    assert caught.value.cause.kind == "raised", str(caught.value)
    assert f"line {marked_lines(function)[0]}:" in str(caught.value), str(caught.value)


def message_too_large():
    if dist.get_rank() == 0:
        dist.send(torch.ones(100_000), 1)
    else:
        dist.recv(torch.ones(10), 0)  # here


def test_a_message_larger_than_its_buffer_names_the_receive():
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(message_too_large, ranks=2, timeout=SHORT, show=False)
    assert caught.value.cause.ranks == (1,)
    assert f"line {marked_lines(message_too_large)[0]}:" in str(caught.value), str(caught.value)


def test_variables_must_be_strings():
    with pytest.raises(TypeError, match="env sets 'MASTER_PORT' to 29500: names and values"):
        spmd.run(print, ranks=2, env={"MASTER_PORT": 29500})


def messages_without_end():
    x, rank = torch.ones(4), dist.get_rank()
    while True:
        if rank == 0:
            dist.send(x, 1)  # here
        else:
            dist.recv(x, 0)  # here


def test_a_loop_of_messages_without_end_is_no_deadlock():
    with pytest.raises(spmd.HangError) as caught:
        spmd.run(messages_without_end, ranks=2, timeout=SHORT, show=False)
    cause, text = caught.value.cause, str(caught.value)
    assert (cause.kind, set(cause.ranks)) == ("busy", {0, 1}), text
    assert "Messages still pass" in text
    for line in marked_lines(messages_without_end):
        assert f"line {line}:" in text, text
