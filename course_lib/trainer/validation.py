"""The validation loss: the mean over the validation text's tokens, exactly, whoever reads which."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.trainer.job import Job, padding_alone


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
    rounds = -(-sequences // (ranks.n * job.micro))  # as many on all ranks: an engine may send something in each
    for start in range(0, rounds * job.micro, job.micro):
        some = mine[start : start + job.micro]
        losses, valid = job.losses(job.engine.model, data.batch(some) if some else padding_alone())
        told += torch.stack([losses.double().sum(), valid.sum()])
    dist.all_reduce(told)
    total, count = told.tolist()
    return total / max(count, 1)
