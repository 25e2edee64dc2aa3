"""Step time of data parallelism: our DDP, torch's, one all-reduce for each parameter, one after backward; overlap.

A step is forward, backward with its reduction, SGD and zero_grad, on a GPT of 8.1M parameters. All candidates take
their steps in turns, each on its own copy of the model, so that the ratios hold on a busy machine too. "alone" reduces
nothing; "network" is one all-reduce of all gradients and nothing else. "hidden" is the part of "network" by which a
step is shorter than the two one after the other. Where ranks share cores there is little to hide behind: what moves the
bytes is the processor that backward needs. "cpu" counts it, over all threads of a rank.

Ours needs no more time than torch's because it touches each gradient once before it is sent: division by the number of
ranks and the move into the bucket are one pass, made while the gradient is in the cache, and no copy leads back, since
`p.grad` is the bucket from then on. Torch's default reads the bucket once more after the reduction, to write gradients
of its own. With gradient_as_bucket_view=True ("torch views") it does not either, and is a little faster than ours: what
it calls for each parameter is C++, ours is Python; and spmd records each of our all-reduces, none of its own.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course_lib import spmd
from course_lib.bench._numbers import at_least_1, ranks, say
from course_lib.models import GPT, GPTConfig
from course_lib.parallel.data import DistributedDataParallel
from course_lib.parallel.data.simple import average_gradients

CONFIG = GPTConfig(
    vocab_size=2048, dim=256, n_layers=8, n_heads=8, n_kv_heads=8, ffn_dim=896, max_seq_len=1024, tied=True
)
WARM_UP = 2  # steps: ours and torch's put their buckets in another order after the first

Step = Callable[[], None]


@dataclass(frozen=True)
class Times:
    """Of one candidate: seconds of each step, the slowest rank's, and processor seconds of the busiest rank."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    def over(self, other: Times) -> tuple[float, float, float]:
        """This one's time over the other's, step by step: lower quartile, median, upper quartile."""
        low, middle, high = quantiles(_ratios(self.seconds, other.seconds), n=4)
        return low, middle, high

    def cpu_over(self, other: Times) -> float:
        """This one's processor time over the other's: the median over the steps."""
        return median(_ratios(self.cpu_seconds, other.cpu_seconds))

    def hidden(self, alone: Times, network: Times) -> float:
        """The part of the network's time that the step does not show: the median over the steps."""
        triples = zip(self.seconds, alone.seconds, network.seconds, strict=True)
        return median(1 - (step - bare) / sent for step, bare, sent in triples)


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m course_lib.bench ddp", description=__doc__)
    parser.add_argument("--ranks", type=ranks, nargs="+", default=[1, 2, 4], metavar="N", help="default: 1 2 4")
    parser.add_argument("--steps", type=at_least_1, default=30, help="of each candidate, 2 or more; default: 30")
    parser.add_argument("--batch", type=at_least_1, default=2, help="sequences on each rank; default: 2")
    parser.add_argument("--length", type=at_least_1, default=64, help="tokens of a sequence; default: 64")
    options = parser.parse_args(argv)
    if options.steps < 2:
        parser.error("--steps must be 2 or more: quartiles need two")
    if options.length > CONFIG.max_seq_len:
        parser.error(f"--length is {options.length}: the model takes up to {CONFIG.max_seq_len} tokens")
    for n in options.ranks:
        say(f"{options.steps} steps of each candidate on {_ranks(n)}")
        job = (CONFIG, options.batch, options.length, options.steps)
        print(table(n, spmd.run(measure, *job, ranks=n, timeout=1200, show=False)[0]), flush=True)


def measure(config: GPTConfig, batch: int, length: int, steps: int) -> dict[str, Times]:
    """Called on every rank: all candidates in turns. All ranks return the same."""
    runs = candidates(config, batch, length)
    taken = torch.zeros(2, len(runs), steps, device=spmd.device())
    for step in range(-WARM_UP, steps):
        for turn in range(len(runs)):
            place = (turn + step) % len(runs)  # in changing order: each finds the caches as another one left them
            seconds, cpu_seconds = _timed(list(runs.values())[place])
            if step >= 0:
                taken[:, place, step] = torch.tensor([seconds, cpu_seconds])
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    seconds, cpu_seconds = taken.tolist()
    return {name: Times(tuple(seconds[i]), tuple(cpu_seconds[i])) for i, name in enumerate(runs)}


def _timed(run: Step) -> tuple[float, float]:
    """Seconds and processor seconds of a step that all ranks begin together."""
    dist.barrier()
    start, cpu_start = time.perf_counter(), time.process_time()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - cpu_start


def candidates(config: GPTConfig, batch: int, length: int) -> dict[str, Step]:
    """Name -> a function that takes one step. The first is what the others are compared with."""
    device = spmd.device()
    model = GPT(config).to(device)
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(config.vocab_size, (batch, length + 1), generator=generator).to(device)
    gradients = torch.zeros(sum(p.numel() for p in model.parameters()), device=device)

    def step(wrap: Callable[[nn.Module], nn.Module], after: Callable[[list[nn.Parameter]], None] | None = None) -> Step:
        module = wrap(copy.deepcopy(model))
        parameters = list(module.parameters())
        optimizer = torch.optim.SGD(parameters, lr=1e-3)

        def run() -> None:
            logits = module(tokens[:, :-1])
            cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            if after:
                after(parameters)
            optimizer.step()
            optimizer.zero_grad()

        return run

    torchs = nn.parallel.DistributedDataParallel
    return {
        "torch": step(torchs),
        "ours": step(DistributedDataParallel),
        "torch views": step(lambda module: torchs(module, gradient_as_bucket_view=True)),
        "flat": step(lambda module: module, average_flat),
        "naive": step(lambda module: module, average_gradients),
        "alone": step(lambda module: module),
        "network": lambda: dist.all_reduce(gradients),
    }


def average_flat(parameters: Sequence[nn.Parameter]) -> None:
    """All gradients in one vector, averaged when backward has ended: one message, no overlap."""
    flat = torch.cat([p.grad.view(-1) for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(part.view_as(p))


def table(n: int, times: dict[str, Times]) -> str:
    """One line for each candidate: milliseconds, its time over torch's with quartiles, the same of cpu, overlap."""
    head = f"{'step ms':>9}{'over torch':>12}{'quartiles':>13}{'cpu ms':>9}{'over torch':>12}{'hidden':>8}"
    lines = [f"\n{_ranks(n):12}{head}"]
    for name, its in times.items():
        low, middle, high = its.over(times["torch"])
        line = f"{name:12}{median(its.seconds) * 1e3:9.1f}{middle:11.2f}x{f'{low:.2f} - {high:.2f}':>13}"
        line += f"{median(its.cpu_seconds) * 1e3:9.1f}{its.cpu_over(times['torch']):11.2f}x"
        if n > 1 and name not in ("alone", "network"):
            line += f"{its.hidden(times['alone'], times['network']):8.0%}"
        lines.append(line)
    return "\n".join(lines)


def _ranks(n: int) -> str:
    return f"{n} rank{'s' * (n > 1)}"
