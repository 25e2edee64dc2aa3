"""The steps: train, tell, validate, save, until all are done or somebody asks to leave."""

from __future__ import annotations

from typing import Any

from course_lib.trainer.job import Job, agree
from course_lib.trainer.log import Log
from course_lib.trainer.metrics import Meter
from course_lib.trainer.signals import Request
from course_lib.trainer.validation import validation_loss
from course_lib.training.checkpoint import save


class Loop:
    """Runs a job to its end. log: of the rank that writes; None on the others, which do all but write."""

    def __init__(self, job: Job, meter: Meter, log: Log | None, request: Request) -> None:
        self.job, self.meter, self.log, self.request = job, meter, log, request
        self.saved = self.validated = job.step

    def run(self) -> bool:
        """Returns whether all steps are done; if not, a signal came, and the work is saved."""
        job, options = self.job, self.job.options
        while job.step < options.steps:
            window = job.next_window()
            total, stop = agree(window, bool(self.request.came))
            if stop:
                self._tell()
                self._save()
                return False
            lr = job.learning_rate
            self.meter.add(*job.take(window, total), lr)
            last = job.step == options.steps
            if job.step % options.log_every == 0 or last:
                self._tell()
            if due(options.validate_every, job.step, last):
                self._validate()
            if due(options.save_every, job.step, last) or last:
                self._save()
        return True

    def _tell(self) -> None:
        lines = self.meter.tell()
        for line in lines:
            self.meter.check(line)
            self._write(**line)
        if lines and self.log:
            print(self.meter.progress(lines[-1]), flush=True)

    def _validate(self) -> None:
        self._tell()
        loss = validation_loss(self.job)
        self._write(event="validated", step=self.job.step, loss=loss)
        if self.log:
            print(f"step {self.job.step}: validation loss {loss:.4f}", flush=True)
        self.meter.restart()

    def _save(self) -> None:
        """A checkpoint, after the log has all steps up to it: a loss that is not finite is told of, and not saved."""
        self._tell()
        if self.saved == self.job.step:
            return
        job = self.job
        save(job.options.checkpoints, job.step, job.state(), job.rank_state(), keep=job.options.keep)
        self.saved = job.step
        self._write(event="saved", step=job.step)
        self.meter.restart()

    def _write(self, **values: Any) -> None:
        if self.log:
            self.log.write(**values)


def due(every: int, step: int, last: bool) -> bool:
    """Whether something that is done every so many steps (0: never) is to be done after this one."""
    return every > 0 and (step % every == 0 or last)
