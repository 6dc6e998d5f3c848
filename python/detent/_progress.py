"""Progress of a run: a line in a terminal, an updated output in a notebook, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

#: Called with the stage, the work done and the total work (0: unknown).
Callback = Callable[[str, int, int], object]
#: None: shown in terminals and notebooks; True: always; False: never; or a function.
Progress = Callback | bool | None


class Display(Protocol):
    shows: bool

    def __call__(self, stage: str, done: int, total: int) -> None: ...
    def close(self) -> None: ...


def text(stage: str, done: int, total: int) -> str:
    return f"{stage}: {done} of {total}" if total >= done and total > 0 else f"{stage}: {done}"


class _Terminal:
    shows = True

    def __init__(self) -> None:
        self._shown = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        sys.stderr.write(f"\r{text(stage, done, total)}\x1b[K")
        sys.stderr.flush()
        self._shown = True

    def close(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class _Notebook:
    shows = True

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def _show(self, content: str) -> None:
        data = {"text/plain": content}
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def __call__(self, stage: str, done: int, total: int) -> None:
        self._show(text(stage, done, total))

    def close(self) -> None:
        if self._handle is not None:
            self._show("")


class _Silent:
    shows = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        pass

    def close(self) -> None:
        pass


class _Own(_Silent):
    shows = True

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def __call__(self, stage: str, done: int, total: int) -> None:
        self._callback(stage, done, total)


def _notebook() -> Callable[..., Any] | None:
    """IPython's display() when a notebook runs this. IPython is not imported for it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if type(shell).__name__ != "ZMQInteractiveShell":
        return None
    display: Callable[..., Any] = sys.modules["IPython.display"].display
    return display


def shown(progress: Progress) -> Display:
    """The progress display that the caller asked for."""
    if callable(progress):
        return _Own(progress)
    if progress is False:
        return _Silent()
    display = _notebook()
    if display is not None:
        return _Notebook(display)
    return _Terminal() if progress or sys.stderr is not None and sys.stderr.isatty() else _Silent()
