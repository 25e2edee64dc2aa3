"""From a command line to a trained model: what happens in which order, and with which exit status it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch.distributed as dist

from course_lib.models import parameter_count
from course_lib.trainer import options as opt
from course_lib.trainer.job import Job
from course_lib.trainer.log import Log, cut_back, read_log
from course_lib.trainer.loop import Loop
from course_lib.trainer.metrics import MFU, Diverged, Meter
from course_lib.trainer.options import Options, Refused
from course_lib.trainer.ranks import Ranks, all_or_none, first_here, met, restarts
from course_lib.trainer.sample import continued
from course_lib.trainer.signals import Request, asked_to_leave
from course_lib.training.checkpoint import CheckpointError, latest, load
from course_lib.training.data import prepare

DONE, FAILED, REFUSED = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status: 0 done, 1 failed, 2 refused, 143 or 130 asked to leave.

    Called on every rank, in its main thread. A process group that exists is used.
    """
    speaks = first_here()
    try:
        options = opt.read(list(sys.argv[1:] if arguments is None else arguments), restarts() > 0)
        with asked_to_leave() as request, met(options.device) as ranks:
            speaks = ranks.first
            return train(options, ranks, request)
    except Refused as error:
        status, text = REFUSED, str(error)
    except (Diverged, CheckpointError) as error:
        status, text = FAILED, str(error)
    if speaks:
        print(text, file=sys.stderr, flush=True)
    return status


def train(options: Options, ranks: Ranks, request: Request) -> int:
    """The run, on every rank. Raises Refused, Diverged or CheckpointError, on all ranks alike."""
    options.cut(ranks.n)
    data = all_or_none(lambda: prepare(options.data, options.tokens, options.sequence, options.vocab))
    job = Job(options, ranks, data)
    resume(job)
    all_or_none(lambda: opt.keep(options) if ranks.first else None)
    meter = Meter(job)
    log = begin_log(job, meter) if ranks.first else None
    if ranks.first:
        print(introduction(job, meter), flush=True)
    if job.step >= options.steps:
        if ranks.first:
            print(f"All {options.steps} steps are done already: --steps {2 * job.step} would go on.", flush=True)
        return DONE
    meter.restart()
    done = Loop(job, meter, log, request).run()
    job.loader.close()
    if log:
        finish(job, log, done)
    dist.barrier()  # torchrun ends all ranks as soon as one has left with a status that is not 0
    return DONE if done else request.status


def resume(job: Job) -> None:
    """Go on from the last checkpoint in the folder, if the run is resumed and there is one."""
    options = job.options
    if not options.resume:
        return
    there = [latest(options.checkpoints) if job.ranks.first else None]
    dist.broadcast_object_list(there, src=0)
    if there[0] is not None:
        saved = load(options.checkpoints, there[0])
        all_or_none(lambda: job.go_on_from(saved))


def begin_log(job: Job, meter: Meter) -> Log:
    """The log, cut back to where the job stands, with a line on how it goes on."""
    path = job.options.path / "log.jsonl"
    if path.exists():
        cut_back(path, job.step)
    log = Log(path)
    log.write(
        event="resumed" if job.step else "begun",
        step=job.step,
        ranks=job.ranks.n,
        micro=job.micro,
        accumulation=job.accumulation,
        engine=job.options.engine,
        precision=job.options.precision,
        device=job.ranks.device.type,
        peak_flops=meter.peak,
    )
    return log


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


def finish(job: Job, log: Log, done: bool) -> None:
    """What the first rank shows at the end."""
    o = job.options
    log.close()
    if not done:
        print(f"Asked to leave: stopped after step {job.step} of {o.steps}. --resume goes on from there.", flush=True)
        return
    from course_lib.trainer.plot import draw_losses  # here, for one rank needs it and matplotlib takes long to import

    title = f"{o.size}, {o.tokens}: batch {o.batch} x {o.sequence} tokens, {ranks_in_words(job)}"
    draw_losses(read_log(o.path / "log.jsonl"), title, o.path / "loss.png")
    print(f"loss curve: {o.path / 'loss.png'}", flush=True)
    if o.sample:
        start = job.data.tokenizer.encode(o.prompt) or [job.data.tokenizer.end]
        text = job.data.tokenizer.decode(continued(job.model, start, o.sample, o.sequence, o.seed))
        (o.path / "sample.txt").write_text(text, encoding="utf-8")
        print(f"--- sample, {o.sample} tokens after {o.prompt!r}\n{text}", flush=True)
