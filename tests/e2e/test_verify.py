"""`detent verify`: a quantized model beside exact integers, in the runtime that is there, and on a CPU whose products saturate."""

import json
import os
from collections.abc import Sequence

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from graphs import FLOAT, Builder
from onnx import helper, numpy_helper
from support import MODELS, Path, detent, quantize, save_samples
from test_integers import PRODUCTS, large_weights

QUICK = ["--no-bench", "--json"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("large")
    onnx.save(large_weights(), folder / "model.onnx")
    rng = np.random.default_rng(72)
    samples = [{"x": rng.uniform(0.5, 1, (2, 15, 17, 16)).astype(np.float32)} for _ in range(4)]
    return folder / "model.onnx", save_samples(folder / "data", samples)


def verified(model: Path, quantized: Path, data: Path, *options: object, env: dict[str, str] | None = None) -> dict:
    result = detent("verify", model, quantized, "--calibration-data", data, *QUICK, *options, env=env or dict(os.environ))
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


@pytest.mark.full
def test_products_that_saturate_are_named(large: tuple[Path, Path], tmp_path: Path, old_cpu: dict[str, str]) -> None:
    """With the counts of an interpreter in numpy, and each product alone: it reads what the reference makes of its input."""
    model, data = large
    quantize(model, tmp_path / "full.onnx", data, "--set", "weight-range=full")
    result = verified(model, tmp_path / "full.onnx", data, env=old_cpu)
    found = {layer["made_by"].split("'")[1]: layer for layer in result["layers"] if layer["quantized"]}
    for name in set(PRODUCTS) - {"depthwise"}:
        assert found[name]["max_steps"] > 1 and found[name]["share_over_one"] > 0.1, found[name]
        assert "saturate in 16 bits" in found[name]["reason"] and "--set weight-range=pairs" in found[name]["reason"]
    failed = detent("verify", model, tmp_path / "full.onnx", "--calibration-data", data, "--max-steps", 1, env=old_cpu)
    assert failed.returncode == 3 and "more than --max-steps 1" in failed.stderr and "max steps" in failed.stdout
    quantize(model, tmp_path / "pairs.onnx", data, "--set", "weight-range=pairs")
    assert verified(model, tmp_path / "pairs.onnx", data, "--max-steps", 1, env=old_cpu)["max_steps"] <= 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [["--preset", "plain"], ["--preset", "balanced", "--optimize-for", "size", "--format", "int8"]])
def test_a_trained_model(tmp_path: Path, options: Sequence[str]) -> None:
    rng = np.random.default_rng(73)
    data = save_samples(tmp_path / "data", [{"x": rng.uniform(-1, 1, (1, 3, 48, 96)).astype(np.float32)} for _ in range(3)])
    model = MODELS / "ppocr_cls.onnx"
    quantize(model, tmp_path / "q.onnx", data, *options)
    result = verified(model, tmp_path / "q.onnx", data)
    layers = [layer for layer in result["layers"] if layer["quantized"]]
    assert len(layers) > 60 and result["samples"] == 3 and result["consumer"].endswith("CPUExecutionProvider")
    products = [layer for layer in layers if layer["made_by"].startswith("Conv ") and layer["exact"]]
    assert len(products) > 40
    assert all(layer["max_steps"] <= 1 and layer["share"] < 0.01 for layer in products), products
    order = [(layer["max_steps"], layer["share_over_one"], layer["share"]) for layer in result["layers"]]
    assert order == sorted(order, reverse=True)
    (output,) = result["outputs"]
    (compared,) = json.loads(
        detent("compare", model, tmp_path / "q.onnx", "--calibration-data", data, "--outputs-only", "--json").stdout
    )["outputs"]
    assert output["deployed"]["sqnr_db"] == pytest.approx(compared["sqnr_db"], abs=0.01)
    assert output["deployed"]["cosine"] == pytest.approx(compared["cosine"], abs=1e-6)
    assert abs(output["reference"]["sqnr_db"] - output["deployed"]["sqnr_db"]) < 2


def test_each_kind_of_operator_has_a_reference(tmp_path: Path) -> None:
    """The runtime's float operators beside those of the reference: what differs by more than a step has the wrong one."""
    models = {
        "menagerie": (graphs.menagerie(), graphs.menagerie_samples()),
        "transformer": (graphs.transformer(), graphs.transformer_samples()),
        "curves": (curves(), [{"x": np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32)} for i in range(3)]),
    }
    for name, (model, samples) in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
        data = save_samples(tmp_path / name, samples)
        for options in [["--preset", "plain"], ["--activation-type", "int8", "--per-tensor"], ["--target", "tflite-like"]]:
            shaped = [f"--shape={key}:{'x'.join(map(str, value.shape))}" for key, value in samples[0].items()]
            fixed = shaped if "--target" in options else []
            if fixed and name != "curves":
                continue
            quantize(tmp_path / f"{name}.onnx", tmp_path / "q.onnx", data, *options, *fixed)
            result = verified(tmp_path / f"{name}.onnx", tmp_path / "q.onnx", data)
            assert result["max_steps"] <= 1, [layer for layer in result["layers"] if layer["max_steps"] > 1]


def curves() -> onnx.ModelProto:
    b = Builder()
    y = b.add("Conv", "x", b.weight("w", 4, 3, 1, 1))
    one = b.add("LeakyRelu", b.add("HardSigmoid", y, alpha=0.3, beta=0.4), alpha=0.1)
    ends = [b.add(op, y) for op in ("Sigmoid", "Tanh", "Relu", "Exp", "Abs", "Neg")]
    ends += [b.add("LeakyRelu", y, alpha=0.2), one, b.add("Elu", y), b.add("Softmax", y, axis=1)]
    return b.model({"x": (FLOAT, ["N", 3, 8, 8])}, [b.add("Concat", *ends, axis=1)])


def test_what_is_refused(large: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = large
    quantize(model, tmp_path / "q.onnx", data)
    given = ["verify", model, tmp_path / "q.onnx", "--calibration-data", data]
    refused = detent(*given, "--provider", "OpenVINOExecutionProvider")
    assert refused.returncode == 5 and "has no OpenVINOExecutionProvider" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1 and "CPUExecutionProvider" in refused.stderr
    refused = detent(*given, "--target", "qnn")
    assert refused.returncode == 5 and "nothing here runs models as qnn does" in refused.stderr
    refused = detent(*given, "--target", "openvino")
    assert refused.returncode == 5 and "detent.verify() in Python" in refused.stderr
    assert detent(*given, "--target", "nowhere").returncode == 2
    assert detent(*given, "--max-steps", "-1").returncode == 2
    onnx.save(graphs.small_cnn(), tmp_path / "other.onnx")
    other = detent("verify", tmp_path / "other.onnx", tmp_path / "q.onnx", "--calibration-data", data)
    assert other.returncode == 3 and "differ in the names" in other.stderr


@pytest.mark.parametrize("name", ["int8", "a16w8"])
def test_constants_that_are_sparse(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weight, x = rng.normal(0, 0.2, (2, 32, 32)).astype(np.float32), rng.normal(0, 1, (4, 8, 32)).astype(np.float32)
    b = Builder()
    read = b.add("Relu", b.add("MatMul", "x", b.constant("dense", weight[0])))
    model = b.model({"x": (FLOAT, [8, 32])}, [b.add("MatMul", read, b.constant("sparse", weight[1]))])
    model.graph.initializer.remove(model.graph.initializer[1])
    where = np.flatnonzero(weight[1] > 0.2)
    parts = [numpy_helper.from_array(weight[1].ravel()[where], "sparse"), numpy_helper.from_array(where, "sparse_at")]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(*parts, [32, 32]))
    onnx.save(model, tmp_path / "m.onnx")
    data = save_samples(tmp_path / "data", [{"x": sample} for sample in x])
    quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, "--format", name)
    (output,) = verified(tmp_path / "m.onnx", tmp_path / "q.onnx", data)["outputs"]
    assert output["deployed"]["sqnr_db"] > 25, output


def test_the_text(large: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = large
    quantize(model, tmp_path / "q.onnx", data)
    told = detent("verify", model, tmp_path / "q.onnx", "--calibration-data", data, "--target", "auto", "--max-steps", 1)
    assert told.returncode == 0, told.stderr
    assert "note: --target auto: ort-cpu" in told.notes
    assert "layers agree in ONNX Runtime" in told.stdout and "latency " in told.stdout


def test_the_operators_that_the_reference_computes_in_float64() -> None:
    """The runtime has a kernel for each: else the reference would not load."""
    text = (Path(__file__).parents[2] / "src/graph/traits.cpp").read_text()
    names = [row.split('"', 1)[0] for row in text.split('\n    {{"')[1:] if "in_double" in row]
    missing = [name for name in names if not loads_in_double(name)]
    assert not missing and len(names) > 50


def loads_in_double(op_type: str) -> bool:
    schema = onnx.defs.get_schema(op_type, 17)
    double, integer = onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64
    attributes = {"Split": {"axis": 0}, "SpaceToDepth": {"blocksize": 1}, "DepthToSpace": {"blocksize": 1}}
    attributes |= {"MaxPool": {"kernel_shape": [1, 1]}, "Concat": {"axis": 0}}
    inputs = []
    for i, given in enumerate(schema.inputs):
        if given.option == onnx.defs.OpSchema.FormalParameterOption.Optional and op_type not in ("Clip", "Pad"):
            break
        kinds = schema.type_constraints
        allowed = next((k.allowed_type_strs for k in kinds if k.type_param_str == given.type_str), [given.type_str])
        kind = double if "tensor(double)" in allowed else integer if "tensor(int64)" in allowed else onnx.TensorProto.BOOL
        inputs.append(onnx.helper.make_tensor_value_info(f"i{i}", kind, None))
    node = onnx.helper.make_node(op_type, [i.name for i in inputs], ["y"], **attributes.get(op_type, {}))
    graph = onnx.helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    try:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001
        return "NOT_IMPLEMENTED" not in str(error) and "NotImplemented" not in type(error).__name__
    return True
