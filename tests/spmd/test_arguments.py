"""Arguments, results and exceptions: what cannot work, or cannot be sent, is said in one sentence."""

import threading

import pytest
import torch
import torch.distributed as dist
from marks import SHORT, marked_lines

from course_lib import spmd
from course_lib.spmd.pickles import CannotSend

LOCK = threading.Lock()


def test_what_cannot_be_sent_is_named():
    def uses_lock():
        return LOCK

    def returns_lock():
        return {"fine": 1, "bad": threading.Lock()}

    with pytest.raises(CannotSend, match=r"`LOCK`, which `uses_lock` uses, .* a _thread.lock"):
        spmd.run(uses_lock, ranks=2)
    with pytest.raises(CannotSend, match=r"Argument 2 of `print`\[1\] cannot be sent"):
        spmd.run(print, 1, [0, threading.Lock()], ranks=2)
    with pytest.raises(spmd.RankError, match=r"What the rank returned\['bad'\] cannot be sent"):
        spmd.run(returns_lock, ranks=2, show=False)


class OnlyHere(Exception):
    def __init__(self, number):
        super().__init__(f"number {number}")
        self.number = number


def test_an_exception_class_of_the_caller_comes_back_as_itself():
    def fail():
        raise OnlyHere(7)

    with pytest.raises(spmd.RankError) as caught:
        spmd.run(fail, ranks=2, show=False)
    assert isinstance(caught.value.__cause__, OnlyHere)
    assert caught.value.__cause__.number == 7


def test_a_bad_call_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="ranks is 0: it must be a whole number, at least 1"):
        spmd.run(print, ranks=0)
    with pytest.raises(ValueError, match="timeout is -1: it must be a number of seconds"):
        spmd.run(print, ranks=2, timeout=-1)
    with pytest.raises(ValueError, match="backend is 'mpi'"):
        spmd.run(print, ranks=2, backend="mpi")
    with pytest.raises(TypeError, match="needs a function"):
        spmd.run("print", ranks=2)


def sends_to_nobody():
    dist.send(torch.ones(4), dist.get_rank() + 1)  # here


def receives_from_nobody():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(4), group_src=-1)  # here


@pytest.mark.parametrize(("function", "words"), [(sends_to_nobody, "send with dst=3: there are ranks 0 to 2"),
                                                 (receives_from_nobody, "ranks count from 0 to 2")])  # fmt: skip
def test_a_peer_that_does_not_exist_is_refused(function, words):
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(function, ranks=3, timeout=SHORT, show=False)
    assert caught.value.cause.kind == "raised"
    assert words in str(caught.value)
    assert marked_lines(function)[0] in str(caught.value)


class NeedsTwo(Exception):
    def __init__(self, code, why):
        super().__init__(f"{code}: {why}")


def raises_what_cannot_be_rebuilt():
    if dist.get_rank() == 1:
        raise NeedsTwo(7, "for a reason")  # here
    dist.barrier()


class Stays:
    def __setstate__(self, state):
        raise RuntimeError("not in this process")

    def __getstate__(self):
        return {"a": 1}


def test_what_cannot_be_rebuilt_here_is_said_with_its_rank():
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(raises_what_cannot_be_rebuilt, ranks=2, show=False)
    assert "Rank 1 raised" in str(caught.value)
    assert "NeedsTwo: 7: for a reason" in str(caught.value)
    assert marked_lines(raises_what_cannot_be_rebuilt)[0] in str(caught.value)
    with pytest.raises(spmd.RankError, match="what it returned cannot be rebuilt in this process"):
        spmd.run(Stays, ranks=2, show=False)


def wrong_timeout():
    dist.new_group([0, 1], timeout=30)  # here


def wrong_type_on_one_rank():
    x = torch.ones(4)
    dist.all_reduce(x.numpy() if dist.get_rank() == 1 else x)  # here


def no_group():
    dist.all_reduce(torch.ones(2), group=[0, 1])  # here


@pytest.mark.parametrize("function", [wrong_timeout, wrong_type_on_one_rank, no_group])
def test_an_error_of_arguments_is_the_cause(function):
    with pytest.raises(spmd.RankError) as caught:
        spmd.run(function, ranks=2, timeout=SHORT, show=False)
    assert caught.value.cause.kind == "raised", str(caught.value)
    assert marked_lines(function)[0] in str(caught.value), str(caught.value)


def test_variables_must_be_strings():
    with pytest.raises(TypeError, match="env sets 'MASTER_PORT' to 29500: names and values"):
        spmd.run(print, ranks=2, env={"MASTER_PORT": 29500})


def test_a_function_may_call_its_own_config_beside_a_package_that_has_one():
    """cloudpickle takes `config` for torch.distributed.config, whose class it cannot pickle."""
    namespace = {"dist": dist, "config": lambda: 7}
    exec("def f():\n    return config() + dist.get_rank()", namespace)
    namespace["f"].__module__ = "__main__"
    assert spmd.run(namespace["f"], ranks=2) == [7, 8]
