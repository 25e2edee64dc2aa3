"""`python -m course_lib.lab.progress`, which is `make progress`: the table of exercises, in the terminal."""

from course_lib.lab import progress

print(progress.show())
print(f"\nKept in {progress.path()}.")
