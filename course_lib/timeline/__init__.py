"""What each rank did and when: recorded (`span`), summed up and drawn (`Timeline`)."""

from course_lib.timeline.spans import Span, drain, record, span

__all__ = ["Span", "drain", "record", "span"]
