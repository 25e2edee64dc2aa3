"""This process's end of the fork server: start it, ask it for ranks, hear of their ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any


class ServerLost(RuntimeError):
    """The fork server is gone, or could not start."""


class Client:
    """A running fork server. `link` is a socket to select on; `messages()` reads what has come."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the server lives)
        # The server forks processes that must not start threads behind our back: one thread for every library.
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        env["PYTHONUNBUFFERED"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from course_lib.spmd import server; server.main({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env=env,
            start_new_session=True,
        )
        theirs.close()
        self._inbox = b""
        self._ready = False
        self.dirty = False  # ranks were forked and not yet ended
        self.owner = os.getpid()

    def wait_ready(self) -> None:
        """Block until the server has imported torch. Raises ServerLost with its last words if it cannot."""
        while not self._ready:
            self._ready = "ready" in self.messages()

    def messages(self) -> list[Any]:
        """At least one message from the server. Raises ServerLost when it is gone."""
        while True:
            data = self.link.recv(65536)
            if not data:
                raise ServerLost(self._last_words())
            *lines, self._inbox = (self._inbox + data).split(b"\n")
            if lines:
                return [json.loads(line) for line in lines]

    def fork(self, rank: int, folder: str, control: socket.socket) -> None:
        self.dirty = True
        line = json.dumps({"rank": rank, "dir": folder}).encode() + b"\n"
        self._say(lambda: socket.send_fds(self.link, [line], [control.fileno()]))

    def ask_stacks(self) -> None:
        self._say(lambda: self.link.sendall(b'"stacks"\n'))

    def end(self) -> list[Any]:
        """End the run: nothing of it is left when this returns. Returns the messages heard meanwhile.

        A Ctrl-C that comes meanwhile is raised when this is done: it takes a moment, and half of it is worse than all.
        """
        heard: list[Any] = []
        with _interrupt_later():
            self._say(lambda: self.link.sendall(b'"end"\n'))
            while "ended" not in heard:
                heard += self.messages()
            self.dirty = False
        return heard

    def _say(self, send: Any) -> None:
        try:
            send()
        except OSError as error:
            raise ServerLost(self._last_words()) from error

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"was killed by signal {-code}" if code < 0 else f"left with exit code {code}"
        said = f" Its last words: {words[-1]}" if words else ""
        return f"The process that starts the ranks {how}.{said} The next run starts a new one."

    def stop(self) -> None:
        """Close the link: the server kills its ranks and leaves."""
        self.link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._errors.close()


@contextlib.contextmanager
def _interrupt_later() -> Iterator[None]:
    """Put a KeyboardInterrupt off until the block is done. (Signals come to the main thread alone.)"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


_client: Client | None = None
_lock = threading.RLock()


@contextlib.contextmanager
def server() -> Iterator[Client]:
    """The server of this process, started if need be, for one run at a time."""
    global _client
    with _lock:
        if _client is not None and _client.owner != os.getpid():
            _client = None  # this process was forked off the one that owns the server
        if _client is not None and _client.dirty:
            _client.stop()  # a second Ctrl-C cut the last run's end short
            _client = None
        if _client is None:
            _client = Client()
        try:
            _client.wait_ready()
            yield _client
        except ServerLost:
            lost, _client = _client, None
            lost.stop()
            raise


def warm_up() -> None:
    """Start the fork server in the background, so that the first run need not wait for it."""
    global _client
    with _lock:
        if _client is None or _client.owner != os.getpid():
            _client = Client()
