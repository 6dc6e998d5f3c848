"""2:4 sparsity of weights in blocks: which weights go, what it costs beside dense weights, and who is refused."""

import numpy as np
import onnx
import pytest
import support
from failures import USAGE, Place
from support import Path
from test_weights_only import correlated, dequantized, initializers, products, twice_a_product

SPARSE = ["--set", "sparsity=2:4", "--set", "accuracy-level=1"]


def stored(path: Path, rows: int = 128) -> dict[str, np.ndarray]:
    """What each product's weight has become, by the product's name."""
    nodes = onnx.load(path).graph.node
    return {node.name: dequantized(path, node, rows) for node in nodes if node.op_type == "MatMulNBits"}


def without_smallest(weight: np.ndarray) -> np.ndarray:
    """Two of each four along the first axis are 0: those with the smallest magnitudes."""
    fours = weight.T.reshape(weight.shape[1], -1, 4)
    order = np.argsort(np.abs(fours), axis=-1)
    kept = fours.copy()
    np.put_along_axis(kept, order[..., :2], 0, axis=-1)
    return np.ascontiguousarray(kept.reshape(weight.shape[1], -1).T)


@pytest.mark.parametrize("options", [["--set", "weights-method=gptq"], ["--set", "weight-symmetric"]], ids=["gptq", "symmetric"])
def test_two_of_four_are_zero(tmp_path: Path, options: list[str]) -> None:
    model = twice_a_product(tmp_path / "m.onnx")
    data, samples = correlated(tmp_path / "data")
    result = support.weights_only(model, tmp_path / "q.onnx", "--calibration-data", data, *SPARSE, *options)
    dense = support.weights_only(model, tmp_path / "dense.onnx", "--calibration-data", data, "--set", "accuracy-level=1", *options)
    for name, weight in stored(tmp_path / "q.onnx").items():
        fours = weight.T.reshape(weight.shape[1], -1, 4)
        assert ((fours == 0).sum(axis=-1) >= 2).all(), name
    for sparse, plain in zip(result["weights"], dense["weights"], strict=True):
        # Inputs are scaled for dense weights only.
        assert sparse["dense_error"] == pytest.approx(plain["output_error"], rel=0.05)
        assert "dense_error" not in plain
        assert sparse["output_error"] > plain["output_error"]

    # The errors that are told are those on samples, and smaller than those of leaving out the smallest weights alone.
    x = np.concatenate([s["x"].reshape(-1, 128) for s in samples]).astype(np.float64)
    original = initializers(model)["first"]
    error = np.square(x @ (stored(tmp_path / "q.onnx")["first"] - original)).sum() / np.square(x @ original).sum()
    smallest = np.square(x @ (without_smallest(original) - original)).sum() / np.square(x @ original).sum()
    assert error == pytest.approx(result["weights"][0]["output_error"], rel=0.5)
    assert error < 0.3 * smallest


def test_words_and_resuming(tmp_path: Path) -> None:
    model = twice_a_product(tmp_path / "m.onnx")
    data, _ = correlated(tmp_path / "data")
    options = ["--weights-only", "--set", "sparsity=2:4", "--no-bench"]
    said = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, *options)
    assert said.returncode == 0 and "2 weights with 2:4 sparsity" in said.stdout and "if dense" in said.stdout
    (tmp_path / "killed").mkdir()
    found = support.resumed_after_kill("weights.solved=kill@1", model, data, tmp_path / "killed", *options)
    assert support.sha256(found) == support.sha256(tmp_path / "q.onnx")


REFUSED = {
    "no samples": (["--set", "sparsity=2:4"], "needs samples"),
    "method": (["--set", "sparsity=2:4", "--set", "weights-method=search", "--calibration-data", "data"], "gptq or auto"),
    "word": (["--set", "sparsity=1:4"], "none, 2:4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    options, says = REFUSED[case]
    place = Place(tmp_path)
    model = products(place.inputs / "m.onnx")
    place.refuses(USAGE, says, "quantize", model, "-o", place.output, "--weights-only", *options)
