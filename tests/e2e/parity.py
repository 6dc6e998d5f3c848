"""Compares a model of detent's with the one that ONNX Runtime's quantize_static makes of the same prepared model.

ONNX Runtime is handed detent's ranges, so that everything after calibration must be equal to the bit; its own ranges are
compared apart. Where detent differs on purpose, both graphs are brought into one form here, each difference by a function
of its own that first checks that the difference is one of those meant."""

import contextlib
import hashlib
import importlib
import math
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType
from support import TYPES, Config, Path, Reader

Range = tuple[float, float]
# The package has a function of the same name, which `import … as` would find.
ort_quantize = importlib.import_module("onnxruntime.quantization.quantize")


class Graph:
    """Nodes by name, and initializers as arrays."""

    def __init__(self, path: object) -> None:
        model = onnx.load(path)
        self.nodes = {node.name or node.output[0]: node for node in model.graph.node}
        self.order = list(model.graph.node)
        self.tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.outputs = {info.name for info in model.graph.output}

    def readers(self, value: str) -> int:
        return sum(list(node.input).count(value) for node in self.nodes.values())

    def rename(self, old: str, new: str) -> None:
        for node in self.nodes.values():
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]

    def form(self) -> set[tuple]:
        """What must be equal: each node with its attributes."""
        return {
            (n.op_type, n.domain, key, tuple(n.input), tuple(n.output), tuple(sorted(a.SerializeToString() for a in n.attribute)))
            for key, n in self.nodes.items()
        }


class Calibrator:
    """ONNX Runtime's calibrator with `ranges` in its results. It runs once for each model, options and samples: the formats
    that they are quantized to do not matter."""

    found: ClassVar[dict[tuple[str, ...], TensorsData]] = {}

    def __init__(self, create: Callable[[], Any], key: tuple[str, ...], ranges: dict[str, Range], own: dict[str, Range]) -> None:
        self.create, self.key, self.ranges, self.own = create, key, ranges, own

    def collect_data(self, reader: Reader) -> None:
        samples = list(reader.samples)
        digest = hashlib.sha256()
        for name, array in (item for sample in samples for item in sample.items()):
            digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        self.key += (digest.hexdigest(),)
        if self.key not in self.found:
            calibrator = self.create()
            calibrator.collect_data(Reader(samples))
            self.found[self.key] = calibrator.compute_data()

    def compute_data(self) -> TensorsData:
        found = self.found[self.key]
        self.own.update((name, (data.lowest.item(), data.highest.item())) for name, data in found.items())
        ends = {name: self.ranges.get(name, self.own[name]) for name in self.own}
        return TensorsData(found.calibration_method, {n: (np.float32(low), np.float32(high)) for n, (low, high) in ends.items()})


@contextlib.contextmanager
def given_ranges(ranges: dict[str, Range], own: dict[str, Range]) -> Iterator[None]:
    """Within, quantize_static takes `ranges` where they are given; what it found itself lands in `own`."""
    create = ort_quantize.create_calibrator

    def patched(model: Path, op_types: list[str], **options: Any) -> Calibrator:
        told = {name: value for name, value in options.items() if name != "augmented_model_path"}
        key = (hashlib.sha256(Path(model).read_bytes()).hexdigest(), repr(sorted(op_types)), repr(told))
        return Calibrator(lambda: create(model, op_types, **options), key, ranges, own)

    with unittest.mock.patch.object(ort_quantize, "create_calibrator", patched):
        yield


def clip_bounds(graph: Graph, node: onnx.NodeProto) -> Range:
    bounds = [0.0, math.inf] if node.op_type == "Relu" else [-math.inf, math.inf]
    for i, name in enumerate(node.input[1:]):
        if name:
            bounds[i] = float(graph.tensors[name])
    for attribute in node.attribute:
        bounds[attribute.name == "max"] = attribute.f
    return bounds[0], bounds[1]


def remove_kept_clips(ours: Graph, theirs: Graph, activations: dict, config: Config) -> None:
    """ONNX Runtime removes every Relu or Clip behind a quantized operator; detent only those that the integers stand for."""
    low_integer, high_integer = (int(v) for v in get_qmin_qmax_for_qType(TYPES[config.activation].tensor_type))
    for name, node in list(ours.nodes.items()):
        if node.op_type not in ("Relu", "Clip") or name in theirs.nodes:
            continue
        found = activations[node.output[0].removesuffix("_QuantizeLinear_Input")]
        step, zero = found["scale"], found["zero_point"]
        low, high = clip_bounds(ours, node)
        assert (low_integer - zero) * step < low - step or (high_integer - zero) * step > high + step, f"{name} is not needed"
        del ours.nodes[name]
        ours.rename(node.input[0], node.output[0])


def remove_pairs_before_activations(ours: Graph, theirs: Graph, prepared: Graph) -> None:
    """With symmetric activations ONNX Runtime also puts a pair between an operator and the Relu or Clip that alone reads it."""
    for node in prepared.order:
        value = node.input[0] if node.op_type in ("Relu", "Clip") else None
        pair = [f"{value}_QuantizeLinear", f"{value}_DequantizeLinear"]
        alone = value is not None and prepared.readers(value) == 1 and value not in prepared.outputs
        if not alone or pair[0] in ours.nodes or pair[0] not in theirs.nodes:
            continue
        for name in pair:
            del theirs.nodes[name]
        del theirs.tensors[f"{value}_scale"], theirs.tensors[f"{value}_zero_point"]
        theirs.rename(f"{value}_DequantizeLinear_Output", value)


def name_biases_by_node(graph: Graph) -> None:
    """A bias that several nodes read becomes one for each; the first keeps the name in ONNX Runtime, none does in detent."""
    makers = {node.output[0]: node for node in graph.nodes.values() if node.op_type == "DequantizeLinear"}
    for node in graph.order:
        maker = makers.get(node.input[2]) if len(node.input) > 2 and node.op_type != "DequantizeLinear" else None
        if maker is None or graph.tensors.get(maker.input[0], np.zeros(0)).dtype != np.int32:
            continue
        del graph.nodes[maker.name]
        maker.name = f"{node.name}/bias"
        graph.nodes[maker.name] = maker
        for i, name in enumerate(list(maker.input)):
            maker.input[i] = f"{node.name}/bias.{i}"
            graph.tensors[maker.input[i]] = graph.tensors.pop(name)
        maker.output[0] = node.input[2] = f"{node.name}/bias.out"


def halved_biases(prepared: Graph) -> set[str]:
    """Integers and scales of Gemm biases with a beta, by which ONNX Runtime divides where it should multiply."""
    nodes = [n for n in prepared.order if n.op_type == "Gemm" and any(a.name == "beta" and a.f != 1 for a in n.attribute)]
    return {f"{node.name}/bias.{i}" for node in nodes for i in (0, 1)}


def cut_outputs(prepared: Graph) -> set[str]:
    """Parameters of graph outputs that a Relu or Clip alone reads: ONNX Runtime cuts their ranges to what follows it."""
    values = {n.input[0] for n in prepared.order if n.op_type in ("Relu", "Clip") and n.input[0] in prepared.outputs}
    return {f"{value}_{part}" for value in values for part in ("scale", "zero_point")}


def overflowing_biases(theirs: Graph, zero_points: bool) -> set[str]:
    """Biases that int32 does not hold, and the weights whose scale would have to be raised: detent does so for every
    type, ONNX Runtime for int8 alone. Zero points of unsigned weights follow their scales. Call after name_biases_by_node."""
    ends = np.iinfo(np.int32)
    makers = {node.output[0]: node for node in theirs.nodes.values() if node.op_type == "DequantizeLinear"}
    names: set[str] = set()
    for node in theirs.order:
        integers = theirs.tensors.get(f"{node.name}/bias.0")
        if integers is not None and ((integers == ends.min) | (integers == ends.max)).any():
            names |= {f"{node.name}/bias.0", f"{node.name}/bias.1", *makers[node.input[1]].input[: 3 if zero_points else 2]}
    return names


def assert_same_tensors(ours: Graph, theirs: Graph, but: set[str]) -> None:
    used = {name for node in theirs.nodes.values() for name in node.input}
    assert used & set(ours.tensors) == used & set(theirs.tensors)
    for name in sorted(used & set(ours.tensors)):
        a, b = ours.tensors[name], theirs.tensors[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        assert (a.tobytes() == b.tobytes()) != (name in but), f"{name}: {a.ravel()[:4]} and {b.ravel()[:4]}"


def assert_params_follow_ranges(ours: Graph, activations: dict, config: Config) -> None:
    """Scale and zero point in the file, in the report, and by ONNX Runtime's formula from the reported range."""
    qmin, qmax = get_qmin_qmax_for_qType(TYPES[config.activation].tensor_type, symmetric=config.symmetric)
    for name, p in activations.items():
        zero, scale = compute_scale_zp(np.float32(p["min"]), np.float32(p["max"]), qmin, qmax, config.symmetric)
        assert (np.float32(p["scale"]), p["zero_point"]) == (scale, zero), name
        if f"{name}_scale" in ours.tensors:  # otherwise that of the value it shares with
            assert (ours.tensors[f"{name}_scale"], ours.tensors[f"{name}_zero_point"]) == (scale, zero), name


def assert_ranges_close(activations: dict, own: dict[str, Range], relative: float) -> None:
    for name, p in activations.items():
        if name not in own:
            continue
        found = np.array([min(p["min"], 0), max(p["max"], 0)])
        expected = np.array([min(own[name][0], 0), max(own[name][1], 0)])
        assert np.abs(found - expected).max() <= relative * np.abs(expected).max(), f"{name}: {found} and {expected}"
