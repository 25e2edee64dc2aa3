"""Collectives that no Python code called, as torch's flight recorder saw them.

DDP's reducer and functional collectives call the backend from C++, so `record.py` does not see them. Torch's flight
recorder does: per group, how many collectives were begun, and which of them have not ended. It is written down twice a
second, by the beacon's thread, since a rank that hangs in C++ can run no other.

The recorder is private API and may be missing; then such a hang shows as a rank that runs at its line of `backward()`.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .report import Frame, Op

ENVIRONMENT = {"TORCH_FR_BUFFER_SIZE": "200"}  # entries to keep; 0, torch's default, keeps none
_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"}
_dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)


_since = -1  # the last entry of worlds before this one


@dataclass
class Flight:
    """One group's collectives on one rank. `pending`: (name, shape, dtype) of the first that has not ended."""

    group: tuple[int, ...]
    begun: int
    pending: tuple[str, tuple[int, ...] | None, str | None] | None = None
    pending_index: int = -1


def begin() -> None:
    """A new world begins: torch counts its collectives from 1 again, under the same names of groups."""
    global _since
    if _dump is not None:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            _since = max((entry["record_id"] for entry in json.loads(_dump(True, False))["entries"]), default=-1)


def write(path: str) -> None:
    """Write down this process's collectives so far, group by group."""
    if _dump is None or not dist.is_initialized():
        return
    with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):  # another version, another format
        found = _look()
        half = f"{path}.{threading.get_ident()}"  # the beacon's thread and the rank's own may both be here
        with open(half, "wb") as file:
            marshal.dump(found, file)
        os.replace(half, path)


def _look() -> list[tuple]:
    """(name, *fields of Flight) of each group of this process."""
    trace = json.loads(_dump(True, False))
    found = []
    for group in list(c10d._world.pg_map):
        name, members = group.group_name, tuple(dist.get_process_group_ranks(group))
        entries = [e for e in trace["entries"] if e["process_group"][0] == name and e["record_id"] > _since]
        entries = [e for e in entries if not e["is_p2p"]]
        if not entries:
            continue
        begun = max(entry["collective_seq_id"] for entry in entries)
        pending, index = None, -1
        waiting = next((entry for entry in entries if not entry["retired"]), None)
        if waiting is not None:
            shapes, dtypes = waiting["input_sizes"], waiting["input_dtypes"]
            dtype = _DTYPES.get(dtypes[0], dtypes[0]) if dtypes else None
            pending = (waiting["profiling_name"].rpartition(":")[2], tuple(shapes[0]) if shapes else None, dtype)
            index = waiting["collective_seq_id"] - 1
        found.append((name, members, begun, pending, index))
    return found


def read(path: str) -> dict[str, Flight]:
    """By the group's key; empty where nothing was written."""
    if not os.path.exists(path):
        return {}
    with open(path, "rb") as file:
        return {f"flight {name}": Flight(*rest) for name, *rest in marshal.load(file)}


def waiting_in(flights: dict[str, Flight], stack: list[Frame], at: Frame | None) -> Op | None:
    """The collective a rank is stuck in, if its stack ends inside torch and one of its collectives has not ended."""
    inside_torch = bool(stack) and os.path.join("torch", "") in stack[-1].file
    if not inside_torch or at is None:
        return None
    for key, flight in flights.items():
        if flight.pending is not None:
            name, shape, dtype = flight.pending
            return Op(name, flight.group, key, flight.pending_index, shape, dtype, at)
    return None
