# %% [markdown]
# # Lab 1: Data parallel
#
# **You learn** what must be equal on all ranks and what must differ; what exactly is averaged; how the exchange hides
# behind the backward pass; what accumulation, the order of the data and mixed precision have to do with it. You build
# the parts of DistributedDataParallel and train a GPT on real text with them.
#
# **You need** Lab 0, or to know what an all-reduce is and what a message costs. No GPU. **Time**: about three hours, 7
# exercises, and 2 more for those who want them. Numbers in the text are for 4 ranks.

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
# **Data parallel** training: every rank holds the whole model and takes its own part of each batch. Each computes
# gradients from its part; then the ranks average their gradients, and each makes the same optimizer step. A batch of
# 64 on 4 ranks takes each rank as long as a batch of 16, plus the averaging. That is the gain, and the price.
#
# The text is real: the source code of the Python standard library, which you have. A **token** is a byte here. A
# **sequence** is 64 of them in a row, and the model learns to tell which one follows each.

# %% tags=["nbval-ignore-output"]
DATA = Packed(stream_of(corpus()[:100], Bytes()), Bytes.end, seq_len=64)
CONFIG = GPTConfig(Bytes.vocab_size, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=192, max_seq_len=64)
print(f"{len(DATA):,} sequences, a model of {parameter_count(CONFIG):,} parameters")
print(Bytes().decode(DATA.batch([2000]).tokens[0].tolist()))


# %%
def loss_of(model, batch):
    """Mean loss over the tokens of a batch, in nats. A file's last token has nothing to predict and counts as 0."""
    losses, _ = token_losses(model(batch.tokens), batch.labels)
    return losses.mean()


# %% [markdown]
# The averaging is the part you write. The mean of all ranks' gradients is the gradient of the mean loss over all
# ranks' sequences: so the job takes the very step that one process with the whole batch would take. Look at what a
# rank may *not* have: a parameter that its part of the batch did not touch has no gradient there. The other ranks wait
# for its share all the same.
#
# **Exercise 1: average the gradients** · 10 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.simple:average_gradients

# %% tags=["nbval-ignore-output"]
average_gradients = lab.check(average_gradients)

# %% [markdown]
# Nothing in it looks at the weights. Ranks that start alike and step alike stay alike. What if they start from
# different weights, but average their gradients? And what if they start alike and do not average?

# %%
guess = lab.predict(
    "different weights at the start, averaged gradients: the distance between the ranks' weights",
    choices=["shrinks to nothing", "stays as it is", "grows"],
)


# %%
def distance_between_ranks(model):
    mine = torch.nn.utils.parameters_to_vector(model.parameters())
    first = mine.detach().clone()
    dist.broadcast(first, 0)
    far = (mine.detach() - first).norm()
    dist.all_reduce(far, dist.ReduceOp.MAX)
    return far.item()


def drift(start_alike, averaged, steps=20):
    rank, n = dist.get_rank(), dist.get_world_size()
    model = GPT(CONFIG, seed=0 if start_alike else rank).to(spmd.device())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = Loader(DATA, 12, rank, n, seed=1, device=spmd.device())
    apart = [distance_between_ranks(model)]
    for _ in range(steps):
        loss_of(model, next(batches)).backward()
        if averaged:
            average_gradients(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        apart.append(distance_between_ranks(model))
    return apart


apart = {
    "different start, averaged": spmd.run(drift, False, True, ranks=PAIR)[0],
    "same start, not averaged": spmd.run(drift, True, False, ranks=PAIR)[0],
    "same start, averaged": spmd.run(drift, True, True, ranks=PAIR)[0],
}
lab.reveal(guess, "stays as it is")

# %% tags=["nbval-ignore-output"]
plots.curves(apart, "How far the ranks' weights are apart", "step", "largest distance to rank 0's weights")

# %% [markdown]
# With different starts the distance stays: equal steps from different places lead to different places. Each rank would
# train a model of its own, on gradients of somebody else's. Nothing in the loss says so. That is why every
# implementation sends rank 0's weights to all at the start, and why some compare a hash of them from time to time.
#
# | equal on all ranks | different on each rank |
# |---|---|
# | weights at the start, optimizer and its settings, number of steps | the data |
# | the gradients the optimizer sees | the gradients before averaging |
# | the order of collectives | dropout and other noise |
#
# ## 1.2 One curve
#
# So how close is a job on 4 ranks to one process with the same batches? Float32, 30 steps.

# %%
guess = lab.predict(f"largest difference of the loss between 1 rank and {RANKS}, in 30 steps", unit="nats")


# %%
def train(steps=30, batch=12, lr=3e-3, wrap=None):
    """On each rank: train on its share of every batch. Returns the losses of whole batches, and the weights."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model = GPT(CONFIG).to(spmd.device())
    wrapped = wrap(model) if wrap else model
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    batches, history = Loader(DATA, batch, rank, n, seed=1, device=spmd.device()), []
    for _ in range(steps):
        loss = loss_of(wrapped, next(batches))
        loss.backward()
        if wrap is None:
            average_gradients(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / n
        dist.all_reduce(mean)
        history.append(mean.item())
    return history, model.cpu().state_dict()


curves = {f"{n} rank{'s' * (n > 1)}": spmd.run(train, ranks=n)[0][0] for n in (1, 2)}
by_hand, weights = spmd.run(train, ranks=RANKS)[0]
curves[f"{RANKS} ranks"] = by_hand
difference = max(abs(a - b) for a, b in zip(curves["1 rank"], by_hand, strict=True))

# %% tags=["nbval-ignore-output"]
lab.reveal(guess, difference)

# %% tags=["nbval-ignore-output"]
plots.curves(curves, "The same training, spread over more ranks", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# Not equal to the last bit: sums in another order round differently, and training amplifies that slowly. But one
# curve. Remember it as a test: *if a parallel run leaves the curve of one process in its first steps, it has a bug*,
# whatever its loss does later.
#
# ## 1.3 The mean of what?
#
# That held because every rank had the same number of tokens: 12 sequences divide by 2, 3 and 4. Now let rank 0 have 4
# sequences, and the others one each: the last batch of an epoch, padded prompts, long and short documents. Each rank
# takes the mean over *its* tokens, then the ranks average: a mean of means. How much does a token on rank 0 count,
# next to one on rank 1?

# %%
guess = lab.predict("weight of a token of rank 1, with 1 sequence, over one of rank 0, with 4", unit="times")

# %%
lab.reveal(guess, 4)

# %% [markdown]
# Tokens in short parts count more. It takes very little: the first version of this lab left a file's last token out of
# each rank's mean. Of 480 sequences two were one token short, and the curves of 1.2 parted by 0.0008 nats, where it is
# 0.000001 now. In fine-tuning, where answers are short and prompts are masked out, this is the most common silent
# error of data parallel training; with accumulation it has been in widely used trainers for years. The rule: *the
# gradient is that of the mean over all valid tokens of the whole batch*, however they are spread. What a framework
# averages is fixed: gradients, over ranks. What you can choose is the loss that each rank calls `backward` on.
#
# **Exercise 2: the loss of uneven batches** · 15 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.training.loss:share_of_mean

# %% tags=["nbval-ignore-output"]
share_of_mean = lab.check(share_of_mean)

# %% [markdown]
# ## 1.4 How many messages?
#
# `average_gradients` makes one all-reduce for each parameter. Lab 0 has what that costs: $\alpha$ for each message,
# whatever its size. A GPT has hundreds of parameters, some with a few hundred numbers. The other extreme, one
# all-reduce of everything, has to wait for the last gradient. In between are **buckets**: gradients that travel
# together.
#
# When does a bucket leave? Backward works from the loss down to the input, so the last layer's gradients come first.
# The first bucket is kept small, so that the network starts early.
#
# **Exercise 3: pack the gradients into buckets** · 15 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.simple:pack_buckets

# %% tags=["nbval-ignore-output"]
pack_buckets = lab.check(pack_buckets)

# %% [markdown]
# ## 1.5 Send while you compute
#
# The first bucket is full when most of backward is still to come. Autograd can tell: a **hook** on a parameter is
# called the moment its gradient is complete, in the middle of backward. Start the bucket's all-reduce there
# (`async_op=True` returns a handle at once), go on computing, and wait at the end.
#
# Two traps. If you wait inside the hook, everything is right and nothing overlaps. And gradients may become ready in
# another order on another rank, but collectives must be called in the same order on all (Lab 0). So a bucket that is
# ready waits for its turn.
#
# **Exercise 4: reduce while backward runs** · 25 min · ●●●

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.simple:backward_with_overlap

# %% tags=["nbval-ignore-output"]
backward_with_overlap = lab.check(backward_with_overlap)

# %% [markdown]
# Now see it, on a model of 3.4 million parameters, 14 MB of gradients. Two ranks, so that each has a core.

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
after = spmd.run(time_steps, {"after backward": (backward_then_reduce, 4 * MB)}, ranks=PAIR)
after.timeline.draw(title="Exchange after backward")

# %% tags=["nbval-ignore-output"]
during = spmd.run(time_steps, {"in backward": (backward_with_overlap, 4 * MB)}, ranks=PAIR)
during.timeline.draw(title="Exchange in the middle of backward")

# %% [markdown]
# The bars of the network lie under backward now; only the last bucket is left over, because its gradients come last.
# How much faster is the step?

# %%
guess = lab.predict("time of a step with overlap, over one without", unit="times")

# %% tags=["nbval-ignore-output"]
ways = {
    "one all-reduce per parameter": (backward_then_reduce, 1),
    "one for all": (backward_then_reduce, 1000 * MB),
    "buckets of 4 MB": (backward_then_reduce, 4 * MB),
    "buckets of 4 MB, overlapped": (backward_with_overlap, 4 * MB),
}
times = spmd.run(time_steps, ways, ranks=PAIR)[0]
lab.reveal(guess, times["buckets of 4 MB, overlapped"] / times["buckets of 4 MB"])
plots.bars(times, f"Forward and backward on {PAIR} ranks", "milliseconds, median")

# %% [markdown]
# Read the bars with care. With a network card, messages move while the processor computes, and overlap hides nearly
# all of them. Here the same cores do both: what you hide you still pay. What is left to gain on a CPU is the waiting.
#
# And scaling? Each rank gets 8 sequences, so 4 ranks do 4 times the work. How many times the tokens per second of one
# rank, on this machine?

# %%
guess = lab.predict(f"tokens per second of {RANKS} ranks, over those of 1", unit="times")

# %% tags=["nbval-ignore-output"]
overlapped = {"overlapped": (backward_with_overlap, 4 * MB)}
speed = {}
for n in (1, 2, RANKS):
    step = spmd.run(time_steps, overlapped, ranks=n)[0]["overlapped"]
    speed[f"{n} rank{'s' * (n > 1)}"] = n * 8 * 64 / step
lab.reveal(guess, speed[f"{RANKS} ranks"] / speed["1 rank"])
plots.bars(speed, "Throughput, 8 sequences a rank", "thousand tokens per second")

# %% [markdown]
# As many ranks as cores help; more do not: they share the cores, and exchange more. On GPUs every rank has a processor
# of its own, and the curve goes on until the exchange no longer fits under backward.
#
# ## 1.6 More batch than memory: accumulation
#
# Why large batches at all? Because the gradient of a batch is an estimate. Split 256 sequences into parts, and measure
# how far each part's gradient is from that of 256 *others*, relative to its length.

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
# Four times the batch, half the noise. (It flattens at the right end: the 256 others are an estimate as well.) Where
# the error is 1, signal and noise are equal: McCandlish and others (2018) call that batch the noise scale. Far below
# it a larger batch is worth its price; far above, it is wasted.
#
# Look at how the picture was made: gradients of 64 sequences are *means of gradients of 4*. That is **accumulation**:
# run several **micro-batches**, let their gradients add up in `p.grad`, and step once. It needs the memory of a
# micro-batch, and one exchange for all of them, if you say so: `no_sync()` tells DDP to keep the gradients here.
#
# DDP decides in *forward* whether the next backward will exchange. So `no_sync` goes around forward and backward.
#
# **Exercise 5: accumulate over windows** · 20 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.training.accumulate:train_in_windows

# %% tags=["nbval-ignore-output"]
train_in_windows = lab.check(train_in_windows)

# %% [markdown]
# ## 1.7 Who reads what
#
# The ranks must read different samples, all of them together every sample, in a new order in each epoch. They do not
# talk about it. So what must they agree on beforehand?
#
# **Exercise 6: deal out the samples of an epoch** · 15 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.training.data.order:epoch_share

# %% tags=["nbval-ignore-output"]
epoch_share = lab.check(epoch_share)

# %% [markdown]
# In torch this is `DistributedSampler`, and the epoch comes in by `sampler.set_epoch(epoch)`, which is easily
# forgotten: then every epoch has the same order. Our `Loader` goes one step further: the order belongs to the *job*.
# With 1, 2 or 4 ranks the same sequences are in the same step, so a job may go on with another number of ranks where
# it stopped.

# %% tags=["nbval-ignore-output"]
for n in (1, 2, RANKS):
    loaders = [Loader(DATA, 8, rank, n, seed=3) for rank in range(n)]
    firsts = [next(loader).tokens[:, 0] for loader in loaders]  # the first token of each sequence
    print(f"ranks: {n}  the step's sequences begin with", sorted(torch.cat(firsts).tolist()))

# %% [markdown]
# ### What changes with the number of ranks
#
# Often people keep the batch *per rank*. Then the global batch grows with the ranks, and there are fewer steps for the
# same data. What becomes of the learning rate? The same 1,024 sequences, in steps of 16 or of 64.

# %%
guess = lab.predict(
    "4 times the batch, a quarter of the steps: the best of these learning rates",
    choices=["the same", "2 times: the square root", "4 times: in proportion"],
)

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
rates = {"the same": 3e-3, "2 times: the square root": 6e-3, "4 times: in proportion": 12e-3}
few, *many = side_by_side({}, *({"steps": 16, "batch": 64, "lr": lr} for lr in rates.values()))
ends = {f"steps of 64, {name}": last(losses, 4) for name, (losses, _) in zip(rates, many, strict=True)}
lab.reveal(guess, min(ends, key=ends.get).removeprefix("steps of 64, "))
ends = {"steps of 16": last(few[0], 16)} | ends
plots.bars(ends, "After the same 1,024 sequences", "loss over the last 256 of them, nats per token")

# %% [markdown]
# (Each job runs on one rank; as you saw, it makes no difference.) The small steps win: at this point of the training
# the noise of 16 sequences does no harm, and there are four times as many steps. With large batches a higher rate
# makes up for a part. "In proportion" is a rule for SGD (Goyal and others, 2017); for Adam, theory and practice rather
# say the square root (Malladi and others, 2022). Neither is a law: with the number of ranks the batch changes, and
# with the batch the training. So keep the *global* batch when you change the number of ranks, or tune again.
#
# ## 1.8 Half the bits
#
# float16 keeps 11 significant bits of a number, down to $2^{-14}$. Below that it loses digits, and below $2^{-24}$
# there is only zero. How much of this model's gradient has lost digits?

# %%
guess = lab.predict("share of the gradient below 2^-14", unit="%")

# %% tags=["nbval-ignore-output"]
model = GPT(CONFIG)
model.load_state_dict(weights)
loss = loss_of(model, DATA.batch(range(64)))
gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
gradient = gradient[gradient != 0].abs()
lab.reveal(guess, 100 * (gradient < 2**-14).float().mean())
plots.magnitudes(
    {"gradient of the loss": gradient, "gradient of 4,096 times the loss": 4096 * gradient},
    "What float16 would see",
    {"zero below": 2.0**-24, "digits lost below": 2.0**-14, "infinite above": 65504.0},
)

# %% [markdown]
# The fewer tokens a value depends on, and the larger the model, the further left it lies. Multiply the loss by a large
# number, and all of it moves right: that number is the **loss scale**. Divide by it before the optimizer looks. If it
# was too large, a gradient is infinite: leave the step out, halve the scale, go on; after a quiet time, double it.
#
# The order is everything. Clipping compares a norm with a limit, so it must see the true size. And all ranks must come
# to the same verdict: a rank that steps alone has another model from then on (1.1).
#
# **Exercise 7: a step in mixed precision** · 20 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.training.precision:scaled_step

# %% tags=["nbval-ignore-output"]
scaled_step = lab.check(scaled_step)

# %% [markdown]
# bfloat16 has the exponent of float32 and 8 significant bits: no scale, no overflow, and of this exercise only the
# clipping is left. That is why it has replaced float16 in training.
#
# ## 1.9 All together
#
# `course_lib.parallel.data.DistributedDataParallel` is made of these parts, with what a real one needs besides:
# weights sent at the start and compared, gradients as views of buckets, buckets packed anew in the order in which
# gradients really come, parameters without a gradient, ranks that run out of data. Here are the lab's first run, that
# class, and torch's, over the same batches.


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
# The same model at full length, with checkpoints, validation and a sample of what it writes, is a command. Under
# `torchrun` it uses as many ranks as you say. Kill it in the middle, add `--resume`, and the loss goes on to the bit
# where it was:
#
#     python -m course_lib.trainer --size tiny --steps 200
#     torchrun --nproc-per-node 2 -m course_lib.trainer --size tiny --steps 200 --resume
#
# ## 1.10 Fewer bytes (bonus)
#
# Between machines the network may be slower than backward. Then bytes count. Two ways to send fewer:
#
# **Exercise 8: half the bytes** · 10 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.compress:bf16_compress

# %% tags=["nbval-ignore-output"]
bf16_compress = lab.check(bf16_compress)

# %% [markdown]
# **PowerSGD** goes further. A gradient matrix $M$ is close to one of low rank: $M \approx P Q^\top$, with a few
# columns each. One multiplication with the last round's $Q$ gives a good $P$; its columns are made orthonormal, and $Q
# = M^\top P$ fits best. All of it is linear in $M$, so averages of thin matrices do. What is left out is not lost:
# each rank keeps its **error** and adds it to its next gradient.
#
# **Exercise 9: a round of PowerSGD** · 25 min · ●●●

# %% tags=["exercise"]
# exercise: course_lib.parallel.data.compress:power_sgd_round

# %% tags=["nbval-ignore-output"]
power_sgd_round = lab.check(power_sgd_round)


# %% [markdown]
# In a DistributedDataParallel such a function is a **communication hook**: it takes the place of a bucket's
# all-reduce.

# %%
def train_with(hook):
    with spmd.traffic() as moved:
        history, _ = train(wrap=partial(DistributedDataParallel, hook=hook))
    return history, moved.collective_bytes["all_reduce"] / len(history)


# %% tags=["nbval-ignore-output"]
compressed = {}
for name, hook in {"float32": None, "bfloat16": bf16, "PowerSGD, rank 2": PowerSGD(rank=2, start_step=0)}.items():
    history, per_step = spmd.run(train_with, hook, ranks=PAIR)[0]
    compressed[f"{name}: {per_step / 1e3:.0f} KB a step"] = history
plots.curves(compressed, "Fewer bytes, the same training?", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# bfloat16 cannot be told from float32. PowerSGD sends a twentieth and stays a little behind: early in a training
# gradients turn quickly; that is why real ones begin it after some hundreds of steps.
#
# ## 1.11 Folklore, put to the test
#
# **"Raise the clipping threshold 5 to 10 times for large models."** Below, two batches at step 40 are random bytes: a
# damaged file. What does each threshold do about it?

# %%
guess = lab.predict("of 80 steps, how many does a threshold of 10 clip", unit="steps")


# %% tags=["nbval-ignore-output"]
limits = {"no clipping": math.inf, "threshold 10": 10.0, "threshold 1": 1.0}
trained = side_by_side(*({"steps": 80, "limit": limit, "damaged": (40, 41)} for limit in limits.values()))
lab.reveal(guess, sum(norm > 10 for norm in trained[1][1]))
print("threshold 1 clipped", sum(norm > 1 for norm in trained[2][1]), "of 80 steps")
plots.curves({name: losses for name, (losses, _) in zip(limits, trained, strict=True)},
             "Two damaged batches at step 40", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# **Verdict: false.** A threshold of 10 never acts: its curve *is* the one without clipping, and both pay for the
# damaged batches for the rest of the run. Size is no reason: GPT-3 175B, BLOOM 176B, PaLM 540B and DeepSeek-V3 671B
# all clip at 1.0, and OPT-175B went *down*, from 1.0 to 0.3, when it became unstable. Start at 1.0, log the norm
# before clipping, and tighten if it jumps. The norm is that of the whole gradient: once it is spread over ranks,
# adding it up is part of the work.
#
# **"Warm-up = min(10,000, 1% of the steps)."** For a run of 60 steps the rule gives one.

# %% tags=["nbval-ignore-output"]
tries = [(3e-3, 1), (3e-3, 16), (3e-2, 1), (3e-2, 16)]
trained = side_by_side(*({"steps": 60, "lr": lr, "warmup": warmup} for lr, warmup in tries))
table = {
    f"rate {lr:g}, warm-up of {warmup}": last(losses, 10)
    for (lr, warmup), (losses, _) in zip(tries, trained, strict=True)
}
plots.bars(table, "60 steps, with the rule's warm-up and a longer one", "loss over the last 10 steps, nats per token")

# %% [markdown]
# **Verdict: right in size for some runs, wrong as a rule.** At a low rate no warm-up is needed; at ten times that, one
# step is not enough. It depends on the rate, not on a percentage. What large runs did: GPT-3 375 million tokens
# (0.13%), Llama 2 2,000 steps (0.4%), Llama 3 405B 8,000 of 1.2 million (0.67%), OPT-175B 2,000 (1.3%). None follows
# it.
#
# **"Recompute activations above a sequence length of 512."** Backward needs what forward computed, the
# **activations**. **Recomputation** drops them and computes them again: memory for time. Here each batch has 4,096
# tokens, cut into sequences of different lengths.

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
kept = {
    "plain attention": (lengths, [activations(s, plain=True) for s in lengths]),
    "fused attention": (lengths, [activations(s) for s in lengths]),
    "fused, layers recomputed": (lengths, [activations(s, again=True) for s in lengths]),
}
fused = kept["fused attention"][1]
lab.reveal(guess, fused[-1] / fused[0])

# %% tags=["nbval-ignore-output"]
plots.curves(kept, "Activations of 4,096 tokens", "tokens in a sequence", "megabytes", log="x")

# %% [markdown]
# **Verdict: false.** With fused attention (`scaled_dot_product_attention`) the length by itself costs nothing: tokens
# in the batch, width and layers decide. Where every score was kept, memory grew with the length, and its share
# overtook the rest at about 6.8 times the width of a head (from the formula of Korthikanti and others, 2022): 435
# tokens for heads of
# 64. That is where the 512 comes from. Today: recompute when the memory estimate says so, and as little as is needed.
#
# ### A tuning checklist, switched on and off
#
# "Disable anomaly detection, prefetch, use AMP, fuse." Which of the four matters most *here*? The same training step,
# each time with one thing changed.

# %%
guess = lab.predict(
    "what changes the time of a step most, here", choices=["anomaly detection", "prefetch", "AMP", "fusion"]
)


# %% tags=["nbval-ignore-output"]
def tune(steps=6):
    """Median time of a step of each variant, over that of the plain one; taken in turns, in one process."""
    device, taken = spmd.device(), {}
    model, fused = GPT(WIDE).to(device), GPT(WIDE).to(device)
    for layer in fused.layers:
        layer.ffn.compile(dynamic=False)
    batches = {ahead: Loader(DATA, 8, seed=1, device=device, ahead=ahead) for ahead in (0, 2)}

    def step(net=model, ahead=2, around=nullcontext):
        with around():
            loss = loss_of(net, next(batches[ahead]))
            loss.backward()

    variants = {
        "plain": step,
        "anomaly detection": partial(step, around=partial(torch.autograd.set_detect_anomaly, True)),
        "without prefetch": partial(step, ahead=0),
        "AMP: bfloat16": partial(step, around=partial(torch.autocast, device.type, torch.bfloat16)),
        "fusion: SwiGLU compiled": partial(step, net=fused),
    }
    for _ in range(steps + 1):
        for name, variant in variants.items():
            start = now()
            variant()
            taken.setdefault(name, []).append(now() - start)
    print(f"compiling took {taken['fusion: SwiGLU compiled'][0]:.1f} s")
    return {name: median(times[1:]) / median(taken["plain"][1:]) for name, times in taken.items()}


tuned = spmd.run(tune, ranks=1, timeout=120)[0]
most = max(list(tuned)[1:], key=lambda name: abs(math.log(tuned[name])))
lab.reveal(guess, {"w": "prefetch", "A": "AMP", "f": "fusion"}.get(most[0], "anomaly detection"))
plots.bars(tuned, "A training step with one thing changed", "time of a step, over the plain one")

# %% [markdown]
# **Verdict: measure.** Anomaly detection checks every gradient for NaN: about twice the time, so never leave it on.
# Prefetch hides what a batch costs to make; here that is 0.1 ms, so the thread has nothing to hide. AMP pays where the
# processor multiplies bfloat16 in hardware, as GPUs do; a CPU without that converts back and forth, and takes
# *longer*. Fusion (in 2021 TorchScript, today `torch.compile`) saves trips to memory between small operations; matrix
# products remain what they were, and compiling costs seconds at the start.
#
# ## On GPUs
#
# > - **Nothing to edit.** With a GPU for each rank, `spmd` starts NCCL; models and batches go to `spmd.device()`.
# > - **Overlap is real.** NCCL works on a stream of its own, while the other multiprocessors go on with backward. The
# >   hook only launches it. `wait()` there makes the *stream* wait, not Python: forgetting it gives wrong numbers, not
# >   an error. Part of a GPU's multiprocessors moves data meanwhile, so backward gets a little slower.
# > - **Buckets.** 25 MB, torch's default, suits one node. With more ranks each message has a larger $\alpha$: Megatron
# >   takes at least a million parameters for each rank.
# > - **AMP is the rule**, bfloat16 by default; then gradients may travel in bfloat16 as well (exercise 8), though sums
# >   over many ranks are better added in float32.
# > - **Scaling** goes on until the exchange is longer than backward. Then the batch per rank is too small, or the
# >   network too slow, and Labs 3 to 5 have other ways to spread the work.
#
# ## What you did and measured here

# %% tags=["nbval-ignore-output"]
lab.progress()

# %% [markdown]
# ## What to remember
#
# - Equal at the start, equal gradients, equal steps: nothing else keeps the ranks together.
# - What is averaged are gradients. What *should* be averaged are tokens: choose the loss so that both agree.
# - A collective started early and waited for late costs what does not fit under the computation.
# - The batch is the job's, not the rank's. Keep it when the number of ranks changes.
#
# | claim | experiment | verdict |
# |---|---|---|
# | large models clip at 5 to 10 | two damaged batches, three thresholds | false |
# | warm-up is 1% of the steps | two rates, three warm-ups | no: it depends on the rate |
# | recompute above 512 tokens | activations by length, two attentions | false |
#
# Next, Lab 2: the layers themselves are cut.
