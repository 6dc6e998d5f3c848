"""The exceptions of detent: one class for each kind of failure, with messages of one line."""

import re
from typing import ClassVar

# Options of the command line in messages, and their names in Python.
_RENAMED = {"samples": "max_samples", "calibration-data": "data", "no-histogram": "histograms=False"}


class Error(Exception):
    """Every failure that detent can name. `message` says what is wrong and where, `hint` what to change (may be empty)."""

    kind: ClassVar[str] = "internal"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type["Error"], tuple[str, str]]:
        return type(self), (self.message, self.hint)


class UsageError(Error, ValueError):
    """An option is wrong, or cannot be combined with another."""

    kind = "usage"


class BadInput(Error, ValueError):
    """The model or the data is wrong."""

    kind = "bad_input"


class ResourceError(Error, RuntimeError):
    """Out of memory, disk or budget."""

    kind = "resource"


class DeviceError(Error, RuntimeError):
    """A runtime library, a driver or a device is missing or failed."""

    kind = "device"


class Interrupted(Error, RuntimeError):
    """The run was asked to stop. Ctrl-C raises KeyboardInterrupt as everywhere in Python, not this."""

    kind = "interrupted"


class InternalError(Error, RuntimeError):
    """A bug in detent."""

    kind = "internal"


_CLASSES = {cls.kind: cls for cls in (UsageError, BadInput, ResourceError, DeviceError, Interrupted, InternalError)}


def _in_python(text: str) -> str:
    def option(match: re.Match[str]) -> str:
        name = match[1]
        return _RENAMED.get(name) or name.replace("-", "_")

    return re.sub(r"(?<![\w-])--([a-z][a-z-]*[a-z])", option, text)


def make(kind: str, message: str, hint: str) -> Error:
    """The exception for an error of the native library."""
    return _CLASSES[kind](_in_python(message), _in_python(hint))
