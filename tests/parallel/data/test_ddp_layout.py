"""Arithmetic of buckets: what goes into which, for any sizes, dtypes and order."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course_lib.parallel.data.buckets import dense_strides, make_bucket
from course_lib.parallel.data.layout import arrange
from course_lib.parallel.data.simple import pack_buckets

sizes = st.lists(st.integers(0, 50), max_size=30)
caps = st.integers(1, 120)


@given(sizes, caps, caps)
def test_buckets_are_full_and_no_fuller_than_needed(sizes, cap, first_cap):
    packed = pack_buckets(sizes, cap, first_cap)
    assert [index for bucket in packed for index in bucket] == list(range(len(sizes)))[::-1]
    for place, bucket in enumerate(packed):
        wanted = cap if place else first_cap
        assert bucket
        assert sum(sizes[i] for i in bucket[:-1]) < wanted
        if place < len(packed) - 1:
            assert sum(sizes[i] for i in bucket) >= wanted


@given(st.data(), caps, caps)
def test_each_dtype_is_packed_for_itself_and_sent_when_its_last_gradient_is_expected(data, cap, first_cap):
    kinds = st.tuples(st.integers(0, 20), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    parameters = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n, dtype in data.draw(st.lists(kinds, min_size=1))]
    ready = data.draw(st.permutations(range(len(parameters))))
    place = {id(parameters[index]): position for position, index in enumerate(ready)}
    buckets = arrange(parameters, ready, cap, first_cap)
    everyone = [p for bucket in buckets for p in bucket.parameters]
    assert sorted(map(id, everyone)) == sorted(map(id, parameters))
    last = [max(place[id(p)] for p in bucket.parameters) for bucket in buckets]
    assert last == sorted(last)
    for dtype in {p.dtype for p in parameters}:
        own = [bucket for bucket in buckets if bucket.flat.dtype == dtype]
        assert all(p.dtype == dtype for bucket in own for p in bucket.parameters)
        expected = [p for index in ready if (p := parameters[index]).dtype == dtype]
        assert [id(p) for bucket in own for p in bucket.parameters] == [id(p) for p in expected]
        nbytes = [p.numel() * p.element_size() for p in expected[::-1]]
        assert [len(bucket.parameters) for bucket in own] == [len(b) for b in pack_buckets(nbytes, cap, first_cap)]


def test_gradients_are_views_side_by_side_in_the_parameters_memory_format():
    parameters = [
        nn.Parameter(torch.zeros(2, 3)),
        nn.Parameter(torch.zeros(())),
        nn.Parameter(torch.zeros(0, 2)),
        nn.Parameter(torch.zeros(2, 4, 3, 3).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.zeros(4, 5).t()),
        nn.Parameter(torch.zeros(4, 10)[:, ::2]),
    ]
    bucket = make_bucket(parameters)
    bucket.flat.copy_(torch.arange(len(bucket.flat)))
    assert not bucket.flat.requires_grad
    start = 0
    for p in parameters:
        assert p.grad.shape == p.shape and p.grad.stride() == dense_strides(p)
        assert sorted(p.grad.flatten().tolist()) == list(range(start, start + p.numel()))
        start += p.numel()
    assert parameters[3].grad.stride() == parameters[3].stride()
    assert parameters[5].grad.is_contiguous()  # its parameter has gaps, which a bucket has not
