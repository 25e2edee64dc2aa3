"""A guess is kept, compared in one sentence, and never needed."""

import pytest

from course_lib import lab
from course_lib.lab import predictions, progress


def test_nobody_guesses_headless(own_progress, capsys):
    guess = lab.predict("MB through rank 0's link, 4 ranks", unit="MB")
    assert guess.guess is None and "your guess, in MB?" in capsys.readouterr().out
    lab.reveal(guess, 96)
    assert capsys.readouterr().out == "MB through rank 0's link, 4 ranks: 96 MB. You made no guess.\n"


def test_a_guess_is_kept_with_the_answer(own_progress, capsys):
    lab.predict("how many?", "MB").commit(32)
    again = lab.predict("how many?", "MB")
    assert again.guess == 32
    lab.reveal(again, 96)
    assert "You guessed 32 MB: 3 times too small." in capsys.readouterr().out
    assert progress.load()["predictions"]["how many?"] == {"guess": 32, "unit": "MB", "value": 96.0}


@pytest.mark.parametrize(
    ("guess", "value", "words"),
    [
        (96, 96, "You guessed 96 MB: right."),
        (99, 96, "You guessed 99 MB: within 5%."),
        (48, 96, "2 times too small."),
        (1000, 96, "10 times too large."),
        (72, 96, "25% too small."),
        (120, 96, "25% too large."),
        (0, 96, "96 MB too small."),
        (5, 0, "5 MB too large."),
        (-96, 96, "192 MB too small."),
        ("ring", "ring", "You guessed ring: right."),
        ("tree", "ring", "You guessed tree: wrong."),
        ("13", 13, "You guessed 13 MB: right."),
        (None, 96, "You made no guess."),
    ],
)
def test_comparison(guess, value, words):
    assert predictions.compare(guess, value, "MB").endswith(words)


def test_a_long_time_has_a_unit_that_fits(own_progress, capsys):
    lab.reveal(lab.predict("a message", "µs"), 10930.2)
    assert "a message: 10.9 ms." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "number"), [("32", 32), ("1,024", 1024), (" 3e6 ", 3e6), ("-1.5", -1.5), ("", None), ("two", None)]
)
def test_what_people_type(text, number):
    assert predictions.parse(text) == number


def find(widget, kind):
    return next(child for child in widget.children if type(child).__name__ == kind)


def test_typing_a_number(own_progress):
    prediction = predictions.Prediction("how many?", "MB")
    box = predictions._widget(prediction)
    find(box, "Text").value = "many"
    assert prediction.guess is None and "Type a number" in box.children[-1].value
    find(box, "Text").value = "1,024"
    assert prediction.guess == 1024 and "Your guess: 1024 MB." in box.children[-1].value
    assert "Your guess: 1024 MB." in predictions._widget(prediction).children[-1].value  # opened again


def test_choosing(own_progress):
    prediction = predictions.Prediction("which wins?", choices=("tree", "ring"))
    buttons = find(predictions._widget(prediction), "ToggleButtons")
    assert buttons.value is None
    buttons.value = "ring"
    assert prediction.guess == "ring"
    assert find(predictions._widget(prediction), "ToggleButtons").value == "ring"


def test_choices_that_are_none():
    with pytest.raises(ValueError, match="two or more different answers"):
        lab.predict("?", choices=["a", "a"])


def test_a_number_of_torch_is_a_number(own_progress, capsys):
    import torch

    lab.reveal(lab.predict("?"), torch.tensor(0.5))
    assert ": 0.5." in capsys.readouterr().out
