"""Which backend and devices a run gets, and why, in one sentence."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from . import flight

# Variables a rank needs before it talks to its peers. Ranks of one run share one machine: the loopback interface.
_LOOPBACK = "lo0" if os.uname().sysname == "Darwin" else "lo"


@dataclass(frozen=True)
class Choice:
    """`backend` is what init_process_group gets; `devices[rank]` the device of each rank; `why` one sentence."""

    backend: str
    devices: tuple[str, ...]
    why: str
    fell_back: bool = False  # there are GPUs, but too few for one each


def choose(ranks: int, backend: str | None = None) -> Choice:
    """One GPU per rank with NCCL (and gloo for CPU tensors) where there are enough GPUs; gloo on the CPU elsewhere.

    backend: "gloo" or "nccl" to insist, None to choose. Raises ValueError for an unknown backend or too few GPUs.
    """
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(f"ranks is {ranks!r}: it must be a whole number, at least 1")
    gpus = torch.cuda.device_count()
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f"backend is {backend!r}: it must be 'gloo' (CPU), 'nccl' (one GPU per rank) or None (choose)")
    if backend == "nccl" and gpus < ranks:
        raise ValueError(f"nccl needs one GPU per rank: {ranks} ranks, {gpus} GPUs. Ask for backend='gloo' instead")
    if backend != "gloo" and gpus >= ranks:
        devices = tuple(f"cuda:{rank}" for rank in range(ranks))
        return Choice("cpu:gloo,cuda:nccl", devices, f"nccl: {gpus} GPUs for {ranks} ranks, one each")
    cpus = ("cpu",) * ranks
    if backend == "gloo":
        return Choice("gloo", cpus, "gloo on the CPU, as asked")
    if gpus:
        why = f"gloo on the CPU: {ranks} ranks need {ranks} GPUs for nccl and there are {gpus}"
        return Choice("gloo", cpus, why, fell_back=True)
    return Choice("gloo", cpus, "gloo on the CPU: no GPU here")


def environment(choice: Choice, rank: int, port: int) -> dict[str, str]:
    """The variables torchrun would set for this rank, and those that keep gloo on this machine.

    Where the reader's own environment sets GLOO_SOCKET_IFNAME or a thread count, that stays.
    """
    ranks = str(len(choice.devices))
    return {name: os.environ.get(name, value) for name, value in flight.ENVIRONMENT.items()} | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", _LOOPBACK),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
