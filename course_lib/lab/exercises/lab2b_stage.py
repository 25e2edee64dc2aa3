"""Lab 2b: one stage of a pipeline on a real rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import Exercise, Timing, Wrong
from course_lib.lab.exercises.lab2b_stage_run import (
    CASES,
    PACE_S,
    TIMED,
    Order,
    in_one_process,
    losses_and_gradients,
    ran,
    sent_bytes,
    timed,
)
from course_lib.lab.exercises.wrong import run_stage as stops
from course_lib.lab.exercises.wrong import run_stage_values as values
from course_lib.lab.signatures.words import signature
from course_lib.parallel.pipeline import simple_stage
from course_lib.parallel.pipeline.simple import gpipe_order


def in_gpipes_order(stage: Any, order: Order, inputs: list, loss_of: Callable, group: Any = None) -> list[Tensor]:
    return simple_stage.run_stage(stage, gpipe_order(0, 0, len(inputs)), inputs, loss_of, group)


def one_at_a_time(stage: Any, order: Order, inputs: list, loss_of: Callable, group: Any = None) -> list[Tensor]:
    alone = [(kind, i) for i in range(len(inputs)) for kind in "FB"]
    return simple_stage.run_stage(stage, alone, inputs, loss_of, group)


@signature
def another_order(e: Evidence) -> str | None:
    """Other forwards or backwards than the order says, or in other places."""
    for r in e.wrong:
        have, want = e.aside(r).get("events"), [f"{kind}{i}" for kind, i in e.inputs[r][2]]
        if have is None or have == want:
            continue
        at = next((k for k, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
        if at == len(have):
            return f"rank {r} stops after {at} of {len(want)} entries of its order: {want[at]} never ran"
        if at == len(want):
            return f"rank {r} goes on after the end of its order: {have[at]}"
        if have[at][0] == want[at][0] == "B":
            return (
                f"rank {r} runs {have[at]} where its order says {want[at]}: backward goes through what another "
                "micro-batch has left. Look it up by the number of the micro-batch: `held[i]`"
            )
        return f"rank {r} runs {have[at]} where its order says {want[at]}: take `order` entry by entry, and no other"
    return None


@signature
def no_losses(e: Evidence) -> str | None:
    last = e.n - 1
    if e.where != "`losses`" or last not in e.wrong:
        return None
    have, count = e.observed[last], len(e.expected[last])
    if isinstance(have, Tensor) and have.dim() == 1 and not len(have):
        return (
            f"rank {last}, the last, returned no losses, it should be {count}: one of each micro-batch, "
            "`losses.append(...)`"
        )
    if have is None:
        return f"rank {last}, the last, returned None. Its losses are wanted: `return losses` is below the blanks"
    if not isinstance(have, Tensor) or not have.dim():
        return f"rank {last}, the last, returned one value. A list is wanted, with the loss of each micro-batch"
    return None


@signature
def divided_again(e: Evidence) -> str | None:
    if e.where not in ("`gradient`", "`losses`") or not e.comparable:
        return None
    m = len(e.inputs[0][3])
    if m == 1:
        return None
    if all(same(e.observed[r] * m, e.expected[r]) for r in e.wrong) and len(e.wrong) == (1 if "l" in e.where else e.n):
        what = "the losses are" if "l" in e.where[:3] else "the losses are right, and every gradient is"
        return (
            f"{what} 1/{m} of what they should be, and there are {m} micro-batches: `loss_of` gives each its share of "
            "the step's loss already. Divide by their number nowhere, or it is done twice"
        )
    if all(same(e.observed[r] * m ** (e.n - 1 - r), e.expected[r]) for r in range(e.n)):
        return (
            f"the last rank's gradient is right, that of the rank before is 1/{m} of what it should be, and so on: "
            f"each rank divides what it receives by the number of micro-batches, {m}. Go on with it as it comes"
        )
    return None


@signature
def last_micro_batch_alone(e: Evidence) -> str | None:
    if e.where != "`gradient`" or not e.comparable or len(e.wrong) < e.n:
        return None
    last = [i for kind, i in e.inputs[0][2] if kind == "B"][-1]
    alone = losses_and_gradients(e.inputs, [last])[1]
    if not all(same(e.observed[r], alone[r]) for r in e.wrong):
        return None
    return (
        f"the gradient is that of micro-batch {last} alone, the last to go back. The gradients of all add up in the "
        "parameters: set nothing back in between"
    )


@signature
def still_in_memory(e: Evidence) -> str | None:
    """Right, and too much is kept."""
    if e.where != "`kept`":
        return None
    most = max(e.aside(r).get("kept", 0) for r in e.wrong)
    head = (
        f"losses and gradients are right, but {show.ranks(e.wrong)} still {'holds' if len(e.wrong) == 1 else 'hold'} "
        f"the input of {most} micro-batches whose backward is done"
    )
    if e.wrong == [e.n - 1] and e.n > 2:
        return f"{head}: a loss keeps its graph, and the graph all it was computed from. Keep `y.detach()`"
    if e.n - 1 not in e.wrong:
        return f"{head}: what is sent keeps its graph until the send is waited for. Send `y.detach()`"
    return (
        f"{head}: that is the memory of GPipe, whatever the order. Let go of what you held: `held.pop(i)`. A loss that "
        "you keep holds it, too, by its graph, and so does the work of a receive"
    )


STARTS = (
    "In 1F1B a rank sends an output on while its neighbour sends a gradient back. `isend` starts that and goes on. "
    "Keep what it returns in `sent`, which is waited for at the end."
)
NUMBERS = (
    "A forward takes one message from the rank before and sends one to the rank after; a backward, the other way. The "
    "first rank receives no input, the last no gradient. And keep what `isend` returns: a send that is let go may "
    "never leave."
)

RUN_STAGE = Exercise(
    name="run_stage",
    lab="lab2b",
    title="One stage",
    minutes=25,
    difficulty=3,
    reference=simple_stage.run_stage,
    cases=CASES,
    expected=in_one_process,
    call=ran,
    takes_group=True,
    least_bytes=sent_bytes,
    timing=Timing(
        timed,
        f"{TIMED} micro-batches through stages that take {1e3 * PACE_S:.0f} ms forward and {2e3 * PACE_S:.0f} ms "
        "backward",
        {"in GPipe's order": in_gpipes_order, "one micro-batch at a time": one_at_a_time},
        no_gain="GPipe's order takes as long: what 1F1B saves is memory.",
    ),
    timeline=True,
    signatures=[
        no_losses,
        another_order,
        divided_again,
        last_micro_batch_alone,
        still_in_memory,
    ],
    hints=[
        "Forward: where from does this rank get its input, and where does its output go? Backward: the same two "
        "questions for gradients, the other way. The first rank and the last have one neighbour each.",
        "Rank 1 of 3, micro-batch 0:\n"
        "    F   x from rank 0, which wants a gradient;  y = stage(x);  y to rank 2;  hold x and y\n"
        "    B   x and y out of what is held;  y.backward(the gradient from rank 2);  x.grad to rank 0\n"
        "The last rank sends no y: its y is the loss, and y.backward() needs no gradient from anybody.",
        "Forward: `x = inputs[i] if rank == 0 else receive(inputs[i], rank - 1, group).requires_grad_()`, `y = "
        "stage(x)`, then on the last rank `y = loss_of(y, i)` and `losses.append(y.detach())`, on the others `sent += "
        "isend(y.detach(), rank + 1, group)`; `held[i] = x, y`.\n"
        "Backward: `x, y = held.pop(i)`, `y.backward(None if rank == n - 1 else receive(y, rank + 1, group))`, and "
        "from rank 1 on `sent += isend(x.grad, rank - 1, group)`.",
    ],
    advice={
        "all_send": STARTS,
        "both_send": STARTS,
        "meets_none": "Is it `x.grad` on the first rank? It has no rank before it, and sends no gradient.",
        "unequal_sizes": "Do an output and a gradient meet? The first rank receives no input, the last no gradient. "
        "What is received has the shape of `inputs[i]`; the gradient of y, that of y.",
        "out_of_step": NUMBERS,
        "unequal_steps": NUMBERS,
        "all_receive": NUMBERS,
        "calls_a_collective": "And nothing is summed here: each stage has parameters of its own. (Where a stage has "
        "copies, they are synchronised once a step, not at every micro-batch.)",
    },
    wrong=[
        Wrong(stops.both_send_first, "All send first and nobody receives"),
        Wrong(stops.waits_inside, "Ranks 0 and 1 each wait in a send to the other"),
        Wrong(stops.gradients_never_waited_for, "never waited for"),
        Wrong(stops.gradient_onwards, "a gradient to the one before"),
        Wrong(stops.last_waits, "irecv with group_src"),
        Wrong(stops.last_waits_for_the_first, "the last rank's backward starts at its loss"),
        Wrong(stops.first_waits, "the first rank's input is in `inputs`"),
        Wrong(stops.first_sends, "Is it `x.grad` on the first rank"),
        Wrong(stops.never_receives, "gives its stage a tensor of `inputs`"),
        Wrong(stops.loss_on_every_rank, "calls `loss_of`, and is not the last"),
        Wrong(stops.without_the_gradient, "starts its backward from ones"),
        Wrong(stops.gradient_of_the_inputs_shape, "A receive needs a tensor of the size that was sent"),
        Wrong(stops.without_group, "ight on the whole world, wrong in a group"),
        Wrong(values.loss_over_m, "the losses are right, and every gradient is 1/6"),
        Wrong(values.reported_over_m, "the losses are 1/6 of what they should be"),
        Wrong(values.gradient_over_m, "each rank divides what it receives"),
        Wrong(values.synchronised_each_time, "nothing is summed here"),
        Wrong(values.nothing_freed, "Let go of what you held"),
        Wrong(values.losses_with_their_graph, "a loss keeps its graph"),
        Wrong(values.outputs_with_their_graph, "what is sent keeps its graph"),
        Wrong(values.without_requires_grad, "an input that wants no gradient"),
        Wrong(values.losses_not_kept, "returned no losses"),
        Wrong(values.losses_not_returned, "the last, returned None"),
        Wrong(values.losses_added_up, "the last, returned one value"),
        Wrong(values.from_a_queue, "runs B0 where its order says B3"),
        Wrong(values.from_a_stack, "where its order says B0: backward goes through what another"),
        Wrong(values.gradients_set_back, "that of micro-batch 5 alone"),
        Wrong(values.into_the_inputs, "`receive` makes one"),
        Wrong(values.in_an_order_of_its_own, "take `order` entry by entry"),
    ],
    closing="Each micro-batch was let go after its backward.",
)
