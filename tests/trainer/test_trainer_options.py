"""What a person can get wrong, and the sentence they get; before a process starts where that can be known."""

import json

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from course_lib import spmd
from course_lib.trainer import options, ranks
from course_lib.trainer.ends import Failed, Refused
from course_lib.trainer.lock import sole_trainer
from course_lib.trainer.options import Options


def refused(*arguments, restarted=False):
    with pytest.raises(Refused) as error:
        options.read(list(arguments), restarted)
    return str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--size", "tinny"], "--size: There is no size 'tinny'. Did you mean tiny"),
        (["--steps", "0"], "--steps is 0: it must be a number from 1 on."),
        (["--seed", str(2**63)], "--seed is 9223372036854775808: it must be a number up to 9223372036854775807."),
        (["--steps", str(2**31)], "--steps is 2147483648: it must be a number up to 2147483647."),
        (["--warmup", "-2"], "--warmup is -2: it must be a number from 0 on."),
        (["--batch", "-4"], "--batch is -4: it must be a number from 1 on."),
        (["--lr", "nan"], "--lr is nan: it must be a number from 0 on."),
        (["--clip", "-1"], "--clip is -1.0: it must be a number from 0 on."),
        (["--seq-len", "999"], "--seq-len is 999: sequences of --size tiny have up to 256 tokens."),
        (["--steps", "5", "--warmup", "9"], "--warmup and --steps: warmup is 9 of 5 steps"),
    ],
)
def test_a_wrong_value_is_refused(arguments, said, tmp_path):
    assert refused("--folder", str(tmp_path), *arguments).startswith(said)


@pytest.mark.parametrize("arguments", [["--engine", "zero"], ["--steps", "many"], ["--stepz", "3"], ["--step", "3"]])
def test_what_argparse_refuses_ends_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        options.read(arguments)
    assert left.value.code == 2 and arguments[0] in capsys.readouterr().err


def test_the_folder_is_named_after_the_size():
    assert options.read(["--size", "small", "--folder", ""]).path.parts == ("runs", "small")


def test_a_folder_with_a_run_in_it_is_busy(tmp_path):
    options.keep(options.read(["--folder", str(tmp_path), "--steps", "7", "--batch", "4"]))
    assert refused("--folder", str(tmp_path)) == (
        f"There is a run in {tmp_path} already: go on with it with --resume, or give another --folder for this one."
    )
    resumed = options.read(["--folder", str(tmp_path), "--resume", "--steps", "9"])
    assert (resumed.steps, resumed.batch, resumed.resume) == (9, 4, True)
    assert options.read(["--folder", str(tmp_path)], restarted=True).resume


@pytest.mark.parametrize("name", options.FIXED)
def test_a_run_goes_on_with_what_it_was_begun_with(name, tmp_path):
    first = {"size": "tiny", "data": "text", "tokens": "bytes", "vocab": "300", "seq_len": "32", "seed": "1"}
    other = {"size": "small", "data": "more", "tokens": "bpe", "vocab": "400", "seq_len": "64", "seed": "2"}
    flags = [word for key, value in first.items() for word in (options.flag(key), value)]
    options.keep(options.read(["--folder", str(tmp_path), *flags]))
    resume = ["--folder", str(tmp_path), "--resume", options.flag(name)]
    assert options.read([*resume, first[name]])
    assert refused(*resume, other[name]) == (
        f"The run in {tmp_path} was begun with {options.flag(name)} {first[name]}, and goes on with that, not with "
        f"{other[name]}: leave it out, or give another --folder for a new run."
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda kept: "[1]", "it holds no options"),
        (lambda kept: "7", "it holds no options"),
        (lambda kept: "\udcff", "it is no JSON"),
        (lambda kept: json.dumps(kept)[:30], "it is no JSON"),
        (lambda kept: json.dumps(kept | {"engine": "zero"}), "--engine is zero: it must be ddp or torch-ddp"),
        (lambda kept: json.dumps(kept | {"size": "tinny"}), "--size: There is no size 'tinny'"),
        (lambda kept: json.dumps(kept | {"steps": -3}), "--steps is -3: it must be a number from 1 on"),
        (lambda kept: json.dumps(kept | {"steps": "9"}), 'steps is "9"'),
        (lambda kept: json.dumps(kept | {"batch": True}), "batch is true"),
        (lambda kept: json.dumps(kept | {"lr": float("nan")}), "--lr is nan: it must be a number from 0 on"),
        (lambda kept: json.dumps(kept | {"lr": None}), "lr is null"),
        (lambda kept: json.dumps(kept | {"folder": "x"}), "it has an unknown folder"),
        (lambda kept: json.dumps({k: v for k, v in kept.items() if k != "seed"}), "it lacks seed"),
    ],
)
def test_damaged_options_are_refused(change, fault, tmp_path):
    options.keep(options.read(["--folder", str(tmp_path), "--data", "text"]))
    path = tmp_path / "options.json"
    path.write_text(change(json.loads(path.read_text())), encoding="utf-8", errors="surrogateescape")
    for again in ([], ["--resume"]):
        said = refused("--folder", str(tmp_path), *again)
        assert said.startswith(f"{path} is damaged, {fault}")
        assert said.endswith(": mend it, or give another --folder for a new run.")


@pytest.mark.parametrize("again", [[], ["--resume"]])
def test_what_is_left_of_a_run_without_its_options_is_not_overwritten(again, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "checkpoints").mkdir()
    assert refused("--folder", str(tmp_path), *again) == (
        f"{tmp_path} has log.jsonl and checkpoints of a run, and no options.json: mend it, or give another --folder "
        "for a new run."
    )


def test_a_folder_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be read (Not a directory): give another --folder." in refused("--folder", str(tmp_path / "file"))


def test_resume_where_there_is_no_run_begins_one(tmp_path):
    assert options.read(["--folder", str(tmp_path / "new"), "--resume"]).steps == Options().steps


@pytest.mark.parametrize(
    ("arguments", "n", "said"),
    [
        (
            {"batch": 16, "micro": 3, "accumulation": 2},
            2,
            "--batch 16 is not micro x accumulation x ranks = 3 x 2 x 2 = 12: give --batch 12, or leave --micro or "
            "--accumulation out.",
        ),
        (
            {"batch": 16},
            3,
            "--batch 16 is not a multiple of accumulation x ranks = 1 x 3 = 3: --batch 15 or --batch 18 would do.",
        ),
        ({"batch": 2, "micro": 4}, 2, "--batch 2 is not a multiple of micro x ranks = 4 x 2 = 8: --batch 8 would do."),
    ],
)
def test_a_batch_that_is_not_micro_times_accumulation_times_ranks_is_refused(arguments, n, said):
    with pytest.raises(Refused) as error:
        Options(**arguments).cut(n)
    assert str(error.value) == said


@given(st.integers(1, 64), st.integers(0, 8), st.integers(0, 8), st.integers(1, 8))
def test_a_batch_is_cut_without_a_rest_or_refused(batch, micro, accumulation, n):
    try:
        seen = Options(batch=batch, micro=micro, accumulation=accumulation).cut(n)
    except Refused as error:
        fits = [int(word.split(" ")[0].rstrip(",")) for word in str(error).split("--batch ")[2:]]
        assert fits and all(Options(batch=fit, micro=micro, accumulation=accumulation).cut(n) for fit in fits)
        return
    assert seen[0] * seen[1] * n == batch
    assert seen[0] == micro or not micro
    assert seen[1] == accumulation or not accumulation


def test_too_few_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(Refused, match="3 ranks on this machine need 3 GPUs and there are 2: start --nproc-per-node 2"):
        ranks.device_for("auto")
    assert ranks.device_for("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert ranks.device_for("auto") == torch.device("cpu")
    with pytest.raises(Refused, match="torch finds no GPU here"):
        ranks.device_for("cuda")


def test_a_prompt_that_is_no_text_is_refused_before_training(tmp_path):
    said = refused("--folder", str(tmp_path), "--prompt", "\udcff")  # what Python makes of the byte 0xff
    assert said == "--prompt is no text in UTF-8: it has bytes that stand for no letter."


def test_a_world_size_without_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Refused, match="WORLD_SIZE is set, as under torchrun, but ranks cannot meet so"):
        ranks.met("cpu").__enter__()


def test_a_restart_reads_nothing_of_the_attempt_before(monkeypatch):
    kept = dist.HashStore()  # as torchrun's is, over all attempts
    ranks.on_one_machine(kept).set("where rank 1 listens", "port 1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = ranks.on_one_machine(kept)
    assert not again.check(["where rank 1 listens"])
    again.set("where rank 1 listens", "port 2")
    assert ranks.on_one_machine(kept).get("where rank 1 listens") == b"port 2"


def refused_on(guilty):
    def action():
        if dist.get_rank() in guilty:
            raise OSError("no such file")
        return "fine"

    try:
        return ranks.all_or_none(action)
    except Refused as error:
        return str(error)


def test_what_one_rank_cannot_do_none_goes_on_without():
    assert spmd.run(refused_on, [1], ranks=3, show=False) == ["rank 1: no such file"] * 3
    assert spmd.run(refused_on, [0, 1, 2], ranks=3, show=False) == ["no such file"] * 3
    assert spmd.run(refused_on, [], ranks=3, show=False) == ["fine"] * 3


def first_of(words):
    def action():
        if words:
            raise Failed(words)
        return dist.get_rank()

    try:
        return ranks.on_first(action)
    except Failed as error:
        return str(error)


def test_what_the_first_rank_cannot_do_ends_all():
    assert spmd.run(first_of, "", ranks=3, show=False) == [0] * 3
    assert spmd.run(first_of, "the disk is full", ranks=3, show=False) == ["the disk is full"] * 3


def test_refusals_of_a_run_leave_no_trace(heard, tmp_path):
    run = tmp_path / "runs" / "run"
    nowhere = str(tmp_path / "nowhere")
    [(status, said), other] = heard(run, 2, "--data", nowhere)
    assert status == 2 and nowhere in said and other == (2, "")
    assert [status for status, _ in heard(run, 3, "--batch", "16")] == [2, 2, 2]
    assert not run.parent.exists()
    [(status, said)] = heard("/dev/null/run", 1)
    assert status == 2 and "/dev/null/run" in said and "give another --folder." in said


def test_the_trainer_that_comes_second_is_refused(heard, tmp_path):
    """It found an empty folder, and then the other was there first."""
    run = tmp_path / "run"
    with sole_trainer(run):
        [(status, said), other] = heard(run, 2)
        assert status == 2 and other == (2, "")
        assert said.startswith(f"Another trainer is at work in {run} (process ")
    assert not run.exists()


def test_a_damaged_checkpoint_is_refused_and_the_run_left_as_it_was(train, tmp_path):
    folder = tmp_path / "run"
    assert train(folder, 2, "--steps", "2", "--validate-every", "0") == [0, 0]
    before = {name: (folder / name).read_bytes() for name in ("log.jsonl", "options.json")}
    [state] = (folder / "checkpoints").glob("step-*/state.*")
    raw = bytearray(state.read_bytes())
    raw[len(raw) // 2] ^= 1
    state.write_bytes(raw)
    assert train(folder, 2, "--resume", "--steps", "4") == [1, 1]
    assert {path.name for path in folder.iterdir()} == {*before, "checkpoints"}
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_checkpoint_of_another_model_is_refused(train, tmp_path):
    folder = tmp_path / "run"
    assert train(folder, 1, "--steps", "1", "--validate-every", "0") == [0]
    kept = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    (folder / "options.json").write_text(json.dumps(kept | {"size": "small"}), encoding="utf-8")
    assert train(folder, 1, "--resume", "--steps", "2") == [2]
