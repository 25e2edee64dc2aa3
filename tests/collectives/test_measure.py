"""Bandwidths by nccl-tests' definitions, every candidate right, the bench's table. No time is asserted."""

import pytest
import torch
import torch.distributed as dist

from course_lib import spmd
from course_lib.bench import __main__ as command
from course_lib.bench import collectives as table
from course_lib.collectives import measure
from course_lib.collectives.measure import Timing


def test_bandwidths_by_hand():
    timing = Timing("ring", 1_000_000, (0.002, 0.001, 0.009))
    assert timing.median == 0.002
    assert timing.algbw == pytest.approx(5e8)
    # nccl-tests, PERFORMANCE.md: an all-reduce on n ranks moves 2(n-1)/n of the tensor through each link.
    assert timing.busbw("all_reduce", 4) == pytest.approx(7.5e8)
    assert timing.busbw("all_gather", 4) == pytest.approx(3.75e8)
    assert timing.busbw("broadcast", 4) == pytest.approx(5e8)


def test_a_ratio_compares_repeats_that_ran_side_by_side():
    """The machine was ten times slower in the second repeat: the medians are far apart, the ratio is not."""
    ours, theirs = Timing("ring", 4, (1.0, 10.0, 1.2)), Timing("torch", 4, (2.0, 20.0, 2.0))
    assert ours.ratio(theirs) == 0.5


def right_answers():
    """Each candidate on the ones that measure() passes it: an all-reduce makes them n, a broadcast leaves them."""
    rank, n = dist.get_rank(), dist.get_world_size()
    wrong = []
    for collective, expected in (
        ("all_reduce", torch.full((6 * n,), n)),
        ("reduce_scatter", torch.full((6,), n)),
        ("all_gather", torch.arange(n).repeat_interleave(6)),
        ("broadcast", torch.zeros(6 * n)),
        ("all_to_all", torch.arange(n).repeat_interleave(6)),
    ):
        for name, call in measure.candidates(collective).items():
            x = torch.full((6 * n,), float(rank if collective in ("all_gather", "broadcast", "all_to_all") else 1))
            result = call(x)
            if not isinstance(result, torch.Tensor):
                continue  # torch's own writes to its argument or to an output that the candidate keeps
            if not torch.equal(result, expected.float()):
                wrong.append((collective, name))
    timings = measure.measure(measure.candidates("all_reduce"), sizes=[4, 1000], repeats=2)
    return wrong, [(timing.name, timing.nbytes, len(timing.seconds)) for timing in timings], timings


def test_candidates_do_what_they_are_named_for_and_all_ranks_agree_on_the_times():
    results = spmd.run(right_answers, ranks=3, show=False)
    for wrong, shape, timings in results:
        assert wrong == []
        names = ["torch", "tree", "direct", "ring", "halving"]
        assert shape == [(name, nbytes, 2) for nbytes in (0, 996) for name in names]  # whole chunks for three ranks
        assert timings == results[0][2]
        assert all(second > 0 for timing in timings for second in timing.seconds)


def unknown():
    measure.candidates("gather_all")


def test_an_unknown_collective_is_refused():
    with pytest.raises(spmd.RankError, match="nothing to measure for 'gather_all': choose one of all_reduce, reduce_"):
        spmd.run(unknown, ranks=1, show=False)


def test_the_table_shows_times_ratios_and_the_fit():
    timings = [
        Timing(name, nbytes, (seconds,) * 3)
        for nbytes, torchs, ring in ((1024, 1e-4, 2e-4), (16 * 2**20, 40e-3, 30e-3))
        for name, seconds in (("torch", torchs), ("tree", torchs * 2), ("ring", ring))
    ]
    text = table.table("all_reduce", 4, timings)
    assert "all_reduce on 4 ranks" in text
    assert "16 MB       40.000       80.000   2.00x       30.000   0.75x" in text
    # By hand: the tree takes 195.1 us + 4.76 ns a byte in 4 steps, the ring 198.2 us + 1.78 ns in 6. Equal at 1 KB.
    assert "tree     alpha 49 us" in text and "ring     alpha 33 us" in text and "R2 1.00" in text
    assert "the ring overtakes tree from 1 KB on" in text


def test_the_command_lists_and_refuses(capsys):
    assert command.main([]) == 0
    listed = capsys.readouterr().out
    assert "collectives" in listed and "spmd" in listed
    assert command.main(["nothing"]) == 2
    assert capsys.readouterr().err.startswith("There is no measurement 'nothing'. Choose one of: collectives, ")


def test_the_command_measures(capsys):
    command.main(["collectives", "--ranks", "2", "--sizes", "4KB", "64KB", "--repeats", "2", "--ops", "all_gather"])
    out = capsys.readouterr().out
    assert "all_gather on 2 ranks" in out and "64 KB" in out
