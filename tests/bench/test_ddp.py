"""The measurement of data parallelism: its arithmetic, that it runs, and what it refuses."""

import pytest

from course_lib import spmd
from course_lib.bench import ddp
from course_lib.models import GPTConfig

TINY = GPTConfig(16, dim=8, n_layers=1, n_heads=2, n_kv_heads=2, ffn_dim=8, max_seq_len=8, tied=True)


def test_every_candidate_takes_its_steps():
    times = spmd.run(ddp.measure, TINY, 1, 4, 3, ranks=2, show=False)[0]
    assert list(times) == ["torch", "ours", "torch views", "flat", "naive", "alone", "network"]
    assert all(len(its.seconds) == 3 and min(its.seconds) > 0 for its in times.values())
    lines = ddp.table(2, times).strip().splitlines()
    assert lines[0].startswith("2 ranks") and len(lines) == 8
    assert lines[2].startswith("ours ") and lines[2].endswith("%")


def test_candidates_train_alike():
    """Not a step that is fast because it leaves something out: parameters are equal after three steps."""

    def parameters():
        made = []
        before = ddp.copy.deepcopy
        ddp.copy.deepcopy = lambda model: made.append(before(model)) or made[-1]
        runs = ddp.candidates(TINY, 2, 4)
        ddp.copy.deepcopy = before
        for run in runs.values():
            for _ in range(3):
                run()
        return [[p.detach() for p in model.parameters()] for model in made]

    for torchs, *others, alone in spmd.run(parameters, ranks=2, show=False):
        assert len(others) == 4
        assert all((a - b).abs().max() < 1e-6 for other in others for a, b in zip(torchs, other, strict=True))
        assert any((a - b).abs().max() > 1e-6 for a, b in zip(torchs, alone, strict=True))


def test_ratios_and_what_is_hidden():
    """A step of 12 s, where backward alone takes 10 s and the network 4 s, hides half of the network."""
    torchs, ours = ddp.Times((10.0, 20.0, 40.0), (1.0, 1.0, 1.0)), ddp.Times((5.0, 20.0, 80.0), (2.0, 2.0, 9.0))
    assert ours.over(torchs)[1] == 1 and ours.cpu_over(torchs) == 2
    alone, network = ddp.Times((10.0,), (1.0,)), ddp.Times((4.0,), (1.0,))
    assert ddp.hidden(ddp.Times((12.0,), (1.0,)), alone, network) == 0.5


@pytest.mark.parametrize("argv", [["--ranks", "0"], ["--steps", "1"], ["--batch", "0"], ["--length", "2000"]])
def test_refuses_what_it_cannot_measure(argv, capsys):
    with pytest.raises(SystemExit):
        ddp.main(argv)
    assert "or more" in capsys.readouterr().err or "2000" in argv


def test_it_says_what_it_measures_and_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(ddp, "CONFIG", TINY)
    ddp.main(["--ranks", "1", "--steps", "2", "--batch", "1", "--length", "4"])
    out, err = capsys.readouterr()
    assert err == "measuring 2 steps of each candidate on 1 rank ...\n"
    assert out.startswith("\n1 rank ")
