"""Reads samples of every supported Python type, one at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from .errors import BadInput, UsageError


@runtime_checkable
class DataReader(Protocol):
    """ONNX Runtime's CalibrationDataReader and its like: a dict of arrays, or None after the last."""

    def get_next(self) -> Mapping[str, Any] | None: ...


#: A file or folder; dicts of arrays by input name (or bare arrays for a model with one input), in anything that can be
#: iterated; a function that returns such an iterable; an object with get_next().
Data = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]] | DataReader


class Stream:
    """The stream from which the native library reads samples."""

    def __init__(self, restart: Callable[[], Iterator[Any]], can_rewind: bool, size: int) -> None:
        self._restart = restart
        self._iterator: Iterator[Any] | None = None
        self.can_rewind = can_rewind
        self.size = size

    def next(self) -> dict[str, Any] | None:
        if self._iterator is None:
            self._iterator = self._restart()
        for sample in self._iterator:
            return _arrays(sample)
        return None

    def rewind(self) -> None:
        self._iterator = None


def stream_of(data: Data) -> Stream:
    """A stream over anything but a path."""
    if isinstance(data, Mapping):
        raise UsageError("data is one dict, not a series of samples", "give a list of dicts")
    if isinstance(data, DataReader):
        return _reader_stream(data)
    if isinstance(data, Iterable):
        once = iter(data) is data if isinstance(data, Iterator) else False
        return Stream(lambda: iter(data), not once, length(data))
    if callable(data):
        return Stream(lambda: iter(data()), True, 0)
    raise UsageError(
        f"data is {_kind(data)}, which holds no samples",
        "give a folder, a list of dicts of arrays, a generator or a reader with get_next()",
    )


def _reader_stream(reader: DataReader) -> Stream:
    rewind = getattr(reader, "rewind", None)
    started = False

    def restart() -> Iterator[Any]:
        nonlocal started
        if started and callable(rewind):
            rewind()
        started = True
        return iter(reader.get_next, None)

    return Stream(restart, callable(rewind), length(reader))


def length(data: Any) -> int:
    """The length of the data if known, else 0."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return 0


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _arrays(sample: Any) -> dict[str, Any]:
    if isinstance(sample, Mapping):
        return {str(name): _array(value) for name, value in sample.items()}
    if isinstance(sample, str | bytes | list | tuple):
        raise BadInput(f"a sample is {_kind(sample)}, not a dict of arrays", "give dicts: input name to array")
    return {"": _array(sample)}


def _array(value: Any) -> Any:
    """The value as something that shares its memory by DLPack or the buffer protocol."""
    if getattr(value, "requires_grad", False):
        value = value.detach()
    import numpy as np

    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise BadInput(
            "a sample has a masked array, and models have no masks", "give its values: array.filled(value), or array.data"
        )
    if not hasattr(value, "__dlpack__"):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    return value
