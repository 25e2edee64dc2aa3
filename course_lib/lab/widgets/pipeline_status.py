"""What a view of the pipeline game shows, as plain data: lists, numbers and sentences, ready for JSON."""

from __future__ import annotations

from typing import Any

from course_lib.lab.widgets.pipeline_game import NEAR, Answer, Game, sentence
from course_lib.parallel.pipeline.actions import Action, Kind
from course_lib.parallel.pipeline.validate import held


def status(game: Game, answer: Answer) -> dict[str, Any]:
    """All of it. Times are in the level's units.

    rows, one for each rank: blocks (what is placed), gaps (when it idles, and why), next (what it could run now, each
    when it would start: of each stage and kind the lowest micro-batch), may (all that it could run), held, peak.
    end: where the axis of time ends. message: what the last move was answered with.
    """
    level, board = game.level, game.board
    found = game.simulation()
    rows = [_row(game, rank) for rank in range(level.n_ranks)]
    ends = [chip["end"] for row in rows for chip in row["next"]]
    return {
        "title": level.title,
        "task": level.task,
        "conditions": level.conditions(),
        "micro_batches": level.n_micro_batches,
        "cap": level.cap,
        "par": level.par,
        "rows": rows,
        "end": max(level.par, found.makespan, *ends, 0.0),
        "path": [str(action) for action in found.critical_path],
        "facts": _facts(game),
        "verdict": game.verdict(),
        "compared": game.compared() if board.full else "",
        "message": {"text": answer.text, "kind": answer.kind},
        "text": game.save(),
        "full": board.full,
    }


def _row(game: Game, rank: int) -> dict[str, Any]:
    level, board, found = game.level, game.board, game.simulation()
    stages = [stage for stage, owner in enumerate(level.placement) if owner == rank]
    costs = found.costs
    critical = set(found.critical_path)

    def block(action: Action, start: float, **more) -> dict[str, Any]:
        return {
            "name": str(action),
            "kind": action.kind.value,
            "stage": action.stage,
            "micro_batch": action.micro_batch,
            "further": action.stage != stages[0],
            "start": start,
            "end": start + costs.of(action),
            **more,
        }

    possible = board.possible(rank)
    lowest: dict[tuple[int, Kind], Action] = {}
    for action in possible:
        lowest.setdefault((action.stage, action.kind), action)
    order = {kind: place for place, kind in enumerate(Kind)}
    chips = sorted(lowest.values(), key=lambda action: (action.stage, order[action.kind]))
    gaps = [gap for gap in found.gaps if gap.rank == rank and gap.end - gap.start > NEAR]
    return {
        "rank": rank,
        "stages": stages,
        "blocks": [block(a, found.start[a], critical=a in critical) for a in board.orders[rank]],
        "gaps": [
            {"start": gap.start, "end": gap.end, "reason": sentence(gap.reason)}
            for gap in gaps
            if gap.before or board.full  # what comes at the end of an unfinished row is not known yet
        ],
        "next": [block(action, game.start_of(rank, action)) for action in chips],
        "may": [str(action) for action in possible],
        "held": board.held(rank),
        "peak": max(held(tuple(board.orders[rank])), default=0),
    }


def _facts(game: Game) -> list[dict[str, str]]:
    found, level = game.simulation(), game.level
    placed, wanted = game.progress()
    slowest = max(range(level.n_ranks), key=lambda rank: found.bubbles[rank])
    path = found.critical_path
    ranks = [level.placement[action.stage] for action in path]
    crossings = sum(a != b for a, b in zip(ranks, ranks[1:], strict=False))
    return [
        {"name": "placed", "value": f"{placed} of {wanted}", "note": "forwards and backwards"},
        {"name": "time", "value": f"{found.makespan:g}", "note": f"par {level.par:g}, by {level.par_by}"},
        {"name": "bubble", "value": f"{found.bubble:.0%}", "note": f"most on rank {slowest}" if found.makespan else ""},
        {
            "name": "critical path",
            "value": f"{len(path)} action{'s' * (len(path) != 1)}",
            "note": f"to another rank: {crossings} times",
        },
    ]
