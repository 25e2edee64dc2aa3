"""What is trained: the model, its engine, its optimizer, its place in the text; and what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.trainer.ends import Refused
from course_lib.trainer.engines import make_engine
from course_lib.trainer.options import Options
from course_lib.trainer.ranks import Ranks
from course_lib.training.checkpoint import Checkpoint
from course_lib.training.data import Batch, Loader, Prepared
from course_lib.training.loss import IGNORE, token_losses, valid_tokens
from course_lib.training.precision import LossScale, Step, autocast
from course_lib.training.schedule import set_lr


class Job:
    """One rank's part of a run. All ranks make it together.

    step: steps done, of which `updates` changed the weights: in float16 some do not, and the learning rate's schedule
    counts those that do. place: where the text goes on after the last step done.
    """

    def __init__(self, options: Options, ranks: Ranks, data: Prepared) -> None:
        self.options, self.ranks, self.data = options, ranks, data
        self.micro, self.accumulation = options.cut(ranks.n)
        self.config = options.config(data.tokenizer.vocab_size)
        self.engine = make_engine(self.config, options, ranks.device)
        self.scale = LossScale() if options.precision == "fp16" else None
        self.rate = options.rate()
        # Not with device=ranks.device: `agree` counts tokens on the CPU; on the GPU that would wait for the last step.
        self.loader = Loader(data.training, options.batch, ranks.rank, ranks.n, seed=options.seed)
        self.step = self.updates = 0
        self.place = self.loader.state_dict()
        self._settle_buckets()

    def next_window(self) -> list[Batch]:
        """This rank's micro-batches of the next step, on the CPU. They count as seen when the step is done."""
        batch = next(self.loader)
        return [Batch(*parts) for parts in zip(*(x.split(self.micro) for x in batch), strict=True)]

    def take(self, window: Sequence[Batch], total: int) -> tuple[Tensor, Step]:
        """Train one step. total: its valid tokens on all ranks. Returns this rank's share of the loss, and the step.

        The mean of the shares over the ranks is the step's mean loss.
        """
        set_lr(self.engine.optimizer, self.learning_rate)
        scale = self.scale.value if self.scale else 1.0
        share = self.engine.backward(window, self.losses, total, scale)
        step = self.engine.step(self.options.clip or float("inf"), self.scale)
        self.step += 1
        self.updates += step.taken
        self.place = self.loader.state_dict()
        return share, step

    @property
    def learning_rate(self) -> float:
        """That of the next update."""
        return self.options.lr * self.rate(self.updates)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Each token's loss, and which of them count, as `token_losses` has them."""
        device = self.ranks.device
        tokens, labels, documents = batch.pinned().to(device) if device.type == "cuda" else batch
        with autocast(self.options.precision, device):
            logits = model(tokens, documents)
        return token_losses(logits, labels)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of all ranks, whole on rank 0. All ranks call it."""
        return {
            "updates": self.updates,
            "place": self.place,
            "config": asdict(self.config),
            **self.engine.state(),
            "scale": self.scale.state_dict() if self.scale else None,
        }

    def rank_state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of this rank: its random numbers."""
        device = self.ranks.device
        cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
        return {"cpu": torch.get_rng_state()} | cuda

    def go_on_from(self, saved: Checkpoint) -> None:
        """Take over a checkpoint, of any number of ranks. Raises Refused or ValueError if it is of another run."""
        state = saved.state
        for name, value in asdict(self.config).items():
            if state["config"].get(name) != value:
                raise Refused(
                    f"the checkpoint's model has {name} = {state['config'].get(name)} and this one {value}: give the "
                    "options the run was begun with, or another --folder."
                )
        self.loader.load_state_dict(state["place"])
        self.place = self.loader.state_dict()
        self.engine.load(state)
        if self.scale and state["scale"]:
            self.scale = LossScale(**state["scale"])
        if saved.rank_state is not None:
            torch.set_rng_state(saved.rank_state["cpu"])
            if "cuda" in saved.rank_state and self.ranks.device.type == "cuda":
                torch.cuda.set_rng_state(saved.rank_state["cuda"], self.ranks.device)
        self.step, self.updates = saved.step, state["updates"]

    def _settle_buckets(self) -> None:
        """One backward of nothing, after which data parallel engines put their buckets into their final order.

        With three ranks and more, the place of a gradient in its bucket decides in which order the ranks' shares are
        added, and so its last bit. A resumed run must add from its first step on as the undisturbed one does.
        """
        padding = padding_alone()
        for _ in range(2):  # the order is put to use at the next forward
            self.engine.backward([padding], self.losses, 1, 1.0)
            self.engine.zero_grad()


def padding_alone() -> Batch:
    """One token that does not count, for a rank that has nothing left and must take part all the same."""
    nothing = torch.zeros(1, 1, dtype=torch.int64)
    return Batch(nothing, torch.full_like(nothing, IGNORE), nothing)


def agree(window: Sequence[Batch], stop: bool) -> tuple[int, bool]:
    """(valid tokens of the step on all ranks, whether any rank was asked to leave). One exchange of 16 bytes, by CPUs.

    So all ranks leave between the same two steps, though the signal reaches them at different times or only one.
    """
    told = torch.stack([valid_tokens(batch.labels for batch in window), torch.tensor(int(stop))])
    dist.all_reduce(told)
    total, stopping = told.tolist()
    return total, stopping > 0
