"""--memory-budget with weights whose columns are long: parts of a column are in memory, as the kernel counts it."""

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import DETENT, Path

ROWS, COLUMNS, BUDGET = 1_000_000, 64, 200


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tall") / "m.onnx"
    weight = np.random.default_rng(3).standard_normal((ROWS, COLUMNS), np.float32)
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k]) for n, k in (("x", ROWS), ("y", COLUMNS))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=16)
    return path


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--bits", 8],
        ["--bits", 8, "--block-size", "channel", "--weights-form", "qdq"],
        ["--max-size", "60MiB"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_long_columns_keep_to_the_budget(options: list[object], tall: Path, tmp_path: Path) -> None:
    words = ["quantize", tall, "-o", tmp_path / "q.onnx", "--weights-only", "--no-bench", "-q", "--memory-budget", f"{BUDGET}MiB"]
    peak = support.peak_memory(tmp_path, DETENT, *words, *options)
    assert peak < 1.1 * (BUDGET << 20), f"{peak >> 20} MiB"
    assert (tmp_path / "q.onnx").exists()
