"""What a healthy run promises."""

import os
import threading

import pytest
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.timeline import span


def rank_and_size():
    return dist.get_rank(), dist.get_world_size()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_results_come_by_rank(ranks):
    assert spmd.run(rank_and_size, ranks=ranks) == [(rank, ranks) for rank in range(ranks)]


def test_arguments_and_environment_reach_the_ranks(monkeypatch):
    monkeypatch.setenv("SET_IN_THE_NOTEBOOK", "later than the fork server")

    def look(a, b, c=0):
        return a, b, c, os.environ["SET_IN_THE_NOTEBOOK"], os.environ["ASKED"], os.environ["LOCAL_RANK"]

    results = spmd.run(look, 1, [2], c=3, ranks=2, env={"ASKED": "yes"})
    assert results == [(1, [2], 3, "later than the fork server", "yes", str(rank)) for rank in range(2)]


def test_output_comes_grouped_by_rank(capsys):
    def talk():
        rank = dist.get_rank()
        for turn in range(3):
            print(f"turn {turn}")
            dist.barrier()
        os.system(f"echo a child of {rank}")

    spmd.run(talk, ranks=3)
    expected = [f"[{r}] {line}" for r in range(3) for line in ("turn 0", "turn 1", "turn 2", f"a child of {r}")]
    assert capsys.readouterr().out.splitlines() == expected
    spmd.run(talk, ranks=2, show=False)
    assert capsys.readouterr().out == ""


def test_output_of_megabytes_is_cut_in_the_middle(capsys):
    def chatter():
        for number in range(100_000):
            print(f"line {number} " + "x" * 40)

    results = spmd.run(chatter, ranks=2)
    out = capsys.readouterr().out
    assert "[0] line 0 " in out
    assert "[1] line 99999 " in out
    assert "are not shown" in out
    assert len(out) < 200_000
    assert len(results.ranks[0].output) < 80_000


def test_results_of_100_megabytes_come_back_whole():
    def big():
        return torch.full((25_000_000,), float(dist.get_rank()))

    for rank, tensor in enumerate(spmd.run(big, ranks=2)):
        assert tensor.shape == (25_000_000,)
        assert tensor[0] == tensor[-1] == rank


@pytest.mark.parametrize("arguments", [(), ("gloo",), ("gloo", "env://")])
def test_the_callers_own_init_process_group_works(arguments):
    def script(arguments):
        dist.init_process_group(*arguments)
        x = torch.ones(3)
        dist.all_reduce(x)
        dist.destroy_process_group()
        return x[0].item()

    assert spmd.run(script, arguments, ranks=3) == [3.0] * 3


def test_a_second_init_process_group_is_refused_as_torch_does():
    def twice():
        dist.init_process_group("gloo")
        dist.init_process_group("gloo")

    with pytest.raises(spmd.RankError, match="twice"):
        spmd.run(twice, ranks=2, show=False)


def test_a_run_leaves_nothing_to_the_next():
    def remember():
        found = os.environ.get("LEFT_BEHIND"), getattr(torch, "left_behind", None)
        os.environ["LEFT_BEHIND"] = "yes"
        torch.left_behind = "yes"
        return found

    for _ in range(2):
        assert spmd.run(remember, ranks=2) == [(None, None)] * 2


def test_traffic_counts_bytes_and_calls():
    def move():
        rank, n = dist.get_rank(), dist.get_world_size()
        x = torch.ones(10)
        with spmd.traffic() as moved:
            work = dist.isend(x, (rank + 1) % n)
            dist.recv(x, (rank - 1) % n)
            work.wait()
            dist.all_reduce(x)
            dist.all_gather_object([None] * n, "an object: what it calls inside is not counted")
        dist.all_reduce(x)
        return moved

    for moved in spmd.run(move, ranks=3):
        assert (moved.sent, moved.received, moved.messages) == (40, 40, 1)
        assert moved.calls == {"all_reduce": 1, "all_gather_object": 1}
        assert moved.collective_bytes["all_reduce"] == 40
    with pytest.raises(RuntimeError, match="inside a rank"), spmd.traffic():
        pass


def test_the_timeline_has_spans_of_every_rank():
    def work():
        with span("compute", step=1):
            torch.ones(10).sum()
        dist.barrier()
        dist.all_reduce(torch.ones(1000), async_op=True).wait()

    timeline = spmd.run(work, ranks=2).timeline
    for spans in timeline.spans_by_rank:
        kinds = {(s.name, s.kind, s.lane) for s in spans}
        assert kinds >= {("compute", "compute", "main"), ("barrier", "comm", "main"), ("all_reduce", "comm", "network")}


def test_device_is_the_ranks_own():
    assert spmd.run(spmd.device, ranks=2, backend="gloo") == [torch.device("cpu")] * 2
    with pytest.raises(RuntimeError, match="call it in the function"):
        spmd.device()


@pytest.mark.parametrize(
    ("gpus", "ranks", "asked", "backend", "device", "why"),
    [
        (0, 4, None, "gloo", "cpu", "no GPU here"),
        (2, 4, None, "gloo", "cpu", "4 ranks need 4 GPUs for nccl and there are 2"),
        (4, 4, None, "cpu:gloo,cuda:nccl", "cuda:3", "4 GPUs for 4 ranks"),
        (4, 4, "gloo", "gloo", "cpu", "as asked"),
    ],
)
def test_the_backend_is_chosen_by_the_gpus_there_are(monkeypatch, gpus, ranks, asked, backend, device, why):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    choice = spmd.choose(ranks, asked)
    assert (choice.backend, choice.devices[-1]) == (backend, device)
    assert why in choice.why
    assert choice.fell_back == (0 < gpus < ranks)


def test_nccl_without_enough_gpus_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="nccl needs one GPU per rank: 2 ranks, 1 GPUs"):
        spmd.choose(2, "nccl")


def test_a_thread_that_communicates_is_recorded_beside_the_program():
    def both_at_once():
        beside = dist.new_group()
        x, y = torch.ones(1 << 20), torch.ones(1 << 20)

        def reduce_beside():
            for _ in range(20):
                dist.all_reduce(y, group=beside)

        thread = threading.Thread(target=reduce_beside)
        with spmd.traffic() as moved:
            thread.start()
            for _ in range(20):
                dist.all_reduce(x)
            thread.join()
        return moved.calls["all_reduce"]

    results = spmd.run(both_at_once, ranks=2)
    assert results == [40, 40]
    for spans in results.timeline.spans_by_rank:
        lanes = [s.lane for s in spans if s.name == "all_reduce"]
        assert (lanes.count("main"), lanes.count("network")) == (20, 20)
