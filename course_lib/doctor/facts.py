"""What this machine offers: cores, memory, GPUs. In a container: what it is allowed, not what the host has."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def read_number(path: Path) -> int | None:
    """The whole number in a file, None when there is none ("max", or no such file)."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def cores(cgroup: Path = CGROUP) -> int:
    """Cores this process may use: its affinity, and its container's share of processor time, rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return allowed


def memory(cgroup: Path = CGROUP) -> tuple[int, int]:
    """Bytes of memory: (total, free now), as far as this container may go."""
    import psutil

    machine = psutil.virtual_memory()
    limit = read_number(cgroup / "memory.max")
    if limit is None or limit >= machine.total:
        return machine.total, machine.available
    used = read_number(cgroup / "memory.current") or 0
    return limit, max(0, min(machine.available, limit - used))


def gpus() -> list[str]:
    """The names of the GPUs torch can use here, with their memory."""
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in found]


def describe(ranks: int) -> list[str]:
    """What `ranks` ranks find on this machine, a line each: cores, memory, GPUs, the backend and why."""
    from course_lib.spmd.backend import choose

    total, free = memory()
    names = gpus()
    several = f"{len(names)} x {names[0]}" if names and len(set(names)) == 1 else ", ".join(names)
    return [
        f"cores    {cores()}",
        f"memory   {total / 2**30:.0f} GiB, {free / 2**30:.0f} GiB free",
        f"GPUs     {several or 'none'}",
        f"ranks    {ranks}",
        f"backend  {choose(ranks).why}",
    ]
