"""What stages on different ranks send each other: activations forward, their gradients backward.

**Nothing here can deadlock.** A send is started and not waited for; only a receive waits. A rank that waits for a
message needs its sender to come to the action that makes it, and a valid schedule has no circle of such waits.

**Order.** Between two ranks there is one channel per direction and kind (activations, gradients). Messages in a channel
arrive in the order in which their sender's actions stand in the schedule. The receiver posts its receives in that order
too, even if it uses them in another: gloo would pair them by tag, NCCL pairs them by nothing but order. The next one is
posted ahead, so that it travels while this rank computes.

**Shapes.** A receiver must know what is coming. The first message of each kind is preceded by a description, a few
integers. From then on both sides remember it, under the stage and the shapes of the micro-batch it was made from.

**Memory.** What was sent must stay in memory until it has left. When that is, a send does not tell (gloo's knows only
once it is waited for); but a message from the receiver does, if it comes from an action after the one that used ours.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import p2p
from course_lib.parallel.pipeline.actions import Kind
from course_lib.parallel.pipeline.schedule import Schedule

DESCRIPTION = 128  # integers of a description: room for a dozen tensors
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


class Key(NamedTuple):
    """A message: the activations (Kind.F) or gradients (Kind.B) that a stage made from a micro-batch."""

    kind: Kind
    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Route:
    """A message's way. made, used: the places of the two actions in the orders of their ranks."""

    key: Key
    source: int
    to: int
    made: int
    used: int


class Spec(NamedTuple):
    """A tensor to come. wants_gradient: whether a gradient of it goes back."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    wants_gradient: bool


class Channel(NamedTuple):
    """Where messages of one kind from one rank to another go. source, to: the two ranks' numbers within `group`."""

    group: dist.ProcessGroup | None
    tag: int
    source: int
    to: int


@dataclass
class Posted:
    """A transfer under way, and the tensors it must not lose."""

    route: Route
    tensors: list[Tensor]
    specs: list[Spec]
    works: list[dist.Work]


def routes(schedule: Schedule) -> list[Route]:
    """Every message that goes from rank to rank, those of one sender in the order in which it makes them."""
    place = {}
    for order in schedule.orders:
        for i, action in enumerate(order):
            if action.kind != Kind.W:
                kind = Kind.F if action.kind == Kind.F else Kind.B
                place[Key(kind, action.stage, action.micro_batch)] = i
    found = []
    for (kind, stage, micro_batch), made in place.items():
        next_stage = stage + 1 if kind == Kind.F else stage - 1
        if not 0 <= next_stage < schedule.n_stages:
            continue
        source, to = schedule.placement[stage], schedule.placement[next_stage]
        if source != to:
            used = place[Key(kind, next_stage, micro_batch)]
            found.append(Route(Key(kind, stage, micro_batch), source, to, made, used))
    return found


class Messages:
    """The messages of one rank, for many steps of one schedule. `begin` comes before each step, `finish` after it."""

    def __init__(self, schedule: Schedule, group: dist.ProcessGroup | None, device: torch.device) -> None:
        rank, _ = p2p.rank_and_size(group)
        mine = [route for route in routes(schedule) if rank in (route.source, route.to)]
        self.device = device
        self.outgoing = {route.key: route for route in mine if route.source == rank}
        self.incoming = {route.key: route for route in mine if route.to == rank}
        self.channels = _channels(mine, group, device)
        self.known: dict[Hashable, list[Spec]] = {}

    def begin(self, signatures: Sequence[Hashable], forward_only: bool) -> None:
        """A new step. signatures: for each micro-batch, what its messages' shapes follow from; equal on all ranks."""
        self.signatures, self.forward_only = signatures, forward_only
        self.unposted: dict[tuple[int, Kind], deque[Route]] = defaultdict(deque)
        for route in self.incoming.values():
            self.unposted[route.source, route.key.kind].append(route)
        self.posted: dict[Key, Posted] = {}
        self.sent: dict[int, list[Posted]] = defaultdict(list)
        self.returning: dict[Key, list[Spec]] = {}  # the gradients that answer our activations

    def send(self, key: Key, tensors: Sequence[Tensor], wants_gradient: Sequence[bool]) -> None:
        """Start sending. Nobody may write to the tensors from now on."""
        route = self.outgoing[key]
        channel = self.channels[route.source, route.to, key.kind]
        tensors = [tensor.detach().contiguous() for tensor in tensors]
        specs = [Spec(t.dtype, tuple(t.shape), wants) for t, wants in zip(tensors, wants_gradient, strict=True)]
        if key.kind == Kind.F:
            self.returning[key] = [spec for spec in specs if spec.wants_gradient]
            if self._is_new(key, specs):
                tensors.insert(0, _description(specs, key).to(self.device))
        works = [work for tensor in tensors for work in p2p.isend(tensor, channel.to, channel.group, channel.tag)]
        self.sent[route.to].append(Posted(route, tensors, specs, works))

    def receive(self, key: Key) -> tuple[list[Tensor], list[Spec]]:
        """Wait for a message. Activations come with what they are, gradients in the order of those that want one."""
        route = self.incoming[key]
        waiting = self.unposted[route.source, key.kind]
        while key not in self.posted:
            self._post(waiting.popleft())
        if waiting and self._specs(waiting[0].key) is not None:
            self._post(waiting.popleft())
        arrived = self.posted.pop(key)
        p2p.wait(arrived.works)
        self._let_go(route)
        return arrived.tensors, arrived.specs

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        for transfers in self.sent.values():
            for transfer in transfers:
                p2p.wait(transfer.works)
        self.sent.clear()

    def _post(self, route: Route) -> None:
        """Start the next receive of a channel."""
        channel = self.channels[route.source, route.to, route.key.kind]
        specs = self._specs(route.key)
        if specs is None:
            described = torch.empty(DESCRIPTION, dtype=torch.int64, device=self.device)
            p2p.wait(p2p.irecv(described, channel.source, channel.group, channel.tag))
            specs = self.known[self._name(route.key)] = _specs(described.tolist())
        tensors = [torch.empty(spec.shape, dtype=spec.dtype, device=self.device) for spec in specs]
        works = [work for t in tensors for work in p2p.irecv(t, channel.source, channel.group, channel.tag)]
        self.posted[route.key] = Posted(route, tensors, specs, works)

    def _specs(self, key: Key) -> list[Spec] | None:
        """What will come under this key; None if that is not known yet."""
        if key.kind == Kind.B:
            return self.returning.get(Key(Kind.F, key.stage - 1, key.micro_batch))
        return self.known.get(self._name(key))

    def _is_new(self, key: Key, specs: list[Spec]) -> bool:
        """Whether the receiver does not know yet what is coming. ValueError if it believes something else."""
        known = self.known.setdefault(self._name(key), specs)
        if known != specs:
            raise ValueError(
                f"stage {key.stage} made {_words(specs)} of micro-batch {key.micro_batch}, and {_words(known)} of an "
                "earlier one of the same shapes: what a stage sends must follow from the shapes of its micro-batch, "
                "for that is what the next stage makes room for"
            )
        return known is specs

    def _name(self, key: Key) -> Hashable:
        return key.stage, self.forward_only, self.signatures[key.micro_batch]

    def _let_go(self, arrived: Route) -> None:
        """Forget what the sender of this message had used before it made it."""
        still = []
        for transfer in self.sent[arrived.source]:
            if transfer.route.used < arrived.made:
                p2p.wait(transfer.works)
            else:
                still.append(transfer)
        self.sent[arrived.source] = still


def _channels(
    mine: Sequence[Route], group: dist.ProcessGroup | None, device: torch.device
) -> dict[tuple[int, int, Kind], Channel]:
    """The channels that this rank is an end of."""
    wanted = sorted({(route.source, route.to, route.key.kind.value) for route in mine})
    channels = {}
    for source, to, kind in wanted:
        if device.type == "cpu":
            channel = Channel(group, tag=int(kind == Kind.B.value), source=source, to=to)
        else:
            # NCCL knows no tags, and runs what two ranks exchange within a group strictly in order: an activation that
            # nobody awaits yet would stand before a gradient that the other side waits for.
            whole = dist.group.WORLD if group is None else group
            ends = [dist.get_global_rank(whole, rank) for rank in (source, to)]
            pair = dist.new_group(ends, use_local_synchronization=True)
            channel = Channel(pair, 0, *(dist.get_group_rank(pair, rank) for rank in ends))
        channels[source, to, Kind(kind)] = channel
    return channels


def _description(specs: Sequence[Spec], key: Key) -> Tensor:
    """(DESCRIPTION,) int64: how many tensors, and of each its dtype, whether it wants a gradient, its shape."""
    numbers = [len(specs)]
    for dtype, shape, wants_gradient in specs:
        if dtype not in DTYPES:
            raise ValueError(f"stage {key.stage} made a tensor of {dtype}, which no message can describe yet")
        numbers += [DTYPES.index(dtype), int(wants_gradient), len(shape), *shape]
    if len(numbers) > DESCRIPTION:
        raise ValueError(f"stage {key.stage} sends {len(specs)} tensors, too many to describe: send fewer")
    return torch.tensor(numbers + [0] * (DESCRIPTION - len(numbers)))


def _specs(numbers: list[int]) -> list[Spec]:
    """The other way round."""
    left = iter(numbers)
    return [
        Spec(DTYPES[next(left)], wants_gradient=bool(next(left)), shape=tuple(next(left) for _ in range(next(left))))
        for _ in range(next(left))
    ]


def _words(specs: Sequence[Spec]) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')} {shape}" for dtype, shape, _ in specs) or "nothing"
