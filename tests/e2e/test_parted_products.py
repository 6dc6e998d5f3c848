"""One product that makes boxes of hundreds and scores up to 1: both stay alive, whatever reads them and whatever the target."""

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

RNG = np.random.default_rng(0)
BOXES, SCORES = 4, 12
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "Gemm transposed", "MatMul", "MatMul and Add")
READERS = ("output", "Split", "Slice", "Relu", "Transpose")
FORMS = (
    ["--target", "qnn"],
    ["--target", "amd-npu:xint8"],
    ["--target", "amd-npu:a8w8"],
    ["--target", "amd-npu:a16w8"],
    ["--target", "tflite-like"],
    ["--preset", "plain"],
)


def product(kind: str, weights: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
    """From 'r', [1, 16, 8, 8], to 'p'."""
    total = BOXES + SCORES
    sizes = np.r_[np.full(BOXES, 300), np.full(SCORES, 0.5)]
    bias = np.r_[np.full(BOXES, 400), np.full(SCORES, 0.5)]
    name = kind.split()[0]
    if name.startswith("Conv"):
        weights["w2"] = RNG.normal(size=(total, 16, 1, 1)) * sizes.reshape(-1, 1, 1, 1)
        if name == "ConvTranspose":
            weights["w2"] = weights["w2"].transpose(1, 0, 2, 3)
        weights["b2"] = bias
        return [helper.make_node(name, ["r", "w2", "b2"], ["p"], "head")]
    nodes = [helper.make_node("Flatten", ["r"], ["flat"], "flat")]
    weights["w2"] = RNG.normal(size=(1024, total)) * sizes / 32
    if name == "Gemm":
        turned = kind.endswith("transposed")
        weights["w2"] = weights["w2"].T if turned else weights["w2"]
        weights["b2"] = bias
        return [*nodes, helper.make_node("Gemm", ["flat", "w2", "b2"], ["p"], "head", transB=int(turned))]
    if kind == "MatMul":
        return [*nodes, helper.make_node("MatMul", ["flat", "w2"], ["p"], "head")]
    weights["b2"] = bias
    return [*nodes, helper.make_node("MatMul", ["flat", "w2"], ["m"], "head"), helper.make_node("Add", ["b2", "m"], ["p"], "bias")]


def reading(reader: str, weights: dict[str, np.ndarray], rank: int) -> tuple[list[onnx.NodeProto], list[str]]:
    if reader == "output":
        return [helper.make_node("Identity", ["p"], ["y"], "last")], ["y"]
    if reader == "Relu":
        return [helper.make_node("Relu", ["p"], ["y"], "last")], ["y"]
    if reader == "Transpose":
        return [helper.make_node("Transpose", ["p"], ["y"], "last", perm=[0, *range(2, rank), 1])], ["y"]
    if reader == "Split":
        weights["parts"] = np.array([BOXES, SCORES])
        return [helper.make_node("Split", ["p", "parts"], ["boxes", "scores"], "last", axis=1 if rank == 2 else 1 - rank)], [
            "boxes",
            "scores",
        ]
    weights |= {"from0": np.array([0]), "to0": np.array([BOXES]), "to1": np.array([BOXES + SCORES]), "axis": np.array([1])}
    nodes = [
        helper.make_node("Slice", ["p", f"{a}", f"{b}", "axis"], [out], out)
        for a, b, out in (("from0", "to0", "boxes"), ("to0", "to1", "scores"))
    ]
    return nodes, ["boxes", "scores"]


def model(kind: str, reader: str) -> onnx.ModelProto:
    weights = {"w1": RNG.normal(size=(16, 3, 3, 3)) * 0.2, "b1": RNG.normal(size=16) * 0.1}
    nodes = [helper.make_node("Conv", ["x", "w1", "b1"], ["c"], "first", pads=[1] * 4), helper.make_node("Relu", ["c"], ["r"], "r")]
    nodes += product(kind, weights)
    more, outputs = reading(reader, weights, 4 if kind.startswith("Conv") else 2)
    constants = [
        numpy_helper.from_array(w.astype(np.float32 if w.dtype == np.float64 else w.dtype), name) for name, w in weights.items()
    ]
    graph = helper.make_graph(
        nodes + more,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scores_of(outputs: list[np.ndarray], reader: str) -> np.ndarray:
    if len(outputs) == 2:
        return outputs[1]
    return np.moveaxis(outputs[0], -1 if reader == "Transpose" else 1, 0)[BOXES:]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [{"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]
    return support.save_samples(tmp_path_factory.mktemp("data") / "samples", samples)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[1])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_scores_stay_alive(tmp_path: Path, data: Path, kind: str, reader: str, form: list[str]) -> None:
    onnx.save(model(kind, reader), tmp_path / "m.onnx")
    told = support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *form)
    samples = [dict(np.load(path)) for path in sorted(data.glob("*.npz"))]
    exact, found = (
        np.stack([scores_of(y, reader) for y in support.outputs(support.load(tmp_path / name), samples)])
        for name in ("m.onnx", "q.onnx")
    )
    error = 10 * np.log10(np.sum(exact**2.0) / np.sum((exact - found) ** 2.0))
    assert error > 15, (error, told["notes"])
    assert not (told.get("accuracy") or {}).get("lost_channels")


@pytest.mark.parametrize("option", ["--nodes", "--exclude-nodes"])
def test_named_products_stay_as_they_are(tmp_path: Path, data: Path, option: str) -> None:
    onnx.save(model("Conv", "output"), tmp_path / "m.onnx")
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, option, "head", "--preset", "plain")
    convolutions = [node.name for node in onnx.load(tmp_path / "q.onnx").graph.node if node.op_type in ("Conv", "QLinearConv")]
    assert sorted(convolutions) == ["first", "head"]


def test_channels_of_one_size_stay_one_product(tmp_path: Path, data: Path) -> None:
    whole = model("Conv", "Split")
    weight = next(t for t in whole.graph.initializer if t.name == "w2")
    bias = next(t for t in whole.graph.initializer if t.name == "b2")
    weight.CopyFrom(numpy_helper.from_array(RNG.normal(size=(BOXES + SCORES, 16, 1, 1)).astype(np.float32), "w2"))
    bias.CopyFrom(numpy_helper.from_array(np.ones(BOXES + SCORES, np.float32), "b2"))
    onnx.save(whole, tmp_path / "m.onnx")
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, "--preset", "plain")
    assert sum(node.op_type == "Conv" for node in onnx.load(tmp_path / "q.onnx").graph.node) == 2
