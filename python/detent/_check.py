"""What check() returns."""

from __future__ import annotations

import dataclasses
from typing import Any

from ._results import CheckedNode, _Result
from ._tables import Table, count


@dataclasses.dataclass(eq=False, repr=False)
class CheckResult(_Result):
    """What a target makes of a model."""

    target: str
    target_reason: str  #: of target="auto": the execution provider that it was chosen by
    nodes: Table[CheckedNode]
    accepted: int
    falls_back: int
    refused: int
    macs: int | None
    integer_macs: int | None
    partitions: int  #: parts that the target runs, each without the CPU in between
    problems: list[str]  #: of the model as a whole

    def _heading(self) -> str:
        return (
            f"{self.target}: {self.accepted} nodes accepted, {self.falls_back} fall back, {self.refused} refused; "
            f"{count(self.integer_macs)} of {count(self.macs)} multiplications in integers; {self.partitions} partitions"
        )

    def _shown(self) -> list[Table[Any]]:
        return [self.nodes]
