"""What inspect() returns."""

from __future__ import annotations

import dataclasses
from typing import Any

from ._results import Layer, QuantizedProduct, Value, _Result
from ._tables import Table, count, size


@dataclasses.dataclass(eq=False, repr=False)
class Inspection(_Result):
    """The layers and sizes of a model. None: unknown without input_shapes."""

    ir_version: int
    opsets: dict[str, int]
    inputs: Table[Value]
    outputs: Table[Value]
    op_types: dict[str, int]
    layers: Table[Layer]
    heaviest: int | None  #: position in layers
    parameters: int
    parameter_bytes: int
    activation_bytes: int | None
    macs: int | None
    peak_activation_bytes: int | None
    peak_at: int | None  #: position in layers
    products: Table[QuantizedProduct]  #: of quantized models
    runtime: str  #: the version that was asked about products
    notes: list[str]

    def _heading(self) -> str:
        opsets = ", ".join(f"{domain or 'onnx'} {version}" for domain, version in self.opsets.items())
        return (
            f"IR version {self.ir_version}, opsets: {opsets}; {len(self.layers)} layers, {count(self.parameters)} parameters "
            f"({size(self.parameter_bytes)}), {count(self.macs)} MACs, activations {size(self.activation_bytes)}"
        )

    def _shown(self) -> list[Table[Any]]:
        return [self.inputs, self.outputs, *([self.products] if self.products else []), self.layers]
