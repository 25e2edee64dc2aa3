"""The table of exercises: one row each, grouped by lab, as text and as HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from course_lib.lab import show

if TYPE_CHECKING:
    from course_lib.lab.exercise import Exercise

HEAD = ("exercise", "", "state", "attempts", "hints", "best time")


@dataclass
class Table:
    """exercises: in order. entries: name -> what is kept about it. figures: name -> value, unit and lab of each."""

    exercises: list[Exercise]
    entries: dict[str, dict[str, Any]]
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def rows(self, lab: str) -> list[tuple[str, ...]]:
        """The rows of one lab, as text."""
        rows = []
        for exercise in (e for e in self.exercises if e.lab == lab):
            entry = self.entries.get(exercise.name, {})
            seconds = entry.get("seconds")
            rows.append(
                (
                    exercise.name,
                    show.dots(exercise.difficulty),
                    entry.get("state", "not attempted"),
                    str(entry.get("attempts", 0)),
                    f"{entry.get('hints', 0)} of {len(exercise.hints) + 1}",
                    show.seconds(seconds) if seconds is not None else "",
                )
            )
        return rows

    def labs(self) -> list[str]:
        return list(dict.fromkeys(e.lab for e in self.exercises))

    def passed(self, lab: str) -> str:
        """ "2 of 4 passed"."""
        states = [row[2] for row in self.rows(lab)]
        return f"{states.count('passed')} of {len(states)} passed"

    def measured(self, lab: str) -> list[str]:
        """The figures measured in one lab: "alpha: 52 µs"."""
        from course_lib.lab.machine import readable  # which stands on this package

        figures = {name: f for name, f in self.figures.items() if f.get("lab") == lab}
        return [f"{name}: {readable(f['value'], f['unit'])}" for name, f in figures.items()]

    def __str__(self) -> str:
        everything = [HEAD] + [row for lab in self.labs() for row in self.rows(lab)]
        widths = [max(len(row[i]) for row in everything) for i in range(len(HEAD))]

        def line(row: tuple[str, ...]) -> str:
            return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

        lines = []
        for lab in self.labs():
            lines += [f"{lab}: {self.passed(lab)}", "  " + line(HEAD)]
            lines += ["  " + line(row) for row in self.rows(lab)]
            lines += [f"  {figure}" for figure in self.measured(lab)] + [""]
        return "\n".join(lines).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = []
        for lab in self.labs():
            head = "".join(f"<th style='text-align:left'>{show.escape(h)}</th>" for h in HEAD)
            body = "".join(
                "<tr>" + "".join(f"<td style='text-align:left'>{show.escape(c)}</td>" for c in row) + "</tr>"
                for row in self.rows(lab)
            )
            parts.append(f"<b>{show.escape(lab)}</b>: {self.passed(lab)}<table><tr>{head}</tr>{body}</table>")
            parts += [f"<div>{show.escape(figure)}</div>" for figure in self.measured(lab)]
        return "".join(parts)
