"""The measurement of pipelines: that both runtimes do the same work, that it runs, and what it refuses."""

import pytest
import torch

from course_lib import spmd
from course_lib.bench import pipeline
from course_lib.models import GPTConfig

TINY = GPTConfig(16, dim=8, n_layers=4, n_heads=2, n_kv_heads=2, ffn_dim=8, max_seq_len=8)


def test_both_runtimes_train_alike_in_every_schedule():
    """Not a step that is fast because it leaves something out: parameters are equal after three steps."""

    def parameters():
        made = []
        before = pipeline.stages_of
        pipeline.stages_of = lambda *args: made.append(before(*args)) or made[-1]
        runs = pipeline.candidates(TINY, 4, 1, 4)
        pipeline.stages_of = before
        start = [
            {s: [p.detach().clone() for p in stage.parameters()] for s, stage in stages.items()} for stages in made
        ]
        for run in runs.values():
            for _ in range(3):
                run()
        for theirs, ours, at_first in zip(made[::2], made[1::2], start[::2], strict=True):
            for s in theirs:
                pairs = zip(theirs[s].parameters(), ours[s].parameters(), at_first[s], strict=True)
                for a, b, first in pairs:
                    assert torch.allclose(a, b, rtol=0, atol=1e-6)
                    assert not torch.equal(a, first)
        return list(runs)

    names = spmd.run(parameters, ranks=2, show=False)[0]
    assert len(names) == 8 and names[:2] == ["torch GPipe", "ours GPipe"]


@pytest.mark.parametrize(
    "argv, sentence",
    [
        (["--steps", "1"], "--steps must be 2 or more"),
        (["--ranks", "5"], "--ranks 5: two stages for each rank need 10 layers, the model has 8"),
        (
            ["--micro-batches", "6", "--ranks", "4"],
            "--micro-batches 6: torch's runtime wants a multiple of the 4 ranks",
        ),
        (["--length", "2000"], "--length is 2000: the model takes up to 1024 tokens"),
    ],
)
def test_refuses_what_it_cannot_measure(argv, sentence, capsys):
    with pytest.raises(SystemExit):
        pipeline.main(argv)
    assert sentence in capsys.readouterr().err


def test_it_says_what_it_measures_and_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "CONFIG", TINY)
    pipeline.main(["--ranks", "2", "--steps", "2", "--batch", "1", "--length", "4", "--micro-batches", "4"])
    out, err = capsys.readouterr()
    assert err == "measuring 2 steps of each candidate on 2 ranks ...\n"
    lines = out.strip().splitlines()
    assert lines[0].startswith("2 ranks") and len(lines) == 9
    assert lines[2].startswith("ours GPipe")
