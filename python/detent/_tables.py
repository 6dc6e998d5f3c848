"""Tables that read well in a terminal and in a notebook."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

from . import _core

Row = TypeVar("Row", bound=NamedTuple)
_SHOWN = 20


def size(value: int | None) -> str:
    return "?" if value is None else _core.format_size(value)


def number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def percent(share: float) -> str:
    return f"{share:.1%}"


def _fixed(digits: int, value: float) -> str:
    return f"{value:.{digits}f}"


def fixed(digits: int) -> Callable[[float], str]:
    """Numbers with so many decimals."""
    return functools.partial(_fixed, digits)


class Column(NamedTuple):
    """A column: its title, the attribute that it shows, and how: no lambda, which pickle cannot take."""

    title: str
    attribute: str
    text: Callable[[Any], str] = str

    @property
    def is_number(self) -> bool:
        return self.text is not str

    def of(self, row: object) -> str:
        return self.text(getattr(row, self.attribute))


class Table(Sequence[Row], Generic[Row]):
    """Rows in their order, each a named tuple; printing shows the first of them."""

    def __init__(self, rows: Iterable[Row], columns: Sequence[Column]) -> None:
        self._rows = tuple(rows)
        self._columns = columns

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Table[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Table[Row]:
        return Table(self._rows[at], self._columns) if isinstance(at, slice) else self._rows[at]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Rows as dicts, for pandas.DataFrame(...) and the like."""
        return [row._asdict() for row in self._rows]

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<{len(self)} rows>" if not self._rows else self.to_text()

    def to_text(self, limit: int = _SHOWN) -> str:
        """The first rows in columns; all with limit=0."""
        rows = self._rows[: limit or None]
        cells = [[column.of(row) for row in rows] for column in self._columns]
        widths = [max(map(len, [column.title, *texts])) for column, texts in zip(self._columns, cells, strict=True)]
        lines = [self._line([column.title for column in self._columns], widths)]
        lines += [self._line(texts, widths) for texts in zip(*cells, strict=True)]
        if len(rows) < len(self):
            lines.append(f"… and {len(self) - len(rows)} more")
        return "\n".join(lines)

    def _line(self, texts: Sequence[str], widths: Sequence[int]) -> str:
        parts = [
            text.rjust(width) if column.is_number else text.ljust(width)
            for column, text, width in zip(self._columns, texts, widths, strict=True)
        ]
        return "  ".join(parts).rstrip()

    def _repr_html_(self) -> str:
        def cell(tag: str, column: Column, text: str) -> str:
            align = "right" if column.is_number else "left"
            return f'<{tag} style="text-align:{align}">{html.escape(text)}</{tag}>'

        head = "".join(cell("th", column, column.title) for column in self._columns)
        body = "".join(
            "<tr>" + "".join(cell("td", column, column.of(row)) for column in self._columns) + "</tr>"
            for row in self._rows[:_SHOWN]
        )
        more = f"<p>… and {len(self) - _SHOWN} more</p>" if len(self) > _SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
