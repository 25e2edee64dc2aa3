"""What each rank did and when: recorded (`span`), summed up and drawn (`Timeline`).

Importing this imports nothing but the standard library, because every rank does it.
"""

from course_lib.timeline.spans import Span, drain, record, span
from course_lib.timeline.timeline import Timeline

__all__ = ["Span", "Timeline", "drain", "record", "span"]
