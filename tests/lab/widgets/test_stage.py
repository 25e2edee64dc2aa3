"""The frame of the widgets, without a front end: the picture follows the controls, and a still is always there."""

import base64
import re

import nbformat
import pytest
from ipywidgets import IntSlider
from nbconvert import HTMLExporter

from course_lib.lab.widgets.stage import Stage, slider
from course_lib.timeline.picture import Picture


@pytest.fixture
def drawn():
    return []


@pytest.fixture
def stage(drawn):
    def draw(width, height):
        drawn.append((width, height))
        return Picture(width, height)

    return Stage(
        "A box",
        {"width": slider(IntSlider, "width", 2, min=1, max=9), "height": slider(IntSlider, "height", 1, min=1, max=9)},
        draw,
        words=lambda width, height: f"{width} < {height}",
        still=lambda: Picture(4, 3),
    )


def test_the_picture_is_there_from_the_start(stage, drawn):
    assert stage.image.value == Picture(2, 1).png()
    assert drawn == [(2, 1)]


def test_a_slider_changes_the_picture_and_the_words(stage):
    before = stage.image.value
    stage.controls["width"].value = 3
    assert stage.image.value == Picture(3, 1).png() != before
    assert stage.image.layout.width == "300px"
    assert "3 &lt; 1" in stage.caption.value and 'role="status"' in stage.caption.value
    assert repr(stage) == "A box. 3 < 1"


def test_events_that_come_fast_end_at_the_last_and_no_picture_is_drawn_twice(stage, drawn):
    for value in [3, 4, 5, 4, 3, 5, 4, 3, 2, 5] * 20:
        stage.controls["width"].value = value
        assert stage.image.value == Picture(value, 1).png()  # never one behind
    assert sorted(set(drawn)) == sorted(drawn) == [(2, 1), (3, 1), (4, 1), (5, 1)]


def test_changes_as_a_front_end_sends_them(stage):
    stage.controls["height"].set_state({"value": 4})
    assert stage.image.value == Picture(2, 4).png()


def test_the_bundle_holds_the_widget_and_the_still(stage):
    data, metadata = stage._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == stage.view.model_id
    assert base64.b64decode(data["image/png"]) == Picture(4, 3).png()
    assert metadata == {"image/png": {"width": 400, "height": 300}}
    assert data["text/plain"] == "A box. 2 < 1"  # the same on every run: nbval compares it


def test_every_control_is_labelled_and_reachable(stage):
    row = stage.view.children[0]
    assert [control.description for control in row.children] == ["width", "height"]
    assert not any(control.disabled for control in row.children)
    assert stage.view.children[1:] == (stage.image, stage.caption)


def test_no_trace_of_this_machine(stage):
    data, _ = stage._repr_mimebundle_()
    assert not re.search(r"/home|/root|/tmp|0x[0-9a-f]{6}", data["text/plain"] + stage.caption.value)


def test_two_sliders_cut_back_at_once_are_drawn_once_and_only_when_both_are_right():
    drawn = []

    def draw(n, a, b):
        drawn.append((n, a, b))
        return Picture(1, 1)

    Stage(
        "Three",
        {name: slider(IntSlider, name, 9, min=1, max=9) for name in "nab"},
        draw,
        words=lambda **_: "",
        still=lambda: Picture(1, 1),
        limits=lambda n, a, b: {"a": n, "b": n},
    ).controls["n"].value = 4
    assert drawn == [(9, 9, 9), (4, 4, 4)]


def test_a_page_without_a_kernel_shows_the_still(stage):
    data, metadata = stage._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
    cell = nbformat.v4.new_code_cell("stage", outputs=[output], execution_count=1)
    html, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert data["image/png"][:200] in html
    assert 'width="400"' in html and 'height="300"' in html.replace("\n", "")
