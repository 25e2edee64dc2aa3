"""The parts that need no run: the log and its cutting, what is drawn, said, measured and sampled; signals."""

import errno
import fcntl
import io
import itertools
import os
import runpy
import signal
import threading
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.models import GPT, GPTConfig
from course_lib.trainer import lock, log, metrics, peak, plot, sample, signals
from course_lib.trainer.ends import LostPeer, Refused
from course_lib.trainer.engines.base import by_name, fill, groups_of, make_adamw
from course_lib.trainer.options import Options

main_module = import_module("course_lib.trainer.main")  # the package has a function of that name
CPU = torch.device("cpu")
STEPS = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}]
LINES = [{"event": "begun", "step": 0}, *STEPS, {"event": "saved", "step": 2}]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "log.jsonl"
    log.cut_back(path, 0)
    log.append(path, *LINES[:2])
    log.append(path, *LINES[2:])
    return path


def test_a_log_is_read_back(written):
    assert log.read_log(written) == LINES
    assert log.read_log(written.with_name("none")) == []


def test_half_a_line_at_the_end_is_as_if_it_was_not_there(written):
    with open(written, "a", encoding="utf-8") as file:
        file.write('{"step": 3, "lo')
    assert log.read_log(written) == LINES


def test_a_log_is_cut_back_to_a_step_and_goes_on_from_there(written):
    with open(written, "a", encoding="utf-8") as file:
        file.write('{"step": 3, "loss": 2.0}\n{"step": 4, "lo')
    log.cut_back(written, 1)
    log.append(written, {"step": 2, "loss": 2.25})
    assert log.read_log(written) == [LINES[0], *STEPS]
    assert os.listdir(written.parent) == ["log.jsonl"]


def test_losses_survive_the_log_to_the_last_bit(tmp_path):
    values = torch.rand(100, dtype=torch.float64).tolist() + torch.rand(100).tolist()
    log.cut_back(tmp_path / "log.jsonl", 0)
    log.append(tmp_path / "log.jsonl", *({"step": step, "loss": value} for step, value in enumerate(values)))
    log.cut_back(tmp_path / "log.jsonl", 200)
    assert [line["loss"] for line in log.read_log(tmp_path / "log.jsonl")] == values


@pytest.mark.parametrize("damage", [b'{"step": 1, "lo', b"", b"5", b"{}", b'{"step": "1"}', b'{"step": 1, "\xff": 2}'])
def test_a_damaged_line_among_whole_ones_is_told_and_nothing_erased(written, damage):
    lines = written.read_bytes().split(b"\n")
    lines[1] = damage
    written.write_bytes(b"\n".join(lines))
    before = written.read_bytes()
    with pytest.raises(log.DamagedLog, match="Line 2 of .*log.jsonl is damaged: mend or delete that line"):
        log.cut_back(written, 2)
    assert written.read_bytes() == before


def test_a_log_that_was_removed_is_not_begun_anew_in_the_middle(written):
    written.unlink()
    with pytest.raises(FileNotFoundError):
        log.append(written, LINES[1])
    assert not written.exists()


def test_where_nobody_reads_any_more_the_run_goes_on():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    log.say("step 1", file=Closed())


def test_one_trainer_has_a_folder_and_leaves_no_trace(tmp_path):
    folder = tmp_path / "runs" / "tiny"
    with lock.sole_trainer(folder):
        with pytest.raises(Refused, match=f"Another trainer is at work in .*tiny .process {os.getpid()} on "):
            lock.locked(folder)
        assert os.listdir(folder) == ["lock"]
    assert os.listdir(tmp_path) == []
    folder.mkdir(parents=True)
    (folder / "lock").write_text("left by one that was killed")
    with lock.sole_trainer(folder):
        pass
    assert folder.exists()  # it was there before


def test_a_lock_on_a_file_that_its_holder_just_removed_is_none(tmp_path, monkeypatch):
    flock, calls = fcntl.flock, []

    def late(handle, how):
        if not calls:
            (tmp_path / "lock").unlink()
        calls.append(handle)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with lock.sole_trainer(tmp_path):
        assert len(calls) == 2 and (tmp_path / "lock").exists()


def test_a_file_system_without_locks_is_told_of_and_used(tmp_path, monkeypatch, capsys):
    def none(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with lock.sole_trainer(tmp_path):
        assert "cannot be locked (No locks available): see to it that no other" in capsys.readouterr().out


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(Refused, match="--folder .*zz cannot be made or written .Not a directory.: give another"),
        lock.sole_trainer(tmp_path / "file" / "zz"),
    ):
        pass


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.integers(1, 8))
def test_the_running_mean_is_of_the_last_values(values, width):
    means = plot.running_mean(values, width)
    assert len(means) == len(values)
    assert means[-1] == pytest.approx(sum(values[-width:]) / len(values[-width:]))
    assert means[0] == values[0]


@pytest.mark.parametrize("steps", [1, 60])
def test_short_and_long_runs_can_be_drawn(steps, tmp_path):
    lines = [{"step": step, "loss": 5 / step} for step in range(1, steps + 1)]
    plot.draw_losses([{"event": "begun", "step": 0}, *lines], "a run", tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0:00"), (59.6, "1:00"), (125, "2:05"), (3600, "1:00:00"), (7384.2, "2:03:04")]
)
def test_time_is_said_as_a_clock_does(seconds, words):
    assert metrics.clock(seconds) == words


def test_peak_is_the_data_sheets_for_a_known_gpu_and_measured_elsewhere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    known = peak.peak_of(torch.device("cuda", 0), torch.bfloat16)
    assert known.flops == 989e12 and "data sheet" in known.source
    here = peak.peak_of(torch.device("cpu"), torch.float32)
    assert 1e8 < here.flops < 1e14 and "measured" in here.source


@pytest.mark.parametrize(("mfu", "doubted"), [(0.5, False), (1.04, True)])
def test_more_than_the_peak_is_explained(mfu, doubted):
    meter = SimpleNamespace(job=SimpleNamespace(options=Options()), seconds=1.0, steps=1)
    line = {"step": 9, "loss": 2.0, "tokens_per_second": 100.0, "mfu": mfu, "memory_bytes": 1}
    assert ("while the peak was measured" in metrics.Meter.progress(meter, line)) == doubted


class Counting(torch.nn.Module):
    """Says that the number after the last is next, and notes how much it was shown."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), []

    def forward(self, tokens):
        self.seen.append(tokens.shape[1])
        return torch.nn.functional.one_hot((tokens + 1) % 10, 10) * 100.0


def test_a_sample_goes_on_from_the_prompt_and_shows_the_model_what_it_can_take():
    model = Counting()
    assert sample.continued(model, [7, 8], 5, 4, 0, CPU) == [7, 8, 9, 0, 1, 2, 3]
    assert model.seen == [2, 3, 4, 4, 4]


def test_a_sample_depends_on_its_seed_alone():
    model = GPT(GPTConfig(30, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, ffn_dim=32, max_seq_len=16))
    first, again, other = (sample.continued(model, [3], 20, 16, seed, CPU) for seed in (1, 1, 2))
    assert first == again != other


def test_matrices_decay_and_norms_do_not():
    model = GPT(GPTConfig(30, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, ffn_dim=32, max_seq_len=16, tied=True))
    decays = {id(p): group["weight_decay"] for group in groups_of(model, Options()) for p in group["params"]}
    for name, p in model.named_parameters():
        assert decays.pop(id(p)) == (0.0 if name.endswith("norm.weight") else Options().weight_decay)
    assert not decays


def test_an_optimizer_goes_on_by_name_and_with_what_is_asked_of_it_now():
    small = GPTConfig(30, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, ffn_dim=32, max_seq_len=16, tied=True)
    models = GPT(small), GPT(small)
    first, second = (
        make_adamw(groups_of(model, Options(weight_decay=decay)), Options())
        for model, decay in zip(models, (0.1, 7.0), strict=True)
    )
    models[0](torch.randint(30, (2, 8))).sum().backward()
    assert by_name(first, models[0]) == {}
    first.step()
    kept = by_name(first, models[0])
    assert list(kept) == [name for name, _ in models[0].named_parameters()]
    fill(second, models[1], dict(reversed(kept.items())))
    for old, new in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert first.state[old].keys() == second.state[new].keys()
        assert all(torch.equal(value, second.state[new][key]) for key, value in first.state[old].items())
    assert [group["weight_decay"] for group in second.param_groups] == [7.0, 0.0]


def test_signals_are_noted_and_handlers_put_back():
    before = [signal.getsignal(number) for number in signals.SIGNALS]
    for number, status in (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129):
        request = signals.Request()
        with signals.asked_to_leave(request):
            assert not request.came
            os.kill(os.getpid(), number)
            assert request.came == number and request.status == status
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before


def test_what_nohup_ignores_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        request = signals.Request()
        with signals.asked_to_leave(request):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not request.came and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("by_torchrun", [True, False])
def test_the_end_of_torchrun_is_a_request_to_leave_and_later_an_order(monkeypatch, capsys, by_torchrun):
    parents = itertools.chain([5, 5], itertools.repeat(1))  # at the start, at the first look, and then
    ended = threading.Event()
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())
    monkeypatch.setattr(signals, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(signals, "TIME_TO_LEAVE", 0.0)
    if by_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    request = signals.Request()
    with signals.launcher_watched(request):
        if not by_torchrun:
            assert "launcher" not in {thread.name for thread in threading.enumerate()}
            return
        assert ended.wait(60)
    assert request.status == 143 and request.reason == "torchrun is gone"
    assert "no step has ended in 0 s since: left without saving" in capsys.readouterr().out


def test_a_second_ctrl_c_leaves_at_once():
    request = signals.Request()
    with signals.asked_to_leave(request):
        os.kill(os.getpid(), signal.SIGINT)
        assert request.status == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_rank_that_got_no_signal_itself_leaves_as_after_sigterm():
    assert signals.Request().status == 143


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (143, 143, ""),
        (SystemExit(2), 2, ""),
        (KeyboardInterrupt(), 130, "Left at once, without a checkpoint.\n"),
        (LookupError("a bug"), 1, "LookupError: a bug\n"),
    ],
)
def test_the_process_ends_with_the_status_and_without_waiting_for_threads(monkeypatch, capsys, outcome, status, said):
    def main():
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    ended = []
    monkeypatch.setattr("course_lib.trainer.main", main)
    monkeypatch.setattr(os, "_exit", ended.append)
    runpy.run_module("course_lib.trainer", run_name="__main__")
    assert ended == [status]
    assert capsys.readouterr().err.endswith(said)


def test_signals_are_heard_until_the_last_word_is_said(monkeypatch, tmp_path):
    """torchrun sends SIGTERM to the ranks that are left while they say which rank was lost."""
    said, before = [], signal.getsignal(signal.SIGTERM)

    def lost(*_):
        raise LostPeer("gone")

    def say_late(text, **_):
        os.kill(os.getpid(), signal.SIGTERM)
        said.append(text)

    monkeypatch.setattr(main_module, "train", lost)
    monkeypatch.setattr(main_module, "say", say_late)
    assert main_module.main(["--folder", str(tmp_path / "run"), "--device", "cpu"]) == 1
    assert said == ["gone"] and signal.getsignal(signal.SIGTERM) is before
