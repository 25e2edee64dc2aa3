"""The check itself, on exercises made for the purpose: what it returns, what it shows, what it cannot be fooled by."""

import threading

import pytest
import torch
import torch.distributed as dist

from course_lib import lab
from course_lib.collectives import simple
from course_lib.collectives.p2p import neighbours, send_recv
from course_lib.lab import checking, exercise, progress, trial
from course_lib.lab.checking import NOT_ATTEMPTED, NOT_YET, PASSED, examine
from course_lib.lab.exercise import Case, Exercise, Timing, vector


def pass_left(x):
    """Everybody gets the x of its right neighbour."""
    left, right = neighbours()
    return send_recv(x, left, torch.empty_like(x), right)


SHIFT = Exercise(
    name="pass_left",
    lab="lab0",
    title="Pass left",
    minutes=5,
    difficulty=1,
    reference=pass_left,
    cases=[vector(lambda n: 3), vector(lambda n: 4, dtype=torch.int64)],
    expected=lambda inputs, n: [inputs[(r + 1) % n][0] for r in range(n)],
    hints=["Who sends to whom?"],
)


@pytest.fixture(autouse=True)
def known(monkeypatch, own_progress):
    """The exercises of this file, found by name, and their progress kept aside."""
    known = dict(exercise.all_exercises()) | {"pass_left": SHIFT, "coordinates": PURE}
    monkeypatch.setattr(exercise, "all_exercises", lambda: known)
    monkeypatch.setattr(trial, "PATIENCE_S", 3)


def state(name):
    return progress.load()["exercises"].get(name)


# What `name = lab.check(name)` gives back


def test_a_right_answer_comes_back_itself(capsys):
    def pass_left(x):
        left, right = neighbours()
        incoming = torch.empty_like(x)
        works = [dist.isend(x, left), dist.irecv(incoming, right)]
        for work in works:
            work.wait()
        return incoming

    assert lab.check(pass_left) is pass_left
    assert capsys.readouterr().out.strip() == "Passed on 2, 3 and 4 ranks."
    assert state("pass_left") == {"attempts": 1, "state": "passed"}


def test_a_wrong_answer_is_replaced_by_the_librarys(capsys):
    answer = {}
    exec("def pass_left(x):\n    return x + 1", answer)
    assert lab.check(answer["pass_left"]) is SHIFT.reference
    told = capsys.readouterr().out
    assert told.startswith("Not yet. 4 ranks, x = 3 elements: no rank sent a message.\n  rank 0, element 0: ")
    assert 'The lab goes on with the library\'s version. For a hint: `lab.hint("pass_left")`' in told
    assert state("pass_left") == {"attempts": 1, "state": "not yet", "message": told.splitlines()[0]}


def test_a_stub_is_replaced_and_not_counted(capsys):
    stub = {}
    exec("def pass_left(x):\n    raise NotImplementedError", stub)
    assert lab.check(stub["pass_left"]) is SHIFT.reference
    assert capsys.readouterr().out.startswith("Not attempted yet.")
    assert state("pass_left") is None


def test_the_cell_run_again_does_not_pass_with_the_librarys_version(capsys):
    assert lab.check(pass_left) is pass_left  # the reference
    assert "This is the library's version." in capsys.readouterr().out
    assert state("pass_left") is None


def test_what_cannot_be_checked_at_all():
    with pytest.raises(TypeError, match="takes the function you wrote.*this is 3"):
        lab.check(3)
    with pytest.raises(LookupError, match="No exercise is called 'pass_lfet'.*pass_left"):
        exec("def pass_lfet(x): return x", space := {})
        lab.check(space["pass_lfet"])


# What it cannot be fooled by


def reject(answer, words, one=SHIFT):
    verdict = examine(one, answer)
    assert verdict.state == NOT_YET, verdict.message
    assert words in str(verdict.message)
    return verdict


def test_ranks_that_agree_on_what_they_made_up():
    reject(lambda x: torch.zeros_like(x), "rank 0")
    reject(lambda x: torch.arange(len(x)).to(x.dtype), "rank 0")


def test_the_right_values_by_torchs_own_collective():
    def gathers(x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return parts[(dist.get_rank() + 1) % len(parts)]

    assert reject(gathers, "This calls `dist.all_gather`").signature == "calls_a_collective"


def test_the_right_values_by_the_library():
    def gathers(x):
        from course_lib.collectives.simple import ring_all_gather as anything

        return anything(x).view(-1, len(x))[(dist.get_rank() + 1) % dist.get_world_size()]

    assert reject(gathers, "This calls the library's `ring_all_gather`").signature == "calls_the_library"


def test_the_reference_under_another_name():
    reference = SHIFT.reference
    reject(lambda x: reference(x), "This calls the library's `pass_left`")


def test_right_only_in_the_first_case():
    def only_floats(x):
        return pass_left_once_more(x) if x.is_floating_point() else x

    def pass_left_once_more(x):
        left, right = neighbours()
        return send_recv(x, left, torch.empty_like(x), right)

    assert "Right in all other cases. 4 ranks, int64, x" in str(reject(only_floats, "input unchanged").message)


def test_only_two_ranks_are_right():
    def swaps(x):
        peer = 1 - dist.get_rank()
        return send_recv(x, peer, torch.empty_like(x), peer) if peer >= 0 else x

    reject(swaps, "Right on 2 ranks, wrong on 3 and 4.")


# Answers that do not come to their end


def test_what_ranks_printed_helps():
    def prints(x):
        print("x is", len(x))
        return x

    told = str(reject(prints, "Your ranks printed:").message)
    assert "[3] x is 3" in told


def test_a_warning_is_shown_once_and_whole():
    def warns(x):
        import warnings

        warnings.warn("mind the gap (Triggered internally at ../torch/csrc/gap.cpp:62.)", stacklevel=1)
        warnings.warn("mind the step", stacklevel=1)
        print("x is", len(x))
        return x

    told = reject(warns, "").message.details
    printed = told[told.index("Your ranks printed:") + 1 :]
    assert printed[:3] == ["[0] UserWarning: mind the gap", "[0] UserWarning: mind the step", "[0] x is 3"]
    assert "mind" not in "".join(printed[3:])


def test_something_that_cannot_be_sent():
    lock = threading.Lock()

    def locks(x):
        with lock:
            return x

    assert reject(locks, "lock").signature == "cannot_be_sent"


def test_wrong_parameters():
    reject(lambda: 1, "cannot be called as `pass_left(x)`")


def test_a_stop_in_a_later_case_leaves_the_earlier_ones_right():
    def fails_on_integers(x):
        if not x.is_floating_point():
            raise ValueError("floats only")
        left, right = neighbours()
        return send_recv(x, left, torch.empty_like(x), right)

    told = str(reject(fails_on_integers, "raised ValueError: floats only at line").message)
    assert "2 ranks, int64, x = 4 elements" in told and '`raise ValueError("floats only")`' in told


def test_a_result_that_cannot_be_sent_back():
    reject(lambda x: (i for i in x), "'an object of type generator'")


# Other kinds of exercise


def coordinates(rank, width):
    """(row, column) of a rank on a grid."""
    return divmod(rank, width)


PURE = Exercise(
    name="coordinates",
    lab="lab4",
    title="Coordinates",
    minutes=5,
    difficulty=1,
    reference=coordinates,
    worlds=(1,),
    cases=[
        Case(lambda rank, n, rng: (5, 4), label="rank 5, 4 columns"),
        Case(lambda rank, n, rng: (7, 2), label="rank 7, 2 columns"),
    ],
)


def test_a_pure_function():
    def right(rank, width):
        return rank // width, rank % width

    def endless(rank, width):
        while True:
            rank += 1

    assert str(examine(PURE, right).message) == "Passed."
    told = reject(lambda rank, width: (rank % width, rank // width), "the answer", PURE).message.text
    assert told == "Not yet. rank 7, 2 columns: the answer, item 0: 1, it should be 3."
    reject(endless, "Is there a loop without an end", PURE)
    reject(lambda rank, width: None, "Is a `return` missing?", PURE)


def test_gradients_and_moved_bytes_of_a_hook():
    """The shape of Lab 1: an answer is called by a step that returns gradients, and torch's collectives cost bytes."""

    def average(parameter):
        parameter.register_hook(lambda grad: averaged(grad))

    def averaged(grad):
        total = grad.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    def twice(parameter):
        parameter.register_hook(lambda grad: averaged(averaged(grad)))

    def forgets(parameter):
        pass

    def step(answer, x):
        weight = torch.full_like(x, 2.0).requires_grad_()
        answer(weight)
        loss = (weight * x).sum()
        loss.backward()
        return {"loss": loss, "gradient": weight.grad}

    one = Exercise(
        name="average",
        lab="lab1",
        title="Average",
        minutes=5,
        difficulty=1,
        reference=average,
        cases=[vector(lambda n: 6)],
        expected=lambda inputs, n: [
            {"loss": 2 * x.sum(), "gradient": sum(x for (x,) in inputs) / n} for (x,) in inputs
        ],
        call=step,
        may_use=frozenset({"all_reduce"}),
        least_bytes=lambda n, rank, args: args[0].numel() * 4,
    )
    assert examine(one, average).state == PASSED
    reject(twice, "right, but rank 0 handed 48 bytes to all_reduce where 24 bytes are enough: 2 times the bytes", one)
    reject(
        lambda parameter: forgets(parameter),
        "every rank's `gradient` is what it was. No rank called a collective.",
        one,
    )


def test_a_class_with_a_call_of_its_own():
    class Mean:
        def __init__(self, x):
            self.x = x

        def step(self):
            total = self.x.clone()
            dist.all_reduce(total)
            return total / dist.get_world_size()

    class Sum(Mean):
        def step(self):
            return super().step() * dist.get_world_size()

    class Stub:
        def __init__(self, x):
            self.x = x

        def step(self):
            raise NotImplementedError

    averages = Exercise(
        name="Mean",
        lab="lab1",
        title="Mean",
        minutes=5,
        difficulty=1,
        reference=Mean,
        cases=[vector(lambda n: 6)],
        expected=lambda inputs, n: [sum(x for (x,) in inputs) / n] * n,
        call=lambda answer, x: answer(x).step(),
        may_use=frozenset({"all_reduce"}),
    )
    assert examine(averages, Mean).state == PASSED
    reject(Sum, "exactly 4 times too large: a sum where a mean is needed", averages)
    assert reject(Stub, "Delete that line", averages).signature == "leftover_raise"


def overlapping(x):
    """Computes while the sum of x is under way."""
    work = dist.all_reduce(x, async_op=True)
    busy(0.05)
    work.wait()
    return x


def busy(seconds):
    import time

    from course_lib.timeline import span

    with span("compute"):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass


def test_communication_that_hides_nothing():
    def waits_first(x):
        dist.all_reduce(x)
        busy(0.05)
        return x

    made = Exercise(
        name="overlapping",
        lab="lab1",
        title="Overlap",
        minutes=5,
        difficulty=1,
        reference=overlapping,
        worlds=(2,),
        cases=[vector(lambda n: 6)],
        expected=lambda inputs, n: [sum(x for (x,) in inputs)] * n,
        may_change=True,
        may_use=frozenset({"all_reduce"}),
        timing=Timing(lambda rank, n, rng: (torch.ones(1 << 20),), "4 MiB", {}),
        overlap=True,
    )
    verdict = reject(waits_first, "right, but nothing overlaps", made)
    assert verdict.figure is not None
    passed = examine(made, overlapping)
    assert passed.state == PASSED and passed.figure is not None, passed.message


def test_time_and_bytes_of_a_right_answer(capsys):
    import inspect

    space = dict(vars(simple))
    exec(inspect.getsource(simple.ring_all_gather), space)
    assert lab.check(space["ring_all_gather"]) is space["ring_all_gather"]
    told = capsys.readouterr().out
    assert "Passed on 2, 3 and 4 ranks. 16 MB on 4 ranks: " in told
    assert "the library's" in told and "gloo's own" in told
    assert "Each rank sent 12.0 MB: the least possible." in told
    assert state("ring_all_gather")["seconds"] > 0


def test_not_attempted_takes_no_ranks(monkeypatch):
    monkeypatch.setattr(checking.spmd, "run", None)
    stub = {}
    exec("def pass_left(x):\n    raise NotImplementedError", stub)
    assert examine(SHIFT, stub["pass_left"]).state == NOT_ATTEMPTED


# Answers that use torch's collectives

SUM = Exercise(
    name="pass_left",
    lab="lab1",
    title="Sum",
    minutes=5,
    difficulty=1,
    reference=lambda x: dist.all_reduce(x) or x,
    cases=[vector(lambda n: 3), vector(lambda n: 4)],
    expected=lambda inputs, n: [sum(x for (x,) in inputs)] * n,
    may_change=True,
    may_use=exercise.COLLECTIVES,
    least_bytes=lambda n, rank, args: args[0].numel() * 4,
)


def test_a_rank_that_leaves_a_collective_out():
    def leaves(x):
        if len(x) == 4 and dist.get_rank() == 1:
            return x
        dist.all_reduce(x)
        return x

    verdict = reject(leaves, "Where rank 1 has returned and calls nothing, rank 0 calls all_reduce of 4 elements", SUM)
    assert verdict.signature == "calls_left_out" and "(line " in verdict.message.text


def test_ranks_whose_collectives_differ_and_nobody_notices():
    def differ(x):
        dist.all_reduce(x if dist.get_rank() == 0 else x[: len(x) // 2 * 2].clone(), op=dist.ReduceOp.SUM)
        dist.all_reduce(x.double() if dist.get_rank() == 0 else x.to(torch.int64))
        return x

    verdict = reject(differ, "the ranks do not make the same calls: rank 0 calls all_reduce of ", SUM)
    assert verdict.signature == "calls_differ"


def test_the_right_sum_for_nothing():
    def knows(x):
        peers = [vector(lambda n: len(x)).make(r, dist.get_world_size(), exercise.generator("none")) for r in range(2)]
        assert peers
        return sum(
            SUM.arguments({3: 0, 4: 1}[len(x)], r, dist.get_world_size())[0] for r in range(dist.get_world_size())
        )

    assert reject(knows, "no rank handed a byte to a collective", SUM).signature == "too_few_bytes"


def test_what_a_call_saw_is_not_compared():
    from course_lib.lab.evidence import Aside, alike, parts

    one, other = ({"x": torch.ones(2), "seen": Aside({"steps": k})} for k in (1, 2))
    assert [name for name, _ in parts(one)] == ["`x`"] and alike(one, other)
    assert not alike(one, {"x": torch.zeros(2)}) and not alike(one, {"y": torch.ones(2)})


def test_collectives_that_do_not_match_explain_values():
    from course_lib.lab.judging import Failing, Findings

    wrong, mismatch = Failing(4, "", ["scaled"], "a value"), Failing(2, "", ["calls_differ"], "the cause")
    assert Findings(values=[wrong], mismatched=[mismatch]).first() is mismatch
