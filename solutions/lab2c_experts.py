# %% [markdown]
# # Lab 2c: Experts by hand
#
# **You learn** how a model can have many times the parameters for the same work per token; how tokens find their
# experts on other ranks and come back; what happens to those for whom there is no room; how the load is kept even, by
# a loss or without one; what an uneven load costs; and what "more efficient" can mean.
#
# **You need** Lab 0. Lab 1's corpus and model come up again. No GPU. **Time**: about two hours, 6 exercises. Numbers
# in the text are for 4 ranks.

# %% tags=["nbval-ignore-output"]
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib import lab, spmd
from course_lib.collectives.autograd import all_to_all
from course_lib.lab import plots
from course_lib.models import GPT, GPTConfig, flops_per_token, parameter_count
from course_lib.models.config import MoEConfig
from course_lib.models.moe import MoE, recorded
from course_lib.parallel.expert.dispatch import exchange_counts
from course_lib.parallel.expert.gpt import expert_parallel, reduce_gradients
from course_lib.parallel.expert.mesh import expert_mesh
from course_lib.training.data import Bytes, Loader, Packed, corpus, stream_of
from course_lib.training.loss import share_of_total, token_losses, valid_tokens

lab.start("lab2c")
RANKS = lab.ranks()
PAIR = min(2, RANKS)
EXPERTS = 12  # 2, 3 and 4 ranks divide it
DATA = Packed(stream_of(corpus()[:100], Bytes()), Bytes.end, seq_len=64)


def config(**experts):
    """A small GPT; with experts in the feed-forward's place if any are asked for."""
    moe = MoEConfig(EXPERTS, top_k=2, expert_dim=64, **experts) if experts.pop("moe", True) else None
    return GPTConfig(257, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=128, max_seq_len=64, moe=moe)


# %% [markdown]
# ## 2c.1 Many feed-forwards, and a choice
#
# In a **mixture of experts** the feed-forward of a layer is replaced by many, the **experts**. A **router**, one small
# matrix, gives each token a score for each expert; softmax makes probabilities of them. The token is computed by its
# **top k** experts only, k = 1 to 8, and their results are added up, weighted by their scores. So the parameters grow
# with the number of experts, and the work of a token with k.

# %%
dense, sparse = config(moe=False), config()
guess = lab.predict(f"parameters with {EXPERTS} experts, of which a token uses 2, over a dense model's", unit="times")

# %%
print(f"operations per token: {flops_per_token(dense, 64):,} dense, {flops_per_token(sparse, 64):,} with experts")
lab.reveal(guess, parameter_count(sparse) / parameter_count(dense))

# %% [markdown]
# Only the feed-forwards are multiplied; in a wide model they are two thirds of it.
#
# A batch of tokens chooses as it likes. An expert may get many or none. If its work is to be a matrix of fixed size,
# there must be a limit: the **capacity**. With $T$ tokens, $k$ choices each and $E$ experts, an even load is $Tk / E$
# each; capacity is that times a **capacity factor**, 1 to 2. A choice that comes when the expert is full is
# **dropped**: the token goes on without that expert.
#
# **Exercise 1: choose, up to a capacity** · 20 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.expert.simple:route_with_capacity

# %% tags=["nbval-ignore-output"]
route_with_capacity = lab.check(route_with_capacity)

# %% [markdown]
# A new router is a random matrix. How uneven are its choices on real text? At capacity factor 1 there is exactly room
# for all, if they were spread evenly.

# %%
guess = lab.predict("choices dropped at capacity factor 1, by an untrained router", unit="%")


# %% tags=["nbval-ignore-output"]
def dropped(scores, factor, k=2):
    capacity = int(factor * k * len(scores) / EXPERTS + 0.999)
    return 100 * (1 - route_with_capacity(scores, k, capacity)[2].double().mean()).item()


model = GPT(config())
with recorded(model) as routings, torch.no_grad():
    model(DATA.batch(range(32)).tokens)
scores = routings[0].scores.flatten(0, 1)
factors = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
share = [dropped(scores, factor) for factor in factors]
even = [dropped(torch.rand(len(scores), EXPERTS), factor) for factor in factors]
lab.reveal(guess, share[1])
plots.curves(
    {"an untrained router, on text": (factors, share), "choices by lot": (factors, even)},
    "What is dropped", "capacity factor", "% of the choices",
)  # fmt: skip

# %% [markdown]
# Text is uneven: the same few characters come again and again, and alike tokens choose alike. By lot, a little above 1
# would do. A higher capacity drops less and computes more empty rows; so most models of today drop nothing
# ("dropless") and compute groups of any size. What they must do instead is keep the load even: 2c.3.
#
# Two rules that matter for learning. What is dropped is *not* made up for: the weights of the other choices stay as
# they are, or a token's share would depend on who stood before it in the queue. And the router computes in float32,
# even where all else is 16 bits: in bfloat16 a score has three digits, and experts tie.
#
# ## 2c.2 There and back
#
# **Expert parallel**: the experts are spread over the ranks, and every rank has tokens of its own, as in data
# parallel. So a token must travel to its experts and back. Nobody knows beforehand how many go where. First each rank
# tells each other how many rows it will send; then the rows themselves go, by an **all-to-all** with a different
# number for each pair; the experts work; the results come back the same way, with the counts swapped, and must be put
# back in the order of the tokens.
#
# **Exercise 2: dispatch and combine** · 30 min · ●●●

# %% tags=["exercise"]
# exercise: course_lib.parallel.expert.simple:dispatch_and_combine

# %% tags=["nbval-ignore-output"]
dispatch_and_combine = lab.check(dispatch_and_combine)

# %% [markdown]
# Now and then a rank has nothing: padding only, or no token chose its experts. "Nothing to do, so return":

# %%
guess = lab.predict(
    "a rank without tokens returns before the exchange", choices=["the others go on", "all wait for it"]
)


# %% tags=["raises-exception", "nbval-ignore-output"]
def early_return(tokens=6, dim=4):
    n, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randn(0 if rank == 1 else tokens, dim)
    if len(x) == 0:
        return x  # what could there be to do?
    chosen, weights = torch.zeros(len(x), 1, dtype=torch.int64), torch.ones(len(x), 1)
    return dispatch_and_combine(x, chosen, weights, lambda rows, which: rows, n)


spmd.run(early_return, ranks=RANKS, timeout=2)

# %%
lab.reveal(guess, "all wait for it")

# %% [markdown]
# An exchange is a collective: everybody takes part, with zero rows if need be. And once more in backward, where it is
# harder to see: so even an expert that got no rows must be called, or autograd has no path through its exchange.
#
# How much is sent? Each token's row goes out k times and comes back k times, except to experts on its own rank.
#
# **Exercise 3: the bytes of an exchange** · 10 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.expert.simple:exchange_bytes

# %% tags=["nbval-ignore-output"]
exchange_bytes = lab.check(exchange_bytes)

# %% [markdown]
# Next to tensor parallel (Lab 2a), where every rank works on *all* tokens of the group, and one all-reduce of a
# feed-forward sends $2 (n - 1)/n$ of them from each rank: which sends less, for the same tokens in total, k = 2?

# %%
guess = lab.predict("bytes of expert parallel over tensor parallel, 8 ranks, forward", unit="times")

# %% tags=["nbval-ignore-output"]
tokens, width = 4096, 4096
by_n = {}
for n in (2, 4, 8, 16):
    by_n[f"{n} ranks: tensor parallel"] = 2 * (n - 1) / n * tokens * width * 2 / 1e6
    by_n[f"{n} ranks: expert parallel"] = exchange_bytes(tokens // n, width, 2, n, itemsize=2)[0] / 1e6
lab.reveal(guess, by_n["8 ranks: expert parallel"] / by_n["8 ranks: tensor parallel"])
plots.bars(by_n, "One feed-forward, 4,096 tokens of width 4,096 in all", "MB that each rank sends, forward")

# %% [markdown]
# $k / n$ of it: each rank sends only its own tokens. But to *everybody*. An all-to-all is many small messages, and on
# a cluster most of them leave the node.
#
# ## 2c.3 Keeping it even
#
# An expert that is chosen more learns more, is better, and is chosen more. Left alone, a router may end with a few
# experts that do all the work. Two remedies.
#
# **A loss.** Let $f_e$ be the part of all choices that fell on expert $e$, and $P_e$ the mean probability the router
# gave it. $E \sum_e f_e P_e$ is 1 when both are even, and more when who is chosen more is preferred more. $f$ is a
# count: it has no gradient. $P$ has one, and it pushes the probability of the crowded experts down. Both are means
# over **all** tokens of the step, on all ranks: the product of two means is not the mean of products, and a small
# batch on one rank need not be even in itself.
#
# **Exercise 4: the balance loss** · 20 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.expert.simple:balance_loss

# %% tags=["nbval-ignore-output"]
balance_loss = lab.check(balance_loss)

# %% [markdown]
# **A bias.** The loss has a gradient of its own, which disturbs the model's. DeepSeek-V3 does without: each expert has
# a bias, added to its score when experts are *chosen*, and left out when they are *weighed*. After each step the bias
# of a crowded expert goes down by a fixed little, that of an idle one up.
#
# **Exercise 5: choose with a bias** · 10 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.expert.simple:route_with_bias

# %% tags=["nbval-ignore-output"]
route_with_bias = lab.check(route_with_bias)

# %% [markdown]
# **Exercise 6: move the bias** · 10 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.expert.simple:update_bias

# %% tags=["nbval-ignore-output"]
update_bias = lab.check(update_bias)

# %% [markdown]
# Train the same model three ways, experts spread over two ranks. What becomes of the fullest expert?

# %%
guess = lab.predict("tokens of the fullest expert over the mean, after 50 steps without a remedy", unit="times")


# %%
def train(remedy, steps=50, batch=12, ep_size=None):
    """Losses; of each step, the load (layers, E); the model's logits of a few tokens at the end."""
    mesh = expert_mesh(ep_size or dist.get_world_size())
    model = expert_parallel(GPT(config(biased=remedy == "bias")), mesh.ep).to(spmd.device())
    routers = [layer.router for layer in model.modules() if isinstance(layer, MoE)]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = Loader(DATA, batch, dist.get_rank(), dist.get_world_size(), seed=1, device=spmd.device())
    history, loads = [], []
    for _ in range(steps):
        given = next(batches)
        total = valid_tokens([given.labels])
        dist.all_reduce(total)
        with recorded(model) as routings:
            losses, valid = token_losses(model(given.tokens), given.labels)
        loss = share_of_total(losses, valid, total)
        seen = loss.detach() / dist.get_world_size()
        if remedy == "loss":
            pairs = [(r.probabilities.flatten(0, 1), r.chosen.flatten(0, 1)) for r in routings]
            loss = loss + 0.02 * sum(balance_loss(p, chosen) for p, chosen in pairs)
        loss.backward()
        reduce_gradients(model, mesh)
        optimizer.step()
        optimizer.zero_grad()
        counts = torch.stack([torch.bincount(r.chosen.flatten(), minlength=EXPERTS) for r in routings])
        if remedy == "bias":
            for router, own in zip(routers, counts, strict=True):
                update_bias(router.bias, own, 0.01)
        dist.all_reduce(counts)
        dist.all_reduce(seen)
        loads.append(counts.cpu())
        history.append(seen.item())
    return history, torch.stack(loads)


runs = {name: spmd.run(train, name, ranks=PAIR)[0] for name in ("nothing", "loss", "bias")}
fullest = {name: (load / load.double().mean(-1, keepdim=True)).amax(-1).mean(-1) for name, (_, load) in runs.items()}
lab.reveal(guess, fullest["nothing"][-10:].mean().item())

# %% tags=["nbval-ignore-output"]
plots.curves({f"{name}": values.tolist() for name, values in fullest.items()}, "The fullest expert", "step",
             "its tokens over the mean")  # fmt: skip

# %% tags=["nbval-ignore-output"]
last = {}
for name, (_, load) in runs.items():
    parts = load[-10:, 0].double().mean(0)
    for e, value in enumerate((100 * parts / parts.sum()).sort(descending=True).values[[0, 1, 2, -2, -1]].tolist()):
        last[f"{name}: {('fullest', 'second', 'third', 'last but one', 'emptiest')[e]}"] = value
plots.bars(last, f"Who computes, in the first layer (even: {100 / EXPERTS:.1f}% each)", "% of the choices")

# %% tags=["nbval-ignore-output"]
plots.curves({name: history for name, (history, _) in runs.items()}, "And the loss?", "step", "loss, nats per token")

# %% [markdown]
# Without a remedy the load is uneven from the start and stays so. Both remedies work, each in its way: the loss from
# the first step, the bias step by step. On the model's own loss they make little difference in so short a run; what
# they change is the time.
#
# ## 2c.4 What an uneven load costs
#
# All ranks wait for the one that has the most rows. One MoE layer on two ranks, half of the experts on each; the
# router is told to send a certain part of all rows to rank 0. At one half it is even.

# %%
guess = lab.predict("time of a layer whose rows all go to one of two ranks, over an even load", unit="times")


# %% tags=["nbval-ignore-output"]
def lopsided(shares, rounds=5):
    """Milliseconds of forward and backward of one layer, for each share of rows that goes to rank 0's experts."""
    wide = GPTConfig(257, dim=256, n_layers=1, n_heads=4, n_kv_heads=4, ffn_dim=512, max_seq_len=256,
                     moe=MoEConfig(EXPERTS, top_k=2, expert_dim=512))  # fmt: skip
    layer = expert_parallel(GPT(wide)).layers[0].ffn.to(spmd.device())
    x, half = torch.randn(8, 256, 256, device=spmd.device()), EXPERTS // 2

    def choose(share):
        def by_share(preferred, moe):
            place = torch.arange(preferred[..., 0].numel()).view(preferred.shape[:-1])
            first = (place % 100) < 100 * share
            return torch.stack([place % half + half * ~first, (place + 1) % half + half * ~first], -1)

        return by_share

    taken = {share: [] for share in shares}
    for _ in range(rounds):
        for share in shares:
            layer.router.choose = choose(share)
            dist.barrier()
            start = time.perf_counter()
            layer(x).sum().backward()
            dist.barrier()
            taken[share].append((time.perf_counter() - start) * 1e3)
    return [median(taken[share][1:]) for share in shares]


shares = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
milliseconds = spmd.run(lopsided, shares, ranks=PAIR)[0]
lab.reveal(guess, milliseconds[-1] / milliseconds[0])
percent, expected = [100 * share for share in shares], [milliseconds[0] * 2 * share for share in shares]
plots.curves(
    {"measured": (percent, milliseconds), "if only the fullest rank's rows count": (percent, expected)},
    "An uneven load", "% of the rows that go to rank 0", "milliseconds of a layer, forward and backward",
)  # fmt: skip

# %% [markdown]
# The layer is as slow as its fullest rank. With all rows on one rank of two, half of the machine idles; on 64 ranks it
# is nearly all of it. (The measured line is flatter than the other: exchange and router take their time at any load.)
#
# ## 2c.5 Is it the same model?
#
# Experts over all ranks, or two groups of ranks that each hold all experts (expert and data parallel together), or one
# process: the same training?

# %%
guess = lab.predict("largest difference of the loss between one process and all ranks, in 15 steps", unit="nats")

# %% tags=["nbval-ignore-output"]
layouts = {"one process": (1, 1), f"experts over {RANKS} ranks": (RANKS, RANKS)}
if RANKS == 4:
    layouts["experts over 2, twice"] = (4, 2)
curves = {name: spmd.run(train, "loss", 15, ep_size=ep, ranks=n)[0][0] for name, (n, ep) in layouts.items()}
one, *others = curves.values()
lab.reveal(guess, max(abs(a - b) for other in others for a, b in zip(one, other, strict=True)))
plots.curves(curves, "The same training, the experts spread", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# Float32 rounding; where two scores nearly tie, it may change a choice now and then. The gradient of an expert is
# summed over the ranks that hold a copy of *it*; those of everything else over all ranks.
#
# ## 2c.6 Folklore, put to the test
#
# **"A mixture of experts is 40% more efficient than a dense model at a trillion parameters."** Efficient in what? Two
# models with the same operations per token, one with experts. One process, 150 steps.

# %%
guess = lab.predict("loss after 150 steps, the model with experts", choices=["lower", "the same within 0.03", "higher"])


# %% tags=["nbval-ignore-output"]
def race(steps=150):
    """Losses of both models, step by step in turns, and the seconds each has taken."""
    models = {name: GPT(c).to(spmd.device()) for name, c in (("dense", dense), ("experts", sparse))}
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=3e-3) for name, model in models.items()}
    losses, seconds = {name: [] for name in models}, {name: [0.0] for name in models}
    batches = Loader(DATA, 8, seed=1, device=spmd.device())
    for _ in range(steps):
        batch = next(batches)
        for name, model in models.items():
            start = time.perf_counter()
            with recorded(model) as routings:
                values, valid = token_losses(model(batch.tokens), batch.labels)
            loss = values.sum() / valid.sum()
            balance = sum(balance_loss(r.probabilities.flatten(0, 1), r.chosen.flatten(0, 1)) for r in routings)
            (loss + 0.02 * balance).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            seconds[name].append(seconds[name][-1] + time.perf_counter() - start)
            losses[name].append(loss.item())
    return losses, seconds


def smooth(values, width=10):
    return [sum(values[max(0, i - width) : i + 1]) / (i + 1 - max(0, i - width)) for i in range(len(values))]


losses, seconds = spmd.run(race, ranks=1)[0]
ends = {name: smooth(values)[-1] for name, values in losses.items()}
gain = ends["dense"] - ends["experts"]
lab.reveal(guess, "the same within 0.03" if abs(gain) < 0.03 else "lower" if gain > 0 else "higher")
plots.curves({name: smooth(values) for name, values in losses.items()}, "Equal operations: by steps", "step",
             "loss, nats per token, mean of 10 steps")  # fmt: skip

# %% tags=["nbval-ignore-output"]
print(f"a step with experts takes {seconds['experts'][-1] / seconds['dense'][-1]:.2f} times as long here")
print(f"optimizer states: {parameter_count(sparse) / parameter_count(dense):.1f} times the memory")
by_clock = {name: (seconds[name][1:], smooth(values)) for name, values in losses.items()}
plots.curves(by_clock, "The same two runs: by the clock", "seconds", "loss, nats per token, mean of 10 steps")

# %% [markdown]
# Per operation the two can hardly be told apart: 77,000 tokens are too few for twelve experts to become different. By
# the clock the one with experts is behind: many small products in place of one large one, and sorting, and choosing.
# Large machines know that too: in NVIDIA's published recipes an H100 reaches 389 TFLOP/s with a dense Llama 3 70B, and
# 216 to 277 with models that have experts. And memory is set by *all* parameters. What has been published for quality
# at equal compute reaches from 7 times faster (Switch Transformer against T5) and 5 times (DeepSpeed-MoE) to about 2
# (OLMoE); DeepSeek-V2 reports 42.5% lower training cost than DeepSeek 67B, which is another architecture, and not a
# trillion. **Verdict: no support found for the number, and it says nothing until the axis is named**: loss at equal
# operations, time, memory, or cost of serving.
#
# ## On GPUs
#
# > - **Nothing to edit.** With a GPU for each rank the same cells run on NCCL.
# > - **Counts cost a stop.** The host must know how many rows come before it can ask for them: the GPU waits. Capacity
# >   avoids that, and so do kernels that read counts on the device.
# > - **Grouped products.** Experts' products of different sizes run as one kernel (`torch._grouped_mm`), else small
# >   ones leave the GPU idle.
# > - **Nodes.** An all-to-all over nodes is what limits large models; DeepSeek-V3 lets a token visit 4 nodes at most.
#
# ## What you did and measured here

# %% tags=["nbval-ignore-output"]
lab.progress()

# %% [markdown]
# ## What to remember
#
# - Parameters by the number of experts, operations by k, memory by all of them.
# - An exchange is a collective: no tokens is not no part in it.
# - Dropped is dropped: weights stay as they are. The router is float32.
# - Balance over all tokens of the step; the loss moves probabilities, the bias moves choices only.
# - A layer is as slow as its fullest rank.
#
# Next, Lab 3: sharded states.
