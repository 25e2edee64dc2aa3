"""The pattern of right and wrong cases is put into one sentence."""

import pytest

from course_lib.lab.scopes import Record, describe


def records(right, **by):
    """All of 2, 3, 4 ranks with sizes 2n, 2n + 1 and roots 0, 1; right where `right(record)` says so."""
    made = [Record(n, False, size, root) for n in (2, 3, 4) for size in (2 * n, 2 * n + 1) for root in (0, 1)]
    return [Record(r.n, right(r), r.size, r.root) for r in made]


@pytest.mark.parametrize(
    ("right", "name", "sentence"),
    [
        (lambda r: r.root == 0, "root_0_only", "Right for root 0, wrong for root 1."),
        (lambda r: r.size % r.n == 0, "dividing_sizes_only", "Right where the number of ranks divides the size, wrong"),
        (lambda r: r.n != 3, "powers_of_two_only", "Right on 2 and 4 ranks, wrong on 3"),
        (lambda r: r.n == 2, "some_numbers_of_ranks_only", "Right on 2 ranks, wrong on 3 and 4."),
        (lambda r: r.n == 4, "some_numbers_of_ranks_only", "Right on 4 ranks, wrong on 2 and 3."),
        (lambda r: r.n < 4, "some_numbers_of_ranks_only", "Right on 2 and 3 ranks, wrong on 4."),
        (lambda r: True, "", ""),
        (lambda r: False, "", ""),
        (lambda r: r.n == 3 and r.root == 1, "", ""),
    ],
)
def test_pattern(right, name, sentence):
    found = describe(records(right))
    assert found[0] == name and found[1].startswith(sentence)


def test_even_sizes():
    made = [Record(n, size % 2 == 0, size) for n in (2, 3) for size in (4, 5, 6, 7)]
    assert describe(made) == ("even_sizes_only", "Right on even sizes, wrong on odd ones.")


def test_one_kind_of_input():
    made = [Record(n, label != "int64", None, None, label) for n in (2, 3) for label in ("", "int64")]
    assert describe(made) == ("one_kind_of_input", "Right in all other cases.")


def test_a_size_that_happens_to_divide_says_nothing_when_others_that_divide_fail():
    made = [Record(2, True, 4), Record(2, False, 5), Record(4, False, 8)]
    assert describe(made)[0] == ""
