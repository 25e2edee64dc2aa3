"""A JupyterLab and a Chromium for each browser test module; skipped, and said so, where no Chromium can be had."""

import pytest
from jupyter import ROOT, copy_of, page_of, server

from course_lib.doctor import chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with JupyterLab on a copy of labs/. A module gets a server of its own.

    On a server that another module has used, JupyterLab restores the notebook that was open, with all its outputs, and
    the kernel of that notebook still holds its memory.
    """
    if not chromium.find():
        pytest.skip("no Chromium: the browser tests are SKIPPED (Debian: apt install chromium)")
    folder = copy_of(ROOT, tmp_path_factory.mktemp("jupyter"))
    with server(folder) as url, page_of(url) as page:
        yield page
