"""Tensor parallelism: every rank holds a part of each matrix, and all ranks work on the same tokens.

`simple.py`: the ideas in a few lines each. `gpt.py`: the plain GPT made tensor parallel, in earnest; `layout.py` (who
has which part), `linear.py`, `blocks.py`, `embedding.py`, `loss.py`, `tokens.py` (sequence parallel), `gradients.py`,
`rng.py` (dropout).
"""

from course_lib.parallel.tensor.gpt import gather_parameters, sum_partial_gradients, tensor_parallel
from course_lib.parallel.tensor.loss import token_losses

__all__ = ["gather_parameters", "sum_partial_gradients", "tensor_parallel", "token_losses"]
