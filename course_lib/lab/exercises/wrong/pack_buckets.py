"""Wrong answers to `pack_buckets`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def pack(order: Iterable[int], sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    bucket, held = [], 0
    for index in order:
        bucket.append(index)
        held += sizes[index]
        if held >= (cap if buckets else first_cap):
            buckets.append(bucket)
            bucket, held = [], 0
    return [*buckets, bucket] if bucket else buckets


def as_registered(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return pack(range(len(sizes)), sizes, cap, first_cap)


def without_first_cap(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return pack(reversed(range(len(sizes))), sizes, cap, cap)


def all_of_first_cap(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return pack(reversed(range(len(sizes))), sizes, first_cap, first_cap)


def last_bucket_lost(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    bucket, held = [], 0
    for index in reversed(range(len(sizes))):
        bucket.append(index)
        held += sizes[index]
        if held >= (cap if buckets else first_cap):
            buckets.append(bucket)
            bucket, held = [], 0
    return buckets


def over_the_cap(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    bucket, held = [], 0
    for index in reversed(range(len(sizes))):
        bucket.append(index)
        held += sizes[index]
        if held > (cap if buckets else first_cap):
            buckets.append(bucket)
            bucket, held = [], 0
    return [*buckets, bucket] if bucket else buckets


def never_above_the_cap(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    bucket, held = [], 0
    for index in reversed(range(len(sizes))):
        if bucket and held + sizes[index] > (cap if buckets else first_cap):
            buckets.append(bucket)
            bucket, held = [], 0
        bucket.append(index)
        held += sizes[index]
    return [*buckets, bucket] if bucket else buckets


def never_starting_anew(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    bucket, held = [], 0
    for index in reversed(range(len(sizes))):
        bucket.append(index)
        held += sizes[index]
        if held >= (cap if buckets else first_cap):
            buckets.append(bucket)
            bucket = []
    return [*buckets, bucket] if bucket else buckets


def places_in_reverse(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return pack(range(len(sizes)), list(reversed(sizes)), cap, first_cap)


def buckets_reversed(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return pack(reversed(range(len(sizes))), sizes, cap, first_cap)[::-1]


def within_reversed(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return [sorted(bucket) for bucket in pack(reversed(range(len(sizes))), sizes, cap, first_cap)]


def with_an_empty_last(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    buckets = pack(reversed(range(len(sizes))), sizes, cap, first_cap)
    full = bool(buckets) and sum(sizes[i] for i in buckets[-1]) >= (cap if len(buckets) > 1 else first_cap)
    return [*buckets, []] if full else buckets


def sizes_in_place_of_indices(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return [[sizes[i] for i in bucket] for bucket in pack(reversed(range(len(sizes))), sizes, cap, first_cap)]


def counting_gradients(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return pack(reversed(range(len(sizes))), [1] * len(sizes), cap, first_cap)


def one_bucket_cleared(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    bucket: list[int] = []
    held = 0
    for index in reversed(range(len(sizes))):
        bucket.append(index)
        held += sizes[index]
        if held >= (cap if buckets else first_cap):
            buckets.append(bucket)
            bucket.clear()
            held = 0
    return [*buckets, bucket] if bucket else buckets


def emptying_sizes(sizes: list[int], cap: int, first_cap: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    bucket, held = [], 0
    while sizes:
        held += sizes.pop()
        bucket.append(len(sizes))
        if held >= (cap if buckets else first_cap):
            buckets.append(bucket)
            bucket, held = [], 0
    return [*buckets, bucket] if bucket else buckets


def as_registered_without_first_cap(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return pack(range(len(sizes)), sizes, cap, cap)


def as_registered_and_last_lost(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return as_registered(sizes, cap, first_cap)[:-1]


def without_first_cap_within_reversed(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return within_reversed(sizes, cap, cap)


def each_alone(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return [[index] for index in reversed(range(len(sizes)))]


def counted_from_one(sizes: Sequence[int], cap: int, first_cap: int) -> list[list[int]]:
    return [[index + 1 for index in bucket] for bucket in pack(reversed(range(len(sizes))), sizes, cap, first_cap)]


def as_a_dictionary_of_counts(sizes: Sequence[int], cap: int, first_cap: int) -> dict[int, int]:
    buckets = pack(reversed(range(len(sizes))), sizes, cap, first_cap)
    return {number: len(bucket) for number, bucket in enumerate(buckets)}
