"""Parts of one's own: calibration methods that are functions of the caller's (docs/own-parts.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from . import _core, _models
from ._config import Accuracy, Config, MethodName, TensorOverride, make
from .errors import BadInput, UsageError

if TYPE_CHECKING:
    import numpy as np

    from ._config import Path
    from ._samples import Data

    Array = np.ndarray[Any, np.dtype[Any]]
    OwnMethod = Callable[[Array, Array, float, float], tuple[float, float]]
    Settings = Config | Mapping[str, Any] | None

_methods: dict[str, OwnMethod] = {}


def register_method(name: str, function: OwnMethod) -> None:
    """Make a function a calibration method of this process: quantize(..., config={"method": name}) finds it.

    It gets the counts of an activation's values, the edges of the bins (one more), the least and the greatest value, and returns
    the lowest and the highest value of the range. The same arguments should always give the same range.
    """
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"register_method: {name!r} is no name", "letters, digits, '-' and '_'")
    if name in get_args(MethodName):
        raise UsageError(f"register_method: '{name}' is a method of detent's own", "give it another name")
    if not callable(function):
        raise UsageError(f"register_method: {name} is a {type(function).__name__}, not a function")
    _methods[name] = function


@contextlib.contextmanager
def ranges(
    config: Settings, statistics: Path | None, data: Data | None, calibrate: Callable[[Data, str], object]
) -> Iterator[tuple[Settings, Path | None, Data | None]]:
    """Configuration, statistics and samples; with a registered method, the ranges that it finds."""
    own = Config.of(config).method
    if not isinstance(own, str) or own not in _methods:
        yield config, statistics, data
        return
    data = _again(data)
    with _models.folder(None) as folder:
        if statistics is None:
            if data is None:
                raise UsageError(f"method '{own}' needs samples or statistics", "give data")
            statistics = os.path.join(folder, "own.stats")
            calibrate(data, statistics)
        yield _with_ranges(config, own, os.fspath(statistics)), statistics, data


def _again(data: Data | None) -> Data | None:
    """Samples that can be read twice."""
    if data is not None and hasattr(data, "get_next"):
        return list(iter(data.get_next, None))
    return list(data) if isinstance(data, Iterator) else data


def _with_ranges(config: Settings, name: str, statistics: str) -> Config:
    """The configuration with the range of each activation in a file of statistics; ranges that it gives itself win."""
    import numpy as np

    chosen = Config.of(config)
    overrides = []
    for tensor, (lows, highs, counts, minimum, maximum) in _core.histograms(statistics).items():
        edges, filled = _joined(lows, highs, counts)
        found = _range(name, tensor, np.array(filled), np.array(edges), minimum, maximum)
        overrides.append(TensorOverride(tensor=tensor, range=found))
    return dataclasses.replace(chosen, method="minmax", overrides=[*overrides, *(chosen.overrides or ())])


def _joined(lows: list[float], highs: list[float], counts: list[int]) -> tuple[list[float], list[int]]:
    """Neighbouring bins, with empty ones between those that are not."""
    edges, filled = lows[:1], list[int]()
    for low, high, count in zip(lows, highs, counts, strict=True):
        if low > edges[-1]:
            edges.append(low)
            filled.append(0)
        edges.append(high)
        filled.append(count)
    return edges, filled


def _range(name: str, tensor: str, counts: Array, edges: Array, minimum: float, maximum: float) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in _methods[name](counts, edges, minimum, maximum))
    except Exception as error:
        raise BadInput(f"method '{name}' fails for '{tensor}': {type(error).__name__}: {error}") from error
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise BadInput(
            f"method '{name}' gives '{tensor}' the range {low} to {high}", "return two finite numbers, the lower one first"
        )
    return low, high


def with_score(config: Settings, score: Callable[[str], float] | None) -> Settings:
    """The configuration with a metric of one's own."""
    if score is None:
        return config
    chosen = Config.of(config)
    given = chosen.accuracy
    accuracy = make(Accuracy, given, "accuracy") if isinstance(given, Mapping) else given or Accuracy()
    if accuracy.metric is not None:
        raise UsageError("score is given beside accuracy's metric", "leave out one of them")
    return dataclasses.replace(chosen, accuracy=dataclasses.replace(accuracy, metric=score))
