"""The steps: train, tell, validate, save, until all are done or somebody asks to leave."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from course_lib.trainer.ends import Failed, LostPeer, in_words, peer_is_gone, way_on
from course_lib.trainer.job import Job, agree
from course_lib.trainer.log import append, say
from course_lib.trainer.metrics import Meter, is_finite
from course_lib.trainer.ranks import on_first
from course_lib.trainer.signals import Request
from course_lib.trainer.validation import validation_loss
from course_lib.training.checkpoint import save


class Loop:
    """Runs a job to its end."""

    def __init__(self, job: Job, meter: Meter, request: Request) -> None:
        self.job, self.meter, self.request = job, meter, request
        self.saved = job.step

    def run(self) -> bool:
        """Returns whether all steps are done; if not, a signal came, and the work is saved.

        Raises Failed, with how to go on, where the loss is no number, the log cannot be written or a rank is gone.
        """
        job = self.job
        try:
            return self._run()
        except RuntimeError as error:
            if not peer_is_gone(error):
                raise
            raise LostPeer(
                f"Rank {job.ranks.rank} lost another rank after step {job.step}; {way_on(job.options.checkpoints)}."
            ) from error

    def _run(self) -> bool:
        job, options = self.job, self.job.options
        while job.step < options.steps:
            window = job.next_window()
            total, stop = agree(window, bool(self.request.came))
            if stop:
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
        """Write down the steps up to here; a loss or a gradient that is no number ends the run instead."""
        lines = self.meter.tell()
        finite = list(takewhile(is_finite, lines))
        self._write(*finite)
        if len(finite) < len(lines):
            raise Failed(self._diverged(lines[len(finite)]))
        if lines and self.job.ranks.first:
            say(self.meter.progress(lines[-1]))

    def _diverged(self, line: dict[str, Any]) -> str:
        options = self.job.options
        on = way_on(options.checkpoints)
        what = "norm of the gradient" if is_finite(line | {"grad_norm": 0.0}) else "loss"
        remedies = ["a longer --warmup", f"a smaller --clip than {options.clip:g}" if options.clip else "--clip 1"]
        if options.lr:
            remedies.insert(0, f"a lower --lr than {options.lr:g}")
        return f"The {what} of step {line['step']} is not finite; {on}: with {' or '.join(remedies)}."

    def _validate(self) -> None:
        self._tell()
        loss = validation_loss(self.job)
        self._write({"event": "validated", "step": self.job.step, "loss": loss})
        if self.job.ranks.first:
            say(f"step {self.job.step}: validation loss {loss:.4f}")
        self.meter.restart()

    def _save(self) -> None:
        """A checkpoint, after the log has all steps up to it: a loss that is not finite is told of, and not saved."""
        self._tell()
        if self.saved == self.job.step:
            return
        job = self.job
        save(job.options.checkpoints, job.step, job.state(), job.rank_state(), keep=job.options.keep)
        self.saved = job.step
        self._write({"event": "saved", "step": job.step})
        self.meter.restart()

    def _write(self, *lines: dict[str, Any]) -> None:
        """To the log. All ranks learn how that went, and leave together if it did not."""
        job = self.job

        def write() -> None:
            try:
                append(job.options.log, *lines)
            except OSError as error:
                raise Failed(
                    f"The log cannot be written ({in_words(error)}): stopped after step {job.step}; "
                    f"{way_on(job.options.checkpoints)}."
                ) from error

        if lines:
            on_first(write)


def due(every: int, step: int, last: bool) -> bool:
    """Whether something that is done every so many steps (0: never) is to be done after this one."""
    return every > 0 and (step % every == 0 or last)
