"""The validation loss: the mean over the validation text's tokens, exactly, whoever reads which."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.trainer.job import Job


@torch.no_grad()
def validation_loss(job: Job) -> float:
    """In nats per token, the same on all ranks. Sequences are dealt to the ranks; some may get none.

    Sums and counts are added over the ranks, then divided: the mean of the ranks' means would weigh a token more where
    its rank has fewer. It takes the first `--validate-on` sequences, 0 for all.
    """
    data, ranks = job.data.validation, job.ranks
    sequences = min(job.options.validate_on or len(data), len(data))
    mine = range(ranks.rank, sequences, ranks.n)
    told = torch.zeros(2, dtype=torch.float64, device=ranks.device)
    for start in range(0, len(mine), job.micro):
        losses, valid = job.losses(job.model, data.batch(mine[start : start + job.micro]))
        told += torch.stack([losses.double().sum(), valid.sum()])
    dist.all_reduce(told)
    total, count = told.tolist()
    return total / max(count, 1)
