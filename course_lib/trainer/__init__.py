"""The command that trains a GPT on real text: on one process, or on many under torchrun.

    python -m course_lib.trainer --size tiny --steps 200
    torchrun --standalone --nproc-per-node 2 -m course_lib.trainer --size tiny --steps 200

One idea a file: `options.py` is what a person may ask for, and what is refused; `ranks.py` how the processes meet;
`job.py` what is trained and what a checkpoint holds of it; `loop.py` the steps; `validation.py`, `metrics.py`,
`peak.py`, `log.py`, `plot.py`, `sample.py` what is measured, written down and shown; `lock.py` who may write into the
folder; `signals.py` how to leave, `ends.py` what a run ends with before its end.
"""

from .main import main

__all__ = ["main"]
