"""The measurement of experts: that it runs, what its candidates are, and what it refuses."""

from dataclasses import replace

import pytest

from course_lib import spmd
from course_lib.bench import expert
from course_lib.models import GPTConfig, MoEConfig, flops_per_token

TINY = GPTConfig(16, dim=8, n_layers=1, n_heads=2, n_kv_heads=2, ffn_dim=8, max_seq_len=8, moe=MoEConfig(4, 2, 4))


def test_every_candidate_takes_its_steps():
    times, moved = spmd.run(expert.measure, TINY, 2, 4, 3, ranks=2, show=False)[0]
    assert list(times) == list(moved) == ["dense", "copies", "even", "routed", "one rank"]
    assert all(len(its.seconds) == 3 and min(its.seconds) > 0 for its in times.values())
    # Rank 0's tokens: 2 rows each, there and back and the same in backward; the counts; and the dense gradients.
    dense_parameters = moved["dense"] - 4 * 3 * 8 * 8
    assert moved["even"] - (4 * 2 * 4 * 2 * 8 * 4) - 4 * 8 == dense_parameters + 4 * 4 * 8
    lines = expert.table(2, times, moved).strip().splitlines()
    assert lines[0].startswith("2 ranks") and len(lines) == 6


def test_dense_and_experts_are_of_equal_flops_but_for_the_router():
    config = expert.CONFIG
    dense = replace(config, moe=None, ffn_dim=config.moe.top_k * config.moe.expert_dim)
    router = 6 * config.n_layers * config.dim * config.moe.n_experts
    assert flops_per_token(config, 128) - flops_per_token(dense, 128) == router


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--ranks", "3"], "8 experts cannot be shared out evenly over 3 ranks"),
        (["--steps", "1"], "--steps must be 2 or more"),
        (["--length", "2000"], "the model takes up to 1024 tokens"),
    ],
)
def test_refuses_what_it_cannot_measure(argv, message, capsys):
    with pytest.raises(SystemExit):
        expert.main(argv)
    assert message in capsys.readouterr().err


def test_it_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(expert, "CONFIG", TINY)
    expert.main(["--ranks", "1", "--steps", "2", "--batch", "1", "--length", "4"])
    assert capsys.readouterr().out.strip().splitlines()[1].startswith("dense")
