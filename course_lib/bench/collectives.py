"""Our collectives against torch's, size by size, on the same ranks; alpha and beta.

Times are medians over repeats in which all candidates took turns, so the ratios hold on a busy machine too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby

from course_lib import spmd
from course_lib.bench._numbers import at_least_1, ranks, say
from course_lib.collectives import cost, front, measure
from course_lib.collectives.measure import KB, MB, Timing

OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
SIZES = {"KB": KB, "MB": MB}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m course_lib.bench collectives", description=__doc__)
    parser.add_argument("--ranks", type=ranks, nargs="+", default=[2, 4], metavar="N", help="default: 2 4")
    parser.add_argument("--ops", nargs="+", default=["all_reduce"], choices=OPS, metavar="OP", help=", ".join(OPS))
    parser.add_argument("--sizes", type=_bytes, nargs="+", default=measure.SIZES, metavar="SIZE", help="4KB 16MB ...")
    parser.add_argument("--repeats", type=at_least_1, help="of each call; default: 50 for small tensors, down to 5")
    options = parser.parse_args(argv)
    for n in options.ranks:
        for op in options.ops:
            say(f"{op} on {n} ranks")
            timings = spmd.run(_on_a_rank, op, options.sizes, options.repeats, ranks=n, timeout=600, show=False)[0]
            print(table(op, n, timings), flush=True)


def _on_a_rank(op: str, sizes: Sequence[int], repeats: int | None) -> list[Timing]:
    return measure.measure(measure.candidates(op), sizes, repeats=repeats)


def table(op: str, n: int, timings: Sequence[Timing]) -> str:
    """One line for each size: milliseconds of each candidate, its time over torch's, the best bandwidths; the fit."""
    names = list(dict.fromkeys(timing.name for timing in timings))
    head = f"{'size':>8}" + "".join(f"{name:>10} ms" + (" " * 8 if name != "torch" else "") for name in names)
    lines = [f"\n{op} on {n} ranks (x: time over torch's; busbw in GB/s)", head + f"{'busbw torch':>13}{'ours':>7}"]
    for nbytes, row in groupby(timings, lambda timing: timing.nbytes):
        torchs, *ours = row
        line = f"{_size(nbytes):>8}{torchs.median * 1e3:13.3f}"
        for timing in ours:
            line += f"{timing.median * 1e3:13.3f} {timing.ratio(torchs):6.2f}x"
        best = min(ours, key=lambda timing: timing.median)
        lines.append(line + f"{torchs.busbw(op, n) / 1e9:13.2f}{best.busbw(op, n) / 1e9:7.2f}")
    return "\n".join(lines + (fitted(op, n, timings) if n > 1 else []))


def fitted(op: str, n: int, timings: Sequence[Timing]) -> list[str]:
    """alpha and beta of each algorithm, and from which size on the ring's fitted line is below the others'.

    If messages were all that costs, every algorithm would show the same alpha and beta. Ranks that share cores show
    more of both where a rank has more to do at once.
    """
    lines, fits = [], {}
    for name in dict.fromkeys(timing.name for timing in timings):
        own = [timing for timing in timings if timing.name == name]
        if (op, name) in cost.COSTS and len(own) > 1:
            fits[name] = cost.fit([(cost.cost(op, name, n), timing.nbytes, timing.median) for timing in own])
            lines.append(f"  {name:8} {fits[name]}; R2 {fits[name].r2:.2f}")
    for name in sorted(fits.keys() - {"ring"}) if "ring" in fits else ():
        lines.append(f"  the ring overtakes {name} {_overtakes(op, n, fits['ring'], name, fits[name])}")
    if op in ("all_reduce", "reduce_scatter", "all_gather"):
        small, large = ("tree", "direct") if op == "all_reduce" else ("halving", "ring")
        lines.append(f"  auto takes {small} up to {_size(front.SMALL_BYTES)}, then {large}")
    return lines


def _overtakes(op: str, n: int, ring: cost.Fit, name: str, other: cost.Fit) -> str:
    """Where the two fitted lines cross, in words."""
    ring_cost, other_cost = cost.cost(op, "ring", n), cost.cost(op, name, n)
    ahead = ring.seconds(ring_cost, 0) - other.seconds(other_cost, 0)  # at size 0
    gain = other_cost.volume * other.beta - ring_cost.volume * ring.beta  # for each byte
    if gain <= 0:
        return "at no size"
    return f"from {_size(round(ahead / gain))} on" if ahead > 0 else "at every size"


def _size(nbytes: int) -> str:
    for unit, size in reversed(SIZES.items()):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} B"


def _bytes(text: str) -> int:
    unit = next((unit for unit in SIZES if text.upper().endswith(unit)), "")
    try:
        nbytes = int(float(text.upper().removesuffix(unit)) * SIZES.get(unit, 1))
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write bytes, 4KB or 16MB")
    return nbytes
