"""From a command line to a trained model: what happens in which order, and with which exit status it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack

from course_lib.models import parameter_count
from course_lib.trainer import options as opt
from course_lib.trainer.ends import DONE, FAILED, REFUSED, Failed, LostPeer, Refused, in_words, peer_is_gone
from course_lib.trainer.job import Job
from course_lib.trainer.lock import sole_trainer
from course_lib.trainer.log import append, cut_back, read_log, say
from course_lib.trainer.loop import Loop
from course_lib.trainer.metrics import MFU, Meter
from course_lib.trainer.options import Options
from course_lib.trainer.ranks import Ranks, all_or_none, first_here, met, on_first, restarts
from course_lib.trainer.sample import continued
from course_lib.trainer.signals import Request, asked_to_leave, launcher_watched
from course_lib.training.checkpoint import CheckpointError, latest, load
from course_lib.training.data import prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status: 0 done, 1 failed, 2 refused, 128 + a signal's number.

    Called on every rank, in its main thread. A process group that exists is used.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    with ExitStack() as signals:  # heard until all is said: torchrun's SIGTERM would cut it off
        return main_with(arguments, signals)


def main_with(arguments: list[str], signals: ExitStack) -> int:
    """main; what hears signals is entered into the stack."""
    speaks = first_here()
    try:
        options, request = opt.read(arguments, restarts() > 0), Request()
        with launcher_watched(request), met(options.device) as ranks, ExitStack() as folder:
            signals.enter_context(asked_to_leave(request))  # not sooner: who waits for other ranks can be interrupted
            speaks = ranks.first
            options.cut(ranks.n)
            options = on_first(lambda: claimed(arguments, options, folder))
            return train(options, ranks, request)
    except Refused as error:
        status, text = REFUSED, str(error)
    except (Failed, CheckpointError) as error:
        status, text = FAILED, str(error)
        speaks = speaks or isinstance(error, LostPeer)
    except RuntimeError as error:
        if not peer_is_gone(error):
            raise
        status, text, speaks = FAILED, "Another rank is gone, before the first step or after the last.", True
    if speaks:
        say(text, file=sys.stderr)
    return status


def claimed(arguments: list[str], options: Options, folder: ExitStack) -> Options:
    """Rank 0 holds the folder until the stack ends. The options are read again: another trainer may just have left."""
    folder.enter_context(sole_trainer(options.path))
    return opt.read(arguments, restarts() > 0)


def train(options: Options, ranks: Ranks, request: Request) -> int:
    """The run, on every rank. Raises Refused, Failed or CheckpointError, on all ranks alike."""
    data = all_or_none(lambda: prepare(options.data, options.tokens, options.sequence, options.vocab))
    job = Job(options, ranks, data)
    resume(job)
    if job.step > options.steps:
        raise Refused(
            f"--steps {options.steps}: the run in {options.folder} has done {job.step} already; --steps {2 * job.step} "
            "would go on."
        )
    if job.step == options.steps:
        done = True
        if ranks.first:
            say(f"All {options.steps} steps are done already: --steps {2 * job.step} would go on.")
    else:
        done = steps_done(job, request)
    text = all_or_none(lambda: sample(job)) if done else ""
    # All wait for it: torchrun ends all ranks as soon as one has left with a status that is not 0.
    on_first(lambda: show(job, text) if done else say(left(job, request)))
    return DONE if done else request.status


def steps_done(job: Job, request: Request) -> bool:
    """Train, with a log. Returns whether all steps are done; if not, there was a request to leave."""
    meter = Meter(job)
    if job.ranks.first:
        say(introduction(job, meter))
    on_first(lambda: begin(job, meter))
    meter.restart()
    done = Loop(job, meter, request).run()
    job.loader.close()
    return done


def resume(job: Job) -> None:
    """Go on from the last checkpoint in the folder, if the run is resumed and there is one."""
    options = job.options
    step = on_first(lambda: latest(options.checkpoints)) if options.resume else None
    if step is not None:
        saved = load(options.checkpoints, step)
        all_or_none(lambda: job.go_on_from(saved))


def begin(job: Job, meter: Meter) -> None:
    """The log, cut back to where the job stands, with a line on how it goes on; and the options, for a resumption."""
    options = job.options
    line = {
        "event": "resumed" if job.step else "begun",
        "step": job.step,
        "ranks": job.ranks.n,
        "micro": job.micro,
        "accumulation": job.accumulation,
        "engine": options.engine,
        "precision": options.precision,
        "device": job.ranks.device.type,
        "peak_flops": meter.peak,
    }
    try:
        read_log(options.log)  # damage there is told before anything is changed
        opt.keep(options)  # before there is a log: a folder with a log and no options is refused
        cut_back(options.log, job.step)
        append(options.log, line)
    except OSError as error:
        raise Refused(f"The run's files cannot be written ({in_words(error)}).") from error


def introduction(job: Job, meter: Meter) -> str:
    """What is trained, on what, and how MFU is measured."""
    o, n = job.options, job.ranks.n
    where = f"{ranks_in_words(job)} on {job.ranks.device.type}"
    lines = [
        f"{o.size}: {parameter_count(job.config):,} parameters, {o.precision}; {where}, {o.engine}; folder {o.folder}",
        f"batch {o.batch} = {job.micro} x {job.accumulation} x {n} (micro x accumulation x ranks) sequences of "
        f"{o.sequence} tokens; {len(job.data.training):,} sequences in an epoch",
        f"MFU: {MFU}; peak {meter.peak / 1e12:.3g} TFLOP/s of all ranks together, {meter.source}",
    ]
    if job.step:
        lines.append(f"resumed after step {job.step}")
    return "\n".join(lines)


def ranks_in_words(job: Job) -> str:
    return "1 rank" if job.ranks.n == 1 else f"{job.ranks.n} ranks"


def left(job: Job, request: Request) -> str:
    """What is said of a run that was asked to leave before its end."""
    return f"{request.reason}: stopped after step {job.step} of {job.options.steps}. --resume goes on from there."


def show(job: Job, text: str) -> None:
    """What a finished run shows: the loss curve, and text of the model's. Raises Failed where it cannot be written."""
    try:
        draw(job)
        if text:
            (job.options.path / "sample.txt").write_text(text, encoding="utf-8")
            say(f"--- sample, {job.options.sample} tokens after {job.options.prompt!r}\n{text}")
    except (OSError, ValueError) as error:
        raise Failed(f"All steps are done and saved, but not shown ({in_words(error)}).") from error


def draw(job: Job) -> None:
    from course_lib.trainer.plot import draw_losses  # here, for one rank needs it and matplotlib takes long to import

    o = job.options
    title = f"{o.size}, {o.tokens}: batch {o.batch} x {o.sequence} tokens, {ranks_in_words(job)}"
    draw_losses(read_log(o.log), title, o.path / "loss.png")
    say(f"loss curve: {o.path / 'loss.png'}")


def sample(job: Job) -> str:
    """Text of the model's, where it is asked for: by all ranks, if they hold the model together."""
    o = job.options
    if not o.sample or (job.engine.alone and not job.ranks.first):
        return ""
    start = job.data.tokenizer.encode(o.prompt) or [job.data.tokenizer.end]
    written = continued(job.engine.model, start, o.sample, o.sequence, o.seed, job.ranks.device)
    return job.data.tokenizer.decode(written)
