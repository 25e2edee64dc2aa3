"""Documents: the default corpus, the reader's own files, what is refused, and the split."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.training.data import corpus, split


def written(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_the_default_is_the_standard_library():
    documents = corpus()
    stdlib = Path(sysconfig.get_path("stdlib"))
    assert 5e6 < sum(map(len, documents)) < 50e6
    texts = set(documents)
    for name in ("argparse.py", "json/decoder.py", "collections/__init__.py"):
        assert (stdlib / name).read_text(encoding="utf-8") in texts
    assert all(text.strip() for text in documents)
    tests = [*stdlib.glob("test/test_g*.py"), *stdlib.glob("*/test*/test_*.py")]  # empty where a system ships none
    assert not texts & {path.read_bytes().decode(errors="replace") for path in tests}
    assert not any("'EXT_SUFFIX':" in text for text in documents)  # nothing about how this Python was built
    import torch

    assert Path(torch.__file__).read_text(encoding="utf-8") not in texts  # no packages


def test_it_is_the_same_in_another_process():
    program = (
        "import hashlib; from course_lib.training.data.corpus import corpus, split\n"
        "print(hashlib.sha256(repr(split(corpus())).encode()).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        for seed in "12"
    ]
    assert runs[0].stdout == runs[1].stdout != ""


def test_a_file_is_one_document(tmp_path):
    written(tmp_path, {"one.anything": "some text\r\nas it is\n"})
    assert corpus(tmp_path / "one.anything") == ["some text\r\nas it is\n"]
    assert corpus(str(tmp_path / "one.anything")) == ["some text\r\nas it is\n"]


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    files = ["b.txt", "a.txt", "c/z.md", "c/d/e", "B.txt", "tests/kept.txt", ".git/no", "c/.no"]
    written(tmp_path, {name: name for name in files})
    assert corpus(tmp_path) == ["B.txt", "a.txt", "b.txt", "c/z.md", "c/d/e", "tests/kept.txt"]


def test_the_order_is_not_that_of_the_disk(tmp_path, monkeypatch):
    written(tmp_path, {name: name for name in ("a/1", "a/2", "b/1", "c", "d")})
    scandir = os.scandir

    class Backwards:
        def __init__(self, folder):
            with scandir(folder) as entries:
                self.entries = iter(sorted(entries, key=lambda entry: entry.name, reverse=True))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.entries)

    monkeypatch.setattr(os, "scandir", Backwards)
    assert corpus(tmp_path) == ["c", "d", "a/1", "a/2", "b/1"]


def test_files_without_text_are_left_out_and_a_byte_order_mark_is_no_text(tmp_path):
    written(tmp_path, {"a": b"", "b": b" \n", "c": b"\xef\xbb\xbfwords", "d": b"\xef\xbb\xbf"})
    assert corpus(tmp_path) == ["words"]


def test_links_that_lead_nowhere_and_what_is_no_file_are_passed_over(tmp_path):
    written(tmp_path, {"a": "words"})
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    assert corpus(tmp_path) == ["words"]


def test_nothing_there(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"There is no file and no folder \S*/gone: name a text file, or a folder"
    ):
        corpus(tmp_path / "gone")


@pytest.mark.parametrize("files", [{}, {"a": "", "b": "\n"}], ids=["no file", "empty files"])
def test_no_text(tmp_path, files):
    with pytest.raises(ValueError, match=rf"There is no text in \S*: {len(files)} files, all empty\."):
        corpus(written(tmp_path, files))


def test_binary_files_are_refused_by_name_and_byte(tmp_path):
    written(tmp_path, {"a.txt": "fine", "b.png": b"\x89PNG\r\n", "c.txt": "caf\xe9".encode("latin-1")})
    with pytest.raises(
        ValueError,
        match=r"b.png is no UTF-8 text, byte 0x89 at 0 of 6 \(the first of 2 such files among 3\): save it as",
    ):
        corpus(tmp_path)
    with pytest.raises(
        ValueError, match=r"c.txt is no UTF-8 text, byte 0xe9 at 3 of 4: save it as UTF-8 text, or leave"
    ):
        corpus(tmp_path / "c.txt")
    written(tmp_path, {"d.bin": b"ab\x00c"})
    with pytest.raises(ValueError, match=r"d.bin is no text, it has a zero byte at 2 of 4"):
        corpus(tmp_path / "d.bin")


def test_a_device_is_no_text():
    with pytest.raises((ValueError, FileNotFoundError)):
        corpus("/dev/null")


# The split

TEXTS = st.lists(st.text("ab\n", min_size=1, max_size=30), min_size=2, max_size=40)


@given(TEXTS, st.floats(0.01, 0.99))
def test_every_document_is_on_one_side(documents, fraction):
    training, validation = split(documents, fraction)
    assert training and validation
    if len(set(documents)) > 1:
        assert sorted(training + validation) == sorted(documents)
        assert not set(training) & set(validation)
        assert training == [text for text in documents if text in set(training)]  # the order is kept


@given(TEXTS, st.randoms())
def test_sides_do_not_depend_on_the_order(documents, random):
    if len(set(documents)) == 1:
        return
    shuffled = documents[:]
    random.shuffle(shuffled)
    assert set(split(documents)[1]) == set(split(shuffled)[1])


def test_the_share_is_as_asked_for():
    documents = [f"{i:04d}" * 25 for i in range(1000)]
    assert len(split(documents)[1]) == 50
    assert len(split(documents, 0.2)[1]) == 200
    # A document stays on its side when others come. Some at the edge of the share move, the others stay.
    before, after = set(split(documents)[1]), set(split([*documents, *(f"new {i}" * 20 for i in range(100))])[1])
    assert len(before & after) >= 40


def test_few_long_documents_leave_something_on_both_sides():
    assert split(["long " * 100, "short"], 0.001) == (["long " * 100], ["short"])


def test_a_single_document_is_cut_at_a_line():
    text = "".join(f"line {i}\n" for i in range(100))
    [training], [validation] = split([text])
    assert training + validation == text
    assert validation.startswith("line ") and 0.04 < len(validation) / len(text) < 0.07
    assert split(["x" * 100]) == (["x" * 95], ["x" * 5])
    assert split(["first\n" + "x" * 994])[0] == ["first\n" + "x" * 944]  # a line end far away is none to cut at


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5])
def test_a_share_that_is_none(fraction):
    with pytest.raises(ValueError, match=rf"validation is {fraction} of the corpus: it must be more than 0 and less"):
        split(["a", "b"], fraction)
