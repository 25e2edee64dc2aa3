"""A workbook of its own for each test: one tiny lab, with one exercise from the library and one written in the cell.

And how Hypothesis draws: the same examples in every run, so that a verdict depends on the code alone. To go looking for
new ones: `pytest --hypothesis-profile=search`.
"""

import shutil
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1_000, deadline=None)
settings.load_profile("same")

TINY = '''\
# %% [markdown]
# # A tiny lab
# It stands in for a real one in the tests of what builds and runs labs.

# %%
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.p2p import equal_chunks, neighbours, rank_and_size, send_recv

print("torch is here:", torch.zeros(2).tolist())

# %% [markdown]
# ## Exercise: the library's

# %% tags=["exercise"]
# exercise: course_lib.collectives.simple:ring_reduce_scatter

# %% [markdown]
# ## Exercise: our own

# %%
def mean(values):
    """The mean of a list of numbers."""
    total = 0
    # BEGIN SOLUTION
    count = 0
    for value in values:
        total += value
        count += 1
    # END SOLUTION
    return total / count


# %%
try:
    print("the mean is", mean([1, 2, 3]))
except NotImplementedError:
    print("not attempted")

# %% tags=["nbval-ignore-output"]
import os

print("pid", os.getpid())
'''


@pytest.fixture(scope="session")
def make_workbook():
    """A function that writes the source of lab9, nothing built, into a folder and returns that folder."""

    def make(root: Path) -> Path:
        (root / "solutions").mkdir()
        (root / "labs").mkdir()
        (root / "solutions" / "lab9_tiny.py").write_text(TINY, encoding="utf-8")
        return root

    return make


@pytest.fixture
def workbook(make_workbook, tmp_path: Path) -> Path:
    """The root of a workbook with the source of lab9 in it, nothing built yet."""
    return make_workbook(tmp_path)


@pytest.fixture(scope="session")
def built_once(make_workbook, tmp_path_factory) -> Path:
    """A workbook whose lab9 is built. To be copied, not changed: building executes a notebook, which takes seconds."""
    from course_lib.lab import build

    root = make_workbook(tmp_path_factory.mktemp("built"))
    assert build.main([], root) == 0
    return root


@pytest.fixture
def built(built_once, tmp_path: Path) -> Path:
    """A copy of its own of the workbook whose lab9 is built."""
    return shutil.copytree(built_once, tmp_path / "workbook")
