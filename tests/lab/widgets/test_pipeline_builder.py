"""The pipeline game's view, without a browser: what the page asks for is done, what it is told can be sent."""

import base64
import json

import pytest

from course_lib.lab import paced_run
from course_lib.lab.widgets import pipeline_builder
from course_lib.lab.widgets.pipeline_levels import LEVELS
from course_lib.parallel.pipeline import text
from course_lib.parallel.pipeline.generators import one_f_one_b
from course_lib.parallel.pipeline.schedule import ScheduleError
from course_lib.parallel.pipeline.simulate import Costs, simulate
from course_lib.spmd import SpmdError
from course_lib.spmd.report import Cause


@pytest.fixture
def builder():
    return pipeline_builder(2, 2, cap=2)


def plays(monkeypatch, ran):
    """Instead of ranks: the plan, as if measured."""

    def run(schedule, costs):
        ran.append((schedule, costs))
        return simulate(schedule, costs).timeline()

    monkeypatch.setattr(paced_run, "run", run)


def test_what_the_page_asks_for_is_done(builder):
    builder.command({"do": "play", "rank": 0, "action": "0F0"})
    assert builder.view.state["rows"][0]["held"] == 1
    builder.command({"do": "play", "rank": 1, "action": "1B0"})
    assert builder.view.state["message"]["kind"] == "no"
    builder.command({"do": "take_back", "action": "0F0"})
    assert builder.view.state["rows"][0]["held"] == 0
    builder.command({"do": "undo"})
    builder.command({"do": "finish", "rule": "backward first"})
    assert builder.view.state["full"] and builder.schedule.name == "yours"
    builder.command({"do": "restart"})
    assert builder.schedule is None
    builder.command({"do": "load", "text": text.dumps(one_f_one_b(2, 2))})
    assert "This is" in builder.view.state["message"]["text"]
    with pytest.raises(ValueError, match="knows no command"):
        builder.command({"do": "dance"})


def test_messages_of_the_page_arrive(builder):
    builder.view._handle_custom_msg({"do": "play", "rank": 0, "action": "0F0"}, [])
    assert builder.game.board.moves


def test_what_the_page_is_told_is_json(builder):
    builder.command({"do": "finish", "rule": "backward in two"})
    assert json.loads(json.dumps(builder.view.state)) == builder.view.state


def test_a_level_keeps_its_board_while_another_is_played(builder):
    assert builder.view.levels == ["Your own", *(level.title for level in LEVELS)]
    builder.command({"do": "play", "rank": 0, "action": "0F0"})
    builder.command({"do": "level", "level": 2})
    assert builder.game.level == LEVELS[1] and not builder.game.board.moves
    builder.command({"do": "level", "level": 0})
    assert len(builder.game.board.moves) == 1


def test_only_a_finished_schedule_is_run(builder, monkeypatch):
    plays(monkeypatch, ran := [])
    builder.command({"do": "run"})
    assert not ran and "First finish the schedule: 0 of 8" in builder.view.state["message"]["text"]
    builder.command({"do": "finish", "rule": "backward first"})
    builder.command({"do": "run"})
    (schedule, costs), *_ = ran
    assert schedule == builder.schedule and costs.forward == pytest.approx(0.02)
    assert builder.view.picture.startswith(b"\x89PNG") and "Planned 180 ms, measured 180 ms" in builder.view.told
    assert builder.view.busy == ""
    builder.command({"do": "undo"})
    assert builder.view.picture == b""  # it was of another board


def test_ranks_that_stop_are_told(builder, monkeypatch):
    def stop(schedule, costs):
        raise SpmdError(Cause("died", (1,), "rank 1 died"), [])

    monkeypatch.setattr(paced_run, "run", stop)
    builder.command({"do": "finish", "rule": "backward first"})
    builder.command({"do": "run"})
    assert "rank 1 died" in builder.view.state["message"]["text"] and builder.view.busy == ""


def test_run_takes_the_schedule_to_beat_as_long_as_there_is_none(monkeypatch):
    plays(monkeypatch, ran := [])
    builder = pipeline_builder(2, 2, costs=Costs((1.0, 2.0), send=0.5))
    assert builder.run().png().startswith(b"\x89PNG")
    assert ran[0][0].name == builder.game.level.par_by
    assert ran[0][1].forward == pytest.approx((0.02, 0.04)) and ran[0][1].send == pytest.approx(0.01)


def test_without_a_front_end_there_is_a_picture_and_a_text(builder):
    data, metadata = builder._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == builder.view.model_id
    assert base64.b64decode(data["image/png"]) == builder.still().png()
    assert metadata["image/png"]["width"] == 900
    assert data["text/plain"] == repr(pipeline_builder(2, 2, cap=2))  # the same on every run: nbval compares it
    assert "0 of 8 forwards and backwards placed. Par: 7, by ZB-H1." in data["text/plain"]
    builder.command({"do": "play", "rank": 0, "action": "0F0"})
    assert builder._repr_mimebundle_()[0]["image/png"] != data["image/png"]


def test_the_view_comes_from_here_alone(builder):
    for source in (builder.view._esm, builder.view._css):
        assert len(str(source)) > 1000
        assert "import " not in str(source) and "://" not in str(source).replace("http://www.w3.org/2000/svg", "")


def test_it_opens_at_a_level():
    assert pipeline_builder().game.level == LEVELS[0]
    assert pipeline_builder(level=2).game.level == LEVELS[1]
    with pytest.raises(ScheduleError, match=f"no level 9: take 1 to {len(LEVELS)}"):
        pipeline_builder(level=9)


def test_half_a_level_is_refused():
    with pytest.raises(ScheduleError, match="ranks and micro-batches"):
        pipeline_builder(3)
    with pytest.raises(ScheduleError, match="placement='V'"):
        pipeline_builder(placement="V")
