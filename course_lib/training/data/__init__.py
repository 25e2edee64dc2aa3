"""Real text, as batches: documents, tokens, packed sequences, and each rank's share of one order.

    data = prepare(seq_len=256)
    loader = Loader(data.training, batch=16, rank=rank, n=n, seed=1)
    for tokens, labels, documents in loader: ...

One idea a file: `corpus.py` finds and splits documents, `tokens.py` turns them into numbers, `packing.py` cuts these
into sequences, `order.py` decides who sees which, `loader.py` hands them out, `prefetch.py` does so ahead of time, and
`cache.py` keeps what is slow to make.
"""

from .corpus import corpus, split
from .loader import Loader
from .order import epoch_share
from .packing import Batch, Packed
from .prepare import Prepared, prepare
from .tokens import BPE, Bytes, Tokenizer, stream_of, train_bpe

__all__ = [
    "BPE",
    "Batch",
    "Bytes",
    "Loader",
    "Packed",
    "Prepared",
    "Tokenizer",
    "corpus",
    "epoch_share",
    "prepare",
    "split",
    "stream_of",
    "train_bpe",
]
