"""Wrong answers to `backward_with_overlap`, each with one mistake. The exercise says how each must be explained."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from course_lib.parallel.data.buckets import Bucket, when_gradients_are_there

Group = dist.ProcessGroup | None


def counting(buckets: Sequence[Bucket]) -> list[int]:
    return [len(bucket.parameters) for bucket in buckets]


def finish(buckets: Sequence[Bucket], works: list[dist.Work], group: Group) -> None:
    for bucket, work in zip(buckets, works, strict=False):
        work.wait()
        bucket.flat /= dist.get_world_size(group)


def after_backward(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    loss.backward()
    works = [dist.all_reduce(bucket.flat, group=group, async_op=True) for bucket in buckets]
    finish(buckets, works, group)


def waiting_in_the_hook(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, sent = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(sent) < len(buckets) and missing[len(sent)] == 0:
            flat = buckets[len(sent)].flat
            sent.append(flat)
            work = dist.all_reduce(flat, group=group, async_op=True)
            work.wait()
            flat /= dist.get_world_size(group)

    with when_gradients_are_there(buckets, there):
        loss.backward()


def not_asynchronous(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, sent = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(sent) < len(buckets) and missing[len(sent)] == 0:
            flat = buckets[len(sent)].flat
            sent.append(flat)
            dist.all_reduce(flat, group=group)

    with when_gradients_are_there(buckets, there):
        loss.backward()
    for flat in sent:
        flat /= dist.get_world_size(group)


def as_ready(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), {}

    def there(index: int) -> None:
        missing[index] -= 1
        if missing[index] == 0:
            works[index] = dist.all_reduce(buckets[index].flat, group=group, async_op=True)

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, [works[i] for i in range(len(buckets))], group)


def as_ready_zipped(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        if missing[index] == 0:
            works.append(dist.all_reduce(buckets[index].flat, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, works, group)


def one_at_a_time(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        if len(works) < len(buckets) and missing[len(works)] == 0:
            works.append(dist.all_reduce(buckets[len(works)].flat, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, works, group)


def last_never_sent(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(works) < len(buckets) - 1 and missing[len(works)] == 0:
            works.append(dist.all_reduce(buckets[len(works)].flat, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, works, group)


def last_never_waited_for(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            works.append(dist.all_reduce(buckets[len(works)].flat, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, works[:-1], group)


def never_waiting(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            bucket = buckets[len(works)]
            bucket.flat /= dist.get_world_size(group)
            works.append(dist.all_reduce(bucket.flat, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()


def at_the_first_gradient(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    works: list[dist.Work] = []

    def there(index: int) -> None:
        if index == len(works):
            works.append(dist.all_reduce(buckets[index].flat, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, works, group)


def at_the_first_gradient_at_once(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    works: list[dist.Work] = []

    def there(index: int) -> None:
        if index == len(works):
            works.append(dist.all_reduce(buckets[index].flat, group=group, async_op=True))
            works[-1].wait()

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, works, group)


def each_gradient_again(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    works: list[dist.Work] = []

    def there(index: int) -> None:
        works.append(dist.all_reduce(buckets[index].flat, group=group, async_op=True))
        works[-1].wait()

    with when_gradients_are_there(buckets, there):
        loss.backward()
    for bucket in buckets:
        bucket.flat /= dist.get_world_size(group)


def sums(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            works.append(dist.all_reduce(buckets[len(works)].flat, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    for work in works:
        work.wait()


def dividing_at_once(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            bucket = buckets[len(works)]
            works.append(dist.all_reduce(bucket.flat, group=group, async_op=True))
            bucket.flat /= dist.get_world_size(group)

    with when_gradients_are_there(buckets, there):
        loss.backward()
    for work in works:
        work.wait()


def without_group(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            works.append(dist.all_reduce(buckets[len(works)].flat, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, works, group)


def gradient_by_gradient(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, sent, works = counting(buckets), [], []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(sent) < len(buckets) and missing[len(sent)] == 0:
            bucket = buckets[len(sent)]
            sent.append(bucket)
            works.extend(dist.all_reduce(p.grad, group=group, async_op=True) for p in bucket.parameters)

    with when_gradients_are_there(buckets, there):
        loss.backward()
    for work in works:
        work.wait()
    for bucket in sent:
        bucket.flat /= dist.get_world_size(group)


def mean_in_a_copy(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []
    copies = []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            copies.append(buckets[len(works)].flat / dist.get_world_size(group))
            works.append(dist.all_reduce(copies[-1], group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    for work in works:
        work.wait()


def without_backward(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    works = [dist.all_reduce(bucket.flat, group=group, async_op=True) for bucket in buckets]
    finish(buckets, works, group)


def waiting_for_the_one_before(loss: Tensor, buckets: Sequence[Bucket], group: Group = None) -> None:
    missing, works = counting(buckets), []

    def there(index: int) -> None:
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            if works:
                works[-1].wait()
            works.append(dist.all_reduce(buckets[len(works)].flat, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    finish(buckets, works, group)
