"""The tensor-parallel GPT equals the plain one in one process: losses, every gradient, parameters after ten steps.

Ranks are started once for each world size and run all cases.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from tensor_cases import alike, all_of, error_of, same

from course_lib import spmd
from course_lib.models import GPT, GPTConfig, MoEConfig
from course_lib.parallel.data import DistributedDataParallel
from course_lib.parallel.tensor import gather_parameters, gpt, sum_partial_gradients, tensor_parallel, token_losses
from course_lib.training import clip, loss
from course_lib.training.recompute import recompute

# 1 to 4 ranks divide the heads and the feed-forward; 3 and 4 do not divide the vocabulary.
CONFIG = GPTConfig(38, dim=24, n_layers=2, n_heads=12, n_kv_heads=12, ffn_dim=36, max_seq_len=12)
GROUPED = {"n_kv_heads": 6}  # 4 does not divide them
SHARED = {"n_kv_heads": 1}  # all ranks hold the one key and value head
TIED = {"tied": True}
TINY_VOCABULARY = {"vocab_size": 5}  # on 4 ranks the last has padding alone


def config_with(**changes):
    return GPTConfig(**(vars(CONFIG) | changes))


def batch(config, step=0, rows=2, length=12):
    """Tokens and labels (rows, length), alike on all ranks; some labels are not to be predicted."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(config.vocab_size, (rows, length), generator=generator)
    labels = torch.randint(config.vocab_size, (rows, length), generator=generator)
    labels[0, step % length] = labels[-1, 2] = loss.IGNORE
    return tokens, labels


def plain(config, seed=3):
    return GPT(config, seed).double()


def plain_loss(model, tokens, labels, documents=None):
    losses, valid = loss.token_losses(model(tokens, documents), labels)
    return losses.sum() / valid.sum()


def parallel_loss(model, tokens, labels, documents=None):
    losses, valid = token_losses(model(tokens, documents), labels, model.config.vocab_size, model.layout.group)
    return losses.sum() / valid.sum()


def whole_gradients(model):
    """The gradients that the plain GPT would have, by name: gathered as parameters are."""
    layout, found = model.layout, {}
    n = dist.get_world_size(layout.group)
    for name, p in model.named_parameters():
        cut, found[name] = layout.cuts[name], p.grad
        if p.grad is None:
            continue
        if cut is None:
            alike(p.grad, name, layout.group)
            continue
        parts = [torch.empty_like(p.grad) for _ in range(n)]
        dist.all_gather(parts, p.grad.contiguous(), group=layout.group)
        for first in range(0, n, cut.copies):
            assert all(torch.equal(parts[first], other) for other in parts[first : first + cut.copies]), name
        joined = torch.cat(parts[:: cut.copies], cut.dim)
        found[name], padding = joined.split([cut.size, joined.shape[cut.dim] - cut.size], cut.dim)
        assert not padding.any(), f"{name}: the gradient of padding"
    return found


def same_gradients(model, single):
    found = whole_gradients(model)
    assert list(found) == [name for name, _ in single.named_parameters()]
    for name, p in single.named_parameters():
        assert (found[name] is None) == (p.grad is None), name
        if p.grad is not None:
            same(found[name], p.grad, name)


def same_parameters(model, single):
    found, expected = gather_parameters(model), single.state_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        same(found[name], value, name)


def trained(sequence_parallel, group=None, steps=2, documents=False, change=lambda model: None, **changes):
    config = config_with(**changes)
    single, model = plain(config), tensor_parallel(plain(config), group, sequence_parallel)
    change(single)
    change(model)
    optimizers = [torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 0.01) for m in (single, model)]
    for step in range(steps):
        tokens, labels = batch(config, step)
        document = (torch.arange(12) > 4 + torch.arange(2)[:, None]).long() if documents else None
        expected, found = plain_loss(single, tokens, labels, document), parallel_loss(model, tokens, labels, document)
        same(found, expected, f"loss of step {step}")
        alike(found, "loss", group)
        expected.backward()
        found.backward()
        sum_partial_gradients(model)
        same_gradients(model, single)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    same_parameters(model, single)


def every_layout():
    n = dist.get_world_size()
    for sequence_parallel in (False, True):
        trained(sequence_parallel, steps=2 if sequence_parallel else 10)
        trained(sequence_parallel, steps=10 if sequence_parallel else 2, **TIED, **SHARED)
        if n != 4:
            trained(sequence_parallel, **GROUPED)
        trained(sequence_parallel, documents=True, **TINY_VOCABULARY)


def frozen():
    """The embedding, a column-parallel and a row-parallel matrix and a norm: no gradient, no step, the rest as ever."""

    def change(model):
        model.embedding.weight.requires_grad_(False)
        for part in (model.layers[0].attention.key, model.layers[1].ffn.down, model.layers[1].ffn_norm):
            part.weight.requires_grad_(False)

    for sequence_parallel in (False, True):
        trained(sequence_parallel, change=change, **SHARED)


def frozen_before():
    config = config_with()
    single = plain(config)
    single.layers[0].ffn.up.requires_grad_(False)
    model = tensor_parallel(copy.deepcopy(single))
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["layers.0.ffn.up.weight"]


def recomputed():
    for sequence_parallel in (False, True):
        trained(sequence_parallel, change=lambda model: recompute(model.layers))


def micro_batches():
    """Gradients of two backwards add up, and are summed over the ranks once."""
    config = config_with(**SHARED)
    for sequence_parallel in (False, True):
        single, model = plain(config), tensor_parallel(plain(config), None, sequence_parallel)
        for step in range(2):
            plain_loss(single, *batch(config, step)).backward()
            parallel_loss(model, *batch(config, step)).backward()
        sum_partial_gradients(model)
        same_gradients(model, single)


def norms():
    """training.clip counts each element once, and clips on all ranks alike; a half of the norm is clipped away."""
    for changes in ({}, SHARED, TIED):
        config = config_with(**changes)
        single, model = plain(config), tensor_parallel(plain(config), None, True)
        plain_loss(single, *batch(config)).backward()
        parallel_loss(model, *batch(config)).backward()
        sum_partial_gradients(model)
        kinds = gpt.by_kind(model)
        everything = kinds.replicated + kinds.sharded + kinds.copies
        assert [name for name, _ in model.named_parameters()] == sorted(
            (name for name, _ in everything), key=[name for name, _ in model.named_parameters()].index
        )
        for norm_type in (2.0, float("inf")):
            norm = clip.grad_norm(kinds.replicated, norm_type, [clip.Part(kinds.sharded)])
            expected = clip.grad_norm(single.named_parameters(), norm_type)
            same(norm, expected, norm_type)
        clip.scale_gradients(everything, float(norm) / 2, norm)
        clip.scale_gradients(single.parameters(), float(norm) / 2, norm)
        same_gradients(model, single)


def from_meta():
    """Built without values, cut, then given them: as if cut from a model with values. Tied stays tied."""
    for changes in ({}, TIED | GROUPED if dist.get_world_size() != 4 else SHARED):
        config = config_with(**changes)
        with torch.device("meta"):
            model = GPT(config)
        model = tensor_parallel(model).to_empty(device="cpu")
        gpt.init_weights(model, 3)
        expected = tensor_parallel(GPT(config, 3))
        for (name, p), q in zip(model.named_parameters(), expected.parameters(), strict=True):
            assert torch.equal(p, q), name
            assert p.untyped_storage().nbytes() == p.nbytes, f"{name} keeps more than its part"


def gathered_back():
    """To the bit, and loaded by a plain model; on all ranks."""
    for changes in ({}, TIED, SHARED, TINY_VOCABULARY):
        config = config_with(**changes)
        model = tensor_parallel(GPT(config, 9))
        state, expected = gather_parameters(model), GPT(config, 9).state_dict()
        assert list(state) == list(expected)
        assert all(torch.equal(state[name], expected[name]) for name in expected)
        GPT(config).load_state_dict(state)


def shown():
    """print(model) shows the parts that this rank has."""
    n = dist.get_world_size()
    text = str(tensor_parallel(GPT(CONFIG)))
    for line in (
        f"(embedding): VocabParallelEmbedding(weight ({-(-38 // n)}, 24) of 38 rows)",
        f"(query): Linear(in_features=24, out_features={24 // n}, bias=False)",
        f"(out): RowLinear(weight (24, {24 // n}))",
        f"(head): ColumnLinear(weight ({-(-38 // n)}, 24))",
    ):
        assert line in text, text


def refused():
    """In a sentence, and the model is left as it was."""
    message = error_of(RuntimeError, tensor_parallel, tensor_parallel(GPT(CONFIG)))
    assert message == "this model is tensor parallel already: start from a plain one, GPT(config)"
    message = error_of(ValueError, tensor_parallel, GPT(config_with(moe=MoEConfig(2, 1, 8, renormalize=False))))
    assert message.startswith("this GPT has experts, which are spread over ranks whole and not cut by columns")
    if dist.get_world_size() > 1:
        model = GPT(config_with(ffn_dim=37))
        assert error_of(ValueError, tensor_parallel, model).startswith(
            "37 columns of the feed-forward cannot be shared"
        )
        assert model.layers[0].ffn.up.weight.shape == (37, 24)


ALL = [every_layout, frozen, frozen_before, recomputed, micro_batches, norms, from_meta, gathered_back, shown, refused]


def in_a_group():
    """Ranks 1 and 2 train; rank 0 looks on."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        message = error_of(ValueError, tensor_parallel, GPT(CONFIG), group)
        assert message.startswith("rank 0 called a collective of a group it is not in")
        return
    for sequence_parallel in (False, True):
        trained(sequence_parallel, group, **SHARED, **TIED)


def two_groups():
    """4 ranks, 2 groups of 2, another batch in each, and 2 ranks to each of 2 key heads: the groups do not mix."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    trained(True, groups[dist.get_rank() // 2], **SHARED)
    trained(True, n_kv_heads=2)


def with_data_parallelism():
    """4 ranks: 2 tensor parallel, times 2 with a batch each, wrapped in DDP: equal to one process on both batches."""
    rank = dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    tensor, data = groups[rank // 2], groups[2 + rank % 2]
    single = plain(config_with(**SHARED))
    model = DistributedDataParallel(tensor_parallel(plain(config_with(**SHARED)), tensor, True), data)
    optimizers = [torch.optim.AdamW(m.parameters(), 0.01) for m in (single, model)]
    for step in range(3):
        batches = [batch(single.config, 2 * step + replica) for replica in range(2)]
        batches[1][1][0, :7] = loss.IGNORE  # another number of valid tokens
        both = [torch.cat(parts) for parts in zip(*batches, strict=True)]
        plain_loss(single, *both).backward()
        tokens, labels = batches[rank // 2]
        losses, valid = token_losses(model(tokens), labels, single.config.vocab_size, tensor)
        loss.share_of_mean(losses, valid, data).backward()
        sum_partial_gradients(model.module)
        same_gradients(model.module, single)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    same_parameters(model.module, single)


@pytest.mark.parametrize("n", [1, 2])
def test_equal_to_one_process(n):
    spmd.run(all_of, ALL, ranks=n, timeout=300)


def test_equal_on_3_ranks_and_in_a_group_of_2_of_them():
    spmd.run(all_of, [*ALL, in_a_group], ranks=3, timeout=300)


def test_equal_on_4_ranks_and_in_2_groups_of_2():
    spmd.run(all_of, [*ALL, two_groups, with_data_parallelism], ranks=4, timeout=300)
