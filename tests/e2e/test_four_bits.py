"""Weights of 4 bits: stored as ONNX Runtime's quantizer stores them, read by the runtime without a word, and tuned."""

import json
from collections.abc import Iterator

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import parity
import pytest
import support
from onnx import TensorProto
from support import Config, Path, Sample

TYPES = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4}
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
LEVELS = [ort.GraphOptimizationLevel.ORT_ENABLE_ALL, ort.GraphOptimizationLevel.ORT_DISABLE_ALL]


def every_kind(opset: int) -> onnx.ModelProto:
    """One of each operator with weights, all of odd sizes."""
    b = graphs.Builder(4)
    x = b.add("Conv", "x", b.weight("conv.w", 5, 3, 3, 3), b.weight("conv.b", 5), name="conv")
    x = b.add("Conv", b.add("Relu", x), b.weight("depthwise.w", 5, 1, 3, 3), name="depthwise", group=5)
    x = b.add("ConvTranspose", x, b.weight("up.w", 5, 3, 1, 3), b.weight("up.b", 3), name="up")
    x = b.add("MatMul", b.add("Flatten", x), b.weight("product.w", 45, 7), name="product")
    x = b.add("Gemm", x, b.weight("gemm.w", 5, 7), b.weight("gemm.b", 5), name="gemm", transB=1)
    x = b.add("Gemm", x, b.weight("plain.w", 5, 3), name="plain")
    table = b.add("Gather", b.weight("table", 11, 3), "ids", name="gather")
    return b.model({"x": (FLOAT, [1, 3, 7, 7]), "ids": (INT64, [1])}, [b.add("Add", x, table)], opset=opset)


def samples(count: int = 6) -> list[Sample]:
    rng = np.random.default_rng(5)
    return [{"x": rng.normal(size=(1, 3, 7, 7)).astype(np.float32), "ids": rng.integers(0, 11, 1)} for _ in range(count)]


def loaded(path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[ort.InferenceSession]:
    """With default settings and without optimisation; the runtime has nothing to say of either."""
    for level in LEVELS:
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        yield ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        written = capfd.readouterr()
        assert (written.out, written.err) == ("", "")


def four_bit_tensors(path: Path) -> dict[str, onnx.TensorProto]:
    return {t.name: t for t in onnx.load(path).graph.initializer if t.data_type in TYPES.values()}


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("weight", TYPES)
def test_same_bytes_as_onnx_runtime(
    weight: str, per_channel: bool, opset: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = Config("uint8", weight, per_channel)
    model, ours, theirs, prepared = (tmp_path / f"{name}.onnx" for name in ("model", "ours", "theirs", "prepared"))
    onnx.save(every_kind(opset), model)
    data = support.save_samples(tmp_path / "data", samples())
    report = support.quantize(model, ours, data, *config.options(), "--set", f"prepared-output={prepared}")
    onnx.checker.check_model(ours, full_check=True)
    ranges = {name: (p["min"], p["max"]) for name, p in report["activations"].items()}
    with parity.given_ranges(ranges, {}):
        support.peer_quantize(prepared, theirs, samples(), config)
    capfd.readouterr()

    found, expected = four_bit_tensors(ours), four_bit_tensors(theirs)
    assert set(found) == set(expected)
    weights = {name for name in found if name.endswith("_quantized")}
    assert weights == {f"{n}_quantized" for n in ("conv.w", "depthwise.w", "up.w", "product.w", "gemm.w", "plain.w")}
    for name in weights:
        assert found[name].raw_data == expected[name].raw_data, name
        assert (found[name].data_type, found[name].dims) == (TYPES[weight], expected[name].dims)
    a, b = parity.Graph(ours), parity.Graph(theirs)
    parity.remove_kept_clips(a, b, report["activations"], config)
    assert a.form() == b.form()
    parity.assert_same_tensors(a, b, but=set())

    reference = support.outputs(support.load(model), samples())
    results = [support.outputs(session, samples()) for session in loaded(ours, capfd)]
    assert min(support.sqnr(reference, r) for r in results) > 8
    assert support.sqnr(*results) > 25, "both run the same integers"


def test_the_kind_of_file(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(every_kind(17), model)
    data = support.save_samples(tmp_path / "data", samples())
    support.quantize(model, tmp_path / "out.onnx", data, "--weight-type", "int4")
    written = onnx.load(tmp_path / "out.onnx")
    assert written.ir_version >= 10
    assert {n.domain for n in written.graph.node if n.op_type.endswith("quantizeLinear")} <= {"com.microsoft"}
    support.quantize(model, tmp_path / "apart.onnx", data, "--weight-type", "int4", "--set", "external-data-threshold=16")
    reference = support.outputs(support.check_model(tmp_path / "out.onnx"), samples())
    apart = support.outputs(support.check_model(tmp_path / "apart.onnx"), samples())
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(reference, apart, strict=True))


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        (["--activation-type", "int4"], "--activation-type: 4-bit types are for weights only"),
        (["--activation-type", "uint4"], "--activation-type: 4-bit types are for weights only"),
        (["--weight-type", "uint4", "--set", "weight-range=reduced"], "--set weight-range=reduced does not go with 4-bit weights"),
    ],
)
@pytest.mark.parametrize("command", ["quantize", "plan"])
def test_what_is_refused(command: str, options: list[str], culprit: str, tmp_path: Path) -> None:
    onnx.save(every_kind(17), tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", samples(1))
    output = ["-o", tmp_path / "out.onnx"] if command == "quantize" else []
    result = support.detent(command, tmp_path / "model.onnx", *output, "--calibration-data", data, *options)
    assert result.returncode == 2
    assert culprit in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    task = support.prepare_task("ppocr_cls", tmp_path_factory.mktemp("four_bits") / "task")
    return task / "model.onnx", task / "calibration"


def test_a_real_model_takes_half_the_bytes(classifier: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = classifier
    stored, expected = {}, {}
    for weight in ("int8", "int4"):
        path = tmp_path / f"{weight}.onnx"
        support.quantize(model, path, data, "--weight-type", weight, "--samples", "2")
        tensors = onnx.load(path).graph.initializer
        stored[weight] = sum(len(t.raw_data) for t in tensors if t.name.endswith("_quantized") and t.data_type != TensorProto.INT32)
        planned = support.detent("plan", model, "--json", "--weight-type", weight)
        assert planned.returncode == 0, planned.stderr
        expected[weight] = json.loads(planned.stdout)["output_bytes"]
    assert expected["int8"] - expected["int4"] == pytest.approx(stored["int8"] - stored["int4"], rel=0.02)
    assert 0.5 <= stored["int4"] / stored["int8"] < 0.6, "a few constants are no weights"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rounding", "weight"), [("gptq", "int4"), ("gptq", "uint4"), ("adaround", "int4")])
def test_tuning_wins_back_what_rounding_costs(rounding: str, weight: str, classifier: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = classifier
    options = ["--weight-type", weight]
    support.quantize(model, tmp_path / "nearest.onnx", data, *options)
    options += ["--finetune", rounding, "--json"]
    result = support.detent("quantize", model, "-o", tmp_path / "tuned.onnx", "--calibration-data", data, *options)
    assert result.returncode == 0, result.stderr  # which may hold lines of progress
    report = json.loads(result.stdout)
    assert support.gain(report["layers"]) < 0.8
    nearest, tuned = (four_bit_tensors(tmp_path / f"{name}.onnx") for name in ("nearest", "tuned"))
    assert {n: (t.data_type, t.dims, len(t.raw_data)) for n, t in nearest.items()} == {
        n: (t.data_type, t.dims, len(t.raw_data)) for n, t in tuned.items()
    }
    images = support.load_samples(data)
    reference = support.outputs(support.load(model), images)
    before, after = (
        support.sqnr(reference, support.outputs(support.check_model(tmp_path / f"{name}.onnx"), images))
        for name in ("nearest", "tuned")
    )
    assert after > before + 3, f"{before:.1f} dB and {after:.1f} dB"
