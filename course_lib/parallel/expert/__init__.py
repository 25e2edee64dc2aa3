"""Expert parallel: every rank holds some of the experts, and tokens travel to the experts they chose and back."""

from course_lib.parallel.expert.balance import (
    balance_share,
    expert_load,
    sequence_balance_share,
    update_biases,
    z_share,
)
from course_lib.parallel.expert.dispatch import ParallelExperts
from course_lib.parallel.expert.gpt import (
    expert_parallel,
    for_clipping,
    gather_parameters,
    init_weights,
    reduce_gradients,
)
from course_lib.parallel.expert.mesh import ExpertMesh, expert_mesh

__all__ = [
    "ExpertMesh",
    "ParallelExperts",
    "balance_share",
    "expert_load",
    "expert_mesh",
    "expert_parallel",
    "for_clipping",
    "gather_parameters",
    "init_weights",
    "reduce_gradients",
    "sequence_balance_share",
    "update_biases",
    "z_share",
]
