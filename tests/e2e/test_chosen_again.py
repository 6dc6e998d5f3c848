"""Where the runtime computes a layer otherwise than its integers say, which no simulation shows: the written file tells, the
layer is found and stays in float, and the better file is kept. A stand-in for ONNX Runtime reads one scale wrongly."""

import json
import os

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from support import Path

WIDTH, SCALE = 32, "wA_scale"


@pytest.fixture
def faulty() -> dict[str, str]:
    library = os.environ.get("FAULTY_RUNTIME", "")
    if not Path(library).is_file():
        pytest.skip("there is no stand-in for the runtime")
    real = os.environ.get("DETENT_ONNXRUNTIME", str(support.ROOT / "build" / "libonnxruntime.so"))
    return {**os.environ, "DETENT_ONNXRUNTIME": library, "REAL_ONNXRUNTIME": real, "FAULTY_TENSOR": SCALE, "FAULTY_TIMES": "-3"}


def layers(kind: str) -> onnx.ModelProto:
    """Several of one kind, of which the first has far smaller weights than the second."""
    b = graphs.Builder(3)
    x = "x"
    for name, scale in (("wA", 0.02), ("wB", 0.4), ("wC", 0.2), ("wD", 0.2), ("wE", 0.2), ("wF", 0.2)):
        if kind == "Conv":
            x = b.add("Conv", x, b.weight(name, WIDTH, WIDTH, 3, 3, scale=scale / 3), pads=[1] * 4, name=f"layer_{name}")
        else:
            x = b.add("MatMul", x, b.weight(name, WIDTH, WIDTH, scale=scale), name=f"layer_{name}")
        x = b.add("Relu", x) if name != "wF" else x
    return b.model({"x": (graphs.FLOAT, [1, WIDTH, 6, 6] if kind == "Conv" else [1, 8, WIDTH])}, [x])


def sqnr(model: Path, quantized: Path, data: Path) -> float:
    """By the runtime that is right."""
    samples = support.load_samples(data)
    return support.sqnr(support.outputs(support.load(model), samples), support.outputs(support.load(quantized), samples))


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
def test_a_layer_that_is_computed_otherwise_stays_in_float(kind: str, faulty: dict[str, str], tmp_path: Path) -> None:
    model = layers(kind)
    onnx.save(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(4)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    data = support.save_samples(tmp_path / "d", [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(8)])
    options = ["--calibration-data", data, "--json", "--preset", "balanced", "--optimize-for", "size"]
    done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *options, env=faulty)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    told = [note for note in said["notes"] if "differently from its integers" in note]
    assert len(told) == 1, said["notes"]
    assert "layer_wA" in told[0] and "so that stays in float" in told[0]
    assert said["accuracy"]["sqnr_db"] > 20
    assert said["accuracy"]["sqnr_db"] == pytest.approx(sqnr(tmp_path / "m.onnx", tmp_path / "q.onnx", data), abs=0.1)
    written = onnx.load(tmp_path / "q.onnx")
    assert SCALE not in {t.name for t in written.graph.initializer}
    support.check_model(tmp_path / "q.onnx")


def test_where_nothing_may_stay_in_float_it_is_said(faulty: dict[str, str], tmp_path: Path) -> None:
    onnx.save(layers("MatMul"), tmp_path / "m.onnx")
    rng = np.random.default_rng(4)
    data = support.save_samples(tmp_path / "d", [{"x": rng.normal(size=(1, 8, WIDTH)).astype(np.float32)} for _ in range(8)])
    options = [
        "--calibration-data",
        data,
        "--json",
        "--preset",
        "balanced",
        "--optimize-for",
        "size",
        "--set",
        "sensitivity=report",
    ]
    done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *options, env=faulty)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert any("the runtime computes 'layer_wA' differently from its integers" in note for note in said["notes"])
    assert said["accuracy"]["sqnr_db"] < 10 and said["outcome"]["answer"] != "yes"
    assert ort.InferenceSession(tmp_path / "q.onnx")
