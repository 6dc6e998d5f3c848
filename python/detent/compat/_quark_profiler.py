"""Quark's GlobalProfiler over detent's: one profile of a process, where QUARK_PROFILING=1 asks for it."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator

from .._profiler import Profiler


class ProfileStep:
    """Names of steps. detent writes those of its own stages itself."""

    START = "Start"
    END = "End"
    USER_DEFINED = "User-Defined"
    MODEL_LOADED = "Model Loaded"
    MODEL_LOADING = "Model Loading"
    DATASET_LOADING = "Dataset Loading"
    MODEL_EVALUATION = "Model Evaluation"
    PRE_PROCESS = "Pre-process"
    CALIBRATION = "Calibration"
    QUANTIZATION_STATIC = "Quantization (Static)"
    QUANTIZATION_DYNAMIC = "Quantization (Dynamic)"
    QUANTIZATION_MATMUL_NBITS = "Quantization (MatMulNBits)"
    POST_PROCESS = "Post-process"
    FAST_FINETUNE = "Fast Finetune"
    MODEL_CACHING = "Model Caching"
    FLOAT_MODEL_VALIDATION = "Float Model Validation"


class GlobalProfiler:
    """The process's only one: it writes output_path (of the first call) from now until stop() or the end of the process.
    Without QUARK_PROFILING=1 in the environment it does nothing."""

    _instance: GlobalProfiler | None = None
    _profiler: Profiler | None

    def __new__(cls, output_path: str | os.PathLike[str] = "quark_profile.yaml") -> GlobalProfiler:
        if cls._instance is None:
            made = super().__new__(cls)
            made._profiler = Profiler(output_path) if os.environ.get("QUARK_PROFILING") == "1" else None
            cls._instance = made
            atexit.register(made.stop)
        return cls._instance

    def __enter__(self) -> GlobalProfiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def scope(self, step_name: str, user_msg: str | None = None) -> Iterator[None]:
        """A step with a Start and an End; a message, if given, is its name."""
        with self._profiler.scope(user_msg or step_name) if self._profiler else contextlib.nullcontext():
            yield

    def stop(self) -> None:
        """Writes the summary. Nothing is recorded after it."""
        if self._profiler:
            self._profiler.finish()
            self._profiler = None


@contextlib.contextmanager
def profile_scope(step: str, user_msg: str | None = None) -> Iterator[None]:
    """GlobalProfiler().scope(), also as a decorator."""
    with GlobalProfiler().scope(step, user_msg):
        yield


def active() -> Profiler | None:
    """What records the runs of this process, if anything does."""
    return GlobalProfiler()._profiler
