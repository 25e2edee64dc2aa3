"""The checks of `python -m course_lib.doctor`: each looks at one thing and says ok, warn or fail, and what to do.

`fail` means the labs will not run; `warn` means they will run, slower or less than they could.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from course_lib.doctor import chromium, facts, install, options

GIB = 2**30
# Variables that people set once for one problem and forget; each changes how ranks find or talk to each other.
NCCL_LOUD = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG")


@dataclass
class Finding:
    """One line of the doctor's report. level: "ok", "warn" or "fail". todo: what to do when it is not ok."""

    level: str
    text: str
    todo: str = ""


def python() -> Finding:
    if reason := install.python_too_old():
        return Finding("fail", f"Python {platform.python_version()}", reason)
    return Finding("ok", f"Python {platform.python_version()} ({sys.executable})")


def packages() -> Finding:
    if lacking := install.missing(["labs"]):
        return Finding("fail", f"missing: {', '.join(lacking)}", "run `make setup`, or install them here")
    return Finding("ok", "all packages of the labs are here")


def torch() -> Finding:
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return Finding("fail", f"torch does not import: {error}", "run `make setup`")
    if not dist.is_available() or not dist.is_gloo_available():
        return Finding("fail", f"torch {torch.__version__} has no gloo", "install a torch with torch.distributed")
    return Finding("ok", f"torch {torch.__version__}, {torch.get_num_threads()} threads, gloo is there")


def cores() -> Finding:
    count = facts.cores()
    threads = os.environ.get("OMP_NUM_THREADS")
    if count < 2:
        return Finding("warn", "1 core", "ranks take turns on it: nothing here will get faster with more ranks")
    if threads and threads.isdigit() and int(threads) > count:
        return Finding("warn", f"OMP_NUM_THREADS={threads} on {count} cores", "unset it: each rank starts that many")
    return Finding("ok", f"{count} cores" + (f", OMP_NUM_THREADS={threads}" if threads else ""))


def memory() -> Finding:
    total, free = facts.memory()
    text = f"{total / GIB:.0f} GiB of memory, {free / GIB:.1f} GiB free"
    if free < 1.5 * GIB:
        return Finding("fail", text, "4 ranks need about 1.5 GiB: close something")
    return Finding("warn", text, "the labs up to 8 ranks want 4 GiB") if free < 4 * GIB else Finding("ok", text)


def shared_memory() -> Finding:
    try:
        size = shutil.disk_usage("/dev/shm")
    except OSError:
        return Finding("ok", "no /dev/shm on this system; not needed by gloo")
    text = f"/dev/shm: {size.free / 2**20:.0f} MiB free"
    if size.free < 256 * 2**20:
        return Finding("warn", text, "data loaders and NCCL need more: docker run --shm-size=2g")
    return Finding("ok", text)


def limit(kind: int, name: str, need: int, flag: str) -> Finding:
    soft, hard = resource.getrlimit(kind)
    text = f"{name}: {'unlimited' if soft == resource.RLIM_INFINITY else soft}"
    if soft != resource.RLIM_INFINITY and soft < need:
        return Finding("warn", text, f"8 ranks want {need}: ulimit {flag} {need}")
    return Finding("ok", text)


def open_files() -> Finding:
    return limit(resource.RLIMIT_NOFILE, "open files per process", 1024, "-n")


def processes() -> Finding:
    return limit(resource.RLIMIT_NPROC, "processes of this user", 512, "-u")


def host_name() -> Finding:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return Finding("warn", f"the host name {name!r} resolves to nothing", "add it to /etc/hosts: gloo may stall")
    return Finding("ok", f"host name {name} -> {address}")


def loopback() -> Finding:
    try:
        address = socket.gethostbyname("localhost")
    except OSError:
        address = "nothing"
    if not address.startswith("127."):
        return Finding("fail", f"localhost resolves to {address}", "it must be 127.0.0.1: put it into /etc/hosts")
    return Finding("ok", f"localhost -> {address}")


def port() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            number = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", number), timeout=5):
                return Finding("ok", f"a port can be bound and reached on 127.0.0.1 (tried {number})")
    except OSError as error:
        return Finding("fail", f"no port on 127.0.0.1: {error}", "ranks talk over it: look at firewall or sandbox")


def gpus() -> Finding:
    try:
        names = facts.gpus()
    except Exception as error:  # a broken driver raises what it likes
        return Finding("warn", f"torch cannot read the GPUs: {error}", "the labs run on the CPU; check nvidia-smi")
    if names:
        return Finding("ok", f"{len(names)} GPU(s): {', '.join(names)}")
    if shutil.which("nvidia-smi"):
        return Finding("warn", "nvidia-smi is here, but torch sees no GPU", "a CPU build of torch? README: SETUP=0")
    return Finding("ok", "no GPU: the labs run on the CPU with gloo")


def variables() -> Finding:
    families = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_")
    names = sorted(name for name in os.environ if name.startswith(families))
    text = ", ".join(f"{name}={os.environ[name]}" for name in names)
    if loud := [name for name in names if name in NCCL_LOUD]:
        return Finding("warn", f"set: {text}", f"{', '.join(loud)} changes how ranks connect: needed?")
    return Finding("ok", f"set: {text}" if names else "no NCCL, gloo or torch.distributed variable is set")


def ranks() -> Finding:
    try:
        return Finding("ok", f"RANKS: {options.ranks(os.environ.get('COURSE_RANKS', ''))}")
    except options.OptionError as error:
        return Finding("fail", f"COURSE_RANKS={os.environ['COURSE_RANKS']}", str(error))


def browser() -> Finding:
    if path := chromium.find():
        return Finding("ok", f"Chromium for the browser tests: {path}")
    return Finding("warn", "no Chromium", "only the browser tests need it: apt install chromium")


CHECKS: tuple[Callable[[], Finding], ...] = (
    python, packages, torch, cores, memory, shared_memory, open_files, processes,
    host_name, loopback, port, gpus, variables, ranks, browser,
)  # fmt: skip
