"""Step time of a pipeline: our runtime and torch's, the same schedule and stages, by GPipe, 1F1B, interleaved and ZBV.

A step is forward and backward of all micro-batches, SGD and zero_grad, on a GPT of 8.7M parameters. Both runtimes take
their steps in turns, each on its own copy of the stages, so that the ratios hold on a busy machine too; each line is
over torch's runtime of the same schedule. "cpu" counts processor time, over all threads of a rank.

ZBV is compared as each has it: the order of the table differs a little, and torch parts backward by a walk over the
graph, ours layer by layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.functional import cross_entropy

from course_lib import spmd
from course_lib.bench._numbers import at_least_1, ranks, say
from course_lib.bench._turns import Step, Times, ranks_text, rows, take_turns
from course_lib.models import GPTConfig
from course_lib.parallel.pipeline.generators import gpipe, interleaved, one_f_one_b, zbv
from course_lib.parallel.pipeline.runtime import Pipeline
from course_lib.parallel.pipeline.schedule import Schedule
from course_lib.parallel.pipeline.stage import GPTStage, balance

CONFIG = GPTConfig(vocab_size=2048, dim=256, n_layers=8, n_heads=8, n_kv_heads=8, ffn_dim=896, max_seq_len=1024)

# Our schedule, torch's, and whether torch's is built from a list of stages.
PAIRS: dict[str, tuple[Callable[[int, int], Schedule], type, bool]] = {
    "GPipe": (gpipe, schedules.ScheduleGPipe, False),
    "1F1B": (one_f_one_b, schedules.Schedule1F1B, False),
    "interleaved": (interleaved, schedules.ScheduleInterleaved1F1B, True),
    "ZBV": (zbv, schedules.ScheduleZBVZeroBubble, True),
}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m course_lib.bench pipeline", description=__doc__)
    parser.add_argument("--ranks", type=ranks, nargs="+", default=[2, 4], metavar="N", help="default: 2 4")
    parser.add_argument("--steps", type=at_least_1, default=20, help="of each candidate, 2 or more; default: 20")
    parser.add_argument("--micro-batches", type=at_least_1, default=8, help="of a step; default: 8")
    parser.add_argument("--batch", type=at_least_1, default=2, help="sequences of a micro-batch; default: 2")
    parser.add_argument("--length", type=at_least_1, default=64, help="tokens of a sequence; default: 64")
    options = parser.parse_args(argv)
    if options.steps < 2:
        parser.error("--steps must be 2 or more: quartiles need two")
    if options.length > CONFIG.max_seq_len:
        parser.error(f"--length is {options.length}: the model takes up to {CONFIG.max_seq_len} tokens")
    for n in options.ranks:
        if 2 * n > CONFIG.n_layers:
            parser.error(f"--ranks {n}: two stages for each rank need {2 * n} layers, the model has {CONFIG.n_layers}")
        if options.micro_batches % n or options.micro_batches < 2 * n:
            parser.error(f"--micro-batches {options.micro_batches}: torch's runtime wants a multiple of the {n} ranks "
                         f"for the interleaved schedule and {2 * n} or more for ZBV")  # fmt: skip
    for n in options.ranks:
        say(f"{options.steps} steps of each candidate on {ranks_text(n)}")
        job = (CONFIG, options.micro_batches, options.batch, options.length, options.steps)
        print(table(n, spmd.run(measure, *job, ranks=n, timeout=1800, show=False)[0]), flush=True)


def measure(config: GPTConfig, m: int, batch: int, length: int, steps: int) -> dict[str, Times]:
    """Called on every rank: all candidates in turns. All ranks return the same."""
    return take_turns(candidates(config, m, batch, length), steps)


def candidates(config: GPTConfig, m: int, batch: int, length: int) -> dict[str, Step]:
    """Name -> a function that takes one step: torch's and ours of each schedule."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (m * batch, length + 1), generator=generator).to(spmd.device())
    runs = {}
    for name, (ours, theirs, many) in PAIRS.items():
        schedule = ours(dist.get_world_size(), m)
        runs[f"torch {name}"] = torchs_step(stages_of(config, schedule), theirs, many, schedule, tokens)
        runs[f"ours {name}"] = our_step(stages_of(config, schedule), schedule, tokens)
    return runs


def stages_of(config: GPTConfig, schedule: Schedule) -> dict[int, GPTStage]:
    """This rank's stages: the same parts of the same model for both runtimes."""
    parts = balance([1] * config.n_layers, schedule.n_stages)
    return {s: GPTStage(config, parts[s]).to(spmd.device()) for s in schedule.stages_of(dist.get_rank())}


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def our_step(stages: dict[int, GPTStage], schedule: Schedule, tokens: Tensor) -> Step:
    pipeline, m = Pipeline(stages, schedule), schedule.n_micro_batches
    micro_batches = tokens.chunk(m)
    optimizer = torch.optim.SGD([p for _, p in pipeline.named_parameters()], lr=1e-3)

    def run() -> None:
        pipeline.step(micro_batches, lambda rows: rows[:, :-1], lambda y, rows: loss_of(y, rows[:, 1:]) / m)
        optimizer.step()
        optimizer.zero_grad()

    return run


def torchs_step(stages: dict[int, GPTStage], kind: type, many: bool, schedule: Schedule, tokens: Tensor) -> Step:
    parts = [PipelineStage(stage, s, schedule.n_stages, spmd.device()) for s, stage in stages.items()]
    runtime = kind(parts if many else parts[0], schedule.n_micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.SGD(nn.ModuleList(stages.values()).parameters(), lr=1e-3)
    inputs = [tokens[:, :-1]] if 0 in stages else []
    target = {"target": tokens[:, 1:]} if schedule.n_stages - 1 in stages else {}

    def run() -> None:
        runtime.step(*inputs, **target, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()

    return run


def table(n: int, times: dict[str, Times]) -> str:
    """Two lines for each schedule, each over torch's runtime of it."""
    base = {name: "torch " + name.partition(" ")[2] for name in times}
    return "\n".join(rows(ranks_text(n), times, base, width=19))
