# %% [markdown]
# # Lab 1: Data parallel
#
# **You learn** what must be equal on all ranks and what must differ; what exactly is averaged; how the exchange hides
# behind backward; what accumulation, the order of the data and mixed precision have to do with it. You build the parts
# of DistributedDataParallel (**DDP**) and train a GPT on real text.
#
# **You need** Lab 0. No GPU. **Time**: about three hours, 7 exercises and 2 more as a bonus. Numbers in the text are
# for 4 ranks.

# %% tags=["nbval-ignore-output"]
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from course_lib import lab, spmd
from course_lib.lab import plots
from course_lib.models import GPT, GPTConfig, parameter_count
from course_lib.parallel.data import DistributedDataParallel, PowerSGD, bf16
from course_lib.parallel.data.buckets import Bucket, make_bucket, when_gradients_are_there
from course_lib.timeline import span, spans
from course_lib.training.clip import clip_grad_norm
from course_lib.training.data import Bytes, Loader, Packed, corpus, stream_of
from course_lib.training.loss import token_losses
from course_lib.training.precision import LossScale
from course_lib.training.recompute import recompute, saved_bytes
from course_lib.training.schedule import set_lr

lab.start("lab1")
RANKS = lab.ranks()
PAIR = min(2, RANKS)  # for what shows on two ranks already

# %% [markdown]
# ## 1.1 What must be equal, and what must differ
#
# **Data parallel** training: every rank holds the whole model and computes gradients from its own part of each batch.
# The ranks average them, and each makes the same optimizer step. A batch of 64 on 4 ranks takes as long as one of 16,
# plus the averaging.
#
# The text is the source code of the Python standard library, which you have. A **token** is a byte here. A
# **sequence** is 64 of them, and the model learns to tell which one follows each. A token's loss is minus the
# logarithm of the probability that the model gave it, in **nats** (natural logarithm): blind guessing among 257 costs
# ln 257 = 5.5.

# %% tags=["nbval-ignore-output"]
DATA = Packed(stream_of(corpus()[:100], Bytes()), Bytes.end, seq_len=64)
CONFIG = GPTConfig(Bytes.vocab_size, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=192, max_seq_len=64)
tensors = len(list(GPT(CONFIG).parameters()))
print(f"{len(DATA):,} sequences; {parameter_count(CONFIG):,} weights in {tensors} parameter tensors")
print(Bytes().decode(DATA.batch([2000]).tokens[0].tolist()))


# %%
def loss_of(model, batch):
    """Mean loss over the tokens of a batch, in nats. A file's last token has nothing to predict and counts as 0."""
    losses, _ = token_losses(model(batch.tokens), batch.labels)
    return losses.mean()


# %% [markdown]
# The mean of all ranks' gradients is the gradient of the mean loss over all their sequences: the very step that one
# process with the whole batch would take. A parameter tensor that a rank's part did not touch has *no* gradient there;
# the other ranks wait for its share all the same.
#
# **Exercise 1: average the gradients** · 10 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.simple:average_gradients

# %% tags=["nbval-ignore-output"]
average_gradients = lab.check(average_gradients)

# %% [markdown]
# Nothing in it looks at the weights. What if the ranks start from different ones, but average their gradients?

# %%
guess = lab.predict(
    "different weights at the start, averaged gradients: the distance between the ranks' weights",
    choices=["shrinks to nothing", "stays as it is", "grows"],
)


# %%
def distance_between_ranks(model):
    mine = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    first = mine.clone()
    dist.broadcast(first, 0)
    far = (mine - first).norm()
    dist.all_reduce(far, dist.ReduceOp.MAX)
    return far.item()


def train(start_alike=True, averaged=True, wrap=None, steps=30):
    """On each rank: train on its share of every batch. Returns losses, distances between ranks, and the weights."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = GPT(CONFIG, seed=0 if start_alike else rank).to(spmd.device())
    wrapped = wrap(model) if wrap else model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches, history, apart = Loader(DATA, 12, rank, n, seed=1, device=spmd.device()), [], []
    for _ in range(steps):
        loss = loss_of(wrapped, next(batches))
        loss.backward()
        if averaged and not wrap:
            average_gradients(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / n
        dist.all_reduce(mean)
        history.append(mean.item())
        apart.append(distance_between_ranks(model))
    return history, apart, model.cpu().state_dict()


ways = {"different start, averaged": (False, True), "same start, not averaged": (True, False), "both right": ()}
runs = {name: spmd.run(train, *way, ranks=PAIR)[0] for name, way in ways.items()}
lab.reveal(guess, "stays as it is")

# %% tags=["nbval-ignore-output"]
apart = {name: apart for name, (_, apart, _) in runs.items()}
plots.curves(apart, "How far the ranks' weights are apart", "step", "largest distance to rank 0's weights")

# %% tags=["nbval-ignore-output"]
plots.curves({name: run[0] for name, run in runs.items()}, "Would the loss tell?", "step", "loss, nats per token")

# %% [markdown]
# With different starts the distance stays: equal steps from different places. Each rank trains its own model, half on
# another one's gradients. Without averaging, equal ranks part at the first step. Only an equal start *and* equal steps
# keep them at zero. The loss hardly tells: all three fall, the wrong ones a little slower. So DDP sends rank 0's
# weights to all at the start.
#
# | equal on all ranks | different on each rank |
# |---|---|
# | weights at the start, optimizer and its settings, number of steps | the data |
# | the gradients the optimizer sees | the gradients before averaging |
# | the order of collectives | dropout and other noise |
#
# ## 1.2 One curve
#
# How close is a job on 4 ranks to one process with the same batches? Float32, 30 steps.

# %%
guess = lab.predict(f"largest difference of the loss between 1 rank and {RANKS}, in 30 steps", unit="nats")


# %%
curves = {"1 rank": spmd.run(train, ranks=1)[0][0], f"{PAIR} ranks": runs["both right"][0]}
by_hand, _, weights = spmd.run(train, ranks=RANKS)[0]
curves[f"{RANKS} ranks"] = by_hand
difference = max(abs(a - b) for a, b in zip(curves["1 rank"], by_hand, strict=True))

# %% tags=["nbval-ignore-output"]
lab.reveal(guess, difference)
plots.curves(curves, "The same training, spread over more ranks", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# Not equal to the last bit, because sums in another order round differently, but one curve. *A parallel run that
# leaves the curve of one process in its first steps has a bug*, whatever its loss does later.
#
# ## 1.3 The mean of what?
#
# That held because every rank had as many tokens: 12 sequences divide by 2, 3 and 4. Now let rank 0 have 4 sequences
# and the others one each, as with documents of different lengths. Each rank takes the mean over *its* tokens, then the
# ranks average: a mean of means. How much does a token of rank 1 count?

# %%
guess = lab.predict("weight of a token of rank 1, with 1 sequence, over one of rank 0, with 4", unit="times")


# %%
def weight_of_a_token():
    rank, n = dist.get_rank(), dist.get_world_size()
    model, given = GPT(CONFIG), DATA.batch(range(4) if rank == 0 else [3 + rank])
    losses, _ = token_losses(model(given.tokens), given.labels)
    losses.retain_grad()
    losses.mean().backward()
    return losses.grad[0].item() / n  # by how much the job's loss grows with this token's


counts = spmd.run(weight_of_a_token, ranks=RANKS)
lab.reveal(guess, counts[-1] / counts[0])

# %% [markdown]
# Tokens in short parts count more. With accumulation, such a mean of means was in Hugging Face's Trainer until October
# 2024 (their blog: "Fixing Gradient Accumulation"). The rule: *the gradient is that of the mean over all valid tokens
# of the whole batch*, however they are spread. What a framework averages is fixed: gradients, over ranks. You choose
# the loss that each rank calls `backward` on.
#
# **Exercise 2: the loss of uneven batches** · 15 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.training.loss:share_of_mean

# %% tags=["nbval-ignore-output"]
share_of_mean = lab.check(share_of_mean)

# %% [markdown]
# ## 1.4 How many messages?
#
# `average_gradients` makes one all-reduce for each parameter tensor, and each costs an $\alpha$ (Lab 0), whatever its
# size. One all-reduce of everything has to wait for the last gradient. In between are **buckets**: gradients that
# travel together. Backward goes from the loss down to the input, so the last layer's gradients come first. A small
# first bucket starts the network early.
#
# **Exercise 3: pack the gradients into buckets** · 15 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.simple:pack_buckets

# %% tags=["nbval-ignore-output"]
pack_buckets = lab.check(pack_buckets)

# %% [markdown]
# ## 1.5 Send while you compute
#
# The first bucket is full when most of backward is still to come. Autograd can tell: a **hook** on a parameter tensor
# is called the moment its gradient is complete. Start the bucket's all-reduce there with `async_op=True`: it returns
# at once, with a **work**, a handle whose `wait()` ends when the sum is there. Go on computing, and wait at the end.
#
# Two traps. Wait inside the hook, and everything is right but nothing overlaps. And gradients may be ready in another
# order on another rank, but collectives must be called in one order on all (Lab 0). So a full bucket waits for its
# turn.
#
# The check draws a timeline. The upper bar is a rank's program. **Communicating**: it stands in a call, for the data
# or for a slower rank that has not come yet. The thin bar below is a **transfer in flight**, from start to end,
# whatever the program does. At the right, time spent computing with a transfer in flight counts as both, so the shares
# may add up to over 100%.
#
# **Exercise 4: reduce while backward runs** · 25 min · ●●●

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.simple:backward_with_overlap

# %% tags=["nbval-ignore-output"]
backward_with_overlap = lab.check(backward_with_overlap)

# %% [markdown]
# Now a larger model: 3.5 million weights, 14 MB of gradients, two ranks.

# %% tags=["nbval-ignore-output"]
WIDE = GPTConfig(Bytes.vocab_size, dim=256, n_layers=4, n_heads=4, n_kv_heads=4, ffn_dim=768, max_seq_len=64)


def now():
    """Seconds, when all that was asked of the device is done."""
    if spmd.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def backward_then_reduce(loss, buckets):
    loss.backward()
    for bucket in buckets:
        dist.all_reduce(bucket.flat)
        bucket.flat /= dist.get_world_size()


def time_steps(ways, steps=7, batch=8):
    """Milliseconds of forward and backward, for each way to exchange the gradients, in turns."""
    model, given = GPT(WIDE).to(spmd.device()), DATA.batch(range(batch)).to(spmd.device())
    parameters, taken = list(model.parameters()), {name: [] for name in ways}
    sizes = [4 * p.numel() for p in parameters]
    for _ in range(steps):
        for name, (backward, cap) in ways.items():
            packed = pack_buckets(sizes, cap, cap // 4)
            buckets = [make_bucket([parameters[i] for i in bucket]) for bucket in packed]
            dist.barrier()
            spans.drain()  # the timeline keeps the last step
            start = now()
            with span("forward"):
                loss = loss_of(model, given)
            with span("backward"):
                backward(loss, buckets)
            taken[name].append((now() - start) * 1e3)
    return {name: median(times[1:]) for name, times in taken.items()}


MB = 2**20
after = {"buckets of 4 MB": (backward_then_reduce, 4 * MB)}
during = {"buckets of 4 MB, overlapped": (backward_with_overlap, 4 * MB)}
spmd.run(time_steps, after, ranks=PAIR).timeline.draw(title="Exchange after backward")

# %% tags=["nbval-ignore-output"]
spmd.run(time_steps, during, ranks=PAIR).timeline.draw(title="Exchange in the middle of backward")

# %% [markdown]
# The transfers lie under backward now; only the last bucket is left over. How much faster is the step?

# %%
guess = lab.predict("time of a step with overlap, over one without", unit="times")

# %% tags=["nbval-ignore-output"]
extremes = {"one all-reduce per tensor": (backward_then_reduce, 1), "one for all": (backward_then_reduce, 1000 * MB)}
times = spmd.run(time_steps, extremes | after | during, ranks=PAIR)[0]
lab.reveal(guess, times["buckets of 4 MB, overlapped"] / times["buckets of 4 MB"])
plots.bars(times, f"Forward and backward on {PAIR} ranks", "milliseconds, median")

# %% [markdown]
# A network card moves messages while the processor computes, and overlap hides them. Here the same cores do both: what
# you hide you still pay. Where nothing is really hidden the fewest messages win: "one for all", with a single
# $\alpha$, is fastest or close to it.
#
# And scaling? Each rank gets 8 sequences, so 4 ranks do 4 times the work.

# %%
guess = lab.predict(f"tokens per second of {RANKS} ranks, over those of 1", unit="times")

# %% tags=["nbval-ignore-output"]
speed = {}
for n in (1, 2, RANKS):
    (step,) = spmd.run(time_steps, during, ranks=n)[0].values()
    speed[f"{n} rank{'s' * (n > 1)}"] = n * 8 * 64 / step
lab.reveal(guess, speed[f"{RANKS} ranks"] / speed["1 rank"])
plots.bars(speed, "Throughput, 8 sequences a rank", "thousand tokens per second")

# %% [markdown]
# Ranks help up to the number of cores. Beyond that they share them, and can only use the time in which others wait: on
# 2 cores, 4 ranks were 5% slower than 2 in one run, 14% faster in another. With a GPU for each rank, the bars grow
# until the exchange no longer fits under backward.
#
# ## 1.6 More batch than memory: accumulation
#
# Why large batches at all? A batch's gradient is an estimate. Split 256 sequences into parts, and measure how far each
# part's gradient is from that of 256 *others*, relative to its length.

# %%
guess = lab.predict("from 4 to 64 sequences, the error of the gradient shrinks by a factor of", unit="times")


# %%
def gradients(weights, part, count):
    """On each rank: its share of `count` gradients, each of `part` sequences, as rows."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = GPT(CONFIG)
    model.load_state_dict(weights)
    model.to(spmd.device())
    rows, order = [], torch.randperm(len(DATA), generator=torch.Generator().manual_seed(7))
    for i in range(rank, count, n):
        loss = loss_of(model, DATA.batch(order[i * part : (i + 1) * part]).to(spmd.device()))
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())]))
    return torch.stack(rows).cpu()


small = torch.cat(list(spmd.run(gradients, weights, 4, 128, ranks=RANKS)))  # 128 gradients of 4 sequences
halves = small[torch.randperm(len(small), generator=torch.Generator().manual_seed(0))].split(64)
truth, error = halves[0].mean(0), {}
for parts in (1, 2, 4, 8, 16, 32):
    means = halves[1].view(-1, parts, halves[1].shape[1]).mean(1)  # of `parts` small gradients each
    error[4 * parts] = ((means - truth).square().sum(1).mean().sqrt() / truth.norm()).item()

# %% tags=["nbval-ignore-output"]
lab.reveal(guess, error[4] / error[64])
ideal = {size: error[4] * math.sqrt(4 / size) for size in error}
noise = {"measured": (list(error), list(error.values())), "1 / sqrt(batch)": (list(ideal), list(ideal.values()))}
plots.curves(noise, "Noise of the gradient", "sequences in the batch", "error / length of the gradient", log="xy")

# %% [markdown]
# Four times the batch, half the noise. (It flattens at the right: the 256 others are an estimate as well.) Where the
# error is 1, signal and noise are equal: the noise scale of McCandlish and others (2018). Batches far above it are
# wasted.
#
# Gradients of 64 sequences were *means of gradients of 4* here. That is **accumulation**: run several
# **micro-batches**, let their gradients add up in `p.grad`, and step once. It needs the memory of a micro-batch, and
# one exchange for all, if you say so: `no_sync()` tells DDP to keep the gradients here. DDP decides in *forward*
# whether the next backward will exchange, so `no_sync` goes around both.
#
# **Exercise 5: accumulate over windows** · 20 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.training.accumulate:train_in_windows

# %% tags=["nbval-ignore-output"]
train_in_windows = lab.check(train_in_windows)

# %% [markdown]
# ## 1.7 Who reads what
#
# The ranks must read different samples, together every sample, in a new order in each epoch, and do not talk about it.
# What must they agree on beforehand?
#
# **Exercise 6: deal out the samples of an epoch** · 15 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.training.data.order:epoch_share

# %% tags=["nbval-ignore-output"]
epoch_share = lab.check(epoch_share)

# %% [markdown]
# In torch this is `DistributedSampler`; without its `set_epoch(epoch)` every epoch has the same order. In our `Loader`
# the order belongs to the *job*: any number of ranks has the same sequences in the same step, so a job may go on with
# another number.

# %% tags=["nbval-ignore-output"]
for n in (1, 2, RANKS):
    loaders = [Loader(DATA, 8, rank, n, seed=3) for rank in range(n)]
    firsts = [next(loader).tokens[:, 0] for loader in loaders]  # the first token of each sequence
    print(f"ranks: {n}  the step's sequences begin with", sorted(torch.cat(firsts).tolist()))

# %% [markdown]
# ### What changes with the number of ranks
#
# With a fixed batch *per rank*, more ranks make fewer, larger steps of the same data. What becomes of the learning
# rate? Here are 1,024 sequences in steps of 16 and of 64.

# %%
RATES = {"the same": 3e-3, "2 times: the square root": 6e-3, "4 times: in proportion": 12e-3, "8 times": 24e-3}
guess = lab.predict("4 times the batch, a quarter of the steps: the best of these learning rates", choices=list(RATES))


# %%
def alone(steps=64, batch=16, lr=3e-3, warmup=0, limit=math.inf, damaged=()):
    """One rank by itself, no exchange. Returns the losses, and the norms of the gradients before clipping."""
    model, losses, norms = GPT(CONFIG).to(spmd.device()), [], []
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    batches = Loader(DATA, batch, seed=1, device=spmd.device())
    for step in range(steps):
        set_lr(optimizer, lr * min(1, (step + 1) / max(warmup, 1)))
        given = next(batches)
        if step in damaged:
            noise = torch.randint(0, 256, (2, *given.tokens.shape), generator=torch.Generator().manual_seed(step))
            given = given._replace(tokens=noise[0], labels=noise[1]).to(spmd.device())
        loss = loss_of(model, given)
        loss.backward()
        norms.append(clip_grad_norm(model.parameters(), limit).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def side_by_side(*settings):
    """Trains once with each setting, one rank for each."""
    return spmd.run(lambda: alone(**settings[dist.get_rank()]), ranks=len(settings))


def last(losses, steps):
    return sum(losses[-steps:]) / steps


# %% tags=["nbval-ignore-output"]
few, *many = side_by_side({}, *({"steps": 16, "batch": 64, "lr": lr} for lr in RATES.values()))
ends = {f"steps of 64, {name}": last(losses, 4) for name, (losses, _) in zip(RATES, many, strict=True)}
lab.reveal(guess, min(ends, key=ends.get).removeprefix("steps of 64, "))
ends = {"steps of 16": last(few[0], 16)} | ends
plots.bars(ends, "After the same 1,024 sequences", "loss over the last 256 of them, nats per token")

# %% [markdown]
# The small steps win: early on the noise does no harm, and there are four times as many. A higher rate makes up for a
# little of it. The best rates are too close to call: with another order of the data, 2 times beat 4. "In proportion"
# is a rule for SGD (Goyal and others, 2017), the square root for Adam (Malladi and others, 2022); neither is a law. So
# keep the *global* batch when you change the number of ranks, or tune again.
#
# ## 1.8 Half the bits
#
# float16 keeps 11 significant bits of a number down to $2^{-14}$, loses digits below, and has only zero below
# $2^{-24}$. How much of this model's gradient loses digits?

# %%
guess = lab.predict("share of the gradient below 2^-14", unit="%")

# %% tags=["nbval-ignore-output"]
model = GPT(CONFIG)
model.load_state_dict(weights)
loss = loss_of(model, DATA.batch(range(64)))
gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
print(f"{(gradient == 0).float().mean():.0%} are zero in any precision: bytes that do not occur. They are left out.")
gradient = gradient[gradient != 0].abs()
lab.reveal(guess, 100 * (gradient < 2**-14).float().mean())
marks = {"zero below": 2.0**-24, "digits lost below": 2.0**-14, "infinite above": 65504.0}
shown = {"gradient of the loss": gradient, "gradient of 4,096 times the loss": 4096 * gradient}
plots.magnitudes(shown, "What float16 would see", marks)

# %% [markdown]
# Gradients of rare tokens lie further left: the loss is a mean, so one of 4,096 tokens has 1/4,096 of the weight. So
# do those of large models: a norm of 1, spread over 7 billion numbers, is $2^{-16}$ for each. Multiply the loss by a
# large number, the **loss scale**, and all of it moves right. Divide by it before the optimizer looks. If it was too
# large, a gradient is infinite: leave the step out, halve the scale, go on. After a quiet time (torch's default: 2,000
# steps without overflow), double it.
#
# Clipping compares a norm with a limit, so it must see the true size. And all ranks must come to the same verdict: a
# rank that steps alone has another model from then on (1.1).
#
# **Exercise 7: a step in mixed precision** · 20 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.training.precision:scaled_step

# %% tags=["nbval-ignore-output"]
scaled_step = lab.check(scaled_step)

# %% [markdown]
# bfloat16 has the exponent of float32 and 8 significant bits: no scale is needed, so it has replaced float16 in
# training.
#
# ## 1.9 All together
#
# `course_lib.parallel.data.DistributedDataParallel` is made of these parts, and of what daily use needs besides:
# weights sent at the start, buckets packed anew in the order in which gradients come, ranks that run out of data. Here
# are the run of 1.2, that class, and torch's.


# %%
wrapped = {
    "by hand": by_hand,
    "course_lib's DDP": spmd.run(train, wrap=DistributedDataParallel, ranks=RANKS)[0][0],
    "torch's DDP": spmd.run(train, wrap=TorchDDP, ranks=RANKS)[0][0],
}
spread = max(max(losses) - min(losses) for losses in zip(*wrapped.values(), strict=True))
print("the same to 0.01 nats:", spread < 0.01)

# %% tags=["nbval-ignore-output"]
plots.curves(wrapped, f"Three ways to be data parallel, {RANKS} ranks", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# A longer training, with checkpoints and validation, is a command. Kill the first one in the middle: the second goes
# on from the last checkpoint, and each loss is to the last bit what it would have been:
#
#     torchrun --nproc-per-node 2 -m course_lib.trainer --size tiny --steps 200
#     torchrun --nproc-per-node 2 -m course_lib.trainer --size tiny --steps 200 --resume
#
# ## 1.10 Fewer bytes (bonus)
#
# Between machines the network may be slower than backward. Then bytes count. (Here fewer bytes often take no less
# time: compressing needs the cores that carry the messages.)
#
# **Exercise 8: half the bytes** · 10 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.compress:bf16_compress

# %% tags=["nbval-ignore-output"]
bf16_compress = lab.check(bf16_compress)

# %% [markdown]
# **PowerSGD** goes further. A gradient matrix $M$ is close to one of low rank: $M \approx P Q^\top$, with a few
# columns each. $P = M Q$, with the last round's $Q$, is a good guess; once its columns are orthonormal, $Q = M^\top P$
# fits best. Both products are linear in $M$, so the thin matrices may be averaged in its place. Orthonormalising is
# not: average $P$ *before* it, orthonormalise, then average $Q$. What is left out is not lost: each rank keeps its
# **error** and adds it to its next gradient.
#
# **Exercise 9: a round of PowerSGD** · 25 min · ●●●

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.compress:power_sgd_round

# %% tags=["nbval-ignore-output"]
power_sgd_round = lab.check(power_sgd_round)


# %% [markdown]
# In DDP such a function is a **communication hook**: it replaces a bucket's all-reduce.

# %%
def train_with(hook):
    with spmd.traffic() as moved:
        history, _, _ = train(wrap=partial(DistributedDataParallel, hook=hook))
    return history, moved.collective_bytes["all_reduce"] / len(history)


# %% tags=["nbval-ignore-output"]
compressed = {}
for name, hook in {"float32": None, "bfloat16": bf16, "PowerSGD, rank 2": PowerSGD(rank=2, start_step=0)}.items():
    history, per_step = spmd.run(train_with, hook, ranks=PAIR)[0]
    compressed[f"{name}: {per_step / 1e3:.0f} KB a step"] = history
plots.curves(compressed, "Fewer bytes, the same training?", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# bfloat16 cannot be told from float32. PowerSGD sends a twentieth and stays a little behind, as gradients turn quickly
# early on: torch's documentation has it begin after a tenth of the steps.
#
# ## 1.11 Folklore, put to the test
#
# **"Raise the clipping threshold 5 to 10 times for large models."** Two of 80 batches are random bytes, from a damaged
# file. Each threshold trains with the damage and without.

# %%
guess = lab.predict("of 80 steps, how many does a threshold of 10 clip", unit="steps")


# %% tags=["nbval-ignore-output"]
harm, clipped = {}, {}
for limit in (10.0, 1.0):
    runs = side_by_side({"steps": 80, "limit": limit}, {"steps": 80, "limit": limit, "damaged": (40, 41)})
    (whole, _), (hurt, norms) = runs
    clipped[limit] = sum(norm > limit for norm in norms)
    harm[f"threshold {limit:g}"] = range(42, 80), [b - a for a, b in zip(whole[42:], hurt[42:], strict=True)]
    print(f"threshold {limit:g} clips {clipped[limit]} steps. Loss before the damage {last(whole[:40], 10):.2f}; "
          f"after it {last(hurt, 38):.2f}, in the run without {last(whole, 38):.2f}")
lab.reveal(guess, clipped[10])
plots.curves(harm, "What two damaged batches cost later", "step", "loss, over the run without damage, nats")

# %% [markdown]
# A threshold of 10 never acts here: it is no clipping at all, and the damage is felt for the rest of the run. A
# threshold of 1 takes most of it away. (It is ahead before the damage, too, where it shortens the first, long
# gradients; each curve is measured against its own undamaged run.) Nor is size a reason: GPT-3 175B, BLOOM 176B, PaLM
# 540B and DeepSeek-V3 671B clip at 1.0, and OPT-175B went *down* to 0.3 when it became unstable. **Verdict: false.**
# Start at 1.0; log the norm; tighten if it jumps.
#
# **"Warm-up = min(10,000, 1% of the steps)."** For 60 steps that is one at most.

# %% tags=["nbval-ignore-output"]
tries = [(3e-3, 1), (3e-3, 16), (3e-2, 1), (3e-2, 16)]
trained = side_by_side(*({"steps": 60, "lr": lr, "warmup": warmup} for lr, warmup in tries))
table = {f"rate {lr:g}, warm-up of {w}": last(run[0], 10) for (lr, w), run in zip(tries, trained, strict=True)}
plots.bars(table, "60 steps, with the rule's warm-up and a longer one", "loss over the last 10 steps, nats per token")

# %% [markdown]
# **Verdict: right in size for some runs, wrong as a rule.** At the low rate no warm-up is needed; at ten times that,
# one step is not enough. What large runs did: GPT-3 375 million tokens (0.13%), Llama 2 2,000 steps (0.4%), Llama 3
# 405B 8,000 of 1.2 million (0.67%), OPT-175B 2,000 (1.3%). None follows it.
#
# **"Recompute activations above a sequence length of 512."** Backward needs what forward computed, the
# **activations**; **recomputation** drops them and computes them again. Here 4,096 tokens are cut into sequences of
# different lengths.

# %%
guess = lab.predict("activations of 2 sequences of 2,048 tokens, over those of 32 sequences of 128", unit="times")


# %%
class PlainAttention(torch.nn.Module):
    """Attention as it was written in 2021: every score of every pair of tokens is a number in memory."""

    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -math.inf).softmax(-1) @ v


def activations(length, plain=False, again=False, tokens=4096):
    """Megabytes that one forward of a small GPT keeps for backward."""
    model = GPT(GPTConfig(257, dim=64, n_layers=2, n_heads=2, n_kv_heads=2, ffn_dim=192, max_seq_len=length))
    if plain:
        for layer in model.layers:
            layer.attention.core = PlainAttention()
    if again:
        recompute(model.layers)
    x = torch.randint(0, 256, (tokens // length, length))
    return saved_bytes(lambda: model(x).sum()) / 1e6


lengths = [128, 256, 512, 1024, 2048]
ways = {"plain attention": {"plain": True}, "fused attention": {}, "fused, layers recomputed": {"again": True}}
kept = {name: (lengths, [activations(s, **way) for s in lengths]) for name, way in ways.items()}
lab.reveal(guess, kept["fused attention"][1][-1] / kept["fused attention"][1][0])

# %% tags=["nbval-ignore-output"]
plots.curves(kept, "Activations of 4,096 tokens", "tokens in a sequence", "megabytes", log="x")

# %% [markdown]
# **Verdict: false.** With fused attention (`scaled_dot_product_attention`) the length by itself costs nothing: tokens,
# width and layers decide. Where every score was kept, memory grew with the length; by the formula of Korthikanti and
# others (2022) scores overtake the rest at 34 / 5 = 6.8 times the width of a head: 435 tokens for heads of 64. Hence,
# perhaps, the 512. For the heads of 32 here it says 218, yet plain is twice fused only near 700: in float32, without
# dropout and with another feed-forward part, a score takes 4 bytes instead of 5, the rest 94 per token and unit of
# width instead of 34. Recompute when the memory estimate says so.
#
# ### A tuning checklist
#
# "Disable anomaly detection, prefetch, use AMP, fuse." **AMP**, automatic mixed precision, runs matrix products in 16
# bits. **Fusion** makes one pass over memory of several small operations; here in the feed-forward part, a **SwiGLU**:
# silu(a) times b. Which matters most *here*?

# %%
guess = lab.predict(
    "what changes the time of a step most, here", choices=["anomaly detection", "no prefetch", "AMP", "fusion"]
)


# %% tags=["nbval-ignore-output"]
def tune(rounds=4):
    """Time of a step of each variant, over that of the plain one in the same round; all in one process."""
    device, taken = spmd.device(), {}
    model, fused = GPT(WIDE).to(device), GPT(WIDE).to(device)
    for layer in fused.layers:
        layer.ffn.compile(dynamic=False)
    batches = {ahead: Loader(DATA, 4, seed=1, device=device, ahead=ahead) for ahead in (0, 2)}

    def step(net=model, ahead=2, around=nullcontext):
        with around():
            loss = loss_of(net, next(batches[ahead]))
            loss.backward()

    variants = {
        "plain": step,
        "plain, once more": step,
        "anomaly detection": partial(step, around=partial(torch.autograd.set_detect_anomaly, True)),
        "no prefetch": partial(step, ahead=0),
        "AMP": partial(step, around=partial(torch.autocast, device.type, torch.bfloat16)),
        "fusion": partial(step, net=fused),
    }
    for _ in range(rounds + 1):
        for name, variant in variants.items():
            start = now()
            variant()
            taken.setdefault(name, []).append(now() - start)
    print(f"compiling took {taken['fusion'][0]:.1f} s")
    plain = taken.pop("plain")[1:]
    return {name: [a / b for a, b in zip(times[1:], plain, strict=True)] for name, times in taken.items()}


tuned = spmd.run(tune, ranks=1, timeout=120)[0]
lab.reveal(guess, max(list(tuned)[1:], key=lambda name: abs(math.log(median(tuned[name])))))
bars = {f"{name} ({min(ratios):.2f} to {max(ratios):.2f})": median(ratios) for name, ratios in tuned.items()}
plots.bars(bars, "A training step with one thing changed", "time of a step, over the plain one: median (and range)")

# %% [markdown]
# **Verdict: measure, and measure the noise.** "Plain, once more" is the same step again: a bar inside its range says
# nothing. Anomaly detection checks every gradient for NaN: never leave it on. A batch takes 0.1 ms or less to make
# here, so prefetch has nothing to hide, and its bar is noise. AMP pays where bfloat16 is multiplied in hardware, as on
# GPUs; other processors convert back and forth. Fusion (once TorchScript, today `torch.compile`) leaves matrix
# products as they were, and compiling costs seconds.
#
# ## On GPUs
#
# > - **Nothing to edit.** With a GPU for each rank, `spmd` starts NCCL; models and batches go to `spmd.device()`.
# > - **Overlap is real.** NCCL works on a stream of its own. `wait()` makes the *stream* wait, not Python: forgetting
# >   it gives wrong numbers, not an error.
# > - **Buckets.** 25 MB, torch's default, suits one node. More ranks make $\alpha$ larger: Megatron takes at least a
# >   million numbers for each rank.
#
# ## What you did and measured here

# %% tags=["nbval-ignore-output"]
lab.progress()

# %% [markdown]
# ## What to remember
#
# - Equal at the start, equal gradients, equal steps: nothing else keeps the ranks together.
# - Gradients are averaged, tokens *should* be: choose the loss so that both agree.
# - A collective started early and waited for late costs what does not fit under the computation.
# - The batch is the job's, not the rank's.
# - Clip at 5 to 10: false. Warm up for 1%: it depends on the rate. Recompute above 512 tokens: false.
#
# Next, Lab 2: the layers themselves are cut.
