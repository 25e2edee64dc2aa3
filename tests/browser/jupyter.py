"""A real JupyterLab, driven in a real Chromium: what a learner does, as functions. Later labs' tests use these too.

    with server(copy_of(root, tmp_path)) as url, page_of(url) as page:
        lab = Notebook(page, "lab0_ranks_and_collectives.ipynb")
        lab.run_all()
        assert lab.errors() == []
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import nbformat
from playwright.sync_api import Locator, Page, sync_playwright

from course_lib.doctor import chromium

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "runs" / "browser"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SETTINGS = {
    # Cells that are out of sight are not drawn by default: then nothing can be looked up in them.
    "notebook-extension/tracker": '{"windowingMode": "none"}',
    "apputils-extension/notification": '{"fetchNews": "false"}',
}
START_SECONDS = 60
RUN_SECONDS = 300  # a whole lab, on a busy machine
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/\S*token=\w+")


CELLS = "jupyterapp.shell.currentWidget.content.widgets"
MEANT_TO_FAIL = "w => (w.model.getMetadata('tags') || []).includes('raises-exception')"
NOT_RUN = "w => w.model.type === 'code' && w.model.sharedModel.getSource() && !w.model.executionCount"
FAILED = "w => w.model.type === 'code' && w.model.outputs.toJSON().some(output => output.output_type === 'error')"
# A run of all cells is over: each has run, or one failed that should not have.
OVER = f"() => !{CELLS}.some({NOT_RUN}) || {CELLS}.some(w => ({FAILED})(w) && !({MEANT_TO_FAIL})(w))"
# The outputs a run left are all on the page: they are drawn some time after the run is over.
DRAWN = f"""() => {CELLS}.every(w => w.model.type !== 'code' || (
    w.node.querySelectorAll('.jp-OutputArea-child').length >= w.model.outputs.length &&
    [...w.node.querySelectorAll('.jp-OutputArea-output')].every(output => output.childElementCount)
))"""
# The last picture in a cell, as text: pixels of an image or canvas, markup of an SVG; false while it is as before.
NEW_PICTURE = """([cell, before]) => {
    const all = cell.querySelectorAll('.jp-OutputArea-output :is(img, svg, canvas)');
    const shown = all[all.length - 1];
    if (!shown || (shown.tagName === 'IMG' && !(shown.complete && shown.naturalWidth))) return false;
    let now = shown.outerHTML;
    if (shown.tagName !== 'svg') {
        const copy = document.createElement('canvas');
        copy.width = shown.naturalWidth || shown.width;
        copy.height = shown.naturalHeight || shown.height;
        copy.getContext('2d').drawImage(shown, 0, 0);
        now = copy.toDataURL();
    }
    return now !== before && now;
}"""


def copy_of(root: Path, folder: Path) -> Path:
    """A copy of the labs under `root`, in `folder`: what a test does there, no learner finds. Returns the folder."""
    shutil.copytree(root / "labs", folder / "labs", ignore=shutil.ignore_patterns("*.mine*", ".ipynb_checkpoints"))
    return folder


def solution(name: str, piece: str) -> str:
    """The library's answer: the cell of the solved notebook `name` whose source holds `piece`."""
    cells = nbformat.read(ROOT / "solutions" / name, as_version=4).cells
    return next(cell.source for cell in cells if piece in cell.source)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """JupyterLab on folder/labs, on a free port of 127.0.0.1 and with a token of its own; yields the address with it.

    Its settings, its log and the progress of its kernels stay in `folder`: the person's own Jupyter is not touched.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "COURSE_"))}
    env |= {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
        "COURSE_PROGRESS": str(folder / "progress.json"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": 0,  # the system picks a free one
        "ServerApp.root_dir": folder / "labs",
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "LabApp.expose_app_in_browser": True,
        "LabApp.news_url": None,
    }
    for name, text in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "jupyter", "lab", *(f"--{name}={value}" for name, value in options.items())]
    process = subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.PIPE, text=True)
    said: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=listen, args=(process.stderr, folder / "server.log", said), daemon=True)
    reader.start()
    try:
        found = said.get(timeout=START_SECONDS)
        if not found:
            raise RuntimeError((folder / "server.log").read_text(encoding="utf-8"))
        yield found
    finally:
        process.terminate()
        process.wait(timeout=START_SECONDS)
        reader.join(timeout=START_SECONDS)


def listen(stream: IO[str], log: Path, said: queue.Queue[str]) -> None:
    """Keep what the server says in `log`; tell `said` its address with the token, or "" when it ended without."""
    with log.open("w", encoding="utf-8", buffering=1) as file:
        for line in stream:
            file.write(line)
            if found := ADDRESS.search(line):
                said.put(found[0])
    said.put("")


@contextmanager
def page_of(url: str) -> Iterator[Page]:
    """A page in Chromium with JupyterLab at `url` open in it, ready for commands."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=FLAGS)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.set_default_timeout(1000 * START_SECONDS)
            page.goto(url)
            page.wait_for_function("() => window.jupyterapp && window.jupyterapp.shell")
            page.evaluate("() => window.jupyterapp.restored")
            yield page
        finally:
            browser.close()


class Notebook:
    """One notebook, open in JupyterLab. Cells are named by a piece of their source."""

    def __init__(self, page: Page, name: str) -> None:
        """Open labs/`name` with the kernel it asks for, and wait for that."""
        self.page = page
        # In braces: the command's result is the widget itself, which is not to be copied out of the page.
        self.call("async path => { await jupyterapp.commands.execute('docmanager:open', {path}) }", name)
        self.call("() => jupyterapp.shell.currentWidget.sessionContext.ready")
        self.call("() => jupyterapp.commands.execute('application:set-mode', {mode: 'single-document'})")
        self.call("() => jupyterapp.commands.execute('application:toggle-left-area')")

    def call(self, function: str, *arguments: object, seconds: float = START_SECONDS) -> object:
        """The result of a JavaScript function, awaited. Raises playwright's Error when it takes longer."""
        late = "new Promise((_, no) => setTimeout(() => no(new Error('still not done')), ms))"
        race = f"([ms, args]) => Promise.race([Promise.resolve(({function})(...args)), {late}])"
        return self.page.evaluate(race, [1000 * seconds, list(arguments)])

    def sources(self) -> list[str]:
        """The source of each cell, as it stands in the editor."""
        return self.call(f"() => {CELLS}.map(w => w.model.sharedModel.getSource())")

    def index(self, piece: str) -> int:
        """The place of the first cell whose source holds `piece`."""
        places = [i for i, source in enumerate(self.sources()) if piece in source]
        if not places:
            raise LookupError(f"no cell holds {piece!r}")
        return places[0]

    def cell(self, piece: str) -> Locator:
        """That cell on the page."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(self.index(piece))

    def write(self, piece: str, source: str) -> None:
        """Put `source` into that cell, as if it were typed."""
        self.call(f"(i, text) => {CELLS}[i].model.sharedModel.setSource(text)", self.index(piece), source)

    def run(self, piece: str) -> str:
        """Run that cell; return the text of its outputs as the page shows it."""
        self.call("i => { jupyterapp.shell.currentWidget.content.activeCellIndex = i }", self.index(piece))
        self.call("() => jupyterapp.commands.execute('notebook:run-cell')", seconds=RUN_SECONDS)
        self.page.wait_for_function(DRAWN)
        return self.output(piece)

    def run_all(self) -> None:
        """Run every cell and wait for the last."""
        self.call("() => jupyterapp.commands.execute('notebook:run-all-cells')", seconds=RUN_SECONDS)
        # The command is over at the first cell that fails, while one that is meant to fail lets the others go on.
        self.page.wait_for_function(OVER, timeout=1000 * RUN_SECONDS)
        self.page.wait_for_function(DRAWN)

    def output(self, piece: str) -> str:
        """The text that stands under that cell."""
        return "\n".join(self.cell(piece).locator(".jp-OutputArea-output").all_inner_texts())

    def errors(self) -> list[str]:
        """What the page shows in red, errors and warnings alike, and widgets that could not be drawn.

        Cells that are meant to fail (tagged raises-exception) are left out.
        """
        red = "[data-mime-type='application/vnd.jupyter.stderr'], .jupyter-widgets-error-widget"
        find = f"w => [...w.node.querySelectorAll(`{red}`)].map(shown => shown.innerText)"
        return self.call(f"() => {CELLS}.filter(w => !({MEANT_TO_FAIL})(w)).flatMap({find})")

    def not_run(self) -> list[str]:
        """The code cells that no run has reached."""
        return self.call(f"() => {CELLS}.filter({NOT_RUN}).map(w => w.model.sharedModel.getSource())")

    def picture(self, piece: str) -> str:
        """The pixels (or the markup) of the picture under that cell, to tell whether it changed."""
        return self.wait_for_new_picture(piece, before="")

    def move_slider(self, piece: str, steps: int = 1) -> None:
        """Move the first slider under that cell by `steps` (negative: back), as the arrow keys do."""
        handle = self.cell(piece).locator(".noUi-handle").first
        handle.focus()
        for _ in range(abs(steps)):
            handle.press("ArrowRight" if steps > 0 else "ArrowLeft")

    def wait_for_new_picture(self, piece: str, before: str) -> str:
        """The picture under that cell once it differs from `before`. Raises playwright's TimeoutError when it stays."""
        arguments = [self.cell(piece).element_handle(), before]
        return self.page.wait_for_function(NEW_PICTURE, arg=arguments).json_value()

    def screenshot(self, name: str, piece: str | None = None) -> Path:
        """Keep what the page shows as runs/browser/`name`.png, scrolled to that cell."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        if piece:
            self.cell(piece).scroll_into_view_if_needed()
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=path)
        return path
