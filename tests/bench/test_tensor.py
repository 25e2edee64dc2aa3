"""The measurement of tensor parallelism: its arithmetic, that it runs, that all candidates do the same."""

import pytest
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.bench import tensor
from course_lib.collectives.native import all_gather_into, reduce_scatter_into
from course_lib.models import GPTConfig

TINY = GPTConfig(16, dim=8, n_layers=1, n_heads=2, n_kv_heads=2, ffn_dim=8, max_seq_len=8)


def test_every_candidate_takes_its_steps():
    times, sent = spmd.run(tensor.measure, TINY, 1, 4, 3, ranks=2, show=False)[0]
    assert list(times) == list(sent) == ["torch", "ours", "torch sp", "ours sp"]
    assert all(len(its.seconds) == 3 and min(its.seconds) > 0 for its in times.values())
    lines = tensor.table(2, times, sent).strip().splitlines()
    assert lines[0].startswith("2 ranks") and lines[0].endswith("MB sent")
    assert len(lines) == 5 and lines[4].startswith("ours sp") and lines[4].endswith(f"{sent['ours sp'] / 1e6:9.2f}")


def test_candidates_train_alike():
    """Not a step that is fast because it leaves something out: losses are equal over five steps."""

    def losses():
        return {name: [float(run()) for _ in range(5)] for name, run in tensor.candidates(TINY, 2, 4).items()}

    for found in spmd.run(losses, ranks=2, show=False):
        assert all(found["torch"] == pytest.approx(other, abs=1e-5) for other in found.values())
        assert found["torch"][0] > found["torch"][4] + 1e-4


def test_bytes_are_counted_as_rings_send_them():
    """Of a whole of 12 numbers on 3 ranks: an all-reduce sends 2 * 2/3 of them, its halves 2/3; functional ones too."""

    def sent():
        from torch.distributed import _functional_collectives as functional

        whole, part = torch.ones(12), torch.ones(4)
        calls = [
            lambda: dist.all_reduce(whole),
            lambda: all_gather_into(whole, part),
            lambda: reduce_scatter_into(part, whole),
            lambda: functional.all_reduce(whole, "sum", [0, 1, 2]).sum(),
            lambda: functional.all_gather_tensor(part, 0, [0, 1, 2]).sum(),
            lambda: functional.reduce_scatter_tensor(whole, "sum", 0, [0, 1, 2]).sum(),
            lambda: whole + whole,
        ]
        totals = []
        for call in calls:
            with tensor.Sent() as counted:
                call()
            totals.append(counted.total)
        return totals

    assert spmd.run(sent, ranks=3, show=False)[0] == [64, 32, 32, 64, 32, 32, 0]


@pytest.mark.parametrize(
    "argv, sentence",
    [
        (["--ranks", "0"], "'0' is not a whole number of 1 or more"),
        (["--ranks", "3"], "--ranks 3 does not divide 8 heads and --length 128: it must divide both"),
        (["--steps", "1"], "--steps must be 2 or more"),
        (["--length", "2000"], "--length is 2000: the model takes up to 1024 tokens"),
    ],
)
def test_refuses_what_it_cannot_measure(argv, sentence, capsys):
    with pytest.raises(SystemExit):
        tensor.main(argv)
    assert sentence in capsys.readouterr().err
