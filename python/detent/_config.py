"""How a model is quantized. The options themselves, their defaults and their help are in _options.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from . import _core, _options
from ._base import Path, Size, make
from ._options import (
    AdaQuant,
    AdaRound,
    Entropy,
    Finetune,
    Gptq,
    KvCache,
    LayerwisePercentile,
    Method,
    MethodName,
    MinMax,
    Mse,
    Percentile,
    Resources,
    RoundingName,
    TensorOverride,
    WeightsOnly,
)
from .errors import UsageError

__all__ = ["Accuracy", "AdaQuant", "AdaRound", "Config", "Device", "Entropy", "Finetune", "Gptq", "LayerwisePercentile", "Method"]
__all__ += ["MethodName", "MinMax", "Mse", "Path", "Percentile", "Resources", "RoundingName", "Size", "TensorOverride"]
__all__ += ["KvCache", "WeightsOnly", "make"]


class Accuracy(_options.Accuracy):
    __doc__ = _options.Accuracy.__doc__

    def to_dict(self) -> dict[str, Any]:
        options = super().to_dict()
        metric = self.metric
        if callable(metric):
            options["metric"] = "command"
            options["score"] = lambda path: float(metric(str(path)))
        return options


class Device(_options.Device):
    __doc__ = _options.Device.__doc__

    @classmethod
    def named(cls, text: str) -> Device:
        """Devices as the command line names them: "cpu", "cuda:0", "cuda:0,cuda:1"."""
        return cls(cuda=tuple(_core.parse_devices(text)))


_NESTED: dict[str, type[Any]] = {
    "accuracy": Accuracy,
    "resources": Resources,
    "device": Device,
    "weights_only": WeightsOnly,
    "kv_cache": KvCache,
}


class Config(_options.Config):
    __doc__ = _options.Config.__doc__

    @classmethod
    def of(cls, config: Config | Mapping[str, Any] | None) -> Self | Config:
        """The configuration itself, or one with the entries of a mapping."""
        if config is None:
            return cls()
        made = config if isinstance(config, Config) else make(cls, config, "Config")
        for name, nested in _NESTED.items():
            given = getattr(made, name)
            if given is not None and not isinstance(given, nested | Mapping | str | bool):
                raise UsageError(f"Config: {name} is {given!r}", f"give a mapping with options of it, or a {nested.__name__}")
        return made

    def to_dict(self) -> dict[str, Any]:
        options = super().to_dict()
        if isinstance(self.method, str):
            options["method"] = {"method": self.method}
        if isinstance(self.finetune, str):
            options["finetune"] = {"rounding": self.finetune}
        if isinstance(self.device, str):
            options["device"] = Device.named(self.device).to_dict()
        if isinstance(self.weights_only, bool):
            options["weights_only"] = {"enabled": self.weights_only}
        if isinstance(self.kv_cache, str):
            options["kv_cache"] = {"type": self.kv_cache}
        for name, cls in _NESTED.items():
            if isinstance(getattr(self, name), Mapping):
                options[name] = make(cls, getattr(self, name), name).to_dict()
        if self.overrides is not None:
            if isinstance(self.overrides, str | Mapping) or not isinstance(self.overrides, Iterable):
                raise UsageError(f"overrides: {self.overrides!r} is not a list", "give a list of TensorOverride")
            overrides = [o if isinstance(o, TensorOverride) else make(TensorOverride, o, "overrides") for o in self.overrides]
            options["overrides"] = [override.to_dict() for override in overrides]
        return options
