"""What verify() runs models in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Consumer(Protocol):
    """A runtime that verify() can run models in."""

    name: str

    def load(self, model: os.PathLike[str], /) -> Callable[[list[Any]], Sequence[Any]] | None: ...
