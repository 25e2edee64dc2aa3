"""The parts that need no run: the log and its cutting, what is drawn, said, measured and sampled; signals."""

import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.models import GPT, GPTConfig
from course_lib.trainer import log, metrics, peak, plot, sample, signals
from course_lib.trainer.job import new_optimizer
from course_lib.trainer.options import Options

STEPS = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}]
LINES = [{"event": "begun", "step": 0}, *STEPS, {"event": "saved", "step": 2}]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "run" / "log.jsonl"
    some = log.Log(path)
    for line in LINES:
        some.write(**line)
    some.close()
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
    more = log.Log(written)
    more.write(step=2, loss=2.25)
    more.close()
    assert log.read_log(written) == [LINES[0], *STEPS]
    assert os.listdir(written.parent) == ["log.jsonl"]


def test_losses_survive_the_log_to_the_last_bit(tmp_path):
    values = torch.rand(100, dtype=torch.float64).tolist() + torch.rand(100).tolist()
    some = log.Log(tmp_path / "log.jsonl")
    for value in values:
        some.write(loss=value)
    some.close()
    assert [line["loss"] for line in log.read_log(tmp_path / "log.jsonl")] == values


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
    assert sample.continued(model, [7, 8], 5, longest=4) == [7, 8, 9, 0, 1, 2, 3]
    assert model.seen == [2, 3, 4, 4, 4]


def test_a_sample_depends_on_its_seed_alone():
    model = GPT(GPTConfig(30, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, ffn_dim=32, max_seq_len=16))
    first, again, other = (sample.continued(model, [3], 20, 16, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_matrices_decay_and_norms_do_not():
    model = GPT(GPTConfig(30, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, ffn_dim=32, max_seq_len=16, tied=True))
    decays = {
        id(p): group["weight_decay"] for group in new_optimizer(model, Options()).param_groups for p in group["params"]
    }
    for name, p in model.named_parameters():
        assert decays.pop(id(p)) == (0.0 if name.endswith("norm.weight") else Options().weight_decay)
    assert not decays


def test_signals_are_noted_and_handlers_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with signals.asked_to_leave() as request:
        assert not request.came
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.came == signal.SIGTERM and request.status == 143
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_second_ctrl_c_leaves_at_once():
    with signals.asked_to_leave() as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.status == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_rank_that_got_no_signal_itself_leaves_as_after_sigterm():
    assert signals.Request().status == 143
