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
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course_lib import spmd
from course_lib.bench._numbers import at_least_1, ranks, say
from course_lib.bench._turns import Step, Times, ranks_text, rows, take_turns
from course_lib.models import GPT, GPTConfig
from course_lib.parallel.data import DistributedDataParallel
from course_lib.parallel.data.simple import average_gradients

CONFIG = GPTConfig(
    vocab_size=2048, dim=256, n_layers=8, n_heads=8, n_kv_heads=8, ffn_dim=896, max_seq_len=1024, tied=True
)


def hidden(its: Times, alone: Times, network: Times) -> float:
    """The part of the network's time that the step does not show: the median over the steps."""
    triples = zip(its.seconds, alone.seconds, network.seconds, strict=True)
    return median(1 - (step - bare) / sent for step, bare, sent in triples)


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
        say(f"{options.steps} steps of each candidate on {ranks_text(n)}")
        job = (CONFIG, options.batch, options.length, options.steps)
        print(table(n, spmd.run(measure, *job, ranks=n, timeout=1200, show=False)[0]), flush=True)


def measure(config: GPTConfig, batch: int, length: int, steps: int) -> dict[str, Times]:
    """Called on every rank: all candidates in turns. All ranks return the same."""
    return take_turns(candidates(config, batch, length), steps)


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
    head, *lines = rows(ranks_text(n), times, dict.fromkeys(times, "torch"))
    for i, (name, its) in enumerate(times.items()):
        if n > 1 and name not in ("alone", "network"):
            lines[i] += f"{hidden(its, times['alone'], times['network']):8.0%}"
    return "\n".join([f"{head}{'hidden':>8}", *lines])
