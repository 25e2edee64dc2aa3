# %% [markdown]
# # Lab 0: Ranks and collectives
#
# **You learn** what a rank is, how ranks talk, why they hang and how to read it; and you build all-reduce, the
# operation under all of data parallel training, from `send` and `receive` alone.
#
# **You need** PyTorch on one device. No GPU. **Time**: about two hours, 5 exercises. Numbers in the text are for 4
# ranks.
#
# How a lab works: run the cells in order. Where it asks for a guess, commit to one before you run on. An exercise is a
# function with a blank; run it, and the cell below it checks your answer on real processes. If it is not right yet, it
# says what it saw and what usually causes that. `lab.hint("name")` gives a hint, each call a bigger one. You can skip
# an exercise: the lab goes on with the library's version.

# %% tags=["nbval-ignore-output"]
import math
import os
import socket
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import lab, spmd
from course_lib.collectives import cost, measure
from course_lib.collectives.p2p import equal_chunks, neighbours, rank_and_size, send_recv, split
from course_lib.collectives.simple import naive_all_reduce
from course_lib.lab import pictures, widgets
from course_lib.timeline import span

lab.start("lab0")
RANKS = lab.ranks()

# %% [markdown]
# ## 0.1 What is a rank?
#
# A **rank** is a process that takes part in a job, and also its number: 0, 1, 2, ... The number of ranks is the
# **world size**. In training there is usually one rank per GPU; here there is one per process, on your CPU. All ranks
# run the same program. What differs is the number each one reads with `dist.get_rank()`. This style has a name: SPMD,
# single program, multiple data.
#
# Ranks that talk to each other form a **process group**. The library that carries their messages is the **backend**:
# NCCL between GPUs, gloo between CPUs. The first cell said which one you have.
#
# `spmd.run(fn, ranks=4)` starts four fresh processes, runs `fn` in each, and returns what they return, in order.
# (`RANKS` below is 4, unless you asked for another number with `make lab0 RANKS=3`.)

# %%
counter = 0


def hello():
    global counter
    counter += 1 + dist.get_rank()
    print(f"I am rank {dist.get_rank()} of {dist.get_world_size()}, my counter is {counter}")
    return counter


# %% [markdown]
# Each rank adds to `counter`. What will `counter` be in this notebook afterwards?

# %%
guess = lab.predict("counter in the notebook, after every rank has added 1 and its number to it")

# %%
results = spmd.run(hello, ranks=RANKS)
print("returned:", results)
print("the notebook's counter:", counter)
lab.reveal(guess, counter)

# %% [markdown]
# Still 0. Every rank got its own copy of the function and of what it uses. Ranks share no memory: the only way from
# one to another is a message. That is the whole subject.
#
# ## 0.2 Send and receive
#
# The smallest message: one rank calls `dist.send(tensor, dst)`, another `dist.recv(tensor, src)`. The receiver brings
# the memory; its tensor must have the right shape and dtype beforehand, because only the bytes travel.
#
# Below, rank 0 starts with sevens, and every further rank adds its own number to what it receives. What does the last
# rank hold?

# %%
guess = lab.predict(f"first element of the last of {RANKS} ranks")


# %%
def pass_it_on():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(3)
    if rank == 0:
        x += 7
    if rank > 0:
        dist.recv(x, src=rank - 1)
        x += rank
    if rank < n - 1:
        dist.send(x, dst=rank + 1)
    return x.tolist()


results = spmd.run(pass_it_on, ranks=RANKS)
for rank, x in enumerate(results):
    print(f"rank {rank}: {x}")
lab.reveal(guess, results[-1][0])

# %% [markdown]
# `recv` waits until the message is there. `send` waits too: until the other side takes the data. (A small message may
# be let through early by some backends. Programs that count on it work in the test and hang in production.)
#
# ### Your first deadlock
#
# Now all ranks stand in a ring. Each sends its tensor to the right neighbour, then receives from the left one. The
# code reads well. What will it do?

# %%
guess = lab.predict(
    "everybody sends to the right, then receives from the left",
    choices=["works", "raises an error at once", "waits for ever"],
)

# %% tags=["raises-exception"]
def shift():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.full((1000,), float(rank))
    received = torch.empty(1000)
    dist.send(x, dst=(rank + 1) % n)
    dist.recv(received, src=(rank - 1) % n)
    return received[0].item()


spmd.run(shift, ranks=RANKS, timeout=2)

# %%
lab.reveal(guess, "waits for ever")

# %% [markdown]
# Nobody receives, because everybody is still sending. Without the time-out this cell would run until you stop it. Read
# the explanation above: it says which rank waits, in which call, for whom, in which line. `spmd` can say that because
# it notes every call into `torch.distributed`. On a cluster you would get silence, and after 10 to 30 minutes a
# time-out that names none of this.
#
# The cure: start both, then wait for both. `isend` and `irecv` return at once with a handle whose `wait()` ends when
# the transfer has ended. In this lab `send_recv(out, to, into, source, group)` does just that: it sends `out` to rank
# `to` while it receives `into` from rank `source`.

# %%
def shift_without_waiting_in_turn():
    rank, n = rank_and_size()
    left, right = neighbours()
    x = torch.full((1000,), float(rank))
    received = torch.empty(1000)
    send_recv(x, right, received, left)
    return received[0].item()


spmd.run(shift_without_waiting_in_turn, ranks=RANKS)

# %% [markdown]
# ## 0.3 One to all: broadcast
#
# Training starts with one rank telling all others its weights. A call that all ranks of a group make together is
# called a **collective**. This one is a **broadcast**, and the rank that has the data is its **root**.
#
# The obvious way: the root sends to rank 1, then to rank 2, and so on: $n - 1$ messages, one after the other. But
# after the first message there are two ranks that have the data. Why should only one of them send?

# %%
guess = lab.predict("rounds until 64 ranks have the data, if everyone who has it helps", unit="rounds")

# %%
lab.reveal(guess, math.ceil(math.log2(64)))

# %% [markdown]
# Each round doubles the number of ranks that have it: 1, 2, 4, ... So $\lceil \log_2 n \rceil$ rounds. The picture is
# a binomial tree. Move the sliders: who sends to whom in each round, and how does that depend on the distance?

# %%
widgets.tree_stepper()

# %% [markdown]
# **Exercise 1: broadcast as a tree** · 15 min · ●○○
#
# `dist.send(x, group=group, group_dst=3)` sends to rank 3 *of that group* (`recv` has `group_src`). Here and below,
# ranks count within the group, so that your function works for a part of a job too. With `group=None`, the group of
# all ranks, these are simply the ranks.

# %% tags=["exercise"]
# exercise: course_lib.collectives.simple:tree_broadcast

# %% tags=["nbval-ignore-output"]
tree_broadcast = lab.check(tree_broadcast)

# %% [markdown]
# ## 0.4 Whose turn is it?
#
# After a backward pass every rank has gradients from its own share of the batch, and every rank needs their sum. That
# is **all-reduce**: everybody brings a tensor, everybody gets the sum.
#
# The obvious way again: all send to rank 0, rank 0 adds, rank 0 sends the sum back. Think of a rank's connection to
# all others as one cable, its **link**. Each rank has 16 MB. How many megabytes pass rank 0's link, in and out
# together? (1 MB is $10^6$ bytes.)

# %%
guess = lab.predict(f"MB through rank 0's link, {RANKS} ranks, 16 MB each", unit="MB")

# %%
def bytes_moved(all_reduce, megabytes=16):
    x = torch.full((megabytes * 250_000,), float(dist.get_rank()))
    with spmd.traffic() as moved:
        total = all_reduce(x)
    assert total[0] == sum(range(dist.get_world_size()))
    return moved


naive = list(spmd.run(bytes_moved, naive_all_reduce, ranks=RANKS))
lab.reveal(guess, (naive[0].sent + naive[0].received) / 1e6)

# %%
pictures.link_load({"all to rank 0 and back": naive})

# %% [markdown]
# With 4 ranks: 96 MB at rank 0, 32 MB at the others. With 64 ranks it would be 2,016 MB: rank 0 works for the whole
# cluster, and 63 ranks wait. The trouble is not the bytes in total; it is that they all pass one link.
#
# So let every link carry the same. Cut each tensor into $n$ **chunks**, and make each rank responsible for the sum of
# one of them. Then let the sums travel round the ring, each rank adding its share as they pass. That is half of the
# ring all-reduce (Patarasuk and Yuan, 2009). The other half sends the finished sums round once more.
#
# Step through it. Which chunk does a rank send first? Which one is finished where after $n - 1$ steps?

# %%
widgets.ring_stepper(ranks=min(RANKS, 8))

# %% [markdown]
# **Exercise 2: ring reduce-scatter** · 20 min · ●●○
#
# The first half has a name of its own: **reduce-scatter**. Rank $r$ ends with chunk $r$ of the sum. So where must that
# sum set out, $n - 1$ steps earlier?

# %% tags=["exercise"]
# exercise: course_lib.collectives.simple:ring_reduce_scatter

# %% tags=["nbval-ignore-output"]
ring_reduce_scatter = lab.check(ring_reduce_scatter)

# %% [markdown]
# **Exercise 3: ring all-gather** · 15 min · ●●○
#
# The second half: every rank has one chunk, every rank wants all of them.

# %% tags=["exercise"]
# exercise: course_lib.collectives.simple:ring_all_gather

# %% tags=["nbval-ignore-output"]
ring_all_gather = lab.check(ring_all_gather)

# %% [markdown]
# **Exercise 4: all-reduce, for any size** · 20 min · ●●●
#
# Both halves, and no more luck with the sizes. Gradients do not come in multiples of $n$, so the chunks may differ by
# one element, and with fewer elements than ranks some are empty. `chunks` holds views: writing into `chunks[i]` writes
# into `total`.

# %% tags=["exercise"]
# exercise: course_lib.collectives.simple:all_reduce

# %% tags=["nbval-ignore-output"]
all_reduce = lab.check(all_reduce)

# %% [markdown]
# Same question as before: how many megabytes through a rank's link, in and out together? Work it out before you look:
# $2(n - 1)$ steps, one chunk of $16 / n$ MB out and one in.

# %%
guess = lab.predict(f"MB through each rank's link, ring all-reduce, {RANKS} ranks, 16 MB", unit="MB")

# %%
ring = list(spmd.run(bytes_moved, all_reduce, ranks=RANKS))
lab.reveal(guess, (ring[1].sent + ring[1].received) / 1e6)

# %%
pictures.link_load({"all to rank 0 and back": naive, "ring": ring})

# %% [markdown]
# With 4 ranks: 48 MB on each link, 24 in and 24 out. In general each rank sends $2 \cdot \frac{n-1}{n}$ times its
# tensor: never twice as much, however many ranks there are. And no all-reduce made of messages between ranks gets by
# with less on its busiest link (Patarasuk and Yuan prove it). Rank 0 is no longer special; that, too, is a virtue.
#
# ## 0.5 What does a message cost?
#
# If the ring moves the least bytes possible, is it always the fastest? That depends on what a message costs. Two
# numbers go far (the **alpha-beta model**): $t = \alpha + \beta \cdot \text{size}$. $\alpha$ is the time a message
# takes however short it is: the **latency**. $\beta$ is the time per byte; $1/\beta$ is the **bandwidth**.
#
# Measure them on two ranks, with messages of 4 bytes to 16 MB: both send and both receive, as in a ring. First, a
# guess: a message of 4 bytes, how many microseconds on this machine?

# %%
guess = lab.predict("time of a message of 4 bytes, here", unit="µs")


# %%
def message_times(sizes, repeats=30):
    """Seconds of one message to the right and one from the left, for each size in bytes."""
    left, right = neighbours()
    seconds = []
    for size in sizes:
        x, received, taken = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8), []
        for _ in range(repeats + 1):
            dist.barrier()
            start = time.perf_counter()
            send_recv(x, right, received, left)
            taken.append(time.perf_counter() - start)
        seconds.append(sorted(taken[1:])[repeats // 2])  # the first one warms up
    return torch.tensor(seconds, dtype=torch.float64)


# %% tags=["nbval-ignore-output"]
sizes = torch.tensor([4.0**power for power in range(1, 13)], dtype=torch.float64)  # bytes
seconds = spmd.run(message_times, sizes.long().tolist(), ranks=2)[0]
lab.reveal(guess, seconds[0] * 1e6)

# %% [markdown]
# **Exercise 5: fit alpha and beta** · 15 min · ●●○
#
# Draw the line through the points. One trap: the times span orders of magnitude. Least squares on the seconds
# themselves listens only to the largest messages, and returns an $\alpha$ that is mere noise. What should be small is
# the *relative* error of each point: divide each equation $\alpha + \beta \cdot \text{size} = t$ by its $t$ first.

# %% tags=["exercise"]
# exercise: course_lib.collectives.cost:fit_alpha_beta

# %% tags=["nbval-ignore-output"]
fit_alpha_beta = lab.check(fit_alpha_beta)

# %% tags=["nbval-ignore-output"]
alpha, beta = fit_alpha_beta(sizes, seconds)
lab.figure("alpha: latency of a message, 2 ranks", alpha, "s")
lab.figure("1/beta: bandwidth of a link, 2 ranks", 1 / beta, "B/s")
pictures.message_cost(sizes, seconds, alpha, beta)

# %% [markdown]
# At the thin line half of the time is $\alpha$ and half is $\beta \cdot \text{size}$. Left of it a message costs
# nearly the same whatever its size: there you want *few messages*. Right of it the bytes decide: there you want *few
# bytes*. So compare two all-reduces on 4 ranks:
#
# - the **tree**: reduce to rank 0 along a tree, broadcast back. $2 \lceil\log_2 n\rceil = 4$ rounds, each with the
#   whole tensor.
# - the **ring**: $2(n - 1) = 6$ steps, each with a quarter of it.
#
# The explorer starts at your $\alpha$, $\beta$ and ranks. Where do tree and ring cross? What becomes of the crossover
# with 8 ranks? Two more curves are there: *naive* is all to rank 0 and back; *halving* has few steps *and* few bytes:
# in each step a rank exchanges half of what is left with a partner. It needs a power of two; choose 6 ranks to see
# what it pays otherwise.

# %% tags=["nbval-ignore-output"]
widgets.cost_explorer(alpha=alpha, beta=beta, ranks=RANKS)

# %%
small = lab.predict(f"the faster all-reduce of 4 KB on {RANKS} ranks", choices=["tree", "ring"])

# %%
large = lab.predict(f"the faster all-reduce of 64 MB on {RANKS} ranks", choices=["tree", "ring"])

# %% tags=["nbval-ignore-output"]
def race(names, sizes):
    candidates = measure.candidates("all_reduce")
    return measure.measure({name: candidates[name] for name in names}, sizes, repeats=5)


def by_the_model(alpha, beta):
    costs = {name: cost.cost("all_reduce", name, RANKS) for name in names}
    return {name: partial(costs[name].seconds, alpha=alpha, beta=beta) for name in names}


names, lengths = ("tree", "ring"), [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
timings = spmd.run(race, names, lengths, ranks=RANKS)[0]
measured = {name: [t.median for t in timings if t.name == name] for name in names}
pictures.predicted_and_measured(lengths, by_the_model(alpha, beta), measured)

# %% tags=["nbval-ignore-output"]
lab.reveal(small, min(names, key=lambda name: measured[name][0]))

# %% tags=["nbval-ignore-output"]
lab.reveal(large, min(names, key=lambda name: measured[name][-1]))

# %% [markdown]
# Look at the order first, then at the times. The order should be right: few steps win for small tensors, few bytes for
# large ones. The times are another matter: where the ranks outnumber the cores, the tree may come near the model,
# while the ring takes two or three times as long as predicted. What does the model leave out?
#
# It gives each rank a processor and a link of its own. You measured $\alpha$ and $\beta$ on two ranks. In the tree few
# ranks talk at the same time; in the ring all of them do, on the same cores, and the "link" between them is memory
# copied by those very cores. So measure a message once more, as the ring sends it: all ranks at once.

# %% tags=["nbval-ignore-output"]
crowded = torch.stack(list(spmd.run(message_times, sizes.long().tolist(), ranks=RANKS))).max(0).values
alpha_n, beta_n = fit_alpha_beta(sizes, crowded)
lab.figure(f"alpha: latency of a message, {RANKS} ranks at once", alpha_n, "s")
lab.figure(f"1/beta: bandwidth of a link, {RANKS} ranks at once", 1 / beta_n, "B/s")
pictures.predicted_and_measured(lengths, by_the_model(alpha_n, beta_n), measured)

# %% [markdown]
# Now the ring's line should pass nearer to its points, and the tree's above its own. A model is as good as the numbers
# it is fed: $\alpha$ and $\beta$ belong to a machine *and* to how many ranks talk at once. On a cluster it is the same
# with ranks that share a network card. What is still missing: adding up what arrives, and waiting for the slowest
# rank. NCCL, too, chooses between ring and tree by a model of this kind.

# %% [markdown]
# ## 0.6 Folklore, put to the test
#
# **"A barrier is needed before a broadcast, or it deadlocks when rank 0 is late."** A **barrier** is a collective that
# moves nothing: all wait until all are there. Rank 0 loads data for 0.4 s. Does the broadcast need the barrier?

# %%
guess = lab.predict(
    "rank 0 comes 0.4 s late to a broadcast, and there is no barrier",
    choices=["deadlock", "wrong values", "works, at the same time as with a barrier"],
)


# %%
def late_root(barrier):
    x, start = torch.zeros(4), time.perf_counter()
    if dist.get_rank() == 0:
        with span("rank 0 loads"):
            time.sleep(0.4)
            x += 7
    if barrier:
        dist.barrier()
    dist.broadcast(x, 0)
    return x.tolist(), time.perf_counter() - start


# %% tags=["nbval-ignore-output"]
for barrier in (False, True):
    results = spmd.run(late_root, barrier, ranks=RANKS)
    values, taken = [x for x, _ in results], max(seconds for _, seconds in results)
    print(f"barrier: {barrier!s:5}  all right: {values == [[7.0] * 4] * RANKS}  seconds: {taken:.2f}")
results.timeline.draw(title="With the barrier: everybody waits for rank 0, as without it")

# %%
lab.reveal(guess, "works, at the same time as with a barrier")

# %% [markdown]
# **Verdict: false.** A broadcast already waits: a rank that receives cannot go on before the data is there. The
# barrier adds a wait and no safety. What does hang is a collective that not all ranks call; a barrier in the wrong
# place is one itself:

# %% tags=["raises-exception"]
def barrier_on_rank_0_only():
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        x += 7
        dist.barrier()
    dist.broadcast(x, 0)


spmd.run(barrier_on_rank_0_only, ranks=RANKS, timeout=2)

# %% [markdown]
# (A barrier *is* needed where something passes outside of the group: rank 0 writes a file, the others read it.)
#
# **"A MASTER_PORT that is in use makes the job deadlock."** On a cluster a launcher such as `torchrun` starts the
# ranks. Each calls `dist.init_process_group`; rank 0 opens the port `MASTER_PORT`, and the others connect to it. That
# is how they find one another: the **rendezvous**. (`spmd` has done it for you, in a file, so that no lab of yours can
# trip over a port. A call of your own replaces its group.) Here a stranger holds the port already.

# %%
guess = lab.predict(
    "the port is taken by another program",
    choices=["all ranks hang", "all ranks fail at once", "rank 0 fails at once, the others wait"],
)


# %% tags=["nbval-ignore-output", "raises-exception"]
def join_at(port):
    os.environ["MASTER_PORT"] = str(port)
    start = time.perf_counter()
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    except dist.DistNetworkError as error:
        print(f"after {time.perf_counter() - start:.2f} s: {str(error).splitlines()[0][:160]}")


with socket.create_server(("127.0.0.1", 0)) as stranger:
    spmd.run(join_at, stranger.getsockname()[1], ranks=RANKS, timeout=3)

# %%
lab.reveal(guess, "rank 0 fails at once, the others wait")

# %% [markdown]
# **Verdict: half true.** It is no deadlock. Rank 0 fails at once, with a plain error (`EADDRINUSE`). The *others*
# found somebody at that port and wait for an answer, until their time-out. `spmd` stopped them early, because it knows
# that rank 0 will not come; torch does not. Whoever reads the log of rank 2 sees a hang; whoever reads that of rank 0
# sees the cause. So: read rank 0's first error; let `torchrun` supervise (it ends all ranks when one fails); and take
# a free port (`torchrun --standalone`).
#
# ## On GPUs
#
# > - **Same code, another backend.** With a GPU for each rank, `spmd` starts the ranks on NCCL, and the same `dist`
# >   calls take CUDA tensors (`device=spmd.device()`). CPU tensors still go by gloo, so this notebook runs there as it
# >   is.
# > - **Other numbers.** An all-reduce among 8 H100 uses each NVLink at 370 GB/s, one across nodes uses a 400 Gb/s
# >   network card at 48 GB/s (NVIDIA, GTC 2024, session S62129). So $\beta$ differs by a factor of 8 *within* one job,
# >   and that is why labs 2 to 4 care about who talks to whom.
# > - **A call returns before it is done.** NCCL works on a CUDA stream. Time it with CUDA events, or after
# >   `torch.cuda.synchronize()`; what you would time otherwise is the launch.
# > - **Hangs last longer.** The default time-out is 10 minutes with NCCL and 30 with gloo (documentation of
# >   `init_process_group`). Meanwhile the GPU looks busy: a waiting NCCL kernel spins.
#
# ## What you did and measured here

# %% tags=["nbval-ignore-output"]
lab.progress()

# %% [markdown]
# ## What to remember
#
# - Ranks share nothing. All that passes between them is a message that both sides agree on.
# - Every rank of a group calls the same collectives in the same order, with the same shapes and dtypes. Nearly every
#   hang breaks this rule, and the rank that shows it is not the rank that broke it.
# - Ring: least bytes, $2(n - 1)$ messages. Tree: few messages, more bytes. $\alpha$ and $\beta$ decide.
#
# | claim | experiment | verdict |
# |---|---|---|
# | a barrier is needed before a broadcast | rank 0 late, with and without one | false |
# | a busy MASTER_PORT deadlocks | a stranger on the port | rank 0 fails at once; the others only look hung |
#
# Next, Lab 1: all-reduce meets the backward pass.
