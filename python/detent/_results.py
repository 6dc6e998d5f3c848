"""Results of runs: small objects that print themselves. Rows are named tuples, which import quickly."""

from __future__ import annotations

import abc
import dataclasses
import html
from typing import Any, NamedTuple, Self

from ._accuracy import EqualizedValue, FallbackNode, MethodChoice, Sensitivity, TunedWeights
from ._fidelity import Fidelity, NextTokens
from ._latency import LatencyChange
from ._planned import PlannedDevice, PlannedFinetune, PlannedMemory, Segment
from ._tables import Column, Table, count, fixed, number, percent, size
from ._weights import BLOCKED, TUNED, BitsPlan, BlockedWeight, KvScales, RotatedStream, TunedLayer


class Stage(NamedTuple):
    """Time and memory of a stage."""

    name: str
    seconds: float
    peak_memory: int  #: bytes


class Activation(NamedTuple):
    """Scale and zero point of a tensor, and where its range comes from."""

    name: str
    scale: float
    zero_point: int
    range_min: float
    range_max: float
    method: str


class Value(NamedTuple):
    name: str
    type: str
    shape: str


class Layer(NamedTuple):
    """A node of a model. None: unknown, because a shape is unknown."""

    name: str
    op_type: str
    parameters: int
    parameter_bytes: int
    activation_bytes: int | None
    macs: int | None
    flops: int | None
    output_shape: str
    finetune_bytes: int | None  #: None also for layers that cannot be tuned


class QuantizedProduct(NamedTuple):
    """A product, recurrent net or table of a quantized model, and the operator that ONNX Runtime runs in its place."""

    name: str
    op_type: str
    runs_as: str  #: "" where it has become part of another operator
    in_float: bool  #: its operands are dequantized, and it computes in float


class CheckedNode(NamedTuple):
    """What a target makes of a node."""

    name: str
    op_type: str
    verdict: str  #: "accepted", "falls back" (computed in float although it is quantized, or left to the CPU), "refused"
    on_cpu: bool  #: left to the CPU: the graph is cut here
    precision: str  #: of the kernel
    rule: str  #: that decides it
    suggestion: str  #: what would change it
    macs: int | None  #: None: a shape is unknown


_STAGES = (Column("stage", "name"), Column("seconds", "seconds", fixed(2)), Column("peak", "peak_memory", size))
_ACTIVATIONS = (
    Column("activation", "name"),
    Column("scale", "scale", number),
    Column("zero point", "zero_point", count),
    Column("min", "range_min", number),
    Column("max", "range_max", number),
    Column("method", "method"),
)
_FALLBACK_NODES = (
    Column("fell back", "node"),
    Column("of the error", "error_share", percent),
    Column("of the MACs", "macs_share", percent),
)
_EQUALIZED = (
    Column("channel ranges equalized", "value"),
    Column("error before", "error_before", number),
    Column("after", "error_after", number),
)
_METHODS = (
    Column("value", "value"),
    Column("range by", "method"),
    Column("error before", "error_before", number),
    Column("after", "error_after", number),
)
_SENSITIVITIES = (Column("value", "value"), Column("node", "node"), Column("error", "error", number))
_FIDELITY = (
    Column("value", "name"),
    Column("made by", "made_by"),
    Column("SQNR dB", "sqnr_db", fixed(2)),
    Column("cosine", "cosine", fixed(6)),
    Column("max |diff|", "max_abs", number),
    Column("reason", "reason"),
)
_VALUES = (Column("name", "name"), Column("type", "type"), Column("shape", "shape"))
_LAYERS = (
    Column("layer", "name"),
    Column("type", "op_type"),
    Column("parameters", "parameters", count),
    Column("bytes", "parameter_bytes", size),
    Column("MACs", "macs", count),
    Column("activations", "activation_bytes", size),
    Column("output", "output_shape"),
)
_PRODUCTS = (Column("product", "name"), Column("type", "op_type"), Column("runs as", "runs_as"), Column("in float", "in_float"))
_MEMORY = (Column("memory", "what"), Column("bytes", "bytes", size))
_CHECKED = (
    Column("node", "name"),
    Column("operator", "op_type"),
    Column("verdict", "verdict"),
    Column("precision", "precision"),
    Column("rule", "rule"),
    Column("instead", "suggestion"),
)
_SEGMENTS = (Column("first", "first"), Column("last", "last"), Column("nodes", "nodes", count))

# How entries of a result become rows: the class of a row and the columns that show it.
_TABLES: dict[str, tuple[type, tuple[Column, ...]]] = {
    "Stage": (Stage, _STAGES),
    "Activation": (Activation, _ACTIVATIONS),
    "BlockedWeight": (BlockedWeight, BLOCKED),
    "TunedLayer": (TunedLayer, TUNED),
    "EqualizedValue": (EqualizedValue, _EQUALIZED),
    "MethodChoice": (MethodChoice, _METHODS),
    "FallbackNode": (FallbackNode, _FALLBACK_NODES),
    "Sensitivity": (Sensitivity, _SENSITIVITIES),
    "Fidelity": (Fidelity, _FIDELITY),
    "Value": (Value, _VALUES),
    "Layer": (Layer, _LAYERS),
    "CheckedNode": (CheckedNode, _CHECKED),
    "QuantizedProduct": (QuantizedProduct, _PRODUCTS),
    "PlannedMemory": (PlannedMemory, _MEMORY),
    "Segment": (Segment, _SEGMENTS),
}


class _Result(abc.ABC):
    """A dataclass made from the native library's result; prints as a heading, notes and tables."""

    @classmethod
    def of(cls, told: dict[str, Any], **more: Any) -> Self:
        values: dict[str, Any] = {**told, **more}
        if values.get("accuracy"):
            values["accuracy"] = AccuracyResult.of(values["accuracy"])
        if values.get("latency"):
            values["latency"] = LatencyChange.of(values["latency"])
        tuples = (("floats", FloatConversion), ("next_tokens", NextTokens), ("rotated", RotatedStream), ("outcome", Outcome))
        for name, kind in tuples:
            if values.get(name):
                values[name] = kind(**values[name])
        if isinstance(values.get("family"), list):
            values["family"] = {m["name"]: QuantizeResult.of(m["result"], output=m["output"]) for m in values["family"]}
        if "kv_scales" in values:
            values["kv_scales"] = [KvScales(**layer) for layer in values["kv_scales"]]
        if values.get("bits_plan"):
            values["bits_plan"] = BitsPlan.of(values["bits_plan"])
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            row = str(field.type).removeprefix("Table[").removesuffix("]")
            if str(field.type).startswith("Table[") and field.name in values:
                entry_kind, columns = _TABLES[row]
                given = values[field.name]
                if isinstance(given, dict):
                    given = [{"name": name, **entry} for name, entry in given.items()]
                values[field.name] = Table([entry_kind(**entry) for entry in given], columns)
        return cls(**values)

    @abc.abstractmethod
    def _heading(self) -> str: ...

    def _shown(self) -> list[Table[Any]]:
        """The tables that printing shows."""
        return []

    def __str__(self) -> str:
        notes = [f"note: {note}" for note in getattr(self, "notes", ())]
        tables = [str(table) for table in self._shown() if len(table) > 0]
        return "\n".join([self._heading(), *notes, *tables])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in getattr(self, "notes", ()))
        tables = "".join(table._repr_html_() for table in self._shown() if len(table) > 0)
        heading = "<br>".join(html.escape(line) for line in self._heading().splitlines())
        return f"<p><b>{heading}</b></p>{f'<ul>{notes}</ul>' if notes else ''}{tables}"


class FloatConversion(NamedTuple):
    """What became 16-bit floats."""

    nodes: int  #: that compute in 16 bits
    nodes_kept: int  #: with float32 values, that stay
    casts: int  #: added
    constants: float  #: share of the bytes of float32 constants that were converted


class ChannelGroup(NamedTuple):
    """Neighbouring channels of an output whose values are of another size than the rest."""

    output: str
    axis: int
    first: int
    last: int
    sqnr_db: float


@dataclasses.dataclass(eq=False, repr=False)
class AccuracyResult(_Result):
    """How close the outputs are to the float model's, measured on some of the samples."""

    samples: int
    sample_names: list[str]  #: files, with the rows of parts; empty: the first ones
    sqnr_db: float  #: of the worst output, of the written file as ONNX Runtime runs it
    worst_sample_db: float | None  #: of the sample, and output, that is farthest
    cosine: float
    lost_channels: list[str]  #: a sentence for channels of an output that the file leaves constant
    worst_channels: ChannelGroup | None  #: None: none is clearly worse than its output
    rounded_db: float | None  #: the worst output's where devices round to the file's 16-bit floats
    score: float | None  #: of the command, as a share of the float model's
    integer_macs: float | None  #: share of the multiplications that use integers; None: not counted
    wide_macs: float  #: share of the multiplications that read a 16-bit activation
    weights_share: float  #: share of weights in the error with nearest rounding
    tuned: TunedWeights | None  #: if finetune is auto and weights were tuned
    equalized: Table[EqualizedValue]
    methods: Table[MethodChoice]
    float_nodes: Table[FallbackNode]
    wide_nodes: Table[FallbackNode]  #: with 16-bit activations
    sensitivities: Table[Sensitivity]  #: worst first

    @classmethod
    def of(cls, told: dict[str, Any], **more: Any) -> Self:
        tuned = told.get("tuned")
        unset: dict[str, Any] = {"worst_sample_db": None, "rounded_db": None, "sample_names": [], "lost_channels": []}
        group = told.get("worst_channels")
        told = {**unset, **told, "tuned": TunedWeights(**tuned) if tuned else None}
        told["worst_channels"] = ChannelGroup(**group) if group else None
        return super().of(told, **more)

    def _heading(self) -> str:
        macs = "" if self.integer_macs is None else f", {self.integer_macs:.0%} of the multiplications in integers"
        return f"SQNR {self.sqnr_db:.1f} dB, cosine {self.cosine:.6f}{macs}"

    def _shown(self) -> list[Table[Any]]:
        return [self.equalized, self.methods, self.float_nodes, self.wide_nodes, self.sensitivities]


class Outcome(NamedTuple):
    """Whether the written model can be put to use."""

    answer: str  #: "yes": close to the float model, and faster or smaller; "look": look at it before; "no": far from it
    headline: str
    reasons: list[str]  #: for anything but "yes"

    def __str__(self) -> str:
        return " ".join([self.headline, *self.reasons])


@dataclasses.dataclass(eq=False, repr=False)
class QuantizeResult(_Result):
    """The result of quantize()."""

    output: str  #: path; "" if the model was returned as bytes
    outcome: Outcome
    samples: int
    model_bytes_before: int
    model_bytes_after: int
    nodes_quantized: int
    nodes_in_float: int
    faster_in_float: list[str]  #: operators that could compute on integers, but are faster in float on this machine
    activations: Table[Activation]
    accuracy: AccuracyResult | None  #: None if it was not measured
    latency: LatencyChange | None  #: None if it was not measured
    weights: Table[BlockedWeight]  #: in blocks; empty unless weights alone were quantized
    bits_plan: BitsPlan | None  #: None without max_size or an accuracy target
    rotated: RotatedStream | None  #: None unless rotation was tried
    kv_scales: list[KvScales]  #: empty unless kv_cache asks for a type
    floats: FloatConversion | None  #: None unless a 16-bit float_type was asked for
    layers: Table[TunedLayer]  #: empty without fine-tuning
    notes: list[str]  #: changes to the graph, and every deviation from what was asked for
    stages: Table[Stage]
    peak_memory: int  #: bytes, the high-water mark of the whole process
    family: dict[str, QuantizeResult]  #: by name, where several results were asked for; empty otherwise

    def _heading(self) -> str:
        if self.family:
            return "\n".join(f"{name}: {result._heading()}" for name, result in self.family.items())
        accuracy = f"{self.accuracy._heading()}; " if self.accuracy else ""
        latency = f"{self.latency}; " if self.latency else ""
        return (
            f"{self.outcome}\n"
            f"{self.output or 'model'}: {self.nodes_quantized} nodes quantized, {self.nodes_in_float} left in float; "
            f"{size(self.model_bytes_before)} -> {size(self.model_bytes_after)}; {accuracy}{latency}{self.samples} samples; "
            f"peak memory {size(self.peak_memory)}"
        )

    def _shown(self) -> list[Table[Any]]:
        return [self.weights, self.layers, self.stages]


class ModelBytes(bytes):
    """A quantized model, with the QuantizeResult in `result`."""

    result: QuantizeResult

    def __repr__(self) -> str:
        return f"<ONNX model of {len(self)} bytes: {self.result._heading()}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_()


@dataclasses.dataclass(eq=False, repr=False)
class CalibrateResult(_Result):
    """The result of calibrate() or merge_statistics()."""

    output: str
    samples: int
    tensors: int
    output_bytes: int
    notes: list[str]
    stages: Table[Stage]
    peak_memory: int

    def _heading(self) -> str:
        return f"{self.output}: statistics of {self.tensors} tensors over {self.samples} samples, {size(self.output_bytes)}"

    def _shown(self) -> list[Table[Any]]:
        return [self.stages]


@dataclasses.dataclass(eq=False, repr=False)
class Comparison(_Result):
    """The difference between a quantized model and its original; worst layers first."""

    samples: int
    sample_names: list[str]  #: files, with the rows of parts
    next_tokens: NextTokens | None  #: None unless the models are decoders with a KV cache
    outputs: Table[Fidelity]  #: as deployed
    layers: Table[Fidelity]
    notes: list[str]

    def _heading(self) -> str:
        text = f"{self.next_tokens}; " if self.next_tokens else ""
        return f"{text}{len(self.outputs)} outputs and {len(self.layers)} inner values over {self.samples} samples"

    def _shown(self) -> list[Table[Any]]:
        return [self.outputs, self.layers]


@dataclasses.dataclass(eq=False, repr=False)
class Plan(_Result):
    """What a run would do, and the memory, disk and time it would take."""

    samples: int  #: where files hold several, as many as the first does; 0: unknown
    inputs: list[tuple[str, str]]
    nodes_quantized: int
    nodes_in_float: int
    nodes_with_gates: int  #: of nodes_quantized, if measuring accuracy puts all gates into integers
    nodes_may_change: bool  #: by what measuring accuracy finds
    floats: FloatConversion | None  #: of runs that change types alone; casts are not known
    tensors_observed: int
    macs: int
    flops: int
    observed_elements: int
    memory: Table[PlannedMemory]  #: of calibration
    stages: Table[PlannedMemory]  #: the peak of each; those that the budget leaves out say so
    peak_memory: int
    work_bytes: int
    output_bytes: int
    memory_budget: int
    disk_budget: int
    segments: Table[Segment]
    waiting_bytes: int
    waiting_on_disk: int
    finetune: PlannedFinetune
    device: PlannedDevice
    calibration_seconds: float
    measuring_seconds: float  #: of measuring accuracy
    measuring_inferences: float  #: the same in plain inferences of all samples
    notes: list[str]
    family: dict[str, Plan]  #: by name, where several results were asked for; empty otherwise

    @classmethod
    def of(cls, told: dict[str, Any], **more: Any) -> Self:
        values = {name: value for name, value in told.items() if name not in ("name", "family")}
        values["finetune"] = PlannedFinetune(**told["finetune"])
        values["device"] = PlannedDevice.of(told["device"])
        plan = super().of(values, family={}, **more)
        plan.family = {member["name"]: cls.of(member) for member in told["family"]}
        return plan

    def _heading(self) -> str:
        if self.family:
            return "\n".join(f"{name}: {member._heading()}" for name, member in self.family.items())
        return (
            f"{self.nodes_quantized} nodes quantized, {self.nodes_in_float} left in float, {self.tensors_observed} tensors "
            f"observed; predicted peak {size(self.peak_memory)} of a budget of {size(self.memory_budget)}, output "
            f"{size(self.output_bytes)}, about {self.calibration_seconds:.1f} s of calibration"
        )

    def _shown(self) -> list[Table[Any]]:
        return [self.stages, self.memory, self.segments]
