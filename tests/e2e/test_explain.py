"""The reasons that `detent compare` gives."""

import json

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto
from support import Path, Sample

FLOAT = TensorProto.FLOAT


def explained(folder: Path, model: onnx.ModelProto, samples: list[Sample], *options: object) -> dict[str, dict]:
    """Inner values of the model that the preset plain makes, by name."""
    onnx.save(model, folder / "model.onnx")
    data = support.save_samples(folder / "data", samples)
    support.quantize(folder / "model.onnx", folder / "q.onnx", data, "--weight-type", "uint8", *options)
    command = ["compare", folder / "model.onnx", folder / "q.onnx", "--calibration-data", data, "--threads", 1]
    found = support.detent(*command, "--json")
    assert found.returncode == 0, found.stderr
    shown = support.detent(*command).stdout
    layers = {layer["name"]: layer for layer in json.loads(found.stdout)["layers"]}
    for layer in list(layers.values())[:20]:
        assert layer.get("reason", "") in shown
    return layers


def test_a_mask(tmp_path: Path) -> None:
    b = graphs.Builder(1)
    off = b.add("Mul", "mask", b.constant("lowest", -3.4028235e38), name="off")
    out = b.add("Softmax", b.add("Add", b.add("MatMul", "x", b.weight("w", 8, 8), name="scores"), off, name="masked"))
    samples = [{"x": np.eye(8, dtype=np.float32)[None], "mask": np.eye(8, dtype=np.float32)[None]}]
    layers = explained(tmp_path, b.model({n: (FLOAT, [1, 8, 8]) for n in ("x", "mask")}, [out]), samples)
    # The mask is cut off on purpose, where the Softmax makes 0 of it: no reason to widen the range.
    assert not any("beyond the range" in layer["reason"] or "mask constant" in layer["reason"] for layer in layers.values())


def test_parts_of_unlike_size(tmp_path: Path) -> None:
    b = graphs.Builder(2)
    large = b.add("Mul", b.add("Sigmoid", "x"), b.constant("size", 320), name="large")
    small = b.add("Sigmoid", b.add("MatMul", "x", b.weight("w", 16, 16)), name="small")
    out = b.add("Tanh", b.add("Concat", large, small, axis=1, name="both"))
    layers = explained(tmp_path, b.model({"x": (FLOAT, [4, 16])}, [out]), noise(4, 16))
    assert layers["both.out"]["reason"].startswith("shared scale: 3")
    assert float(layers["both.out"]["reason"].split(" against ")[1]) <= 1


def test_errors_that_no_output_shows_come_last(tmp_path: Path) -> None:
    b = graphs.Builder(5)
    small = b.add("Mul", b.add("MatMul", "x", b.weight("w", 16, 16), name="coarse"), b.constant("tiny", 1e-4), name="scaled")
    out = b.add("Add", small, b.add("Sigmoid", "y"), name="sum")
    samples = [{"x": sample["x"], "y": sample["x"]} for sample in noise(4, 16)]
    inputs = {name: (FLOAT, [4, 16]) for name in ("x", "y")}
    layers = explained(tmp_path, b.model(inputs, [out]), samples, "--op-types", "MatMul")
    assert list(layers)[-1] in ("coarse.out", "scaled.out")
    assert layers["coarse.out"]["reason"] == "hardly reaches the outputs"
    assert "suggestion" not in layers["coarse.out"]


def noise(*shape: int, count: int = 4) -> list[Sample]:
    rng = np.random.default_rng(3)
    return [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


def products() -> onnx.ModelProto:
    b = graphs.Builder(4)
    first = b.add("MatMul", b.add("Mul", "x", b.constant("one", np.ones(256)), name="in"), b.weight("w", 256, 64), name="first")
    return b.model({"x": (FLOAT, [32, 256])}, [b.add("Tanh", b.add("MatMul", first, b.weight("v", 64, 8), name="second"))])


@pytest.mark.parametrize("kind", ["cut", "outlier", "channel", "inherited"])
def test_ranges(tmp_path: Path, kind: str) -> None:
    samples, options = noise(32, 256), []
    if kind == "cut":
        options = ["--set", "tensor-range=in.out=-1,1"]
    elif kind == "outlier":
        samples[0]["x"][0, 0] = samples[1]["x"][0, 1] = 300
    elif kind == "channel":
        for sample in samples:
            sample["x"][:, :3] *= 30
    layers = explained(tmp_path, products(), samples, *options)
    reason, suggestion = layers["in.out"].get("reason", ""), layers["in.out"].get("suggestion", "")
    if kind == "cut":
        assert "% of the values lie beyond the range of -1 to " in reason
        assert suggestion == "--set tensor-method=in.out=minmax"
    elif kind == "outlier":
        assert reason == "the range is set by 62 values in 10^6"  # 2 of 4 * 32 * 256
        assert suggestion == "--set tensor-method=in.out=mse"
    elif kind == "channel":
        assert reason.endswith("of 256 channels hold the range")
        assert 1 <= int(reason.split()[0]) <= 3
    else:
        assert layers["second.out"]["reason"].startswith("inherited from 'first.out'")
