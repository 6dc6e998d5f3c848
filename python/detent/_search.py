"""What detent.search() gives back."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from typing import Any, Self

from . import _results
from ._results import SearchPoint
from ._shown import COLUMNS
from ._tables import Table


class SearchResult(_results.SearchResult):
    """The front of size, latency and accuracy. In a notebook it draws itself."""

    @classmethod
    def of(cls, told: Mapping[str, Any], **more: Any) -> Self:
        made = super().of(told, **more)
        made.points = Table(sorted(made.points, key=_seconds_of), COLUMNS["SearchPoint"])
        return made

    @property
    def front(self) -> list[SearchPoint]:
        """Points that no other one beats."""
        return [point for point in self.points if point.on_front]

    @property
    def chosen(self) -> dict[str, SearchPoint]:
        """By what they were chosen as."""
        return {why: point for point in self.points for why in point.chosen}

    def _repr_html_(self) -> str:
        with open(os.path.join(self.folder, "front.html"), encoding="utf-8") as page:
            text = html.escape(page.read(), quote=True)
        return f'<iframe srcdoc="{text}" style="width:100%;height:46rem;border:0" title="detent search"></iframe>'


def _seconds_of(point: SearchPoint) -> float:
    return point.seconds
