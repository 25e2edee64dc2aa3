"""Fixtures for the tests of the lab."""

from pathlib import Path

import pytest


@pytest.fixture
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A progress file of the test's own, not there yet."""
    file = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(file))
    return file
