"""Results of runs. Written by scripts/generate_options.py from the public headers; do not edit."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from . import _shown
from ._shown import Result
from ._tables import Table


class Latency(NamedTuple):
    """Seconds of a model's runs in ONNX Runtime, which took turns with those of other models."""

    runs: int
    min: float
    median: float
    p90: float
    cpu: float  #: median of the processor time of all threads
    ratio: float  #: `median` as a multiple of the first model's: the median over turns, with the quartiles.
    ratio_low: float
    ratio_high: float
    cpu_ratio: float  #: the same of `cpu`
    waiting: float  #: of the time in which runs waited for a processor that other programs had


class Stage(NamedTuple):
    """Time and memory of a stage."""

    name: str
    seconds: float
    peak_memory: int


class Activation(NamedTuple):
    """Scale and zero point of a tensor."""

    name: str
    scale: float
    zero_point: int
    range_min: float
    range_max: float
    #: Where the range comes from: the name of a calibration method, "given" (TensorOverride::range), or "operator" (as for
    #: Softmax).
    method: str


class TunedLayer(NamedTuple):
    """The result of fine-tuning a layer. Errors are mean squares over the elements of the layer's output."""

    name: str
    op_type: str
    streamed: bool  #: solved in mini-batches, not in the Gram form
    tuned: bool  #: false: nearest rounding was better on the held-back samples, or none was seen
    error_before: float  #: of nearest rounding
    error_after: float  #: of the rounding that is kept
    seconds: float  #: of solving


class BlockedWeight(NamedTuple):
    """A weight that is stored in blocks."""

    name: str
    node: str  #: the first that reads it
    op_type: str  #: of that node
    bits: int
    block_size: int  #: 0: a whole column
    rows: int  #: along which blocks lie
    columns: int
    method: str  #: that found its integers
    sqnr_db: float  #: of its values; infinite if they are exact
    #: Sum of squared errors of the product over that of its results, on the samples; unset without samples.
    output_error: float | None
    dense_error: float | None  #: With sparsity: what output_error would be without it.
    input_exponent: float | None  #: The exponent of AWQ that the product's inputs are scaled with; unset: they are not.


class PlannedWeight(NamedTuple):
    """What WeightsOnlyConfig::max_size or an accuracy target came to for a weight."""

    name: str
    node: str  #: the first that reads it
    bits: int  #: 0: it stays in float
    bytes: int
    error: float  #: that is expected; see BitsPlan


class MeasuredSize(NamedTuple):
    """A model that was written on the way to AccuracyConfig::target, and the metric that was measured of it."""

    size: int
    value: float


class BitsPlan(NamedTuple):
    """The choice of bits under WeightsOnlyConfig::max_size, or for an accuracy target."""

    max_size: int  #: for a target, that with which it was reached
    size: int  #: that is expected, of model and data file
    #: That is expected: with samples of the worst output, the sum of squared errors over that of squares; without, the sum
    #: of these shares over the weights themselves.
    error: float
    weights: Table[PlannedWeight]  #: in the order of the model
    reached: float | None  #: of the metric, where there is a target
    tried: list[MeasuredSize]


class Sensitivity(NamedTuple):
    """The error at the model's outputs if this value alone is rounded."""

    value: str
    node: str  #: that computes the value; for a weight, that reads it
    is_weight: bool
    error: float  #: sum of squared differences over the sum of squares, of the worst output or part of one


class EqualizedValue(NamedTuple):
    """A value whose channel ranges were equalized. Errors as in Sensitivity, with the weights that read it rounded too."""

    value: str
    error_before: float
    error_after: float


class MethodChoice(NamedTuple):
    """A value whose range comes from another calibration method. Errors as in Sensitivity."""

    value: str
    method: str
    error_before: float
    error_after: float


class FallbackNode(NamedTuple):
    """A convolution or matrix product that fell back: it stays in float, or got 16-bit activations."""

    node: str
    error_share: float  #: of the error with every product in integers
    macs_share: float  #: of the model's multiplications


class TunedWeights(NamedTuple):
    """The effect of gptq under WeightSolver::automatic."""

    error_before: float  #: geometric mean over outputs and samples, everything rounded, weights to the nearest
    error_after: float
    kept: bool  #: false: gptq was not better, and weights are rounded to the nearest


class ChannelGroup(NamedTuple):
    """Neighbouring channels of an output whose values are of another size than the rest: one figure for the output does not
    show them."""

    output: str
    axis: int  #: channels of this axis, both ends included
    first: int  #: channels of this axis, both ends included
    last: int  #: channels of this axis, both ends included
    sqnr_db: float


@dataclasses.dataclass(eq=False, repr=False)
class AccuracyResult(Result):
    """How close the outputs are to the float model's, measured on some of the samples: of the written file, run by ONNX Runtime
    with its default options, where nothing else is said."""

    samples: int
    sample_names: list[str]  #: the first 1,000, with the rows of parts: "a.npz[4:5]"
    sqnr_db: float  #: of the worst output over all these samples
    worst_sample_db: float | None  #: of the sample, and output, that is farthest
    cosine: float  #: of the worst output
    lost_channels: list[str]  #: a sentence for channels of an output that the file leaves constant
    worst_channels: ChannelGroup | None  #: unset: none is clearly worse than its output
    rounded_db: float | None  #: the worst output's where devices round to the file's 16-bit floats
    score: float | None  #: by AccuracyMetric::command or perplexity, as a share of the float model's
    integer_macs: float | None  #: share of the multiplications that use integers; unset: not counted
    wide_macs: float  #: share of the multiplications that read a 16-bit activation
    weights_share: float  #: share of weights in the error with nearest rounding
    tuned: TunedWeights | None
    equalized: Table[EqualizedValue]
    methods: Table[MethodChoice]
    float_nodes: Table[FallbackNode]
    wide_nodes: Table[FallbackNode]  #: with 16-bit activations
    sensitivities: Table[Sensitivity]  #: worst first


class LatencyChange(NamedTuple):
    """The float model's latency and the result's, where both run as deployed. Ratios of `after` are to `before`."""

    before: Latency
    after: Latency
    threads: int
    samples: int
    synthetic: bool  #: the samples
    of_target: bool  #: false: the target is another device, of whose speed this says nothing

    def __str__(self) -> str:
        return _shown.TEXTS["LatencyChange"](self)


class RotatedStream(NamedTuple):
    """What Rotation came to. Errors as in AccuracyResult, of the model with its weights in blocks."""

    error_before: float
    error_after: float
    kept: bool


class KvScales(NamedTuple):
    """Scales of one layer's cache: one, or one for each channel of each head."""

    layer: int
    keys: list[float]
    values: list[float]


class FloatConversion(NamedTuple):
    """What became 16-bit floats."""

    nodes: int  #: that compute in 16 bits
    nodes_kept: int  #: with float32 values, that stay
    casts: int  #: added
    constants: float  #: share of the bytes of float32 constants that were converted


class Outcome(NamedTuple):
    """Whether the written model can be put to use."""

    answer: str
    headline: str  #: a sentence or two
    reasons: list[str]  #: for anything but yes, a sentence each

    def __str__(self) -> str:
        return _shown.TEXTS["Outcome"](self)


@dataclasses.dataclass(eq=False, repr=False)
class QuantizeResult(Result):
    """The result of quantize()."""

    output: str  #: path; "" if the model was returned as bytes
    outcome: Outcome
    samples: int
    model_bytes_before: int
    model_bytes_after: int  #: model and data file
    nodes_quantized: int
    nodes_in_float: int  #: all other products, in bodies as well, and selected nodes
    #: Operators that could compute on integers, but are faster in float on this machine; see OptimizeFor.
    faster_in_float: list[str]
    activations: Table[Activation]  #: Activations by name.
    accuracy: AccuracyResult | None  #: Unset if nothing was measured.
    latency: LatencyChange | None  #: Unset if it was not measured; then a note says why.
    weights: Table[BlockedWeight]  #: Weights in blocks, in the order of the model; empty unless weights alone were quantized.
    bits_plan: BitsPlan | None  #: Unset without WeightsOnlyConfig::max_size.
    rotated: RotatedStream | None  #: Unset unless rotation was tried.
    kv_scales: list[KvScales]  #: Empty unless KvCacheConfig asks for a type.
    floats: FloatConversion | None  #: Unset unless a 16-bit QuantConfig::float_type was asked for.
    layers: Table[TunedLayer]  #: Layers in the order of the model; empty without fine-tuning.
    notes: list[str]  #: Changes to the graph ("graph: …"), and every deviation from what was asked for.
    stages: Table[Stage]
    peak_memory: int  #: the process's own high-water mark
    #: The results of QuantizeOptions::family in its order; then sizes and samples are those of all, and what concerns a
    #: single model is told there.
    family: dict[str, QuantizeResult]


@dataclasses.dataclass(eq=False, repr=False)
class CalibrateResult(Result):
    """The result of calibrate() or merge_statistics()."""

    output: str  #: path
    samples: int
    tensors: int
    output_bytes: int
    notes: list[str]
    stages: Table[Stage]
    peak_memory: int  #: the process's own high-water mark


class Fidelity(NamedTuple):
    """The difference between a quantized value and the float one, over all samples."""

    name: str
    made_by: str  #: the node in the float model that computes it
    sqnr_db: float  #: 10 log10(sum x^2 / sum (x-y)^2); infinite when equal
    cosine: float  #: of all elements as one vector; 1 when both are all zero
    max_abs: float  #: largest |x - y|
    worst_sample_db: float | None  #: As sqnr_db, of the sample that is farthest; unset: no sample has both a signal and an error.
    reason: str  #: For inner values: the likely reason and the option that helps; empty if there is no clear reason.
    suggestion: str


class NextTokens(NamedTuple):
    """What a decoder and its quantized form, as deployed, make of text: over all positions whose next token is in the
    samples."""

    positions: int
    float_perplexity: float  #: exp(mean of -ln p(next token))
    perplexity: float  #: of the quantized model
    agreement: float  #: share of positions at which both find the same token the likeliest
    kl_divergence: float  #: mean over positions of sum p ln(p/q), in nats; p: float model, q: quantized model

    def __str__(self) -> str:
        return _shown.TEXTS["NextTokens"](self)


@dataclasses.dataclass(eq=False, repr=False)
class Comparison(Result):
    """The difference between a quantized model and its original."""

    samples: int
    sample_names: list[str]  #: the first 1,000, with the rows of parts: "a.npz[4:5]"
    next_tokens: NextTokens | None  #: Of decoders with a KV cache; nullopt of other models.
    outputs: Table[Fidelity]  #: Measured as deployed: the quantized model runs with all of the runtime's optimizations.
    #: Inner float values that both models have, worst SQNR first. For these the quantized model runs its Q/DQ pairs in
    #: float.
    layers: Table[Fidelity]
    notes: list[str]


class Value(NamedTuple):
    """An input or output of a model."""

    name: str
    type: str  #: "float32", …; "" if it is not a tensor
    shape: str  #: "[1,3,224,224]" with '?' or a symbol for dynamic axes


class Layer(NamedTuple):
    """A node of a model."""

    name: str
    op_type: str
    parameters: int  #: elements of the constants that the layer reads
    parameter_bytes: int
    activation_bytes: int | None  #: of its outputs; unset if a shape is unknown
    macs: int | None  #: Multiply-accumulates and all arithmetic operations (2 per MAC) of one run; unset if a shape is unknown.
    flops: int | None  #: Multiply-accumulates and all arithmetic operations (2 per MAC) of one run; unset if a shape is unknown.
    output_shape: str  #: of the first output
    #: Memory for fine-tuning the layer (adaround with its defaults), without its spooled samples; unset for layers that
    #: cannot be tuned.
    finetune_bytes: int | None


class QuantizedProduct(NamedTuple):
    """A product, a recurrent net or a table of a quantized model, and what the runtime runs in its place."""

    name: str
    op_type: str
    runs_as: str  #: the type of the runtime's operator; "" where it has become part of another one
    in_float: bool  #: the runtime dequantizes its operands and computes in float


@dataclasses.dataclass(eq=False, repr=False)
class Inspection(Result):
    """The layers and sizes of a model."""

    ir_version: int
    opsets: dict[str, int]  #: by domain, "" for ONNX
    inputs: Table[Value]
    outputs: Table[Value]
    op_types: dict[str, int]
    layers: Table[Layer]  #: in graph order
    heaviest: int | None  #: index of the layer with the most parameter and activation bytes
    parameters: int  #: of the whole model, each constant counted once
    parameter_bytes: int
    activation_bytes: int | None  #: sum over layers; unset if any is unknown
    macs: int | None  #: likewise
    #: Largest total of the activations that are alive at one time, for the order of nodes in the file and the usual reuse of
    #: memory; unset as above. `peak_at`: index of the layer that runs then.
    peak_activation_bytes: int | None
    peak_at: int | None
    #: Nodes that read what a DequantizeLinear makes, and operators on integers; in graph order. Empty where there are none,
    #: or where the runtime's own graph could not be had, of which a note tells.
    products: Table[QuantizedProduct]
    runtime: str  #: the version that was asked
    notes: list[str]


class CheckedNode(NamedTuple):
    """A node that computes; Q/DQ pairs and constants belong to the nodes that they stand around."""

    name: str
    op_type: str
    verdict: str
    on_cpu: bool  #: falls back to the CPU's own operators: the graph is cut here
    precision: str  #: of the kernel: "int8", "float32", …; "" where nothing is computed
    rule: str  #: that decides it
    suggestion: str  #: what would change it; "" where nothing is to be changed
    macs: int | None


@dataclasses.dataclass(eq=False, repr=False)
class CheckResult(Result):
    """What a target makes of a model."""

    target: str
    target_reason: str  #: where the target was "auto": which execution provider it was chosen by
    nodes: Table[CheckedNode]  #: in graph order
    accepted: int
    falls_back: int
    refused: int
    macs: int | None  #: Multiplications of one run, and those in integers; unset if a shape is unknown.
    integer_macs: int | None  #: Multiplications of one run, and those in integers; unset if a shape is unknown.
    partitions: int  #: Parts of the graph that the target runs, each without the CPU in between.
    problems: list[str]  #: What concerns the model as a whole, such as dynamic shapes.


class VerifiedLayer(NamedTuple):
    """A value that the consumer made of exactly what the reference made it of. In steps of its own scale; of a value that is
    not quantized, in steps of 1/255 of its largest magnitude."""

    name: str
    made_by: str  #: the node that computes it, and its operator
    quantized: bool
    elements: int  #: compared, over all samples
    max_steps: float  #: the largest difference
    share: float  #: of the elements that differ; of a value that is not quantized, by a step or more
    share_over_one: float  #: of the elements that differ by more than one step
    #: Whether the reference is exact but for what float64 rounds away (docs/targets.md): else an operator of it ran in
    #: float32.
    exact: bool
    reason: str  #: what is known to cause it; empty: nothing is


class VerifiedOutput(NamedTuple):
    """An output beside that of the float model."""

    name: str
    reference: Fidelity  #: exact arithmetic on the model's integers
    deployed: Fidelity  #: the consumer
    consumer_sqnr_db: float  #: of the consumer beside the reference


@dataclasses.dataclass(eq=False, repr=False)
class Verification(Result):
    """What a runtime makes of a quantized model."""

    target: str
    target_reason: str  #: of "auto"
    consumer: str  #: "ONNX Runtime 1.31.1, CPUExecutionProvider"
    samples: int
    outputs: Table[VerifiedOutput]
    layers: Table[VerifiedLayer]  #: worst first
    max_steps: float  #: of all layers
    latency: list[Latency]  #: Of the float and the quantized model; empty: not measured.
    notes: list[str]


class OperatorTime(NamedTuple):
    """All nodes of one operator type in the graph that the runtime makes of a model."""

    op_type: str
    nodes: int
    seconds: float  #: of one run
    share: float  #: of all nodes' time


class BenchedModel(NamedTuple):
    """Latency, size and memory of a model."""

    model: str
    bytes: int  #: on disk, with external data
    load_seconds: float  #: until the session was made
    latency: Latency
    peak_memory: int | None  #: of a process that loads and runs the model; unset: not measured
    operators: Table[OperatorTime]  #: slowest first


@dataclasses.dataclass(eq=False, repr=False)
class BenchResult(Result):
    """Latency, size and memory of models, side by side."""

    models: Table[BenchedModel]
    threads: int
    samples: int
    synthetic: bool  #: the samples
    runtime: str  #: version of ONNX Runtime
    notes: list[str]


class SearchPoint(NamedTuple):
    """A model that was written, run and measured as deployed."""

    name: str  #: "mixed-3", or a format: "int8"
    single: bool  #: one format for all products that can have it
    node_formats: list[str]  #: as QuantizeOptions::node_formats
    command: str  #: that makes it alone, byte for byte
    sqnr_db: float  #: of the worst output
    error: float  #: sum of squared errors over that of squares: what sqnr_db says in decibels
    expected_error: float  #: by the errors of single products
    value: float | None  #: of the metric or score that was asked for
    seconds: float  #: of one sample, the median beside the other models
    expected_seconds: float
    bytes: int
    #: No other point is better in one of error, time and bytes, and no worse in the others: by 1 %, and by 10 % than a
    #: format alone.
    on_front: bool
    chosen: list[str]  #: "smallest", "fastest", "most accurate", "meets the limits", "on NAME"
    written: str | None  #: where a chosen model lies


class ServingMachine(NamedTuple):
    """The model that serves most requests on a machine of SearchOptions::machines within the limits."""

    machine: str
    model: str  #: SearchPoint::name
    seconds: float  #: expected of a request, by that machine's times of operators
    instances: int  #: of the model at a time: one for each thread, or as many as its memory holds
    requests: float  #: a second
    peak_memory: int  #: of an instance, as measured here
    price: float  #: of an hour
    needed: int  #: of such machines, for all requests at the lowest price


@dataclasses.dataclass(eq=False, repr=False)
class SearchResult(Result):
    """The front of size, latency and accuracy."""

    folder: str  #: with front.json, front.html and the chosen models
    points: Table[SearchPoint]  #: the float model first; in Python the fastest first
    machines: Table[ServingMachine]  #: that can serve within the limits, by price of a request
    candidates: int  #: measured pairs of a layer and a format
    samples: int
    inferences: int  #: of the whole model, about
    out_of_time: bool  #: points that were wanted are missing
    notes: list[str]
    stages: Table[Stage]
    peak_memory: int


class PlannedMemory(NamedTuple):
    """A part of the memory, or the peak of a stage."""

    what: str
    bytes: int


class Segment(NamedTuple):
    """A part of the model that runs on all samples before the next part starts."""

    first: str  #: nodes
    last: str  #: nodes
    nodes: int


class PlannedFinetune(NamedTuple):
    """The predicted cost of fine-tuning; figures that are not known are 0."""

    only_if_needed: bool  #: not asked for: the accuracy measurement decides
    layers: int
    streamed: int  #: layers of these that are solved in mini-batches
    heaviest: str  #: the layer that needs most memory
    heaviest_bytes: int
    seconds: float  #: estimated time of solving


class PlannedDeviceLayer(NamedTuple):
    """Device memory that a layer needs while it is fine-tuned, on the device that needs most."""

    name: str
    streamed: bool
    bytes: int


class PlannedDevice(NamedTuple):
    """Memory that the run needs on each device. The runtime's own memory in calibration cannot be predicted."""

    devices: int  #: 0: the run uses the CPU only
    budget: int  #: of each device
    calibration_counters: int  #: on the first device; 0 without calibration
    layers: list[PlannedDeviceLayer]  #: in the order of the model


@dataclasses.dataclass(eq=False, repr=False)
class Plan(Result):
    """What a run would do, and the memory, disk and time that it would take."""

    samples: int  #: where files hold several, as many as the first does
    inputs: list[tuple[str, str]]  #: name, shape in the first sample
    nodes_quantized: int
    nodes_in_float: int  #: counted as in QuantizeResult
    #: nodes_quantized, if measuring accuracy quantizes all SiLU and HardSwish nodes; it may also leave some in float.
    nodes_with_gates: int
    nodes_may_change: bool  #: by what measuring accuracy finds
    floats: FloatConversion | None  #: of runs that change types alone; `casts` is not known
    tensors_observed: int
    macs: int  #: of one sample
    flops: int  #: of one sample
    observed_elements: int  #: of one sample
    memory: Table[PlannedMemory]  #: parts of the peak of calibration, from the shapes of the first sample
    stages: Table[PlannedMemory]  #: peak of each stage, resident bytes; those that the budget leaves out say so
    peak_memory: int  #: of the run: the largest of these
    work_bytes: int  #: files in the working directory
    output_bytes: int  #: estimated size of the quantized model
    memory_budget: int
    disk_budget: int
    segments: Table[Segment]  #: a single one is plain inference
    waiting_bytes: int  #: most bytes of tensors spooled between segments at one time
    waiting_on_disk: int  #: the part of these on disk
    finetune: PlannedFinetune
    device: PlannedDevice
    calibration_seconds: float  #: estimate from this machine's measured arithmetic rate, for all samples
    measuring_seconds: float  #: the same for measuring accuracy
    measuring_inferences: float  #: in inferences of all samples, as the runtime runs the float model by default
    notes: list[str]
    #: Of a family, in its order; beside them are only what all have in common, the largest peak and the sum of outputs.
    family: dict[str, Plan]
