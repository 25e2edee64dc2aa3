"""Every exercise of every lab: the reference passes, a stub is no attempt, each wrong answer gets its own sentence."""

from dataclasses import replace

import pytest

from course_lib.lab import attempt, exercise, trial
from course_lib.lab.checking import NOT_ATTEMPTED, NOT_YET, PASSED, examine

ALL = list(exercise.all_exercises().values())
WRONG = [(one, wrong) for one in ALL for wrong in one.wrong]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Ranks that hang are given up earlier than a learner's: long enough for a right answer, on a busy machine too."""
    monkeypatch.setattr(trial, "PATIENCE_S", 3)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_the_reference_passes(one, monkeypatch):
    monkeypatch.setattr(trial, "PATIENCE_S", 10)
    verdict = examine(one, one.reference)
    assert verdict.state == PASSED, verdict.message


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_the_stub_is_not_attempted(one):
    def stub(*args, **kwargs):
        """What it does."""
        raise NotImplementedError

    verdict = examine(one, stub)
    assert verdict.state == NOT_ATTEMPTED
    assert str(verdict.message) == "Not attempted yet. The lab goes on with the library's version."


@pytest.mark.parametrize(("one", "wrong"), WRONG, ids=lambda x: x.name if hasattr(x, "name") else x.answer.__name__)
def test_a_wrong_answer_gets_its_own_sentence(one, wrong):
    verdict = examine(replace(one, worlds=one.worlds[-1:]), wrong.answer)
    if verdict.state != NOT_YET or wrong.says not in verdict.message.text:  # it takes fewer ranks, too, to tell
        verdict = examine(one, wrong.answer)
    assert verdict.state == NOT_YET, verdict.message
    assert wrong.says in verdict.message.text


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_what_ships_with_an_exercise(one):
    phrases = [wrong.says for wrong in one.wrong]
    assert len(phrases) >= 3 and len(set(phrases)) == len(phrases), "each wrong answer has a sentence of its own"
    assert len(one.hints) >= 2
    text = attempt.library_source(one)
    assert text.startswith(("def ", "class "))
    names = advice_names()
    assert set(one.advice) <= names, f"no signature is called {set(one.advice) - names}"


def advice_names():
    """Whatever a finding can be called."""
    import inspect
    import re

    from course_lib.lab import costs, meetings, mismatch, scopes, signatures, stopped
    from course_lib.lab.signatures.messages import NOTES

    named = {find.__name__ for find in (*signatures.VALUES, *NOTES, *scopes.SCOPES)}
    sources = "".join(inspect.getsource(module) for module in (costs, meetings, mismatch, stopped))
    named |= set(re.findall(r'return \(?\s*"(\w+)",\s', sources))
    return named | {find.__name__ for one in ALL for find in (*one.causes, *one.signatures)}
