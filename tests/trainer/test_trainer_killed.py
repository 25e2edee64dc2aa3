"""A run that is killed, restarted, asked to leave or moved to other ranks has the loss curve of one left in peace."""

import re
import shutil
import signal

import pytest
from trainer_runs import HALF, ctrl_c, hang_up, leave, log_of, steps_of, validations_of

STEPS = ["--steps", "30", "--save-every", "4", "--validate-every", "5"]


def test_killed_restarted_orphaned_and_resumed_every_bit_is_as_in_peace(start, train, tmp_path):
    assert train(tmp_path / "peace", 2, *STEPS) == [0, 0]
    run = tmp_path / "run"
    job = start(run, *STEPS, ranks=2, torchrun=("--max-restarts", "2"))
    job.until("step  6/30")
    job.rank(0).kill()  # it holds the lock
    resumed = job.until("resumed after step ")
    told = re.search(r"Rank 1 lost another rank after step (\d+); --resume goes on after step (\d+),", job.said())
    assert told, job.said()
    assert int(told[1]) >= 6 and int(told[2]) % 4 == 0 and resumed == f"resumed after step {told[2]}\n"
    job.until("step 14/30")
    job.popen.kill()  # and not the ranks
    job.end()  # reads until the last of them has closed the pipe
    stopped = re.search(r"torchrun is gone: stopped after step (\d+) of 30. --resume goes on from there.", job.said())
    assert log_of(run)[-1] == {"event": "saved", "step": int(stopped[1])}
    assert train(run, 2, "--resume") == [0, 0]  # the rest of the options is in the folder
    assert steps_of(run) == steps_of(tmp_path / "peace")
    assert validations_of(run) == validations_of(tmp_path / "peace") != []


def test_ctrl_c_to_torchrun_saves_and_leaves(start, tmp_path):
    job = start(tmp_path / "run", "--steps", "1000000", "--save-every", "0", "--validate-every", "0", ranks=2)
    job.until("step       3/")
    job.popen.send_signal(signal.SIGINT)
    job.until("Asked to leave: stopped after step ")
    assert job.end() == 1  # torchrun's own
    *_, last, saved = log_of(tmp_path / "run")
    assert saved == {"event": "saved", "step": last["step"]}


@pytest.mark.parametrize(
    ("engine", "do", "status"), [("ddp", leave, 143), ("torch-ddp", hang_up, 129), ("torch-fsdp", ctrl_c, 130)]
)
def test_all_ranks_leave_after_the_same_step_and_three_ranks_go_on_bit_by_bit(train, engine, do, status, tmp_path):
    # Three, for there the order in which the ranks' gradients are added shows in the last bit.
    options = ["--steps", "8", "--save-every", "0", "--validate-every", "0", "--engine", engine]
    assert train(tmp_path / "peace", 3, *options) == [0, 0, 0]
    assert train(tmp_path / "run", 3, *options, at=4, do=do, guilty=2) == [143, 143, status]
    assert log_of(tmp_path / "run")[-1] == {"event": "saved", "step": 4}
    assert train(tmp_path / "run", 3, "--resume") == [0, 0, 0]
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "peace")


@pytest.mark.parametrize("engine", ["ddp", "torch-fsdp"])
def test_it_goes_on_with_another_engine_and_number_of_ranks(train, engine, tmp_path):
    options = ["--steps", "8", "--save-every", "0", "--validate-every", "0", "--precision", "fp64", "--engine", engine]
    assert train(tmp_path / "peace", 2, *options) == [0, 0]
    assert train(tmp_path / "run", 2, *options, at=3, guilty=1) == [143, 143]
    for ranks, other in ((1, engine), (3, "ddp"), (3, "torch-fsdp")):
        resumed = shutil.copytree(tmp_path / "run", tmp_path / f"on {ranks}, {other}")
        assert train(resumed, ranks, "--resume", "--engine", other) == [0] * ranks
        for seen, expected in zip(steps_of(resumed), steps_of(tmp_path / "peace"), strict=True):
            assert seen == pytest.approx(expected, rel=1e-9), f"{ranks} ranks, {other}"


def test_in_float16_scale_and_schedule_go_on(train, tmp_path):
    options = ["--steps", "8", "--save-every", "0", "--validate-every", "0", *HALF]
    assert train(tmp_path / "peace", 2, *options, scale=2.0**19) == [0, 0]
    assert train(tmp_path / "run", 2, *options, at=6, do=ctrl_c, scale=2.0**19) == [130, 143]
    assert train(tmp_path / "run", 2, "--resume", *HALF, scale=1.0) == [0, 0]
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "peace")
