"""Options of the native library as dataclasses. Written by scripts/generate_options.py; do not edit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ._base import Options, Path, Size


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinMax(Options):
    """The range from the smallest to the largest value.

    Attributes:
        average: average each sample's minimum and maximum over the samples
    """

    _chosen = {"method": "minmax"}
    average: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Percentile(Options):
    """The range that keeps this percentage of the values.

    Attributes:
        percentile: percent of the values to keep inside the range (default: 99.999)
        two_sided: cut both tails equally instead of taking one percentile of |x|
    """

    _chosen = {"method": "percentile"}
    percentile: float = 99.999
    two_sided: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerwisePercentile(Options):
    """For each tensor the percentile, of the candidates, with the smallest error.

    Attributes:
        two_sided: cut both tails equally instead of taking one percentile of |x|
        candidates: percentiles to choose from (default: 99.99,99.999,99.99999)
        metric: error to minimize (default: mae)
    """

    _chosen = {"method": "layerwise-percentile"}
    two_sided: bool = False
    candidates: Sequence[float] = (99.99, 99.999, 99.99999)
    metric: Literal["mae", "mse"] = "mae"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mse(Options):
    """The range with the smallest mean squared error.

    Attributes:
        most_common: with power-of-two scales: the scale that is best for most samples
    """

    _chosen = {"method": "mse"}
    most_common: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entropy(Options):
    """The range whose quantized distribution is nearest to the float one (Kullback-Leibler).

    Attributes:
        entropy_bins: bins of the histogram of |x| (default: 2048)
        entropy_levels: levels that the bins are merged into (default: 128)
    """

    _chosen = {"method": "entropy"}
    entropy_bins: int = 2048
    entropy_levels: int = 128


Method = MinMax | Percentile | LayerwisePercentile | Mse | Entropy
MethodName = Literal["minmax", "percentile", "layerwise-percentile", "mse", "entropy"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorOverride(Options):
    """What is done differently for one activation, or for those whose names match a pattern that starts with '^'."""

    tensor: str
    method: MethodName | None = None
    range: tuple[float, float] | None = None  #: min, max


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(Options):
    """What all ways of fine-tuning have in common.

    Attributes:
        form: solve layers from sums over all samples (gram) or in mini-batches of stored activations (streamed); auto: the
            cheaper of the two (default: auto)
        op_types: tune only layers of these types (default: every quantized Conv, ConvTranspose, Gemm and MatMul)
        nodes: tune only these nodes; '^…' is a regular expression over the whole name (default: all)
        only_heaviest_layer: tune only the layer that takes most memory, to see the peak of the whole run early
        drop_ratio: share of a layer's inputs that come from the quantized model; the others come from the float model
            (default: 1)
        update_bias: solve for the biases as well
        coordinate_sweeps: sweeps of exact coordinate descent after the method (default: gptq 0, others 2)
        num_workers: samples read ahead from the spool while a mini-batch is worked on (default: 0)
        seed: seed of the order of mini-batches (default: 1705472343)
    """

    form: Literal["auto", "gram", "streamed"] = "auto"
    op_types: Sequence[str] = ()
    nodes: Sequence[str] = ()
    only_heaviest_layer: bool = False
    drop_ratio: float = 1.0
    update_bias: bool = False
    coordinate_sweeps: int | None = None
    num_workers: int = 0
    seed: int = 1705472343


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaRound(Tuning):
    """Each weight rounded up or down so that the layer's output stays close (Nagel et al., 2020).

    Attributes:
        num_iterations: iterations for each layer (default: 1000)
        learning_rate: learning rate (default: adaround 0.1, adaquant 1e-5)
        batch_size: samples in a mini-batch of the streamed form (default: 1)
        early_stop: stop a layer when it no longer improves
        reg_param: weight of the regularizer (default: 0.01)
        beta_range: exponent of the regularizer, from and to (default: 20,2)
        warm_start: share of iterations without regularizer (default: 0.2)
        form: solve layers from sums over all samples (gram) or in mini-batches of stored activations (streamed); auto: the
            cheaper of the two (default: auto)
        op_types: tune only layers of these types (default: every quantized Conv, ConvTranspose, Gemm and MatMul)
        nodes: tune only these nodes; '^…' is a regular expression over the whole name (default: all)
        only_heaviest_layer: tune only the layer that takes most memory, to see the peak of the whole run early
        drop_ratio: share of a layer's inputs that come from the quantized model; the others come from the float model
            (default: 1)
        update_bias: solve for the biases as well
        coordinate_sweeps: sweeps of exact coordinate descent after the method (default: gptq 0, others 2)
        num_workers: samples read ahead from the spool while a mini-batch is worked on (default: 0)
        seed: seed of the order of mini-batches (default: 1705472343)
    """

    _chosen = {"rounding": "adaround"}
    num_iterations: int = 1000
    learning_rate: float | None = None
    batch_size: int = 1
    early_stop: bool = False
    reg_param: float = 0.01
    beta_range: tuple[float, float] = (20.0, 2.0)
    warm_start: float = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaQuant(Tuning):
    """The weights themselves are moved before they are rounded (Hubara et al., 2020).

    Attributes:
        num_iterations: iterations for each layer (default: 1000)
        learning_rate: learning rate (default: adaround 0.1, adaquant 1e-5)
        batch_size: samples in a mini-batch of the streamed form (default: 1)
        early_stop: stop a layer when it no longer improves
        form: solve layers from sums over all samples (gram) or in mini-batches of stored activations (streamed); auto: the
            cheaper of the two (default: auto)
        op_types: tune only layers of these types (default: every quantized Conv, ConvTranspose, Gemm and MatMul)
        nodes: tune only these nodes; '^…' is a regular expression over the whole name (default: all)
        only_heaviest_layer: tune only the layer that takes most memory, to see the peak of the whole run early
        drop_ratio: share of a layer's inputs that come from the quantized model; the others come from the float model
            (default: 1)
        update_bias: solve for the biases as well
        coordinate_sweeps: sweeps of exact coordinate descent after the method (default: gptq 0, others 2)
        num_workers: samples read ahead from the spool while a mini-batch is worked on (default: 0)
        seed: seed of the order of mini-batches (default: 1705472343)
    """

    _chosen = {"rounding": "adaquant"}
    num_iterations: int = 1000
    learning_rate: float | None = None
    batch_size: int = 1
    early_stop: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gptq(Tuning):
    """Columns rounded one after another, each making up for the errors before it (Frantar et al., 2022).

    Attributes:
        damping: share of the mean diagonal added to the diagonal; up to ten times as much where columns are few (default:
            0.01)
        activation_order: round columns in the order of falling diagonal; round columns in their own order if False
        form: solve layers from sums over all samples (gram) or in mini-batches of stored activations (streamed); auto: the
            cheaper of the two (default: auto)
        op_types: tune only layers of these types (default: every quantized Conv, ConvTranspose, Gemm and MatMul)
        nodes: tune only these nodes; '^…' is a regular expression over the whole name (default: all)
        only_heaviest_layer: tune only the layer that takes most memory, to see the peak of the whole run early
        drop_ratio: share of a layer's inputs that come from the quantized model; the others come from the float model
            (default: 1)
        update_bias: solve for the biases as well
        coordinate_sweeps: sweeps of exact coordinate descent after the method (default: gptq 0, others 2)
        num_workers: samples read ahead from the spool while a mini-batch is worked on (default: 0)
        seed: seed of the order of mini-batches (default: 1705472343)
    """

    _chosen = {"rounding": "gptq"}
    damping: float = 0.01
    activation_order: bool = True


Finetune = AdaRound | AdaQuant | Gptq
RoundingName = Literal["auto", "nearest", "adaround", "adaquant", "gptq"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsOnly(Options):
    """Weights in blocks that have a scale each. Samples are not needed, but make the result better.

    Attributes:
        bits: bits of a weight (default: 4)
        block_size: how many weights share a scale, along the inputs of a layer; channel: all of an output (default: 32)
        scale_type: type of the scales of blocks. float: as the weight; float8e8m0: powers of two (MXFP8, MXFP4, MXINT8);
            float8e4m3fn: with a float32 scale for the whole weight (NVFP4) (default: float)
        node_bits: other bits for some nodes, or float; a name that starts with '^' is a regular expression over the whole
            name, and of several entries for a node the last counts
        form: matmul-nbits: operators of ONNX Runtime; qdq: DequantizeLinear with blocks, of opset 21 (default:
            matmul-nbits)
        method: nearest: from the extremes of each block; search: scales with the least error, weighted by the samples'
            inputs; awq: the same with inputs scaled, with samples; gptq: integers that make up for each other's errors,
            with samples; auto: the best of these (default: auto)
        max_size: largest size of the model with its data file, as in 12MiB. With --weights-only: bits of each weight (2, 4,
            8 or float) are chosen so that the results change least; with samples, sensitivity is measured with --bits.
            Without: the format of each layer is searched, as for --max-latency (default: none)
        sparsity: 2:4: two of each four neighbours along a layer's inputs become 0, and the others change to compensate;
            with samples, and --set weights-method=gptq or auto (default: none)
        rotation: rotate a transformer's hidden states, so that no channel stands out; the rotation is folded into the
            weights. auto: if that is measured to be better, with samples (default: off)
        accuracy_level: type in which matrix products with weights in blocks compute: 0 up to the runtime, 1 float32, 2
            float16, 3 bfloat16, 4 int8 (fastest) (default: 4)
    """

    _chosen = {"enabled": True}
    bits: Literal[2, 4, 8] = 4
    block_size: Literal[16, 32, 64, 128, 256, "channel"] = 32
    scale_type: Literal["float", "float8e8m0", "float8e4m3fn"] = "float"
    node_bits: Sequence[str] = ()
    form: Literal["matmul-nbits", "qdq"] = "matmul-nbits"
    method: Literal["auto", "nearest", "search", "awq", "gptq"] = "auto"
    max_size: Size | None = None
    sparsity: Literal["none", "2:4"] = "none"
    rotation: Literal["off", "auto", "on"] = "off"
    accuracy_level: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class KvCache(Options):
    """A decoder's cache of keys and values in fewer bits, with scales from the samples.

    Attributes:
        type: a decoder keeps keys and values in this type, with scales from the samples; beside --weights-only, or alone
            with --preset none (default: keep)
        per_channel: a scale for each channel of each head instead of one for a layer's keys and one for its values
        scale_file: also write these scales (JSON), as kv_cache_scale_file of onnxruntime-genai's model builder
    """

    type: Literal["keep", "int8", "int4", "fp8"] = "keep"
    per_channel: bool = False
    scale_file: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accuracy(Options):
    """What is measured of accuracy, and what for.

    Attributes:
        other_methods: methods tried for the values that cause most of the error (default: minmax,percentile; none when
            --method is given)
        sensitivity: measure the error that each quantized value makes alone; auto: then leave in float what makes most of
            it, up to a tenth of the multiplications; report: only print it (default: auto)
        equalize: auto: equalize the channel ranges of a value where that is measured to halve its error (default: auto)
        fallback: convolutions and matrix products for which 8 bits are too few stay in float, or get activations of 16 bits
            (for NPUs) (default: float32)
        target: leave as many convolutions and matrix products in float as it takes to reach this value of the metric, and
            no more; with --weights-only, give each weight as few bits as reach it
        metric: cosine or sqnr (dB) of the worst output; perplexity of decoders: the float model's, divided by that of the
            quantized one; command: the share of the float model's score (default: cosine)
        command: a program that takes a model's path and prints its score; larger is better
    """

    other_methods: Sequence[Literal["minmax", "percentile", "layerwise-percentile", "mse", "entropy"]] | None = None
    sensitivity: Literal["auto", "off", "report"] | None = None
    equalize: Literal["auto", "off"] | None = None
    fallback: Literal["float32", "int16"] | None = None
    target: float | None = None
    metric: Literal["cosine", "sqnr", "perplexity", "command"] | Callable[[str], float] | None = None
    command: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources(Options):
    """Memory and disk that a run may take. Nothing here changes the result.

    Attributes:
        memory_budget: memory of the whole process, as in 512MiB or 2GiB (default: 80 % of what is free)
        disk_budget: disk space for working files (default: 90 % of what is free)
        work_dir: where working files go (default: $TMPDIR or /tmp)
        memory_level: where tensors between segments are kept: in memory (0), in memory as far as the budget allows (1), on
            disk (2) (default: 1)
        segments: cut the model into at least this many segments, where possible (default: as few as the budget allows)
        spool_access: how spooled tensors are read and written; auto: a short probe decides (default: auto)
        resume: continue an interrupted run for this output; if interrupted again, keep what is done
        checkpoint_seconds: how often progress is saved; 0: after every sample (default: 10)
        time_limit: end the run after this time, as in 90s or 2h (exit code 4); with --resume what is done is kept; search
            gives the best of what is measured by then (default: none)
        sample_time_limit: end the run if the model takes longer than this for one sample (exit code 4) (default: none)
    """

    memory_budget: Size | None = None
    disk_budget: Size | None = None
    work_dir: Path | None = None
    memory_level: Literal[0, 1, 2] = 1
    segments: int = 0
    spool_access: Literal["auto", "buffered", "direct", "uring"] = "auto"
    resume: bool = False
    checkpoint_seconds: float = 10.0
    time_limit: float | None = None
    sample_time_limit: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device(Options):
    """GPUs for calibration (on the first) and fine-tuning; everything else stays on the CPU.

    Attributes:
        cuda: where models run (on the first) and fine-tuning computes: cpu, cuda:N, or several as in cuda:0,cuda:1
            (default: cpu)
        memory_budget: memory to use on each device (default: 90 % of what is free)
        precision: what a device multiplies in (default: float32)
        layout: layout of a device's convolutions; auto: timed for each shape (default: auto)
        gds: read stored samples past the host's memory (GPUDirect Storage); auto: where that measures faster; on: or fail
            (default: auto)
        pin_memory: samples go to a device from pinned memory, beside the work; from other memory, where locked memory is
            limited; the host waits for each copy if False
    """

    cuda: Sequence[int] = (0,)
    memory_budget: Size | None = None
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    layout: Literal["auto", "nchw", "nhwc"] = "auto"
    gds: Literal["auto", "on", "off"] = "auto"
    pin_memory: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """Everything that decides what becomes of a model. What is not set is as on the command line.

    Attributes:
        format: format of the result; other options refine it (default: int8)
        family: several results in one new folder, under the names that transformers.js looks for (default: one result)
        preset: what the other options start from (default: balanced)
        target: where the model will run, by name or by the path of a file of your own (default: ort-cpu)
        input_shapes: static shape of an input with dynamic axes, also in the result; may be given several times
        max_samples: use at most this many samples (default: all; bench and verify: 16)
        batch_size: split the files' arrays into batches of this many rows (default: as the files have them)
        input_values: inputs that are the same number in every sample and not in the data, such as a sampling rate
        allow_nonfinite: leave out NaN and infinite values instead of stopping at the first
        method: calibration method, by class or by name
        accuracy: what is measured of accuracy, and what for
        overrides: what is done differently for single activations
        activations: where scales of activations come from; static: from samples; dynamic: from the values of each run, so
            that no samples are needed (default: static)
        quant_format: qdq: float operators between QuantizeLinear and DequantizeLinear; qoperator: operators on integers,
            QLinearConv and the like, for old runtimes and tools that read no pairs (default: qdq)
        activation_type: type of activations; types of 4 bits are for weights only (default: uint8)
        weight_type: type of weights; with --weights-only a floating-point type, float4e2m1 only there (default: int8)
        activation_symmetric: zero point of activations in the middle of the type; zero point of activations as their range
            asks for if False
        weight_symmetric: zero point of weights in the middle of the type; zero point of weights as their range asks for;
            per-channel weights are always symmetric if False (default: symmetric; with --weight-type uint8, uint16 or
            uint4: asymmetric)
        per_channel: one scale for each output channel of a weight; one scale for each weight if False
        weight_range: how far weights use their type. pairs: int8 weights as far as no two of them saturate together on x86
            CPUs without VNNI; reduced: 7 of 8 bits (default: pairs; plain: full)
        power_of_two_scale: round scales up to powers of two
        block_float: neighbouring numbers share an exponent, as AMD Quark's operators round them: activations and weights in
            this format instead of integers; needs no samples (default: none)
        float_type: floating-point type. 16, bf16: float16 or bfloat16 wherever it is safe; nothing is quantized unless a
            --preset or --weights-only says so. 32: models of 16-bit floats become float32, and are then quantized (default:
            keep)
        keep_io_types: graph inputs and outputs keep their types under --float; they get the type of --float if False
        node_formats: several formats in one model: each node has the one that the last entry for it says (fp32, int8,
            a16w8, int8-dynamic, w8, q8, q4, q2), all others stay in float; '^…' is a regular expression over the whole name
            (default: one format)
        op_types: quantize only these operator types (default: as the preset says)
        exclude_op_types: leave these operator types in float
        nodes: quantize only these nodes; '^…' is a regular expression over the whole name (default: all)
        exclude_nodes: leave these nodes in float; '^…' is a regular expression over the whole name
        passthrough_op_types: outputs of these types take their input's statistics, as those of Reshape, Transpose and the
            like do
        weights_only: quantize weights alone, in blocks; activations stay in float
        kv_cache: a decoder keeps keys and values in fewer bits, by class or as in "int8"
        optimize_for: latency: operators that this machine runs faster in float stay in float; accuracy: integers must be a
            tenth faster; size: speed does not count (default: latency)
        size_worth: what all weights together are worth as integers, in percent of the model's time in float: larger numbers
            make the file smaller, and may make the model slower (default: 2)
        max_latency: longest time of the model for one sample on this machine, as in 8ms; quantize then searches for the
            format of each layer, like search (default: none)
        kernel_table: file with the times of operators, in float and in integers; missing ones are measured and added; by
            default a file of this machine in the user's cache
        finetune: fine-tuning of weights, by class or by name
        threads: threads of the runtime (default: one per core)
        workers: samples run at a time, sharing one copy of the weights (default: 1)
        skip_passes: leave out passes that prepare the float model, to find the one that does harm; an unknown name lists
            them (default: none)
        resources: memory and disk that the run may take
        device: where calibration and fine-tuning compute, by class or as in "cuda:0"
        bench: time the float and the quantized model at the end, alternating; leave it out if False
    """

    format: str | None = None
    family: Sequence[str] | None = None
    preset: str | None = None
    target: str | None = None
    input_shapes: Mapping[str, Sequence[int]] | None = None
    max_samples: int | None = None
    batch_size: int | None = None
    input_values: Sequence[str] | None = None
    allow_nonfinite: bool | None = None
    method: Method | MethodName | None = None
    accuracy: Accuracy | None = None
    overrides: Sequence[TensorOverride] | None = None
    activations: Literal["static", "dynamic"] | None = None
    quant_format: Literal["qdq", "qoperator"] | None = None
    activation_type: (
        Literal["int8", "uint8", "int16", "uint16", "int4", "uint4", "float8e4m3fn", "float8e5m2", "float4e2m1"] | None
    ) = None
    weight_type: Literal["int8", "uint8", "int16", "uint16", "int4", "uint4", "float8e4m3fn", "float8e5m2", "float4e2m1"] | None = (
        None
    )
    activation_symmetric: bool | None = None
    weight_symmetric: bool | None = None
    per_channel: bool | None = None
    weight_range: Literal["full", "pairs", "reduced"] | None = None
    power_of_two_scale: bool | None = None
    block_float: (
        Literal[
            "none",
            "bfp16",
            "mx4",
            "mx6",
            "mx9",
            "mxfp8e5m2",
            "mxfp8e4m3",
            "mxfp6e3m2",
            "mxfp6e2m3",
            "mxfp4e2m1",
            "mxint8",
        ]
        | None
    ) = None
    float_type: Literal["keep", 32, 16, "bf16"] | None = None
    keep_io_types: bool | None = None
    node_formats: Sequence[str] | None = None
    op_types: Sequence[str] | None = None
    exclude_op_types: Sequence[str] | None = None
    nodes: Sequence[str] | None = None
    exclude_nodes: Sequence[str] | None = None
    passthrough_op_types: Sequence[str] | None = None
    weights_only: WeightsOnly | bool | None = None
    kv_cache: KvCache | str | None = None
    optimize_for: Literal["latency", "accuracy", "size"] | None = None
    size_worth: float | None = None
    max_latency: float | None = None
    kernel_table: Path | None = None
    finetune: Finetune | RoundingName | None = None
    threads: int | None = None
    workers: int | None = None
    skip_passes: Sequence[str] | None = None
    resources: Resources | None = None
    device: Device | str | None = None
    bench: bool | None = None
