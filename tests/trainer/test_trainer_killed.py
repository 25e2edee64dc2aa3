"""A run that is killed, restarted, asked to leave or moved to other ranks has the loss curve of one left in peace."""

import shutil
import signal

import pytest
from trainer_runs import HALF, log_of, steps_of, validations_of

STEPS = ["--steps", "10", "--save-every", "4", "--validate-every", "5"]


@pytest.fixture(scope="module")
def undisturbed(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert train(folder / "run", 2, *STEPS) == [0, 0]
    return folder / "run"


def test_a_killed_rank_is_restarted_by_torchrun_and_every_bit_is_as_without(start, undisturbed, tmp_path):
    job = start(tmp_path / "run", *STEPS, ranks=2, torchrun=("--max-restarts", "2"))
    job.until("step  6/10")
    job.rank(1).send_signal(signal.SIGKILL)
    assert job.end() == 0, job.said()
    assert "resumed after step 4" in job.said()
    assert steps_of(tmp_path / "run") == steps_of(undisturbed)
    resumed = [line for line in log_of(tmp_path / "run") if line.get("event") == "resumed"]
    assert [line["step"] for line in resumed] == [4]


def test_a_killed_run_is_resumed_by_hand_and_every_bit_is_as_without(start, train, undisturbed, tmp_path):
    job = start(tmp_path / "run", *STEPS, ranks=2)
    job.until("step  7/10")
    job.rank(0).send_signal(signal.SIGKILL)
    assert job.end() != 0
    assert train(tmp_path / "run", 2, "--resume") == [0, 0]  # the rest of the options is in the folder
    assert steps_of(tmp_path / "run") == steps_of(undisturbed)
    assert validations_of(tmp_path / "run") == validations_of(undisturbed) != []


def test_sigterm_to_torchrun_saves_and_leaves(start, tmp_path):
    job = start(tmp_path / "run", "--steps", "1000000", "--save-every", "0", "--validate-every", "0", ranks=2)
    job.until("step       3/")
    job.popen.send_signal(signal.SIGTERM)
    job.until("Asked to leave: stopped after step ")
    assert job.end() != 0
    *_, last, saved = log_of(tmp_path / "run")
    assert saved == {"event": "saved", "step": last["step"]}


def test_ctrl_c_saves_and_leaves(start, tmp_path):
    job = start(tmp_path / "run", "--steps", "1000000", "--save-every", "0", "--validate-every", "0")
    job.until("step       2/")
    job.popen.send_signal(signal.SIGINT)
    assert job.end() == 130
    assert "Asked to leave" in job.said()
    assert log_of(tmp_path / "run")[-1]["event"] == "saved"


@pytest.mark.parametrize("engine", ["ddp", "torch-ddp"])
def test_all_ranks_leave_after_the_same_step_and_three_ranks_go_on_bit_by_bit(train, engine, tmp_path):
    # Three, for there the order in which the ranks' gradients are added shows in the last bit.
    options = ["--steps", "8", "--save-every", "0", "--validate-every", "0", "--engine", engine]
    assert train(tmp_path / "peace", 3, *options) == [0, 0, 0]
    assert train(tmp_path / "run", 3, *options, at=4, guilty=2) == [143, 143, 143]
    assert log_of(tmp_path / "run")[-1] == {"event": "saved", "step": 4}
    assert train(tmp_path / "run", 3, "--resume") == [0, 0, 0]
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "peace")


def test_it_goes_on_with_another_number_of_ranks(train, tmp_path):
    options = ["--steps", "8", "--save-every", "0", "--validate-every", "0", "--precision", "fp64"]
    assert train(tmp_path / "peace", 2, *options) == [0, 0]
    assert train(tmp_path / "run", 2, *options, at=3, guilty=1) == [143, 143]
    for ranks in (1, 3):
        resumed = shutil.copytree(tmp_path / "run", tmp_path / f"on {ranks}")
        assert train(resumed, ranks, "--resume") == [0] * ranks
        for seen, expected in zip(steps_of(resumed), steps_of(tmp_path / "peace"), strict=True):
            assert seen == pytest.approx(expected, rel=1e-9), f"{ranks} ranks"


def test_in_float16_scale_and_schedule_go_on(train, tmp_path):
    options = ["--steps", "8", "--save-every", "0", "--validate-every", "0", *HALF]
    assert train(tmp_path / "peace", 2, *options, scale=2.0**19) == [0, 0]
    assert train(tmp_path / "run", 2, *options, at=6, scale=2.0**19) == [143, 143]
    assert train(tmp_path / "run", 2, "--resume", *HALF, scale=1.0) == [0, 0]
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "peace")
