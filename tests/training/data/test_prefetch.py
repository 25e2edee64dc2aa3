"""Work done ahead gives what work done in turn gives, errors included, and leaves no thread."""

import gc
import threading

import pytest

from course_lib.training.data.prefetch import prefetch


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads() == []


@pytest.mark.parametrize("ahead", [0, 1, 2, 5, 100])
def test_in_order_each_once(ahead):
    made = []
    assert list(prefetch(lambda i: made.append(i) or i * i, range(20), ahead)) == [i * i for i in range(20)]
    assert made == list(range(20))
    assert list(prefetch(str, [], ahead)) == []


@pytest.mark.parametrize("ahead", [1, 3])
def test_never_more_than_so_many_ahead(ahead):
    read = []

    def items():
        for i in range(20):
            read.append(i)
            yield i

    for taken, _ in enumerate(prefetch(str, items(), ahead), 1):
        assert len(read) <= taken + ahead


def test_it_is_ahead():
    """The next is made while this one is in use: it is there before it is asked for."""
    second = threading.Event()
    source = prefetch(lambda i: second.set() if i == 1 else None, range(3), 2)
    next(source)
    assert second.wait(30)
    source.close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_comes_in_its_turn_with_its_own_lines(ahead):
    def make(i):
        if i == 3:
            raise KeyError("sample 3")
        return i

    got = []
    with pytest.raises(KeyError, match="sample 3") as caught:
        for each in prefetch(make, range(10), ahead):
            got.append(each)
    assert got == [0, 1, 2]
    assert "make" in [entry.name for entry in caught.traceback]


def test_an_error_of_the_items_is_raised_too():
    def items():
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(prefetch(str, items(), 2))


@pytest.mark.parametrize("way", ["close", "drop", "break", "cycle"])
def test_the_thread_ends_with_the_iterator(way):
    def endless():
        i = 0
        while True:
            yield i
            i += 1

    source = prefetch(lambda i: i, endless(), 2)
    assert next(source) == 0 and len(threads()) == 1
    if way == "close":
        source.close()
        with pytest.raises(StopIteration):
            next(source)
    elif way == "break":
        for _ in source:
            break
        del source
    elif way == "cycle":
        holder = [source]
        holder.append(holder)
        del source, holder
        gc.collect()
    else:
        del source
