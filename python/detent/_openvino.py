"""OpenVINO, as a program has it from the package of that name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any


def is_installed() -> bool:
    return importlib.util.find_spec("openvino") is not None


class OpenVino:
    """Runs models on the CPU."""

    def __init__(self, threads: int = 0) -> None:
        import openvino

        self._core = openvino.Core()
        self._settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads} if threads > 0 else {}
        self.name = f"OpenVINO {openvino.__version__.partition('-')[0]}, CPU"

    def load(self, model: os.PathLike[str]) -> Callable[[list[Any]], Sequence[Any]] | None:
        try:
            compiled = self._core.compile_model(str(model), "CPU", self._settings)
        except RuntimeError:  # which all refusals are
            return None

        def run(inputs: list[Any]) -> Sequence[Any]:
            results = compiled(inputs)
            return [results[output].copy() for output in compiled.outputs]

        return run
