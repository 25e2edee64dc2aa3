"""The fork server: a process that has imported torch once and forks ranks from itself.

`main(fd)` talks to the process that started it over the socket `fd`, in lines of JSON:

    -> {"rank": r, "dir": "..."}  with one socket attached   fork a rank (see rank.py)
    -> "stacks"                                              every live rank writes its Python stacks to a file
    -> "end"                                                 kill what is left of the run, then answer "ended"
    <- "ready"                                               torch is imported
    <- {"rank": r, "pid": p}                                 forked
    <- {"rank": r, "exit": status, "at": ns}                 a rank is gone (negative: killed by that signal)
    <- "ended"

It has one thread, never touches CUDA and runs none of the reader's code, so that forking it is safe. When its starter
goes, however it went, the socket closes and the server kills the ranks, removes their folders and leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from typing import Any

# What ranks usually need: importing these takes seconds, a fork of a process that has them milliseconds.
_PRELOAD = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch._dynamo",
    "course_lib.spmd.rank",
)
STACK_SIGNAL = signal.SIGUSR1
OWN_FAILURE = 70  # exit code of a rank that failed before or after the reader's function
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing. The socket alone then tells a rank that the server is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Server:
    def __init__(self, link: socket.socket):
        self._link = link
        self._inbox = b""
        self._sockets: list[int] = []  # received, not yet given to a rank
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._folders: set[str] = set()
        self._starter = os.getppid()

    def serve(self) -> None:
        """Answer requests until the starter is gone."""
        wake, waker = socket.socketpair()
        for end in (wake, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._inherited = [self._link, wake, waker]
        self._send("ready")
        try:
            while os.getppid() == self._starter:
                # The time-out is for a starter that died while a copy of its socket lived on in a forked child.
                ready, _, _ = select.select([self._link, wake], [], [], 0.5)
                if wake in ready:
                    wake.recv(4096)
                    self._reap()
                if self._link in ready and not self._receive():
                    break
        finally:
            self._end()

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # the starter is gone: the next turn of the loop sees that
            self._link.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self) -> bool:
        data, sockets, _, _ = socket.recv_fds(self._link, 65536, 64)
        if not data:
            return False
        self._sockets += sockets
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message == "stacks":
                for pid in self._ranks:
                    os.kill(pid, STACK_SIGNAL)
            elif message == "end":
                self._end()
                self._send("ended")
            else:
                self._fork(message["rank"], message["dir"], self._sockets.pop(0))
        return True

    def _fork(self, rank: int, folder: str, control: int) -> None:
        self._folders.add(folder)
        pid = os.fork()
        if pid == 0:
            _become_rank(rank, folder, control, self._inherited)
        os.close(control)
        self._ranks[pid] = rank
        self._send({"rank": rank, "pid": pid})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._ranks.pop(pid, None)  # None: a grandchild that outlived its rank
            if rank is not None:
                self._send({"rank": rank, "exit": os.waitstatus_to_exitcode(status), "at": time.monotonic_ns()})

    def _end(self) -> None:
        """Kill every process of the run, also those that ranks started, and remove its folder."""
        import psutil

        me = psutil.Process()
        while children := me.children(recursive=True):  # orphans come to this process: it is their subreaper
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            for child in children:
                # Direct children are reaped here, others by their parent or, as orphans, in the next turn.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)
            self._reap()
        self._ranks.clear()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()
        for fd in self._sockets:
            os.close(fd)
        self._sockets.clear()


def _become_rank(rank: int, folder: str, control: int, inherited: list[socket.socket]) -> None:
    """In the forked child: cut all ties with the server, then run the rank. Never returns."""
    try:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for end in inherited:
            end.close()
        output = os.open(os.path.join(folder, f"{rank}.out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        sys.stdout.reconfigure(line_buffering=True)
        sys.stderr.reconfigure(line_buffering=True)

        from . import rank as rank_module

        rank_module.main(rank, folder, control)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(OWN_FAILURE)  # only reached when the launcher's own code failed: main does not return


def main(fd: int) -> None:
    """Serve on the socket `fd` until the process that started this one is gone."""
    link = socket.socket(fileno=fd)
    link.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the notebook's process
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for name in _PRELOAD:
        importlib.import_module(name)
    Server(link).serve()
