#!/usr/bin/env python3
"""sweep_targets.py TARGET [--check] [--every N]: what a runtime makes of single quantized operators, as a table.

TARGET: ort-cpu, openvino or qnn; its wheel must be installed (onnxruntime, openvino, onnxruntime-qnn). Models of one operator
between QuantizeLinear and DequantizeLinear are given to the runtime, and what it says of the kernel that it chose is written to
src/checking/tables/TARGET.tsv, which `detent check` reads. With --check nothing is written: every N-th row is asked for again,
and the exit code says whether all are as they stand in the table; 77: the table is of another version of the runtime.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import pathlib
import sys
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper as h
from onnx import numpy_helper as nh

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLES = ROOT / "src" / "checking" / "tables"
TYPES = {
    "u8": (np.uint8, TensorProto.UINT8), "s8": (np.int8, TensorProto.INT8), "u16": (np.uint16, TensorProto.UINT16),
    "s16": (np.int16, TensorProto.INT16), "s4": (np.int8, TensorProto.INT4), "u4": (np.uint8, TensorProto.UINT4),
}  # fmt: skip
MIDDLE = {"u8": 128, "s8": 0, "u16": 32768, "s16": 0, "s4": 0, "u4": 8}

# Forms of a value. "f32", or a type, "=" if the zero point is in the middle of the type, and for constants "/c" with a scale
# for each channel or "/t" with one.
ACTIVATIONS = {
    "openvino": ["u8", "u8=", "s8", "s8=", "u16", "u16=", "s16="],
    "ort-cpu": ["u8", "s8", "u16", "s16="],
    "qnn": ["u8", "s8", "u16", "s16="],
}
WEIGHTS = ["s8=/c", "s8=/t", "s8/t", "u8=/c", "u8=/t", "u8/t", "s4=/c", "s16=/t", "u16/t", "f32"]

X, W, I1, I2 = [1, 8, 6, 6], [8, 8, 3, 3], [8, 8, 1, 1], [1, 8, 6, 6]
Make = Callable[[list[str]], list[onnx.NodeProto]]

# Products: shapes of input and weight, axis of the weight's channels, attributes.
PRODUCTS = {
    "Conv": (X, W, 0, {"pads": [1, 1, 1, 1]}),
    "ConvTranspose": (X, W, 1, {}),
    "MatMul": ([1, 16, 32], [32, 24], 1, {}),
    "Gemm": ([16, 32], [32, 24], 1, {}),
}
UNARY: dict[str, dict[str, object]] = {
    "Abs": {}, "AveragePool": {"kernel_shape": [2, 2]}, "Ceil": {}, "Celu": {}, "Clip": {}, "Cos": {},
    "DepthToSpace": {"blocksize": 2}, "Elu": {}, "Erf": {}, "Exp": {}, "Flatten": {}, "Floor": {},
    "Gelu": {}, "GlobalAveragePool": {}, "GlobalMaxPool": {}, "HardSigmoid": {}, "HardSwish": {},
    "LeakyRelu": {}, "Log": {}, "LogSoftmax": {}, "MaxPool": {"kernel_shape": [2, 2]}, "Neg": {},
    "Mish": {}, "Reciprocal": {}, "Relu": {}, "Round": {}, "Selu": {}, "Sigmoid": {}, "Sign": {}, "Sin": {},
    "Softmax": {}, "Softplus": {}, "Softsign": {}, "SpaceToDepth": {"blocksize": 2}, "Sqrt": {}, "Tanh": {}, "ThresholdedRelu": {},
    "Transpose": {"perm": [0, 2, 3, 1]},
}  # fmt: skip
# Operators with further inputs that are constants and not quantized.
CONSTANTS: dict[str, list[np.ndarray]] = {
    "Reshape": [np.array([1, 16, 18])], "Squeeze": [np.array([0])], "Unsqueeze": [np.array([0])],
    "Slice": [np.array([0]), np.array([4]), np.array([1])], "Pad": [np.array([0, 0, 1, 1, 0, 0, 1, 1])],
    "Gather": [np.array([1, 3])], "ReduceMean": [np.array([2, 3])], "ReduceSum": [np.array([2, 3])],
    "ReduceMax": [np.array([2, 3])], "ReduceMin": [np.array([2, 3])],
    "Resize": [np.array([], np.float32), np.array([1, 1, 2, 2], np.float32)],
    "Expand": [np.array([2, 8, 6, 6])], "Tile": [np.array([1, 1, 2, 1])], "Split": [np.array([4, 4])],
}  # fmt: skip
ATTRIBUTES: dict[str, dict[str, object]] = {"Gather": {"axis": 1}, "Split": {"axis": 1}}
# Runtimes may move a pair that stands behind these in front of them.
MOVEMENT = {
    "DepthToSpace", "Expand", "Flatten", "MaxPool", "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Concat", "Where", "Pow", "PRelu"]
NORMALIZATIONS = ["LayerNormalization", "InstanceNormalization", "BatchNormalization"]


def split(form: str) -> tuple[str, bool, bool]:
    kind, _, channels = form.partition("/")
    return kind.rstrip("="), kind.endswith("="), channels == "c"


class Builder:
    """A model of one operator, value by value."""

    def __init__(self, opset: int = 21) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.opset = opset
        self.random = np.random.default_rng(7)

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(nh.from_array(array, name))
        return name

    def params(self, name: str, form: str, channels: int = 0) -> list[str]:
        kind, middle, _ = split(form)
        zero = MIDDLE[kind] if middle else MIDDLE[kind] + 3
        shape = [channels] if channels else []
        self.constant(f"{name}_s", np.full(shape, 0.02, np.float32) if channels else np.array(0.02, np.float32))
        self.constants.append(h.make_tensor(f"{name}_z", TYPES[kind][1], shape, [zero] * max(channels, 1)))
        return [f"{name}_s", f"{name}_z"]

    def pair(self, name: str, form: str, to: str) -> str:
        """`name` quantized and dequantized as `to`; itself in float."""
        if form == "f32":
            return name
        params = self.params(name, form)
        self.nodes.append(h.make_node("QuantizeLinear", [name, *params], [f"{name}_q"], name=f"{name}_q"))
        self.nodes.append(h.make_node("DequantizeLinear", [f"{name}_q", *params], [to], name=f"{name}_dq"))
        return to

    def activation(self, name: str, shape: list[int], form: str) -> str:
        self.inputs.append(h.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return self.pair(name, form, f"{name}_d")

    def weight(self, name: str, shape: list[int], form: str, axis: int) -> str:
        values = self.random.uniform(-1, 1, shape).astype(np.float32)
        if form == "f32":
            return self.constant(name, values)
        kind, _, channels = split(form)
        params = self.params(name, form, shape[axis] if channels else 0)
        limit = 7 if kind in ("s4", "u4") else 120
        stored = np.round(values * limit).astype(int) + MIDDLE[kind]
        self.constants.append(h.make_tensor(f"{name}_q", TYPES[kind][1], shape, stored.flatten().tolist()))
        attributes = {"axis": axis} if channels else {}
        self.nodes.append(h.make_node("DequantizeLinear", [f"{name}_q", *params], [f"{name}_d"], name=f"{name}_dq", **attributes))
        return f"{name}_d"

    def finish(self, op: str, inputs: list[str], out: str, attributes: dict[str, object], outputs: int = 1) -> onnx.ModelProto:
        names = [f"y{i}" for i in range(outputs)]
        self.nodes.append(h.make_node(op, inputs, names, name="op", **attributes))
        results = [self.pair(n, out, f"{n}_d") for n in names]
        infos = [h.make_tensor_value_info(n, attributes.get("to", TensorProto.FLOAT), None) for n in results]
        graph = h.make_graph(self.nodes, "g", self.inputs, infos, self.constants)
        return h.make_model(graph, opset_imports=[h.make_opsetid("", self.opset)], ir_version=10)


def same_or_float(form: str) -> list[str]:
    return [form] if form == "f32" else [form, "f32"]


def outputs_of(op: str, form: str, activations: list[str]) -> list[str]:
    return [form, *activations] if form == "f32" and op in MOVEMENT else same_or_float(form)


def outputs_of_product(form: str, widths: bool) -> list[str]:
    """Also integers of the other width, where the table has these."""
    other = {"u8": "u16", "u16": "u8", "s8": "s16=", "s16": "s8"}.get(split(form)[0])
    return [*same_or_float(form), *([other] if other and widths else [])]


def cases(target: str) -> Iterator[tuple[tuple[str, str, str, str], onnx.ModelProto]]:
    """Rows (operator, first input, second input, output) and their models."""
    activations, widths = ACTIVATIONS[target], target == "qnn"
    for op, (x_shape, w_shape, axis, attributes) in PRODUCTS.items():
        for x in [*activations, "f32"]:
            for w in WEIGHTS:
                for y in outputs_of_product(x, widths):
                    b = Builder()
                    inputs = [b.activation("x", x_shape, x), b.weight("w", w_shape, w, axis)]
                    yield (op, x, w, y), b.finish(op, inputs, y, attributes)
    of_activations = {"MatMul": ([1, 4, 16, 32], [1, 4, 32, 24], {})}
    if target == "ort-cpu":  # whose share of integers is told; others compute with constant weights
        of_activations |= {op: (first, second, more) for op, (first, second, _, more) in PRODUCTS.items() if op != "MatMul"}
    for op, (x_shape, v_shape, attributes) in of_activations.items():
        for x in [*activations, "f32"]:
            for second in [*activations, *(["f32"] if op == "MatMul" else [])]:
                for y in outputs_of_product(x, widths):
                    b = Builder()
                    inputs = [b.activation("x", x_shape, x), b.activation("v", v_shape, second)]
                    yield (op, x, second, y), b.finish(op, inputs, y, attributes)
    for op, attributes in UNARY.items():
        for x in [*activations, "f32"]:
            for y in outputs_of(op, x, activations):
                b = Builder()
                yield (op, x, "-", y), b.finish(op, [b.activation("x", X, x)], y, attributes)
    for op, constants in CONSTANTS.items():
        for x in [*activations, "f32"]:
            for y in outputs_of(op, x, activations):
                b = Builder()
                inputs = [b.activation("x", X, x)] + [b.constant(f"c{i}", c) for i, c in enumerate(constants)]
                if op == "Resize":
                    inputs = [inputs[0], "", inputs[2]]
                yield (op, x, "-", y), b.finish(op, inputs, y, ATTRIBUTES.get(op, {}), 2 if op == "Split" else 1)
    for op in BINARY:
        for x in [*activations, "f32"]:
            seconds = [x, split(x)[0] + "=/t" if x != "f32" else "c32"]
            for second in seconds:
                for y in same_or_float(x):
                    b = Builder()
                    inputs = [b.activation("x", X, x)]
                    if "/" in second or second == "c32":
                        inputs.append(b.weight("w", [8, 1, 1], second if second != "c32" else "f32", 0))
                        if op == "Concat":
                            continue
                    else:
                        inputs.append(b.activation("v", X, second))
                    if op == "Where":
                        inputs.insert(0, b.constant("c", np.ones([1, 8, 1, 1], bool)))
                    row = (op, x, "f32" if second == "c32" else second, y)
                    yield row, b.finish(op, inputs, y, {"axis": 1} if op == "Concat" else {})
    for op in NORMALIZATIONS:
        for x in [*activations, "f32"]:
            for w in ["s8=/t", "u8=/t", "u8/t", "u16/t", "s16=/t", "f32"]:
                for y in same_or_float(x):
                    b = Builder()
                    size = [6] if op == "LayerNormalization" else [8]
                    inputs = [b.activation("x", X, x), b.weight("w", size, w, 0), b.weight("b", size, "f32", 0)]
                    if op == "BatchNormalization":
                        inputs += [b.weight("mean", size, "f32", 0), b.constant("var", np.ones(size, np.float32))]
                    yield (op, x, w, y), b.finish(op, inputs, y, {})
    if target != "ort-cpu":  # whose graph does not tell where a table of integers is read
        yield from lookups(activations)
    yield from casts(activations)


def lookups(activations: list[str]) -> Iterator[tuple[tuple[str, str, str, str], onnx.ModelProto]]:
    """Rows of a constant table, such as embeddings."""
    for x in activations:
        for y in same_or_float(x):
            b = Builder()
            b.inputs.append(h.make_tensor_value_info("i", TensorProto.INT64, [1, 4]))
            yield ("Gather", f"{x}/t", "-", y), b.finish("Gather", [b.weight("w", [16, 8], f"{x}/t", 0), "i"], y, {"axis": 0})


def casts(activations: list[str]) -> Iterator[tuple[tuple[str, str, str, str], onnx.ModelProto]]:
    """Of numbers to int32, and of int32 to numbers."""
    for x in [*activations, "f32"]:
        b = Builder()
        yield ("Cast", x, "-", "f32"), b.finish("Cast", [b.activation("x", X, x)], "f32", {"to": TensorProto.INT32})
    for y in activations:
        b = Builder()
        b.inputs.append(h.make_tensor_value_info("x", TensorProto.INT32, X))
        yield ("Cast", "f32", "-", y), b.finish("Cast", ["x"], y, {"to": TensorProto.FLOAT})


def openvino() -> Callable[[onnx.ModelProto], str]:
    import openvino as ov

    core = ov.Core()

    def ask(model: onnx.ModelProto) -> str:
        # Floats are float32, also on CPUs with bfloat16.
        compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = ""
        for op in compiled.get_runtime_model().get_ordered_ops():
            info = op.get_rt_info()
            if "originalLayersNames" not in info or "layerType" not in info:
                continue
            names = info["originalLayersNames"].astype(str).split(",")
            if "op" in names or any(n.startswith("y0") for n in names):
                precision = info["runtimePrecision"].astype(str)
                kind = info["layerType"].astype(str)
                if kind in ("Input", "Output", "Const", "Reorder"):
                    continue
                found = precision if "op" in names or not found else found
        return {"i8": "int8", "u8": "int8", "f32": "float32", "": "none"}.get(found, found)

    return ask


def qnn() -> Callable[[onnx.ModelProto], str]:
    import onnxruntime as ort
    import onnxruntime_qnn

    folder = pathlib.Path(onnxruntime_qnn.__file__).parent
    ort.register_execution_provider_library("QNNExecutionProvider", str(next(folder.rglob("libonnxruntime_providers_qnn.so"))))
    device = next(d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider")
    backend = str(next(folder.rglob("libQnnHtp.so")))

    def ask(model: onnx.ModelProto) -> str:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices([device], {"backend_path": backend, "htp_arch": "73"})
        try:
            ort.InferenceSession(model.SerializeToString(), options)
        except Exception:
            return "cpu"
        return "htp"

    return ask


def ort_cpu() -> Callable[[onnx.ModelProto], str]:
    import tempfile

    import onnxruntime as ort

    def ask(model: onnx.ModelProto) -> str:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        with tempfile.TemporaryDirectory() as folder:
            options.optimized_model_filepath = f"{folder}/m.onnx"
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            types = [n.op_type for n in onnx.load(f"{folder}/m.onnx").graph.node]
        op = next(n.op_type for n in model.graph.node if n.name == "op")
        makers = [t for t in types if t not in ("QuantizeLinear", "DequantizeLinear")]
        if not makers:
            return "none"
        if any(t.startswith(("QLinear", "QGemm", "MatMulInteger", "DynamicQuantize", "MatMulNBits")) for t in makers):
            return "int8"
        # Data movement stands between the integers themselves.
        before = next(i for i, t in enumerate(types) if t == makers[0])
        return "float32" if op not in makers or "DequantizeLinear" in types[:before] or types[0] != "QuantizeLinear" else "int8"

    return ask


RUNTIMES = {"openvino": openvino, "qnn": qnn, "ort-cpu": ort_cpu}
WHEELS = {"openvino": "openvino", "qnn": "onnxruntime-qnn", "ort-cpu": "onnxruntime"}


def answer(ask: Callable[[onnx.ModelProto], str], model: onnx.ModelProto) -> str:
    try:
        return ask(model)
    except Exception as error:
        if "-v" in sys.argv:
            print(error, file=sys.stderr)
        return "refused"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=RUNTIMES)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", metavar="OPERATOR", help="ask for this operator's rows and for new ones, and keep the others")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    ask = RUNTIMES[options.target]()
    file = TABLES / f"{options.target}.tsv"
    wheel = WHEELS[options.target]
    version = f"# {wheel} {importlib.metadata.version(wheel)}"
    if options.check and version not in file.read_text().splitlines():
        print(f"the table is not of {version[2:]}")
        sys.exit(77)
    known = {}
    if file.exists():
        known = {tuple(line.split("\t")[:4]): line.split("\t")[4] for line in file.read_text().splitlines() if line[0] != "#"}
    if not options.check:
        keeps = lambda row: row in known and options.only not in (None, row[0])
        rows = ["\t".join([*row, known[row] if keeps(row) else answer(ask, model)]) for row, model in cases(options.target)]
        file.parent.mkdir(parents=True, exist_ok=True)
        head = "# Written by scripts/sweep_targets.py: operator, first input, second input, output, kernel"
        file.write_text("\n".join([head, version, *rows]) + "\n")
        return
    wrong = 0
    for i, (row, model) in enumerate(cases(options.target)):
        if i % options.every or (now := answer(ask, model)) == known[row]:
            continue
        wrong += 1
        print(f"{options.target}: {' '.join(row)}: {known[row]} in the table, now {now}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
