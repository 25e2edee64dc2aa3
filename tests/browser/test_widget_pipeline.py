"""The pipeline game as a learner meets it: click what can run, ask why not, load a text, run it on real ranks."""

import nbformat
import pytest
from jupyter import Notebook, page_of, server

from course_lib.doctor import chromium

pytestmark = pytest.mark.browser

CELL = "pipeline_builder("
SOURCE = "from course_lib.lab.widgets import pipeline_builder\n\ngame = pipeline_builder(2, 3, cap=2)\ngame"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
LATE = 30_000  # milliseconds, on a busy machine


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """The game's cell on the page, run, in a notebook of its own."""
    if not chromium.find():
        pytest.skip("no Chromium: the browser tests are SKIPPED (Debian: apt install chromium)")
    folder = tmp_path_factory.mktemp("jupyter")
    (folder / "labs").mkdir()
    cells = [nbformat.v4.new_code_cell(SOURCE, id="game")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), folder / "labs/game.ipynb")
    with server(folder) as url, page_of(url) as page:
        notebook = Notebook(page, "game.ipynb")
        notebook.run_all()
        page.locator(".pb-chip").first.wait_for(timeout=LATE)
        shown = notebook.cell(CELL)
        shown.notebook = notebook
        yield shown


def said(cell, words):
    cell.locator(".pb-message", has_text=words).wait_for(timeout=LATE)


def test_a_schedule_is_made_explained_and_run(cell):
    cell.notebook.screenshot("pipeline-empty", CELL)
    chips = cell.locator(".pb-chip")
    assert chips.all_inner_texts() == ["0F0"]
    chips.first.click()
    cell.get_by_role("button", name="1F0", exact=True).click()
    said(cell, "Rank 1 idles from 0 to 1: 1F0 waits for 0F0")
    assert cell.locator("svg .pb-block").count() == 2

    cell.get_by_role("button", name="0B0: cannot run now").click()  # by asking
    said(cell, "Rank 0 cannot run 0B0: it needs 1B0 or 1I0, which rank 1 has not run yet.")

    cell.locator(".pb-next .pb-chip", has_text="1B0").focus()  # by the keyboard alone
    cell.notebook.page.keyboard.press("Enter")
    cell.locator("svg .pb-block").nth(2).wait_for(timeout=LATE)
    cell.notebook.page.keyboard.press("ArrowUp")
    assert cell.notebook.page.evaluate("document.activeElement.dataset.key").startswith("next 0 ")
    cell.notebook.screenshot("pipeline-begun", CELL)

    cell.locator("textarea").fill("placement: 0 1\nrank 0: 0F0 0F1 0F2\nrank 1:")
    cell.get_by_role("button", name="Load this text").click()
    said(cell, "Rank 0 cannot run 0F2: it holds as many activations as it may, 2")
    cell.get_by_role("button", name="Start again").click()
    cell.get_by_role("button", name="backward in two").click()
    said(cell, "11 time units: 1 over par (10, by ZB-H1).")
    cell.get_by_role("checkbox").check()
    cell.notebook.screenshot("pipeline-full", CELL)

    cell.get_by_role("button", name="Run on real ranks").click()
    cell.locator("img.pb-picture").wait_for(timeout=LATE)
    assert "Planned 220 ms, measured" in cell.inner_text()
    cell.locator("img.pb-picture").scroll_into_view_if_needed()
    cell.notebook.screenshot("pipeline-measured")
    assert cell.notebook.errors() == []
