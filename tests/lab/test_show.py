"""Numbers in words, and messages as text and as HTML."""

import pytest

from course_lib.lab import show


@pytest.mark.parametrize(("value", "text"), [(52e-6, "52 µs"), (0.0213, "21 ms"), (1.34, "1.3 s"), (0.0021, "2.1 ms")])
def test_seconds(value, text):
    assert show.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(48, "48 bytes"), (12e6, "12.0 MB"), (1500, "1.5 KB"), (2e9, "2.0 GB")])
def test_size(value, text):
    assert show.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(96, "96"), (96.0, "96"), (2.11432, "2.114"), (1.2e-7, "1.2e-07"), (1234567, "1,234,567"), (42666.7, "42,667")],
)
def test_number(value, text):
    assert show.number(value) == text


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [(1.5, 2.5, ("1.5", "2.5")), (4.0001599e-05, 3.99999989e-05, ("4.0002e-05", "4e-05")), (7, 8, ("7", "8"))],
)
def test_two_numbers_have_the_digits_that_tell_them_apart(a, b, words):
    assert show.apart(a, b) == words


def test_lists():
    assert show.listing([2, 3, 4]) == "2, 3 and 4" and show.listing([1]) == "1" and show.listing([]) == "none"
    assert show.ranks([1]) == "rank 1" and show.ranks([0, 2]) == "ranks 0 and 2"


def test_a_message_as_text_and_as_html():
    message = show.Message("not yet", "look **first** at `x < n`", ["[0] printed"], code="a < b")
    assert str(message) == "look first at `x < n`\na < b\n  [0] printed"
    html = message._repr_html_()
    assert "<b>first</b>" in html and "<code>x &lt; n</code>" in html and "<pre" in html and "a &lt; b" in html
    assert "var(--jp-warn-color1" in html
    assert not show.in_notebook()
