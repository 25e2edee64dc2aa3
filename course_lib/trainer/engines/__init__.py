"""The engines a run can choose from. Each is imported when it is asked for: some take seconds."""

from __future__ import annotations

from importlib import import_module

import torch

from course_lib.models import GPTConfig
from course_lib.trainer.engines.base import Engine
from course_lib.trainer.options import Options

PLACES = {"ddp": "ddp:ddp", "torch-ddp": "ddp:torch_ddp", "torch-fsdp": "torch_fsdp:TorchFSDP"}


def make_engine(config: GPTConfig, options: Options, device: torch.device) -> Engine:
    """The engine that the options name, with a new model in it. All ranks call it together."""
    module, function = PLACES[options.engine].split(":")
    return getattr(import_module(f"{__name__}.{module}"), function)(config, options, device)
