"""The loader: one global order for any number of ranks, no overlap, no gap, and a resume that nobody notices."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from course_lib.training.data import Loader, Packed, corpus, epoch_share, prepare, split, train_bpe
from course_lib.training.data.order import Order

END = 60_000


def numbered(samples: int, seq_len: int = 1) -> Packed:
    """A data set whose sample i begins with the token i * seq_len: so a batch tells which samples it holds."""
    return Packed(np.arange(samples * seq_len + 1, dtype=np.uint16), END, seq_len)


def samples_of(batch, seq_len: int = 1) -> list[int]:
    return [first // seq_len for first in batch.tokens[:, 0].tolist()]


def dealt(shares: list[list[int]]) -> list[int]:
    """The cards put back into one pile: the first of each rank, the second of each, ..."""
    rounds = max(map(len, shares))
    return [share[i] for i in range(rounds) for share in shares if i < len(share)]


def steps_of(dataset, batch, n, steps, state=None, **kwargs) -> list[list[list[int]]]:
    """For each step, the samples of each rank."""
    loaders = [Loader(dataset, batch, rank, n, **kwargs) for rank in range(n)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return [[samples_of(next(loader)) for loader in loaders] for _ in range(steps)]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")] == []


SAMPLES = st.integers(1, 40)
BATCH = st.integers(1, 12)
RANKS = st.integers(1, 5)
AHEAD = st.sampled_from([0, 0, 0, 2])  # a thread for each rank of each example takes its time


@given(SAMPLES, BATCH, RANKS, st.integers(0, 99), AHEAD)
def test_all_ranks_together_see_the_global_order(samples, batch, n, seed, ahead):
    assume(batch >= n)
    steps = steps_of(numbered(samples), batch, n, 6, seed=seed, ahead=ahead)
    order = Order(samples, seed).take(0, 6 * batch).tolist()
    assert [dealt(shares) for shares in steps] == [order[at : at + batch] for at in range(0, 6 * batch, batch)]
    for shares in steps:
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1 and sizes == sorted(sizes, reverse=True)


@given(SAMPLES, BATCH, BATCH, RANKS, RANKS, st.integers(0, 6), st.integers(0, 99), AHEAD)
def test_a_resume_goes_on_at_the_next_sample(samples, batch, later_batch, n, later_n, stop, seed, ahead):
    """Stopped after any number of steps, gone on with another number of ranks and another batch."""
    assume(batch >= n and later_batch >= later_n)
    dataset = numbered(samples)
    loader = Loader(dataset, batch, n - 1, n, seed=seed, ahead=ahead)
    for _ in range(stop):
        next(loader)
    state = loader.state_dict()  # with batches made ahead that nobody has seen
    later = steps_of(numbered(samples), later_batch, later_n, 4, state, seed=seed, ahead=ahead)
    order = Order(samples, seed).take(stop * batch, 4 * later_batch).tolist()
    assert [sample for shares in later for sample in dealt(shares)] == order
    undisturbed = [samples_of(next(loader)) for _ in range(4)]
    if (batch, n) == (later_batch, later_n):
        assert [shares[n - 1] for shares in later] == undisturbed
    loader.close()


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_where_all_divides_it_is_torchs_sampler(steps, per_rank, n, seed):
    samples = steps * per_rank * n
    for rank in range(n):
        loader = Loader(numbered(samples), per_rank * n, rank, n, seed=seed, ahead=0)
        for epoch in range(2):
            mine = [sample for _ in range(steps) for sample in samples_of(next(loader))]
            assert mine == epoch_share(samples, epoch, seed, rank, n)


def test_the_state_is_that_of_what_was_handed_out():
    loader = Loader(numbered(10), 4, 0, 2, seed=1, ahead=2)
    states = []
    for _ in range(3):
        states.append(loader.state_dict())
        next(loader)
    assert [state["seen"] for state in states] == [0, 4, 8]
    assert loader.state_dict()["seen"] == 12
    loader.close()


def test_the_state_is_the_same_on_all_ranks_and_survives_a_checkpoint(tmp_path):
    loaders = [Loader(numbered(10), 4, rank, 3, seed=1, ahead=0) for rank in range(3)]
    for loader in loaders:
        next(loader)
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1] == states[2]
    torch.save(states[0], tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True) == states[0]


def test_a_loader_in_use_takes_another_state():
    loader = Loader(numbered(20), 2, seed=1, ahead=2)
    start = loader.state_dict()
    first = [samples_of(next(loader)) for _ in range(5)]
    loader.load_state_dict(start)  # what was made ahead is dropped
    assert [samples_of(next(loader)) for _ in range(5)] == first
    loader.close()
    assert samples_of(next(loader)) == Order(20, 1).take(10, 2).tolist()  # after close it goes on where it was
    loader.close()


def test_other_data_or_another_seed_is_refused():
    state = Loader(numbered(20, 2), 2, seed=1).state_dict()
    for other in (numbered(21, 2), numbered(10, 4), Packed(np.arange(41, dtype=np.uint16), END - 1, 2)):
        with pytest.raises(
            ValueError, match=rf"The data differ: {other.fingerprint} here, {state['data']} in the state"
        ):
            Loader(other, 2, seed=1).load_state_dict(state)
    for seed in (2, None):
        with pytest.raises(ValueError, match=rf"The seed is {seed} here and 1 in the state: give that one"):
            Loader(numbered(20, 2), 2, seed=seed).load_state_dict(state)


@pytest.mark.parametrize(
    ("batch", "rank", "n", "said"),
    [
        (3, 0, 4, "A batch of 3 sequences is too small for 4 ranks: each needs at least one"),
        (0, 0, 1, "A batch of 0 sequences is too small for 1 ranks"),
        (4, 2, 2, "Rank 2 of 2: ranks count from 0 to n - 1, here 1"),
        (4, -1, 2, "Rank -1 of 2"),
    ],
)
def test_sizes_that_do_not_fit(batch, rank, n, said):
    with pytest.raises(ValueError, match=said):
        Loader(numbered(10), batch, rank, n)


class Failing:
    """A data set that cannot make one sample, as long as it is broken."""

    def __init__(self, inner: Packed, at: int) -> None:
        self.inner, self.at = inner, at

    def __len__(self) -> int:
        return len(self.inner)

    def batch(self, samples):
        if self.at in samples.tolist():
            raise OSError(f"sample {self.at} cannot be read")
        return self.inner.batch(samples)


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_in_the_thread_is_raised_in_its_turn_and_not_passed_over(ahead):
    dataset = Failing(numbered(10), at=5)
    loader = Loader(dataset, 2, ahead=ahead)
    assert [samples_of(next(loader)) for _ in range(2)] == [[0, 1], [2, 3]]
    for _ in range(2):
        with pytest.raises(OSError, match="sample 5 cannot be read"):
            next(loader)
    dataset.at = -1
    assert samples_of(next(loader)) == [4, 5]
    loader.close()


def test_dropping_the_loader_ends_its_thread():
    loader = Loader(numbered(10), 2, ahead=2)
    next(loader)
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]) == 1
    del loader


# From a path to batches


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_from_files_to_batches_and_back_to_text(tmp_path, kind):
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"document {i} " * 20)
    training, validation, tokenizer = prepare(tmp_path, kind, seq_len=16, vocab_size=300)
    documents = corpus(tmp_path)
    for part in (training, validation):
        batch = part.batch(range(len(part)))
        texts = tokenizer.decode([*batch.tokens.flatten().tolist()]).split("\n\n")
        assert len(texts) > 1 and set(texts[:-1]) <= set(documents) and documents  # the last one may be cut
    assert tokenizer.vocab_size == {"bytes": 257, "bpe": 300}[kind]
    again = prepare(tmp_path, kind, seq_len=16, vocab_size=300)
    assert again.training.fingerprint == training.fingerprint != validation.fingerprint


def test_byte_pairs_are_learned_from_the_training_documents_alone(tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"document {chr(97 + i % 26)}{i} " * 20)
    training, validation = split(corpus(tmp_path))
    learned = {len(part): train_bpe(part, 330).name for part in (training, validation, training + validation)}
    assert len(set(learned.values())) == 3
    assert prepare(tmp_path, "bpe", seq_len=16, vocab_size=330).tokenizer.name == learned[len(training)]


def test_too_short_says_which_part(tmp_path):
    (tmp_path / "text").write_text("word " * 100)
    with pytest.raises(
        ValueError, match=r"The validation part is too short. There are 26 tokens, .* seq_len of at most 25"
    ):
        prepare(tmp_path / "text", seq_len=64)
    with pytest.raises(ValueError, match=r"The training part is too short. There are 476 tokens, one sequence takes"):
        prepare(tmp_path / "text", seq_len=1000)


def test_unknown_tokens():
    with pytest.raises(ValueError, match='tokens is \'words\': it must be "bytes" or "bpe"'):
        prepare(tokens="words")
