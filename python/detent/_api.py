"""The calls: quantize, calibrate, merge_statistics, inspect, check, plan, compare, verify, report, bench, search."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from . import _core, _hub, _models, _own, _progress, _runtime, _torch
from ._config import Config, Path, Resources, Size, make
from ._models import Model, ModelBytes
from ._profiler import Profiler
from ._progress import Progress
from ._results import (
    BenchResult,
    CalibrateResult,
    CheckResult,
    Comparison,
    Inspection,
    Plan,
    QuantizeResult,
    Verification,
)
from ._samples import Data, Pictures, stream_of
from ._search import SearchResult
from ._verify import Consumer
from .errors import BadInput, ResourceError, UsageError

_Native = Callable[..., dict[str, Any]]


@dataclasses.dataclass
class _Run:
    """The common part of all calls: options, models as files, data, progress."""

    folder: str
    options: dict[str, Any]

    def give(self, **options: Any) -> None:
        self.options.update((name, value) for name, value in options.items() if value is not None)

    def give_shapes(self, shapes: Mapping[str, Sequence[int]] | None) -> None:
        if shapes is None:
            return
        if not isinstance(shapes, Mapping):
            raise TypeError(f"input_shapes is a dict from names to shapes, not a {type(shapes).__name__}")
        self.give(input_shapes={name: list(shape) for name, shape in shapes.items()} or None)

    def give_model(self, name: str, model: Model) -> None:
        self.options[name] = _models.path_of(model, self.folder, f"{name}.onnx")

    def call(self, native: _Native, data: Data | None, progress: Progress, *more: object) -> dict[str, Any]:
        samples: object = None
        if isinstance(data, str | os.PathLike):
            self.options["calibration_data"] = _hub.local(data) if isinstance(data, str) else data
        elif isinstance(data, Pictures):
            samples = data._asdict()
        elif data is not None:
            samples = stream_of(data, self.inputs)
        with contextlib.closing(_progress.shown(progress)) as display:
            return native(self.options, samples, display if display.shows else None, *more)

    def inputs(self) -> list[str]:
        """Names of the model's inputs."""
        model = self.options.get("model") or self.options.get("float_model") or self.options["models"][0]
        return [value["name"] for value in _core.inspect({"model": model})["inputs"]]


@contextlib.contextmanager
def _run(kind: str, config: Config | Mapping[str, Any] | None, runtime: Path | None) -> Iterator[_Run]:
    """A run with the options that concern this kind of call."""
    chosen = Config.of(config)
    names = _core.option_names()[kind]
    options = {name: value for name, value in chosen.to_dict().items() if name in names}
    library = runtime or _runtime.library()
    if library is not None:
        options["runtime"] = library
    resources = chosen.resources
    if resources is not None and not isinstance(resources, Resources):
        resources = make(Resources, resources, "resources")
    work_dir = resources.work_dir if resources is not None else None
    with _models.folder(work_dir) as folder:
        yield _Run(folder, options)


def _with(config: Config | Mapping[str, Any] | None, **given: str | None) -> Config | Mapping[str, Any] | None:
    """The configuration with what stands beside it in a call."""
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not fields:
        return config
    chosen = Config.of(config)
    for name in fields:
        if getattr(chosen, name) is not None:
            raise UsageError(f"{name} is given twice, beside config and in it", "leave out one of them")
    return dataclasses.replace(chosen, **fields)


@overload
def quantize(
    model: Model | _torch.Module,
    output: None = None,
    data: Data | None = None,
    config: Config | Mapping[str, Any] | None = None,
    *,
    format: str | None = None,
    target: str | None = None,
    optimize_for: str | None = None,
    score: Callable[[str], float] | None = None,
    example_inputs: Any = None,
    statistics: Path | None = None,
    external_data_threshold: Size | None = None,
    prepared_output: Path | None = None,
    profile: Path | Profiler | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    runtime: Path | None = None,
    progress: Progress = None,
) -> ModelBytes: ...
@overload
def quantize(
    model: Model | _torch.Module,
    output: Path,
    data: Data | None = None,
    config: Config | Mapping[str, Any] | None = None,
    *,
    format: str | None = None,
    target: str | None = None,
    optimize_for: str | None = None,
    score: Callable[[str], float] | None = None,
    example_inputs: Any = None,
    statistics: Path | None = None,
    external_data_threshold: Size | None = None,
    prepared_output: Path | None = None,
    profile: Path | Profiler | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    runtime: Path | None = None,
    progress: Progress = None,
) -> QuantizeResult: ...
def quantize(
    model: Model | _torch.Module,
    output: Path | None = None,
    data: Data | None = None,
    config: Config | Mapping[str, Any] | None = None,
    *,
    format: str | None = None,
    target: str | None = None,
    optimize_for: str | None = None,
    score: Callable[[str], float] | None = None,
    example_inputs: Any = None,
    statistics: Path | None = None,
    external_data_threshold: Size | None = None,
    prepared_output: Path | None = None,
    profile: Path | Profiler | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    runtime: Path | None = None,
    progress: Progress = None,
) -> ModelBytes | QuantizeResult:
    """Quantize a float model with calibration samples, or with statistics made earlier.

    model: a path, the bytes of a model, an onnx.ModelProto or a torch.nn.Module; it is not changed.
    output: the file, written completely or not at all; None: the model is returned as bytes, with a `result`.
    data: a folder or file of samples, an iterable of dicts of arrays, or a reader with get_next().
    config: a Config, or a mapping of its fields.
    format, target, optimize_for: what is asked for most, as fields of the config: what comes out ("int8", "q4", "fp16"), where
        it will run ("ort-cpu", "qnn"), and what counts ("latency", "size", "accuracy").
    score: a function that takes the path of a model and returns how good it is, as the metric of config's accuracy.
    example_inputs: of a torch.nn.Module: a tensor, a tuple or a dict, with which forward() is called; their shapes are kept.
    statistics: a file from calibrate(), instead of data or in addition.
    external_data_threshold: tensors of this size and more go to a file beside the output.
    prepared_output: also write the float model as it was calibrated.
    profile, report, trace: files to write about the run, as YAML, HTML and Chrome's trace format; profile may be a
        Profiler, which records several runs.
    runtime: ONNX Runtime's library; None: that of the installed package.
    progress: None shows it in terminals and notebooks; True, False, or a function of (stage, done, total).
    """
    config = _own.with_score(_with(config, format=format, target=target, optimize_for=optimize_for), score)
    with (
        _torch.exported(model, example_inputs) as onnx_model,
        _own.ranges(config, statistics, data, lambda d, file: calibrate(onnx_model, file, d, config, runtime=runtime)) as ranged,
        _run("quantize", ranged[0], runtime) as run,
    ):
        _, statistics, data = ranged
        run.give_model("model", onnx_model)
        run.give(
            output=os.path.join(run.folder, "output.onnx") if output is None else output,
            statistics=statistics,
            external_data_threshold=external_data_threshold,
            prepared_output=prepared_output,
            profile=None if isinstance(profile, Profiler) else profile,
            report=report,
            trace=trace,
            command=["detent.quantize"],
        )
        if output is None and external_data_threshold is not None:
            raise UsageError("external_data_threshold puts tensors beside the output", "give output a path")
        if output is None and run.options.get("family"):
            raise UsageError("family writes a folder", "give output a path")
        told = run.call(_core.quantize, data, progress, _native_of(profile))
        result = QuantizeResult.of(told, output="" if output is None else os.fsdecode(output))
        return result if output is not None else _read_back(os.path.join(run.folder, "output.onnx"), result)


def _native_of(profile: Path | Profiler | None) -> _core.Profiler | None:
    return profile._native if isinstance(profile, Profiler) else None


def _read_back(path: str, result: QuantizeResult) -> ModelBytes:
    if any(name.startswith("output.onnx.") for name in os.listdir(os.path.dirname(path))):
        raise ResourceError("the quantized model exceeds 2 GiB, the limit of bytes", "give output a path")
    with open(path, "rb") as file:
        model = ModelBytes(file.read())
    model.result = result
    return model


def calibrate(
    model: Model,
    output: Path,
    data: Data,
    config: Config | Mapping[str, Any] | None = None,
    *,
    histograms: bool = True,
    most_common: bool = False,
    profile: Path | Profiler | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    runtime: Path | None = None,
    progress: Progress = None,
) -> CalibrateResult:
    """Write the statistics of a model's activations, for quantize(statistics=...) with any method.

    Of the configuration, only options for selecting activations and running the model are used. Without histograms only
    the method minmax works later; most_common also finds what Mse(most_common=True) needs.
    """
    with _run("calibrate", config, runtime) as run:
        run.give_model("model", model)
        run.give(
            output=output,
            histograms=histograms,
            most_common=most_common,
            profile=None if isinstance(profile, Profiler) else profile,
            report=report,
            trace=trace,
            command=["detent.calibrate"],
        )
        return CalibrateResult.of(run.call(_core.calibrate, data, progress, _native_of(profile)), output=os.fsdecode(output))


def merge_statistics(inputs: Sequence[Path], output: Path) -> CalibrateResult:
    """Write the sum of several statistics files of one model, as if all samples had been calibrated in one run."""
    return CalibrateResult.of(_core.merge(list(inputs), output), output=os.fsdecode(output))


def inspect(model: Model, input_shapes: Mapping[str, Sequence[int]] | None = None, *, runtime: Path | None = None) -> Inspection:
    """List the layers of a model without running it. input_shapes: static shapes for inputs with dynamic axes."""
    with _run("inspect", None, runtime) as run:
        run.give_model("model", model)
        run.give_shapes(input_shapes)
        return Inspection.of(_core.inspect(run.options))


def check(
    model: Model,
    target: str = "ort-cpu",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    runtime: Path | None = None,
) -> CheckResult:
    """Tell what a target makes of each node, from tables: accepted, falls back or refused. Nothing is run."""
    with _run("check", None, runtime) as run:
        run.give_model("model", model)
        run.give(target=target)
        run.give_shapes(input_shapes)
        return CheckResult.of(_core.check(run.options))


def plan(
    model: Model,
    data: Data | None = None,
    config: Config | Mapping[str, Any] | None = None,
    *,
    format: str | None = None,
    target: str | None = None,
    optimize_for: str | None = None,
    runtime: Path | None = None,
) -> Plan:
    """Predict what quantize() would do and its cost, without running the model. Data give the shapes of dynamic axes."""
    with _run("quantize", _with(config, format=format, target=target, optimize_for=optimize_for), runtime) as run:
        run.give_model("model", model)
        return Plan.of(run.call(_core.plan, data, False))


def compare(
    float_model: Model,
    quantized_model: Model,
    data: Data,
    *,
    max_samples: int = 0,
    batch_size: int = 0,
    input_values: Sequence[str] = (),
    threads: int = 0,
    device: str = "cpu",
    outputs_only: bool = False,
    round_floats: bool = True,
    runtime: Path | None = None,
    progress: Progress = None,
) -> Comparison:
    """Run both models on the samples: SQNR and cosine per output and, unless outputs_only, per inner value. round_floats:
    16-bit floats of the quantized model are rounded where nodes make them, as devices do."""
    with _run("compare", None, runtime) as run:
        run.give_model("float_model", float_model)
        run.give_model("quantized_model", quantized_model)
        run.give(max_samples=max_samples, batch_size=batch_size, threads=threads, outputs_only=outputs_only)
        run.give(input_values=list(input_values))
        run.give(round_floats=round_floats, device={"cuda": list(_core.parse_devices(device))})
        return Comparison.of(run.call(_core.compare, data, progress))


def verify(
    float_model: Model,
    quantized_model: Model,
    data: Data,
    *,
    target: str = "ort-cpu",
    provider: str | None = None,
    consumer: Consumer | None = None,
    max_samples: int = 0,
    batch_size: int = 0,
    input_values: Sequence[str] = (),
    threads: int = 0,
    bench: bool = True,
    runtime: Path | None = None,
    progress: Progress = None,
) -> Verification:
    """Show what a runtime makes of a quantized model, beside the float model and exact arithmetic on its integers.

    target: where the model will run; "openvino" runs it in the package openvino, "qnn" in the simulator of the package
    onnxruntime-qnn, if that is installed.
    provider: the execution provider of ONNX Runtime that runs the quantized model.
    consumer: another runtime: an object with a `name`, and load(path), which returns a function from a list of arrays to
    the list of the model's outputs, or None where it does not take the model.
    bench: also time both models, unless in a simulator.
    """
    with _run("verify", None, runtime) as run:
        run.give_model("float_model", float_model)
        run.give_model("quantized_model", quantized_model)
        run.give(target=target, provider=provider, max_samples=max_samples, batch_size=batch_size, input_values=list(input_values))
        if consumer is not None and not (hasattr(consumer, "name") and callable(getattr(consumer, "load", None))):
            raise TypeError(f"consumer has a name and a method load, which {type(consumer).__name__} has not")
        if consumer is None and provider is None:
            consumer = _installed_consumer(target, threads)
        run.give(threads=threads, bench=bench and not getattr(consumer, "is_simulated", False))
        return Verification.of(run.call(_core.verify, data, progress, consumer))


def _installed_consumer(target: str, threads: int) -> Consumer | None:
    if target == "openvino":
        from . import _openvino

        return _openvino.OpenVino(threads) if _openvino.is_installed() else None
    if str(target).partition(":")[0] == "qnn":
        from . import _qnn

        return _qnn.Qnn() if _qnn.is_installed() else None
    return None


def report(*results: Path, output: Path | None = None) -> str:
    """Put results of `detent quantize --json` side by side, which are in files.

    output: a page that draws size, latency and accuracy; None: a table in Markdown is returned.
    """
    import subprocess  # takes longer to load than all of detent

    binary = os.path.join(os.path.dirname(__file__), "detent")
    words = [os.fsdecode(path) for path in results] + ([] if output is None else ["-o", os.fsdecode(output)])
    done = subprocess.run([binary, "report", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        kind = UsageError if done.returncode == 2 else BadInput
        raise kind(done.stderr.strip().removeprefix("detent: error: "))
    return done.stdout


def bench(
    *models: Model,
    data: Data | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    max_samples: int = 0,
    batch_size: int = 0,
    input_values: Sequence[str] = (),
    threads: int = 0,
    runs: int = 0,
    seconds: float = 2,
    by_operator: bool = False,
    memory: bool = True,
    runtime: Path | None = None,
    progress: Progress = None,
) -> BenchResult:
    """Time models side by side in ONNX Runtime, in turns, as a program would run them; ratios are to the first.

    Without data inputs are made up; input_shapes gives the shapes of those with dynamic axes. runs: timed runs of each
    model; 0: as many as `seconds` allows. by_operator: also the time of each operator type. memory: measure the peak memory
    of each model in a process of its own.
    """
    with _run("bench", None, runtime) as run:
        paths = [_models.path_of(model, run.folder, f"model{number}.onnx") for number, model in enumerate(models, 1)]
        run.give(models=paths, max_samples=max_samples, batch_size=batch_size, threads=threads, runs=runs, seconds=seconds)
        run.give(by_operator=by_operator, memory=memory, input_values=list(input_values))
        program = os.path.join(os.path.dirname(__file__), "detent")
        if os.path.exists(program):
            run.give(program=program)
        run.give_shapes(input_shapes)
        return BenchResult.of(run.call(_core.bench, data, progress))


def search(
    model: Model,
    output: Path,
    data: Data,
    config: Config | Mapping[str, Any] | None = None,
    *,
    max_latency: float | None = None,
    max_size: Size | None = None,
    formats: Sequence[str] | None = None,
    points: int = 8,
    machines: Path | None = None,
    requests: float | None = None,
    runtime: Path | None = None,
    progress: Progress = None,
) -> SearchResult:
    """Find the smallest, fastest and most accurate of all formats of a model and of their mixtures.

    output: a new folder, for front.json, front.html and the chosen models.
    config: accuracy (target, metric, command), resources, max_samples, batch_size and threads count; the formats are searched.
    max_latency: seconds of one sample on this machine. max_size: bytes, as a number or as in "12MiB". Where these, and the
    target, cannot be met, ResourceError names the nearest model, and nothing is written.
    points: at most this many mixed models are written and measured.
    machines: a JSON file of machines to choose from, as for the command; requests: that they have to serve together, each
    second. max_latency is then that of the machines.
    """
    with _run("search", config, runtime) as run:
        run.give_model("model", model)
        run.give(output=output, max_latency=max_latency, max_size=max_size, points=points, machines=machines, requests=requests)
        run.give(formats=formats)
        return SearchResult.of(run.call(_core.search, data, progress), folder=str(output))
