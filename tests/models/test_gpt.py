"""The model against plain loops, and what must hold of it: causality, documents, shared heads, tied embeddings."""

import cmath
import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from course_lib.models import GPT, GPTConfig, init_weights, parameter_count
from course_lib.models.gpt import positions_and_mask, rotate, rotations

SMALL = GPTConfig(vocab_size=19, dim=24, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=20, max_seq_len=16)
SHAPES = {
    "shared heads": SMALL,
    "a head each": GPTConfig(19, 24, 2, n_heads=4, n_kv_heads=4, ffn_dim=20, max_seq_len=16),
    "one for all": GPTConfig(19, 24, 2, n_heads=3, n_kv_heads=1, ffn_dim=20, max_seq_len=16, norm_eps=1e-2),
    "tied": GPTConfig(19, 24, 2, 4, 2, ffn_dim=20, max_seq_len=16, tied=True, rope_theta=50.0),
}
DOCUMENTS = torch.tensor([[7, 7, 7, 7, 7, 2, 2, 2, 2, 2, 2, 9], [0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]])


def double(config, seed=1):
    """The model in float64, its norms no longer ones and its matrices ten times as large, so that everything shows."""
    model = GPT(config, seed).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
            else:
                parameter.mul_(10)
    return model


def tokens(batch=2, seq_len=12, vocab=19):
    return torch.randint(vocab, (batch, seq_len), generator=torch.Generator().manual_seed(3))


def slow_logits(model, row, document):
    """The logits (S, V) of one row of tokens: a loop over positions, heads and keys; pairs turn as complex numbers."""
    c = model.config
    weights = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}

    def norm(x, name):
        return x / (sum(v * v for v in x) / len(x) + c.norm_eps) ** 0.5 * weights[name]

    def turned(head, position):
        half = c.head_dim // 2
        out = head.clone()
        for i in range(half):
            z = complex(head[i], head[i + half]) * cmath.exp(1j * position * c.rope_theta ** (-2 * i / c.head_dim))
            out[i], out[i + half] = z.real, z.imag
        return out

    starts = [next(i for i in range(s, -1, -1) if i == 0 or document[i - 1] != document[s]) for s in range(len(row))]
    stream = [weights["embedding.weight"][token] for token in row]
    for layer in range(c.n_layers):
        at = f"layers.{layer}."
        normed = [norm(x, at + "attention_norm.weight") for x in stream]
        project = {
            name: [(weights[at + f"attention.{name}.weight"] @ x).view(-1, c.head_dim) for x in normed]
            for name in ("query", "key", "value")
        }
        for s in range(len(row)):
            heads = []
            for h in range(c.n_heads):
                g = h // (c.n_heads // c.n_kv_heads)
                q = turned(project["query"][s][h], s - starts[s])
                seen = range(starts[s], s + 1)
                scores = torch.stack([q @ turned(project["key"][j][g], j - starts[s]) for j in seen])
                shares = (scores / c.head_dim**0.5).softmax(0)
                heads.append(sum(share * project["value"][j][g] for share, j in zip(shares, seen, strict=True)))
            stream[s] = stream[s] + weights[at + "attention.out.weight"] @ torch.cat(heads)
        for s in range(len(row)):
            x = norm(stream[s], at + "ffn_norm.weight")
            gate = weights[at + "ffn.gate.weight"] @ x
            inner = gate / (1 + (-gate).exp()) * (weights[at + "ffn.up.weight"] @ x)
            stream[s] = stream[s] + weights[at + "ffn.down.weight"] @ inner
    return torch.stack([weights["head.weight"] @ norm(x, "norm.weight") for x in stream])


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one document", "documents"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_plain_loops(shape, documents):
    model, x = double(SHAPES[shape]), tokens()
    slow = [slow_logits(model, x[i], [0] * 12 if documents is None else documents[i].tolist()) for i in range(2)]
    torch.testing.assert_close(model(x, documents), torch.stack(slow), rtol=0, atol=1e-10)


def test_packed_documents_have_the_loss_and_the_gradients_they_have_alone():
    model, x = double(SMALL), tokens()
    packed = model(x, DOCUMENTS)
    F.cross_entropy(packed.flatten(0, 1), x.flatten(), reduction="sum").backward()
    gradients = [p.grad.clone() for p in model.parameters()]

    model.zero_grad()
    for row, lengths in zip(range(2), [[5, 6, 1], [1, 3, 8]], strict=True):
        logits = torch.cat([model(piece[None])[0] for piece in x[row].split(lengths)])
        torch.testing.assert_close(packed[row], logits, rtol=0, atol=1e-10)
        F.cross_entropy(logits, x[row], reduction="sum").backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-10)


def test_a_row_that_is_one_document_needs_no_mask():
    model, x = double(SMALL), tokens()
    torch.testing.assert_close(model(x), model(x, torch.full_like(x, 5)), rtol=0, atol=1e-10)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_positions_and_mask_by_hand(numbers):
    positions, mask = positions_and_mask(torch.tensor([numbers]))
    n = len(numbers)
    same = [[j <= i and len(set(numbers[j : i + 1])) == 1 for j in range(n)] for i in range(n)]
    assert mask[0, 0].tolist() == same
    assert positions[0].tolist() == [sum(row) - 1 for row in same]


def test_a_token_changes_no_logits_before_its_own():
    model, x = double(SMALL), tokens()
    other = x.clone()
    other[:, 7] = (other[:, 7] + 1) % 19
    changed = (model(x) - model(other)).abs().amax(dim=(0, 2)) > 1e-9
    assert changed.tolist() == [False] * 7 + [True] * 5


def test_shared_heads_are_plain_attention_with_repeated_key_and_value_heads():
    shared, plain = double(SHAPES["shared heads"]), double(SHAPES["a head each"])
    values = shared.state_dict()
    for name in values:
        if "key" in name or "value" in name:
            heads = values[name].view(2, 6, 24)
            values[name] = heads.repeat_interleave(2, dim=0).reshape(24, 24)
    plain.load_state_dict(values)
    for documents in (None, DOCUMENTS):
        torch.testing.assert_close(shared(tokens(), documents), plain(tokens(), documents), rtol=0, atol=1e-10)


def test_layers_with_half_the_heads_add_up_to_the_whole():
    """What lets a later lab spread the heads over ranks without touching the model."""
    whole = double(SMALL).layers[0].attention
    turns = rotations(torch.arange(5), SMALL, torch.float64)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    parts = []
    for half in range(2):
        part = copy.deepcopy(whole)
        for name in ("query", "key", "value"):
            weight = getattr(whole, name).weight
            getattr(part, name).weight = torch.nn.Parameter(weight.chunk(2)[half])
        part.out.weight = torch.nn.Parameter(whole.out.weight.chunk(2, dim=1)[half])
        parts.append(part(x, turns, None))
    torch.testing.assert_close(parts[0] + parts[1], whole(x, turns, None), rtol=0, atol=1e-10)


def test_rotated_products_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64)

    def product(at_q, at_k):
        turns = [rotations(torch.tensor([at]), SMALL, torch.float64) for at in (at_q, at_k)]
        return (rotate(q, turns[0]) * rotate(k, turns[1])).sum()

    torch.testing.assert_close(product(9, 4), product(105, 100), rtol=0, atol=1e-10)
    assert abs(product(9, 4) - product(9, 5)) > 1e-4
    torch.testing.assert_close(product(3, 3), (q * k).sum(), rtol=0, atol=1e-10)


def test_angles_are_exact_far_out_in_bfloat16():
    config = GPTConfig(19, 24, 1, 4, 4, 20, max_seq_len=5000)
    narrow, wide = (rotations(torch.tensor([4999]), config, d)[0].double() for d in (torch.bfloat16, torch.float64))
    assert (narrow - wide).abs().max() < 1e-3


# Tied embeddings


def test_a_tied_embedding_is_one_parameter_and_takes_both_gradients():
    tied, free = double(SHAPES["tied"]), double(GPTConfig(19, 24, 2, 4, 2, 20, 16, rope_theta=50.0))
    assert "head.weight" not in dict(tied.named_parameters())
    assert sum(p.numel() for p in tied.parameters()) == sum(p.numel() for p in free.parameters()) - 19 * 24
    free.load_state_dict(tied.state_dict())
    for model in (tied, free):
        F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten()).backward()
    both = free.embedding.weight.grad + free.head.weight.grad
    torch.testing.assert_close(tied.embedding.weight.grad, both, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "move",
    [copy.deepcopy, lambda m: m.double(), lambda m: m.to("meta"), lambda m: m.to("meta").to_empty(device="cpu")],
    ids=["copied", "cast", "to meta", "to_empty"],
)
def test_a_tied_embedding_stays_tied_when_the_model_is(move):
    model = move(GPT(SHAPES["tied"]))
    assert model.head.weight is model.embedding.weight
    assert sum(p.numel() for p in model.parameters()) == parameter_count(SHAPES["tied"])


# What it is built of


def test_building_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    GPT(SMALL)
    assert torch.equal(torch.get_rng_state(), before)


def test_there_are_no_buffers_and_every_parameter_gets_a_gradient():
    model = GPT(SMALL)
    assert not list(model.buffers())
    F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one document", "documents"])
def test_in_bfloat16_and_under_autocast_it_stays_near_float32(documents):
    model, x = GPT(SMALL), tokens()
    exact = model(x, documents)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = model(x, documents)
    half = copy.deepcopy(model).bfloat16()(x, documents)
    assert cast.dtype == half.dtype == torch.bfloat16
    for logits in (cast, half):
        assert (logits - exact).abs().max() < 0.03 * exact.abs().max()


def test_a_sequence_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="A sequence of 17 tokens is too long: max_seq_len is 16."):
        GPT(SMALL)(tokens(seq_len=17))
    assert GPT(SMALL)(tokens(seq_len=16)).shape == (2, 16, 19)


def test_it_learns_a_sentence_by_heart(one_thread):
    text = torch.tensor([list(b"the ring carries every chunk to every rank ")])
    model = GPT(GPTConfig(128, 32, 2, 4, 2, 64, max_seq_len=64))
    init_weights(model, seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(50):
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.2
