"""GPT models in named sizes. They know nothing of how they are trained or spread over ranks."""

from course_lib.models.config import GPTConfig, MoEConfig, active_parameter_count, parameter_count
from course_lib.models.flops import flops_per_token
from course_lib.models.gpt import GPT
from course_lib.models.init import init_weights, initial_value
from course_lib.models.sizes import SIZES, sized

__all__ = [
    "GPT",
    "SIZES",
    "GPTConfig",
    "MoEConfig",
    "active_parameter_count",
    "flops_per_token",
    "init_weights",
    "initial_value",
    "parameter_count",
    "sized",
]
