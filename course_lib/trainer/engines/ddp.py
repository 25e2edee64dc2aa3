"""Data parallel: the whole model and all of the optimizer's state on every rank. Ours, and torch's."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.models import GPTConfig
from course_lib.parallel.data import DistributedDataParallel
from course_lib.trainer.engines.base import Engine, dtype_of, groups_of, make_adamw, new_model
from course_lib.trainer.options import Options


def ddp(config: GPTConfig, options: Options, device: torch.device) -> Engine:
    model = new_model(config, options.seed, device, dtype_of(options))
    return Engine(model, make_adamw(groups_of(model, options), options), DistributedDataParallel(model))


def torch_ddp(config: GPTConfig, options: Options, device: torch.device) -> Engine:
    model = new_model(config, options.seed, device, dtype_of(options))
    devices = [device] if device.type == "cuda" else None
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    return Engine(model, make_adamw(groups_of(model, options), options), wrapped)
