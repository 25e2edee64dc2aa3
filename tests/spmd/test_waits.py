"""Ranks that wait in vain, or talk without end: in what, for whom, and since which line."""

import itertools
import os
import socket
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from marks import SHORT, marked_lines

from course_lib import spmd


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
        assert line in text, text


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
        assert line in text, text


def test_a_taken_port_is_rank_0s_error_and_the_others_wait():
    with socket.create_server(("127.0.0.1", 0)) as stranger, pytest.raises(spmd.HangError) as caught:
        spmd.run(rendezvous_at_a_taken_port, stranger.getsockname()[1], ranks=3, timeout=SHORT, show=False)
    cause, text = caught.value.cause, str(caught.value)
    assert cause.ranks == (0,), text
    assert "Ranks 1 and 2 wait for rank 0 in\n  init_process_group" in text, text
    assert "Rank 0 returned: its own init_process_group, at " in text
    assert "EADDRINUSE" in text


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
        assert line in text, text


def gives_up_waiting():
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    if dist.get_rank() == 1:
        threading.Event().wait()  # here
    dist.barrier()  # here


def test_a_rank_that_gave_up_waiting_is_not_the_cause():
    with pytest.raises(spmd.SpmdError) as caught:
        spmd.run(gives_up_waiting, ranks=2, timeout=30, show=False)
    cause, text = caught.value.cause, str(caught.value)
    assert (cause.kind, cause.ranks) == ("missing", (1,)), text
    assert "A rank gave up waiting" in text
    for line in marked_lines(gives_up_waiting):
        assert line in text, text
