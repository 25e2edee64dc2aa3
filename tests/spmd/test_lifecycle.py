"""No process, file or descriptor is left over, however a run or its notebook ends."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lib import spmd

pytestmark = pytest.mark.serial  # what must be gone within 2 s needs the machine for itself

ROOT = Path(__file__).resolve().parents[2]


def gone_within(processes, seconds):
    """Whether they end in time. (A zombie has ended; its new parent may be a container's init that never reaps.)"""
    deadline = time.monotonic() + seconds
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def ranks_of(server):
    return [p for p in server.children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def test_twenty_runs_leak_no_process_file_or_descriptor(tmp_path, monkeypatch):
    def work():
        x = torch.ones(4)
        dist.all_reduce(x)

    def fail():
        if dist.get_rank() == 1:
            raise ValueError("as planned")
        dist.barrier()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spmd.run(work, ranks=2)
    me = psutil.Process()
    before = me.num_fds(), len(me.children(recursive=True)), me.num_threads()
    for turn in range(20):
        if turn % 5 == 4:
            with pytest.raises(spmd.RankError):
                spmd.run(fail, ranks=2, show=False)
        else:
            spmd.run(work, ranks=2)
    assert (me.num_fds(), len(me.children(recursive=True)), me.num_threads()) == before
    assert list(tmp_path.iterdir()) == []


def test_processes_that_a_rank_started_end_with_the_run():
    def spawn():
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=dist.get_rank() == 0
        )
        return child.pid

    children = spmd.run(spawn, ranks=2)
    assert not any(psutil.pid_exists(pid) for pid in children)


def test_a_run_inside_a_rank_goes_with_it(tmp_path, monkeypatch):
    def hang():
        dist.recv(torch.ones(1), (dist.get_rank() + 1) % 2)

    def run_inside():
        spmd.run(hang, ranks=2)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(spmd.HangError):
        spmd.run(run_inside, ranks=1, timeout=6, show=False)
    assert list(tmp_path.iterdir()) == []
    server = [p for p in psutil.Process().children() if "course_lib.spmd import server" in " ".join(p.cmdline())]
    assert len(server) == 1
    assert server[0].children(recursive=True) == []


def script(body):
    """Run a program that uses spmd; its standard output is read line by line."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


HANGS = """
    import torch.distributed as dist
    from course_lib import spmd

    def hang(path):
        open(f"{path}/{dist.get_rank()}", "w").close()
        dist.recv(dist.torch.ones(1), (dist.get_rank() + 1) % 2)

    def fine():
        return dist.get_rank()
"""


def wait_for_files(folder, count):
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.02)


def test_ctrl_c_ends_the_run_and_the_next_one_works(tmp_path):
    program = script(
        HANGS
        + f"""
    try:
        spmd.run(hang, {str(tmp_path)!r}, ranks=2)
    except KeyboardInterrupt:
        print("caught")
    print(spmd.run(fine, ranks=2))
    """
    )
    wait_for_files(tmp_path, 2)
    server = psutil.Process(program.pid).children()[0]
    ranks = ranks_of(server)
    assert len(ranks) == 2
    program.send_signal(signal.SIGINT)
    out, _ = program.communicate(timeout=60)
    assert "caught" in out
    assert "rank 0: in recv of float32[1] from rank 1" in out, out
    assert out.splitlines()[-1] == "[0, 1]"
    assert gone_within([server, *ranks], 2)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_notebook_leaves_no_process_and_no_folder(tmp_path, how):
    started, folder = tmp_path / "started", tmp_path / "temporary"
    started.mkdir()
    folder.mkdir()
    program = script(
        f"import tempfile; tempfile.tempdir = {str(folder)!r}"
        + textwrap.dedent(HANGS)
        + f"spmd.run(hang, {str(started)!r}, ranks=2)"
    )
    wait_for_files(started, 2)
    server = psutil.Process(program.pid).children()[0]
    ranks = ranks_of(server)
    assert len(ranks) == 2
    program.send_signal(how)
    program.wait()
    assert gone_within([server, *ranks], 2)
    assert list(folder.iterdir()) == []


def test_a_killed_fork_server_is_replaced():
    def fine():
        return dist.get_rank()

    assert spmd.run(fine, ranks=2) == [0, 1]

    def kill_server():
        os.kill(os.getppid(), signal.SIGKILL)
        dist.recv(torch.ones(1), (dist.get_rank() + 1) % 2)

    with pytest.raises(RuntimeError, match="The process that starts the ranks was killed by signal 9"):
        spmd.run(kill_server, ranks=2)
    assert spmd.run(fine, ranks=2) == [0, 1]


def test_two_programs_at_once_do_not_meet():
    body = """
    import torch, torch.distributed as dist
    from course_lib import spmd

    def total(value):
        x = torch.tensor([float(value)])
        for _ in range(20):
            dist.all_reduce(x)
            x /= dist.get_world_size()
        return x.item()

    for _ in range(3):
        assert spmd.run(total, VALUE, ranks=3) == [VALUE] * 3
    print("fine")
    """
    programs = [script(body.replace("VALUE", str(value))) for value in (1.0, 2.0)]
    for program in programs:
        out, _ = program.communicate(timeout=100)
        assert out.splitlines()[-1] == "fine", out
