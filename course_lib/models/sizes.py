"""Named sizes, from one a laptop core trains in a minute to one that needs a node."""

from __future__ import annotations

from dataclasses import fields, replace
from difflib import get_close_matches

from course_lib.models.config import GPTConfig

# The first two read bytes: 256 and one token for the end of a document. 124m and 350m are GPT-2's small and medium in
# Llama's form, with GPT-2's 50,257 tokens padded to a multiple of 128 so that they divide over ranks. The others are
# published models: Llama 3.2 1B and 3B, Llama 2 7B, and SOLAR 10.7B (arXiv 2312.15166), less Llama 3.2's stretched
# positions.
SIZES = {
    "tiny": GPTConfig(257, dim=128, n_layers=4, n_heads=4, n_kv_heads=2, ffn_dim=512, max_seq_len=256),
    "small": GPTConfig(257, dim=384, n_layers=6, n_heads=6, n_kv_heads=2, ffn_dim=1024, max_seq_len=512),
    "124m": GPTConfig(
        50_304, dim=768, n_layers=12, n_heads=12, n_kv_heads=12, ffn_dim=2048, max_seq_len=1024, tied=True
    ),
    "350m": GPTConfig(
        50_304, dim=1024, n_layers=24, n_heads=16, n_kv_heads=16, ffn_dim=2688, max_seq_len=2048, tied=True
    ),
    "1b": GPTConfig(
        128_256,
        dim=2048,
        n_layers=16,
        n_heads=32,
        n_kv_heads=8,
        ffn_dim=8192,
        max_seq_len=8192,
        tied=True,
        rope_theta=5e5,
    ),
    "3b": GPTConfig(
        128_256,
        dim=3072,
        n_layers=28,
        n_heads=24,
        n_kv_heads=8,
        ffn_dim=8192,
        max_seq_len=8192,
        tied=True,
        rope_theta=5e5,
    ),
    "7b": GPTConfig(32_000, dim=4096, n_layers=32, n_heads=32, n_kv_heads=32, ffn_dim=11_008, max_seq_len=4096),
    "10b": GPTConfig(32_000, dim=4096, n_layers=48, n_heads=32, n_kv_heads=8, ffn_dim=14_336, max_seq_len=4096),
}

# What parameter_count says of each, to be read without running anything.
PARAMETERS = {
    "tiny": 1_049_984,
    "small": 9_639_552,
    "124m": 123_587_328,
    "350m": 350_405_632,
    "1b": 1_235_814_400,
    "3b": 3_212_749_824,
    "7b": 6_738_415_616,
    "10b": 10_731_524_096,
}


def sized(name: str, **changes: object) -> GPTConfig:
    """The config of a named size, with some fields changed: sized("tiny", vocab_size=1000).

    ValueError if there is no such size or no such field, naming what is near; or if the numbers do not fit together.
    """
    _known("size", name, list(SIZES))
    for change in changes:
        _known("field of GPTConfig", change, [field.name for field in fields(GPTConfig)])
    return replace(SIZES[name], **changes)


def _known(what: str, name: str, names: list[str]) -> None:
    if name not in names:
        near = get_close_matches(name.lower(), names, n=2)
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"There is no {what} {name!r}. {meant}There are {', '.join(names)}.")
