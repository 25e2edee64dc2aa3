"""In a real kernel: functions from cells, the cell's own line in the message, rich output, and the notebook goes on."""

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    """
import torch.distributed as dist
from course_lib import lab
guess = lab.predict("ranks that matter", unit="ranks")
""",
    """
def all_reduce(x, group=None):
    "The sum, everywhere."
    raise NotImplementedError

all_reduce = lab.check(all_reduce)
""",
    """
def ring_reduce_scatter(x, group=None):
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.send(x, (rank + 1) % n)
    dist.recv(x, (rank - 1) % n)
    return x

ring_reduce_scatter = lab.check(ring_reduce_scatter)
""",
    """
def ring_all_gather(chunk, group=None):
    raise SystemExit

ring_all_gather = lab.check(ring_all_gather)
""",
    """
print(all_reduce.__module__, ring_reduce_scatter.__module__)
lab.hint("all_reduce")
""",
    "lab.progress()",
    "lab.reveal(guess, 4)",
]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_PROGRESS", str(folder / "progress.json"))
        client = NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute()
    return notebook.cells


def shown(cell, kind):
    return "".join(output["data"][kind] for output in cell.outputs if kind in output.get("data", {}))


def test_a_stub(cells):
    assert shown(cells[1], "text/plain") == "Not attempted yet. The lab goes on with the library's version."
    assert "course-message" in shown(cells[1], "text/html") and "var(--jp-border-color1" in shown(cells[1], "text/html")


def test_a_deadlock_names_the_line_of_the_cell(cells):
    text = shown(cells[2], "text/plain")
    assert (
        "2 ranks, x = 4 elements: your ranks stopped at line 3: `dist.send(x, (rank + 1) % n)`: rank 0 waits in" in text
    )
    assert "All send first and nobody receives." in text


def test_an_exit_leaves_the_kernel_alone(cells):
    assert "rank 0 called exit at line 2: `raise SystemExit`" in shown(cells[3], "text/plain").replace(
        "rank 1", "rank 0"
    )


def test_the_notebook_goes_on_with_the_librarys_versions(cells):
    assert cells[4].outputs[0].text == "course_lib.collectives.simple course_lib.collectives.simple\n"
    assert "Hint 1 of 4" in shown(cells[4], "text/plain")
    assert "<table>" in shown(cells[5], "text/html")


def test_a_guess_is_asked_for_and_not_needed(cells):
    bundle = next(output["data"] for output in cells[0].outputs if "data" in output)
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == "ranks that matter: your guess, in ranks?"
    assert "You made no guess." in shown(cells[6], "text/plain")
