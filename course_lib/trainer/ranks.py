"""How the processes of a run meet: as torchrun says, or one process alone; each with its device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from course_lib.trainer.ends import Failed, Refused, in_words

T = TypeVar("T")
TOLD = (ValueError, OSError, RuntimeError, Refused, Failed)  # errors that are told to all ranks


@dataclass(frozen=True)
class Ranks:
    """This process among the others. rank: 0 .. n - 1, in the default group. device: where it trains."""

    rank: int
    n: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the rank that speaks and writes for all."""
        return self.rank == 0


def restarts() -> int:
    """How often torchrun has started the processes of this machine again after a failure (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def first_here() -> bool:
    """Whether this process speaks for those of its machine, before they have met."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def met(device: str) -> Iterator[Ranks]:
    """A process group for the run, while the context lasts; one that exists already is used, and left as it is.

    device: auto, cpu or cuda. With GPUs, CPU tensors travel by gloo and those on GPUs by NCCL. Raises Refused where a
    machine has GPUs, and fewer than ranks.
    """
    place = device_for(device)
    mine = not dist.is_initialized()
    if mine:
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        if "WORLD_SIZE" in os.environ:
            try:
                store, rank, n = next(dist.rendezvous("env://"))
            except ValueError as error:
                raise Refused(
                    f"WORLD_SIZE is set, as under torchrun, but ranks cannot meet so ({in_words(error)}): start them "
                    "with torchrun, or unset WORLD_SIZE for one process."
                ) from error
        else:
            store, rank, n = dist.HashStore(), 0, 1
        if n == int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
            store = on_one_machine(store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=n)
    yield Ranks(dist.get_rank(), dist.get_world_size(), place)
    # Not after an error: NCCL would wait here for peers that may be gone, while they or torchrun wait for us to end.
    if mine:
        dist.destroy_process_group()


def on_one_machine(store: dist.Store) -> dist.Store:
    """The store to meet in, where all ranks are on one machine.

    torchrun keeps one store over all its restarts, and torch writes under the same names each time. So a rank that is
    started again may read where its peer listened the time before, and both wait for good (pytorch issue 135712, seen
    here in one of three restarts). With several machines the count of restarts may differ between them and cannot
    name the attempt; there, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun.
    """
    if sys.platform == "linux":
        # Gloo then need not ask for the name of its host, which some networks answer slowly or wrongly.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return dist.PrefixStore(f"attempt {restarts()}", store)


def device_for(device: str) -> torch.device:
    """The device of this process. Raises Refused for GPUs that are not there."""
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and not gpus:
        raise Refused("--device cuda, and torch finds no GPU here: leave it out to train on the CPU.")
    if not gpus:
        return torch.device("cpu")
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks > gpus:
        raise Refused(
            f"{ranks} ranks on this machine need {ranks} GPUs and there are {gpus}: start --nproc-per-node {gpus}, or "
            "add --device cpu."
        )
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(place)
    return place


def all_or_none(action: Callable[[], T]) -> T:
    """action() on every rank, with no collective in it. If it fails on any, all raise Refused with the reason.

    Else those that succeeded would go on, and wait in their next collective for a rank that has left.
    """
    value, reason = None, None
    try:
        value = action()
    except TOLD as error:
        reason = in_words(error)
    reasons = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    said = {text: rank for rank, text in reversed(list(enumerate(reasons))) if text is not None}
    if not said:
        return value
    everywhere = len(said) == 1 and None not in reasons
    raise Refused("; ".join(text if everywhere else f"rank {rank}: {text}" for text, rank in said.items()))


def on_first(action: Callable[[], T]) -> T:
    """action() on rank 0, with no collective in it, and what it returned on all. If it fails, all raise the reason.

    That is Failed where the action raised Failed, and Refused for any other error.
    """
    value = failure = None
    if dist.get_rank() == 0:
        try:
            value = action()
        except TOLD as error:
            failure = error if isinstance(error, Failed) else Refused(in_words(error))
    told = [value, failure]
    dist.broadcast_object_list(told, src=0)
    value, failure = told
    if failure is not None:
        raise failure
    return value
