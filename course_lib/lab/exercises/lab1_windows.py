"""Lab 1: several micro-batches for one step, and one exchange of gradients."""

from __future__ import annotations

from torch import Tensor

from course_lib.lab import show
from course_lib.lab.evidence import Evidence, same
from course_lib.lab.exercise import Exercise, Timing, Wrong
from course_lib.lab.exercises.lab1_windows_run import (
    LR,
    ROWS,
    epoch,
    exchanged_bytes,
    gradient,
    large_epoch,
    trained,
    trained_expected,
)
from course_lib.lab.exercises.wrong import train_in_windows as windows
from course_lib.lab.signatures.words import signature
from course_lib.training import accumulate

# What the events say. In all of them rank 0 speaks for all: micro-batches and windows are alike on all ranks.


def events(e: Evidence) -> tuple[str, int, int]:
    """(events without zero_grad, number of micro-batches, window)"""
    _, micro_batches, window = e.inputs[0]
    return e.aside(0).get("events", "").replace("z", ""), len(micro_batches), window


def steps(e: Evidence) -> list[int]:
    """How many backwards went before each step, since the last one; what came after the last step is left out."""
    text, _, _ = events(e)
    return [sum(c in "Bbn" for c in part) for part in text.split("s")[:-1]]


def proper(count: int, window: int) -> list[int]:
    return [min(window, count - start) for start in range(0, count, window)]


@signature
def holds_a_window(e: Evidence) -> str | None:
    """Activations of several micro-batches wait for a backward at once, whatever else is wrong."""
    text, _, _ = events(e)
    held = e.aside(0).get("held", 0)
    if held <= ROWS:
        return None
    right = "the gradient is right, but " if e.where == "`held`" else ""
    many = f"the activations of {held // ROWS} micro-batches are held at once, the memory that accumulation saves"
    if "ff" in text.lower():
        return f"{right}forward runs several times before backward does: {many}. Call backward after each forward"
    return f"{right}micro-batches are put together into a large one: {many}. Take them one by one"


@signature
def other_windows(e: Evidence) -> str | None:
    """Steps in other places than they should be."""
    text, count, window = events(e)
    have, want = steps(e), proper(count, window)
    if not text or have == want:
        return None
    if not have:
        return "no optimizer step was taken"
    if have == want[:-1] and want[-1] < window:
        return (
            f"the last window, of {show.number(want[-1])} micro-batch{'es' * (want[-1] > 1)}, gets no step: it is "
            "shorter, and it counts"
        )
    if sum(have) == count and len(have) == count:
        return f"a step after every micro-batch: {count} steps, it should be {len(want)}. `window` has no part in it"
    if len(have) == 1:
        return f"one step at the end of all, it should be {len(want)}: one after every {window} micro-batches"
    return f"steps are taken after {show.listing(have)} micro-batches, it should be after {show.listing(want)}"


@signature
def gradients_left_over(e: Evidence) -> str | None:
    """zero_grad is missing, or comes at the wrong time."""
    text = e.aside(0).get("events", "")
    if e.where != "`weights`" or not text:
        return None
    if "z" not in text and e.inputs[0][2] < len(e.inputs[0][1]):
        return "the gradients are never set back: each step adds those of all steps before. `optimizer.zero_grad()`"
    if "zs" in text or any(found is None for found in e.aside(0)["gradients"]):
        return "the gradients are set back before the step, so there is nothing to step with"
    if "bzfb" in text.lower().replace("n", "b"):
        return (
            "the gradients are set back before every micro-batch, so a step sees the last one alone. Do it once a step"
        )
    return None


@signature
def never_exchanged(e: Evidence) -> str | None:
    text, count, window = events(e)
    if e.where != "`weights`" or not text or "B" in text or "n" in text:
        return None
    return (
        "gradients are never exchanged: every forward runs inside of `no_sync()`, so the ranks train apart. The last "
        "micro-batch of a window must run outside"
    )


@signature
def some_not_exchanged(e: Evidence) -> str | None:
    """Windows whose last backward does not exchange, though others may."""
    text, _, _ = events(e)
    if e.where != "`weights`" or not text:
        return None
    for number, part in enumerate(text.split("s")[:-1]):
        backwards = [c for c in part if c in "Bbn"]
        if backwards and backwards[-1] == "b":
            if "B" in backwards or "n" in backwards:
                return (
                    f"in window {number} an early micro-batch is exchanged and the last one is not: what comes after "
                    "an exchange stays on its rank. Let the last one run outside of `no_sync()`"
                )
            return (
                f"in window {number} nothing is exchanged: all of it runs inside of `no_sync()`, so the ranks take "
                "different steps. It is the last one, and shorter than `window`"
            )
    return None


@signature
def divided_otherwise(e: Evidence) -> str | None:
    """The gradient of the first wrong step is a multiple of the right one."""
    if e.where != "`weights`" or not e.aside(0).get("gradients"):
        return None
    weight, _, window = e.inputs[0]
    count = len(e.inputs[0][1])
    sizes = proper(count, window)
    start = 0
    for number, (size, found) in enumerate(zip(sizes, e.aside(0)["gradients"], strict=False)):
        taken = [x for _, micro_batches, _ in e.inputs for x in micro_batches[start : start + size]]
        right = gradient(weight, taken)
        if found is None or not same(found, right):
            return _division(found, right, size, window, count, number, e.n)
        weight, start = weight - LR * right, start + size
    return None


def _division(
    found: Tensor | None, right: Tensor, size: int, window: int, count: int, number: int, n: int
) -> str | None:
    if found is None:
        return None
    factors = {
        size: f"the losses of window {number} are added up and not divided: its gradient is {size} times too large. "
        f"Divide each by {size}, the number of micro-batches in the window",
        size / window: f"the last window has {size} micro-batch{'es' * (size > 1)}, and its losses are divided by "
        f"{window}. Divide by the number it has",
        size
        / count: f"the losses are divided by {count}, the number of all micro-batches. Divide by those of the window",
        1 / n: f"the gradient is 1/{n} of what it should be: the model takes the mean over the ranks already",
        n: f"the gradient is {n} times too large: the model takes the mean over the ranks already",
    }
    return next((text for factor, text in factors.items() if factor != 1 and same(found, factor * right)), None)


@signature
def too_many_exchanges(e: Evidence) -> str | None:
    if e.where != "`exchanges`":
        return None
    text, _, _ = events(e)
    have, want = e.observed[0], e.expected[0]
    right = f"right, but gradients are exchanged {have} times, where {want} {'is' if want == 1 else 'are'} enough"
    if "n" in text:
        return (
            f"{right}: only backward runs inside of `no_sync()`. Forward decides whether the next backward exchanges: "
            "put both inside"
        )
    if "f" not in text:
        return f"{right}: nothing runs inside of `no_sync()`. All micro-batches of a window but the last belong there"
    return f"{right}. Only the last micro-batch of a window runs outside of `no_sync()`"


TRAIN_IN_WINDOWS = Exercise(
    name="train_in_windows",
    lab="lab1",
    title="Accumulate over windows",
    minutes=20,
    difficulty=2,
    reference=accumulate.train_in_windows,
    cases=[epoch(6, 3), epoch(7, 3), epoch(3, 1), epoch(2, 4)],
    expected=trained_expected,
    call=trained,
    may_use=frozenset({"all_reduce"}),  # the replica's own
    least_bytes=exchanged_bytes,
    timing=Timing(
        large_epoch,
        "8 micro-batches in windows of 4, 2 MB of gradients,",
        {},
    ),
    signatures=[
        holds_a_window,
        other_windows,
        gradients_left_over,
        never_exchanged,
        some_not_exchanged,
        divided_otherwise,
        too_many_exchanges,
    ],
    hints=[
        "A step needs the mean over its window: what must each loss be divided by, so that their gradients add up to "
        "it? And which micro-batch of the window should set off the exchange?",
        "7 micro-batches, window 3; in ( ) what runs inside of `no_sync()`:\n"
        "    (0) (1) 2  step     each loss / 3\n"
        "    (3) (4) 5  step     each loss / 3\n"
        "    6          step     the loss / 1",
        "For each window, `taken = micro_batches[start : start + window]`. For each of its micro-batches: `with "
        "nullcontext() if it is the last else model.no_sync():`, and inside both `loss = loss_of(model, micro_batch) / "
        "len(taken)` and `loss.backward()`. After the window: `optimizer.step()`, `optimizer.zero_grad()`.",
    ],
    wrong=[
        Wrong(windows.exchange_for_each, "nothing runs inside of `no_sync()`"),
        Wrong(windows.backward_alone, "only backward runs inside of `no_sync()`"),
        Wrong(windows.never_synchronised, "gradients are never exchanged"),
        Wrong(windows.forward_alone, "every forward runs inside of `no_sync()`, so the ranks train apart"),
        Wrong(windows.first_in_place_of_last, "an early micro-batch is exchanged and the last one is not"),
        Wrong(windows.rest_dropped, "gets no step: it is shorter, and it counts"),
        Wrong(windows.rest_left_in_the_gradients, "the last window, of 1 micro-batch"),
        Wrong(windows.rest_not_exchanged, "It is the last one, and shorter than `window`"),
        Wrong(windows.not_divided, "are added up and not divided"),
        Wrong(windows.rest_divided_by_window, "and its losses are divided by 3"),
        Wrong(windows.divided_by_all, "the number of all micro-batches"),
        Wrong(windows.without_zero_grad, "are never set back"),
        Wrong(windows.zero_grad_each_time, "set back before every micro-batch"),
        Wrong(windows.zero_grad_before_step, "set back before the step"),
        Wrong(windows.step_each_time, "a step after every micro-batch"),
        Wrong(windows.step_at_the_first, "steps are taken after 1, 3 and 2 micro-batches"),
        Wrong(windows.one_step_in_all, "one step at the end of all"),
        Wrong(windows.without_step, "no optimizer step was taken"),
        Wrong(windows.one_backward_a_window, "forward runs several times before backward does"),
        Wrong(windows.one_large_batch, "micro-batches are put together into a large one"),
        Wrong(windows.all_forwards_first, "of 2 micro-batches are held at once"),
        Wrong(windows.averaged_by_hand_too, "the model takes the mean over the ranks already"),
    ],
)
