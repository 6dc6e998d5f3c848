"""Options of other tools. Each is translated, accepted at its default, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._config import TensorOverride
from ..errors import UsageError

#: The options of detent.Config for a run, by name.
Chosen = dict[str, Any]
#: Translates the value of one option of the other tool.
Taker = Callable[[Chosen, Any], None]


class NotThere(UsageError, ImportError):
    """What `from … import NAME` ends with, so that scripts that try another import can."""


def refuse(what: str, hint: str = "") -> UsageError:
    return UsageError(f"{what} is not supported by detent", hint)


def absent(package: str, name: str, instead: Mapping[str, str]) -> Any:
    """For a module's __getattr__: importing a name of the other package says what to use instead."""
    if name in instead:
        raise NotThere(f"{package}'s {name} is not supported by detent", instead[name])
    raise AttributeError(name)


def differs(what: str, how: str) -> None:
    """Warns of an option that is accepted, and does something a little different."""
    warnings.warn(f"{what}: {how}", UserWarning, stacklevel=2)


def into(name: str) -> Taker:
    """The option has a counterpart with the same meaning."""

    def take(chosen: Chosen, value: Any) -> None:
        chosen[name] = value

    return take


def default_only(option: str, *defaults: Any, hint: str = "") -> Taker:
    """Accepts only the values that match what detent does."""

    def take(chosen: Chosen, value: Any) -> None:
        if not any(value == default for default in defaults):
            raise refuse(f"{option}={value!r}", hint or f"leave it out, or give {defaults[0]!r}")

    return take


def not_needed(chosen: Chosen, value: Any) -> None:
    """Accepts any value: the option concerns memory, speed or printing only."""


def take_all(where: str, given: Mapping[str, Any], takers: Mapping[str, Taker], chosen: Chosen) -> None:
    """Passes every option to its handler; options without a handler are refused."""
    for name, value in given.items():
        if name not in takers:
            raise UsageError(
                f"{where} has no option '{name}' that detent knows", "leave it out; docs/migration.md lists the options"
            )
        takers[name](chosen, value)


def take_overrides(chosen: Chosen, value: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """TensorQuantOverrides with ranges of single tensors; others are refused."""
    overrides = []
    for tensor, entries in value.items():
        entry = [dict(e) for e in entries]
        if len(entry) != 1 or set(entry[0]) != {"rmin", "rmax"}:
            names = ", ".join(sorted({name for e in entry for name in e}))
            raise refuse(f"TensorQuantOverrides['{tensor}'] with {names or 'no entries'}", "give rmin and rmax, and only them")
        overrides.append(TensorOverride(tensor=tensor, range=(float(entry[0]["rmin"]), float(entry[0]["rmax"]))))
    chosen["overrides"] = overrides


def name_of(value: Any) -> str:
    """The name of an enumeration's member, ours or the other tool's own."""
    return str(getattr(value, "name", value))
