"""A stub is told from an attempt by what it does, not by how it is written."""

import inspect
import linecache

import pytest

from course_lib.collectives import simple
from course_lib.lab import attempt, exercise, source, written
from course_lib.lab.exercise import Exercise
from course_lib.parallel.tensor import simple as tensor_simple

NAMES = ["tree_broadcast", "ring_reduce_scatter", "ring_all_gather", "all_reduce"]


def define(text, name="cell.py"):
    """The function that a notebook cell with this text defines."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space = {}
    exec(compile("from course_lib.collectives.p2p import *", "<setup>", "exec"), space)
    space.update(vars(simple))
    exec(compile(text, name, "exec"), space)
    return next(v for k, v in space.items() if getattr(v, "__code__", None) and v.__code__.co_filename == name)


def library_text(name):
    import inspect

    return inspect.getsource(getattr(simple, name))


@pytest.mark.parametrize("name", NAMES)
def test_the_cell_as_the_learner_gets_it_is_not_an_attempt(name):
    stub = define(source.blanked(library_text(name)), f"{name}.py")
    assert attempt.is_stub(stub, exercise.find(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_solved_cell_is_an_attempt(name):
    solved = define(source.filled(library_text(name)), f"{name}-solved.py")
    assert not attempt.is_stub(solved, exercise.find(name))
    assert not attempt.is_stub(getattr(simple, name), exercise.find(name))


@pytest.mark.parametrize(
    ("body", "stub"),
    [
        ("raise NotImplementedError", True),
        ('"""Says what."""\n    raise NotImplementedError("not yet")', True),
        ("pass", True),
        ("...", True),
        ("return x", False),
        ("x = x + 1\n    raise NotImplementedError", False),
        ("raise ValueError", False),
    ],
)
def test_bodies(body, stub):
    answer = define(f"def all_reduce(x, group=None):\n    {body}\n", "body.py")
    assert attempt.is_stub(answer, exercise.find("all_reduce")) == stub


def test_a_comment_and_another_docstring_leave_it_a_stub():
    text = (
        source.blanked(library_text("all_reduce")).replace("# YOUR CODE", "# todo!").replace("Sum of x", "Total of x")
    )
    assert attempt.is_stub(define(text, "commented.py"), exercise.find("all_reduce"))


def test_a_stub_whose_source_is_lost():
    space = {}
    exec("def all_reduce(x):\n    raise NotImplementedError\ndef other(x):\n    return x", space)
    assert attempt.is_stub(space["all_reduce"], exercise.find("all_reduce"))
    assert not attempt.is_stub(space["other"], exercise.find("all_reduce"))


def test_an_answer_that_cannot_be_called_as_it_should():
    problem = attempt.complaint(lambda: 1, exercise.find("all_reduce"))
    assert "`all_reduce()` cannot be called as `all_reduce(x, group)`: too many positional arguments." in problem
    assert attempt.complaint(simple.all_reduce, exercise.find("all_reduce")) is None
    assert "is 3, not a function" in attempt.complaint(3, exercise.find("all_reduce"))


def test_the_solution_is_shown_without_markers():
    text = attempt.library_source(exercise.find("ring_all_gather"))
    assert text.startswith("def ring_all_gather(") and "SOLUTION" not in text and "gathered[rank] = chunk" in text


def test_an_exercise_refuses_what_cannot_be_meant():
    good = {"name": "f", "lab": "lab0", "title": "", "minutes": 1, "reference": len, "difficulty": 1, "worlds": (1,)}
    case = exercise.Case(lambda rank, n, rng: ([1],))
    Exercise(**good, cases=[case])
    with pytest.raises(ValueError, match="a number of ranks without cases"):
        Exercise(**good, cases=[])
    elsewhere = exercise.Case(lambda rank, n, rng: ([1],), worlds=(2,))
    with pytest.raises(ValueError, match="a number of ranks without cases"):
        Exercise(**good, cases=[elsewhere])
    with pytest.raises(ValueError, match="difficulty is 1, 2 or 3, not 4"):
        Exercise(**good | {"difficulty": 4}, cases=[case])
    with pytest.raises(ValueError, match="needs `expected`"):
        Exercise(**good | {"worlds": (2,)}, cases=[case])
    with pytest.raises(ValueError, match="a timeline needs `timing`"):
        Exercise(**good, cases=[case], timeline=True)


def test_find_names_the_nearest():
    with pytest.raises(LookupError, match="No exercise is called 'all_redcue'.*all_reduce"):
        exercise.find("all_redcue")


def test_the_inputs_are_the_same_every_time_and_differ_by_rank():
    one = exercise.find("all_reduce")
    assert one.arguments(0, 1, 4)[0].equal(one.arguments(0, 1, 4)[0])
    assert not one.arguments(0, 1, 4)[0].equal(one.arguments(0, 2, 4)[0])


@pytest.mark.parametrize("stub", [True, False])
def test_a_class_of_a_cell(stub):
    """`inspect` does not find it: it was not written to a file."""
    text = inspect.getsource(tensor_simple.CopyTo)
    text = source.blanked(text) if stub else source.filled(text)
    name, space = f"class-{stub}.py", vars(tensor_simple) | {"__name__": "__main__"}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), space)
    answer = space["CopyTo"]
    assert attempt.is_stub(answer, exercise.find("CopyTo")) == stub
    assert written.file_of(answer) == name
    line = next(number for number, text in enumerate(text.splitlines(), 1) if "def forward" in text)
    assert attempt.quoted(answer, line).startswith(f"line {line}: `def forward(ctx: Any")
    assert attempt.quoted(answer, line + 99) == f"line {line + 99}"
