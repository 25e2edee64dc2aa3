"""Which bucket each parameter goes into: by the order in which gradients come, by dtype and device."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Parameter

from course_lib.parallel.data.buckets import Bucket, empty_bucket
from course_lib.parallel.data.simple import pack_buckets


def arrange(parameters: Sequence[Parameter], ready: Sequence[int], cap: int, first_cap: int) -> list[Bucket]:
    """Buckets in the order in which they are sent.

    ready: the indices of all parameters, in the order in which their gradients are expected. cap, first_cap: bytes, as
    in `pack_buckets`. A bucket holds one dtype on one device. Where there are several of these, each is packed for
    itself, and a bucket is sent when the last of its gradients is expected.
    """
    kinds: dict[tuple, list[int]] = {}
    for index in ready:
        kinds.setdefault((parameters[index].dtype, parameters[index].device), []).append(index)
    place = {index: position for position, index in enumerate(ready)}
    packed = []
    for indices in kinds.values():
        last_first = indices[::-1]  # pack_buckets takes the order of registration, and starts at its end
        sizes = [parameters[index].numel() * parameters[index].element_size() for index in last_first]
        packed += [[last_first[i] for i in bucket] for bucket in pack_buckets(sizes, cap, first_cap)]
    packed.sort(key=lambda bucket: max(place[index] for index in bucket))
    return [empty_bucket([parameters[index] for index in bucket]) for bucket in packed]
