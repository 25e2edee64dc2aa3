"""Checkpoints in one process: what is saved is loaded, the last ones are kept, files of others stay."""

import pytest
import torch
from checkpoint_cases import everything_in, parts_of, same, state_of

from course_lib.training.checkpoint import latest, load, save


def test_what_is_saved_is_loaded(tmp_path):
    place = save(tmp_path / "new" / "folder", 7, state_of(7), rank_state={"rng": torch.get_rng_state()})
    assert place == tmp_path / "new" / "folder" / "step-00000007"
    found = load(tmp_path / "new" / "folder")
    assert same(found.state, state_of(7)) and same(found.rank_state, {"rng": torch.get_rng_state()})
    assert (found.step, found.ranks) == (7, 1)
    model = found.state["model"]
    assert model["head"].data_ptr() == model["embedding"].data_ptr()  # what was shared is shared again
    assert parts_of(tmp_path / "new" / "folder") == [
        "latest", "step-00000007/manifest", "step-00000007/rank-0", "step-00000007/state",
    ]  # fmt: skip
    assert (tmp_path / "new" / "folder" / "latest").read_text() == "step-00000007\n"


def test_without_a_rank_state_there_is_none(tmp_path):
    save(tmp_path, 0, {"a": 1})
    assert load(tmp_path) == (0, {"a": 1}, None, 1)


def test_the_last_ones_saved_are_kept_and_the_last_is_loaded(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step, state_of(step), keep=3)
        assert latest(tmp_path) == step
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000020", "step-00000030", "step-00000040"]
    assert same(load(tmp_path, step=20).state, state_of(20))
    assert load(tmp_path).step == 40


def test_steps_may_go_back(tmp_path):
    # After a spike of the loss one goes on from an older checkpoint: what is then saved is the last, and is kept.
    for step in (100, 200, 300):
        save(tmp_path, step, state_of(step), keep=3)
    save(tmp_path, 150, state_of(150), keep=2)
    assert latest(tmp_path) == 150
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000150", "step-00000300"]
    assert same(load(tmp_path).state, state_of(150))


def test_a_step_saved_again_takes_the_place_of_the_old_one(tmp_path):
    save(tmp_path, 5, {"a": 1}, rank_state=1, keep=1)
    save(tmp_path, 5, {"a": 2}, keep=1)
    assert load(tmp_path) == (5, {"a": 2}, None, 1)
    assert parts_of(tmp_path) == ["latest", "step-00000005/manifest", "step-00000005/state"]


def test_files_of_others_stay(tmp_path):
    mine = ["notes.txt", "step-00000001/plot.png", "step-old/model.pt", "step-00000009/state.pt"]
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    for step in (1, 2, 3):
        save(tmp_path, step, {"a": step}, keep=1)
    assert set(mine) <= everything_in(tmp_path)
    assert parts_of(tmp_path).count("step-00000001/state") == 0
    assert latest(tmp_path) == 3


@pytest.mark.parametrize(("keep", "step"), [(0, 1), (-1, 1), (1, -1)])
def test_keep_and_step_are_checked(tmp_path, keep, step):
    with pytest.raises(ValueError, match=rf"keep is {keep} and step is {step}"):
        save(tmp_path, step, {}, keep=keep)
    assert everything_in(tmp_path) == set()


def test_nothing_to_load(tmp_path):
    assert latest(tmp_path / "none") is None
    with pytest.raises(FileNotFoundError, match=r"No checkpoint in .*none: there is none yet"):
        load(tmp_path / "none")
    save(tmp_path, 5, {})
    save(tmp_path, 6, {})
    with pytest.raises(FileNotFoundError, match=r"No checkpoint of step 7 in .*: there are the steps 5, 6"):
        load(tmp_path, step=7)
