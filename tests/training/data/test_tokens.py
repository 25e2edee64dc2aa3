"""Tokens: every text there and back, byte-pair encoding that is learned once, and a stream with its ends."""

import multiprocessing
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.training.data import BPE, Bytes, stream_of, tokens, train_bpe
from course_lib.training.data.cache import content_key

DOCUMENTS = [
    " ".join(f"{a}{b}" for a in ("ab", "cd", "ef") for b in ("rst", "uvw", "xyz")),
    "the cat sat on the mat\n" * 20,
    "def f(x):\n    return x + 1\n" * 20,
    "caf\xe9 \N{SNOWMAN} <|end|> \r\n",
]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> BPE:
    return train_bpe(DOCUMENTS, 300, tmp_path_factory.mktemp("cache"))


@given(st.text())
def test_bytes_there_and_back(text):
    tokenizer = Bytes()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    [tokens] = tokenizer.encode_all([text])
    assert tokens.dtype == np.uint16 and tokens.tolist() == tokenizer.encode(text)


@given(text=st.text() | st.text("the cat\n <|end>", max_size=60))
def test_bpe_there_and_back(bpe, text):
    encoded = bpe.encode(text)
    assert bpe.decode(encoded) == text
    assert bpe.end not in encoded and all(0 <= token < bpe.end for token in encoded)
    [tokens] = bpe.encode_all([text])
    assert tokens.dtype == np.uint16 and tokens.tolist() == encoded


def test_bpe_has_the_bytes_the_merges_and_an_end(bpe):
    assert (bpe.vocab_size, bpe.end) == (300, 299)
    assert len(bpe.encode("the cat sat on the mat\n")) < 12
    assert len(train_bpe(["ab"], 300).encode("ab")) == 1
    assert train_bpe(["ab"], 300).vocab_size == 258  # there is one pair to merge, whatever was asked for
    assert train_bpe(["ab"], 257).encode("ab") == [bpe.encode("a")[0], bpe.encode("b")[0]]


def test_any_token_of_the_vocabulary_can_be_written(bpe):
    for tokenizer in (Bytes(), bpe):
        for token in range(tokenizer.vocab_size):
            assert isinstance(tokenizer.decode([token]), str)
        a, b = tokenizer.encode("a"), tokenizer.encode("b")
        assert tokenizer.decode([*a, tokenizer.end, *b]) == "a\n\nb"
    assert Bytes().decode([0xC3, 0xA9, 0xC3]) == "\xe9\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("vocab_size", [0, 256, 65537])
def test_a_vocabulary_has_its_limits(vocab_size):
    with pytest.raises(
        ValueError, match=rf"vocab_size is {vocab_size:,}: it must be 257 \(256 bytes and an end\) to 65,536"
    ):
        train_bpe(DOCUMENTS, vocab_size)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_each_document_has_its_end_in_the_stream(bpe, tmp_path, kind):
    tokenizer = {"bytes": Bytes(), "bpe": bpe}[kind]
    stream = stream_of(DOCUMENTS, tokenizer, tmp_path)
    assert stream.dtype == np.uint16
    expected = [token for text in DOCUMENTS for token in [*tokenizer.encode(text), tokenizer.end]]
    assert stream.tolist() == expected
    assert stream_of(DOCUMENTS, tokenizer, tmp_path).tolist() == expected  # from the cache


def test_a_second_time_nothing_is_learned_or_encoded(tmp_path, monkeypatch):
    first = train_bpe(DOCUMENTS, 280, tmp_path)
    stream = stream_of(DOCUMENTS, first, tmp_path).tolist()

    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(tokens.trainers, "BpeTrainer", never)
    monkeypatch.setattr(BPE, "encode_all", never)
    again = train_bpe(DOCUMENTS, 280, tmp_path)
    assert again.name == first.name
    assert stream_of(DOCUMENTS, again, tmp_path).tolist() == stream


def test_other_text_or_another_size_is_learned_anew(tmp_path):
    names = {
        train_bpe(documents, size, tmp_path).name for documents in (DOCUMENTS, DOCUMENTS[:1]) for size in (262, 266)
    }
    assert len(names) == 4
    streams = [stream_of(DOCUMENTS, train_bpe(DOCUMENTS, size, tmp_path), tmp_path).tolist() for size in (262, 290)]
    assert len(streams[0]) > len(streams[1])


@given(st.lists(st.text("ab|1 ", max_size=3), max_size=4), st.lists(st.text("ab|1 ", max_size=3), max_size=4))
def test_documents_have_equal_keys_only_if_they_are_equal(a, b):
    assert (content_key("x", 1, a) == content_key("x", 1, b)) == (a == b)


def learn(folder, documents, answers):
    tokenizer = train_bpe(documents, 300, folder)
    answers.put((tokenizer.name, stream_of(documents, tokenizer, folder).tobytes()))


def test_ranks_that_begin_together_learn_once_and_the_same(tmp_path):
    """Four processes with an empty cache: all get the same, and nothing but the finished files and locks is left."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    ranks = [context.Process(target=learn, args=(tmp_path, DOCUMENTS, answers)) for _ in range(4)]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # what the library asks of those who fork
    for rank in ranks:
        rank.start()
    got = {answers.get(timeout=60) for _ in ranks}
    for rank in ranks:
        rank.join(60)
    assert len(got) == 1
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".lock", ".lock", ".npy"]
