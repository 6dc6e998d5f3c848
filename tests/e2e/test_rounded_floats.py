"""`detent compare` rounds 16-bit floats where nodes make them; tests/e2e/rounded.py does the same node by node."""

import json

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import rounded
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path, Sample

FLOAT, FLOAT16, BFLOAT16, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL


def compare(original: Path, other: Path, data: Path, *options: object) -> dict:
    result = support.detent("compare", original, other, "--calibration-data", data, "--threads", 1, "--json", *options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def convert(model: Path, output: Path, data: Path, *options: object) -> dict:
    return support.quantize(model, output, data, "--preset", "none", "--float", *options)


def says_rounding(notes: list[str]) -> bool:
    return any("rounded to" in note for note in notes)


def samples(*shape: int, count: int = 3) -> list[Sample]:
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(0, 1, shape).astype(np.float32)} for _ in range(count)]


def chain() -> onnx.ModelProto:
    b = graphs.Builder(3)
    x = b.add("Relu", b.add("MatMul", "x", b.weight("w1", 64, 128), name="first"), name="relu")
    x = b.add("Softmax", b.add("MatMul", x, b.weight("w2", 128, 64), name="second"), axis=-1, name="softmax")
    return b.model({"x": (FLOAT, [8, 64])}, [b.add("MatMul", x, b.weight("w3", 64, 16), name="third")])


@pytest.mark.parametrize("kind", ["16", "bf16"])
def test_as_node_by_node(kind: str, tmp_path: Path) -> None:
    model, source, output = chain(), tmp_path / "m.onnx", tmp_path / "low.onnx"
    onnx.save(model, source)
    convert(source, output, support.save_samples(tmp_path / "data", samples(8, 64)), kind)
    for i, sample in enumerate(samples(8, 64)):
        told = compare(source, output, support.save_samples(tmp_path / f"one{i}", [sample]))
        assert says_rounding(told["notes"])
        expected = rounded.worst_sqnr_db(model, onnx.load(output), sample)
        assert told["outputs"][0]["sqnr_db"] == pytest.approx(expected, abs=0.6)
        assert {layer["made_by"] for layer in told["layers"]} >= {"MatMul 'first'", "Relu 'relu'", "Softmax 'softmax'"}


def test_a_trained_net(tmp_path: Path) -> None:
    source, output = support.MODELS / "ppocr_cls.onnx", tmp_path / "low.onnx"
    rng = np.random.default_rng(5)
    data = [{"x": rng.uniform(-1, 1, (1, 3, 48, 192)).astype(np.float32)}]
    folder = support.save_samples(tmp_path / "data", data)
    said = convert(source, output, folder, "16")
    told = compare(source, output, folder)
    exact, got = in_float32(onnx.load(source), data[0]), rounded.run(onnx.load(output), data[0])
    layers = {layer["name"]: layer["sqnr_db"] for layer in told["layers"] if layer["name"] in got}
    assert len(layers) > 150
    for name, sqnr_db in layers.items():
        expected = rounded.sqnr_db(exact[name], got[name])
        assert sqnr_db is None if np.isinf(expected) else sqnr_db == pytest.approx(expected, abs=0.2), name
    # As deployed, sums go in another order, and there are two results only.
    name = told["outputs"][0]["name"]
    assert told["outputs"][0]["sqnr_db"] == pytest.approx(rounded.sqnr_db(exact[name], got[name]), abs=4)
    assert said["accuracy"]["rounded_db"] == pytest.approx(told["outputs"][0]["sqnr_db"], abs=0.01)
    plain = compare(source, output, folder, "--outputs-only", "--no-round-floats")
    assert not says_rounding(plain["notes"])
    assert plain["outputs"][0]["sqnr_db"] > told["outputs"][0]["sqnr_db"] + 3


def in_float32(model: onnx.ModelProto, sample: Sample) -> dict[str, np.ndarray]:
    """All values of a float32 model."""
    known = {o.name for o in model.graph.output}
    values = [o for n in model.graph.node for o in n.output if o not in known]
    model.graph.output.extend(helper.make_empty_tensor_value_info(v) for v in values)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, sample), strict=True))


def scaled(kind: int, factor: float) -> onnx.ModelProto:
    """A model of another tool: one that lets values pass the type."""
    weight = numpy_helper.to_array(chain().graph.initializer[0])
    tensors = [helper.make_tensor("w", kind, weight.shape, weight.flatten()), helper.make_tensor("f", kind, [], [factor])]
    tensors.append(helper.make_tensor("b", kind, [], [1 / factor]))
    nodes = [
        helper.make_node("Cast", ["x"], ["low"], "in", to=kind),
        helper.make_node("MatMul", ["low", "w"], ["m"], "product"),
        helper.make_node("Mul", ["m", "f"], ["large"], "grows"),
        helper.make_node("Mul", ["large", "b"], ["small"], "shrinks"),
        helper.make_node("Cast", ["small"], ["y"], "out", to=FLOAT),
    ]
    infos = [helper.make_tensor_value_info(n, FLOAT, s) for n, s in (("x", [8, 64]), ("y", [8, 128]))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_overflow_is_told(tmp_path: Path) -> None:
    """ONNX Runtime computes such nodes in float32, so that nothing shows there."""
    folder = support.save_samples(tmp_path / "data", samples(8, 64))
    for name, kind in (("float32", FLOAT), ("low", FLOAT16), ("brain", BFLOAT16)):
        onnx.save(scaled(kind, 4e4), tmp_path / f"{name}.onnx")
    told = compare(tmp_path / "float32.onnx", tmp_path / "low.onnx", folder)
    assert any("become infinite: large" in note for note in told["notes"])
    # Infinite noise is no number in JSON, and a cosine of nothing finite.
    assert told["outputs"][0]["max_abs"] == float("inf") or told["outputs"][0]["sqnr_db"] is None
    hidden = compare(tmp_path / "float32.onnx", tmp_path / "low.onnx", folder, "--no-round-floats")
    assert hidden["outputs"][0]["sqnr_db"] > 55
    brain = compare(tmp_path / "float32.onnx", tmp_path / "brain.onnx", folder)
    assert not any("infinite" in note for note in brain["notes"])
    assert brain["outputs"][0]["sqnr_db"] > 40


def test_what_is_float32_stays_as_it_is(model: Path, data: Path, tmp_path: Path) -> None:
    support.quantize(model, tmp_path / "q.onnx", data)
    both = [compare(model, tmp_path / "q.onnx", data, *options) for options in ((), ("--no-round-floats",))]
    assert both[0] == both[1]
    assert not says_rounding(both[0]["notes"])


def test_bodies(tmp_path: Path) -> None:
    """Values in the branch that a sample takes are rounded too."""
    b = graphs.Builder(3)
    hidden = b.add("Relu", b.add("MatMul", "x", b.weight("w1", 64, 64)), name="hidden")
    branches = {}
    for branch in ("then", "else"):
        nodes = [helper.make_node("MatMul", [hidden, f"w_{branch}"], [f"{branch}_m"], f"{branch}_product")]
        nodes.append(helper.make_node("Sigmoid", [f"{branch}_m"], [branch], f"{branch}_gate"))
        b.weight(f"w_{branch}", 64, 64)
        result = helper.make_tensor_value_info(branch, FLOAT, [8, 64])
        branches[f"{branch}_branch"] = helper.make_graph(nodes, branch, [], [result])
    x = b.add("If", "flag", name="if", **branches)
    model = b.model({"x": (FLOAT, [8, 64]), "flag": (BOOL, [])}, [b.add("MatMul", x, b.weight("w2", 64, 64))])
    onnx.save(model, tmp_path / "m.onnx")
    data = [s | {"flag": np.array(i % 2 == 0)} for i, s in enumerate(samples(8, 64, count=4))]
    folder = support.save_samples(tmp_path / "data", data)
    convert(tmp_path / "m.onnx", tmp_path / "low.onnx", folder, "16")
    told = compare(tmp_path / "m.onnx", tmp_path / "low.onnx", folder)
    plain = compare(tmp_path / "m.onnx", tmp_path / "low.onnx", folder, "--no-round-floats")
    assert 55 < told["outputs"][0]["sqnr_db"] < plain["outputs"][0]["sqnr_db"]


def test_both_types_in_one_model(tmp_path: Path) -> None:
    """Each value is rounded to its own."""
    model = scaled(FLOAT16, 2)
    model.graph.node.insert(1, helper.make_node("Cast", ["x"], ["brain"], to=BFLOAT16))
    model.graph.node.append(helper.make_node("Cast", ["brain"], ["z"], to=FLOAT))
    model.graph.output.append(helper.make_tensor_value_info("z", FLOAT, [8, 64]))
    onnx.save(model, tmp_path / "m.onnx")
    exact = scaled(FLOAT, 2)
    exact.graph.node.append(helper.make_node("Identity", ["x"], ["z"]))
    exact.graph.output.append(helper.make_tensor_value_info("z", FLOAT, [8, 64]))
    onnx.save(exact, tmp_path / "float.onnx")
    folder = support.save_samples(tmp_path / "data", samples(8, 64))
    told = compare(tmp_path / "float.onnx", tmp_path / "m.onnx", folder)
    assert any("their 16-bit type" in note for note in told["notes"])
    y, z = (output["sqnr_db"] for output in told["outputs"])
    assert y > 60
    assert 48 < z < 56, "8 bits of mantissa"
