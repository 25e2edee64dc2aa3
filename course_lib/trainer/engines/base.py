"""What an engine is: the way in which ranks share the work of a step and the memory of its states.

The trainer runs every engine alike: micro-batches backward, a step, now and then a checkpoint. What the checkpoint
holds is the same for all of them, whole and by parameter name: a run may go on with another engine or number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from course_lib.models import GPT, GPTConfig, init_weights
from course_lib.trainer.options import Options
from course_lib.training.accumulate import backward_window
from course_lib.training.precision import LossScale, Step, take_step

State = dict[str, Any]


class Engine:
    """A model and its optimizer in one engine. All ranks make it, and call its methods, together.

    model: what is run without gradients. alone: whether one rank can run it while the others do something else.
    optimizer: its `param_groups` have the learning rate.
    """

    alone = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, trained: Any) -> None:
        """trained: what is run with gradients; `trained.no_sync()` is a context in which nothing is exchanged."""
        self.model, self.optimizer, self.trained = model, optimizer, trained

    def backward(self, window: Sequence[Any], losses: Callable, total: Tensor | int, scale: float) -> Tensor:
        """Forward and backward of a step's micro-batches, as `backward_window` has them. Returns the loss's share."""
        return backward_window(self.trained, window, losses, total, scale=scale)

    def step(self, max_norm: float, scale: LossScale | None) -> Step:
        """Clip, step, and drop the gradients."""
        step = take_step(list(self.model.named_parameters()), self.optimizer, max_norm, scale)
        self.optimizer.zero_grad()
        return step

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def state(self) -> State:
        """What a checkpoint has of the engine, whole on rank 0: "model", "optimizer", each by parameter name."""
        return {"model": self.model.state_dict(), "optimizer": by_name(self.optimizer, self.model)}

    def load(self, state: State) -> None:
        """Take over what `state` returned, in this run or another. It is whole, on every rank."""
        self.model.load_state_dict(state["model"])
        fill(self.optimizer, self.model, state["optimizer"])


def by_name(
    optimizer: torch.optim.Optimizer, model: nn.Module, whole: Callable[[Tensor], Tensor] = lambda x: x
) -> State:
    """The optimizer's tensors of each parameter, by the parameter's name. Empty before the first step.

    whole(tensor): of all of its shards, on rank 0 at least.
    """
    return {
        name: {key: whole(value) for key, value in optimizer.state[p].items()}
        for name, p in model.named_parameters()
        if p in optimizer.state
    }


def fill(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    state: State,
    own: Callable[[Tensor, Parameter], Tensor] = lambda value, p: value,
) -> None:
    """The reverse of `by_name`. own(value, p): this rank's shard of a tensor that has the whole parameter's shape.

    What the groups say, such as a weight decay, stays as it was asked for now.
    """
    names: dict[Parameter, str] = {p: name for name, p in model.named_parameters()}
    order = [(names[p], p) for group in optimizer.param_groups for p in group["params"]]
    new = optimizer.state_dict()
    new["state"] = {
        i: {key: own(value, p) if value.shape == p.shape else value for key, value in state[name].items()}
        for i, (name, p) in enumerate(order)
        if name in state
    }
    optimizer.load_state_dict(new)


def make_adamw(groups: list[dict[str, Any]], options: Options) -> torch.optim.AdamW:
    """AdamW as GPT-3 has it (Brown et al. 2020, appendix B): betas 0.9 and 0.95."""
    fused = any(p.is_cuda for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=fused, foreach=not fused)


def groups_of(model: nn.Module, options: Options) -> list[dict[str, Any]]:
    """Two parameter groups: matrices decay, norms do not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]


def new_model(config: GPTConfig, seed: int, device: torch.device, dtype: torch.dtype) -> GPT:
    """A model with its initial values, made where it is to stay: never twice in memory."""
    with torch.device("meta"):
        model = GPT(config).to(dtype)
    model.to_empty(device=device)
    init_weights(model, seed)
    return model


def dtype_of(options: Options) -> torch.dtype:
    """Of parameters, gradients and optimizer states, in an engine that leaves 16 bits to autocast."""
    return torch.float64 if options.precision == "fp64" else torch.float32
