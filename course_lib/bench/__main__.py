"""`python -m course_lib.bench NAME [options]` runs one measurement; without a name it lists them.

Every module beside this one is a measurement: `main(argv)`, and a docstring whose first line says what it measures.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path


def names() -> dict[str, str]:
    """The measurements there are, and what each measures."""
    files = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("_"))
    texts = {path.stem: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in files}
    return {name: text.partition("\n")[0].removeprefix(f"{name}: ") for name, text in texts.items()}


def main(argv: list[str]) -> int | None:
    """Returns the exit status."""
    known = names()
    if not argv or argv[0] in ("-h", "--help"):
        print("python -m course_lib.bench NAME [-h]\n")
        print("\n".join(f"  {name:14}{what}" for name, what in known.items()))
        return 0
    if argv[0] not in known:
        print(f"There is no measurement {argv[0]!r}. Choose one of: {', '.join(known)}.", file=sys.stderr)
        return 2
    return importlib.import_module(f"course_lib.bench.{argv[0]}").main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
