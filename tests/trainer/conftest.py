"""A small corpus, runs of the trainer on ranks that start at once, and torchrun itself where that is the subject."""

import contextlib
from pathlib import Path

import cloudpickle
import psutil
import pytest
import trainer_runs
from trainer_runs import SMALL, Process, leave, on_a_rank

from course_lib import spmd

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "that", "dog", "slept", "near", "its", "old", "blue", "door"]


@pytest.fixture(scope="session", autouse=True)
def by_value():
    """A rank then need not find this folder's modules."""
    cloudpickle.register_pickle_by_value(trainer_runs)
    yield
    cloudpickle.unregister_pickle_by_value(trainer_runs)


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """A folder of 40 files, with words that a model learns in ten steps."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(40):
        lines = (" ".join(WORDS[(line * number + i) % 15] for i in range(5 + line % 7)) for line in range(25))
        (folder / f"{number:02}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def heard(text):
    """A function: heard(folder, ranks, *options) runs the trainer. Returns each rank's (exit status, what it said)."""

    def run(folder: Path, ranks: int, *options: str, at=None, do=leave, guilty=0, scale=None, draws=False):
        arguments = ["--data", str(text), *SMALL, "--folder", str(folder), *options]
        how = (at, do, guilty, scale, draws)
        return list(spmd.run(on_a_rank, arguments, *how, ranks=ranks, timeout=120, show=False))

    return run


@pytest.fixture(scope="session")
def train(heard):
    """As `heard`, and returns the exit status of each rank."""
    return lambda *arguments, **how: [status for status, _ in heard(*arguments, **how)]


@pytest.fixture
def start(text):
    """A function that starts the trainer on small data: start(folder, *options, ranks=2 or None, torchrun=[...])."""
    started = []

    def begin(folder: Path, *options: str, ranks: int | None = None, torchrun: tuple[str, ...] = ()) -> Process:
        command = ["course_lib.trainer", "--data", str(text), *SMALL, "--folder", str(folder), *options]
        if ranks is not None:
            launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *torchrun, "-m"]
            command = [*launcher, *command]
        started.append(Process(*command))
        return started[-1]

    yield begin
    for process in started:
        left = [process.popen]
        if process.popen.poll() is None:
            left += psutil.Process(process.popen.pid).children(recursive=True)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                one.kill()
        process.popen.wait()
        process.popen.stdout.close()
