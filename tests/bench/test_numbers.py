"""What the measurements refuse before they start a rank: one sentence, and exit status 2."""

import pytest

from course_lib.bench import __main__ as bench
from course_lib.bench import _numbers


@pytest.mark.parametrize("cores, most", [(1, 8), (2, 8), (16, 64)])
def test_as_many_ranks_as_the_cores_can_run(monkeypatch, cores, most):
    monkeypatch.setattr(_numbers.facts, "cores", lambda: cores)
    assert _numbers.ranks(str(most)) == most
    with pytest.raises(_numbers.argparse.ArgumentTypeError) as caught:
        _numbers.ranks(str(most + 1))
    assert str(caught.value) == (
        f"{most + 1} ranks on {cores} core{'s' if cores > 1 else ''} would only wait for one another: up to {most} can "
        "be measured"
    )


@pytest.mark.parametrize(
    "argv, said",
    [
        ("ddp --ranks 2 9999", "argument --ranks: 9999 ranks on "),
        ("ddp --ranks -1", "argument --ranks: '-1' is not a whole number of 1 or more"),
        ("ddp --steps 2.5", "argument --steps: '2.5' is not a whole number of 1 or more"),
        ("collectives --ranks 9999", "argument --ranks: 9999 ranks on "),
        ("collectives --repeats 0", "argument --repeats: '0' is not a whole number of 1 or more"),
        ("collectives --sizes 4KB 1GBit", "argument --sizes: '1GBit' is not a size: write bytes, 4KB or 16MB"),
        ("collectives --sizes 0", "argument --sizes: '0' is not a size: write bytes, 4KB or 16MB"),
        ("spmd --times 0", "argument --times: '0' is not a whole number of 1 or more"),
    ],
)
def test_refused(argv, said, capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main(argv.split())
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
