"""The plain GPT made tensor parallel, and back: which modules change, and what a training step must do beside it.

    model = tensor_parallel(GPT(config, seed), group, sequence_parallel=True)
    losses, valid = token_losses(model(tokens), labels, config.vocab_size, group)   # tensor/loss.py; tokens alike
    (losses.sum() / valid.sum()).backward()
    sum_partial_gradients(model)          # once a step, after the last backward
    ...
    whole = gather_parameters(model)      # the plain GPT's state dict

Values do not depend on the number of ranks: each parameter is drawn whole, by its name, and cut. Nothing else of the
model changes: its forward, its names, the modules that hold no matrices. So wrap it, recompute parts of it and build
the optimizer as with the plain one, but afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from course_lib.collectives.native import all_gather_into
from course_lib.collectives.p2p import rank_and_size
from course_lib.models.gpt import GPT
from course_lib.models.init import initial_value
from course_lib.parallel.tensor.blocks import ParallelAttention, ParallelFeedForward
from course_lib.parallel.tensor.embedding import VocabParallelEmbedding
from course_lib.parallel.tensor.gradients import sum_gradients, sum_over_copies
from course_lib.parallel.tensor.layout import Cut, cut_of, require_divides
from course_lib.parallel.tensor.linear import ColumnLinear

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Layout:
    """How a model was cut: kept as `model.layout`. cuts: of each parameter by name; None where it is not cut."""

    group: Group
    sequence_parallel: bool
    cuts: dict[str, Cut | None]


def tensor_parallel(model: GPT, group: Group = None, sequence_parallel: bool = False) -> GPT:
    """Cut the model's parameters over the group, in place, and let its modules work on the parts. Returns the model.

    model: the same on every rank of the group, with values or on the meta device (then: `to_empty`, `init_weights` of
    this module). Its logits are (B, S, ceil(V/n)): this rank's columns, the last of them padding where n does not
    divide V. Tokens must be alike on the group. Tied and frozen parameters stay so.

    sequence_parallel: between the matrices each rank has its n-th of the tokens only (`tokens.py`), which divides the
    memory of norms and residual stream by n and sends more in backward; n must divide S.

    ValueError, naming what would fit, if the heads or the feed-forward cannot be cut into n equal parts, or if experts
    take the feed-forward's place; RuntimeError if the model is tensor parallel already.
    """
    rank, n = rank_and_size(group)
    if isinstance(model.embedding, VocabParallelEmbedding):
        raise RuntimeError("this model is tensor parallel already: start from a plain one, GPT(config)")
    if model.config.moe:
        raise ValueError(
            "this GPT has experts, which are spread over ranks whole and not cut by columns: use `parallel.expert`, or "
            "a config without moe"
        )
    require_divides(model.config, n)
    cuts = {name: cut_of(name, p.shape, model.config, rank, n) for name, p in model.named_parameters()}
    for name, cut in cuts.items():
        if cut:
            _keep_part(model.get_submodule(name.rpartition(".")[0]), cut)
    model._tie()
    V = model.config.vocab_size
    model.embedding = VocabParallelEmbedding(model.embedding.weight, V, group, sequence_parallel)
    for layer in model.layers:
        layer.attention = ParallelAttention(layer.attention, group, sequence_parallel)
        layer.ffn = ParallelFeedForward(layer.ffn, group, sequence_parallel)
    model.head = ColumnLinear(model.head.weight, None, group, sequence_parallel)
    model.layout = Layout(group, sequence_parallel, cuts)
    return model


@torch.no_grad()
def init_weights(model: GPT, seed: int) -> None:
    """Give a tensor-parallel model the values of GPT(config, seed), in place: for one that was built on meta.

    Each parameter is drawn whole, on the CPU, one at a time, and cut.
    """
    for name, parameter in model.named_parameters():
        cut = model.layout.cuts[name]
        shape = cut.whole_shape(parameter.shape) if cut else parameter.shape
        whole = initial_value(name, shape, model.config, seed)
        parameter.copy_(cut.of(whole) if cut else whole)


@torch.no_grad()
def gather_parameters(model: GPT) -> dict[str, Tensor]:
    """The state dict that the plain GPT would have, on every rank. All ranks of the group must call it.

    Tensors are the model's own where they are not cut, and new ones elsewhere; tied ones are one tensor.
    """
    n = dist.get_world_size(model.layout.group)
    whole = {}
    for name, parameter in model.named_parameters():
        whole[name] = parameter.detach()
        if cut := model.layout.cuts[name]:
            parts = parameter.new_empty(n, *parameter.shape)
            all_gather_into(parts, parameter.detach().contiguous(), model.layout.group)
            joined = torch.cat(parts[:: cut.copies].unbind(), cut.dim)
            whole[name] = joined.narrow(cut.dim, 0, cut.size).contiguous()
    if model.config.tied:
        whole["head.weight"] = whole["embedding.weight"]
    return whole


def sum_partial_gradients(model: GPT) -> None:
    """Sum, over the ranks that hold a parameter together, gradients of which each has found a part. In place.

    To be called once a step, after the last backward and before the gradients are clipped. It sums what differs:

    - with sequence_parallel, the norms': each rank has seen its own tokens only;
    - of key and value heads that several ranks hold: each has seen its own query heads only.

    Without either it does nothing. Called twice, it would sum the sums.
    """
    cuts, group = model.layout.cuts, model.layout.group
    parameters = list(model.named_parameters())
    if model.layout.sequence_parallel:
        sum_gradients([p for name, p in parameters if cuts[name] is None], group)
    shared = {name: cut.copies for name, cut in cuts.items() if cut and cut.copies > 1}
    if shared:
        sum_over_copies([p for name, p in parameters if name in shared], max(shared.values()), group)


@dataclass(frozen=True)
class ByKind:
    """A tensor-parallel model's parameters, (name, parameter), by what the norm of the gradient must know of them.

    replicated: alike on all ranks. sharded: parts of the whole; together with the other ranks' they are it, each
    element once (a `training.clip.Part`). copies: of parts that another rank counts; to be scaled with the rest.
    """

    replicated: list[tuple[str, Parameter]] = field(default_factory=list)
    sharded: list[tuple[str, Parameter]] = field(default_factory=list)
    copies: list[tuple[str, Parameter]] = field(default_factory=list)


def by_kind(model: GPT) -> ByKind:
    """For the norm: grad_norm(kinds.replicated, parts=[Part(kinds.sharded, group)]), then scale all three."""
    kinds = ByKind()
    for name, parameter in model.named_parameters():
        cut = model.layout.cuts[name]
        kind = kinds.replicated if cut is None else kinds.sharded if cut.first else kinds.copies
        kind.append((name, parameter))
    return kinds


def _keep_part(module: nn.Module, cut: Cut) -> None:
    """Put the part in the place of the module's weight."""
    module.weight = Parameter(cut.of(module.weight.detach()), module.weight.requires_grad)
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape  # what print(model) shows
