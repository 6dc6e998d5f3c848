"""Exports PyTorch's modules with torch.onnx. The package torch is not required."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from . import _models
from .errors import BadInput, UsageError


@runtime_checkable
class Module(Protocol):
    """torch.nn.Module."""

    training: bool

    def eval(self) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...


def _is_module(model: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


@contextlib.contextmanager
def exported(model: Any, example_inputs: Any) -> Iterator[_models.Model]:
    """The model as it is given, or the path of what torch.onnx makes of a module, which is removed at the end."""
    if not _is_module(model):
        if example_inputs is not None:
            raise UsageError("example_inputs: the model is no torch.nn.Module", "leave them out")
        yield model
        return
    if example_inputs is None:
        raise UsageError("a torch.nn.Module is exported first", "give example_inputs, with which its forward() can be called")
    with _models.folder(None) as folder:
        path = os.path.join(folder, "model.onnx")
        _export(model, example_inputs, path)
        yield path


def _export(module: Any, example_inputs: Any, path: str) -> None:
    import torch

    names = [n for n, p in inspect.signature(module.forward).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if isinstance(example_inputs, Mapping):
        unknown = set(example_inputs) - set(names)
        if unknown:
            raise UsageError(f"example_inputs: forward() has no '{min(unknown)}'", f"it has {', '.join(names)}")
        names = [name for name in names if name in example_inputs]
        arguments: Any = (dict(example_inputs),)  # a dict at the end: by name
    else:
        arguments = tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)
        names = names[: len(arguments)]
    takes = inspect.signature(torch.onnx.export).parameters
    # The exporter of torch 2 needs a package more.
    options = {"dynamo": False} if "dynamo" in takes and find_spec("onnxscript") is None else {}
    was_training = module.training
    module.eval()
    try:
        torch.onnx.export(module, arguments, path, input_names=names, **options)
    except Exception as error:  # whatever the module and the exporter throw
        words = str(error).strip().splitlines()
        raise BadInput(
            f"torch.onnx cannot export the {type(module).__name__}: {words[0] if words else type(error).__name__}",
            "export it in another way, and give the path of the file",
        ) from error
    finally:
        module.train(was_training)
