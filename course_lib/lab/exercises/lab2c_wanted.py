"""Lab 2c: an answer that returned something else altogether, in words."""

from __future__ import annotations

from torch import Tensor

from course_lib.lab.evidence import Evidence
from course_lib.lab.signatures.words import Signature, kind, signature, who


def returns(wanted: str) -> Signature:
    """A signature for exercises whose `call` puts what was returned into a dict, if it is what was wanted."""

    @signature
    def something_else(e: Evidence) -> str | None:
        other = [r for r in e.wrong if not isinstance(e.observed[r], dict)]
        if e.where or not other:
            return None
        value = e.observed[other[0]]
        several = isinstance(value, tuple | list) and any(isinstance(x, Tensor) for x in value)
        have = f"{len(value)} values" if several else kind(value)
        missing = " (is a `return` missing?)" if value is None else ""
        return f"{who(e, other[0])} returned {have}{missing}. Wanted: {wanted}"

    return something_else
