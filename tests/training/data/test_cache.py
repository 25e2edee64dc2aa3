"""What is slow is made once, and what is there is whole."""

import os
import signal
import threading

import pytest

from course_lib.training.data.cache import cached, default_folder


def loaded(path) -> str:
    text = path.read_text()
    if not text.endswith("."):
        raise ValueError("not whole")
    return text


def test_made_once(tmp_path):
    made = []

    def make(path):
        made.append(path)
        path.write_text("done.")

    for _ in range(3):
        assert cached(tmp_path / "deep" / "thing.txt", make, loaded) == "done."
    assert len(made) == 1
    assert made[0].suffix == ".txt" and made[0].name != "thing.txt"  # some libraries add a suffix if it is another


def test_what_is_broken_is_made_again(tmp_path):
    (tmp_path / "thing").write_text("half")
    assert cached(tmp_path / "thing", lambda path: path.write_text("done."), loaded) == "done."


def test_an_error_in_making_is_raised_and_leaves_nothing(tmp_path):
    def make(path):
        path.write_text("ha")
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        cached(tmp_path / "thing", make, loaded)
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]


def test_others_wait_for_the_one_that_makes_it(tmp_path):
    made, begun, go_on = [], threading.Event(), threading.Event()

    def make(path):
        made.append(path)
        begun.set()
        assert go_on.wait(30)
        path.write_text("done.")

    got = []
    threads = [
        threading.Thread(target=lambda: got.append(cached(tmp_path / "thing", make, loaded))) for _ in range(3)
    ]  # flock is by open file: threads exclude each other as processes do
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert got == ["done."] * 3 and len(made) == 1


def test_a_process_killed_while_it_makes_it_holds_up_nobody(tmp_path):
    def die(path):
        path.write_text("ha")
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        cached(tmp_path / "thing", die, loaded)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert cached(tmp_path / "thing", lambda path: path.write_text("done."), loaded) == "done."


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OSError, match=r"Nothing can be kept in \S*/file/deep \(Not a directory\): let XDG_CACHE_HOME name a"
    ):
        cached(tmp_path / "file" / "deep" / "thing", lambda path: None, loaded)


def test_where_caches_belong(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "distributed-training-workbook"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_folder().parent.name == ".cache"
