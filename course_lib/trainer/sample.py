"""Text that the model writes: one token after the other, each drawn from what the model says comes next."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

TEMPERATURE = 0.8  # below 1: likely tokens become likelier


@torch.no_grad()
def continued(
    model: nn.Module, tokens: Sequence[int], count: int, longest: int, seed: int, device: torch.device
) -> list[int]:
    """`tokens` and `count` more. longest: how many the model takes; of a longer text it sees the end.

    Nothing is kept from one token to the next, so a text of T tokens costs T forwards: for a look, not for a service.
    """
    generator = torch.Generator().manual_seed(seed)
    text = list(tokens)
    for _ in range(count):
        seen: Tensor = torch.tensor([text[-longest:]], device=device)
        chances = (model(seen)[0, -1].float() / TEMPERATURE).softmax(-1)
        text.append(int(torch.multinomial(chances.cpu(), 1, generator=generator)))
    return text
