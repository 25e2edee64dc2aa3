"""What the tests of the trainer share: a run on ranks, a process that is followed line by line, a log read back."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
# 12 sequences a step divide by 1, 2, 3 and 4 ranks.
SMALL = ["--seq-len", "32", "--batch", "12", "--log-every", "1", "--validate-on", "5", "--sample", "0"]
SMALL += ["--device", "cpu"]
HALF = ["--precision", "fp16", "--batch", "2", "--seq-len", "8"]  # float16 is slow on CPUs


def leave() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def remove(run: Path) -> None:
    shutil.rmtree(run)


def fill_the_disk(run: Path) -> None:
    """For the log alone."""
    (run / "log.jsonl").unlink()
    (run / "log.jsonl").symlink_to("/dev/full")


def on_a_rank(
    arguments: list[str], at: int | None, do: Callable[[], None], guilty: int, scale: float | None, draws: bool
) -> tuple[int, str]:
    """What each rank does: the trainer; one rank does something right after a step, or the loss scale is absurd.

    draws: to draw the loss takes a second, most of it matplotlib's import, and only one test looks at it. Returns the
    exit status and what was said.
    """
    if not draws:
        sys.modules["course_lib.trainer.plot"] = SimpleNamespace(draw_losses=lambda *_: None)
    from course_lib.trainer import job, main

    take = job.Job.take

    def taken(self, window, total):
        done = take(self, window, total)
        if self.step == at and dist.get_rank() == guilty:
            do()
        return done

    job.Job.take = taken
    if scale is not None:
        loss_scale = job.LossScale
        job.LossScale = lambda value=scale, quiet=0: loss_scale(value, quiet=quiet)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(arguments)
    return status, said.getvalue()


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def validations_of(folder: Path) -> list[tuple]:
    return [(line["step"], line["loss"]) for line in log_of(folder) if line.get("event") == "validated"]


def steps_of(folder: Path) -> list[tuple]:
    """What the log says of each step, without what depends on the clock."""
    keys = ("step", "loss", "lr", "grad_norm", "taken")
    return [tuple(line[key] for key in keys) for line in log_of(folder) if "event" not in line]


class Process:
    """A command in a session of its own, whose output is read line by line. Nothing of it outlives the test."""

    def __init__(self, *command: str) -> None:
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[str] = []

    def until(self, words: str) -> str:
        """Read on until a line has these words; that line. An error with all that was said if none has."""
        for line in self.popen.stdout:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"ended without {words!r}:\n{''.join(self.lines)}")

    def end(self) -> int:
        """Read to the end. The exit status."""
        self.lines += self.popen.stdout
        return self.popen.wait()

    def said(self) -> str:
        return "".join(self.lines)

    def rank(self, rank: int) -> psutil.Process:
        """The process of a rank that this torchrun has started and that runs now."""
        for child in psutil.Process(self.popen.pid).children(recursive=True):
            if child.environ().get("RANK") == str(rank) and child.environ().get("LOCAL_RANK"):
                return child
        raise AssertionError(f"no rank {rank} runs:\n{self.said()}")
