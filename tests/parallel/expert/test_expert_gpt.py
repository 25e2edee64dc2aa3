"""The expert-parallel GPT equals one process: loss, every gradient, norm, parameters and biases after ten steps.

Ranks hold different numbers of sequences; in every third step the last rank has none. They are started once for each
world size and run all cases.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from expert_cases import alike, all_of, all_ranks_sum, error_of, same

from course_lib import spmd
from course_lib.models import GPT, GPTConfig, MoEConfig
from course_lib.models.moe import recorded
from course_lib.parallel.expert import (
    balance_share,
    expert_load,
    expert_mesh,
    expert_parallel,
    for_clipping,
    gather_parameters,
    init_weights,
    reduce_gradients,
    update_biases,
    z_share,
)
from course_lib.training.clip import clip_grad_norm
from course_lib.training.loss import share_of_total, token_losses, valid_tokens
from course_lib.training.recompute import recompute

S = 6
KINDS = {
    "dropless": MoEConfig(12, 2, 4),
    "capacity": MoEConfig(12, 1, 4, renormalize=False, capacity_factor=1.0),
    "drop by probability": MoEConfig(12, 3, 4, capacity_factor=0.5, drop="probability"),
    "deepseek": MoEConfig(12, 2, 4, 5, "sigmoid", biased=True, groups=4, top_groups=2),
}


def config(moe, **changes):
    return GPTConfig(11, 8, n_layers=2, n_heads=2, n_kv_heads=1, ffn_dim=9, max_seq_len=S, moe=moe, **changes)


def built(moe, **changes):
    model = GPT(config(moe, **changes), seed=3).double()
    for name, p in model.named_parameters():
        if "experts" in name or "router" in name:
            p.data *= 4  # experts matter, and the router is not even
    return model


def batch(step):
    """Five sequences, some of whose labels do not count. None has a token twice: by probability, equals would tie."""
    tokens = torch.rand(5, 11, generator=torch.Generator().manual_seed(step)).argsort(1)[:, : S + 1]
    labels = tokens[:, 1:].clone()
    labels[step % 5, : step % S] = -100
    return tokens[:, :-1], labels


def rows(step, group=None):
    """This rank's sequences."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    sharers = n - 1 if step % 3 == 2 else n
    return slice(rank, None, sharers) if rank < sharers else slice(0)


def step_of(model, tokens, labels, group, reduce):
    """Loss and, in p.grad, the gradients of a step of one micro-batch. Returns the share and the load."""
    total = valid_tokens([labels])
    dist.all_reduce(total, group=group)
    with recorded(model) as routings:
        losses, valid = token_losses(model(tokens), labels)
    load = expert_load(routings)
    dist.all_reduce(load, group=group)
    share = share_of_total(losses, valid, total, group)
    share = share + 0.3 * balance_share(routings, load, group) + 0.01 * z_share(routings, 5 * S, group)
    share.backward()
    reduce()
    return share.detach(), load


def one_process(model, steps):
    """What is seen in each step. A group of this rank alone: so the same code runs without any other rank."""
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    seen = []
    for step in range(steps):
        loss, load = step_of(model, *batch(step), alone, lambda: None)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        if model.config.moe.biased:
            update_biases(model, load, 0.01)
        seen.append((loss, gradients, norm, load))
    return seen


def mine(name, whole, ep):
    if "experts." not in name:
        return whole
    return whole.chunk(dist.get_world_size(ep))[dist.get_rank(ep)]


def equal_to_one_process(moe, ep_sizes, steps, prepare=lambda model: None, **changes):
    plain = built(moe, **changes)
    prepare(plain)
    expected = one_process(plain, steps)
    for ep_size in ep_sizes:
        model = built(moe, **changes)
        prepare(model)
        equal_in_each_step(model, expert_mesh(ep_size), plain, expected)


def equal_in_each_step(model, mesh, plain, expected):
    moe = plain.config.moe
    assert expert_parallel(model, mesh.ep) is model
    if any(not p.requires_grad for p in plain.parameters()):
        assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in plain.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    for step, (loss, gradients, norm, whole_load) in enumerate(expected):
        tokens, labels = (x[rows(step)] for x in batch(step))
        share, load = step_of(model, tokens, labels, None, lambda: reduce_gradients(model, mesh))
        same(all_ranks_sum(share) / dist.get_world_size(), loss, f"loss of step {step}")
        assert torch.equal(load, whole_load)
        for name, p in model.named_parameters():
            if name in gradients:
                same(p.grad, mine(name, gradients[name], mesh.ep), f"gradient of {name} in step {step}")
        replicated, parts = for_clipping(model)
        found = clip_grad_norm(replicated, 0.5, parts=parts)
        same(found, norm, "norm")
        alike(found, "norm")
        optimizer.step()
        optimizer.zero_grad()
        if moe.biased:
            update_biases(model, load, 0.01)
    whole = gather_parameters(model)
    assert list(whole) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        same(whole[name].double(), value.double(), name)
    fresh = GPT(plain.config).double()
    fresh.load_state_dict(whole)
    for name, p in model.named_parameters():
        if "experts" not in name:
            alike(p, name)


def ep_sizes():
    n = dist.get_world_size()
    return [size for size in range(1, n + 1) if n % size == 0]


def every_kind():
    for moe in KINDS.values():
        equal_to_one_process(moe, ep_sizes(), 10)


def tied():
    equal_to_one_process(KINDS["dropless"], [dist.get_world_size()], 3, tied=True)


def recomputed():
    equal_to_one_process(KINDS["deepseek"], ep_sizes()[1:], 3, lambda model: recompute(model.layers))


def freeze(*words):
    def prepare(model):
        for name, p in model.named_parameters():
            p.requires_grad_(not any(word in name for word in words))

    return prepare


def frozen():
    """Routers; experts; all but the experts, of which the rows then carry no gradient to their senders."""
    n = dist.get_world_size()
    for words in (["router"], ["experts"], ["0.ffn.experts.up"], ["embedding", "norm", "attention", "head", "router"]):
        equal_to_one_process(KINDS["dropless"], [n], 2, freeze(*words))


def all_tokens_on_one_rank():
    """All choose the same expert: the other ranks' have no rows, and zeros for gradients; all exchanges take place."""
    n = dist.get_world_size()
    model, mesh = built(KINDS["dropless"]), expert_mesh(n)
    plain = copy.deepcopy(model)
    expert_parallel(model, mesh.ep)
    for one in (plain, model):
        for layer in one.layers:
            layer.ffn.router.choose = lambda preferred, moe: torch.tensor([0, 1]).expand(*preferred.shape[:2], 2)
    tokens, labels = batch(0)
    step_of(plain, tokens, labels, dist.new_group([dist.get_rank()], use_local_synchronization=True), lambda: None)
    # Rank 0, which has the experts, has no tokens.
    part = slice(dist.get_rank() - 1, None, n - 1) if dist.get_rank() else slice(0)
    step_of(model, tokens[part], labels[part], None, lambda: reduce_gradients(model, mesh))
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        same(p.grad, mine(name, q.grad, mesh.ep), name)
    if dist.get_rank():
        assert not model.layers[0].ffn.experts.gate.grad.any()


def a_step_without_tokens():
    """On any rank: zeros, and no NaN."""
    model, mesh = built(KINDS["deepseek"]), expert_mesh(dist.get_world_size())
    expert_parallel(model, mesh.ep)
    none = torch.zeros(0, S, dtype=torch.int64)
    share, load = step_of(model, none, none, None, lambda: reduce_gradients(model, mesh))
    assert share == 0 and not load.any()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def from_meta():
    for moe in (KINDS["dropless"], KINDS["deepseek"]):
        plain, mesh = GPT(config(moe), seed=5), expert_mesh(dist.get_world_size())
        with torch.device("meta"):
            model = GPT(config(moe))
        expert_parallel(model, mesh.ep)
        size = 12 // dist.get_world_size()
        assert model.layers[0].ffn.experts.gate.shape == (size, 4, 8)
        init_weights(model.to_empty(device="cpu"), model.config, seed=5)
        for name, value in gather_parameters(model).items():
            assert torch.equal(value, plain.state_dict()[name]), name
        for buffer in model.buffers():
            buffer.fill_(1)
        init_weights(model, model.config, seed=5)  # begins anew
        assert not any(buffer.any() for buffer in model.buffers())


def memory_is_a_part():
    model = expert_parallel(built(KINDS["dropless"]), expert_mesh(dist.get_world_size()).ep)
    p = model.layers[0].ffn.experts.gate
    assert p.untyped_storage().nbytes() == p.numel() * 8


def exchanges():
    """Counts, rows and outputs in forward, two in backward; recomputation adds forward's three."""
    model = expert_parallel(built(KINDS["dropless"]), expert_mesh(dist.get_world_size()).ep)
    tokens = batch(0)[0]
    for again, extra in ((False, 0), (True, 3 * 2)):
        if again:
            recompute(model.layers)
        with spmd.traffic() as forward:
            loss = model(tokens).square().mean()
        with spmd.traffic() as backward:
            loss.backward()
        assert forward.calls == {"all_to_all_single": 3 * 2}
        assert backward.calls == {"all_to_all_single": 2 * 2 + extra}


def without_gradients():
    model = built(KINDS["capacity"]).eval()
    tokens = batch(0)[0]
    with torch.no_grad():
        expected = model(tokens)
        expert_parallel(model, expert_mesh(dist.get_world_size()).ep)
        same(model(tokens[rows(0)]), expected[rows(0)])


def near_in_16_bits():
    """Under autocast the rows travel in bfloat16, and the router decides as it does in one process."""
    model = GPT(config(KINDS["dropless"]), seed=3)
    tokens = batch(0)[0]
    with torch.autocast("cpu", torch.bfloat16):
        with recorded(model) as expected:
            logits = model(tokens)
        expert_parallel(model, expert_mesh(dist.get_world_size()).ep)
        with recorded(model) as found, spmd.traffic() as traffic:
            ours = model(tokens)
    assert (ours - logits).abs().max() < 0.05 * logits.abs().max()
    assert torch.equal(found[0].chosen, expected[0].chosen)
    rows_bytes = 5 * S * 2 * 8 * 2  # tokens, choices, dim, bytes of bfloat16
    n = dist.get_world_size()
    received = all_ranks_sum(torch.tensor(traffic.collective_bytes["all_to_all_single"]))
    assert received == n * 2 * 12 * 8 + n * 2 * 2 * rows_bytes


def refused():
    n = dist.get_world_size()
    message = error_of(ValueError, expert_parallel, built(None))
    assert message == "this model has no experts to spread: give its config a moe=MoEConfig(...)"
    message = error_of(ValueError, expert_parallel, built(MoEConfig(7, 2, 4)))
    assert message == f"7 experts cannot be shared out evenly over {n} ranks: 1, 7 ranks would do"
    model = expert_parallel(built(KINDS["dropless"]))
    assert "spread already" in error_of(RuntimeError, expert_parallel, model)
    for size in (0, n + 1):
        message = error_of(ValueError, expert_mesh, size)
        assert message.startswith(f"{n} ranks cannot be cut into groups of {size}: an ep_size of 1, ")


def in_a_group():
    """Ranks 1 .. n - 1 train, counted 0 .. n - 2 in their group; rank 0 looks on."""
    group = dist.new_group(range(1, dist.get_world_size()))
    if dist.get_rank() == 0:
        return
    mesh = expert_mesh(dist.get_world_size(group), group)
    model = expert_parallel(built(KINDS["dropless"]), mesh.ep)
    plain = built(KINDS["dropless"])
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    step_of(plain, *batch(1), alone, lambda: None)
    tokens, labels = (x[rows(1, group)] for x in batch(1))
    step_of(model, tokens, labels, group, lambda: reduce_gradients(model, mesh))
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        same(p.grad, mine(name, q.grad, mesh.ep), name)


CASES = [
    every_kind,
    tied,
    recomputed,
    frozen,
    all_tokens_on_one_rank,
    a_step_without_tokens,
    from_meta,
    memory_is_a_part,
    exchanges,
    without_gradients,
    near_in_16_bits,
    refused,
]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_expert_parallel(ranks):
    cases = CASES if ranks < 4 else [every_kind, all_tokens_on_one_rank, a_step_without_tokens, from_meta, in_a_group]
    spmd.run(all_of, cases, ranks=ranks)


def leaves_the_collective():
    """The mistake that takes a rank without tokens out of an exchange."""
    model = expert_parallel(built(KINDS["dropless"]))
    if dist.get_rank() != 1:
        model(batch(0)[0])


def test_a_rank_that_leaves_the_exchange_is_named():
    with pytest.raises(spmd.HangError) as error:
        spmd.run(leaves_the_collective, ranks=3)
    message = str(error.value)
    assert "Ranks 0 and 2 wait for rank 1 in\n  all_to_all_single of int64[3, 4]" in message
    assert "Rank 1 returned without that call" in message
