"""Lab 2a: tensor parallel, from one product on many ranks to the bytes of a layer."""

from __future__ import annotations

from course_lib.lab.exercises.lab2a_bytes import LAYER_BYTES
from course_lib.lab.exercises.lab2a_chance import INITIAL_SHARD, REGION_DROPOUT
from course_lib.lab.exercises.lab2a_heads import QKV_ROWS
from course_lib.lab.exercises.lab2a_losses import VOCAB_PARALLEL_LOSSES
from course_lib.lab.exercises.lab2a_mlp import COLUMN_THEN_ROW
from course_lib.lab.exercises.lab2a_pair import COPY_TO, REDUCE_FROM
from course_lib.lab.exercises.lab2a_sequence import SEQUENCE_PARALLEL_MLP
from course_lib.lab.exercises.lab2a_vocab import VOCAB_PARALLEL_EMBEDDING

EXERCISES = [
    COLUMN_THEN_ROW,
    COPY_TO,
    REDUCE_FROM,
    QKV_ROWS,
    VOCAB_PARALLEL_EMBEDDING,
    VOCAB_PARALLEL_LOSSES,
    SEQUENCE_PARALLEL_MLP,
    LAYER_BYTES,
    INITIAL_SHARD,
    REGION_DROPOUT,
]
