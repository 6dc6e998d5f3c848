"""The onnx package's backend test models through detent, in each format, against ONNX Runtime's results of the float model.

    PYTHONPATH=build/python build/venv/bin/python tests/python/backend_models.py [--kinds K,K] [--formats F,F] [--match TEXT]

Each model is taken as it is, and with all inputs but the first as constants, since most of them have their weights as
inputs. It has to be quantized, load and compute what the float model does within the bound of its format, or be refused
in one line. Runs happen in child processes, so that a crash is a finding of one model. Prints a table and the findings;
exit code 1 where there are any.
"""

import argparse
import dataclasses
import importlib
import json
import os
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import ModelProto, numpy_helper

#: What a format cannot represent, by format and model.
BEYOND = {
    ("plain", "test_softmax_large_number"): "8 bits of a range of 10,000 do not tell 0 from 3",
    ("plain", "test_softmax_lastdim, opset 13"): "a Softmax has steps of 1/255, and these values are 1/128 in the mean",
}
KINDS = ("node", "simple", "light", "pytorch-operator", "pytorch-converted", "trained")
#: Why models are refused: what stands in messages.
REASONS = {
    "nothing to quantize": "nothing to quantize|has no weights",
    "opset or IR version newer than the runtime": "knows opsets up to|knows versions up to",
    "an operator or kernel that the runtime lacks": "has no operator|has no kernel|Failed to find kernel",
    "the runtime takes the model or the data for invalid": "ONNX Runtime: ",
    "data that are no tensors of numbers": "not a numeric tensor|cannot be taken over",
    "quantized already": "quantized already",
    "NaN or infinite values": "holds .*NaN",
    "an opset before 7": "the oldest that detent reads",
    "bodies whose operators changed their meaning": "cannot raise opset",
    "BatchNormalization in training mode": "training mode",
}
SECONDS = 120
CHUNK = 64


@dataclasses.dataclass(frozen=True)
class Format:
    """A configuration, and the signal-to-noise ratio that every floating-point output has to have."""

    config: dict[str, Any]
    samples: bool
    bound: float


FORMATS = {
    "plain": Format({"preset": "plain"}, True, 20.0),
    "weights-only": Format({"weights_only": {"bits": 8, "accuracy_level": 1}}, False, 25.0),
    "dynamic": Format({"activations": "dynamic"}, False, 20.0),
    "float16": Format({"float_type": "16"}, True, 45.0),
}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    kind: str
    model: ModelProto
    inputs: list[Any]

    def feed(self) -> dict[str, Any]:
        constant = {tensor.name for tensor in self.model.graph.initializer}
        names = [value.name for value in self.model.graph.input if value.name not in constant]
        return dict(zip(names, self.inputs, strict=False))


def value_of(path: Path, kind: onnx.TypeProto) -> Any:
    """What an input_N.pb or output_N.pb holds."""
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def stored_case(kind: str, folder: Path) -> Case:
    model = onnx.load(folder / "model.onnx")
    data = folder / "test_data_set_0"
    paths = [(data / f"input_{i}.pb", value.type) for i, value in enumerate(model.graph.input)]
    return Case(folder.name, kind, model, [value_of(path, of) for path, of in paths if path.exists()])


def in_newer_opset(case: Case) -> list[Case]:
    """It, and, where it is older than what detent quantizes, as onnx's converter brings it to a newer one."""
    opset = next((o.version for o in case.model.opset_import if o.domain == ""), OPSETS[0])
    if opset >= OPSETS[0]:
        return [case]
    try:
        model = onnx.version_converter.convert_version(case.model, CONVERTED)
    except RuntimeError:
        return [case]
    return [case, Case(f"{case.name}, opset {CONVERTED}", case.kind, model, case.inputs)]


def light_case(path: Path) -> Case:
    """A net of the model zoo: constants that are made of one number get random values. Without the Softmax at its end,
    which makes a thousand numbers below a step of 8 bits of logits that are all alike."""
    model = onnx.load(path)
    rng = np.random.default_rng(0)
    makers = {node.output[0]: node for node in model.graph.node if node.op_type == "ConstantOfShape"}
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name, node in makers.items():
        shape = shapes[node.input[0]]
        fan_in = max(1, int(np.prod(shape[1:])))
        values = rng.normal(0, (2 / fan_in) ** 0.5, shape) if len(shape) > 1 else rng.uniform(0.5, 1.0, shape)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        model.graph.node.remove(node)
    if model.graph.node[-1].op_type == "Softmax":
        last = model.graph.node.pop()
        model.graph.output[0].name = last.input[0]
    constant = {tensor.name for tensor in model.graph.initializer}
    inputs = []
    for value in model.graph.input:
        if value.name not in constant:
            inputs.append(rng.normal(size=[d.dim_value or 1 for d in value.type.tensor_type.shape.dim]).astype(np.float32))
    return Case(path.stem, "light", model, inputs)


#: Trained models, and shapes of their input.
TRAINED = {"opennsfw": (1, 224, 224, 3), "ppocr_cls": (1, 3, 48, 192), "ppocr_det": (1, 3, 64, 64)}
OPSETS = range(7, 26)
CONVERTED = 13


def trained_cases(folder: Path) -> Iterator[Case]:
    """In all opsets that onnx's converter brings them to."""
    rng = np.random.default_rng(1)
    for name, shape in TRAINED.items():
        given = onnx.load(folder / f"{name}.onnx")
        constant = {tensor.name for tensor in given.graph.initializer}
        values = [value for value in given.graph.input if value.name not in constant]
        inputs = [rng.random(shape, np.float32) for _ in values]
        for opset in OPSETS:
            try:
                model = onnx.version_converter.convert_version(given, opset)
            except RuntimeError as error:
                print(f"{name}: onnx converts it to no opset {opset}: {str(error).splitlines()[0]}"[:150], file=sys.stderr)
                continue
            yield Case(f"{name} opset {opset}", "trained", model, inputs)


def node_cases(operators: Iterable[str] | None = None) -> Iterator[Case]:
    """Of all operators, or of these modules of onnx.backend.test.case.node. Making all takes a quarter of a minute."""
    from onnx.backend.test import loader
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if operators is None:
            loader.load_model_tests(kind="node")
        for operator in operators or ():
            importlib.import_module(f"{node.__name__}.{operator}")
    for test in node._NodeTestCases:
        if test.data_sets:
            inputs = [np.asarray(v) if isinstance(v, np.generic) else v for v in test.data_sets[0][0]]
            yield Case(test.name, "node", test.model, inputs)


def data_folder() -> Path:
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data"


def cases(kinds: tuple[str, ...] = KINDS) -> Iterator[Case]:
    root = data_folder()
    for kind in kinds:
        if kind == "node":
            yield from node_cases()
        elif kind == "trained":
            yield from trained_cases(Path(os.environ["DETENT_MODELS"]))
        elif kind == "light":
            yield from (light_case(path) for path in sorted((root / kind).glob("*.onnx")))
        else:
            for path in sorted((root / kind).iterdir()):
                if (path / "model.onnx").exists():
                    yield from in_newer_opset(stored_case(kind, path))


def with_constants(case: Case) -> Case | None:
    """All inputs but the first become initializers, if they are tensors."""
    graph = case.model.graph
    constant = {tensor.name for tensor in graph.initializer}
    later = [value for value in graph.input if value.name not in constant][1:]
    values = case.inputs[1:]
    if not later or len(values) < len(later) or not all(isinstance(v, np.ndarray) for v in values):
        return None
    model = ModelProto()
    model.CopyFrom(case.model)
    for value, array in zip(later, values, strict=False):
        tensor = numpy_helper.from_array(array, value.name)
        if tensor.data_type != value.type.tensor_type.elem_type:
            return None
        model.graph.initializer.append(tensor)
    kept = [value for value in model.graph.input if value.name not in {v.name for v in later}]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return Case(f"{case.name}, constants", case.kind, model, case.inputs[:1])


def session(model: bytes) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # float16 has no kernels of its own on CPUs, and the runtime's rewrites of Q/DQ pairs are not what is tested here.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def difference(expected: Any, found: Any, bound: float) -> str:
    """How an output differs; empty: not."""
    if isinstance(expected, list) or isinstance(found, list):
        if not isinstance(expected, list) or not isinstance(found, list) or len(expected) != len(found):
            return "another sequence"
        return next(filter(None, map(lambda e, f: difference(e, f, bound), expected, found)), "")
    if expected is None or found is None:
        return "" if expected is found else "one of the values is none"
    a, b = np.asarray(expected), np.asarray(found)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{b.dtype}{b.shape} instead of {a.dtype}{a.shape}"
    if a.dtype.kind != "f":
        return "" if np.array_equal(a, b) else f"{np.mean(a != b):.0%} of the {a.dtype} values differ"
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return "other values are finite"
    noise, signal_ = np.sum((a - b)[finite] ** 2), np.sum(a[finite] ** 2)
    if noise <= signal_ * 10 ** (-bound / 10) or np.abs((a - b)[finite]).max(initial=0) < 1e-6:
        return ""
    return f"{10 * np.log10(max(signal_, 1e-30) / noise):.1f} dB"


def outcome(case: Case, name: str) -> tuple[str, str]:
    """(what became of it, details). What begins with a capital letter is a finding."""
    import detent

    chosen = FORMATS[name]
    feed = case.feed()
    data = case.model.SerializeToString()
    try:
        expected = session(data).run(None, feed)
    except Exception as error:
        expected, unrun = None, str(error)
    try:
        made = detent.quantize(case.model, data=[feed] if chosen.samples else None, config=chosen.config, progress=False)
    except detent.Error as error:
        if isinstance(error, detent.errors.InternalError | detent.errors.UsageError):
            return f"Error of kind {error.kind}", str(error)
        return ("Not one line" if "\n" in str(error) else "refused"), str(error)
    if bytes(made) == data:
        return "unchanged", ""
    try:
        loaded = session(bytes(made))
        found = loaded.run(None, feed)
    except Exception as error:
        return ("not run by the runtime", unrun) if expected is None else ("Does not run", str(error))
    if expected is None:
        return "not run by the runtime", unrun
    for value, e, f in zip(case.model.graph.output, expected, found, strict=True):
        if problem := difference(e, f, chosen.bound):
            if (name, case.name) in BEYOND:
                return "beyond the format", BEYOND[name, case.name]
            return "Differs", f"{value.name}: {problem}"
    return "quantized", str(made.result.nodes_quantized)


def run_in_children(jobs: list[tuple[Case, str]], report: Callable[[int, str, str], None]) -> None:
    """Calls report(job, what became of it, details) for each. A job that ends its process is a finding."""
    first = 0
    while first < len(jobs):
        last = min(first + CHUNK, len(jobs))
        done = first
        into, out = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(into)
            work(jobs[first:last], out)
        os.close(out)
        with os.fdopen(into, "r") as pipe:
            for line in pipe:
                report(done, *json.loads(line))
                done += 1
        _, status = os.waitpid(child, 0)
        if done < last:
            reason = signal.Signals(status & 127).name if status & 127 else f"exit code {status >> 8}"
            report(done, "Crash", reason)
            done += 1
        first = done


def work(jobs: list[tuple[Case, str]], out: int) -> None:
    """In the child: a line for each job."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with os.fdopen(out, "w") as pipe:
        for case, name in jobs:
            signal.alarm(SECONDS)
            try:
                found = outcome(case, name)
            except Exception as error:
                found = ("Other exception", f"{type(error).__name__}: {error}")
            pipe.write(json.dumps(found) + "\n")
            pipe.flush()
    os._exit(0)


def in_both_forms(found: Iterable[Case]) -> list[Case]:
    """Models as they are, and with constants."""
    return [form for case in found for form in (case, with_constants(case)) if form is not None]


def reason_of(message: str) -> str:
    return next((reason for reason, pattern in REASONS.items() if re.search(pattern, message)), message)


def table(results: dict[tuple[str, str], Counter[str]]) -> str:
    columns = sorted({what for counts in results.values() for what in counts}, key=lambda what: (what[0].isupper(), what))
    lines = [f"| | format | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for (kind, name), counts in results.items():
        lines.append(" | ".join([f"| {kind}", name, *(str(counts[what]) for what in columns)]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--match", default="")
    parser.add_argument("--log", type=Path, help="a line for each run")
    arguments = parser.parse_args()
    chosen = in_both_forms(case for case in cases(tuple(arguments.kinds.split(","))) if arguments.match in case.name)
    jobs = [(case, name) for name in arguments.formats.split(",") for case in chosen]
    results: dict[tuple[str, str], Counter[str]] = {}
    reasons: dict[tuple[str, str], Counter[str]] = {}
    findings = 0
    log = arguments.log.open("w") if arguments.log else None

    def report(job: int, what: str, details: str) -> None:
        nonlocal findings
        case, name = jobs[job]
        results.setdefault((case.kind, name), Counter())[what] += 1
        if what == "refused":
            reasons.setdefault((reason_of(details), name), Counter())[what] += 1
        line = f"{what}\t{name}\t{case.kind}/{case.name}\t{details}"
        if log:
            print(line, file=log, flush=True)
        if what[0].isupper():
            findings += 1
            print(line.replace("\n", " "), flush=True)

    run_in_children(jobs, report)
    print(table(results), end="\n\n")
    print(table(dict(sorted(reasons.items()))))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
