"""Lab 1: right answers that are written otherwise than the library's pass, too."""

import itertools
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from course_lib.lab import checking, exercise, trial
from course_lib.lab.checking import PASSED, examine
from course_lib.parallel.data.buckets import when_gradients_are_there
from course_lib.training.clip import clip_grad_norm

RIGHT = {}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine makes no answer wrong."""
    monkeypatch.setattr(trial, "PATIENCE_S", 10)


def right(name):
    """Collects an answer to the exercise of that name."""

    def collect(answer):
        RIGHT[f"{name}: {answer.__name__}"] = (name, answer)
        return answer

    return collect


# Average gradients


@right("average_gradients")
def in_one_vector(parameters, group=None):
    trained = [p for p in parameters if p.requires_grad]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    flat = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size(group)
    dist.all_reduce(flat, group=group)
    for p, part in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad = part.view_as(p) if p.grad is None else p.grad.copy_(part.view_as(p))


@right("average_gradients")
def all_in_flight(parameters, group=None):
    works, n = [], dist.get_world_size(group)
    for p in parameters:
        if p.requires_grad:
            p.grad = p.grad if p.grad is not None else torch.zeros_like(p)
            p.grad.div_(n)
            works.append(dist.all_reduce(p.grad, group=group, async_op=True))
    for work in works:
        work.wait()


@right("average_gradients")
def gathered(parameters, group=None):
    for p in parameters:
        if p.requires_grad:
            mine = torch.zeros_like(p) if p.grad is None else p.grad
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, mine, group=group)
            mine.copy_(torch.stack(parts).mean(0))
            p.grad = mine


@right("average_gradients")
def by_torchs_average(parameters, group=None):
    for p in parameters:
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=group)


@right("average_gradients")
def by_torchs_average_all_in_flight(parameters, group=None):
    trained = [p for p in parameters if p.requires_grad]
    for p in trained:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    works = [dist.all_reduce(p.grad, dist.ReduceOp.AVG, group=group, async_op=True) for p in trained]
    for work in works:
        work.wait()


# The loss of uneven batches


@right("share_of_mean")
def by_the_mean_count(losses, valid, group=None):
    count = valid.float().sum()
    dist.all_reduce(count, group=group)
    return (losses * valid).sum() / (count.clamp(min=1) / dist.get_world_size(group))


@right("share_of_mean")
def by_python_numbers(losses, valid, group=None):
    counts = [None] * dist.get_world_size(group)
    dist.all_gather_object(counts, int(valid.sum()), group=group)
    return losses.masked_fill(~valid, 0.0).sum() * (len(counts) / max(sum(counts), 1))


@right("share_of_mean")
def by_its_weight(losses, valid, group=None):
    counts = valid.sum()
    dist.all_reduce(counts, group=group)
    weight = valid.to(losses.dtype) * dist.get_world_size(group) / counts.clamp(min=1)
    return losses @ weight


# Buckets


@right("pack_buckets")
def in_tuples(sizes, cap, first_cap):
    buckets, limit, left = [], first_cap, list(enumerate(sizes))
    while left:
        bucket, held = (), 0
        while left and held < limit:
            index, size = left.pop()
            bucket, held = (*bucket, index), held + size
        buckets.append(bucket)
        limit = cap
    return tuple(buckets)


@right("backward_with_overlap")
def divided_before(loss, buckets, group=None):
    missing, works = [len(bucket.parameters) for bucket in buckets], {}

    def there(index):
        missing[index] -= 1
        for i, bucket in enumerate(buckets):
            if missing[i]:
                break
            if i not in works:
                bucket.flat.div_(dist.get_world_size(group))
                works[i] = dist.all_reduce(bucket.flat, group=group, async_op=True)

    with when_gradients_are_there(buckets, there):
        loss.backward()
    for work in works.values():
        work.wait()


@right("backward_with_overlap")
def by_futures(loss, buckets, group=None):
    missing, futures = [len(bucket.parameters) for bucket in buckets], []

    def there(index):
        missing[index] -= 1
        while len(futures) < len(buckets) and missing[len(futures)] <= 0:
            work = dist.all_reduce(buckets[len(futures)].flat, group=group, async_op=True)
            futures.append(work.get_future())

    with when_gradients_are_there(buckets, there):
        loss.backward()
    torch.futures.wait_all(futures)
    for p in (p for bucket in buckets for p in bucket.parameters):
        p.grad /= dist.get_world_size(group)


@right("backward_with_overlap")
def by_torchs_average_of_buckets(loss, buckets, group=None):
    missing, works = [len(bucket.parameters) for bucket in buckets], []

    def there(index):
        missing[index] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            flat = buckets[len(works)].flat
            works.append(dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=group, async_op=True))

    with when_gradients_are_there(buckets, there):
        loss.backward()
    for work in works:
        work.wait()


# Windows


@right("train_in_windows")
def set_back_before_a_window(model, optimizer, micro_batches, window, loss_of):
    for start in range(0, len(micro_batches), window):
        optimizer.zero_grad()
        taken = micro_batches[start : start + window]
        for left, micro_batch in zip(range(len(taken) - 1, -1, -1), taken, strict=True):
            with model.no_sync() if left else nullcontext():
                loss_of(model, micro_batch).backward(gradient=torch.tensor(1 / len(taken), dtype=torch.float64))
        optimizer.step()


@right("train_in_windows")
def by_number(model, optimizer, micro_batches, window, loss_of):
    count = len(micro_batches)
    for i, micro_batch in enumerate(micro_batches):
        last = i % window == window - 1 or i == count - 1
        size = window if i < count // window * window else count % window
        with ExitStack() as stack:
            if not last:
                stack.enter_context(model.no_sync())
            loss_of(model, micro_batch).div(size).backward()
        if last:
            optimizer.step()
            model.zero_grad()


@right("train_in_windows")
def gradients_divided(model, optimizer, micro_batches, window, loss_of):
    for start in range(0, len(micro_batches), window):
        *early, last = micro_batches[start : start + window]
        with model.no_sync():
            for micro_batch in early:
                loss_of(model, micro_batch).backward()
        loss_of(model, last).backward()
        for p in model.parameters():
            p.grad /= len(early) + 1
        optimizer.step()
        optimizer.zero_grad()


# The order of samples


@right("epoch_share")
def by_a_cycle(samples, epoch, seed, rank, n):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch))
    return torch.tensor(list(itertools.islice(itertools.cycle(order), rank, -(-samples // n) * n, n)))


@right("epoch_share")
def place_by_place(samples, epoch, seed, rank, n):
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    order = torch.randperm(samples, generator=generator).tolist()
    return [order[(rank + n * i) % samples] for i in range((samples + n - 1) // n)]


# Mixed precision


@right("scaled_step")
def by_the_norm(parameters, optimizer, scale, max_norm, group=None):
    torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1 / scale.value)
    norm = clip_grad_norm(parameters, max_norm)
    bad = (~norm.isfinite()).int()
    dist.all_reduce(bad, group=group)
    if bad == 0:
        optimizer.step()
    scale.update(bool(bad > 0))
    return (bad == 0).int()


@right("scaled_step")
def by_objects(parameters, optimizer, scale, max_norm, group=None):
    trained = [p for p in parameters if p.grad is not None]
    mine = any(bool((p.grad.isnan() | p.grad.isinf()).any()) for p in trained)
    verdicts = [None] * dist.get_world_size(group)
    dist.all_gather_object(verdicts, mine, group=group)
    if not any(verdicts):
        for p in trained:
            p.grad = p.grad / scale.value
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
    scale.update(any(verdicts))
    return 0 if any(verdicts) else 1


# Compression


@right("bf16_compress")
def divided_after(flat, group=None):
    half = flat.bfloat16()
    work = dist.all_reduce(half, group=group, async_op=True)
    return lambda: work.wait() and flat.copy_(half / dist.get_world_size(group))


@right("bf16_compress")
def divided_in_full_precision(flat, group=None):
    half = flat.to(torch.bfloat16)
    future = dist.all_reduce(half, group=group, async_op=True).get_future()

    def finish():
        future.wait()
        torch.div(half.float(), dist.get_world_size(group), out=flat)

    return finish


@right("bf16_compress")
def by_torchs_average_of_half(flat, group=None):
    half = flat.to(torch.bfloat16)
    work = dist.all_reduce(half, op=dist.ReduceOp.AVG, group=group, async_op=True)

    def finish():
        work.wait()
        flat.copy_(half)

    return finish


@right("power_sgd_round")
def by_gram_schmidt(gradient, error, q, group=None):
    gradient += error
    p = gradient @ q / dist.get_world_size(group)
    dist.all_reduce(p, group=group)
    for i in range(p.shape[1]):
        for j in range(i):
            p[:, i] -= (p[:, i] @ p[:, j]) * p[:, j]
        p[:, i] /= p[:, i].norm()
    q = gradient.T @ p / dist.get_world_size(group)
    dist.all_reduce(q, group=group)
    return p @ q.T, gradient - p @ q.T, q


@right("power_sgd_round")
def by_singular_vectors(gradient, error, q, group=None):
    wanted = torch.add(gradient, error)
    p = torch.mm(wanted, q)
    dist.all_reduce(p, group=group)
    p = torch.linalg.svd(p, full_matrices=False).U
    q = torch.mm(wanted.t(), p).div_(dist.get_world_size(group))
    dist.all_reduce(q, group=group)
    approximation = torch.mm(p, q.t())
    return [approximation, torch.sub(wanted, approximation, out=error), q]


def test_what_a_learner_sees_of_a_right_overlap(monkeypatch):
    monkeypatch.setattr(checking, "GAIN", 0)  # no time counts as a gain
    one = exercise.find("backward_with_overlap")
    verdict = examine(replace(one, worlds=(2, 3), cases=one.cases[:1]), one.reference)
    assert verdict.state == PASSED and verdict.figure is not None, verdict.message
    told = verdict.message.text
    assert " on 2 ranks: " in told and "all after backward" in told
    assert "Each rank handed 6.3 MB to all_reduce: the least possible. No time is gained: here backward" in told


def test_nothing_is_explained_where_time_is_gained(monkeypatch):
    monkeypatch.setattr(checking, "GAIN", 1e9)
    one = exercise.find("bf16_compress")
    told = examine(replace(one, worlds=(2,), cases=one.cases[:1]), one.reference).message.text
    assert told.startswith("Passed") and told.endswith("the least possible.")


@pytest.mark.parametrize("case", RIGHT.values(), ids=list(RIGHT))
def test_a_right_answer_written_otherwise_passes(case):
    name, answer = case
    one = exercise.find(name)
    few = (2, 3) if one.on_ranks else (1,)
    verdict = examine(replace(one, worlds=few, timing=None, timeline=False, overlap=False), answer)
    assert verdict.state == PASSED, verdict.message
