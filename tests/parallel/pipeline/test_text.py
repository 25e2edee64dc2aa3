"""Schedules as text: what is written is read back, and what cannot be read is refused with its line and a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import _Action

from course_lib.parallel.pipeline.actions import COMPUTE, Action, Kind
from course_lib.parallel.pipeline.generators import gpipe, interleaved, one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.passes import lower
from course_lib.parallel.pipeline.schedule import Schedule, ScheduleError
from course_lib.parallel.pipeline.text import dumps, from_csv, loads, to_csv

actions = st.builds(Action, st.integers(0, 20), st.sampled_from(list(Kind)), st.integers(0, 1000))


@st.composite
def schedules(draw):
    """Any table at all, right or not."""
    orders = draw(st.lists(st.lists(actions, max_size=6), min_size=1, max_size=5))
    placement = draw(st.lists(st.integers(0, len(orders) - 1), min_size=1, max_size=8))
    name = draw(st.text(st.characters(codec="utf-8", exclude_characters="#"), max_size=12))
    return Schedule(tuple(map(tuple, orders)), tuple(placement), " ".join(name.split()))


@given(schedules())
def test_round_trip(schedule):
    assert loads(dumps(schedule)) == schedule


@given(
    st.builds(lambda make, p, m: make(p, m), st.sampled_from([gpipe, one_f_one_b, interleaved, zb_h1, zbv]),
              st.integers(1, 4), st.integers(1, 5))
)  # fmt: skip
def test_the_placement_can_be_left_out_and_csv_has_none(schedule):
    lines = [line for line in dumps(schedule).splitlines() if not line.startswith("placement")]
    assert loads("\n".join(lines)) == schedule
    assert from_csv(to_csv(schedule), schedule.name) == schedule
    assert from_csv(to_csv(lower(schedule))).orders == lower(schedule).orders


@given(actions)
def test_an_action_is_written_as_torch_writes_it(action):
    assert Action.parse(str(action)) == action
    theirs = _Action.from_str(str(action))
    assert (theirs.stage_index, theirs.computation_type.value, theirs.microbatch_index) == action
    assert repr(action) == str(action) == str(theirs)


def test_kinds():
    assert {"F", "B", "I", "W"} == COMPUTE
    assert Action(2, "F", 0) == Action(2, Kind.F, 0) == (2, "F", 0)


def test_what_it_looks_like():
    text = "name: 1F1B\nplacement: 0 1\nrank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1B0 1F1 1B1\n"
    assert dumps(one_f_one_b(2, 2)) == text
    assert dumps(Schedule(((),), (0,))) == "placement: 0\nrank 0:\n"
    loose = "# mine\n\n placement:0   1 # up\nrank  0 : 0F0 0F1\t0B0 0B1\r\n   rank 1:1F0 1B0 1F1 1B1\nname:  1F1B "
    assert loads(loose) == one_f_one_b(2, 2)


def test_a_stage_that_two_ranks_run_is_on_the_first():
    assert loads("rank 0: 0F0\nrank 1: 1F0 0F0").placement == (0, 1)


def test_torchs_csv_has_empty_cells():
    assert from_csv("0F0,,,0B0\n,1F0, 1B0,\n").orders == one_f_one_b(2, 1).orders


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank 0: 0F0 0X0", "line 1: '0X0' is no action: write the stage, one of F, B, I, W, SEND_F"),
        ("rank 0: 0F0\nrank 1: F0", "line 2: 'F0' is no action"),
        ("rank 0: 0F", "line 1: '0F' is no action"),
        ("rank 0: 0f0", "line 1: '0f0' is no action"),
        ("rank 0: 0F-1", "line 1: '0F-1' is no action"),
        ("rank 0: ٣F0", "line 1: '٣F0' is no action"),
        ("rank 0: 0F0,0B0", "line 1: '0F0,0B0' is no action"),
        ("rank 0: 0F" + "9" * 5000, "line 1: .* is no action"),
        ("rank 0:\nrank 2:", "line 2: rank 2, where rank 1 comes next: write them in order"),
        ("rank 0:\nrank 0:", "line 2: a second line for rank 0"),
        ("rank 00:\nrank 0:", "line 2: a second line for rank 0"),
        ("name: a\n\nname: b", "line 3: a second line for name"),
        ("placement: 0 x\nrank 0:", "line 1: 'x' is no rank"),
        ("placement: 0 -1\nrank 0:", "line 1: '-1' is no rank"),
        ("placement:\nrank 0: 0F0", "line 1: no stages"),
        ("0F0 0B0", "line 1: '0F0 0B0' is none of"),
        ("x" * 100, r"line 1: 'x{37}\.\.\.' is none of"),
        ("", "no line begins with 'rank 0:'"),
        ("placement: 0", "no line begins with 'rank 0:'"),
        ("placement: 0 3\nrank 0: 0F0", "stage 1 is placed on rank 3, but the orders are for ranks 0 to 0"),
        ("rank 0: 0F0 2F0", "stage 2 runs, but nothing says where stage 1 is: write a placement"),
        ("rank 0:", "0 stages are no pipeline"),
    ],
)
def test_what_cannot_be_read(text, message):
    with pytest.raises(ScheduleError, match=message):
        loads(text)


@given(st.text(max_size=60) | st.text("rankplcemt 0123:FBIW#\n", max_size=60))
def test_any_text_is_read_or_refused(text):
    for read in (loads, from_csv):
        try:
            read(text)
        except ScheduleError as error:
            assert str(error)


@pytest.mark.parametrize(("text", "message"), [("0F0\n0F0,Q", "line 2: 'Q' is no action"), (",\n", "no line holds an")])
def test_csv_that_cannot_be_read(text, message):
    with pytest.raises(ScheduleError, match=message):
        from_csv(text)


@pytest.mark.parametrize("name", ["two\nlines", "a # b", " padded"])
def test_a_name_that_would_not_come_back(name):
    with pytest.raises(ScheduleError, match="does not survive"):
        dumps(Schedule(((),), (0,), name))
