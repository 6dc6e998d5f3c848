"""Reads samples of every supported Python type, one at a time."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from .errors import BadInput, UsageError


@runtime_checkable
class DataReader(Protocol):
    """ONNX Runtime's CalibrationDataReader and its like: a dict of arrays, or None after the last."""

    def get_next(self) -> Mapping[str, Any] | None: ...


#: A file or folder; dicts of arrays by input name (bare arrays for a model with one input; tuples or lists with arrays in the
#: order of the inputs, of which what follows, such as a label, is left out), in anything that can be iterated; a function
#: that returns such an iterable; an object with get_next().
Data = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]] | DataReader


class Pictures(NamedTuple):
    """A folder of pictures that detent reads itself, as its command does; see data.images()."""

    folder: str
    preset: str
    size: int  #: 0: as the model has it


class Stream:
    """The stream from which the native library reads samples. `inputs` finds the names of the model's inputs."""

    def __init__(
        self, restart: Callable[[], Iterator[Any]], can_rewind: bool, size: int, inputs: Callable[[], Sequence[str]]
    ) -> None:
        self._restart = restart
        self._inputs = functools.cache(inputs)
        self._iterator: Iterator[Any] | None = None
        self.can_rewind = can_rewind
        self.size = size

    def next(self) -> dict[str, Any] | None:
        if self._iterator is None:
            self._iterator = self._restart()
        for sample in self._iterator:
            return _arrays(sample, self._inputs)
        return None

    def rewind(self) -> None:
        self._iterator = None


def stream_of(data: Data, inputs: Callable[[], Sequence[str]]) -> Stream:
    """A stream over anything but a path, for a model with these inputs."""
    import numpy  # noqa: F401  (not amid a run: an import may lose the KeyboardInterrupt of Ctrl-C)

    if isinstance(data, Mapping):
        raise UsageError("data is one dict, not a series of samples", "give a list of dicts")
    if isinstance(data, DataReader):
        return _reader_stream(data, inputs)
    if isinstance(data, Iterable):
        once = iter(data) is data if isinstance(data, Iterator) else False
        return Stream(lambda: iter(data), not once, length(data), inputs)
    if callable(data):
        return Stream(lambda: iter(data()), True, 0, inputs)
    raise UsageError(
        f"data is {_kind(data)}, which holds no samples",
        "give a folder, a list of dicts of arrays, a generator or a reader with get_next()",
    )


def _reader_stream(reader: DataReader, inputs: Callable[[], Sequence[str]]) -> Stream:
    rewind = getattr(reader, "rewind", None)
    started = False

    def restart() -> Iterator[Any]:
        nonlocal started
        if started and callable(rewind):
            rewind()
        started = True
        return iter(reader.get_next, None)

    return Stream(restart, callable(rewind), length(reader), inputs)


def length(data: Any) -> int:
    """The length of the data if known, else 0."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return 0


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _arrays(sample: Any, inputs: Callable[[], Sequence[str]]) -> dict[str, Any]:
    if isinstance(sample, list | tuple) and sample and isinstance(sample[0], Mapping):
        sample = sample[0]  # (inputs, label)
    if isinstance(sample, Mapping):
        return {str(name): _named_array(str(name), value) for name, value in sample.items()}
    if isinstance(sample, list | tuple):
        names = inputs()
        if len(sample) < len(names):
            raise BadInput(
                f"a sample is {_kind(sample)} of {len(sample)}, and the model has {len(names)} inputs: {', '.join(names)}",
                "give an array for each, in this order, or dicts: input name to array",
            )
        return {name: _named_array(name, value) for name, value in zip(names, sample, strict=False)}
    if isinstance(sample, str | bytes):
        raise BadInput(f"a sample is {_kind(sample)}, not a dict of arrays", "give dicts: input name to array")
    return {"": _named_array("", sample)}


def _named_array(name: str, value: Any) -> Any:
    """A value's own code may fail as it likes; what it says is told with the name of the input."""
    try:
        return _array(value)
    except (AttributeError, ValueError, OverflowError) as error:
        if isinstance(error, BadInput | UsageError):
            raise
        told = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadInput(
            f"input '{name}' of a sample, {_kind(value)}, cannot be read as an array: {told}", "give a numpy array"
        ) from error


def _array(value: Any) -> Any:
    """The value as something that shares its memory by DLPack or the buffer protocol."""
    if getattr(value, "requires_grad", False):
        value = value.detach()
    import numpy as np

    ma = sys.modules.get("numpy.ma")  # there is no masked array without it
    if ma is not None and isinstance(value, ma.MaskedArray) and ma.is_masked(value):
        raise BadInput(
            "a sample has a masked array, and models have no masks", "give its values: array.filled(value), or array.data"
        )
    if not hasattr(value, "__dlpack__"):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    return value
