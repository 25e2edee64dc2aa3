"""In a real kernel: functions of cells, the reader's own lines in the explanation, Ctrl-C, a killed kernel."""

import re
import signal
import time
from contextlib import contextmanager

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

pytestmark = pytest.mark.serial  # what must be gone within 2 s needs the machine for itself

SETUP = """
import torch, torch.distributed as dist
from course_lib import spmd
spmd.run(dist.get_rank, ranks=2)
"""
HANG = """
def wait_for_nothing():
    x = torch.ones(3)
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    dist.barrier()

spmd.run(wait_for_nothing, ranks=2, timeout=TIMEOUT)
"""


@contextmanager
def started():
    """A kernel that has had its first run of ranks, which takes longest: (its manager, a client)."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        run_cell(client, SETUP)
        yield manager, client
    finally:
        client.stop_channels()
        if manager.is_alive():
            manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel():
    """One for all tests that leave it as it was: to start one takes seconds."""
    with started() as kernel:
        yield kernel


@pytest.fixture
def own_kernel():
    with started() as kernel:
        yield kernel


def run_cell(client, code, timeout=60):
    """What the cell showed: (its printed text, its error as a reader sees it)."""
    shown, error = [], ""

    def hook(message):
        nonlocal error
        if message["msg_type"] == "stream":
            shown.append(message["content"]["text"])
        elif message["msg_type"] == "error":
            error = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(message["content"]["traceback"]))

    client.execute_interactive(code, timeout=timeout, output_hook=hook)
    return "".join(shown), error


def test_the_explanation_names_the_cell_and_shows_nothing_of_the_launcher(kernel):
    _, client = kernel
    number = client.execute_interactive("pass")["content"]["execution_count"] + 1
    _, error = run_cell(client, HANG.replace("TIMEOUT", "2"))
    assert error.startswith("HangError: No end after 2 s."), error
    assert f"cell In[{number}], line 4: dist.recv(x, 1)" in error
    assert f"cell In[{number}], line 5: dist.barrier()" in error
    assert "launch.py" not in error
    assert "Traceback" not in error


def test_exception_classes_of_a_cell_can_be_caught(kernel):
    _, client = kernel
    shown, error = run_cell(
        client,
        """
class Mine(Exception):
    pass

def fail():
    if dist.get_rank() == 1:
        raise Mine("from a rank")
    dist.barrier()

try:
    spmd.run(fail, ranks=2)
except spmd.RankError as failed:
    print(isinstance(failed.__cause__, Mine), failed.__cause__)
""",
    )
    assert (shown, error) == ("True from a rank\n", "")


def test_objects_of_a_cells_own_class_can_be_sent_on_by_the_ranks(kernel):
    _, client = kernel
    shown, error = run_cell(
        client,
        """
class Box:
    def __init__(self, content):
        self.content = content

def exchange(box):
    boxes = [None] * dist.get_world_size()
    dist.all_gather_object(boxes, Box(box.content + dist.get_rank()))
    return [box.content for box in boxes]

print(spmd.run(exchange, Box(5), ranks=2))
""",
    )
    assert (shown, error) == ("[[5, 6], [5, 6]]\n", "")


def wait_for_ranks(manager, count):
    deadline = time.monotonic() + 60
    while True:
        kernel = psutil.Process(manager.provisioner.pid)
        found = [p for p in kernel.children(recursive=True) if "course_lib.spmd import server" in " ".join(p.cmdline())]
        if len(found) == 1 + count:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_interrupting_a_hanging_cell_says_where_the_ranks_were(kernel):
    manager, client = kernel
    hanging = client.execute(HANG.replace("TIMEOUT", "600"))
    wait_for_ranks(manager, 2)
    time.sleep(0.4)  # until they have joined
    manager.interrupt_kernel()
    text, idle = "", False
    while not idle:
        message = client.get_iopub_msg(timeout=30)
        content = message["content"]
        text += content.get("text", "") + "\n".join(content.get("traceback", []))
        idle = message["parent_header"].get("msg_id") == hanging and content.get("execution_state") == "idle"
    assert "KeyboardInterrupt" in text
    assert "Interrupted. The ranks were" in text
    assert "rank 0: in recv of float32[3] from rank 1" in text
    client.get_shell_msg(timeout=30)
    shown, error = run_cell(client, "print(spmd.run(dist.get_rank, ranks=2))")
    assert (shown, error) == ("[0, 1]\n", "")


def test_a_killed_kernel_leaves_no_process(own_kernel):
    manager, client = own_kernel
    client.execute(HANG.replace("TIMEOUT", "600"))
    left = wait_for_ranks(manager, 2)
    psutil.Process(manager.provisioner.pid).send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 2
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in left):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
