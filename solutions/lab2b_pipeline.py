# %% [markdown]
# # Lab 2b: Pipeline by hand
#
# **You learn** how a model is cut into stages that work at the same time; where the waiting comes from and what it
# costs; why the order of forwards and backwards decides about memory; how a backward pass in two parts fills the gaps.
# You write the orders, run them on real ranks, and lay what happened over what was planned.
#
# **You need** Lab 0 (send and receive). Lab 1 helps. No GPU. **Time**: about three hours, 5 exercises, and a schedule
# of your own. Numbers in the text are for 4 ranks.

# %% tags=["nbval-ignore-output"]
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from course_lib import lab, spmd
from course_lib.collectives.p2p import irecv, isend, rank_and_size, wait
from course_lib.lab import plots, schedules
from course_lib.lab.paced import Paced
from course_lib.lab.widgets import pipeline_builder
from course_lib.lab.widgets.pipeline_levels import LEVELS, floor
from course_lib.models import GPT, GPTConfig
from course_lib.parallel.pipeline.generators import gpipe, interleaved, one_f_one_b, zb_h1, zbv
from course_lib.parallel.pipeline.runtime import Pipeline
from course_lib.parallel.pipeline.schedule import from_kinds
from course_lib.parallel.pipeline.simple import bubble
from course_lib.parallel.pipeline.simple_stage import receive
from course_lib.parallel.pipeline.simulate import Costs, simulate
from course_lib.parallel.pipeline.stage import GPTStage, balance
from course_lib.training.recompute import saved_bytes

lab.start("lab2b")
RANKS = lab.ranks()
PAIR = min(2, RANKS)

# %% [markdown]
# ## 2b.1 A queue of ranks
#
# A model too large for one device can be cut between its layers. Each rank holds some of them in a row, a **stage**. A
# batch enters at the first stage; the output goes to the second rank, and so on. At the last one is the loss; from
# there the gradients travel back. What a rank sends is one activation per token, however many layers it holds:
# pipeline parallelism needs the least communication of all, and is what connects machines.
#
# The trouble is the word "then". While rank 3 works, what do the others do?

# %%
guess = lab.predict("of a step of one batch on 8 stages, the share in which a rank works", unit="%")

# %%
alone = simulate(gpipe(8, 1))
lab.reveal(guess, 100 * (1 - alone.bubble))

# %% tags=["nbval-ignore-output"]
schedules.plan(alone, "One batch on 8 stages")

# %% [markdown]
# One rank at a time. Eight devices do the work of one. The grey part is called the **bubble**: the share of the step
# in which a rank has nothing to do. This picture is a simulation: forward takes 1, backward 2 (it computes two
# gradients for each product of forward), messages are free.
#
# So cut the batch, too: into **micro-batches**, which follow each other through the stages. When rank 0 is done with
# the first, it starts on the second. Their gradients add up to the gradient of the batch (Lab 1, accumulation), and
# the optimizer steps once at the end. The simplest order is GPipe's: all forwards, then all backwards.
#
# An order is a list: `("F", 3)` is the forward of micro-batch 3, `("B", 3)` its backward.
#
# **Exercise 1: the order of GPipe** · 5 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.pipeline.simple:gpipe_order

# %% tags=["nbval-ignore-output"]
gpipe_order = lab.check(gpipe_order)


# %%
def schedule_of(order, n_ranks, m, name):
    """A table of actions: the order of every rank, by a function like gpipe_order."""
    return from_kinds([order(rank, n_ranks, m) for rank in range(n_ranks)], name)


cut = simulate(schedule_of(gpipe_order, RANKS, 8, "GPipe"))

# %% tags=["nbval-ignore-output"]
schedules.plan(cut, f"GPipe: 8 micro-batches on {RANKS} stages")

# %% [markdown]
# Count the grey on any row: a rank waits for $p - 1$ forwards and $p - 1$ backwards of others, whatever the number of
# micro-batches $m$. It works for $m$ of each. So the bubble is $\frac{p - 1}{m + p - 1}$ of the step, $p$ the number
# of stages. (Some papers divide by the working time instead, and get $\frac{p - 1}{m}$.) More micro-batches, less
# bubble.
#
# **Exercise 2: how many micro-batches?** · 10 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.pipeline.simple:micro_batches_for

# %% tags=["nbval-ignore-output"]
micro_batches_for = lab.check(micro_batches_for)

# %%
guess = lab.predict("micro-batches that bring the bubble of 8 stages to 20%", unit="micro-batches")

# %%
lab.reveal(guess, micro_batches_for(8, 0.20))

# %% tags=["nbval-ignore-output"]
counts = [1, 2, 4, 8, 16, 32, 64]
shares = {f"{p} stages": (counts, [100 * bubble(p, m) for m in counts]) for p in (2, 4, 8, 16)}
plots.curves(shares, "The bubble", "micro-batches", "% of the step", log="x")

# %% [markdown]
# About four times as many micro-batches as stages bring it to a fifth; halving it again takes twice as many. But a
# micro-batch that is too small makes bad use of a device, and the batch is what it is: with 64 sequences there are 64
# micro-batches at most.
#
# ## 2b.2 What is kept
#
# Backward needs what forward computed: the **activations**. From its forward to its backward, a micro-batch is in
# memory. How many are there at once?

# %%
guess = lab.predict(f"GPipe, 16 micro-batches on {RANKS} ranks: the most that rank 0 holds", unit="micro-batches")

# %%
lab.reveal(guess, int(simulate(gpipe(RANKS, 16)).peaks[0]))

# %% [markdown]
# All of them: GPipe turns round only when the last forward is done. So what shrinks the bubble fills the memory. But
# look at the picture above: the last rank could run the backward of micro-batch 0 right after its forward, and then
# everybody could start to let go. The order that does so is **1F1B**: one forward, one backward, in turns.
#
# Before the turns begin, a rank needs some forwards under way, or it would wait for the first backward in vain: its
# **warm-up**. The last rank needs none. Going back one rank, a micro-batch has one more stage to go out through and
# one more to come back from, so one more forward fits in. At the end the backwards that are left over follow: the
# **cool-down**.
#
# **Exercise 3: one forward, one backward** · 20 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.pipeline.simple:one_f_one_b_order

# %% tags=["nbval-ignore-output"]
one_f_one_b_order = lab.check(one_f_one_b_order)

# %%
guess = lab.predict("the bubble of 1F1B, next to GPipe's", choices=["smaller", "the same", "larger"])

# %%
turns = simulate(schedule_of(one_f_one_b_order, RANKS, 8, "1F1B"))
same = abs(turns.makespan - cut.makespan) < 1e-9
lab.reveal(guess, "the same" if same else "smaller" if turns.makespan < cut.makespan else "larger")

# %% tags=["nbval-ignore-output"]
schedules.plan(turns, f"1F1B: 8 micro-batches on {RANKS} stages")

# %% [markdown]
# The same number of grey blocks, moved elsewhere: 1F1B saves memory, not time. Rank 0 holds at most $p$ micro-batches,
# the last rank one, however many there are in the step. *That* is what lets you raise $m$, and so shrink the bubble.

# %% tags=["nbval-ignore-output"]
CONFIG = GPTConfig(256, dim=128, n_layers=8, n_heads=4, n_kv_heads=4, ffn_dim=384, max_seq_len=64)


def micro_batches(m, rows=2):
    """m micro-batches of made-up text: tokens and those that follow them, (rows, 65) each."""
    return list(torch.randint(256, (m, rows, 65), generator=torch.Generator().manual_seed(0)).to(spmd.device()))


def tokens_of(batch):
    return batch[:, :-1]


def share_of(m):
    """The loss of one of m equal micro-batches: its share of the step's."""

    def share(logits, batch):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / m

    return share


def stages_of(schedule):
    """This rank's stages of the GPT: layers shared out evenly, with the values they have in the whole model."""
    parts = balance([1] * CONFIG.n_layers, schedule.n_stages)
    return {s: GPTStage(CONFIG, parts[s]).to(spmd.device()) for s in schedule.stages_of(dist.get_rank())}


def held(schedule):
    """The most activations that this rank held at once in a real step, in MB."""
    stages, m = stages_of(schedule), schedule.n_micro_batches
    pipeline = Pipeline(stages, schedule)
    pipeline.step(micro_batches(m), tokens_of, share_of(m))
    stage = next(iter(stages.values()))
    x = tokens_of(micro_batches(1)[0])
    x = x if stage.first else torch.zeros(*x.shape, CONFIG.dim, device=x.device)
    return pipeline.peak_held * saved_bytes(lambda: stage(x).sum()) / 1e6


kept = {}
for schedule in (gpipe(RANKS, 16), one_f_one_b(RANKS, 16)):
    for rank, megabytes in enumerate(spmd.run(held, schedule, ranks=RANKS)):
        kept[f"{schedule.name}, rank {rank}"] = megabytes
plots.bars(kept, "Activations, 16 micro-batches in a step", "MB held at once")

# %% [markdown]
# ## 2b.3 On real ranks
#
# Now one stage of it, for real. A forward takes its input from the rank before, a backward its gradient from the rank
# after. What is received is a tensor without a past: it must be told that it wants a gradient, and *its* gradient is
# what goes back.
#
# One thing decides whether it ends: `isend` starts to send and returns, `send` waits until the other side receives. In
# 1F1B neighbours send to each other in the same moment.
#
# **Exercise 4: one stage** · 25 min · ●●●

# %% tags=["exercise"]
# exercise: course_lib.parallel.pipeline.simple_stage:run_stage

# %% tags=["nbval-ignore-output"]
run_stage = lab.check(run_stage)

# %%
guess = lab.predict("two ranks, 1F1B, with `send` in place of `isend`", choices=["works", "works, but slower", "stops"])


# %% tags=["raises-exception", "nbval-ignore-output"]
def both_send_first():
    """What ranks 0 and 1 do in the middle of 1F1B, as far as messages go."""
    x, other = torch.ones(200_000), 1 - dist.get_rank()
    if dist.get_rank() == 0:
        dist.send(x, other)  # the forward of micro-batch 0
        dist.send(x, other)  # the forward of micro-batch 1
        dist.recv(x, other)  # the gradient of micro-batch 0
    else:
        dist.recv(x, other)
        dist.send(x, other)  # the gradient of micro-batch 0
        dist.recv(x, other)


spmd.run(both_send_first, ranks=2, timeout=2)

# %%
lab.reveal(guess, "stops")

# %% [markdown]
# Rank 0 stands in `send` with micro-batch 1, rank 1 stands in `send` with a gradient; neither receives. Every
# implementation starts its sends and goes on, or exchanges both in one call.
#
# And is it the same training? All stages together against one process, after one step of 4 micro-batches:

# %%
guess = lab.predict("largest difference between their gradients, in float64")


# %%
def largest_difference(order, m=4):
    """Between the gradients of this rank's stage and those of the same layers in one process."""
    rank, n = dist.get_rank(), dist.get_world_size()
    stage = GPTStage(CONFIG, balance([1] * CONFIG.n_layers, n)[rank]).to(spmd.device(), torch.float64)
    whole = GPT(CONFIG).to(spmd.device(), torch.float64)
    batches, share = micro_batches(m), share_of(m)
    like = [whole.embedding(tokens_of(batch)).detach() for batch in batches]
    inputs = [tokens_of(batch) for batch in batches] if stage.first else like
    run_stage(stage, order(rank, n, m), inputs, lambda y, i: share(y, batches[i]))
    sum(share(whole(tokens_of(batch)), batch) for batch in batches).backward()
    expected = dict(whole.named_parameters())
    return max((p.grad - expected[name].grad).abs().max().item() for name, p in stage.named_parameters())


# %% tags=["nbval-ignore-output"]
difference = max(spmd.run(largest_difference, one_f_one_b_order, ranks=RANKS))
lab.reveal(guess, difference)

# %% [markdown]
# Rounding, nothing else: a pipeline changes when things are computed, not what. (The shares are divided by the number
# of micro-batches **once**, in the loss. If the stage divides what it receives once more, nothing fails; the model
# learns slower.)
#
# ## 2b.4 What was planned, and what happened
#
# A schedule is data: a table with the actions of every rank. So it can be checked, simulated, and run. From here on
# the library's `Pipeline` runs it; it does what your `run_stage` does, for any number of stages on a rank. Each action
# is recorded, so that the plan and the run can be drawn on one axis.
#
# Your machine may have fewer cores than ranks. So these stages take the time they are told to, and no processor: they
# wait where a device would compute. What you see is the schedule itself, with real messages between real ranks.

# %% tags=["nbval-ignore-output"]
PACE = 0.02  # seconds of F, of I and of W


def paced(schedule, pace=PACE, steps=2):
    """Seconds of a step on this rank, with stages that take a fixed time."""
    stages = {s: Paced(8, pace, pace, pace) for s in schedule.stages_of(dist.get_rank())}
    pipeline, batches = Pipeline(stages, schedule), [torch.ones(2, 8)] * schedule.n_micro_batches
    for _ in range(steps):
        dist.barrier()
        start = time.perf_counter()
        pipeline.step(batches, lambda x: x, lambda y, _: y.sum())
    return time.perf_counter() - start


table = schedule_of(one_f_one_b_order, RANKS, 6, "1F1B")
ran = spmd.run(paced, table, ranks=RANKS)
schedules.plan_and_measured(simulate(table, Costs(PACE, PACE, PACE)), ran.timeline, "1F1B: planned and measured")

# %% [markdown]
# The measured row runs a little late: a message takes time, and each action some Python. Where a rank is late, those
# after it in the chain of waits are late too. Now real layers, on as many ranks as this machine certainly has cores
# for: two. What does a stage cost? The simulation is given the mean times of the run itself.


# %% tags=["nbval-ignore-output"]
def real(schedule, steps=3):
    pipeline, m = Pipeline(stages_of(schedule), schedule), schedule.n_micro_batches
    for _ in range(steps):
        dist.barrier()
        pipeline.step(micro_batches(m, rows=8), tokens_of, share_of(m))


def mean_seconds(table, measured, kind):
    """By stage."""
    blocks = [b for row in schedules.measured_blocks(simulate(table), measured) for b in row if b.action.kind == kind]
    times = [[b.end - b.start for b in blocks if b.action.stage == s] for s in range(table.n_stages)]
    return [sum(each) / len(each) for each in times]


table = schedule_of(one_f_one_b_order, PAIR, 6, "1F1B")
ran = spmd.run(real, table, ranks=PAIR)
forward, backward = (mean_seconds(table, ran.timeline, kind) for kind in "FB")
costs = Costs(forward, input=backward, weight=0.0)
schedules.plan_and_measured(simulate(table, costs), ran.timeline, f"The GPT on {PAIR} ranks, planned and measured")

# %% [markdown]
# Two things to see. Backward takes about twice as long as forward. And the stages are not equal: the last one has the
# head and the loss besides its layers. The slowest stage sets the pace, and the others wait for it; so large models
# give the first and the last stage fewer layers (`balance` in `parallel/pipeline/stage.py` finds the best cut).
#
# ## 2b.5 More stages than ranks
#
# The bubble is $p - 1$ forwards and backwards *of a stage*. So make stages smaller. Give each rank two, from different
# places in the model: rank 0 the first eighth of the layers and the fifth. A micro-batch goes round twice, and the
# pipeline is full sooner. This is **interleaved 1F1B** (Megatron-LM).

# %%
guess = lab.predict("the waiting of interleaved 1F1B with two stages per rank, over that of 1F1B", unit="times")

# %%
plain, twice = one_f_one_b(RANKS, 2 * RANKS), interleaved(RANKS, 2 * RANKS, 2)
whole, halves = simulate(plain), simulate(twice, Costs(0.5, 0.5, 0.5))
waiting = [each.bubble * each.makespan for each in (whole, halves)]
lab.reveal(guess, waiting[1] / waiting[0])

# %% tags=["nbval-ignore-output"]
schedules.plan(halves, f"Interleaved 1F1B: two stages on each of {RANKS} ranks")

# %% [markdown]
# Half of it, and a third with three stages on each. The price: twice the messages, and more activations held. It pays
# as long as messages are cheap next to a stage.
#
# ## 2b.6 Backward in two parts
#
# A linear layer's backward is two matrix products: the gradient of its **input**, for which the rank before waits, and
# the gradient of its **weight**, for which nobody waits until the optimizer steps. Autograd computes both together. If
# they come apart, the second can be done where a rank would idle.
#
# Below, `later` is a list of things to do. Watch what the function you put there will still know when it is called.
#
# **Exercise 5: leave the weight's gradient for later** · 15 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.pipeline.simple_stage:LinearInTwo

# %% tags=["nbval-ignore-output"]
LinearInTwo = lab.check(LinearInTwo)

# %% [markdown]
# In a table the parts are called I (input) and W (weight). **ZB-H1** is 1F1B with each W put off until its rank would
# wait. It holds no more micro-batches than 1F1B's first rank.

# %%
guess = lab.predict(f"the bubble of ZB-H1 over that of 1F1B, {RANKS} ranks, F, I and W equally long", unit="times")

# %%
filled = simulate(zb_h1(RANKS, 2 * RANKS))
lab.reveal(guess, filled.bubble * filled.makespan / waiting[0])

# %% tags=["nbval-ignore-output"]
table = zb_h1(RANKS, 2 * RANKS)
ran = spmd.run(paced, table, ranks=RANKS)
schedules.plan_and_measured(simulate(table, Costs(PACE, PACE, PACE)), ran.timeline, "ZB-H1: planned and measured")

# %% [markdown]
# What is left is the way in: the last rank cannot start before the first micro-batch arrives. **ZBV** places two
# stages on each rank in the shape of a V: rank 0 has the first *and the last*. So the loss is computed on rank 0, the
# first backward starts there, and where the V turns, in the last rank, a stage hands over to the next without any
# message.
#
# Five schedules, the same work. What does each take, on paper and for real?

# %% tags=["nbval-ignore-output"]
ways = [gpipe(RANKS, 2 * RANKS), plain, twice.renamed("interleaved"), table, zbv(RANKS, 2 * RANKS)]
steps, planned, peaks = {}, {}, {}
for way in ways:
    pace = PACE * RANKS / way.n_stages
    on_paper = simulate(way, Costs(pace, pace, pace, activation=RANKS / way.n_stages))
    measured = max(spmd.run(paced, way, pace, ranks=RANKS))
    steps[f"{way.name}: planned"], steps[f"{way.name}: measured"] = on_paper.makespan * 1e3, measured * 1e3
    peaks[way.name] = max(on_paper.peaks)
plots.bars(steps, f"{2 * RANKS} micro-batches on {RANKS} ranks (no bubble: {6 * RANKS * PACE * 1e3:.0f} ms)",
           "milliseconds of a step")  # fmt: skip

# %% tags=["nbval-ignore-output"]
plots.bars(peaks, "What the fullest rank holds at once", "micro-batches of a whole rank's layers")

# %% [markdown]
# Every gain has its price. 1F1B buys memory for nothing. Interleaving buys time with messages and memory. ZB-H1 buys
# time with a more complicated backward; ZBV nearly all of it, if F, I and W take the same time: where they do not, its
# turns no longer fit into each other.
#
# ## 2b.7 Your own
#
# Can you do better than 1F1B? Three ranks, four micro-batches, and room for three activations on each. GPipe does not
# fit; 1F1B takes 18 time units. What is the shortest step you can think of? F, I and W take 1 each, B takes 2.

# %%
guess = lab.predict("the shortest step of 4 micro-batches on 3 ranks", unit="time units")

# %% [markdown]
# Build it. On the right of each row is what its rank can run now; press it, and it is placed as early as it can start.
# A move that is not allowed says why: press a dashed one below. So does a gap. Pressing a block takes it back. The
# dashed line is par, 1F1B's time. Come to it with B alone, then beat it with I and W. When the board is full, **Run on
# real ranks** runs your schedule and lays what happened over your plan.
#
# The menu has more levels: messages that take time, a last stage that is heavier, two stages on each rank, the V.
# (Opened without a kernel, this is only a picture, of the schedule to beat.)

# %% tags=["nbval-ignore-output"]
game = pipeline_builder(level=2)
display(game)

# %% tags=["nbval-ignore-output"]
game.run()

# %% [markdown]
# This cell runs it too: your schedule if it is finished, 1F1B if it is not. How short can the step be?

# %%
lab.reveal(guess, floor(LEVELS[1]))

# %% [markdown]
# The last rank's first forward must wait for two others, and then it has 12 units of work: nothing is shorter than 14.
# ZB-H1 gets there, within the memory of 1F1B. To keep a schedule, copy its text; to share it, send it. The text is the
# schedule itself, as `Pipeline` runs it.
#
# ## 2b.8 The loss, once more
#
# Where micro-batches differ in size, "divide by m" is a mean of means (Lab 1). Here the last one has a single row, the
# others have two. By how much does the loss that is trained differ from the mean over all tokens?

# %%
guess = lab.predict("weight of a token in the last micro-batch, over one in the others", unit="times")

# %%
lab.reveal(guess, 2)

# %% [markdown]
# A half row's worth of tokens counts as much as a whole one's. `Pipeline.step` wants *shares*: each micro-batch's sum
# over the count of the **whole step**. The same rule as in Lab 1, and the same function.
#
# One more thing must be added up: a **tied** embedding. Where the head's matrix is the embedding's, the first rank and
# the last hold a copy each; each finds a part of its gradient, and both need the sum. Forget it, and the copies drift
# apart without a word.
#
# ## 2b.9 Folklore, put to the test
#
# **"A wrong micro-batch setting made our 65B run 8 times slower; the best number is a multiple of the GPU count."**

# %%
guess = lab.predict(f"time of a step with 1 micro-batch over that with 16, on {RANKS} ranks, same batch", unit="times")

# %% tags=["nbval-ignore-output"]
counts = [1, 2, 3, 4, 5, 6, 8, 12, 16]
batch_pace = 0.12  # seconds of F, of I and of W of the whole batch on one stage
taken = {m: max(spmd.run(paced, one_f_one_b(RANKS, m), batch_pace / m, 1, ranks=RANKS)) for m in counts}
on_paper = [simulate(one_f_one_b(RANKS, m), Costs(*[batch_pace / m] * 3)).makespan for m in counts]
lab.reveal(guess, taken[1] / taken[16])
plots.curves(
    {"planned": (counts, on_paper), "measured": (counts, list(taken.values()))},
    f"The same batch in m micro-batches, {RANKS} ranks", "micro-batches", "seconds of a step",
)  # fmt: skip

# %%
eight = simulate(gpipe(8, 1)).makespan / (simulate(gpipe(8, 64)).makespan / 64)
print(f"8 stages: 1 micro-batch takes {eight:.1f} times as long as 64")

# %% [markdown]
# Nothing happens at multiples of the ranks: the curve is $(m + p - 1) / m$, smooth. With $m = 1$ a pipeline of 8
# stages works 1/8 of the time: "8 times slower" is arithmetic, and on 12 stages it is 12. BLOOM's engineers measured 8
# TFLOP/s for $m = 1$ on 12 stages and 150 for $m = 128$, 18.7 times more (the formula says 11; the rest is that small
# batches use a GPU badly). Only Megatron's *interleaved* schedule wants $m$ to be a multiple, of the number of stages,
# not of the GPUs. **Verdict: right in size, wrong as a rule.** Take $m$ at least 4 times the stages.
#
# ## On GPUs
#
# > - **Nothing to edit.** With a GPU for each rank, stages and messages go to `spmd.device()` and NCCL.
# > - **NCCL keeps order.** It matches messages between two ranks by the order in which they were posted, and runs them
# >   on a stream: an activation that nobody awaits yet would stand in the way of a gradient. So the library gives each
# >   direction and kind a group of its own.
# > - **A pipeline crosses nodes.** It sends least. Tensor parallelism (Lab 2a) stays inside one.
# > - **m is bounded by memory and by the batch**; a micro-batch should still fill the GPU.
#
# ## What you did and measured here

# %% tags=["nbval-ignore-output"]
lab.progress()

# %% [markdown]
# ## What to remember
#
# - The bubble is $(p - 1)/(m + p - 1)$: a matter of counting, not of tuning.
# - GPipe and 1F1B take the same time; 1F1B holds $p$ micro-batches, GPipe all.
# - A send that is waited for can stop two neighbours for good.
# - Smaller stages, or a backward in two parts, shrink the bubble; each has its price.
# - Divide the loss once, by the whole step's tokens.
#
# Next, Lab 2c: experts.
