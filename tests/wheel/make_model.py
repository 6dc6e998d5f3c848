"""make_model.py FOLDER: a small model, model.onnx, and pictures for it, for try_wheel.py. Needs onnx and Pillow."""

import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

rng = np.random.default_rng(0)
weights = {
    "w1": rng.standard_normal((16, 3, 3, 3)) / 5,
    "w2": rng.standard_normal((32, 16, 3, 3)) / 12,
    "w3": rng.standard_normal((32, 10)) / 6,
}
graph = helper.make_graph(
    [
        helper.make_node("Conv", ["image", "w1"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], "second"),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "w3"], ["scores"], "last"),
    ],
    "small",
    [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 24, 24])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 10])],
    [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
)
folder = pathlib.Path(sys.argv[1])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
(folder / "photos").mkdir()
for name in ("a.png", "b.png", "a.jpg", "b.jpg"):
    Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(folder / "photos" / name)
