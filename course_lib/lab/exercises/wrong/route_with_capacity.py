"""Wrong answers to `route_with_capacity`, each with one mistake. The exercise says how each must be explained.

First the ways to keep: queue (T, k, E) holds a 1 at each choice; scores (T, k) are those of the chosen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Routes = tuple[Tensor, Tensor, Tensor]


def at_chosen(counted: Tensor, queue: Tensor) -> Tensor:
    """(T, E) or (T, k, E) -> (T, k): the numbers at the chosen experts."""
    counted = counted if counted.dim() == 3 else counted.unsqueeze(1)
    return (counted * queue).sum(-1)


def place(queue: Tensor) -> Tensor:
    """As it should be, from 0."""
    return at_chosen(queue.sum(1).cumsum(0), queue) - 1


def a_queue_for_each_choice(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    return at_chosen(queue.cumsum(0), queue) <= capacity


def first_choices_first(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    T, k, E = queue.shape
    by_choice = queue.transpose(0, 1).reshape(k * T, E).cumsum(0).view(k, T, E).transpose(0, 1)
    return at_chosen(by_choice, queue) <= capacity


def one_too_many(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    return place(queue) <= capacity


def one_too_few(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    return place(queue) + 1 < capacity


def by_score(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    score = (queue * scores.detach().unsqueeze(-1)).sum(1)  # (T, E)
    better = (score.unsqueeze(0) > score.unsqueeze(1)).sum(1)  # how many have a better one, (T, E)
    return at_chosen(better, queue) < capacity


def last_come(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    return place(queue.flip(0)).flip(0) < capacity


def overwriting(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    last = at_chosen(queue.sum((0, 1)).expand(len(queue), -1), queue) - 1
    return (place(queue) < capacity - 1) | (place(queue) == last)


def the_dropped(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    return place(queue) >= capacity


def one_room_for_all(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    T, k, E = queue.shape
    return torch.arange(T * k).view(T, k) < capacity * E


def first_tokens(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    T, k, _ = queue.shape
    return (torch.arange(T) < capacity).unsqueeze(1).expand(T, k)


def everybody(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    return torch.ones(queue.shape[:2], dtype=torch.bool)


def whole_tokens(queue: Tensor, scores: Tensor, capacity: int) -> Tensor:
    kept = place(queue) < capacity
    return kept.all(-1, keepdim=True).expand(kept.shape)


def right_choice(scores: Tensor, k: int, capacity: int) -> Routes:
    best, chosen = scores.topk(k, dim=-1)
    return chosen, best / best.sum(-1, keepdim=True), place(F.one_hot(chosen, scores.shape[-1])) < capacity


def keeping(scores: Tensor, k: int, capacity: int, keep: Callable) -> Routes:
    chosen, weights, _ = right_choice(scores, k, capacity)
    return chosen, weights, keep(F.one_hot(chosen, scores.shape[-1]), scores.gather(1, chosen), capacity)


def made_up_for(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, weights, kept = right_choice(scores, k, capacity)
    weights = weights * kept
    return chosen, weights / weights.sum(-1, keepdim=True), kept


def made_up_for_with_care(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, weights, kept = right_choice(scores, k, capacity)
    weights = weights * kept
    return chosen, weights / weights.sum(-1, keepdim=True).clamp(min=1e-9), kept


def not_divided(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, _, kept = right_choice(scores, k, capacity)
    return chosen, scores.gather(1, chosen), kept


def dropped_weigh_nothing(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, weights, kept = right_choice(scores, k, capacity)
    return chosen, weights * kept, kept


def softmax_of_chosen(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, _, kept = right_choice(scores, k, capacity)
    return chosen, scores.gather(1, chosen).softmax(-1), kept


def softmax_again(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, _, kept = right_choice(scores, k, capacity)
    return chosen, scores.softmax(-1).gather(1, chosen), kept


def softmax_again_and_divided(scores: Tensor, k: int, capacity: int) -> Routes:
    return right_choice(scores.softmax(-1), k, capacity)


def divided_by_the_sum_of_all(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, _, kept = right_choice(scores, k, capacity)
    best = scores.gather(1, chosen)
    return chosen, best / best.sum(), kept


def divided_by_k(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, _, kept = right_choice(scores, k, capacity)
    return chosen, scores.gather(1, chosen) / k, kept


def in_bfloat16(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, weights, kept = right_choice(scores.bfloat16(), k, capacity)
    return chosen, weights.float(), kept


def worst_experts(scores: Tensor, k: int, capacity: int) -> Routes:
    best, chosen = scores.topk(k, dim=-1, largest=False)
    return chosen, best / best.sum(-1, keepdim=True), place(F.one_hot(chosen, scores.shape[-1])) < capacity


def in_order_of_numbers(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen = scores.topk(k, dim=-1).indices.sort(-1).values
    best = scores.gather(1, chosen)
    return chosen, best / best.sum(-1, keepdim=True), place(F.one_hot(chosen, scores.shape[-1])) < capacity


def sent_on(scores: Tensor, k: int, capacity: int) -> Routes:
    room, rows = [capacity] * scores.shape[-1], []
    for order in scores.argsort(-1, descending=True).tolist():
        rows.append(sorted(order, key=lambda e: room[e] <= 0)[:k])
        for e in rows[-1]:
            room[e] -= 1
    chosen = torch.tensor(rows, dtype=torch.int64).view(-1, k)
    best = scores.gather(1, chosen)
    return chosen, best / best.sum(-1, keepdim=True), torch.ones_like(chosen, dtype=torch.bool)


def queue_for_each_choice(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, a_queue_for_each_choice)


def first_choices_before_second(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, first_choices_first)


def off_by_one(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, one_too_many)


def counted_from_one(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, one_too_few)


def dropped_by_score(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, by_score)


def last_are_kept(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, last_come)


def last_place_overwritten(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, overwriting)


def dropped_for_kept(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, the_dropped)


def common_room(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, one_room_for_all)


def first_tokens_kept(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, first_tokens)


def all_kept(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, everybody)


def token_dropped_whole(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, whole_tokens)


def counted_along_experts(scores: Tensor, k: int, capacity: int) -> Routes:
    return keeping(scores, k, capacity, lambda queue, *_: at_chosen(queue.sum(1).cumsum(1), queue) <= capacity)


def weights_cut_off(scores: Tensor, k: int, capacity: int) -> Routes:
    return right_choice(scores.detach(), k, capacity)


def weights_by_a_constant_sum(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, _, kept = right_choice(scores, k, capacity)
    best = scores.gather(1, chosen)
    return chosen, best / best.sum(-1, keepdim=True).detach(), kept


def kept_as_numbers(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, weights, kept = right_choice(scores, k, capacity)
    return chosen, weights, kept.float()


def row_by_row(scores: Tensor, k: int, capacity: int) -> Routes:
    room, kept = [capacity] * scores.shape[-1], []
    chosen, weights, _ = right_choice(scores, k, capacity)
    for row in chosen.tolist():
        kept.append([room[e] > 0 for e in row])
        for e in row:
            room[e] -= 1
    return chosen, weights, torch.tensor(kept, dtype=torch.bool)


def two_of_three(scores: Tensor, k: int, capacity: int) -> tuple[Tensor, Tensor]:
    return right_choice(scores, k, capacity)[:2]


def counted_from_expert_1(scores: Tensor, k: int, capacity: int) -> Routes:
    chosen, weights, kept = right_choice(scores, k, capacity)
    return chosen + 1, weights, kept
