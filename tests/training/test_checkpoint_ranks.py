"""Checkpoints of several ranks: each writes its own part, and all hear of what one finds."""

from pathlib import Path

import pytest
import torch.distributed as dist
from checkpoint_cases import everything_in, parts_of, save_on_all

from course_lib import spmd
from course_lib.training import checkpoint_files as files
from course_lib.training.checkpoint import CheckpointError, DamagedCheckpoint, latest, load, save


def load_on_all(folder: Path) -> tuple:
    found = load(folder)
    return found.step, found.state, found.rank_state, found.ranks


def load_damaged(folder: Path) -> str:
    try:
        load(folder)
    except DamagedCheckpoint as error:
        return str(error)
    return "loaded"


def test_rank_0_writes_the_state_and_every_rank_its_own(tmp_path):
    assert spmd.run(save_on_all, tmp_path, 5, ranks=3) == ["3 ranks"] * 3
    assert parts_of(tmp_path) == [
        "latest", "step-00000005/manifest", "step-00000005/rank-0", "step-00000005/rank-1", "step-00000005/state",
    ]  # fmt: skip
    own = [{"rank": 0}, {"rank": 1}, None, None]
    for n in (1, 4):
        assert spmd.run(load_on_all, tmp_path, ranks=n) == [(5, {"from": 0}, own[rank], 3) for rank in range(n)]
    assert load(tmp_path) == (5, {"from": 0}, {"rank": 0}, 3)  # without torch.distributed


@pytest.mark.parametrize("failing", [0, 1])
def test_if_one_rank_cannot_write_all_raise_and_nothing_is_left(tmp_path, failing):
    spmd.run(save_on_all, tmp_path, 5, ranks=3)
    before = everything_in(tmp_path)
    said = spmd.run(save_on_all, tmp_path, 6, failing, ranks=3)
    assert len(set(said)) == 1
    assert said[0] == (
        f"The checkpoint of step 6 was not saved. Rank {failing}: OSError: [Errno 28] No space left on device. "
        "The last one saved is that of step 5."
    )
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("part", ["state", "rank-1"])
def test_all_ranks_hear_of_damage_that_one_finds(tmp_path, part):
    spmd.run(save_on_all, tmp_path, 5, ranks=3)
    [path] = tmp_path.glob(f"*/{part}.*")
    path.write_bytes(b"x")
    said = spmd.run(load_damaged, tmp_path, ranks=3)
    assert len(set(said)) == 1 and f"{path} has 1 bytes" in said[0]


def save_in_halves(folder: Path) -> tuple:
    """Two jobs in one world, each with a group and a folder of its own; ranks count within the group."""
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = halves[rank // 2]
    save(folder / str(rank // 2), rank // 2, {"from": rank}, rank_state=rank, group=group)
    return load(folder / str(rank // 2), group=group)


def test_in_a_group_ranks_count_within_it(tmp_path):
    found = spmd.run(save_in_halves, tmp_path, ranks=4)
    assert [tuple(each) for each in found] == [(0, {"from": 0}, 0, 2), (0, {"from": 0}, 1, 2)] + [
        (1, {"from": 2}, 2, 2), (1, {"from": 2}, 3, 2)
    ]  # fmt: skip


def test_a_folder_that_ranks_do_not_share_is_told(tmp_path):
    written = [[{"part": "state", "name": "state.00000000.pt"}], [{"part": "rank-1", "name": "rank-1.00000000.pt"}]]
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "state.00000000.pt").touch()
    with pytest.raises(CheckpointError, match=r"does not see rank-1.00000000.pt in .* that all nodes share"):
        files.commit(tmp_path, 1, written)
    assert latest(tmp_path) is None
