"""Several results of one model at once, from Python."""

import os
import pathlib
from collections.abc import Iterator

import detent
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ROWS = 64


def product() -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((ROWS, 48)).astype(np.float32)
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", d]) for n, d in (("x", ROWS), ("y", 48))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples() -> Iterator[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    for _ in range(9):
        yield {"x": random.standard_normal((4, ROWS)).astype(np.float32)}


def test_members_by_name(tmp_path: pathlib.Path) -> None:
    config = {"family": ["fp16", "q8", "q4", "q4f16"], "bench": False}
    once = detent.quantize(product(), tmp_path / "once", data=samples(), config=config)  # each passes by once
    again = detent.quantize(product(), tmp_path / "again", data=list(samples()), config=config)
    assert list(once.family) == config["family"] == list(again.family)
    names = {"fp16": "_fp16", "q8": "_quantized", "q4": "_q4", "q4f16": "_q4f16"}
    for name, result in once.family.items():
        path = pathlib.Path(result.output)
        assert path.parent == tmp_path / "once" and path.stem.endswith(names[name])
        assert result.model_bytes_after == os.path.getsize(path)
        assert path.read_bytes() == pathlib.Path(again.family[name].output).read_bytes()
    assert once.samples == 9 and once.family["q4"].weights[0].output_error is not None
    assert once.family["q4f16"].floats.nodes == 1
    assert all(f"{name}: " in str(once) for name in names)


def test_samples_that_pass_once_serve_single_results() -> None:
    for config in ({"weights_only": True}, {"weights_only": True, "float_type": "16"}):
        once, again = (detent.quantize(product(), data=data, config=config) for data in (samples(), list(samples())))
        assert bytes(once) == bytes(again)


def test_a_single_result_has_no_family() -> None:
    assert detent.quantize(product(), config={"weights_only": True}).result.family == {}


def test_a_family_needs_a_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(detent.errors.UsageError, match="folder"):
        detent.quantize(product(), config={"family": ["q4", "q8"]})
    with pytest.raises(detent.errors.UsageError, match="q5"):
        detent.quantize(product(), tmp_path / "out", config={"family": ["q5"]})
