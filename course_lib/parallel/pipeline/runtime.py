"""Running a schedule on real ranks: any valid one, whatever its name.

A rank works through its order of the table. A forward takes its input from the stage before, a backward its gradient
from the stage after: received, if that stage is on another rank, or handed over, if it is on this one (a V placement
does so where it turns). Each action is recorded in the timeline under its own name ("2F0"), so that what was planned
and what happened can be laid over each other.

What is kept between a micro-batch's forward and backward: the inputs, and where its graph begins. The output itself is
not: once it has been sent, its memory is free (autograd remembers by "gradient edges" what backward starts from).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import Parameter

from course_lib.collectives.p2p import rank_and_size
from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.messages import Key, Messages
from course_lib.parallel.pipeline.schedule import Schedule
from course_lib.parallel.pipeline.split import WeightGradients
from course_lib.parallel.pipeline.validate import check
from course_lib.timeline import span

M = TypeVar("M")


@dataclass
class Held:
    """What a stage keeps of a micro-batch until its backward: leaves of its graph, and the edges it hangs on."""

    inputs: list[Tensor]
    edges: list[GradientEdge]
    gradients: list[Tensor] | None = None  # of the edges; None: they are yet to come from the next stage


class Pipeline:
    """This rank's stages, and how they work together with those of the other ranks.

    stages: by number, those that `schedule.placement` puts on this rank. A stage is any module that takes the tensors
    the stage before it returns, one or a tuple; such as get a gradient and such as do not. group: the pipeline's ranks.

    Gradients are added to `p.grad`, as backward does. Their exchange over data parallel replicas comes after the step,
    once (`parallel.data.simple.average_gradients`), and so does that of a tied weight (`TiedWeight`).

    peak_held: the most micro-batches whose activations this rank held at once in the last step, counted by stage.
    Raises ValueError for stages that are not those of the placement, a schedule that is not valid (ScheduleError), or
    one for another number of ranks.
    """

    def __init__(
        self, stages: Mapping[int, nn.Module], schedule: Schedule, group: dist.ProcessGroup | None = None
    ) -> None:
        rank, n = rank_and_size(group)
        check(schedule)
        if schedule.lowered:
            raise ValueError("the schedule has sends and receives in it, which a pipeline makes itself: leave them out")
        if schedule.n_ranks != n:
            raise ValueError(f"the schedule is for {schedule.n_ranks} ranks, the group has {n}: make one for {n}")
        here = [stage for stage, at in enumerate(schedule.placement) if at == rank]
        if sorted(stages) != here:
            raise ValueError(f"rank {rank} was given stages {sorted(stages)}; the schedule places {here} on it")
        self.stages, self.schedule, self.order = dict(stages), schedule, schedule.orders[rank]
        device = next((p.device for stage in stages.values() for p in stage.parameters()), torch.device("cpu"))
        self.messages = Messages(schedule, group, device)
        parted = {action.stage for action in self.order if action.kind in (Kind.I, Kind.W)}
        self.weight_gradients = {stage: WeightGradients(self.stages[stage]) for stage in sorted(parted)}
        self.peak_held = 0

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """The parameters of this rank's stages; one that two of them share (a tied weight) once."""
        found: dict[int, tuple[str, Parameter]] = {}
        for stage in self.stages.values():
            for name, parameter in stage.named_parameters():
                found.setdefault(id(parameter), (name, parameter))
        return list(found.values())

    def step(
        self,
        micro_batches: Sequence[M],
        inputs_of: Callable[[M], Any],
        loss_of: Callable[[Any, M], Tensor],
        scale: float = 1.0,
    ) -> Tensor:
        """Forward and backward of all micro-batches of one step.

        micro_batches: as many as the schedule has, the same on all ranks of the pipeline; they may differ in size.
        inputs_of(micro_batch): the first stage's input, a tensor or a tuple of them.
        loss_of(outputs, micro_batch): called with what the last stage returned; a scalar, the micro-batch's **share**
        of the step's loss. Shares are added up, so each is divided by the whole step's count, not by its own
        (training/loss.py: `share_of_total`); then gradients are right however tokens are spread over micro-batches.
        scale: fp16's loss scale.

        Returns the sum of the shares, without gradient and not scaled: on the last stage's rank; zero on the others.
        """
        losses = self._begin(micro_batches, inputs_of, loss_of, forward_only=False)
        for action in self.order:
            if action.kind == Kind.F:
                self._forward(action, scale)
            elif action.kind == Kind.W:
                with span(str(action)):
                    self.weight_gradients[action.stage].compute(action.micro_batch)
            else:
                self._backward(action)
            self.peak_held = max(self.peak_held, len(self.held))
        self.messages.finish()
        return self._sum(losses)

    @torch.no_grad()
    def evaluate(
        self, micro_batches: Sequence[M], inputs_of: Callable[[M], Any], loss_of: Callable[[Any, M], Tensor]
    ) -> Tensor:
        """Forward only: the schedule's forwards, in its order. Arguments and result as in `step`; no gradients."""
        losses = self._begin(micro_batches, inputs_of, loss_of, forward_only=True)
        for action in self.order:
            if action.kind == Kind.F:
                self._forward(action, 1.0)
        self.messages.finish()
        return self._sum(losses)

    def _begin(
        self, micro_batches: Sequence[M], inputs_of: Callable, loss_of: Callable, forward_only: bool
    ) -> list[Tensor]:
        want = self.schedule.n_micro_batches
        if len(micro_batches) != want:
            raise ValueError(f"the schedule is for {want} micro-batches, not {len(micro_batches)}: make one for those")
        self.micro_batches, self.loss_of, self.forward_only = micro_batches, loss_of, forward_only
        self.inputs = [as_tuple(inputs_of(micro_batch), "inputs_of") for micro_batch in micro_batches]
        self.messages.begin([tuple((t.dtype, t.shape) for t in each) for each in self.inputs], forward_only)
        self.held: dict[tuple[int, int], Held] = {}
        self.handed: dict[Key, list[Tensor]] = {}  # from one stage of this rank to another
        self.peak_held = 0
        for store in self.weight_gradients.values():
            store.forget()  # what a step that failed has left
        self.losses: list[Tensor] = []
        return self.losses

    def _forward(self, action: Action, scale: float) -> None:
        stage, micro_batch = action.stage, action.micro_batch
        inputs = self._take_input(stage, micro_batch)
        with span(str(action)):
            outputs = self.stages[stage](*inputs)
            if stage == self.schedule.n_stages - 1:
                loss = self.loss_of(outputs, self.micro_batches[micro_batch])
                self.losses.append(loss.detach())
        if stage == self.schedule.n_stages - 1:
            if not self.forward_only:
                held = Held(inputs, [get_gradient_edge(loss)], [torch.full_like(loss, scale)])
                self.held[stage, micro_batch] = held
            return
        outputs = as_tuple(outputs, f"stage {stage}")
        wants = [tensor.requires_grad for tensor in outputs]
        if not self.forward_only:
            self.held[stage, micro_batch] = Held(inputs, [get_gradient_edge(t) for t in outputs if t.requires_grad])
        key = Key(Kind.F, stage, micro_batch)
        if key in self.messages.outgoing:
            self.messages.send(key, outputs, wants)
        else:
            self.handed[key] = [t.detach().requires_grad_(t.requires_grad) for t in outputs]

    def _backward(self, action: Action) -> None:
        stage, micro_batch = action.stage, action.micro_batch
        held = self.held.pop((stage, micro_batch))
        gradients = held.gradients or self._take_gradient(stage, micro_batch)
        with span(str(action)):
            if action.kind == Kind.I:
                with self.weight_gradients[stage].kept(micro_batch):
                    torch.autograd.backward(held.edges, gradients)
            else:
                torch.autograd.backward(held.edges, gradients)
        if stage == 0:
            return
        # An input that the stage did not use has the gradient zero: the stage before waits for it all the same.
        back = [torch.zeros_like(x) if x.grad is None else x.grad for x in held.inputs if x.requires_grad]
        key = Key(Kind.B, stage, micro_batch)
        if key in self.messages.outgoing:
            self.messages.send(key, back, [False] * len(back))
        else:
            self.handed[key] = back

    def _take_input(self, stage: int, micro_batch: int) -> list[Tensor]:
        """What stage gets, as leaves of a graph of its own."""
        if stage == 0:
            return list(self.inputs[micro_batch])
        key = Key(Kind.F, stage - 1, micro_batch)
        if key in self.handed:
            return self.handed.pop(key)
        tensors, specs = self.messages.receive(key)
        return [t.requires_grad_(spec.wants_gradient) for t, spec in zip(tensors, specs, strict=True)]

    def _take_gradient(self, stage: int, micro_batch: int) -> list[Tensor]:
        key = Key(Kind.B, stage + 1, micro_batch)
        return self.handed.pop(key) if key in self.handed else self.messages.receive(key)[0]

    def _sum(self, losses: list[Tensor]) -> Tensor:
        return torch.stack(losses).sum() if losses else torch.zeros((), device=self.messages.device)


def as_tuple(value: Any, origin: str) -> tuple[Tensor, ...]:
    """One tensor or several, as a tuple. TypeError, naming the origin, for anything else."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    wrong = [type(each).__name__ for each in several if not isinstance(each, Tensor)]
    if wrong or not several:
        raise TypeError(f"{origin} must give a tensor or a tuple of tensors, not {wrong[0] if wrong else 'nothing'}")
    return tuple(several)
