"""Lab 2b: a backward in two parts, of which one can wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.lab.evidence import Aside, Evidence, same
from course_lib.lab.exercise import Case, Exercise, Wrong, random_tensor
from course_lib.lab.exercises.wrong import linear_in_two as splits
from course_lib.lab.signatures.words import signature
from course_lib.parallel.pipeline import simple_stage

AT_ONCE = "gradient of the weight right after backward"
LEFT = "functions in later"
AFTERWARDS = "gradient of the weight"
TOO_MANY = "products too many in backward"
RECORDED = "recorded by autograd"

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)
END, EACH, NEWEST = "at the end", "after each backward", "at the end, the newest first"


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.count += func.overloadpacket in PRODUCTS
        return func(*args, **(kwargs or {}))


@contextmanager
def counting(counts: list[int]) -> Iterator[None]:
    with Products() as products:
        yield
    counts.append(products.count)


def split(answer: Any, when: str, weight: Tensor, xs: Sequence[Tensor], grads: Sequence[Tensor]) -> dict[str, Any]:
    """What the micro-batches xs give: forward of all, then backward of each, and what was left for later `when`."""
    if not (isinstance(answer, type) and issubclass(answer, Function)):
        raise TypeError("this is called as `.apply(x, weight, later)`: it must stay a class, with `(Function)`")
    weight, leaves = nn.Parameter(weight.clone()), [x.clone().requires_grad_() for x in xs]
    later: list[Any] = []
    outputs = [answer.apply(x, weight, later) for x in leaves]
    at_once, counts, appended, ran = None, [], 0, 0
    for y, grad in zip(outputs, grads, strict=True):
        before = None if weight.grad is None else weight.grad.clone()
        with counting(counts):
            y.backward(grad.clone())
        if not same(weight.grad, before) and at_once is None:
            at_once = weight.grad.clone()
        appended = len(later)
        if when == EACH:
            ran += run(later[ran:])
    if when != EACH:
        run(later[::-1] if when == NEWEST else later)
    return {
        "y": [y.detach() for y in outputs],
        "gradient of x": [x.grad for x in leaves],
        AT_ONCE: at_once,
        LEFT: appended,
        AFTERWARDS: None if weight.grad is None else weight.grad.detach().clone(),
        TOO_MANY: max(0, max(counts) - 1),
        RECORDED: weight.grad is not None and weight.grad.requires_grad,
        "seen": Aside({"callable": [callable(entry) for entry in later]}),
    }


def run(later: Sequence[Any]) -> int:
    for entry in later:
        if callable(entry):
            entry()
    return len(later)


def whole(inputs: list[tuple], n: int) -> list[dict[str, Any]]:
    """The same by autograd, undivided."""
    _, weight, xs, grads = inputs[0]
    weight, leaves = weight.clone().requires_grad_(), [x.clone().requires_grad_() for x in xs]
    outputs = [x @ weight.t() for x in leaves]
    torch.autograd.backward(outputs, [grad.clone() for grad in grads])
    return [
        {
            "y": [y.detach() for y in outputs],
            "gradient of x": [x.grad for x in leaves],
            AT_ONCE: None,
            LEFT: len(xs),
            AFTERWARDS: weight.grad,
            TOO_MANY: 0,
            RECORDED: False,
        }
    ]


def micro_batches(count: int, inputs: int, outputs: int, when: str) -> Case:
    def make(rank: int, n: int, rng: torch.Generator) -> tuple:
        rows = [4 + 3 * i for i in range(count)]
        weight = random_tensor((outputs, inputs), rng, torch.float64)
        xs = [random_tensor((k, inputs), rng, torch.float64) for k in rows]
        return when, weight, xs, [random_tensor((k, outputs), rng, torch.float64) for k in rows]

    many = f"{count} micro-batch{'es' * (count > 1)}"
    return Case(make, label=f"{many}, a weight of {outputs} x {inputs}, later called {when}")


def of_part(part: str, holds: Callable[[Evidence], bool], name: str, sentence: str):
    """A signature: holds(evidence), where `part` is what is wrong."""

    @signature
    def find(e: Evidence) -> str | None:
        return sentence if f"`{part}`" in e.where and holds(e) else None

    find.__name__ = name
    return find


def others(e: Evidence) -> dict[str, Any]:
    value = (e.returned or e.observed)[0]
    return value if isinstance(value, dict) else {}


def right(e: Evidence) -> dict[str, Any]:
    return whole(e.inputs, e.n)[0]


def alone(e: Evidence, i: int) -> Tensor:
    """The weight's gradient from micro-batch i."""
    _, _, xs, grads = e.inputs[0]
    return grads[i].t() @ xs[i]


def last_called(e: Evidence) -> Tensor:
    return alone(e, 0 if e.inputs[0][0] == NEWEST else -1)


def several(e: Evidence) -> bool:
    return len(e.inputs[0][2]) > 1 and isinstance(e.observed[0], Tensor)


@signature
def not_callable(e: Evidence) -> str | None:
    if e.where in ("", "`y`") or all(e.aside(0).get("callable", [])):
        return None
    return (
        "what is in `later` is no function: `later.append(f())` calls f now and appends what it returns. Append f "
        "itself, without `()`"
    )


@signature
def computed_twice(e: Evidence) -> str | None:
    if AT_ONCE not in e.where or not same(others(e).get(AFTERWARDS), 2 * right(e)[AFTERWARDS]):
        return None
    return (
        "the weight's gradient is added in backward, and once more when `later` is called: it is 2 times what it "
        "should be. Backward returns None for the weight"
    )


@signature
def computed_at_once(e: Evidence) -> str | None:
    if AT_ONCE not in e.where:
        return None
    if others(e).get(LEFT):
        return "the weight's gradient changes in backward already. It is to change only when `later` is called"
    exact = same(others(e).get(AFTERWARDS), right(e)[AFTERWARDS])
    return (
        f"{'the gradients are right, but ' if exact else ''}the weight's is computed in backward, at once, and nothing "
        "is left in `later`: a rank that waits has nothing to fill its time with. Append a function that does it"
    )


LINEAR_IN_TWO = Exercise(
    name="LinearInTwo",
    lab="lab2b",
    title="Leave the weight's gradient for later",
    minutes=15,
    difficulty=2,
    reference=simple_stage.LinearInTwo,
    worlds=(1,),
    cases=[
        micro_batches(1, 3, 3, END),
        micro_batches(2, 4, 2, END),
        micro_batches(2, 4, 2, EACH),
        micro_batches(3, 2, 3, NEWEST),
    ],
    expected=whole,
    call=split,
    signatures=[
        not_callable,
        computed_twice,
        computed_at_once,
        of_part(
            "gradient of x",
            lambda e: e.observed[0] is None,
            "no_gradient_for_x",
            "backward returns None for x. Its gradient cannot wait: the rank before needs it to go on.",
        ),
        of_part(
            "gradient of x",
            lambda e: same(e.observed[0], e.inputs[0][3][0] @ e.inputs[0][1].t()),
            "weight_transposed",
            "the gradient of x is `grad @ weight.t()`, as forward has it. Backward goes the other way: grad "
            "(tokens, outputs) times the weight (outputs, inputs).",
        ),
        of_part(
            LEFT,
            lambda e: not e.observed[0],
            "nothing_in_later",
            "nothing is in `later`: the list that forward was given is still empty. Append to `ctx.later`, and put no "
            "new list in its place.",
        ),
        of_part(
            AFTERWARDS,
            lambda e: e.observed[0] is None,
            "never_stored",
            "`weight.grad` is still None when all of `later` has been called. Nobody takes what the function returns: "
            "it must store it.",
        ),
        of_part(
            AFTERWARDS,
            lambda e: e.observed[0].shape == e.expected[0].shape and same(e.observed[0], e.expected[0].t()),
            "gradient_transposed",
            "the weight's gradient is transposed. It has the weight's shape, (outputs, inputs): `grad.t() @ x`.",
        ),
        of_part(
            AFTERWARDS,
            lambda e: several(e) and same(e.observed[0], last_called(e)),
            "overwritten",
            "the weight's gradient is that of one micro-batch, whose function was called last: each call overwrites "
            "what is there. Add to it.",
        ),
        of_part(
            AFTERWARDS,
            lambda e: several(e) and same(e.observed[0], len(e.inputs[0][2]) * alone(e, -1)),
            "the_last_values",
            "the weight's gradient is that of the last micro-batch, once for each function: all of them look at the "
            "same variables, and find there what the last backward has left. Each must keep its own `grad` and `x`.",
        ),
        of_part(
            TOO_MANY,
            lambda e: True,
            "product_at_once",
            "the gradients are right, but backward computes both products, and leaves only the adding for later. The "
            "product is what takes time: put it into the function.",
        ),
        of_part(
            RECORDED,
            lambda e: True,
            "recorded",
            "the gradients are right, but autograd has recorded how the weight's was computed, and keeps x for that. "
            "Use `x` as it is detached above, or `torch.no_grad()`.",
        ),
    ],
    hints=[
        "y = x W^T. Two products: grad (tokens, outputs) and W (outputs, inputs) make the gradient of x (tokens, "
        "inputs); grad and x make that of W (outputs, inputs). Which one can wait, and what must it still know then?",
        "A function that is defined inside of another one keeps the variables of that call:\n"
        "    def weight_gradient():\n"
        "        ... grad, x and weight of this backward ...\n"
        "    ctx.later.append(weight_gradient)",
        "In `weight_gradient`: `gradient = grad.t() @ x`, then `weight.grad = gradient if weight.grad is None else "
        "weight.grad + gradient`. After it `ctx.later.append(weight_gradient)` and `return grad @ weight, None, None`.",
    ],
    advice={
        "raises": "The weight's gradient has the weight's shape, (outputs, inputs). Backward returns three values, one "
        "for each argument of forward: x's gradient, None and None.",
    },
    wrong=[
        Wrong(splits.AtOnce, "nothing is left in `later`"),
        Wrong(splits.AtOnceAndLater, "and once more when `later` is called"),
        Wrong(splits.ReturnedAndLater, "Backward returns None for the weight"),
        Wrong(splits.Overwritten, "each call overwrites what is there"),
        Wrong(splits.Transposed, "the weight's gradient is transposed"),
        Wrong(splits.TheLastValues, "what the last backward has left"),
        Wrong(splits.ProductAtOnce, "leaves only the adding for later"),
        Wrong(splits.CalledNow, "is no function"),
        Wrong(splits.ANewList, "put no new list in its place"),
        Wrong(splits.NeverStored, "Nobody takes what the function returns"),
        Wrong(splits.InputLaterToo, "the rank before needs it to go on"),
        Wrong(splits.WeightTransposed, "as forward has it"),
        Wrong(splits.OneValue, "one for each argument of forward"),
        Wrong(splits.Recorded, "autograd has recorded"),
        Wrong(splits.a_function, "it must stay a class"),
    ],
    closing="Backward is two products of the same size here, so half of its time can be moved to where a rank would "
    "wait. The price: x and grad stay in memory until then.",
)
