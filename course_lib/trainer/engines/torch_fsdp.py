"""PyTorch's own fully sharded data parallel, `fully_shard` ("FSDP2"): one block's parameters are whole at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from course_lib.models import GPT, GPTConfig
from course_lib.models.init import initial_value
from course_lib.trainer.engines.base import Engine, State, by_name, dtype_of, fill, groups_of, make_adamw
from course_lib.trainer.options import Options
from course_lib.training.clip import Part
from course_lib.training.precision import PRECISIONS, LossScale, Step, take_step


class TorchFSDP(Engine):
    """The parameters, and all that AdamW keeps of them, are DTensors in rows over all ranks."""

    alone = False

    def __init__(self, config: GPTConfig, options: Options, device: torch.device) -> None:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        policy = MixedPrecisionPolicy()
        if options.precision in ("bf16", "fp16"):
            policy = MixedPrecisionPolicy(param_dtype=PRECISIONS[options.precision], reduce_dtype=torch.float32)
        with torch.device("meta"):
            model = GPT(config).to(dtype_of(options))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model.to_empty(device=device)
        for name, p in model.named_parameters():
            fill_own(p, initial_value(name, p.shape, config, options.seed))
        super().__init__(model, make_adamw(groups_of(model, options), options), self)
        # Views of what this rank holds: for a norm over all ranks' parts.
        self.shards = [Parameter(p.to_local().detach()) for p in model.parameters()]

    def __call__(self, *inputs: Any) -> Tensor:
        return self.model(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    def step(self, max_norm: float, scale: LossScale | None) -> Step:
        for shard, p in zip(self.shards, self.model.parameters(), strict=True):
            shard.grad = None if p.grad is None else p.grad.to_local()
        step = take_step([], self.optimizer, max_norm, scale, parts=[Part(self.shards)])
        self.optimizer.zero_grad()
        return step

    def state(self) -> State:
        model = {name: whole(value) for name, value in self.model.state_dict().items()}
        return {"model": model, "optimizer": by_name(self.optimizer, self.model, whole)}

    def load(self, state: State) -> None:
        for name, p in self.model.named_parameters():
            fill_own(p, state["model"][name])
        fill(self.optimizer, self.model, state["optimizer"], like)


def whole(value: Tensor) -> Tensor:
    """All of its rows, on the CPU of rank 0; on the others nothing of a DTensor is kept."""
    if not isinstance(value, DTensor):
        return value
    gathered = value.detach().full_tensor()
    return gathered.cpu() if dist.get_rank() == 0 else gathered.new_empty(0)


@torch.no_grad()
def fill_own(p: DTensor, values: Tensor) -> None:
    """This rank's rows of the whole parameter's values, in place."""
    own = values.chunk(p.device_mesh.size())[p.device_mesh.get_local_rank() :][:1]
    if own:  # where there are fewer rows than ranks, the last ranks have none
        p.to_local().copy_(own[0])


def like(values: Tensor, p: DTensor) -> DTensor:
    """Whole values as a DTensor, cut as p is."""
    cut = torch.empty_like(p)
    fill_own(cut, values)
    return cut
