"""Qualcomm's HTP, as a program has it from the package onnxruntime-qnn: the processor, or on x86 CPUs its simulator."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

from .errors import DeviceError

# Of the processor that the table of `detent check` was swept with.
_ARCHITECTURE = "73"


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("onnxruntime", "onnxruntime_qnn"))


class Qnn:
    """Runs models on the HTP as a whole: none is taken of which the CPU would have to run a part."""

    def __init__(self) -> None:
        import onnxruntime
        import onnxruntime_qnn

        self._ort = onnxruntime
        self._provider = onnxruntime_qnn.get_ep_name()
        if not self._devices():
            onnxruntime.register_execution_provider_library(self._provider, onnxruntime_qnn.get_library_path())
        self._settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "htp_arch": _ARCHITECTURE}
        devices = self._devices()
        if not devices:
            raise DeviceError("onnxruntime-qnn finds no device here", "install its build for this machine's processor")
        self._device = next((device for device in devices if device.device.type.name == "NPU"), devices[0])
        self.is_simulated = self._device.device.type.name != "NPU"
        version = importlib.metadata.version("onnxruntime-qnn")
        self.name = f"onnxruntime-qnn {version}, HTP {_ARCHITECTURE}{', simulated' if self.is_simulated else ''}"

    def _devices(self) -> list[Any]:
        return [device for device in self._ort.get_ep_devices() if device.ep_name == self._provider]

    def load(self, model: os.PathLike[str]) -> Callable[[list[Any]], Sequence[Any]] | None:
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices([self._device], self._settings)
        refusals = self._ort.capi.onnxruntime_pybind11_state
        try:
            session = self._ort.InferenceSession(os.fspath(model), options)
        except (refusals.Fail, refusals.EPFail, refusals.NotImplemented, refusals.InvalidGraph):
            return None
        names = [value.name for value in session.get_inputs()]
        return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))
