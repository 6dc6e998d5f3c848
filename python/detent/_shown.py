"""How results print: as a heading, notes and tables. Their fields are in _results.py."""

from __future__ import annotations

import dataclasses
import functools
import html
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ._tables import Column, Table, count, fixed, number, percent, size

if TYPE_CHECKING:
    from ._results import (
        AccuracyResult,
        BenchResult,
        CalibrateResult,
        CheckResult,
        Comparison,
        Fidelity,
        Inspection,
        Latency,
        LatencyChange,
        NextTokens,
        Outcome,
        Plan,
        QuantizeResult,
        SearchResult,
        Verification,
    )

_DOUBTFUL = 0.1  # waiting
_SAME = 0.005  # what two digits of a ratio show


class Result:
    """A dataclass made from the native library's result."""

    @classmethod
    def of(cls, told: Mapping[str, Any], **more: Any) -> Self:
        """From the native library's dict; `more` are fields that it does not have."""
        values = dict(more)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if field.name in values:
                continue
            given = told[field.name]
            if field.name == "family":
                of_members = [{"output": m["output"]} if "output" in m else {} for m in given]
                made = [cls.of(m.get("result", m), **more) for m, more in zip(given, of_members, strict=True)]
                values["family"] = dict(zip([m["name"] for m in given], made, strict=True))
            else:
                values[field.name] = _made(str(field.type), given)
        return cls(**values)

    def _heading(self) -> str:
        heading: str = HEADINGS[type(self).__name__](self)
        return heading

    def _shown(self) -> list[Table[Any]]:
        """The tables that printing shows."""
        return [table for name in TABLES[type(self).__name__] for table in _tables_of(self, name) if len(table) > 0]

    def _notes(self) -> list[str]:
        """Without those on how the graph was rewritten."""
        return [note for note in getattr(self, "notes", ()) if not note.startswith("graph: ")]

    def __str__(self) -> str:
        notes = [f"note: {note}" for note in self._notes()]
        return "\n".join([self._heading(), *notes, *map(str, self._shown())])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self._notes())
        tables = "".join(table._repr_html_() for table in self._shown())
        heading = "<br>".join(html.escape(line) for line in self._heading().splitlines())
        return f"<p><b>{heading}</b></p>{f'<ul>{notes}</ul>' if notes else ''}{tables}"


def _tables_of(result: object, name: str) -> list[Table[Any]]:
    """A table, or the tables that its rows have: "models.operators"."""
    first, _, rest = name.partition(".")
    table: Table[Any] = getattr(result, first)
    return [getattr(row, rest) for row in table] if rest else [table]


def _made(kind: str, value: Any) -> Any:
    """The value of a field of this type, which native code told in dicts and lists."""
    if value is None:
        return None
    outer, _, inner = kind.removesuffix(" | None").partition("[")
    inner = inner.removesuffix("]")
    if outer == "Table":
        rows = [{"name": name, **row} for name, row in value.items()] if isinstance(value, dict) else value
        return Table([_made(inner, row) for row in rows], COLUMNS[inner])
    if outer == "list" and inner:
        return [_made(inner, entry) for entry in value]
    if outer == "str":
        return str(value)
    cls = getattr(sys.modules[f"{__package__}._results"], outer, None)
    if cls is None or inner:
        return value
    if issubclass(cls, Result):
        return cls.of(value)
    if outer == "VerifiedOutput":
        value = {"name": value["deployed"]["name"], **value}
    kinds = {name: getattr(hint, "__forward_arg__", hint) for name, hint in cls.__annotations__.items()}
    return cls(**{name: _made(kind, value[name]) for name, kind in kinds.items()})


def _milliseconds(digits: str, seconds: float) -> str:
    return format(1e3 * seconds, digits)


def _time_of(which: str, latency: Latency) -> str:
    return _milliseconds(".3f", getattr(latency, which))


def _ratio_of(latency: Latency) -> str:
    return f"{latency.ratio:.2f}"


def _sqnr(fidelity: Fidelity) -> str:
    return f"{fidelity.sqnr_db:.2f}"


def _yes(value: bool) -> str:
    return "yes" if value else ""


_COLUMNS: dict[str, list[tuple[Any, ...]]] = {
    "Stage": [("stage", "name"), ("seconds", "seconds", fixed(2)), ("peak", "peak_memory", size)],
    "Activation": [
        ("activation", "name"),
        ("scale", "scale", number),
        ("zero point", "zero_point", count),
        ("min", "range_min", number),
        ("max", "range_max", number),
        ("method", "method"),
    ],
    "BlockedWeight": [
        ("weight", "name"),
        ("node", "node"),
        ("bits", "bits", count),
        ("method", "method"),
        ("SQNR dB", "sqnr_db", fixed(2)),
    ],
    "PlannedWeight": [
        ("weight", "name"),
        ("node", "node"),
        ("bits", "bits", count),
        ("bytes", "bytes", size),
        ("error", "error", number),
    ],
    "TunedLayer": [
        ("layer", "name"),
        ("type", "op_type"),
        ("nearest", "error_before", number),
        ("tuned", "error_after", number),
        ("seconds", "seconds", fixed(2)),
    ],
    "EqualizedValue": [
        ("channel ranges equalized", "value"),
        ("error before", "error_before", number),
        ("after", "error_after", number),
    ],
    "MethodChoice": [
        ("value", "value"),
        ("range by", "method"),
        ("error before", "error_before", number),
        ("after", "error_after", number),
    ],
    "FallbackNode": [("fell back", "node"), ("of the error", "error_share", percent), ("of the MACs", "macs_share", percent)],
    "Sensitivity": [("value", "value"), ("node", "node"), ("error", "error", number)],
    "Fidelity": [
        ("value", "name"),
        ("made by", "made_by"),
        ("SQNR dB", "sqnr_db", fixed(2)),
        ("cosine", "cosine", fixed(6)),
        ("max |diff|", "max_abs", number),
        ("reason", "reason"),
    ],
    "Value": [("name", "name"), ("type", "type"), ("shape", "shape")],
    "Layer": [
        ("layer", "name"),
        ("type", "op_type"),
        ("parameters", "parameters", count),
        ("bytes", "parameter_bytes", size),
        ("MACs", "macs", count),
        ("activations", "activation_bytes", size),
        ("output", "output_shape"),
    ],
    "QuantizedProduct": [("product", "name"), ("type", "op_type"), ("runs as", "runs_as"), ("in float", "in_float")],
    "CheckedNode": [
        ("node", "name"),
        ("operator", "op_type"),
        ("verdict", "verdict"),
        ("precision", "precision"),
        ("rule", "rule"),
        ("instead", "suggestion"),
    ],
    "PlannedMemory": [("memory", "what"), ("bytes", "bytes", size)],
    "Segment": [("first", "first"), ("last", "last"), ("nodes", "nodes", count)],
    "VerifiedOutput": [
        ("output", "name"),
        ("exact", "reference", _sqnr),
        ("deployed", "deployed", _sqnr),
        ("between, dB", "consumer_sqnr_db", fixed(2)),
    ],
    "VerifiedLayer": [
        ("layer", "name"),
        ("made by", "made_by"),
        ("elements", "elements", count),
        ("max steps", "max_steps", number),
        ("differ", "share", percent),
        ("> 1 step", "share_over_one", percent),
        ("reason", "reason"),
    ],
    "OperatorTime": [
        ("operator", "op_type"),
        ("nodes", "nodes", count),
        ("ms", "seconds", functools.partial(_milliseconds, ".3f")),
        ("share", "share", percent),
    ],
    "BenchedModel": [
        ("model", "model"),
        ("median ms", "latency", functools.partial(_time_of, "median")),
        ("p90 ms", "latency", functools.partial(_time_of, "p90")),
        ("CPU ms", "latency", functools.partial(_time_of, "cpu")),
        ("ratio", "latency", _ratio_of),
        ("size", "bytes", size),
        ("peak memory", "peak_memory", size),
    ],
    "SearchPoint": [
        ("model", "name"),
        ("ms", "seconds", functools.partial(_milliseconds, ".4g")),
        ("size", "bytes", size),
        ("SQNR dB", "sqnr_db", fixed(1)),
        ("front", "on_front", _yes),
        ("chosen as", "chosen", ", ".join),
    ],
    "ServingMachine": [
        ("machine", "machine"),
        ("model", "model"),
        ("ms", "seconds", functools.partial(_milliseconds, ".4g")),
        ("requests/s", "requests", fixed(1)),
        ("memory", "peak_memory", size),
        ("price/h", "price", fixed(4)),
        ("needed", "needed"),
    ],
}
#: How rows of each class are shown.
COLUMNS = {name: tuple(Column(*column) for column in columns) for name, columns in _COLUMNS.items()}
#: What printing shows of each result.
TABLES: dict[str, tuple[str, ...]] = {
    "AccuracyResult": ("equalized", "methods", "float_nodes", "wide_nodes", "sensitivities"),
    "QuantizeResult": ("weights", "layers", "stages"),
    "CalibrateResult": ("stages",),
    "Comparison": ("outputs", "layers"),
    "Plan": ("stages", "memory", "segments"),
    "CheckResult": ("nodes",),
    "Inspection": ("inputs", "outputs", "products", "layers"),
    "Verification": ("outputs", "layers"),
    "BenchResult": ("models", "models.operators"),
    "SearchResult": ("points", "machines"),
}


def _accuracy(r: AccuracyResult) -> str:
    macs = "" if r.integer_macs is None else f", {r.integer_macs:.0%} of the multiplications in integers"
    return f"SQNR {r.sqnr_db:.1f} dB, cosine {r.cosine:.6f}{macs}"


def _of_family(family: Mapping[str, QuantizeResult | Plan]) -> str:
    return "\n".join(f"{name}: {member._heading()}" for name, member in family.items())


def _nodes(r: QuantizeResult | Plan) -> str:
    if r.floats and r.nodes_quantized == 0:
        return f"{r.floats.nodes} nodes in 16-bit floats, {r.floats.nodes_kept} in float32"
    return f"{r.nodes_quantized} nodes quantized, {r.nodes_in_float} left in float"


def _quantized(r: QuantizeResult) -> str:
    if r.family:
        return _of_family(r.family)
    accuracy = f"{_accuracy(r.accuracy)}; " if r.accuracy else ""
    latency = f"{r.latency}; " if r.latency else ""
    return (
        f"{r.outcome}\n"
        f"{r.output or 'model'}: {_nodes(r)}; "
        f"{size(r.model_bytes_before)} -> {size(r.model_bytes_after)}; {accuracy}{latency}{r.samples} samples; "
        f"peak memory {size(r.peak_memory)}"
    )


def _calibrated(r: CalibrateResult) -> str:
    return f"{r.output}: statistics of {r.tensors} tensors over {r.samples} samples, {size(r.output_bytes)}"


def _compared(r: Comparison) -> str:
    text = f"{r.next_tokens}; " if r.next_tokens else ""
    return f"{text}{len(r.outputs)} outputs and {len(r.layers)} inner values over {r.samples} samples"


def _planned(r: Plan) -> str:
    if r.family:
        return _of_family(r.family)
    return (
        f"{_nodes(r)}, {r.tensors_observed} tensors observed; predicted peak {size(r.peak_memory)} of a budget of "
        f"{size(r.memory_budget)}, output {size(r.output_bytes)}, about {r.calibration_seconds:.1f} s of calibration"
    )


def _checked(r: CheckResult) -> str:
    return (
        f"{r.target}: {r.accepted} nodes accepted, {r.falls_back} fall back, {r.refused} refused; "
        f"{count(r.integer_macs)} of {count(r.macs)} multiplications in integers; {r.partitions} partitions"
    )


def _inspected(r: Inspection) -> str:
    opsets = ", ".join(f"{domain or 'onnx'} {version}" for domain, version in r.opsets.items())
    return (
        f"IR version {r.ir_version}, opsets: {opsets}; {len(r.layers)} layers, {count(r.parameters)} parameters "
        f"({size(r.parameter_bytes)}), {count(r.macs)} MACs, activations {size(r.activation_bytes)}"
    )


def _verified(r: Verification) -> str:
    agree = sum(layer.share == 0 for layer in r.layers)
    return f"{agree} of {len(r.layers)} layers agree in {r.consumer}, on {r.samples} samples"


def _benched(r: BenchResult) -> str:
    inputs = "synthetic inputs" if r.synthetic else f"{r.samples} samples"
    return f"{len(r.models)} models in turns on {inputs}, {r.threads} threads, ONNX Runtime {r.runtime}"


def _searched(r: SearchResult) -> str:
    on_front = sum(point.on_front for point in r.points)
    return f"{len(r.points)} models measured, {on_front} on the front; {os.path.join(r.folder, 'front.html')}"


HEADINGS: dict[str, Callable[[Any], str]] = {
    "AccuracyResult": _accuracy,
    "QuantizeResult": _quantized,
    "CalibrateResult": _calibrated,
    "Comparison": _compared,
    "Plan": _planned,
    "CheckResult": _checked,
    "Inspection": _inspected,
    "Verification": _verified,
    "BenchResult": _benched,
    "SearchResult": _searched,
}


def _tokens(r: NextTokens) -> str:
    return (
        f"perplexity {r.float_perplexity:.4f} -> {r.perplexity:.4f}, the same next token at "
        f"{percent(r.agreement)} of {r.positions} positions"
    )


def _outcome(r: Outcome) -> str:
    return " ".join([r.headline, *r.reasons])


def _latency(r: LatencyChange) -> str:
    if max(r.before.waiting, r.after.waiting) > _DOUBTFUL:
        return "latency not measured: the machine was busy"
    ratio = r.after.ratio
    change = "as fast" if abs(ratio - 1) < _SAME else f"{1 / ratio:.2f}x faster" if ratio < 1 else f"{ratio:.2f}x slower"
    return f"latency {1e3 * r.before.median:.4g} -> {1e3 * r.after.median:.4g} ms ({change})"


#: Results that print as a text alone.
TEXTS: dict[str, Callable[[Any], str]] = {"NextTokens": _tokens, "Outcome": _outcome, "LatencyChange": _latency}
