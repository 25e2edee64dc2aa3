"""Step time of experts, with even and with uneven load, against a dense model of equal FLOPs.

A step is forward, loss, backward, reduction of the gradients, SGD and zero_grad; every rank has a batch of its own.
"dense" has a feed-forward as wide as the experts that a token chooses, together: the same FLOPs, but for the router.
"copies" has all experts on every rank; the others have them spread over all ranks. "even": experts in turns, whatever
the router says. "one rank": each token's experts are those of rank 0, on which all others wait. All candidates take
their steps in turns. "MB" is what a rank puts into all-to-alls and all-reduces in a step.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_lib import spmd
from course_lib.bench import _numbers
from course_lib.bench._turns import Step, Times, ranks_text, take_turns
from course_lib.models import GPT, GPTConfig, MoEConfig
from course_lib.models.moe import MoE, in_turns
from course_lib.parallel.data.simple import average_gradients
from course_lib.parallel.expert import expert_mesh, expert_parallel, reduce_gradients

CONFIG = GPTConfig(
    vocab_size=2048, dim=256, n_layers=4, n_heads=8, n_kv_heads=8, ffn_dim=1024, max_seq_len=1024,
    moe=MoEConfig(n_experts=8, top_k=2, expert_dim=512),
)  # fmt: skip


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m course_lib.bench expert", description=__doc__)
    parser.add_argument("--ranks", type=_numbers.ranks, nargs="+", default=[2, 4], metavar="N", help="default: 2 4")
    parser.add_argument("--steps", type=_numbers.at_least_1, default=20, help="of each candidate; default: 20")
    parser.add_argument("--batch", type=_numbers.at_least_1, default=4, help="sequences of a rank; default: 4")
    parser.add_argument("--length", type=_numbers.at_least_1, default=128, help="tokens of a sequence; default: 128")
    options = parser.parse_args(argv)
    if options.steps < 2:
        parser.error("--steps must be 2 or more")
    if options.length > CONFIG.max_seq_len:
        parser.error(f"--length is {options.length}: the model takes up to {CONFIG.max_seq_len} tokens")
    if odd := [n for n in options.ranks if CONFIG.moe.n_experts % n]:
        parser.error(f"{CONFIG.moe.n_experts} experts cannot be shared out evenly over {odd[0]} ranks")
    for n in options.ranks:
        _numbers.say(f"{options.steps} steps of each candidate on {ranks_text(n)}")
        job = (CONFIG, options.batch, options.length, options.steps)
        print(table(n, *spmd.run(measure, *job, ranks=n, timeout=1200, show=False)[0]), flush=True)


def measure(config: GPTConfig, batch: int, length: int, steps: int) -> tuple[dict[str, Times], dict[str, int]]:
    """Called on every rank: times of all candidates, in turns, the same on all ranks; and this rank's bytes."""
    runs = candidates(config, batch, length)
    moved = {}
    for name, run in runs.items():
        with spmd.traffic() as traffic:
            run()
        moved[name] = sum(traffic.collective_bytes.values())
    return take_turns(runs, steps), moved


def candidates(config: GPTConfig, batch: int, length: int) -> dict[str, Step]:
    """Name -> a function that takes one step. The first is what the others are compared with."""
    device, n = spmd.device(), dist.get_world_size()
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(config.vocab_size, (batch, length + 1), generator=generator).to(device)
    dense = GPT(replace(config, moe=None, ffn_dim=config.moe.top_k * config.moe.expert_dim)).to(device)
    plain = GPT(config).to(device)

    def step(model: nn.Module, reduce: Callable[[], None]) -> Step:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def run() -> None:
            cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            reduce()
            optimizer.step()
            optimizer.zero_grad()

        return run

    def experts(ep_size: int, choose: Callable[[Tensor, MoEConfig], Tensor] | None = None) -> Step:
        model, mesh = copy.deepcopy(plain), expert_mesh(ep_size)
        expert_parallel(model, mesh.ep)
        for layer in model.modules():
            if isinstance(layer, MoE) and choose:
                layer.router.choose = choose
        return step(model, lambda: reduce_gradients(model, mesh))

    return {
        "dense": step(dense, lambda: average_gradients(dense.parameters())),
        "copies": experts(1),
        "even": experts(n, in_turns),
        "routed": experts(n),
        "one rank": experts(n, first_experts),
    }


def first_experts(preferred_BSE: Tensor, moe: MoEConfig) -> Tensor:
    """The same top_k experts for every token, which one rank has: the most uneven load there is."""
    chosen = torch.arange(moe.top_k, device=preferred_BSE.device)
    return chosen.expand(*preferred_BSE.shape[:2], moe.top_k)


def table(n: int, times: dict[str, Times], moved: dict[str, int]) -> str:
    """One line for each candidate: milliseconds, its time over the dense model's and over the even load's, MB moved."""
    lines = [f"\n{ranks_text(n):10}{'step ms':>9}{'over dense':>12}{'quartiles':>14}{'over even':>11}{'MB':>8}"]
    for name, its in times.items():
        low, middle, high = its.over(times["dense"])
        line = f"{name:10}{median(its.seconds) * 1e3:9.1f}{middle:11.2f}x{f'{low:.2f} - {high:.2f}':>14}"
        lines.append(line + f"{its.over(times['even'])[1]:10.2f}x{moved[name] / 1e6:8.2f}")
    return "\n".join(lines)
