"""The validation itself: it compares, it sees one altered output, and what it overlooks is only what varies."""

import re

import nbformat
import pytest
from validation import SANITIZE, compared, nbval


def sanitized(text: str) -> str:
    for regex, replace in re.findall(r"^regex: (.*)$\n^replace: (.*)$", SANITIZE.read_text(encoding="utf-8"), re.M):
        text = re.sub(regex, replace, text)
    return text


def edit(notebook, change):
    content = nbformat.read(notebook, as_version=4)
    change(content)
    nbformat.write(content, notebook)


@pytest.fixture
def solved(built):
    return built / "solutions" / "lab9_tiny.ipynb"


def test_a_notebook_that_gives_its_outputs_again_passes(solved, tmp_path):
    assert compared(solved) == 2  # the third output is tagged nbval-ignore-output
    result = nbval(solved, tmp_path / "progress.json", strict=True)
    assert result.returncode == 0, result.stdout


def test_one_altered_output_is_seen(solved, tmp_path):
    def alter(notebook):
        output = next(o for cell in notebook.cells for o in cell.get("outputs", []) if "the mean is" in o.text)
        output.text = output.text.replace("2.0", "2.1")

    edit(solved, alter)
    result = nbval(solved, tmp_path / "progress.json", strict=True)
    assert result.returncode == 1
    assert "the mean is 2.1" in result.stdout and "1 failed" in result.stdout


def test_a_cell_that_raises_is_seen_without_comparing(built, tmp_path):
    lab = built / "labs" / "lab9_tiny.ipynb"
    assert nbval(lab, tmp_path / "progress.json", strict=False).returncode == 0
    edit(lab, lambda notebook: notebook.cells[1].update(source="1 / 0"))
    assert nbval(lab, tmp_path / "progress.json", strict=False).returncode == 1


def test_a_notebook_without_outputs_counts_as_comparing_nothing(built):
    assert compared(built / "labs" / "lab9_tiny.ipynb") == 0


@pytest.mark.parametrize(
    "one, other",
    [
        ("16 MB: 21 ms, the library's 19 ms", "16 MB: 1.3 s, the library's 52 us"),
        ("alpha: 52 us", "alpha: 1.2e-05 s"),
        ("bus bandwidth 1.2 GB/s", "bus bandwidth 350 MB/s"),
        ("ours takes 0.93x of gloo's time", "ours takes 1.4x of gloo's time"),
        ("pid 17, port 5000", "pid 4, port 61234"),
        ("<f at 0x7f12>", "<f at 0xab34>"),
        ("in cell In[7], line 5", "in cell In[1], line 5"),
        ("cores    2\nmemory   24 GiB, 22 GiB free\nranks    4", "cores    16\nmemory   8 GiB, 1 GiB free\nranks    4"),
    ],
)
def test_what_varies_is_overlooked(one, other):
    assert sanitized(one) == sanitized(other)


@pytest.mark.parametrize(
    "one, other",
    [
        ("Each rank sent 12.0 MB", "Each rank sent 24.0 MB"),
        ("3 steps", "4 steps"),
        ("rank 1 returned chunk 2", "rank 1 returned chunk 1"),
        ("tensor([1., 2.])", "tensor([1., 3.])"),
        ("passed on 2, 3 and 4 ranks", "passed on 2 and 3 ranks"),
        ("ranks    4", "ranks    3"),
        ("cell In[7], line 5", "cell In[7], line 6"),
    ],
)
def test_a_result_is_not(one, other):
    assert sanitized(one) != sanitized(other)
