"""Mixture of experts: many feed-forwards in the place of one, of which each token is computed by a few.

Parameters grow with the number of experts, the work of a token with how many it chooses. This module knows nothing of
parallelism: it holds all experts.

Shape suffixes beside those of `gpt.py`, in this module: T tokens (B * S), E experts (not head dim), k experts of each
token, R rows: a token that chose three experts is three rows.

Sources: Shazeer et al. 2017 (arXiv 1701.06538); GShard (arXiv 2006.16668) and Switch Transformer (arXiv 2101.03961)
for capacity; DeepSeek-V3 (arXiv 2412.19437) for sigmoid scores, shared expert, selection bias and groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import Parameter

from course_lib.models.config import GPTConfig, MoEConfig
from course_lib.models.layers import FeedForward


@dataclass(frozen=True)
class Routing:
    """What a router decided for B sequences of S tokens. Float32 at least; logits, scores, weights carry gradients.

    logits, scores (B, S, E). chosen (B, S, k) int64, best first; weights (B, S, k): by what each expert's output is
    multiplied. kept (B, S, k) bool: False where the expert was full; None where nothing is dropped.
    """

    logits: Tensor
    scores: Tensor
    chosen: Tensor
    weights: Tensor
    kept: Tensor | None

    @property
    def probabilities(self) -> Tensor:
        """The scores (B, S, E), made to add up to 1 for each token: softmax's do, sigmoid's do not."""
        return _normalized(self.scores)


class MoE(nn.Module):
    """A router, experts, and a shared expert where the config has one. (B, S, D) -> (B, S, D), as a feed-forward."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config)
        self.shared = FeedForward(config.dim, config.moe.shared_dim) if config.moe.shared_dim else None
        self.record: list[Routing] | None = None  # where `recorded` wants the routings

    def forward(self, x_BSD: Tensor) -> Tensor:
        routing = self.router(x_BSD)
        # In backward, recomputation calls forward once more; that is no new routing.
        if self.record is not None and torch._C._current_graph_task_id() == -1:
            self.record.append(routing)
        y_BSD = mix(x_BSD, routing, self.experts)
        return y_BSD if self.shared is None else y_BSD + self.shared(x_BSD)


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Routing]]:
    """Within, the forwards of the model's MoE layers leave their routings in the list, in the order they run.

    with recorded(model) as routings:
        logits = model(tokens)

    They hold on to the graph, as outputs do: let go of them when you let go of the loss.
    """
    routings: list[Routing] = []
    layers = [module for module in model.modules() if isinstance(module, MoE)]
    before = [layer.record for layer in layers]
    for layer in layers:
        layer.record = routings
    try:
        yield routings
    finally:
        for layer, record in zip(layers, before, strict=True):
            layer.record = record


class Router(nn.Module):
    """Scores each token for each expert and chooses; in float32 at least, under autocast and in a 16-bit model too.

    In bfloat16, with three digits, experts of almost the same score would tie, and exp would round the weights; Switch
    Transformer (section 2.4) found training unstable.

    choose: which experts, (B, S, k), from how much they are preferred, (B, S, E). For measurements it may be replaced,
    by `in_turns` for one. bias (E,), where the config asks for one: float32 always; it is no parameter, for it has no
    gradient: whoever trains moves it (`parallel/expert/balance.py`).
    """

    bias: Tensor | None

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config.moe
        self.weight = Parameter(torch.empty(config.moe.n_experts, config.dim))
        bias = torch.zeros(config.moe.n_experts, dtype=torch.float32) if config.moe.biased else None
        self.register_buffer("bias", bias)
        self.choose: Callable[[Tensor, MoEConfig], Tensor] = best_experts

    def forward(self, x_BSD: Tensor) -> Routing:
        moe = self.config
        with torch.autocast(x_BSD.device.type, enabled=False):
            x_BSD = x_BSD.to(torch.promote_types(x_BSD.dtype, torch.float32))
            if self.training and moe.jitter:
                x_BSD = x_BSD * torch.empty_like(x_BSD).uniform_(1 - moe.jitter, 1 + moe.jitter)
            logits_BSE = F.linear(x_BSD, self.weight.to(x_BSD.dtype))
        scores_BSE = logits_BSE.softmax(-1) if moe.scores == "softmax" else logits_BSE.sigmoid()
        preferred_BSE = scores_BSE.detach() if self.bias is None else scores_BSE.detach() + self.bias
        chosen_BSk = self.choose(preferred_BSE, moe)
        weights_BSk = scores_BSE.gather(-1, chosen_BSk)
        if moe.renormalize:
            # By all that the token chose, dropped or not: else an expert's share would depend on other tokens.
            weights_BSk = _normalized(weights_BSk)
        kept_BSk = within_capacity(scores_BSE.detach(), chosen_BSk, moe) if moe.capacity_factor else None
        return Routing(logits_BSE, scores_BSE, chosen_BSk, weights_BSk, kept_BSk)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        # The bias moves in steps of about 0.001, which 16-bit numbers near 1 would round away: it changes devices only.
        bias, self.bias = self.bias, None
        super()._apply(fn, recurse)
        if bias is not None:
            device = self.weight.device
            self.bias = torch.zeros_like(bias, device=device) if bias.is_meta else bias.to(device)
        return self


def best_experts(preferred_BSE: Tensor, moe: MoEConfig) -> Tensor:
    """The top_k most preferred experts of each token, (B, S, k), best first; those of its best groups only.

    A group is worth the sum of its best top_k / top_groups experts (DeepSeek-V3, section 2.1.2): where a group is what
    one node holds, a token is sent to top_groups nodes at most.
    """
    if moe.top_groups < moe.groups:
        grouped_BSGe = preferred_BSE.unflatten(-1, (moe.groups, -1))
        counted = min(max(moe.top_k // moe.top_groups, 1), grouped_BSGe.shape[-1])
        worth_BSG = grouped_BSGe.topk(counted, -1).values.sum(-1)
        others_BSG = torch.ones_like(worth_BSG, dtype=torch.bool)
        others_BSG = others_BSG.scatter(-1, worth_BSG.topk(moe.top_groups, -1).indices, False)
        preferred_BSE = grouped_BSGe.masked_fill(others_BSG.unsqueeze(-1), -math.inf).flatten(-2)
    return preferred_BSE.topk(moe.top_k, -1).indices


def in_turns(preferred_BSE: Tensor, moe: MoEConfig) -> Tensor:
    """All experts in turns, whatever is preferred: the even load with which published speeds are often measured."""
    B, S, E = preferred_BSE.shape
    return (torch.arange(B * S * moe.top_k, device=preferred_BSE.device) % E).view(B, S, moe.top_k)


def capacity(seq_len: int, moe: MoEConfig) -> int:
    """How many tokens of one sequence an expert takes: ceil(seq_len * top_k / n_experts * capacity_factor).

    Counted in each sequence by itself (a "group" in GShard, section 2.2), so that what is dropped does not depend on
    which sequences share a batch or a rank.
    """
    return min(seq_len, math.ceil(seq_len * moe.top_k / moe.n_experts * moe.capacity_factor))


def within_capacity(scores_BSE: Tensor, chosen_BSk: Tensor, moe: MoEConfig) -> Tensor:
    """Whether each chosen expert still has room for the token, (B, S, k) bool.

    By position, a token's fate depends on earlier ones alone, as it must when a model writes. By probability it depends
    on later ones too; and between tokens that are equal (a sequence that begins with one twice) the last bit decides.
    """
    queued_BSE = F.one_hot(chosen_BSk, scores_BSE.shape[-1]).sum(-2)
    if moe.drop == "position":
        place_BSE = queued_BSE.cumsum(1) - 1
    else:
        worth_BSE = scores_BSE.masked_fill(queued_BSE == 0, -math.inf)
        place_BSE = worth_BSE.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return place_BSE.gather(-1, chosen_BSk) < capacity(scores_BSE.shape[1], moe)


def mix(x_BSD: Tensor, routing: Routing, experts: Experts) -> Tensor:
    """The sum of the outputs of each token's experts, each times its weight, (B, S, D); of those that kept it only.

    The products and sums are float32 at least; the result has the dtype of the experts' outputs.
    """
    chosen_Tk, weights_Tk = routing.chosen.flatten(0, 1), routing.weights.flatten(0, 1)
    T, k = chosen_Tk.shape
    n_experts = routing.logits.shape[-1]
    if routing.kept is not None:
        chosen_Tk = chosen_Tk.masked_fill(~routing.kept.flatten(0, 1), n_experts)  # behind the last expert
    sorted_R, order_R = chosen_Tk.flatten().sort(stable=True)
    # bincount would ask the device how many bins there are, and the host would wait for it.
    ends_E = torch.searchsorted(sorted_R, torch.arange(n_experts, device=sorted_R.device), right=True)
    if routing.kept is not None:
        order_R = order_R[: ends_E[-1]]
    rows_RD = _Spread.apply(_autocast(x_BSD).flatten(0, 1), order_R, k)  # narrow now: rows may have far to go
    rows_RD = experts(rows_RD, ends_E.diff(prepend=ends_E.new_zeros(1)))
    outputs_RD = rows_RD.new_zeros(T * k, rows_RD.shape[1]).index_copy(0, order_R, rows_RD)
    y_TD = (outputs_RD.unflatten(0, (T, k)) * weights_Tk.unsqueeze(-1)).sum(1)
    return y_TD.to(rows_RD.dtype).view_as(x_BSD)


class Experts(nn.Module):
    """E SwiGLU feed-forwards without biases: gate (E, F, D), up (E, F, D), down (E, D, F), F being expert_dim."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        E, F_, D = config.moe.n_experts, config.moe.expert_dim, config.dim
        self.gate = Parameter(torch.empty(E, F_, D))
        self.up = Parameter(torch.empty(E, F_, D))
        self.down = Parameter(torch.empty(E, D, F_))

    def forward(self, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        """The first counts_E[0] rows through the first expert, and so on. Returns (R, D), in the same order.

        counts_E: int64, adds up to R. Some may be 0, and R too: gradients are then zeros, and are there.
        """
        return swiglu(rows_RD, self.gate, self.up, self.down, counts_E)


def swiglu(rows_RD: Tensor, gate_EFD: Tensor, up_EFD: Tensor, down_EDF: Tensor, counts_E: Tensor) -> Tensor:
    """`Experts.forward` with these matrices, of all experts or of some."""
    hidden_RF = F.silu(grouped_linear(rows_RD, gate_EFD, counts_E)) * grouped_linear(rows_RD, up_EFD, counts_E)
    return grouped_linear(hidden_RF, down_EDF, counts_E)


def grouped_linear(rows_RI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
    """rows @ weight[e].T, for the rows of each expert e in turn: (R, O).

    One call for all experts where torch has one for these numbers: it does not ask the host for the counts either, and
    at 64 rows an expert a third of the time went into the calls. Else one product for each expert, empty ones included.
    """
    rows_RI, weight_EOI = _autocast(rows_RI), _autocast(weight_EOI)
    dtype = rows_RI.dtype
    # Its float32 is for CPUs only, and all rows of its matrices must begin at multiples of 16 bytes.
    takes = dtype is torch.bfloat16 or (dtype is torch.float32 and rows_RI.device.type == "cpu")
    if takes and hasattr(F, "grouped_mm") and not any(size * dtype.itemsize % 16 for size in weight_EOI.shape[1:]):
        return F.grouped_mm(rows_RI, weight_EOI.transpose(1, 2), offs=counts_E.cumsum(0, dtype=torch.int32))
    parts = rows_RI.split(counts_E.tolist())
    return torch.cat([F.linear(part, weight) for part, weight in zip(parts, weight_EOI, strict=True)])


class _Spread(Function):
    """Row order[i] // k of x, for each i. Backward adds a token's rows in the order of its choices.

    x[order // k] would do the same, but its backward adds with atomic operations on GPUs, in any order.
    """

    @staticmethod
    def forward(ctx, x_TD, order_R, k):
        ctx.save_for_backward(order_R)
        ctx.shape = (x_TD.shape[0], k, x_TD.shape[1])
        return x_TD[order_R // k]

    @staticmethod
    def backward(ctx, grad_RD):
        (order_R,) = ctx.saved_tensors
        T, k, D = ctx.shape
        return grad_RD.new_zeros(T * k, D).index_copy(0, order_R, grad_RD).view(T, k, D).sum(1), None, None


def _autocast(x: Tensor) -> Tensor:
    """In the dtype that autocast, where it is on, would take to a matrix product; it does not know `grouped_mm`."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype is torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(device))


def _normalized(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
