"""What all classes of options have in common."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from os import PathLike
from typing import Any, ClassVar, Self, TypeVar

from .errors import UsageError

Path = str | PathLike[str]
#: Bytes, or a text such as "1.5GiB".
Size = int | str

_T = TypeVar("_T")


class Options:
    """A dataclass whose fields are options of the native library."""

    #: Options that choosing this class sets, as in {"method": "percentile"}.
    _chosen: ClassVar[Mapping[str, Any]] = {}

    def __new__(cls, *_given: Any, **named: Any) -> Self:
        check_names(cls, named, cls.__name__)
        return super().__new__(cls)

    def to_dict(self) -> dict[str, Any]:
        """What is set, by name."""
        options = dict(self._chosen)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                options[field.name] = value.to_dict() if isinstance(value, Options) else value
        return options


def check_names(cls: type, given: Mapping[str, Any], where: str) -> None:
    """UsageError for a name that is no field of the class."""
    known = [field.name for field in dataclasses.fields(cls)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known)
            hint = f"did you mean {' or '.join(near)}?" if near else "it has: " + ", ".join(known)
            raise UsageError(f"{where} has no option '{name}'", hint)


def make(cls: type[_T], given: Mapping[str, Any], where: str) -> _T:
    """An object of the class from names and values; UsageError names what it does not have."""
    if not isinstance(given, Mapping):
        raise UsageError(f"{where} is {given!r}", f"give a mapping with options of it, or a {cls.__name__}")
    check_names(cls, given, where)
    return cls(**given)
