"""A profile of several runs, and of what a program does between them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from . import _core


class Profiler:
    """Measures time, memory and disk traffic from now until finish(): docs/profile.md.

        with detent.Profiler("profile.yaml") as profiler:
            with profiler.scope("Load samples"):
                samples = load()
            detent.quantize("model.onnx", "model.int8.onnx", samples, profile=profiler)

    yaml: the file, which grows while the program runs; None: nothing is written, and peak_memory remains.
    """

    def __init__(self, yaml: str | os.PathLike[str] | None = None) -> None:
        self._native = _core.Profiler(yaml)

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Writes "name Start" now and "name End" at the end of the block. Scopes may nest."""
        scope = self._native.begin(name)
        try:
            yield
        finally:
            self._native.end(scope)

    def checkpoint(self, name: str) -> None:
        """Writes the state of this moment under a name."""
        self._native.checkpoint(name)

    def finish(self) -> None:
        """Writes "End" and the summary, and stops measuring. Raises the error that kept the file from being complete."""
        self._native.finish()

    @property
    def peak_memory(self) -> int:
        """Bytes: the process's own high-water mark, or the largest sum with its children if that is more."""
        return self._native.peak_memory
