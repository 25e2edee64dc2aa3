"""Step time and bytes of tensor parallelism: ours and torch's parallelize_module with loss_parallel, on the same ranks.

A step is forward, loss, backward, SGD and zero_grad, on a GPT of 16.9M parameters in float32; with sequence parallelism
("sp") and without. All candidates take their steps in turns, each on its own copy of the model, so that the ratios hold
on a busy machine too. Torch has the plan that sends least: one gathered or summed input for query, key and value, and
one for gate and up. "sent" is what one rank sends in a step if every collective is a ring: an all-reduce of `size`
bytes 2 (n - 1)/n of it, an all-gather or reduce-scatter of a whole of `size` bytes half as much.

With sequence parallelism ours sends more: backward gathers the inputs of the matrices again, which torch keeps from
forward on, whole on each rank.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib import spmd
from course_lib.bench._numbers import at_least_1, ranks, say
from course_lib.bench._turns import Times, ranks_text, rows, take_turns
from course_lib.models import GPT, GPTConfig
from course_lib.parallel.tensor import sum_partial_gradients, tensor_parallel, token_losses

CONFIG = GPTConfig(vocab_size=8192, dim=384, n_layers=6, n_heads=8, n_kv_heads=8, ffn_dim=1024, max_seq_len=1024)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m course_lib.bench tensor", description=__doc__)
    parser.add_argument("--ranks", type=ranks, nargs="+", default=[2, 4], metavar="N", help="default: 2 4")
    parser.add_argument("--steps", type=at_least_1, default=20, help="of each candidate, 2 or more; default: 20")
    parser.add_argument("--batch", type=at_least_1, default=2, help="sequences; default: 2")
    parser.add_argument("--length", type=at_least_1, default=128, help="tokens of a sequence; default: 128")
    options = parser.parse_args(argv)
    if options.steps < 2:
        parser.error("--steps must be 2 or more: quartiles need two")
    if options.length > CONFIG.max_seq_len:
        parser.error(f"--length is {options.length}: the model takes up to {CONFIG.max_seq_len} tokens")
    for n in options.ranks:
        if CONFIG.n_heads % n or options.length % n:
            parser.error(
                f"--ranks {n} does not divide {CONFIG.n_heads} heads and --length {options.length}: it must divide both"
            )
    for n in options.ranks:
        say(f"{options.steps} steps of each candidate on {ranks_text(n)}")
        job = (CONFIG, options.batch, options.length, options.steps)
        print(table(n, *spmd.run(measure, *job, ranks=n, timeout=1200, show=False)[0]), flush=True)


def measure(config: GPTConfig, batch: int, length: int, steps: int) -> tuple[dict[str, Times], dict[str, int]]:
    """Called on every rank: times of all candidates, in turns, and the bytes that a rank sends in one step."""
    runs = candidates(config, batch, length)
    sent = {}
    for name, run in runs.items():
        with Sent() as counted:
            run()
        sent[name] = counted.total
    return take_turns(runs, steps), sent


def candidates(config: GPTConfig, batch: int, length: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Name -> a function that takes one step and returns its loss. Data and initial values are alike."""
    device = spmd.device()
    plain = GPT(config).to(device)
    tokens = torch.randint(config.vocab_size, (batch, length + 1), generator=torch.Generator().manual_seed(0)).to(
        device
    )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    def ours(sequence_parallel: bool) -> Callable[[], torch.Tensor]:
        model = tensor_parallel(copy.deepcopy(plain), None, sequence_parallel)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def run() -> torch.Tensor:
            losses, valid = token_losses(model(tokens[:, :-1]), tokens[:, 1:], config.vocab_size)
            loss = losses.sum() / valid.sum()
            loss.backward()
            sum_partial_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return run

    def torchs(sequence_parallel: bool) -> Callable[[], torch.Tensor]:
        model = torch_parallel(copy.deepcopy(plain), mesh, sequence_parallel)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def run() -> torch.Tensor:
            with loss_parallel():
                loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach().full_tensor()

        return run

    return {"torch": torchs(False), "ours": ours(False), "torch sp": torchs(True), "ours sp": ours(True)}


def torch_parallel(model: nn.Module, mesh: DeviceMesh, sequence_parallel: bool) -> nn.Module:
    """torch's tensor parallelism of a GPT, in place. Its logits are a DTensor, cut by vocabulary."""
    between = Shard(1) if sequence_parallel else Replicate()
    inputs = {
        "attention": PrepareModuleInput(
            input_layouts=(between, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "ffn": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
    }
    columns = {name: ColwiseParallel() for name in ("attention.query", "attention.key", "attention.value")}
    columns |= {name: ColwiseParallel() for name in ("ffn.gate", "ffn.up")}
    rows = {name: RowwiseParallel(output_layouts=between) for name in ("attention.out", "ffn.down")}
    norms = {name: SequenceParallel() for name in ("attention_norm", "ffn_norm")} if sequence_parallel else {}
    plan = {f"layers.*.{name}": style for name, style in (inputs | columns | rows | norms).items()}
    plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if sequence_parallel:
        plan["norm"] = SequenceParallel()
    plan["head"] = ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
    return parallelize_module(model, mesh, plan)


class Sent(TorchDispatchMode):
    """Inside, counts the bytes that this rank sends in collectives of the whole world, as rings: `total`."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        n, name = dist.get_world_size(), func.name().partition("::")[2].partition(".")[0]
        if func.namespace in ("c10d", "_c10d_functional") and (share := self._share(name, args, n)):
            self.total += share
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _share(name: str, args: tuple, n: int) -> int:
        """args of c10d's operators are (lists of) tensors, output first; of the functional ones, the input."""
        if name in ("allreduce_", "all_reduce", "all_reduce_"):
            return 2 * _bytes(args[0]) * (n - 1) // n
        if name in ("_allgather_base_", "_reduce_scatter_base_"):
            return max(_bytes(args[0]), _bytes(args[1])) * (n - 1) // n
        if name.startswith("all_gather_into_tensor"):
            return _bytes(args[0]) * (n - 1)
        if name.startswith("reduce_scatter_tensor"):
            return _bytes(args[0]) * (n - 1) // n
        return 0


def _bytes(tensors: torch.Tensor | Sequence) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.itemsize
    return sum(map(_bytes, tensors))


def table(n: int, times: dict[str, Times], sent: dict[str, int]) -> str:
    """One line for each candidate: milliseconds, its time over torch's of the same kind with quartiles, MB sent."""
    head, *lines = rows(ranks_text(n), times, {name: name.replace("ours", "torch") for name in times})
    megabytes = [f"{size / 1e6:9.2f}" for size in sent.values()]
    return "\n".join([f"{head}{'MB sent':>9}", *map(str.__add__, lines, megabytes)])
