"""Send functions and values to the ranks and back.

cloudpickle sends functions and classes of a notebook by value. Two things are added: code keeps its file name, with
the cell's source beside it, so that a rank can name the reader's own line; and a value that cannot be sent is found
and named.
"""

from __future__ import annotations

import importlib
import inspect
import io
import linecache
import pickle
import types
from collections import ChainMap
from typing import Any

import cloudpickle
import torch

_code_reduce = cloudpickle.Pickler.dispatch_table[types.CodeType]


def _named_code(parts: tuple, file: str) -> types.CodeType:
    return types.CodeType(*parts).replace(co_filename=file)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's, with file names kept and CUDA tensors brought to the CPU (the notebook owns no GPU)."""

    def __init__(self, file: io.IOBase):
        self.sources: dict[str, list[str]] = {}  # of code that is in no file: cells
        # Before super().__init__, which reads the table once.
        self.dispatch_table = ChainMap({types.CodeType: self._code}, cloudpickle.Pickler.dispatch_table)
        self.protocol = pickle.HIGHEST_PROTOCOL
        super().__init__(file, protocol=self.protocol)

    def _code(self, code: types.CodeType) -> tuple:
        file = code.co_filename
        cached = linecache.cache.get(file)
        if cached and len(cached) == 4 and cached[1] is None:  # no mtime: not a file, put there by IPython
            self.sources[file] = cached[2]
        return _named_code, (_code_reduce(code)[1], file)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType) and type(value) is not types.ModuleType:
            # torch.distributed.config and its kind. cloudpickle adds them where a function uses `dist` and anything
            # called `config`, for it might mean the submodule.
            return importlib.import_module, (value.__name__,)
        if type(value) is torch.Tensor and value.layout == torch.strided:
            if value.device.type == "cuda":
                return value.detach().cpu().requires_grad_(value.requires_grad).__reduce_ex__(self.protocol)
            if value.device.type == "cpu" and _is_small_part(value):
                return value.detach().clone().requires_grad_(value.requires_grad).__reduce_ex__(self.protocol)
        return super().reducer_override(value)


def _is_small_part(tensor: torch.Tensor) -> bool:
    """Is this a view of a much larger tensor, all of which would be sent with it?"""
    return tensor.untyped_storage().nbytes() > 2 * tensor.numel() * tensor.element_size() + 1024


class CannotSend(TypeError):
    """A value cannot be pickled; the message names it."""


def dump(value: Any, file: io.IOBase, parts: list[tuple[str, Any]]) -> dict[str, list[str]]:
    """Pickle `value` into `file` and return the sources of the cells whose code is in it.

    parts: what `value` is made of, each part with the words that name it to the reader.
    Raises CannotSend naming the innermost part that cannot be pickled.
    """
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except OSError:
        raise  # the disk is full, say
    except Exception as error:  # pickle raises TypeError, AttributeError, PicklingError, ValueError, ...
        bad = next(((name, part) for name, part in parts if not _can(part)), parts[0])
        name, culprit = _culprit(*bad)
        kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
        raise CannotSend(
            f"{name} cannot be sent between processes: it is a {kind} ({_first_line(error)}). "
            "Create it inside the function that runs on the ranks, or send the plain values it is made from."
        ) from error
    return pickler.sources


def load(file: io.IOBase) -> Any:
    return pickle.load(file)


def keep_sources(sources: dict[str, list[str]]) -> None:
    """Make the cells' source lines known to tracebacks and to inspect in this process."""
    for file, lines in sources.items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _can(value: Any) -> bool:
    try:
        _Pickler(io.BytesIO()).dump(value)
    except Exception:
        return False
    return True


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """The values inside `value`, each with the words that name it."""
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, types.MethodType):
        return [(f"The object of {path}", value.__self__), (path, value.__func__)]
    if isinstance(value, types.FunctionType):
        used = inspect.getclosurevars(value)
        names = {**used.globals, **used.nonlocals}
        defaults = list(value.__defaults__ or ())
        return [(f"`{name}`, which {path} uses,", item) for name, item in names.items()] + [
            (f"A default value of {path}", item) for item in defaults
        ]
    if hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
        return [(f"{path}.{name}", item) for name, item in vars(value).items()]
    return []


def _culprit(path: str, value: Any, depth: int = 6) -> tuple[str, Any]:
    """The innermost part of `value` that cannot be pickled, and how to name it."""
    if depth:
        for name, part in _parts(value, path):
            if not _can(part):
                return _culprit(name, part, depth - 1)
    return path, value
