"""Lab 2c: experts, from the choice of a token to the balance of their load."""

from __future__ import annotations

from course_lib.lab.exercises.lab2c_balance import BALANCE_LOSS
from course_lib.lab.exercises.lab2c_dispatch import DISPATCH_AND_COMBINE
from course_lib.lab.exercises.lab2c_route import ROUTE_WITH_CAPACITY

EXERCISES = [ROUTE_WITH_CAPACITY, DISPATCH_AND_COMBINE, BALANCE_LOSS]
