"""Each call shows the hints so far and one more, the solution last, and how many were used is kept."""

import pytest

from course_lib import lab
from course_lib.lab import exercise, progress, show


def test_the_ladder(own_progress, monkeypatch):
    shown = []
    monkeypatch.setattr(show, "put", shown.append)
    rungs = exercise.find("ring_all_gather").hints
    for call in range(1, len(rungs) + 3):
        shown.clear()
        lab.hint("ring_all_gather")
        numbers = [message.text[: len("Hint 1 of 4.")] for message in shown]
        assert numbers == [f"Hint {k} of 4." for k in range(1, min(call, 4) + 1)]
        assert [bool(message.details) for message in shown] == [False] * (len(shown) - 1) + [call < 4]
    assert str(shown[0]).startswith("Hint 1 of 4. Everybody starts with one chunk.")
    assert "step 0   sends c2 (its own)   receives c1" in shown[1].code and shown[1].text.endswith("receives:")
    assert "def ring_all_gather" in shown[3].code
    assert progress.load()["exercises"]["ring_all_gather"] == {"hints": 4}


def test_by_the_function(own_progress, capsys):
    def all_reduce(x): ...

    lab.hint(all_reduce)
    assert "Hint 1 of 4." in capsys.readouterr().out
    with pytest.raises(LookupError, match="No exercise is called 'nothing'"):
        lab.hint("nothing")
