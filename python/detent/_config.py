"""How a model is quantized: options with the names and defaults of include/detent/config.h.

Every class turns into a plain dict; the native library knows the names and refuses others. A field that is None is left to
the native library, whose default stands beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, Self, TypeVar

from . import _core
from .errors import UsageError

PresetName = Literal["balanced", "plain"]
QuantType = Literal["int8", "uint8", "int16", "uint16", "int4", "uint4"]
MethodName = Literal["minmax", "percentile", "layerwise-percentile", "mse", "entropy"]
RoundingName = Literal["auto", "nearest", "adaround", "adaquant", "gptq"]
Path = str | PathLike[str]
#: Bytes, or a text such as "1.5GiB".
Size = int | str

_T = TypeVar("_T")


def _size(value: Size | None) -> int | None:
    return _core.parse_size(value) if isinstance(value, str) else value


class _Options:
    """A dataclass whose fields are options of the native library."""

    #: Options that choosing this class sets, as in {"method": "percentile"}.
    _chosen: ClassVar[Mapping[str, Any]] = {}

    def to_dict(self) -> dict[str, Any]:
        """What differs from the native library's own defaults, by name."""
        options = dict(self._chosen)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                options[field.name] = value.to_dict() if isinstance(value, _Options) else value
        return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinMax(_Options):
    """The range from the smallest to the largest value."""

    _chosen = {"method": "minmax"}
    average: bool = False  #: the mean over samples of each sample's smallest and largest value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Percentile(_Options):
    """The range that keeps so many percent of the values."""

    _chosen = {"method": "percentile"}
    percentile: float = 99.999
    two_sided: bool = False  #: cut both tails alike instead of one percentile of |x|


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerwisePercentile(_Options):
    """For each tensor the percentile, of the candidates, that loses least."""

    _chosen = {"method": "layerwise-percentile"}
    candidates: Sequence[float] = (99.99, 99.999, 99.99999)
    metric: Literal["mae", "mse"] = "mae"
    two_sided: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mse(_Options):
    """The range with the smallest mean squared error."""

    _chosen = {"method": "mse"}
    most_common: bool = False  #: with power-of-two scales: the scale that is best for most samples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entropy(_Options):
    """The range whose quantized distribution is nearest to the float one (Kullback-Leibler)."""

    _chosen = {"method": "entropy"}
    entropy_bins: int = 2048  #: of the histogram of |x|
    entropy_levels: int = 128  #: that the bins are merged into


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tuning(_Options):
    form: Literal["auto", "gram", "streamed"] = "auto"
    op_types: Sequence[str] = ()  #: to tune; empty: every quantized Conv, ConvTranspose, Gemm, MatMul
    nodes: Sequence[str] = ()  #: names, or patterns that start with '^'
    only_heaviest_layer: bool = False
    update_bias: bool = False  #: the bias is solved for as well
    drop_ratio: float = 1.0  #: share of input elements that come from the quantized model
    coordinate_sweeps: int | None = None  #: of exact coordinate descent after the method; gptq 0, others 2
    seed: int = 1705472343


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaRound(_Tuning):
    """Each weight rounded up or down so that the layer's output stays (Nagel et al., 2020)."""

    _chosen = {"rounding": "adaround"}
    num_iterations: int = 1000
    learning_rate: float | None = None  #: 0.1
    batch_size: int = 1  #: samples in a mini-batch of the streamed form
    early_stop: bool = False
    reg_param: float = 0.01
    beta_range: tuple[float, float] = (20.0, 2.0)
    warm_start: float = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaQuant(_Tuning):
    """The weights themselves moved before they are rounded (Hubara et al., 2020)."""

    _chosen = {"rounding": "adaquant"}
    num_iterations: int = 1000
    learning_rate: float | None = None  #: 1e-5
    batch_size: int = 1
    early_stop: bool = False
    update_scale: bool = False  #: weights get the scales that are best for their integers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gptq(_Tuning):
    """Columns rounded one after another, each making up for the error of those before (Frantar et al., 2022)."""

    _chosen = {"rounding": "gptq"}
    damping: float = 0.01  #: as a share of the mean of the diagonal; up to ten times as much where columns are few
    activation_order: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorOverride(_Options):
    """What is done differently for one tensor, or for those whose names match a pattern that starts with '^'."""

    tensor: str
    method: MethodName | None = None
    range: tuple[float, float] | None = None  #: min, max


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accuracy(_Options):
    """What is to be done about accuracy, under the preset balanced."""

    #: auto leaves in float what makes most of the error, report only tells, off measures nothing
    sensitivity: Literal["auto", "off", "report"] | None = None
    #: auto makes the channels of a value alike where that is measured to halve its error
    equalize: Literal["auto", "off"] | None = None
    #: what becomes of products that 8 bits do not serve: float32, or int16 for activations of 16 bits
    fallback: Literal["float32", "int16"] | None = None
    #: as many products fall back as it takes to reach this value of the metric; of a command or a function: this share of
    #: what it says of the float model
    target: float | None = None
    #: cosine; or a function of a model's path, as in lambda path: accuracy_of(onnxruntime.InferenceSession(path))
    metric: Literal["cosine", "sqnr", "command"] | Callable[[str], float] | None = None
    command: str | None = None  #: prints the score of the model whose path is its last argument

    def to_dict(self) -> dict[str, Any]:
        options = super().to_dict()
        metric = self.metric
        if callable(metric):
            options["metric"] = "command"
            options["score"] = lambda path: float(metric(str(path)))
        return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources(_Options):
    """What a run may take. None of it changes the result, but for spool_bfloat16."""

    memory_budget: Size | None = None  #: resident memory of the whole process; None: 80 % of what is free
    disk_budget: Size | None = None  #: working files; None: 90 % of what is free
    work_dir: Path | None = None  #: None: $TMPDIR or /tmp
    memory_level: Literal[0, 1, 2] = 1  #: what waits between segments is all in memory, as the budget allows, on disk
    segments: int = 0  #: at least so many; 0: as few as the budget allows
    prefetch: int = 2
    spool_access: Literal["auto", "buffered", "direct", "uring"] = "auto"
    spool_bfloat16: bool = False
    resume: bool = False
    checkpoint_seconds: float = 10

    def to_dict(self) -> dict[str, Any]:
        options = super().to_dict()
        for name in ("memory_budget", "disk_budget"):
            if name in options:
                options[name] = _size(options[name])
        return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device(_Options):
    """GPUs that calibration (on the first) and fine-tuning compute on; everything else stays on the CPU."""

    cuda: Sequence[int] = (0,)  #: their numbers
    memory_budget: Size | None = None  #: on each of them; None: 90 % of what is free
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"  #: what they multiply in
    layout: Literal["auto", "nchw", "nhwc"] = "auto"  #: of convolutions; auto: timed for each shape
    gds: Literal["auto", "on", "off"] = "auto"  #: read stored samples past the host; auto: where that is faster

    @classmethod
    def named(cls, text: str) -> Device:
        """Devices as the command line names them: "cpu", "cuda:0", "cuda:0,cuda:1"."""
        return cls(cuda=tuple(_core.parse_devices(text)))

    def to_dict(self) -> dict[str, Any]:
        options = super().to_dict()
        if "memory_budget" in options:
            options["memory_budget"] = _size(options["memory_budget"])
        return options


Method = MinMax | Percentile | LayerwisePercentile | Mse | Entropy
Finetune = AdaRound | AdaQuant | Gptq


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_Options):
    """Everything that decides what becomes of a model. What is not set is as the command line has it.

    Methods and roundings may be given by name, with their defaults.
    """

    preset: PresetName | None = None  #: balanced; what the other fields start from
    activation_type: QuantType | None = None  #: uint8
    weight_type: QuantType | None = None  #: uint8 around 128; plain: int8
    activation_symmetric: bool | None = None  #: False
    weight_symmetric: bool | None = None  #: True; plain: for signed weight types
    per_channel: bool | None = None  #: True
    reduce_range: bool | None = None  #: weights use 7 of 8 bits: False
    power_of_two_scale: bool | None = None  #: False

    op_types: Sequence[str] | None = None  #: as the preset says; plain: all that detent knows how to place
    exclude_op_types: Sequence[str] | None = None
    nodes: Sequence[str] | None = None  #: names, or patterns that start with '^': all
    exclude_nodes: Sequence[str] | None = None
    passthrough_op_types: Sequence[str] | None = None

    method: Method | MethodName | None = None  #: Mse(); plain: MinMax()
    overrides: Sequence[TensorOverride] | None = None
    accuracy: Accuracy | None = None
    finetune: Finetune | RoundingName | None = None  #: auto

    allow_nonfinite: bool | None = None  #: False
    max_samples: int | None = None  #: all
    batch_size: int | None = None  #: rows per run: as the samples have them
    threads: int | None = None  #: of the runtime: one per core
    workers: int | None = None  #: samples at a time: 1
    resources: Resources | None = None
    device: Device | str | None = None  #: "cpu"; where calibration and fine-tuning compute

    @classmethod
    def of(cls, config: Config | Mapping[str, Any] | None) -> Self | Config:
        """The configuration itself, or one with the entries of a mapping."""
        if config is None:
            return cls()
        if isinstance(config, Config):
            return config
        return make(cls, config, "Config")

    def to_dict(self) -> dict[str, Any]:
        options = super().to_dict()
        if isinstance(self.method, str):
            options["method"] = {"method": self.method}
        if isinstance(self.finetune, str):
            options["finetune"] = {"rounding": self.finetune}
        if isinstance(self.accuracy, Mapping):
            options["accuracy"] = make(Accuracy, self.accuracy, "accuracy").to_dict()
        if isinstance(self.resources, Mapping):
            options["resources"] = make(Resources, self.resources, "resources").to_dict()
        if isinstance(self.device, str):
            options["device"] = Device.named(self.device).to_dict()
        elif isinstance(self.device, Mapping):
            options["device"] = make(Device, self.device, "device").to_dict()
        if self.overrides is not None:
            overrides = [o if isinstance(o, TensorOverride) else make(TensorOverride, o, "overrides") for o in self.overrides]
            options["overrides"] = [override.to_dict() for override in overrides]
        return options


def make(cls: type[_T], given: Mapping[str, Any], where: str) -> _T:
    """An object of the class from names and values; UsageError names what it does not have."""
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise UsageError(f"{where} has no option '{name}'", "it has: " + ", ".join(known))
    return cls(**given)
