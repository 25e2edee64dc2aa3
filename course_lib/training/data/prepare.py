"""From a path to data sets: what the labs and the trainer call."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from course_lib.training.data.corpus import corpus, split
from course_lib.training.data.packing import Packed
from course_lib.training.data.tokens import Bytes, Tokenizer, stream_of, train_bpe


class Prepared(NamedTuple):
    """Packed sequences to train on and to validate with, and the tokenizer that made them."""

    training: Packed
    validation: Packed
    tokenizer: Tokenizer


def prepare(
    path: str | Path | None = None,
    tokens: str = "bytes",
    seq_len: int = 256,
    vocab_size: int = 4096,
    cache: Path | None = None,
) -> Prepared:
    """Read a corpus, hold a twentieth of it out for validation, and pack both into sequences.

    path: a text file or a folder of them; None: the running Python's standard library. tokens: "bytes", or "bpe" with a
    vocabulary of `vocab_size`, learned from the training documents alone. cache: the folder for what is slow to make.

    Every rank calls this for itself, with no communication: equal files give equal data sets. Ranks on one machine
    train byte-pair encoding once between them. Where ranks have files of their own, compare `training.fingerprint`.

    Raises ValueError or FileNotFoundError, in one sentence, for input that does not do.
    """
    if tokens not in ("bytes", "bpe"):
        raise ValueError(f'tokens is {tokens!r}: it must be "bytes" or "bpe".')
    training, validation = split(corpus(path))
    tokenizer = Bytes() if tokens == "bytes" else train_bpe(training, vocab_size, cache)
    packed = []
    for part, documents in ("training", training), ("validation", validation):
        try:
            packed.append(Packed(stream_of(documents, tokenizer, cache), tokenizer.end, seq_len))
        except ValueError as error:
            raise ValueError(f"The {part} part is too short. {error}") from None
    return Prepared(*packed, tokenizer)
