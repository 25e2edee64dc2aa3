"""Lab 2c: experts, from the choice of a token to the balance of their load."""

from __future__ import annotations

from course_lib.lab.exercises.lab2c_balance import BALANCE_LOSS
from course_lib.lab.exercises.lab2c_bias import UPDATE_BIAS
from course_lib.lab.exercises.lab2c_biased import ROUTE_WITH_BIAS
from course_lib.lab.exercises.lab2c_bytes import EXCHANGE_BYTES
from course_lib.lab.exercises.lab2c_dispatch import DISPATCH_AND_COMBINE
from course_lib.lab.exercises.lab2c_route import ROUTE_WITH_CAPACITY

EXERCISES = [
    ROUTE_WITH_CAPACITY,
    DISPATCH_AND_COMBINE,
    EXCHANGE_BYTES,
    BALANCE_LOSS,
    ROUTE_WITH_BIAS,
    UPDATE_BIAS,
]
