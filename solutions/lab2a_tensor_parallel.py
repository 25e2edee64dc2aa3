# %% [markdown]
# # Lab 2a: Tensor parallel by hand
#
# **You learn** how one matrix product is spread over ranks, and why two in a row cost no more messages than one; what
# backward needs that forward does not show; how attention, the vocabulary and the loss are cut; what sequence parallel
# saves; how many bytes a layer sends, and why these ranks had better stand close together.
#
# **You need** Lab 0. Lab 1's corpus and model come up again. No GPU. **Time**: about two and a half hours, 8
# exercises, and 2 more for those who want them. Numbers in the text are for 4 ranks.

# %% tags=["nbval-ignore-output"]
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel

from course_lib import lab, spmd
from course_lib.bench.tensor import torch_parallel
from course_lib.collectives.autograd import all_gather, copy_to, reduce_from, reduce_scatter
from course_lib.lab import plots
from course_lib.models import GPT, GPTConfig
from course_lib.parallel import tensor
from course_lib.training import loss as plain_loss
from course_lib.training.data import Bytes, Loader, Packed, corpus, stream_of
from course_lib.training.loss import IGNORE
from course_lib.training.recompute import saved_bytes

lab.start("lab2a")
RANKS = lab.ranks()
DATA = Packed(stream_of(corpus()[:40], Bytes()), Bytes.end, seq_len=60)
CONFIG = GPTConfig(Bytes.vocab_size, dim=96, n_layers=2, n_heads=12, n_kv_heads=12, ffn_dim=288, max_seq_len=60)

# %% [markdown]
# ## 2a.1 Two ways to cut a product
#
# Data parallel needs the whole model on each rank. **Tensor parallel** cuts the matrices themselves: all ranks work on
# the same tokens, each with a part of every layer. Take $y = x W^T$, as a linear layer has it; $W$ has a row for each
# output. There are two ways:
#
# - **column parallel**: each rank has some of the outputs. (Of $W^T$ these are columns, hence the name.) It needs all
#   of $x$ and gets some of $y$, whole.
# - **row parallel**: each rank has some of the inputs. It needs only that part of $x$, and gets all of $y$, but of
#   each number only a part of its sum. An all-reduce adds up.
#
# A feed-forward has two matrices with a non-linear function between: $y = \mathrm{gelu}(x W_1^T) W_2^T$. Say $x$ is
# the same on all ranks before, and $y$ must be after. Which way for the first, which for the second?

# %%
guess = lab.predict(
    "the pair that sends least", choices=["column, column", "column, row", "row, column", "row, row"]
)


# %%
def part_of(x, dim):
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def joined(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, -1)


def linear(x, weight, way, whole_out):
    """x W^T; x is whole, or this rank's part of the inputs. Returns y whole, or this rank's part of the outputs."""
    if way == "column":
        y = F.linear(x, part_of(weight, 0))
        return joined(y) if whole_out else y
    x = x if x.shape[-1] < weight.shape[1] else part_of(x, -1)
    y = F.linear(x, part_of(weight, 1))
    dist.all_reduce(y)
    return y


def bytes_of(first, second, tokens=256, dim=96, width=384):
    """Bytes a rank hands to collectives, by name; the result is compared with that of one process."""
    torch.manual_seed(0)
    x, up, down = torch.randn(tokens, dim), torch.randn(width, dim), torch.randn(dim, width)
    with spmd.traffic() as moved:
        hidden = F.gelu(linear(x, up, first, whole_out=second == "column"))
        y = linear(hidden, down, second, whole_out=True)
    assert torch.allclose(y, F.linear(F.gelu(F.linear(x, up)), down), rtol=1e-3, atol=1e-2)
    return moved.collective_bytes


# %% tags=["nbval-ignore-output"]
def ring_bytes(counted, n=RANKS):
    """What a rank sends if collectives are rings: an all-reduce is a reduce-scatter and an all-gather."""
    return sum(size * (2 * (n - 1) / n if name == "all_reduce" else n - 1) for name, size in counted.items())


sent = {}
for first, second in product(("column", "row"), repeat=2):
    counted = spmd.run(bytes_of, first, second, ranks=RANKS)[0]
    sent[f"{first}, {second}"] = ring_bytes(counted) / 1e3
lab.reveal(guess, min(sent, key=sent.get))
plots.bars(sent, "A feed-forward of 256 tokens, forward", "KB that each rank sends")

# %% [markdown]
# **Column, then row.** The first leaves each rank with some columns of the hidden layer; gelu works on each element by
# itself; and some columns are just what the second, row parallel, wants. Nothing travels in the middle, where the
# layer is widest. At the end, one all-reduce. The other way round, gelu would get a part of a sum: and the gelu of a
# part is not a part of the gelu.
#
# **Exercise 1: column, then row** · 15 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:column_then_row

# %% tags=["nbval-ignore-output"]
column_then_row = lab.check(column_then_row)

# %% [markdown]
# ## 2a.2 What backward needs
#
# You used two functions of the library, `copy_to` before and `reduce_from` after. The second is the all-reduce. The
# first does *nothing* in forward. What if you leave it out?

# %%
guess = lab.predict("without `copy_to`, the loss of the first step is", choices=["right", "wrong"])


# %%
def train_block(steps=40, copy=copy_to, sharded=True):
    """Embedding, two feed-forward blocks, head. Losses, and how far the ranks' embeddings are apart at the end."""
    torch.manual_seed(0)
    table, head = torch.randn(257, 96) * 0.3, torch.randn(257, 96) * 0.1
    blocks = [(torch.randn(384, 96) * 0.1, torch.randn(96, 384) * 0.1) for _ in range(2)]
    if sharded:
        blocks = [(part_of(up, 0).clone(), part_of(down, 1).clone()) for up, down in blocks]
    weights = [w.to(spmd.device()).requires_grad_() for w in (table, head, *(w for pair in blocks for w in pair))]
    table, head, *rest = weights
    optimizer, batches, history = torch.optim.Adam(weights, lr=3e-3), Loader(DATA, 8, seed=1), []
    for _ in range(steps):
        batch = next(batches).to(spmd.device())
        x = F.embedding(batch.tokens, table)
        for up, down in zip(rest[::2], rest[1::2], strict=True):
            part = F.linear(F.gelu(F.linear(copy(x) if sharded else x, up)), down)
            x = x + (reduce_from(part) if sharded else part)
        loss = F.cross_entropy(F.linear(x, head).flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    first = table.detach().clone()
    dist.broadcast(first, 0)
    return history, (table - first).abs().max().item()


curves = {"one process": spmd.run(train_block, sharded=False, ranks=1)[0][0]}
with_it = spmd.run(train_block, ranks=RANKS)
without = spmd.run(train_block, copy=lambda x: x, ranks=RANKS)
curves["with copy_to"], curves["without"] = with_it[0][0], without[0][0]
lab.reveal(guess, "right" if abs(without[0][0][0] - curves["one process"][0]) < 1e-4 else "wrong")

# %% tags=["nbval-ignore-output"]
apart = [max(distance for _, distance in each) for each in (with_it, without)]
print(f"ranks' copies of the embedding after 40 steps: {apart[0]:.0e} apart with copy_to, {apart[1]:.2f} without")
plots.curves(curves, "What a missing all-reduce in backward does", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# The forward is right, so the first loss is. But each rank computes the gradient of $x$ through *its* columns only: a
# part of the sum. Below the block, everything that all ranks hold alike (the embedding, the norms) gets another
# gradient on each rank, and the copies drift apart. Look at the curves: would you have noticed? The loss goes its own
# way a little and falls all the same. But there is no longer one model: every rank has an embedding of its own, and
# its shards belong to that.
#
# So there is a pair, each the other's mirror image. The paper (Shoeybi and others, 2019) calls them f and g:
#
# | | forward | backward |
# |---|---|---|
# | **f**, into work that differs by rank | nothing | all-reduce |
# | **g**, out of it | all-reduce | nothing |
#
# Autograd lets you define both: a `Function` has a `forward`, and a `backward` that gets the gradient of what forward
# returned.
#
# **Exercise 2: f** · 10 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:CopyTo

# %% tags=["nbval-ignore-output"]
CopyTo = lab.check(CopyTo)

# %% [markdown]
# **Exercise 3: g** · 5 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:ReduceFrom

# %% tags=["nbval-ignore-output"]
ReduceFrom = lab.check(ReduceFrom)

# %% [markdown]
# ## 2a.3 Attention: whole heads
#
# In attention the heads do not look at each other until the output matrix joins them. So query, key and value are
# column parallel, each rank has some heads, and the output matrix is row parallel: column, then row, once more.
#
# Often the three matrices are stored as one, the rows of all queries first, then keys, then values. Say 4 heads and 2
# ranks. What does rank 0 get if you simply take the first half of the rows?

# %%
guess = lab.predict(
    "the first half of a fused matrix of 4 query, 4 key and 4 value heads",
    choices=["2 heads of each", "4 query heads and 2 key heads", "half of every head"],
)

# %%
lab.reveal(guess, "4 query heads and 2 key heads")

# %% [markdown]
# Shapes fit, the code runs, and attention compares queries with keys of other heads, and takes keys for values. In
# **grouped-query attention** there are fewer key and value heads than query heads, each serving several. If there are
# fewer than ranks, some ranks must hold the same one, and add up their gradients of it.
#
# **Exercise 4: this rank's heads** · 20 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:qkv_rows

# %% tags=["nbval-ignore-output"]
qkv_rows = lab.check(qkv_rows)

# %% [markdown]
# ## 2a.4 The vocabulary
#
# The embedding and the head are the largest matrices of a small model: 128,000 tokens times the width, in Llama 3.
# Both are cut by token: each rank has the rows of some tokens. To look up a token that another rank has, give zeros;
# the sum over the ranks is the row.
#
# **Exercise 5: the embedding** · 15 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:vocab_parallel_embedding

# %% tags=["nbval-ignore-output"]
vocab_parallel_embedding = lab.check(vocab_parallel_embedding)

# %% [markdown]
# At the other end, each rank has the logits of its own tokens. The loss needs, of each position, the logit of the
# right token and the sum of $e^{\text{logit}}$ over all. You could gather the logits. With 128,000 tokens in the
# vocabulary, float32, how many bytes would one rank hold per position; and how many does it take to send what the loss
# needs?

# %%
guess = lab.predict("bytes of one position's logits, over those of 3 numbers", unit="times")

# %%
lab.reveal(guess, 128_000 / 3)

# %% [markdown]
# The third number: $e^{100}$ is infinity in float32. So the largest logit is subtracted first; that changes nothing,
# if it is the same number for all terms of a sum: the largest over *all* ranks.
#
# **Exercise 6: the loss** · 25 min · ●●●

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:vocab_parallel_losses

# %% tags=["nbval-ignore-output"]
vocab_parallel_losses = lab.check(vocab_parallel_losses)

# %% [markdown]
# ## 2a.5 Between the matrices
#
# Matrices are cut now. What is between them is not: the residual stream, the norms, dropout. Each rank computes them
# all, for all tokens, and keeps the same activations for backward. But there tokens do not meet. So let each rank keep
# its part of the *sequence*: **sequence parallel**. Before a column-parallel matrix the tokens are gathered; after a
# row-parallel one, the sum is not sent to everybody: each rank gets the sum for its own tokens. That is a
# reduce-scatter, and an all-reduce is a reduce-scatter and an all-gather.

# %%
guess = lab.predict("bytes sent in forward, sequence parallel over plain tensor parallel", unit="times")

# %%
lab.reveal(guess, 1)

# %% [markdown]
# The same: the all-reduce is taken apart, its halves put to other places. The price is hidden elsewhere. The weight of
# a norm is the same on all ranks, but each has seen only its own tokens: its gradient is a part.
#
# **Exercise 7: a feed-forward, sequence parallel** · 20 min · ●●●

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:sequence_parallel_mlp

# %% tags=["nbval-ignore-output"]
sequence_parallel_mlp = lab.check(sequence_parallel_mlp)

# %% [markdown]
# What does it save? A small GPT, 8 sequences of 60 tokens; the bytes that forward keeps for backward.

# %%
guess = lab.predict(f"activations of tensor parallel alone on {RANKS} ranks, over one rank's", unit="%")


# %%
def activations(sequence_parallel):
    model = GPT(CONFIG)
    if dist.get_world_size() > 1:
        model = tensor.tensor_parallel(model, None, sequence_parallel)
    tokens = DATA.batch(range(8)).tokens
    return saved_bytes(lambda: model(tokens)) / 1e6


kept = {"1 rank": spmd.run(activations, False, ranks=1)[0]}
for name, way in {"tensor parallel": False, "and sequence parallel": True}.items():
    kept[f"{RANKS} ranks, {name}"] = spmd.run(activations, way, ranks=RANKS)[0]
lab.reveal(guess, 100 * kept[f"{RANKS} ranks, tensor parallel"] / kept["1 rank"])

# %% tags=["nbval-ignore-output"]
plots.bars(kept, "What forward keeps for backward", "MB on each rank")

# %% [markdown]
# Tensor parallel alone divides what lies inside the layers: heads, hidden columns, logits. The residual stream, and
# what the norms keep of it, is whole on every rank. Sequence parallel divides that too.
#
# ## 2a.6 What it costs
#
# Every layer, for every token, in every micro-batch: that is how often tensor parallel talks. Count it.
#
# **Exercise 8: the bytes of a layer** · 15 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:layer_bytes

# %% tags=["nbval-ignore-output"]
layer_bytes = lab.check(layer_bytes)

# %% [markdown]
# Is it so? Two models that differ by one layer, counted on real ranks.


# %%
def counted(layers):
    """Bytes in all-reduces of one step, as rings."""
    tokens = DATA.batch(range(8)).tokens
    config = GPTConfig(Bytes.vocab_size, 96, layers, n_heads=12, n_kv_heads=12, ffn_dim=288, max_seq_len=60)
    model = tensor.tensor_parallel(GPT(config))
    with spmd.traffic() as moved:
        model(tokens).sum().backward()
    return ring_bytes(moved.collective_bytes, dist.get_world_size())


one_layer = spmd.run(counted, 2, ranks=RANKS)[0] - spmd.run(counted, 1, ranks=RANKS)[0]
predicted = sum(layer_bytes(8 * 60, 96, RANKS))
print(f"one layer, forward and backward: {one_layer:,.0f} bytes counted, {predicted:,.0f} predicted")

# %% [markdown]
# And next to data parallel, which sends each gradient once? A layer of a 7B model: width 4,096, 202 million
# parameters, in 2-byte numbers, on 8 ranks. (In tensor parallel all ranks work on the same tokens, in data parallel
# each on its own.) From how many tokens on a rank does tensor parallel send more?

# %%
guess = lab.predict("tokens of a batch from which tensor parallel sends more than data parallel", unit="tokens")

# %% tags=["nbval-ignore-output"]
tokens = [2**i for i in range(8, 17)]
by_tensor = [sum(layer_bytes(t, 4096, 8, itemsize=2)) / 1e9 for t in tokens]
by_data = 2 * 7 / 8 * 202e6 * 2 / 1e9
lab.reveal(guess, by_data / by_tensor[0] * tokens[0])
plots.curves(
    {"tensor parallel": (tokens, by_tensor), "data parallel": (tokens, [by_data] * len(tokens))},
    "One layer of a 7B model on 8 ranks", "tokens that a rank works on", "GB that each rank sends", log="xy",
)  # fmt: skip

# %% [markdown]
# That many are three sequences of 4,096, and they count again in every micro-batch, while data parallel sends its
# gradients once a step. And it can hide what it sends behind backward, while a tensor parallel layer must *wait*: the
# next product needs the sum. So tensor parallel stays where links are fastest. NVIDIA gives 900 GB/s for the NVLinks
# of an H100, both directions together; a 400 Gb/s network card moves 50. That is why people say "tensor parallel
# inside a node": 8 ranks, one box.

# %% tags=["nbval-ignore-output"]
flops = 6 * 202e6 * 4096 / 8  # of 4,096 tokens on one of 8 ranks, forward and backward
link = sum(layer_bytes(4096, 4096, 8, itemsize=2))
shares = {"computing, at 400 TFLOP/s": flops / 400e12, "sending, at 450 GB/s": link / 450e9,
          "sending, at 50 GB/s": link / 50e9}  # fmt: skip
plots.bars({k: v * 1e3 for k, v in shares.items()}, "A 7B layer, 4,096 tokens, 8 ranks: by arithmetic", "milliseconds")

# %% [markdown]
# ## 2a.7 The whole GPT
#
# Put together: every matrix of the GPT cut, the same training as in one process? And as torch's own tensor
# parallelism, `parallelize_module`, with `loss_parallel`, its loss on cut logits? Float32, 20 steps.

# %%
guess = lab.predict(f"largest difference of the loss between 1 rank and {RANKS}, in 20 steps", unit="nats")


# %%
def train(way, steps=20, dtype=torch.float32):
    model = GPT(CONFIG).to(spmd.device(), dtype)
    if way == "ours":
        model = tensor.tensor_parallel(model, None, sequence_parallel=True)
    elif way == "torch's":
        mesh = init_device_mesh(spmd.device().type, (dist.get_world_size(),))
        model = torch_parallel(model, mesh, sequence_parallel=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, foreach=False)
    batches, history = Loader(DATA, 8, seed=1), []
    for _ in range(steps):
        batch = next(batches).to(spmd.device())
        logits, labels = model(batch.tokens), batch.labels
        if way == "torch's":
            with loss_parallel():
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
                loss.backward()
            loss = loss.full_tensor()
        else:
            losses, valid = (
                tensor.token_losses(logits, labels, CONFIG.vocab_size)
                if way == "ours" else plain_loss.token_losses(logits, labels)
            )  # fmt: skip
            loss = losses.sum() / valid.sum()
            loss.backward()
        if way == "ours":
            tensor.sum_partial_gradients(model)  # of norms, whose ranks have seen their own tokens only
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
    return history


curves = {"1 rank": spmd.run(train, "plain", ranks=1)[0]}
for way in ("ours", "torch's"):
    curves[f"{RANKS} ranks, {way}"] = spmd.run(train, way, ranks=RANKS)[0]
difference = max(abs(a - b) for a, b in zip(curves["1 rank"], curves[f"{RANKS} ranks, ours"], strict=True))

# %% tags=["nbval-ignore-output"]
lab.reveal(guess, difference)
exact = [spmd.run(train, way, 20, torch.float64, ranks=n)[0] for way, n in (("plain", 1), ("ours", RANKS))]
print(f"in float64: {max(abs(a - b) for a, b in zip(*exact, strict=True)):.0e} nats")
far = max(abs(a - b) for a, b in zip(curves["1 rank"], curves[f"{RANKS} ranks, torch's"], strict=True))
print(f"torch's, in float32: {far:.0e} nats")
plots.curves(curves, "The same training, cut by tensors", "step", "loss, nats per token", stacked=True)

# %% [markdown]
# "Is this difference acceptable?" is the question most asked about tensor parallel. Sums in another order round
# differently. The way to tell rounding from a bug: run both in float64. Rounding becomes about a billion times
# smaller. A bug stays as it is.
#
# ## 2a.8 Two streams of chance
#
# Two things must not depend on the number of ranks. The first is where training starts: if every rank draws its own
# part, another number of ranks is another model.
#
# **Exercise 9 (bonus): a shard to start from** · 10 min · ●○○

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:initial_shard

# %% tags=["nbval-ignore-output"]
initial_shard = lab.check(initial_shard)

# %% [markdown]
# The second is **dropout**. In the residual stream all ranks hold the same numbers, so they must drop the same ones:
# else the ranks part. Inside a layer each holds other heads, other columns. If all use the same stream of random
# numbers there, what is the mask of the whole?

# %%
guess = lab.predict(
    "one seed on all ranks: the mask over all columns of a hidden layer",
    choices=["as in one process", f"one mask, {RANKS} times over", "empty"],
)

# %%
lab.reveal(guess, f"one mask, {RANKS} times over")

# %% [markdown]
# Column 3 of rank 0 and column 3 of rank 1 always fall together. That is less noise than dropout is meant to be, and
# nothing tells you.
#
# **Exercise 10 (bonus): dropout by region** · 15 min · ●●○

# %% tags=["exercise"]
# exercise: course_lib.parallel.tensor.simple:region_dropout

# %% tags=["nbval-ignore-output"]
region_dropout = lab.check(region_dropout)

# %% [markdown]
# ## On GPUs
#
# > - **Nothing to edit.** With a GPU for each rank the same cells run on NCCL.
# > - **Overlap.** One of the waits can be hidden: the all-reduce of f, in backward, starts as soon as the input's
# >   gradient is there, and the weight's gradient is computed meanwhile. The library does so.
# > - **Narrow matrices.** 8 ranks make a product 8 times narrower; below a few thousand columns a GPU idles. So the
# >   degree is rarely above 8, even where links would allow it.
# > - **Vocabulary padding.** Rows are padded to a multiple of 128 times the ranks, which matrix units like; the padded
# >   logits take no part in the loss.
#
# ## What you did and measured here

# %% tags=["nbval-ignore-output"]
lab.progress()

# %% [markdown]
# ## What to remember
#
# - Column, then row: one all-reduce for two matrices.
# - Its mirror image in backward is easy to forget, and nothing fails: the ranks' copies drift apart.
# - Cut by whole heads, and by whole tokens of the vocabulary; the logits are never gathered.
# - Sequence parallel sends what it did before and keeps less; norms' gradients must be summed.
# - Bytes grow with tokens, layers and micro-batches, and most are waited for: stay inside a node.
#
# Next, Lab 2b: cutting between the layers.
