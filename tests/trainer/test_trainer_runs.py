"""Whole runs: the same losses on 1, 2, 3 and 4 ranks and by both engines; what is written and shown."""

import itertools
import json
import shutil

import matplotlib.image
import pytest
import torch
import torch.distributed as dist
from trainer_runs import HALF, fill_the_disk, log_of, remove, steps_of, validations_of

from course_lib import spmd
from course_lib.models import GPT, flops_per_token, sized
from course_lib.trainer import options
from course_lib.trainer.job import Job
from course_lib.trainer.options import Options
from course_lib.trainer.ranks import Ranks
from course_lib.training.checkpoint import Checkpoint, load
from course_lib.training.data import prepare
from course_lib.training.loss import token_losses

STEPS = ["--steps", "6", "--validate-every", "3", "--save-every", "0", "--precision", "fp64"]


@pytest.fixture(scope="module")
def alone(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert train(folder, 1, *STEPS, "--sample", "12", draws=True) == [0]
    return folder


LAYOUTS = {
    "1 rank, 4 micro-batches": (1, ["--accumulation", "4"]),
    "2 ranks": (2, []),
    "2 ranks, 3 micro-batches": (2, ["--micro", "2"]),
    "3 ranks": (3, []),
    "4 ranks": (4, []),
    "2 ranks, torch's engine": (2, ["--engine", "torch-ddp", "--accumulation", "2"]),
    "3 ranks, torch's engine": (3, ["--engine", "torch-ddp"]),
    "1 rank, torch-fsdp": (1, ["--engine", "torch-fsdp"]),
    "2 ranks, torch-fsdp": (2, ["--engine", "torch-fsdp", "--accumulation", "2"]),
    "3 ranks, torch-fsdp": (3, ["--engine", "torch-fsdp"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_and_weights_are_those_of_one_process(train, alone, layout, tmp_path):
    ranks, more = LAYOUTS[layout]
    assert train(tmp_path / "run", ranks, *STEPS, *more) == [0] * ranks
    for seen, expected in zip(steps_of(tmp_path / "run"), steps_of(alone), strict=True):
        assert seen == pytest.approx(expected, rel=1e-10)
    for seen, expected in zip(validations_of(tmp_path / "run"), validations_of(alone), strict=True):
        assert seen == pytest.approx(expected, rel=1e-10)
    mine, theirs = (load(run / "checkpoints").state["model"] for run in (tmp_path / "run", alone))
    torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)  # Adam divides by small numbers


def test_it_learns(alone):
    losses = [loss for _, loss, *_ in steps_of(alone)]
    assert losses[0] > 5 and losses[-1] < 3.5


def test_the_log_says_what_ran_and_how_fast(alone):
    begun, *lines = log_of(alone)
    assert begun.items() >= {"event": "begun", "step": 0, "ranks": 1, "micro": 12, "accumulation": 1}.items()
    assert [line["step"] for line in lines if "event" not in line] == [1, 2, 3, 4, 5, 6]
    assert [(line["event"], line["step"]) for line in lines if "event" in line] == [
        ("validated", 3),
        ("validated", 6),
        ("saved", 6),
    ]
    line = lines[-3]
    assert line["tokens_per_second"] == pytest.approx(12 * 32 / line["seconds"])
    flops = flops_per_token(sized("tiny"), 32)
    assert line["mfu"] == pytest.approx(line["tokens_per_second"] * flops / begun["peak_flops"])
    assert line["memory_bytes"] > 100e6


def test_the_loss_is_drawn_and_a_sample_written(alone):
    pixels = matplotlib.image.imread(alone / "loss.png")
    assert pixels.shape[:2] == (520, 910) and pixels.std() > 0.05
    assert (alone / "sample.txt").read_text(encoding="utf-8").startswith("def ")


def test_a_longer_interval_gives_the_same_lines(train, alone, tmp_path):
    assert train(tmp_path / "run", 1, *STEPS, "--log-every", "4") == [0]
    assert steps_of(tmp_path / "run") == steps_of(alone)
    with_speed = [line["step"] for line in log_of(tmp_path / "run") if "seconds" in line]
    assert with_speed == [3, 4, 6]  # a validation tells what there is


def test_the_validation_loss_is_the_mean_over_its_tokens(alone, text):
    """Worked out here from the checkpoint, one sequence at a time."""
    model = GPT(sized("tiny", max_seq_len=32)).double()
    model.load_state_dict(load(alone / "checkpoints").state["model"])
    data = prepare(text, seq_len=32).validation
    losses = []
    for i in range(5):
        tokens, labels, documents = data.batch([i])
        each, valid = token_losses(model(tokens, documents), labels)
        losses += each[valid].tolist()
    assert validations_of(alone)[-1][1] == pytest.approx(sum(losses) / len(losses), rel=1e-10)


@pytest.mark.parametrize("engine", ["ddp", "torch-fsdp"])
def test_in_float16_a_step_left_out_leaves_the_schedule_where_it_is(train, engine, tmp_path):
    more = ["--steps", "10", "--warmup", "5", "--validate-every", "0", "--engine", engine, *HALF]
    assert train(tmp_path / "run", 2, *more, scale=2.0**19) == [0, 0]
    steps = steps_of(tmp_path / "run")
    taken = [taken for *_, taken in steps]
    assert not taken[0] and taken[-1], "the scale must be too large at first and fit later, or nothing is shown"
    for (_, _, before, _, was_taken), (_, _, after, *_) in itertools.pairwise(steps):
        assert (after == before) == (not was_taken)


OTHERS = [
    ["--precision", "bf16", "--schedule", "wsd"],
    ["--tokens", "bpe", "--vocab", "300"],
    ["--precision", "bf16", "--engine", "torch-fsdp"],
]


@pytest.mark.parametrize("more", OTHERS, ids=" ".join)
def test_other_precisions_and_tokens_run(train, more, tmp_path):
    assert train(tmp_path / "run", 2, "--steps", "3", "--clip", "0", *more) == [0, 0]
    assert len(steps_of(tmp_path / "run")) == 3


@pytest.mark.parametrize("saves", [True, False])
def test_a_loss_that_is_no_number_stops_the_run_and_is_not_saved(heard, tmp_path, saves):
    more = ["--steps", "20", "--save-every", str(int(saves)), "--clip", str(int(not saves)), "--validate-every", "0"]
    [(status, said), other] = heard(tmp_path / "run", 2, *more, "--lr", "1e30", "--warmup", "0")
    assert status == 1 and other == (1, "")
    lines = log_of(tmp_path / "run")
    assert all(abs(line["loss"]) < 1e300 for line in lines if "loss" in line)
    last = lines[-1]["step"]
    *_, sentence = said.splitlines()
    assert f" of step {last + 1} is not finite; " in sentence
    if saves:
        assert load(tmp_path / "run" / "checkpoints").step == last
        on, clip = f"--resume goes on after step {last}, where the last checkpoint is", "--clip 1"
    else:
        on, clip = "no checkpoint was saved, so --resume begins anew with step 1", "a smaller --clip than 1"
    assert sentence.endswith(f"{on}: with a lower --lr than 1e+30 or a longer --warmup or {clip}.")


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (remove, "log.jsonl: No such file or directory): stopped after step 3; no checkpoint was saved, so --resume"),
        (fill_the_disk, "No space left on device): stopped after step 3; --resume goes on after step 2, where"),
    ],
)
def test_a_log_that_cannot_be_written_stops_all_ranks(heard, tmp_path, trouble, said):
    run = tmp_path / "run"
    more = ["--steps", "9", "--save-every", "2", "--validate-every", "0"]
    [(status, words), other] = heard(run, 2, *more, at=3, do=lambda: trouble(run))
    assert status == 1 and other == (1, "")
    *_, sentence = words.splitlines()
    assert sentence.startswith("The log cannot be written (") and said in sentence


def random_numbers_that_go_on(arguments):
    ranks = Ranks(dist.get_rank(), 2, torch.device("cpu"))
    job = Job(options.read(arguments), ranks, prepare(arguments[1], seq_len=32))
    torch.manual_seed(dist.get_rank())
    saved = Checkpoint(0, job.state(), job.rank_state(), 2)
    first = torch.rand(3)
    job.go_on_from(saved)
    return torch.equal(first, torch.rand(3)), first.tolist()


def test_each_rank_goes_on_with_its_own_random_numbers(text, tmp_path):
    arguments = ["--data", str(text), "--seq-len", "32", "--folder", str(tmp_path / "run")]
    (same, first), (same_too, other) = spmd.run(random_numbers_that_go_on, arguments, ranks=2, show=False)
    assert same and same_too and first != other


def test_a_finished_run_has_nothing_to_do_and_more_steps_go_on(heard, tmp_path):
    run, more = tmp_path / "run", ["--validate-every", "0", "--schedule", "wsd", "--warmup", "1"]
    assert heard(run, 1, "--steps", "3", *more)[0][0] == 0
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    [(status, said)] = heard(run, 1, "--resume", "--lr", "5")
    assert status == 0 and "All 3 steps are done already: --steps 6 would go on." in said
    [(status, said)] = heard(run, 1, "--resume", "--steps", "2")
    assert status == 2
    assert said == f"--steps 2: the run in {run} has done 3 already; --steps 6 would go on.\n"
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    (run / "log.jsonl").write_bytes(b"damage\n" + before["log.jsonl"])
    [(status, said)] = heard(run, 1, "--resume", "--steps", "4")
    assert status == 2 and f"Line 1 of {run / 'log.jsonl'} is damaged: mend or delete that line" in said
    assert (run / "options.json").read_bytes() == before["options.json"]
    (run / "log.jsonl").write_bytes(before["log.jsonl"])
    same = shutil.copytree(run, tmp_path / "same")
    assert heard(same, 1, "--resume", "--steps", "4")[0][0] == 0
    assert heard(run, 1, "--resume", "--steps", "4", "--weight-decay", "7")[0][0] == 0
    # What is said again counts, and for matrices alone: the one step differs by what decays more.
    third, (fourth, decayed) = (
        load(run / "checkpoints", 3).state["model"],
        (load(folder / "checkpoints", 4).state["model"] for folder in (same, run)),
    )
    for name, p in third.items():
        more = (7 - Options().weight_decay) * Options().lr * (p.dim() >= 2)
        torch.testing.assert_close(fourth[name] - decayed[name], more * p, rtol=0, atol=1e-6)
    assert [step for step, *_ in steps_of(run)] == [1, 2, 3, 4]
    kept = json.loads((run / "options.json").read_text(encoding="utf-8"))
    assert kept["steps"] == 4 and kept["weight_decay"] == 7
