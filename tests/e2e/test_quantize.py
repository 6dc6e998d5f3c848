"""What the options do, and models of unusual make."""

import json
import pathlib
import re

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path


@pytest.fixture
def cnn(tmp_path: Path) -> tuple[Path, Path]:
    """A small CNN and data for it."""
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx", support.save_samples(tmp_path / "data", graphs.cnn_samples())


def quantized_weights(path: Path) -> set[str]:
    """Names of the weights that the model holds as integers."""
    types = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)
    tensors = onnx.load(path).graph.initializer
    return {t.name.removesuffix("_quantized") for t in tensors if t.data_type in types and t.name.endswith("_quantized")}


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ([], {"w1", "w2", "w3"}),
        (["--op-types", "Conv"], {"w1", "w2"}),
        (["--op-types", "Gemm,MatMul"], {"w3"}),
        (["--exclude-op-types", "Conv,Relu"], {"w3"}),
        (["--nodes", "conv_b"], {"w2"}),
        (["--nodes", "^conv_.*"], {"w1", "w2"}),
        (["--nodes", "conv_a", "--nodes", "head"], {"w1", "w3"}),
        (["--exclude-nodes", "conv_a,head"], {"w2"}),
        (["--exclude-nodes", "^conv_[ab]$"], {"w3"}),
        (["--nodes", "^conv.*", "--exclude-nodes", "conv_a"], {"w2"}),
    ],
)
def test_selection(cnn: tuple[Path, Path], options: list[str], weights: set[str], tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    support.quantize(cnn[0], output, cnn[1], *options)
    # The BatchNormalization was folded into the first convolution, whose weight may have another name since.
    assert len(quantized_weights(output)) == len(weights)
    assert {name for name in quantized_weights(output) if name in ("w2", "w3")} == weights - {"w1"}
    support.check_model(output)


@pytest.mark.parametrize("types", [("int16", "int8"), ("uint16", "int8"), ("int16", "int16"), ("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("opset", [17, 21])
def test_types(types: tuple[str, str], opset: int, tmp_path: Path) -> None:
    """Before opset 21 the 16-bit types are there in Microsoft's domain only."""
    model, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    made = graphs.small_cnn(opset)
    made.ir_version = 10
    onnx.save(made, model)
    samples = graphs.cnn_samples()
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(model, output, data, "--activation-type", types[0], "--weight-type", types[1])
    domains = {n.domain for n in onnx.load(output).graph.node if n.op_type == "QuantizeLinear"}
    assert domains == ({"com.microsoft"} if "16" in types[0] and opset < 21 else {""})
    found = support.outputs(support.check_model(output), samples)
    assert support.sqnr(support.outputs(support.load(model), samples), found) > (40 if "16" in types[0] else 20)


@pytest.mark.parametrize("threshold", ["0", "1KiB", "1GiB"])
def test_external_data(cnn: tuple[Path, Path], threshold: str, tmp_path: Path) -> None:
    plain, output = tmp_path / "plain.onnx", tmp_path / "out.onnx"
    support.quantize(cnn[0], plain, cnn[1])
    report = support.quantize(cnn[0], output, cnn[1], "--set", f"external-data-threshold={threshold}")
    data_files = list(tmp_path.glob("out.onnx.*.data"))
    assert len(data_files) == (threshold != "1GiB")
    assert report["model_bytes_after"] == output.stat().st_size + sum(file.stat().st_size for file in data_files)
    samples = graphs.cnn_samples(2, seed=5)
    expected = support.outputs(support.load(plain), samples)
    assert np.array_equal(expected, support.outputs(support.check_model(output), samples))


def test_external_input(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    """A model with external data gives the same bytes as the one without, and neither of its files is touched."""
    model = tmp_path / "split.onnx"
    onnx.save_model(onnx.load(cnn[0]), model, save_as_external_data=True, location="split.bin", size_threshold=0)
    before = {path: support.sha256(path) for path in (model, tmp_path / "split.bin")}
    support.quantize(cnn[0], tmp_path / "a.onnx", cnn[1])
    support.quantize(model, tmp_path / "b.onnx", cnn[1])
    assert support.sha256(tmp_path / "a.onnx") == support.sha256(tmp_path / "b.onnx")
    assert before == {path: support.sha256(path) for path in before}


def test_inputs_are_never_written(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    files = [cnn[0], *cnn[1].iterdir()]
    before = [(support.sha256(path), path.stat().st_mtime_ns) for path in files]
    support.quantize(cnn[0], tmp_path / "out.onnx", cnn[1], "--batch-size", 1, "--set", f"prepared-output={tmp_path / 'p.onnx'}")
    assert before == [(support.sha256(path), path.stat().st_mtime_ns) for path in files]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "model.onnx", "out.onnx", "p.onnx"]


def test_output_is_replaced(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    output.write_text("an older result")
    support.quantize(cnn[0], output, cnn[1])
    support.check_model(output)


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12, 13, 17, 20])
def test_opsets(opset: int, tmp_path: Path) -> None:
    model, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(graphs.small_cnn(opset), model)
    samples = graphs.cnn_samples()
    report = support.quantize(model, output, support.save_samples(tmp_path / "data", samples), "--set", "weight-range=reduced")
    assert report["nodes_in_float"] == 0
    found = support.outputs(support.check_model(output), samples)
    assert support.sqnr(support.outputs(support.load(model), samples), found) > 25
    per_tensor = tmp_path / "tensor.onnx"
    support.quantize(model, per_tensor, tmp_path / "data", "--per-tensor")
    support.check_model(per_tensor)


def with_body(kind: str) -> onnx.ModelProto:
    """Conv and Relu, whose output the body of an If or a Loop reads from outside."""
    b = graphs.Builder(12)
    seen = b.add("Relu", b.add("Conv", "x", b.weight("w", 4, 3, 3, 3), b.weight("b", 4), name="conv"))
    value = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    if kind == "If":
        bodies = [helper.make_graph([helper.make_node(op, [seen], ["inner"])], op, [], [value]) for op in ("Abs", "Neg")]
        b.constant("yes", True, np.bool_)
        big = b.add("Greater", b.add("ReduceMax", seen, keepdims=0), b.constant("limit", 0.1))  # well below what is seen
        y = b.add("If", big, then_branch=bodies[0], else_branch=bodies[1])
    else:
        step = [helper.make_node("Identity", ["go"], ["going"]), helper.make_node("Add", ["so_far", seen], ["inner"])]
        infos = [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("so_far", TensorProto.FLOAT, None),
        ]
        body = helper.make_graph(step, "body", infos, [helper.make_tensor_value_info("going", TensorProto.BOOL, []), value])
        y = b.add("Loop", b.constant("times", 3, np.int64), b.constant("yes", True, np.bool_), seen, body=body)
    z = b.add("Conv", y, b.weight("w2", 4, 4, 1, 1), name="after")
    made = b.model({"x": (TensorProto.FLOAT, [1, 3, 8, 8])}, [z])
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info(z, TensorProto.FLOAT, [1, 4, 6, 6]))
    return made


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_bodies_that_read_quantized_values(kind: str, tmp_path: Path) -> None:
    model, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(with_body(kind), model)
    samples = [{"x": s["x"][:, :, :8, :8]} for s in graphs.cnn_samples()]
    report = support.quantize(model, output, support.save_samples(tmp_path / "data", samples), "--set", "weight-range=reduced")
    assert not any("body" in note for note in report["notes"]), report["notes"]
    assert quantized_weights(output) == {"w", "w2"}
    found = support.outputs(support.check_model(output), samples)
    assert support.sqnr(support.outputs(support.load(model), samples), found) > 25


def test_dynamic_axes(tmp_path: Path) -> None:
    """Samples of several lengths; the result runs at yet another."""
    model, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(graphs.transformer(), model)
    samples = graphs.transformer_samples(6)
    report = support.quantize(model, output, support.save_samples(tmp_path / "data", samples[:5]), "--set", "weight-range=reduced")
    assert report["samples"] == 5
    found = support.outputs(support.check_model(output), samples[5:])
    assert support.sqnr(support.outputs(support.load(model), samples[5:]), found) > 15


@pytest.mark.parametrize(("rows", "samples", "noted"), [(8, 2, False), (10, 2, True), (4, 1, False)])
def test_fixed_batch(rows: int, samples: int, noted: bool, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(graphs.small_cnn(batch=4), model)
    np.save(tmp_path / "rows.npy", graphs.cnn_samples(1, rows=rows)[0]["x"])
    report = support.quantize(model, tmp_path / "out.onnx", tmp_path / "rows.npy")
    assert report["samples"] == samples
    assert any("do not fill" in note for note in report["notes"]) == noted, report["notes"]


def test_test_data_sets(tmp_path: Path) -> None:
    """ONNX's own layout: tensors by number, or by name in another order."""
    model = tmp_path / "model.onnx"
    onnx.save(graphs.transformer(), model)
    samples = graphs.transformer_samples(2)
    for i, (sample, order) in enumerate(zip(samples, (["ids", "mask"], ["mask", "ids"]), strict=True)):
        folder = tmp_path / "sets" / f"test_data_set_{i}"
        folder.mkdir(parents=True)
        for n, name in enumerate(order):
            (folder / f"input_{n}.pb").write_bytes(numpy_helper.from_array(sample[name], name).SerializeToString())
        (folder / "output_0.pb").write_bytes(b"not read")
    support.quantize(model, tmp_path / "a.onnx", tmp_path / "sets")
    support.quantize(model, tmp_path / "b.onnx", support.save_samples(tmp_path / "data", samples))
    assert support.sha256(tmp_path / "a.onnx") == support.sha256(tmp_path / "b.onnx")


@pytest.mark.parametrize("count", [1, 3, 100])
def test_number_of_samples(cnn: tuple[Path, Path], count: int, tmp_path: Path) -> None:
    assert support.quantize(cnn[0], tmp_path / "out.onnx", cnn[1], "--samples", count)["samples"] == min(count, 4)


def test_profile(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    """The steps of docs/profile.md, in order. (That the file is YAML is tested with a real parser in tests/profile.)"""
    profile = tmp_path / "profile.yaml"
    support.quantize(cnn[0], tmp_path / "out.onnx", cnn[1], "--profile", profile)
    lines = profile.read_text().splitlines()
    line = re.compile(r'|#.*|(?P<key>(- |  )?[a-z_]+):( (?P<value>"[^"]+"|-?\d+(\.\d+)?))?')
    found = [match for match in map(line.fullmatch, lines) if match]
    assert len(found) == len(lines), "every line has a form of its own"
    values: dict[str, list[str]] = {}
    for match in found:
        values.setdefault((match["key"] or "").strip("- "), []).append((match["value"] or "").strip('"'))
    stages = ["Pre-process", "Calibration", "Quantization (Static)", "Post-process"]
    wanted = ["Start", *(f"{stage} {end}" for stage in stages for end in ("Start", "End")), "End"]
    assert [step for step in values["step"] if step in wanted] == wanted
    assert "Model Loaded" in values["step"]
    assert set(values["name"]) >= set(stages)
    assert float(values["peak_memory_mb"][-1]) > 0
    times = [float(value) for value in values["relative_time_secs"]]
    assert times == sorted(times)


def test_report(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    plain = support.detent("quantize", cnn[0], "-o", output, "--calibration-data", cnn[1])
    assert plain.returncode == 0
    assert "nodes quantized" in plain.stdout
    report = support.quantize(cnn[0], output, cnn[1])
    assert pathlib.Path(report["output"]) == output
    assert report["model_bytes_before"] == cnn[0].stat().st_size
    assert report["model_bytes_after"] == output.stat().st_size
    assert (report["samples"], report["nodes_in_float"]) == (4, 0)
    assert json.dumps(report["activations"]["x"])
