"""The plain GPT with its experts spread over ranks, and back; and what a training step must do beside it.

    mesh = expert_mesh(ep_size)                            # every rank has tokens of its own: data parallel
    model = expert_parallel(GPT(config, seed), mesh.ep)
    with recorded(model) as routings:
        losses, valid = token_losses(model(tokens), labels)
    load = expert_load(routings)                           # (layers, E), of this rank
    dist.all_reduce(load, group=mesh.dp)
    loss = share_of_total(losses, valid, total, mesh.dp) + 0.01 * balance_share(routings, load, mesh.dp)
    loss.backward()
    reduce_gradients(model, mesh)                          # once a step, after the last backward
    replicated, parts = for_clipping(model)
    clip_grad_norm(replicated, 1.0, parts=parts)
    ...
    whole = gather_parameters(model)                       # the plain GPT's state dict

Every rank of `ep` must run every forward and every backward, without tokens if need be: (0, S) of them.

Values do not depend on the number of ranks: each parameter is drawn whole, by its name, and cut. The tokens dropped do
not either, for capacity is counted by sequence (`models/moe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from course_lib.collectives.native import all_gather_into
from course_lib.collectives.p2p import rank_and_size
from course_lib.models.config import GPTConfig
from course_lib.models.init import initial_value
from course_lib.models.moe import MoE
from course_lib.parallel.expert.dispatch import ParallelExperts
from course_lib.parallel.expert.mesh import ExpertMesh
from course_lib.parallel.tensor.gradients import sum_gradients
from course_lib.training.clip import Part


def expert_parallel(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Spread the experts of every MoE layer over the group, in place: each rank keeps E/n. Returns the model.

    model: a GPT with experts or a part of one, the same on every rank, with values or on the meta device (then:
    `to_empty`, `init_weights` of this module). Nothing else changes: forward, names, the other parameters. Wrap it,
    recompute parts of it and build the optimizer afterwards.

    ValueError if there are no experts or the group cannot share them out evenly; RuntimeError if they are spread
    already.
    """
    _, n = rank_and_size(group)
    layers = [module for module in model.modules() if isinstance(module, MoE)]
    if not layers:
        raise ValueError("this model has no experts to spread: give its config a moe=MoEConfig(...)")
    if any(isinstance(layer.experts, ParallelExperts) for layer in layers):
        raise RuntimeError("this model's experts are spread already: start from a plain one, GPT(config)")
    E = layers[0].router.config.n_experts
    if E % n:
        fits = ", ".join(str(size) for size in range(1, E + 1) if E % size == 0)
        raise ValueError(f"{E} experts cannot be shared out evenly over {n} ranks: {fits} ranks would do")
    for layer in layers:
        layer.experts = ParallelExperts(layer.experts, group)
    return model


@torch.no_grad()
def init_weights(model: nn.Module, config: GPTConfig, seed: int) -> None:
    """Give an expert-parallel model the values of GPT(config, seed), in place: for one that was built on meta.

    Each parameter is drawn whole, on the CPU, one at a time, and cut. Biases of routers become 0.
    """
    cut = {id(p): group for _, p, group in _expert_parameters(model)}
    for name, p in model.named_parameters():
        if id(p) not in cut:
            p.copy_(initial_value(name, p.shape, config, seed))
            continue
        rank, n = rank_and_size(cut[id(p)])
        whole = initial_value(name, (n * p.shape[0], *p.shape[1:]), config, seed)
        p.copy_(whole.chunk(n)[rank])
    for buffer in model.buffers():
        buffer.zero_()


@torch.no_grad()
def gather_parameters(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that the plain model would have, on every rank. All ranks of the experts' group must call it.

    Tensors are the model's own where they are not spread, and new ones elsewhere.
    """
    whole = model.state_dict()
    for name, p, group in _expert_parameters(model):
        n = dist.get_world_size(group)
        joined = p.new_empty(n * p.shape[0], *p.shape[1:])
        all_gather_into(joined, p.detach().contiguous(), group)
        whole[name] = joined
    return whole


@torch.no_grad()
def reduce_gradients(model: nn.Module, mesh: ExpertMesh) -> None:
    """Make every gradient the mean over the ranks of `mesh.dp`, in place, as the one loss rule wants it.

    Of dense parameters each rank has found the gradient of its own share of the loss: they are summed over dp and
    divided by its size. An expert has met the tokens of all ranks of `ep`, for their gradients came back to it by the
    exchange: it is summed over `edp` only, and divided by the size of dp all the same, not of edp.
    """
    n = dist.get_world_size(mesh.dp)
    experts = [p for _, p, _ in _expert_parameters(model)]
    known = {id(p) for p in experts}
    dense = [p for p in model.parameters() if id(p) not in known]
    for parameters, group in ((dense, mesh.dp), (experts, mesh.edp)):
        if dist.get_world_size(group) > 1:
            sum_gradients(parameters, group)
        if gradients := [p.grad for p in parameters if p.grad is not None]:
            torch._foreach_div_(gradients, n)


def for_clipping(model: nn.Module) -> tuple[list[tuple[str, Parameter]], list[Part]]:
    """For `clip_grad_norm`: the parameters that all ranks hold alike, and the experts, each counted on one rank of ep.

    After `reduce_gradients`: then the copies of an expert, on the ranks of edp, have the same gradient, and so the same
    norm.
    """
    experts = list(_expert_parameters(model))
    known = {id(p) for _, p, _ in experts}
    replicated = [(name, p) for name, p in model.named_parameters() if id(p) not in known]
    return replicated, [Part([(name, p) for name, p, _ in experts], experts[0][2])]


def _expert_parameters(model: nn.Module) -> Iterator[tuple[str, Parameter, dist.ProcessGroup | None]]:
    """Name, parameter and group of all that is spread."""
    for place, module in model.named_modules():
        if isinstance(module, ParallelExperts):
            for name, p in module.named_parameters():
                yield f"{place}.{name}", p, module.group
