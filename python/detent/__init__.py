"""detent quantizes ONNX models after training, at the memory cost of plain inference.

    import detent

    detent.quantize("model.onnx", "model.int8.onnx", data="samples/")
    detent.quantize("model.onnx", "model.int8.onnx", data=({"x": array} for array in arrays),
                    config=detent.Config(method=detent.Percentile(percentile=99.99)))

Importing is fast: numpy and ONNX Runtime are loaded when a run needs them.
"""

import atexit
from typing import TYPE_CHECKING, Any

from . import _core, errors
from ._api import bench, calibrate, check, compare, inspect, merge_statistics, plan, quantize, report, search, verify
from ._config import (
    Accuracy,
    AdaQuant,
    AdaRound,
    Config,
    Device,
    Entropy,
    Gptq,
    KvCache,
    LayerwisePercentile,
    MinMax,
    Mse,
    Percentile,
    Resources,
    TensorOverride,
    WeightsOnly,
)
from ._models import ModelBytes
from ._own import register_method
from ._profiler import Profiler
from ._results import (
    BenchResult,
    CalibrateResult,
    CheckResult,
    Comparison,
    Inspection,
    Plan,
    QuantizeResult,
    SearchPoint,
    ServingMachine,
    Verification,
)
from ._search import SearchResult
from .errors import BadInput, DeviceError, Error, InternalError, Interrupted, ResourceError, UsageError

if TYPE_CHECKING:
    from . import data

__version__ = _core.__version__
atexit.register(_core.end_runs)  # of daemon threads

__all__ = [
    "Accuracy",
    "AdaQuant",
    "AdaRound",
    "BadInput",
    "BenchResult",
    "CalibrateResult",
    "CheckResult",
    "Comparison",
    "Config",
    "Device",
    "DeviceError",
    "Entropy",
    "Error",
    "Gptq",
    "Inspection",
    "InternalError",
    "Interrupted",
    "KvCache",
    "LayerwisePercentile",
    "MinMax",
    "ModelBytes",
    "Mse",
    "Percentile",
    "Plan",
    "Profiler",
    "QuantizeResult",
    "ResourceError",
    "Resources",
    "SearchPoint",
    "SearchResult",
    "ServingMachine",
    "TensorOverride",
    "UsageError",
    "Verification",
    "WeightsOnly",
    "bench",
    "calibrate",
    "check",
    "compare",
    "data",
    "errors",
    "inspect",
    "merge_statistics",
    "plan",
    "quantize",
    "register_method",
    "report",
    "search",
    "verify",
]


def __getattr__(name: str) -> Any:
    """`detent.data` is imported when it is first used."""
    if name == "data":
        import importlib

        return importlib.import_module("detent.data")
    raise AttributeError(f"module 'detent' has no attribute '{name}'")
