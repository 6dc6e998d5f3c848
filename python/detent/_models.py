"""Gives models as paths, since the native library maps files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from . import _hub
from .errors import BadInput, ResourceError, UsageError

if TYPE_CHECKING:
    from ._results import QuantizeResult


@runtime_checkable
class ModelProto(Protocol):
    """onnx.ModelProto, which is never changed. The package onnx is not required."""

    def SerializeToString(self) -> bytes: ...


class ModelBytes(bytes):
    """A quantized model, with the QuantizeResult in `result`."""

    result: QuantizeResult

    def __repr__(self) -> str:
        return f"<ONNX model of {len(self)} bytes: {self.result._heading()}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_()


#: A path, the bytes of a model, or an onnx.ModelProto. Models of 2 GiB and more must be paths.
Model = str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto


@contextlib.contextmanager
def folder(work_dir: str | os.PathLike[str] | None) -> Iterator[str]:
    """A private folder that is removed when it is no longer used."""
    import tempfile  # here, because it would add noticeably to the import time of detent

    with contextlib.ExitStack() as spare:  # removing opens the folder, when there may be no descriptor left
        try:
            for _ in range(2):
                spare.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            raise ResourceError(f"cannot open a file: {error.strerror}", "raise the limit on open files") from None
        if work_dir is not None and not isinstance(work_dir, str | os.PathLike):
            raise UsageError(f"work_dir: {work_dir!r} is no path")
        try:
            temporary = tempfile.TemporaryDirectory(prefix="detent-python-", dir=work_dir)
        except OSError as error:
            raise UsageError(f"cannot use '{work_dir}': {error.strerror}", "choose another work_dir") from None
        with temporary as name, spare.pop_all():
            yield name


def path_of(model: Model, inside: str, name: str) -> str:
    """The path of the model; bytes and protobufs are written into the folder first."""
    if isinstance(model, str | os.PathLike):
        path = os.fspath(model)
        return _hub.local(path) if isinstance(path, str) else path
    if isinstance(model, bytes | bytearray | memoryview):
        content: bytes | bytearray | memoryview = model
    elif isinstance(model, ModelProto):
        content = _serialized(model)
    else:
        raise UsageError(f"the model is a {type(model).__name__}, not a path, the bytes of a model or an onnx.ModelProto")
    path = os.path.join(inside, name)
    with open(path, "xb") as file:
        file.write(content)
    return path


def _serialized(model: ModelProto) -> bytes:
    try:
        return model.SerializeToString()
    except Exception as error:  # protobuf's own classes differ by version and implementation
        raise BadInput(
            f"the onnx.ModelProto cannot be written: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            "models of 2 GiB and more go by path: onnx.save(model, path, save_as_external_data=True)",
        ) from error
