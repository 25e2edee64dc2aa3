"""Text to numbers and back: bytes, or byte-pair encoding trained on the corpus itself.

Both can write any text: byte-pair encoding starts from the 256 bytes. The end of a document is a token of its own, the
last of the vocabulary, and no text is encoded to it: text that looks like a marker is text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from course_lib.training.data.cache import cached, content_key, default_folder

LARGEST = 1 << 16  # tokens are kept in two bytes each


class Tokenizer(Protocol):
    """What the data set and the trainer ask of a tokenizer."""

    vocab_size: int  # the end-of-document token included
    end: int  # that token
    name: str  # equal for tokenizers that encode equally

    def encode_all(self, documents: Sequence[str]) -> Iterable[np.ndarray]:
        """The tokens of each document, without an end: (tokens,) uint16 each."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Iterable[int]) -> str:
        """The text. Bytes that are no UTF-8 become U+FFFD: a model may say anything. Ends become empty lines."""


class Bytes:
    """Every byte of UTF-8 is a token: nothing to train, and long sequences."""

    vocab_size = 257
    end = 256
    name = "bytes"

    def encode_all(self, documents: Sequence[str]) -> Iterable[np.ndarray]:
        return (np.frombuffer(text.encode(), np.uint8).astype(np.uint16) for text in documents)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Iterable[int]) -> str:
        parts = (b"\n\n" if token == self.end else bytes([token]) for token in tokens)
        return b"".join(parts).decode(errors="replace")


class BPE:
    """Byte-pair encoding by the `tokenizers` library (Sennrich et al. 2016, section 3.2; on bytes as in GPT-2).

    Frequent pairs of tokens are merged into new ones, until there are `vocab_size`.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner
        self.end = inner.get_vocab_size()
        self.vocab_size = self.end + 1
        self.name = "bpe " + content_key(inner.to_str())

    def encode_all(self, documents: Sequence[str]) -> Iterable[np.ndarray]:
        return (np.array(each.ids, np.uint16) for each in self.inner.encode_batch_fast(documents))

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text).ids

    def decode(self, tokens: Iterable[int]) -> str:
        documents: list[list[int]] = [[]]
        for token in tokens:
            if token == self.end:
                documents.append([])
            else:
                documents[-1].append(token)
        return "\n\n".join(map(self.inner.decode, documents))


def train_bpe(documents: Sequence[str], vocab_size: int = 4096, cache: Path | None = None) -> BPE:
    """Byte-pair encoding learned from the documents; kept in the folder `cache` and found there the next time.

    vocab_size: the 256 bytes, the merges and the end of a document. A small corpus has fewer pairs to merge than
    asked for, so the result's own `vocab_size` may be smaller. Raises ValueError where it is not 257 to 65,536.
    """
    if not 257 <= vocab_size <= LARGEST:
        raise ValueError(f"vocab_size is {vocab_size:,}: it must be 257 (256 bytes and an end) to {LARGEST:,}.")

    def train(path: Path) -> None:
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        inner.train_from_iterator(documents, trainer)
        inner.save(str(path))

    key = content_key("bpe", tokenizers.__version__, vocab_size, documents)
    return BPE(cached((cache or default_folder()) / f"bpe-{key}.json", train, load_tokenizer))


def load_tokenizer(path: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(path))


def stream_of(documents: Sequence[str], tokenizer: Tokenizer, cache: Path | None = None) -> np.ndarray:
    """(tokens,) uint16: the documents' tokens one after the other, each document followed by `tokenizer.end`.

    Byte-pair encoding is slow enough to be kept in the folder `cache`; from there the array is mapped, so the ranks of
    a machine share one copy in memory.
    """
    if isinstance(tokenizer, Bytes):
        return joined(documents, tokenizer)
    key = content_key("stream", tokenizer.name, documents)
    return cached(
        (cache or default_folder()) / f"stream-{key}.npy",
        make=lambda path: np.save(path, joined(documents, tokenizer)),
        load=lambda path: np.load(path, mmap_mode="r"),
    )


def joined(documents: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
    end = np.array([tokenizer.end], np.uint16)
    return np.concatenate([part for tokens in tokenizer.encode_all(documents) for part in (tokens, end)])
