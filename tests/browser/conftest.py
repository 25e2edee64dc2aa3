"""One JupyterLab and one Chromium for all browser tests; skipped, and said so, where no Chromium can be had."""

import pytest
from jupyter import ROOT, copy_of, page_of, server

from course_lib.doctor import chromium


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A page with JupyterLab on a copy of labs/."""
    if not chromium.find():
        pytest.skip("no Chromium: the browser tests are SKIPPED (Debian: apt install chromium)")
    folder = copy_of(ROOT, tmp_path_factory.mktemp("jupyter"))
    with server(folder) as url, page_of(url) as page:
        yield page
