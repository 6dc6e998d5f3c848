"""Weights alone in blocks: the bytes of ONNX Runtime's own rounding, what the formats say, and every way to be refused."""

import os
import signal

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, USAGE, Place, check
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state as ort_native
from support import Path

RNG = np.random.default_rng(5)
MIX = RNG.standard_normal((12, 128))
REPLACED = {"MatMul", "Gemm", "Gather"}


def products(path: Path, rows: int = 64, columns: int = 24, opset: int = 17, weight: np.ndarray | None = None) -> Path:
    """A product of two matrices, two of a Gemm's forms, and a table that is looked up."""
    weight = RNG.standard_normal((rows, columns)).astype(np.float32) if weight is None else weight
    other = RNG.standard_normal((rows, columns)).astype(np.float32)
    tensors = {
        "w": weight,
        "t": np.ascontiguousarray(other.T),
        "g": other + 3,
        "bias": RNG.standard_normal(columns).astype(np.float32),
        "row": RNG.standard_normal((1, columns)).astype(np.float32),
        "table": RNG.standard_normal((40, rows)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "gather"),
        helper.make_node("MatMul", ["x", "w"], ["a"], "matmul"),
        helper.make_node("Gemm", ["x", "t", "bias"], ["b"], "transposed", transB=1),
        helper.make_node("Gemm", ["x", "g", "row"], ["c"], "straight"),
        helper.make_node("MatMul", ["x", "w"], ["d"], "again"),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", columns]) for n in "abcd"]
    initializers = [numpy_helper.from_array(np.float32(v), k) for k, v in tensors.items()]
    graph = helper.make_graph(nodes, "g", [ids], outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def initializers(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def unpacked(array: np.ndarray, bits: int) -> np.ndarray:
    """Integers packed along the last axis, the first in the lowest bits."""
    parts = [array >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*array.shape[:-1], -1)


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("rows", "block"), [(64, 32), (72, 16), (96, 128)])
def test_nearest_has_the_bytes_of_onnxruntime(tmp_path: Path, rows: int, block: int, bits: int, symmetric: bool) -> None:
    model = products(tmp_path / "m.onnx", rows)
    weight = initializers(model)["w"]
    form = ["--bits", bits, "--block-size", block, "--set", "weight-symmetric" if symmetric else "weight-asymmetric"]
    support.weights_only(model, tmp_path / "q.onnx", "--set", "weights-method=nearest", "--op-types", "MatMul", *form)
    found = initializers(tmp_path / "q.onnx")

    columns, blocks = weight.shape[1], -(-rows // block)
    integers = np.zeros((columns, blocks, block * bits // 8), np.uint8)
    scales = np.zeros(columns * blocks, np.float32)
    zero_points = np.zeros(columns * (-(-blocks * bits // 8)), np.uint8)
    rounds = getattr(ort_native, f"quantize_matmul_{bits}bits")
    rounds(integers, weight, scales, zero_points, block, columns, rows, symmetric)
    np.testing.assert_array_equal(found[f"w_Q{bits}"], integers)
    np.testing.assert_array_equal(found["w_scales"].ravel(), scales)
    assert ("w_zero_points" in found) == (not symmetric)
    if not symmetric:
        np.testing.assert_array_equal(found["w_zero_points"].ravel(), zero_points)


def dequantized(path: Path, node: onnx.NodeProto, rows: int) -> np.ndarray:
    """The weight [rows, columns] that a MatMulNBits stands for, as its definition says."""
    tensors = initializers(path)
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    bits, block = values["bits"], values["block_size"]
    integers = unpacked(tensors[node.input[1]], bits).astype(np.float64)
    scales = tensors[node.input[2]].astype(np.float64)
    zero = np.full(scales.shape, 1 << bits - 1)
    if len(node.input) > 3 and node.input[3]:
        zero = unpacked(tensors[node.input[3]], bits)[:, : scales.shape[1]]
    weight = (integers - zero[..., None]) * scales[..., None]
    assert integers.shape[-1] == block
    return weight.reshape(len(weight), -1)[:, :rows].T


def load_exact(path: Path) -> support.ort.InferenceSession:
    """Without rounding of activations."""
    options = support.ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return support.ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize(("bits", "block", "least"), [(4, 32, 20), (8, 16, 44), (4, 64, 18), (8, "channel", 38)])
def test_results_are_those_of_the_weights(
    tmp_path: Path, bits: int, block: object, least: float, symmetric: bool, form: str
) -> None:
    if block == "channel" and form == "matmul-nbits":
        pytest.skip("it has blocks only")
    model = products(tmp_path / "m.onnx", 128)
    options = ["--bits", bits, "--block-size", block, "--weights-form", form, "--set", "accuracy-level=1"]
    options += ["--set", "weight-symmetric" if symmetric else "weight-asymmetric"]
    result = support.weights_only(model, tmp_path / "q.onnx", *options)
    session = load_exact(tmp_path / "q.onnx")
    quantized = onnx.load(tmp_path / "q.onnx")
    sample = {"ids": np.arange(7)}
    in_float = support.load(model).run(None, sample)
    found = session.run(None, sample)
    for i, (a, b) in enumerate(zip(in_float, found, strict=True)):
        assert support.sqnr([[a]], [[b]]) > least - (4 if form == "matmul-nbits" else 0), i  # with the error of the table
    np.testing.assert_array_equal(found[0], found[3])  # they share a weight
    assert [w["sqnr_db"] > least for w in result["weights"]]
    types = [node.op_type for node in quantized.graph.node]
    if form == "qdq":
        # One for each product, which is what the runtime fuses; the table stays as it is.
        assert types.count("DequantizeLinear") == 4 and types[0] == "Gather"
        assert quantized.opset_import[0].version == 21
        support.check_model(tmp_path / "q.onnx")
    else:
        assert types == ["GatherBlockQuantized", "MatMulNBits", "MatMulNBits", "MatMulNBits", "MatMulNBits"]
        tensors = initializers(model)
        for node in quantized.graph.node:
            if node.op_type == "MatMulNBits":
                weight = {"a": tensors["w"], "b": tensors["t"].T, "d": tensors["w"]}.get(node.output[0], tensors["g"])
                stored = dequantized(tmp_path / "q.onnx", node, 128)
                assert support.sqnr([[weight]], [[stored]]) > least


def test_runtime_fuses_every_dequantizer(tmp_path: Path) -> None:
    support.weights_only(products(tmp_path / "m.onnx"), tmp_path / "q.onnx", "--weights-form", "qdq")
    options = support.ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    support.ort.InferenceSession(tmp_path / "q.onnx", options, providers=["CPUExecutionProvider"])
    types = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert types.count("MatMulNBits") == 4
    assert not {"DequantizeLinear", "MatMul", "Gemm"} & set(types)


def test_blocks_that_exclude_zero(tmp_path: Path) -> None:
    """Other quantizers' asymmetric blocks take the range from the smallest to the largest value and clip the zero point."""
    weight = (3 + RNG.random((64, 24))).astype(np.float32)
    model = products(tmp_path / "m.onnx", weight=weight)
    result = support.weights_only(model, tmp_path / "q.onnx", "--op-types", "MatMul")
    assert result["weights"][0]["sqnr_db"] > 30


def test_search_is_better_than_nearest(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx", 512, 48)
    for bits in (2, 4, 8):
        found = {
            method: support.weights_only(model, tmp_path / "q.onnx", "--bits", bits, "--set", f"weights-method={method}")[
                "weights"
            ][0]
            for method in ("nearest", "search")
        }
        assert found["search"]["sqnr_db"] > found["nearest"]["sqnr_db"] + 0.2, bits


def test_same_bytes_whatever_threads_and_files(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx", 200, 300)
    support.weights_only(model, tmp_path / "one.onnx", "--threads", 1)
    support.weights_only(model, tmp_path / "three.onnx", "--threads", 3)
    assert support.sha256(tmp_path / "one.onnx") == support.sha256(tmp_path / "three.onnx")
    support.weights_only(model, tmp_path / "beside.onnx", "--set", "external-data-threshold=1KiB")
    assert (tmp_path / "beside.onnx").stat().st_size < 4096
    beside, inside = initializers(tmp_path / "beside.onnx"), initializers(tmp_path / "one.onnx")
    assert beside.keys() == inside.keys()
    for name, value in inside.items():
        np.testing.assert_array_equal(value, beside[name])


@pytest.mark.parametrize("bits", [4, 8])
def test_filters_and_recurrent_nets(tmp_path: Path, bits: int) -> None:
    """Where they are named."""
    shapes = {"filter": (8, 4, 3, 3), "W": (2, 64, 32), "R": (2, 64, 16), "G": (1, 48, 32), "S": (1, 48, 16)}
    tensors = [numpy_helper.from_array(0.2 * RNG.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    tensors.append(numpy_helper.from_array(np.array([8, 1, 32]), "shape"))
    nodes = [
        helper.make_node("Conv", ["image", "filter"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["c", "shape"], ["rows"], "rows"),
        helper.make_node("LSTM", ["rows", "W", "R"], ["", "h"], "lstm", hidden_size=16, direction="bidirectional"),
        helper.make_node("GRU", ["rows", "G", "S"], ["", "g"], "gru", hidden_size=16),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 4, 4, 8])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [d, 1, 16]) for n, d in (("h", 2), ("g", 1))]
    graph = helper.make_graph(nodes, "g", [image], ends, tensors)
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    options = ["--op-types", "Conv,LSTM,GRU", "--bits", bits, "--block-size", 16]
    result = support.weights_only(model, tmp_path / "q.onnx", *options)
    assert (result["nodes_quantized"], len(result["weights"])) == (3, 5)
    support.check_model(tmp_path / "q.onnx")
    sample = [{"image": RNG.standard_normal((1, 4, 4, 8)).astype(np.float32)}]
    in_float = support.outputs(support.load(model), sample)
    found = support.outputs(support.load(tmp_path / "q.onnx"), sample)
    assert all(support.sqnr(in_float, found, i) > (40 if bits == 8 else 16) for i in range(2))
    assert not set(shapes) & set(initializers(tmp_path / "q.onnx"))


def test_bits_of_nodes(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx")
    options = ["--set", "node-bits=^tra.*=8,straight=float,matmul=8,^gather$=8"]
    result = support.weights_only(model, tmp_path / "q.onnx", *options)
    assert {w["name"]: w["bits"] for w in result["weights"]} == {"table": 8, "w": 8, "t": 8}
    assert (result["nodes_quantized"], result["nodes_in_float"]) == (4, 1)
    assert any("'straight'" in note and "--set node-bits" in note for note in result["notes"])
    session = support.load(tmp_path / "q.onnx")
    assert len(session.run(None, {"ids": np.arange(3)})) == 4


def test_transformer_as_deployed(tmp_path: Path) -> None:
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    samples = graphs.transformer_samples()
    in_float = support.outputs(support.load(tmp_path / "m.onnx"), samples)
    support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", "--bits", 8)
    assert support.sqnr(in_float, support.outputs(support.load(tmp_path / "q.onnx"), samples)) > 30


def correlated(folder: Path, count: int = 24) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """Samples for twice_a_product() whose values depend on one another, as those in trained models do."""
    samples = []
    for _ in range(count):
        x = RNG.standard_normal((1, 20, 12)) @ MIX + 0.1 * RNG.standard_normal((1, 20, 128))
        samples.append({"x": (x * np.where(np.arange(128) % 37 == 0, 8, 1)).astype(np.float32)})
    return support.save_samples(folder, samples), samples


def twice_a_product(path: Path) -> Path:
    first, second = (RNG.standard_normal((128, 128)).astype(np.float32) for _ in range(2))
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "second"], ["y"], "second"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "t", 128]) for n in "xy")
    tensors = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_samples_remove_most_of_the_loss(tmp_path: Path) -> None:
    model = twice_a_product(tmp_path / "m.onnx")
    data, samples = correlated(tmp_path / "data")
    _, unseen = correlated(tmp_path / "unseen")
    in_float = support.outputs(support.load(model), unseen)
    db = {}
    for method, options in {
        "nearest": [],
        "search": ["--calibration-data", data],
        "gptq": ["--calibration-data", data],
        "auto": ["--calibration-data", data],
    }.items():
        chosen = ["--set", f"weights-method={method}", "--set", "accuracy-level=1", "--block-size", 128]
        result = support.weights_only(model, tmp_path / f"{method}.onnx", *chosen, *options)
        db[method] = support.sqnr(in_float, support.outputs(support.load(tmp_path / f"{method}.onnx"), unseen))
        assert result["samples"] == (len(samples) if options else 0)
    assert db["search"] > db["nearest"] + 1
    assert db["gptq"] > db["search"] + 3
    assert db["auto"] > db["gptq"] - 0.5
    assert {w["method"] for w in result["weights"]} == {"gptq"}
    assert all(0 < w["output_error"] < 0.01 for w in result["weights"])
    # What is printed is what the runtime gives.
    seen = [support.outputs(support.load(path), samples) for path in (model, tmp_path / "auto.onnx")]
    assert result["accuracy"]["samples"] == 8
    assert abs(result["accuracy"]["sqnr_db"] - support.sqnr(*seen)) < 1.5


def test_samples_same_bytes(tmp_path: Path) -> None:
    """Whatever the threads, the order and the files of the samples, the budget, and an interruption."""
    model = twice_a_product(tmp_path / "m.onnx")
    data, samples = correlated(tmp_path / "data")
    reference = tmp_path / "q.onnx"
    support.weights_only(model, reference, "--calibration-data", data)

    def same(name: str, *options: object, samples: Path = data) -> None:
        support.weights_only(model, tmp_path / name, "--calibration-data", samples, *options)
        assert support.sha256(tmp_path / name) == support.sha256(reference), name

    same("one thread.onnx", "--threads", 1)
    same("shuffled.onnx", samples=support.save_samples(tmp_path / "shuffled", samples[::-1]))
    same("on disk.onnx", "--memory-budget", "156MiB", "--set", "memory-level=2")
    for point in ("weights.sample=kill@5", "weights.solved=kill@1", "weights.stage=kill@1"):
        folder = tmp_path / point
        folder.mkdir()
        found = support.resumed_after_kill(point, model, data, folder, "--weights-only")
        assert support.sha256(found) == support.sha256(reference), point
    reference = tmp_path / "half.onnx"
    support.weights_only(model, reference, "--calibration-data", data, "--float", 16)
    (tmp_path / "half").mkdir()
    found = support.resumed_after_kill("weights.solved=kill@1", model, data, tmp_path / "half", "--weights-only", "--float", 16)
    assert support.sha256(found) == support.sha256(reference)


def test_solutions_of_other_products_or_samples_are_not_resumed(tmp_path: Path) -> None:
    model = twice_a_product(tmp_path / "m.onnx")
    data, _ = correlated(tmp_path / "data", 4)
    work = tmp_path / "work"
    work.mkdir()
    command = ["quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, "--weights-only", "--work-dir", work]
    environment = {**os.environ, "DETENT_FAILPOINT": "weights.solved=kill@1"}
    assert support.detent(*command, "--resume", env=environment).returncode == -signal.SIGKILL
    for options in (["--exclude-nodes", "nothing"], ["--samples", 2]):
        refused = support.detent(*command, "--resume", *options)
        assert refused.returncode == USAGE and f"its {options[0]} was" in refused.stderr, refused.stderr


def test_columns_at_a_time_change_no_byte(tmp_path: Path) -> None:
    rows, columns = 512, 8192
    weight = RNG.standard_normal((rows, columns)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", w]) for n, w in (("x", rows), ("y", columns)))
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    samples = [{"x": RNG.standard_normal((64, rows)).astype(np.float32)} for _ in range(3)]
    options = ["--set", "weights-method=gptq", "--no-bench", "--calibration-data", support.save_samples(tmp_path / "d", samples)]
    support.weights_only(tmp_path / "m.onnx", tmp_path / "a.onnx", *options, "--threads", 1)
    tight = ["--threads", 128, "--memory-budget", "140MiB"]
    support.weights_only(tmp_path / "m.onnx", tmp_path / "b.onnx", *options, *tight)
    assert support.sha256(tmp_path / "a.onnx") == support.sha256(tmp_path / "b.onnx")


def test_budget_too_small_for_sums(tmp_path: Path) -> None:
    place = Place(tmp_path)
    model = twice_a_product(place.inputs / "m.onnx")
    data, _ = correlated(place.inputs / "data", 2)
    options = ["--calibration-data", data, "--memory-budget", "64MiB"]
    place.refuses(4, "raise --memory-budget", "quantize", model, "-o", place.output, "--weights-only", *options)


REFUSED = {
    "channels": (["--block-size", "channel"], USAGE, "--block-size 256, or --set weights-form=qdq"),
    "gptq": (["--set", "weights-method=gptq"], USAGE, "needs samples"),
    "bits": (["--bits", 3], USAGE, "2, 4, 8"),
    "block": (["--block-size", 24], USAGE, "16, 32"),
    "node": (["--set", "node-bits=nothing=8"], USAGE, "no node of .* matches 'nothing'"),
    "node bits": (["--set", "node-bits=matmul=5"], USAGE, "=2, =4, =8 or =float"),
    "type": (["--op-types", "Add"], USAGE, "--op-types"),
    "nothing": (["--exclude-op-types", "MatMul,Gemm,Gather"], BAD_INPUT, "no weights that can be stored in blocks"),
    "finetune": (["--finetune", "gptq"], USAGE, "--finetune means nothing with --weights-only"),
    "prepared": (["--set", "prepared-output=p.onnx"], USAGE, "--set prepared-output means nothing"),
    "report": (["--report", "r.html", "--float", "16"], USAGE, "makes its result in two runs"),
    "percentile": (["--set", "percentile=99.9"], USAGE, "--set percentile means nothing"),
    "per channel": (["--per-tensor"], USAGE, "--per-tensor means nothing"),
    "preset": (["--preset", "plain"], USAGE, "--preset means nothing"),
    "workers": (["--workers", 1], USAGE, "--workers means nothing"),
    "level": (["--set", "accuracy-level=5"], USAGE, "between 0 and 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    options, code, says = REFUSED[case]
    place = Place(tmp_path)
    model = products(place.inputs / "m.onnx")
    place.refuses(code, says, "quantize", model, "-o", place.output, "--weights-only", *options)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    place = Place(tmp_path)
    weight = np.ones((64, 24), np.float32)
    weight[50, 20] = value
    model = products(place.inputs / "m.onnx", weight=weight)
    place.refuses(BAD_INPUT, "weight 'w' holds NaN or infinite", "quantize", model, "-o", place.output, "--weights-only")


@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
def test_odd_weights(tmp_path: Path, form: str) -> None:
    """Constant blocks, blocks of zeros, the smallest and the largest numbers."""
    weight = np.zeros((64, 24), np.float32)
    weight[:32, 1] = 0.7
    weight[:, 2] = 3e30
    weight[:, 3] = -1e-44
    weight[:32, 4] = np.linspace(-3e38, 3e38, 32)
    model = products(tmp_path / "m.onnx", weight=weight)
    support.weights_only(model, tmp_path / "q.onnx", "--weights-form", form, "--set", "accuracy-level=1", "--op-types", "MatMul")
    results = support.load(tmp_path / "q.onnx").run(None, {"ids": np.arange(4)})
    expected = support.load(model).run(None, {"ids": np.arange(4)})
    np.testing.assert_allclose(results[0][:, :2], expected[0][:, :2], rtol=0.02, atol=0.02)
    assert not np.isnan(results[0][:, :4]).any()


def test_without_the_runtime(tmp_path: Path) -> None:
    """Nothing is run, so nothing is needed to run it."""
    environment = {**os.environ, "DETENT_ONNXRUNTIME": str(tmp_path / "none.so")}
    support.weights_only(products(tmp_path / "m.onnx"), tmp_path / "q.onnx", env=environment)


def test_old_opset_is_raised(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx", opset=12)
    result = support.weights_only(model, tmp_path / "q.onnx", "--weights-form", "qdq")
    assert any("opset 12 was raised to 21" in note for note in result["notes"])
    support.check_model(tmp_path / "q.onnx")


def test_words(tmp_path: Path) -> None:
    done = support.detent("quantize", products(tmp_path / "m.onnx"), "-o", tmp_path / "q.onnx", "--weights-only")
    assert done.returncode == 0 and "no samples" in done.stdout
    assert "worst SQNR of their values" in done.stdout
    failed = support.detent("quantize", tmp_path / "none.onnx", "-o", tmp_path / "q.onnx", "--weights-only")
    check(BAD_INPUT, "none.onnx", failed.returncode, failed.stderr)


@pytest.mark.parametrize("options", [[], ["--float", 16], ["--family", "q4,q4f16"]], ids=str)
def test_shapes_are_fixed(tmp_path: Path, options: list[object]) -> None:
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    way = ["--weights-only"] if "--family" not in options else []
    words = ("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q", *way, *options, "--block-size", 16, "--shape", "ids:2x6")
    done = support.detent(*words)
    assert done.returncode == 0, done.stderr
    models = [tmp_path / "q"] if way else list((tmp_path / "q").rglob("*.onnx"))
    for model in models:
        dims = next(i for i in onnx.load(model).graph.input if i.name == "ids").type.tensor_type.shape.dim
        assert [d.dim_value for d in dims] == [2, 6]
        support.check_model(model)
    refused = support.detent(*words[:3], tmp_path / "other", *words[4:-1], "nothing:2x6")
    assert refused.returncode == 2 and "has no input 'nothing'" in refused.stderr
