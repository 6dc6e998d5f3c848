"""Products that compute in float keep weights of 8 bits, which become floats when the model is loaded, where that does no harm."""

import json

import graphs
import numpy as np
import onnx
import onnxruntime
import pytest
import support
from onnx import numpy_helper
from support import Path

BALANCED = ["--preset", "balanced", "--optimize-for", "latency"]
WEIGHTS = {"conv": ("w1", 0), "up": ("w2", 1), "head": ("w3", 1), "last": ("w4", 0)}  # by node: weight, and axis of its channels


def network() -> onnx.ModelProto:
    """A convolution, a transposed one, a MatMul and a Gemm that transposes its weight."""
    b = graphs.Builder(5)
    b.constant("w1", b.rng.normal(size=(16, 8, 3, 3)) / 8)
    b.constant("w2", b.rng.normal(size=(16, 12, 2, 2)) / 8)
    b.constant("w3", b.rng.normal(size=(12 * 64, 48)) / 28)
    b.constant("w4", b.rng.normal(size=(40, 48)) / 7)
    first = b.add("Relu", b.add("Conv", "x", "w1", name="conv", pads=[1, 1, 1, 1]))
    flat = b.add("Flatten", b.add("ConvTranspose", first, "w2", name="up", strides=[2, 2]), name="flat")
    last = b.add("Gemm", b.add("MatMul", flat, "w3", name="head"), "w4", name="last", transB=1)
    return b.model({"x": (graphs.FLOAT, [1, 8, 4, 4])}, [last])


def with_twin() -> onnx.ModelProto:
    """Another product, whose result is an output, reads the weight of "head"."""
    model = network()
    model.graph.node.append(onnx.helper.make_node("MatMul", ["flat.out", "w3"], ["z"], name="twin"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 48]))
    return model


def faster_in_float(model: Path, data: Path, folder: Path) -> Path:
    """A table by which all products of the model run faster in float."""
    table = folder / "kernels.json"
    support.quantize(model, folder / "first.onnx", data, *BALANCED, "--set", f"kernel-table={table}")
    content = json.loads(table.read_text())
    for row in content["kernels"].values():
        row.update({"float": 100, "integers": 1000})
    table.write_text(json.dumps(content))
    return table


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, its samples, and such a table."""
    folder = tmp_path_factory.mktemp("stored")
    onnx.save(network(), folder / "model.onnx")
    rng = np.random.default_rng(1)
    data = support.save_samples(folder / "data", [{"x": rng.normal(size=(1, 8, 4, 4)).astype(np.float32)} for _ in range(8)])
    return folder / "model.onnx", data, faster_in_float(folder / "model.onnx", data, folder)


def constants(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def rounded(weight: np.ndarray, axis: int) -> np.ndarray:
    """By numpy: symmetric integers of 8 bits with a scale for each channel."""
    others = tuple(d for d in range(weight.ndim) if d != axis)
    scale = (np.abs(weight).max(axis=others, keepdims=True) / np.float32(127)).astype(np.float32)
    return np.clip(np.rint(weight / scale), -128, 127).astype(np.float32) * scale


def run(model: onnx.ModelProto | Path, x: np.ndarray) -> np.ndarray:
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(given).run(None, {"x": x})[0]


def test_the_file_is_smaller_and_computes_in_float(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, data, table = case
    told = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--set", f"kernel-table={table}")
    stored = constants(tmp_path / "q.onnx")
    assert sorted(v.dtype.name for v in stored.values() if v.size > 64) == ["int8"] * 4
    assert (tmp_path / "q.onnx").stat().st_size < 0.35 * model.stat().st_size
    assert (told["nodes_quantized"], told["nodes_in_float"]) == (4, 0)
    assert told["accuracy"]["integer_macs"] == 0
    expected = network()
    for weight, axis in WEIGHTS.values():
        tensor = next(t for t in expected.graph.initializer if t.name == weight)
        tensor.CopyFrom(numpy_helper.from_array(rounded(numpy_helper.to_array(tensor), axis), weight))
    signal = noise = 0.0
    for sample in sorted(data.iterdir()):
        x = np.load(sample)["x"]
        y, exact = run(tmp_path / "q.onnx", x), run(model, x)
        np.testing.assert_allclose(y, run(expected, x), rtol=0, atol=2e-6)
        signal += float((exact.astype(np.float64) ** 2).sum())
        noise += float(((y.astype(np.float64) - exact) ** 2).sum())
    assert told["accuracy"]["sqnr_db"] == pytest.approx(10 * np.log10(signal / noise), abs=0.01)
    operators = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert "QuantizeLinear" not in operators
    seen = json.loads(support.detent("inspect", tmp_path / "q.onnx", "--json").stdout)
    assert seen["heaviest_layer"] == "head"  # and not the Cast of its weight
    assert {v["name"]: v["parameters"] for v in seen["layers"] if v["name"] in WEIGHTS}["head"] == 12 * 64 * 48 + 48
    plan = support.detent("plan", model, "--calibration-data", data, *BALANCED, "--set", f"kernel-table={table}", "--json")
    assert json.loads(plan.stdout)["nodes_quantized"] == 4
    assert json.loads(plan.stdout)["output_bytes"] == pytest.approx((tmp_path / "q.onnx").stat().st_size, rel=0.3)


def test_what_the_user_leaves_out_stays_as_it_is(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, data, table = case
    options = [*BALANCED, "--set", f"kernel-table={table}"]
    support.quantize(model, tmp_path / "q.onnx", data, *options, "--exclude-nodes", "head")
    assert constants(tmp_path / "q.onnx")["w3"].dtype == np.float32
    support.quantize(model, tmp_path / "all.onnx", data, *options[:3], "accuracy", *options[4:])
    assert {v.dtype.name for v in constants(tmp_path / "all.onnx").values() if v.size > 64} == {"float32"}


def test_a_weight_of_an_excluded_product_too_stays(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, data, table = case
    onnx.save(with_twin(), tmp_path / "model.onnx")
    options = [*BALANCED, "--set", f"kernel-table={table}"]
    support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *options, "--exclude-nodes", "twin")
    kept = constants(tmp_path / "q.onnx")
    assert kept["w3"].dtype == np.float32
    assert "w1" not in kept
    support.quantize(tmp_path / "model.onnx", tmp_path / "both.onnx", data, *options)
    assert "w3" not in constants(tmp_path / "both.onnx")
    x = np.load(next(data.iterdir()))["x"]
    np.testing.assert_allclose(run(tmp_path / "both.onnx", x), run(tmp_path / "model.onnx", x), atol=0.1)


def test_weights_whose_rounding_does_harm_stay_floats(tmp_path: Path) -> None:
    """The largest weight of each channel reads what is 0 on all samples, so that its scale rounds all others away."""
    b = graphs.Builder(6)
    weight = b.rng.normal(size=(64, 64)) / 8
    weight[0] = 4000
    b.constant("w", weight)
    product = b.add("MatMul", "x", "w")
    onnx.save(b.model({"x": (graphs.FLOAT, [1, 64])}, [product]), tmp_path / "model.onnx")
    samples = [{"x": (b.rng.normal(size=(1, 64)) * (np.arange(64) > 0)).astype(np.float32)} for _ in range(8)]
    data = support.save_samples(tmp_path / "data", samples)
    table = faster_in_float(tmp_path / "model.onnx", data, tmp_path)
    told = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *BALANCED, "--set", f"kernel-table={table}")
    assert constants(tmp_path / "q.onnx")["w"].dtype == np.float32
    assert told["nodes_quantized"] == 0


def test_as_the_format_of_a_node(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Whoever else reads the weight reads its floats."""
    _, data, _ = case
    onnx.save(with_twin(), tmp_path / "model.onnx")
    told = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, "--node-formats", "head=w8,conv=w8,last=int8")
    assert told["nodes_quantized"] == 3
    stored = constants(tmp_path / "q.onnx")
    assert stored["w3"].dtype == np.float32
    assert "w1" not in stored
    expected = network()
    exact = {t.name: numpy_helper.to_array(t) for t in expected.graph.initializer}
    x = np.load(next(data.iterdir()))["x"]
    given = {"w1": rounded(exact["w1"], 0)}
    for tensor in expected.graph.initializer:
        if tensor.name in given:
            tensor.CopyFrom(numpy_helper.from_array(given[tensor.name], tensor.name))
    expected.graph.output.append(onnx.helper.make_tensor_value_info("flat.out", onnx.TensorProto.FLOAT, [1, 768]))
    session = onnxruntime.InferenceSession(expected.SerializeToString())
    flat = session.run(["flat.out"], {"x": x})[0]
    z = onnxruntime.InferenceSession(str(tmp_path / "q.onnx")).run(["z"], {"x": x})[0]
    np.testing.assert_allclose(z, flat @ exact["w3"], rtol=0, atol=1e-5)
    wrong = support.detent("quantize", tmp_path / "model.onnx", "-o", tmp_path / "n.onnx", "--node-formats", "flat=w8")
    assert wrong.returncode == 2


def test_convolutions_beside_dynamic_activations(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Which would be slower on integers. Whoever names what is quantized gets that alone."""
    model, data, _ = case
    dynamic = ["--activations", "dynamic", "--no-bench"]
    told = support.quantize(model, tmp_path / "q.onnx", data, *dynamic)
    assert sorted(v.dtype.name for v in constants(tmp_path / "q.onnx").values() if v.size > 64) == ["int8"] * 4
    assert (told["nodes_quantized"], told["nodes_in_float"]) == (4, 0)
    plan = json.loads(support.detent("plan", model, "--calibration-data", data, *dynamic, "--json").stdout)
    assert plan["nodes_quantized"] == 4
    assert plan["output_bytes"] == pytest.approx((tmp_path / "q.onnx").stat().st_size, rel=0.3)
    x = np.load(next(data.iterdir()))["x"]
    exact, got = run(model, x), run(tmp_path / "q.onnx", x)
    assert 20 * np.log10(np.linalg.norm(exact) / np.linalg.norm(got - exact)) > 25
    support.quantize(model, tmp_path / "named.onnx", data, *dynamic, "--op-types", "MatMul")
    assert {n: constants(tmp_path / "named.onnx")[n].dtype.name for n in ("w1", "w2", "w4")} == dict.fromkeys(
        ("w1", "w2", "w4"), "float32"
    )


def test_the_smallest_file_is_the_one_without_many_pairs(tmp_path: Path) -> None:
    """Pairs around small operators take more of the file than integers save; a named format is taken at its word."""
    b = graphs.Builder(2)
    x = "x"
    for i in range(6):
        y = b.add("Conv", x, b.weight(f"w{i}", 12, 12, 3, 3), pads=[1, 1, 1, 1])
        pooled = b.add("MaxPool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        x = b.add("Add", b.add("Mul", b.add("Sigmoid", y), y), pooled)
    onnx.save(b.model({"x": (graphs.FLOAT, [1, 12, 8, 8])}, [x]), tmp_path / "model.onnx")
    rng = np.random.default_rng(1)
    data = support.save_samples(tmp_path / "data", [{"x": rng.normal(size=(1, 12, 8, 8)).astype(np.float32)} for _ in range(8)])

    def made(*options: object) -> dict:
        given = ["--preset", "balanced", "--optimize-for", "size", *options]
        return support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *given)

    integers, alone = made("--format", "int8"), made()
    assert alone["model_bytes_after"] < 0.6 * integers["model_bytes_after"]
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert any("weights alone have 8 bits" in note for note in alone["notes"])
    assert not any("computed in integers" in note for note in alone["notes"])


def test_a_product_in_float_shares_integers_without_making_floats_on_every_run(tmp_path: Path) -> None:
    b = graphs.Builder(2)
    shared = b.weight("shared", 64, 64)
    first = b.add("Relu", b.add("MatMul", "x", shared, name="first"))
    alone = b.add("Relu", b.add("MatMul", first, shared, name="in_float"))
    model = b.model({"x": (graphs.FLOAT, [1, 8, 64])}, [b.add("MatMul", alone, shared, name="last")])
    onnx.save(model, tmp_path / "model.onnx")
    rng = np.random.default_rng(1)
    data = support.save_samples(tmp_path / "data", [{"x": rng.normal(size=(1, 8, 64)).astype(np.float32)} for _ in range(8)])
    given = ["--preset", "balanced", "--exclude-nodes", "in_float"]
    result = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *given)
    nodes = onnx.load(tmp_path / "q.onnx").graph.node
    makers = {value: node for node in nodes for value in node.output}
    read = {node.name: makers[node.input[1]] for node in nodes if node.op_type == "MatMul"}
    assert [read[name].op_type for name in ("first", "in_float", "last")] == ["DequantizeLinear", "Mul", "DequantizeLinear"]
    integers = makers[read["in_float"].input[0]].input[0]
    assert integers == read["first"].input[0], "one copy in the file"
    assert result["accuracy"]["sqnr_db"] > 30
