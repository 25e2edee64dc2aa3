"""Commit to a guess, then let the machine answer.

    guess = lab.predict("MB through rank 0's link, 4 ranks", unit="MB")
    ...
    lab.reveal(guess, 96)

The guess is kept with the progress, so a lab that is opened again still knows it. Without a front end (a headless run,
CI) nobody guesses, and `reveal` only tells the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.lab import machine, progress, show

SECONDS = {"µs": 1e-6, "ms": 1e-3}


@dataclass
class Prediction:
    """A question and the guess so far: a number, one of the choices, or None."""

    question: str
    unit: str = ""
    choices: tuple[str, ...] | None = None

    @property
    def guess(self) -> float | str | None:
        return progress.load()["predictions"].get(self.question, {}).get("guess")

    def commit(self, guess: float | str) -> None:
        """Keep a guess."""
        progress.record("predictions", self.question, guess=guess, unit=self.unit)

    def __str__(self) -> str:
        return f"{self.question}: your guess, in {self.unit}?" if self.unit else f"{self.question}?"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        widget = _widget(self)._repr_mimebundle_() if show.in_notebook() else {}
        return widget | {"text/plain": str(self)}


def predict(question: str, unit: str = "", choices: Sequence[str] | None = None) -> Prediction:
    """Ask for a guess: a box to type a number in, or buttons to choose from. Returns at once, with or without a guess.

    Raises ValueError for choices that are fewer than two or not all different.
    """
    if choices is not None and len(set(choices)) < max(2, len(choices)):
        raise ValueError(f"A choice needs two or more different answers, not {list(choices)}.")
    prediction = Prediction(question, unit, tuple(choices) if choices is not None else None)
    show.put(prediction)
    return prediction


def reveal(prediction: Prediction, value: float | str) -> None:
    """Show the answer and how the guess compares with it, in one or two sentences. Keep it beside the guess."""
    guess = prediction.guess
    value = value if isinstance(value, str) else float(value)  # a tensor of one element, a numpy number
    progress.record("predictions", prediction.question, value=value, unit=prediction.unit)
    text = f"{prediction.question}: **{_said(value, prediction.unit)}**. {compare(guess, value, prediction.unit)}"
    show.put(show.Message("hint", text))


def compare(guess: float | str | None, value: float | str, unit: str = "") -> str:
    """The guess against the value: "You guessed 32 MB: 3 times too small." """
    if guess is None:
        return "You made no guess."
    if isinstance(guess, str) and not isinstance(value, str):
        guess = guess if (number := parse(guess)) is None else number
    said = f"You guessed {_said(guess, unit)}"
    if isinstance(value, str) or isinstance(guess, str):
        return f"{said}: right." if guess == value else f"{said}: wrong."
    if guess == value:
        return f"{said}: right."
    off = abs(guess - value)
    if off <= 0.05 * abs(value):
        return f"{said}: within 5%."
    which = "large" if guess > value else "small"
    ratio = max(guess / value, value / guess) if guess * value > 0 else 0.0
    if ratio >= 1.95:
        return f"{said}: {show.number(round(ratio, 1) if ratio < 10 else round(ratio))} times too {which}."
    far = f"{off / abs(value):.0%}" if ratio else _said(off, unit)
    return f"{said}: {far} too {which}."


def _said(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit in SECONDS and abs(value) >= 1000:  # "10.9 ms" for 10930 µs
        return machine.readable(value * SECONDS[unit], "s")
    return f"{show.number(value)} {unit}".strip()


def parse(text: str) -> float | None:
    """The number a person typed: "32", "1,024", "3e6". None if it is none."""
    try:
        return float(text.replace(",", "").replace("_", "").strip())
    except ValueError:
        return None


def _widget(prediction: Prediction) -> Any:
    # Here, not above: ranks and plain scripts import the lab too, and have no front end.
    import ipywidgets as widgets

    label = widgets.HTML(f"<b>{show.escape(prediction.question)}</b>")
    kept = prediction.guess
    note = widgets.HTML("" if kept is None else f"Your guess: {show.escape(_said(kept, prediction.unit))}.")
    if prediction.choices:
        field = widgets.ToggleButtons(options=prediction.choices, value=kept if kept in prediction.choices else None)
        field.add_class("course-guess")
    else:
        field = widgets.Text(
            placeholder=f"a number, in {prediction.unit}" if prediction.unit else "a number", continuous_update=False
        )

    def changed(event: dict[str, Any]) -> None:
        guess = event["new"] if prediction.choices else parse(event["new"])
        if guess is None:
            note.value = "Type a number, then Enter."
            return
        prediction.commit(guess)
        note.value = f"Your guess: {show.escape(_said(guess, prediction.unit))}."

    field.observe(changed, names="value")
    return widgets.VBox([label, field, note])
