"""Run one function on N ranks from a notebook, a test or a script, and name what went wrong.

    from course_lib import spmd

    def hello():
        print(f"rank {dist.get_rank()} of {dist.get_world_size()}")

    spmd.run(hello, ranks=4)

Each rank is a fresh process, forked from a server that has imported torch already; nothing is left of it afterwards.
How the parts fit: `launch.py` runs; `client.py` and `server.py` fork; `rank.py` is what a rank does; `record.py`,
`flight.py` and `beacon.py` note what it asks of torch.distributed and where it is; `compare.py` and `explain.py` turn
that into a cause.
"""

from .backend import Choice, choose
from .client import warm_up
from .launch import Results, run
from .rank import device
from .record import Traffic, traffic
from .report import Cause, Frame, HangError, MismatchError, Op, RankError, RankReport, SpmdError

__all__ = [
    "Cause",
    "Choice",
    "Frame",
    "HangError",
    "MismatchError",
    "Op",
    "RankError",
    "RankReport",
    "Results",
    "SpmdError",
    "Traffic",
    "choose",
    "device",
    "run",
    "traffic",
    "warm_up",
]
