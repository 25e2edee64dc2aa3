"""What is said of the steps: losses and norms, read from the device once in a while; speed, memory, time left."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from torch import Tensor

from course_lib.collectives.native import all_gather_into
from course_lib.models import flops_per_token
from course_lib.trainer.engines.base import dtype_of
from course_lib.trainer.job import Job
from course_lib.trainer.peak import peak_of
from course_lib.training.precision import Step

MFU = "6 x parameters in matrix products + 12 x layers x dim x sequence FLOPs a token (PaLM, appendix B)"


@dataclass
class Meter:
    """Collects steps of a job, and every so often tells them: one exchange between the ranks and one wait for a GPU.

    Its lines are those of the log (see `log.py`).
    """

    job: Job
    pending: list[dict[str, Any]] = field(default_factory=list)
    shares: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        job = self.job
        peak = peak_of(job.ranks.device, _computed_in(job))
        self.source = peak.source
        self.peak = sum(row[0] for row in _gathered(torch.tensor([peak.flops], device=job.ranks.device).double()))
        self.flops = flops_per_token(job.config, job.options.sequence)
        self.seconds, self.steps, self.intervals = 0.0, 0, 0  # told so far
        self.begin = time.perf_counter()

    def restart(self) -> None:
        """The time from the last telling until now is not that of steps: a validation, a checkpoint."""
        self.begin = time.perf_counter()

    def add(self, share: Tensor, step: Step, lr: float) -> None:
        """Note a step that was just taken. Nothing is read from the device."""
        line = {"step": self.job.step, "loss": None, "lr": lr, "grad_norm": None, "taken": step.taken}
        self.pending.append(line | ({"scale": self.job.scale.value} if self.job.scale else {}))
        self.shares.append(share)
        self.norms.append(step.norm)

    def tell(self) -> list[dict[str, Any]]:
        """The lines of the steps since the last telling; the last has their speed. The same on all ranks."""
        if not self.pending:
            return []
        memory = torch.tensor([memory_bytes(self.job.ranks.device)], device=self.shares[0].device)
        # Gathered and added here in float64, not all-reduced: exact, so that no order of adding can show in the log.
        rows = _gathered(torch.cat([torch.stack(self.shares).double(), memory.double()]))
        losses = torch.tensor(rows, dtype=torch.float64)[:, :-1].mean(0).tolist()
        norms = torch.stack(self.norms).tolist()
        lines, took = self.pending, time.perf_counter() - self.begin
        for line, loss, norm in zip(lines, losses, norms, strict=True):
            line["loss"], line["grad_norm"] = loss, norm if math.isfinite(norm) else None
        tokens = self.job.options.batch * self.job.options.sequence * len(lines) / took
        lines[-1] |= {
            "tokens_per_second": tokens,
            "mfu": tokens * self.flops / self.peak,
            "memory_bytes": int(max(row[-1] for row in rows)),
            "seconds": took,
        }
        self.intervals += 1
        if self.intervals <= 2:  # the first interval pays for starting up: it counts while it is the only one
            self.seconds, self.steps = 0.0, 0
        self.seconds, self.steps = self.seconds + took, self.steps + len(lines)
        self.pending, self.shares, self.norms = [], [], []
        self.restart()
        return lines

    def progress(self, line: dict[str, Any]) -> str:
        """One line for a person, from the last of `tell`."""
        options = self.job.options
        left = (options.steps - line["step"]) * self.seconds / self.steps
        doubt = " (the cores were busy with something else while the peak was measured)" if line["mfu"] > 1 else ""
        return (
            f"step {line['step']:>{len(str(options.steps))}}/{options.steps}  loss {line['loss']:.4f}  "
            f"{line['tokens_per_second']:,.0f} tokens/s  MFU {line['mfu']:.1%}{doubt}  "
            f"memory {line['memory_bytes'] / 1e9:.2f} GB  {clock(left)} left"
        )


def is_finite(line: dict[str, Any]) -> bool:
    """Whether a step's loss is a number, and its gradient's norm too if the step was taken."""
    return math.isfinite(line["loss"]) and (line["grad_norm"] is not None or not line["taken"])


def memory_bytes(device: torch.device) -> int:
    """Of this rank: the most that torch held on its GPU so far; on the CPU, what the process holds now (RSS)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return psutil.Process().memory_info().rss


def clock(seconds: float) -> str:
    """1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _computed_in(job: Job) -> torch.dtype:
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(job.options.precision, dtype_of(job.options))


def _gathered(mine: Tensor) -> list[list[float]]:
    """Every rank's numbers, on every rank."""
    n = torch.distributed.get_world_size()
    rows = mine.new_empty(n, mine.numel())
    all_gather_into(rows, mine)
    return rows.tolist()
