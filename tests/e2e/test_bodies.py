"""Bodies of If, Loop and Scan are observed and quantized like the graph around them."""

import json
from pathlib import Path

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from bodies import (
    BOOL,
    FLOAT,
    MODELS,
    PRODUCTS,
    WIDTH,
    Body,
    correlated,
    info,
    nodes_of,
    samples,
    with_if,
    with_loop,
    with_scan,
)
from onnx import TensorProto, helper, numpy_helper

QUANTIZED = {"QLinearMatMul", "QGemm", "QLinearConv", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}


def as_run(path: Path, folder: Path) -> list[str]:
    """Operator types that ONNX Runtime makes of the model, those in bodies among them."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "as_run.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in nodes_of(onnx.load(folder / "as_run.onnx").graph)]


@pytest.fixture(params=list(MODELS))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Path]:
    """Which, the model, its data."""
    model = tmp_path / "model.onnx"
    onnx.save(MODELS[request.param](), model)
    return request.param, model, support.save_samples(tmp_path / "data", samples(request.param))


def quality(model: Path, output: Path, kind: str) -> float:
    data = samples(kind)
    reference, found = support.outputs(support.load(model), data), support.outputs(support.check_model(output), data)
    return min(support.sqnr(reference, found, o) for o in range(len(reference[0])))


@pytest.mark.parametrize("preset", ["balanced", "plain"])
def test_products_in_bodies(case: tuple[str, Path, Path], preset: str, tmp_path: Path) -> None:
    kind, model, data = case
    output = tmp_path / "out.onnx"
    options = ["--preset", preset, "--set", "weight-range=reduced", "--no-bench", "--optimize-for", "size"]
    said = support.quantize(model, output, data, *options, "--set", "sensitivity=off")
    assert not any("body" in note for note in said["notes"]), said["notes"]
    ran = as_run(output, tmp_path)
    assert sum(t in QUANTIZED for t in ran) >= PRODUCTS[kind], ran
    assert quality(model, output, kind) > 22


@pytest.mark.sampled(2)
def test_measured_and_the_same_bytes(case: tuple[str, Path, Path], tmp_path: Path) -> None:
    """Errors are measured with bodies, and neither the budget nor workers change the result."""
    kind, model, data = case
    options = ["--preset", "balanced", "--method", "percentile"]
    said = support.quantize(model, tmp_path / "a.onnx", data, *options)
    share = said["accuracy"]["integer_macs"]
    assert share is None if kind == "Loop" else share > 0.5  # nobody knows how often a Loop's body runs
    assert quality(model, tmp_path / "a.onnx", kind) > 20
    (tmp_path / "work").mkdir()
    limited = ["--set", "memory-level=2", "--work-dir", tmp_path / "work"]
    support.quantize(model, tmp_path / "b.onnx", data, *options, *limited)
    support.quantize(model, tmp_path / "c.onnx", data, *options, "--workers", "2")
    assert support.sha256(tmp_path / "a.onnx") == support.sha256(tmp_path / "b.onnx") == support.sha256(tmp_path / "c.onnx")


def test_statistics_of_all_steps(tmp_path: Path) -> None:
    """The range of a value in a Loop is that of all its steps, as NumPy computes them."""
    onnx.save(with_loop(), tmp_path / "model.onnx")
    feeds = samples("Loop")
    data = support.save_samples(tmp_path / "data", feeds)
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, "--preset", "plain", "--no-bench")
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "model.onnx").graph.initializer}
    for node in onnx.load(tmp_path / "model.onnx").graph.node:
        if node.op_type == "Loop":
            weights |= {t.name: numpy_helper.to_array(t) for t in node.attribute[0].g.initializer}
    least = most = 0.0
    for feed in feeds:
        seen = np.maximum(feed["x"] @ weights["w"], 0)
        h = seen
        for _ in range(int(feed["times"])):
            product = h @ weights["carried.w"]
            least, most = min(least, product.min()), max(most, product.max())
            h = np.tanh(np.tanh(product) + np.maximum(seen @ weights["captured.w"], 0))
    found = said["activations"]["carried.out"]
    np.testing.assert_allclose([found["min"], found["max"]], [least, most], rtol=1e-5)


def test_a_body_that_no_sample_came_to(tmp_path: Path) -> None:
    onnx.save(with_if(nested=True), tmp_path / "model.onnx")
    feeds = [sample for sample in samples("nested") if sample["flag"]]
    data = support.save_samples(tmp_path / "data", feeds)
    for preset in ("plain", "balanced"):
        options = ["--preset", preset, "--set", "weight-range=reduced"]
        said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, *options)
        told = [note for note in said["notes"] if "no sample reached" in note]
        assert len(told) == 1
        assert "'choose'" in told[0]
        assert "'else_branch': 3 layers" in told[0]
        choose = next(n for n in onnx.load(tmp_path / "out.onnx").graph.node if n.name == "choose")
        types = {a.name: [n.op_type for n in nodes_of(a.g)] for a in choose.attribute}
        assert types["else_branch"].count("MatMul") == 3
        assert "QuantizeLinear" not in types["else_branch"]
        assert types["then_branch"].count("DequantizeLinear") >= 5
        reference, found = support.load(tmp_path / "model.onnx"), support.check_model(tmp_path / "out.onnx")
        for feed in samples("nested"):
            assert support.sqnr(support.outputs(reference, [feed]), support.outputs(found, [feed])) > 20


def test_a_branch_that_contradicts_the_samples(tmp_path: Path) -> None:
    """One that only takes single rows, as Silero's detector of speech has one for another rate: no sample takes it."""
    b = graphs.Builder(11)
    seen = b.add("Relu", b.add("MatMul", "x", b.weight("w", WIDTH, WIDTH), name="before"))
    then, other = Body(12, "then."), Body(13, "other.")
    many = then.layer(seen, "layer")
    axis = other.constant("axis", [0], np.int64)
    single = other.add("Unsqueeze", other.add("Squeeze", other.layer(seen, "first"), axis), axis)
    single = other.layer(single, "second")
    bodies = {"then_branch": then.graph("then", [], [info(many)]), "else_branch": other.graph("else", [], [info(single)])}
    y = b.add("If", "flag", name="choose", **bodies)
    y = b.add("MatMul", y, b.weight("w2", WIDTH, WIDTH), name="after")
    model = b.model({"x": (FLOAT, ["N", WIDTH]), "flag": (BOOL, [])}, [y])
    onnx.save(model, tmp_path / "model.onnx")
    feeds = correlated("If", 16)
    for feed in feeds:
        feed["flag"] = np.array(True)
    data = support.save_samples(tmp_path / "data", feeds)
    options = ["--preset", "balanced", "--no-bench", "--optimize-for", "size", "--set", "sensitivity=off", "--finetune", "gptq"]
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, *options)
    assert any("'else_branch': 2 layers" in note for note in said["notes"]), said["notes"]
    assert [layer["name"] for layer in said["layers"]] == ["before", "then.layer", "after"]
    reference, found = support.load(tmp_path / "model.onnx"), support.check_model(tmp_path / "out.onnx")
    assert support.sqnr(support.outputs(reference, feeds), support.outputs(found, feeds)) > 25


def with_functions() -> onnx.ModelProto:
    """Two calls of a function with an attribute, a constant, and a call and an If in it."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    slope = helper.make_node("LeakyRelu", ["sum"], ["z"])
    slope.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    half = numpy_helper.from_array(np.full((WIDTH, WIDTH), 0.1, np.float32))
    then = helper.make_graph([helper.make_node("MatMul", ["y", "half"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([helper.make_node("Relu", ["y"], ["t"])], "other", [], [info("t")])
    layer = helper.make_function(
        "own",
        "Layer",
        ["x", "w", "flag"],
        ["z"],
        [
            helper.make_node("Constant", [], ["half"], value=half),
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Shift", ["m"], ["y"], domain="own"),
            helper.make_node("If", ["flag"], ["i"], then_branch=then, else_branch=other),
            helper.make_node("Add", ["y", "i"], ["sum"]),
            slope,
        ],
        imports,
        ["slope"],
    )
    shift = helper.make_function("own", "Shift", ["x"], ["y"], [helper.make_node("Tanh", ["x"], ["y"])], imports)
    b = graphs.Builder(7)
    x = "x"
    for i in range(2):
        x = b.add("Layer", x, b.weight(f"w{i}", WIDTH, WIDTH), "flag", name=f"layer{i}", domain="own", slope=0.1 + i)
    x = b.add("MatMul", x, b.weight("last", WIDTH, WIDTH), name="last")
    graph = helper.make_graph(
        b.nodes, "g", [info("x", FLOAT, ["N", WIDTH]), info("flag", BOOL, [])], [info(x, FLOAT, ["N", WIDTH])], b.initializers
    )
    return helper.make_model(graph, opset_imports=imports, functions=[layer, shift], ir_version=8)


def test_functions(tmp_path: Path) -> None:
    model, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(with_functions(), model)
    data = support.save_samples(tmp_path / "data", samples("If"))
    options = ["--no-bench", "--optimize-for", "size", "--set", "weight-range=reduced", "--set", "sensitivity=off"]
    said = support.quantize(model, output, data, *options)
    assert not any("function" in note for note in said["notes"]), said["notes"]
    written = onnx.load(output)
    assert not written.functions
    assert sum(t.dims == [WIDTH, WIDTH] for t in written.graph.initializer) == 4, "the function's constant is there once"
    assert sum(t in QUANTIZED for t in as_run(output, tmp_path)) == 5
    assert quality(model, output, "If") > 22


def test_functions_of_another_opset_stay(tmp_path: Path) -> None:
    model = with_functions()
    for function in model.functions:
        function.opset_import[0].version = 16
    onnx.save(model, tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", samples("If"))
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, "--no-bench")
    assert any("own::Layer" in note for note in said["notes"])
    assert quality(tmp_path / "model.onnx", tmp_path / "out.onnx", "If") > 20


def test_statistics_of_a_scan(tmp_path: Path) -> None:
    """The range of a value in a Scan is that of all its steps, as NumPy computes them, the second input from its end."""
    model = with_scan(several=True)
    onnx.save(model, tmp_path / "model.onnx")
    feeds = samples("several")
    data = support.save_samples(tmp_path / "data", feeds)
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, "--preset", "plain", "--no-bench")
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    weights = {t.name: numpy_helper.to_array(t) for t in (*model.graph.initializer, *body.initializer)}
    products = []
    for feed in feeds:
        h, c = feed["h0"], np.maximum(feed["h0"] @ weights["w"], 0)
        seen = c
        for step, back in zip(np.moveaxis(feed["x"], 1, 0), feed["z"][::-1], strict=True):
            product = (back + c) @ weights["second.w"]
            products.append(product)
            mixed = np.maximum(step @ weights["input.w"], 0) + np.maximum(h @ weights["state.w"], 0)
            h = 1 / (1 + np.exp(-mixed))
            c = np.tanh(np.tanh(product) + seen)
    found = said["activations"]["second.out"]
    np.testing.assert_allclose([found["min"], found["max"]], [np.min(products), np.max(products)], rtol=1e-5)


def scan_of(model: onnx.ModelProto) -> tuple[onnx.NodeProto, onnx.GraphProto]:
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    return scan, next(a.g for a in scan.attribute if a.name == "body")


def with_scalars(tmp_path: Path) -> onnx.ModelProto:
    """The largest value of each step as well, whose shape the model does not state."""
    model = with_scan()
    scan, body = scan_of(model)
    body.node.append(helper.make_node("ReduceMax", [body.output[1].name], ["most"], keepdims=0))
    body.output.append(info("most"))
    scan.output.append("mosts")
    next(a for a in scan.attribute if a.name == "scan_output_axes").ints.append(0)
    onnx.save(model, tmp_path / "model.onnx")
    return model


OF_SCANS = [
    [],
    ["--preset", "plain"],
    ["--preset", "none", "--float", "16"],
    ["--preset", "balanced", "--float", "16"],
    ["--weights-only", "--block-size", "16"],
    ["--activations", "dynamic"],
]


@pytest.mark.parametrize("options", OF_SCANS)
def test_a_scan_that_gives_scalars(tmp_path: Path, options: list[str]) -> None:
    """The runtime tells a scalar like an unknown rank: the values around the body tell more."""
    with_scalars(tmp_path)
    data = support.save_samples(tmp_path / "data", samples("Scan"))
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, "--no-bench", *options)
    assert not any("is not known" in note for note in said["notes"]), said["notes"]
    assert quality(tmp_path / "model.onnx", tmp_path / "out.onnx", "Scan") > 8


def test_a_scan_whose_ranks_nobody_knows(tmp_path: Path) -> None:
    """A state that begins with a scalar that is computed: such a body stays in float, and a note says so."""
    model = with_scalars(tmp_path)
    scan, body = scan_of(model)
    before = helper.make_node("ReduceMax", ["h0"], ["first"], keepdims=0)
    model.graph.node.insert(list(model.graph.node).index(scan), before)
    scan, body = scan_of(model)
    scan.input.insert(0, "first")
    scan.output.insert(0, "last")
    body.input.insert(0, info("s"))
    body.output.insert(0, info("s2"))
    body.node.append(helper.make_node("Max", ["s", "most"], ["s2"]))
    onnx.save(model, tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", samples("Scan"))
    for options in ([], ["--preset", "plain"]):
        said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, "--no-bench", *options)
        assert any("'scan'" in note and "stays in float" in note for note in said["notes"]), said["notes"]
        assert quality(tmp_path / "model.onnx", tmp_path / "out.onnx", "Scan") > 20
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, "--activations", "dynamic")
    assert not any("is not known" in note for note in said["notes"]), "no value is observed there"
    command = ["quantize", tmp_path / "model.onnx", "-o", tmp_path / "out.onnx", "--weights-only", "--block-size", 16]
    refused = support.detent(*command, "--calibration-data", data)
    assert refused.returncode == 3
    assert "what the body of Scan 'scan' gives has shapes that are not known where values in it are observed" in refused.stderr
    body.output[0].CopyFrom(info("s2", FLOAT, []))
    onnx.save(model, tmp_path / "model.onnx")
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, "--no-bench")
    assert not any("'scan'" in note and "stays in float" in note for note in said["notes"]), said["notes"]
    assert support.detent(*command, "--calibration-data", data).returncode == 0


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("options", "limit"),
    [
        (["--weights-only", "--bits", "8", "--block-size", "16"], 30),
        (["--activations", "dynamic"], 8),  # without VNNI full-range weights saturate
        (["--preset", "none", "--float", "16"], 50),
        (["--quant-format", "qoperator", "--no-bench", "--set", "weight-range=reduced", "--optimize-for", "size"], 22),
    ],
    ids=["weights-only", "dynamic", "float16", "qoperator"],
)
def test_other_forms(case: tuple[str, Path, Path], options: list[str], limit: float, tmp_path: Path) -> None:
    kind, model, data = case
    output = tmp_path / "out.onnx"
    support.quantize(model, output, data, *options)
    types = [node.op_type for node in nodes_of(onnx.load(output).graph)]
    if "--float" not in options:
        assert types.count("MatMul") == 0, types
    assert quality(model, output, kind) > limit


@pytest.mark.parametrize("options", [["--optimize-for", "size"], ["--preset", "plain", "--op-types", "MatMul,Relu"]])
def test_a_model_whose_only_body_no_sample_came_to_stays_in_float(options: list[str], tmp_path: Path) -> None:
    """The samples hold values all the same."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["s", "u"], ["t"], "inside"), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", 7, []), ("go", 9, []), ("s", 1, [3, 16]))],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("on", 9, []), ("t", 1, [3, 16]))],
        [numpy_helper.from_array(np.eye(16, dtype=np.float32), "u")],
    )
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 16]) for n in "xy"]
    loop = helper.make_node("Loop", ["times", "", "x"], ["y"], "loop", body=body)
    graph = helper.make_graph([loop], "g", ends[:1], ends[1:], [numpy_helper.from_array(np.int64(0), "times")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", [{"x": np.ones((3, 16), np.float32)}] * 2)
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, "--no-bench", *options)
    assert said["nodes_quantized"] == 0
    assert any("no sample reached its body" in note for note in said["notes"]), said["notes"]


def test_inspection_counts_bodies(tmp_path: Path) -> None:
    onnx.save(with_if(nested=True), tmp_path / "model.onnx")
    result = support.detent("inspect", tmp_path / "model.onnx", "--shape", f"x:3x{WIDTH}", "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["macs"] == 10 * 3 * WIDTH * WIDTH
    assert told["op_types"]["MatMul"] == 10


def test_inspection_does_not_take_an_unknown_rank_for_a_scalar(tmp_path: Path) -> None:
    b = graphs.Builder(1)
    model = b.model({"x": (TensorProto.FLOAT, [3, 16])}, [b.add("Relu", b.add("MatMul", "x", b.weight("w", 16, 8)))])
    dot = helper.make_node("MatMul", ["v", "v2"], ["dot"], "dot")
    model.graph.node.append(dot)
    model.graph.initializer.extend(numpy_helper.from_array(np.ones(4, np.float32), name) for name in ("v", "v2"))
    body = helper.make_graph(
        [helper.make_node("MatMul", ["s", "u"], ["t"], "inside"), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", 7, []), ("go", 9, []), ("s", 1, None))],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("on", 9, []), ("t", 1, None))],
        [numpy_helper.from_array(np.eye(16, dtype=np.float32), "u")],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.int64(2), "times"))
    model.graph.node.append(helper.make_node("Loop", ["times", "", "x"], ["z"], "loop", body=body))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "model.onnx")
    result = support.detent("inspect", tmp_path / "model.onnx", "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    layers = {layer["name"]: layer for layer in told["layers"]}
    assert layers["inside"]["output_shape"] == layers["loop"]["output_shape"] == "?", layers
    assert layers["inside"].get("activation_bytes") is None
    assert told["outputs"][1]["shape"] == "?"


@pytest.mark.parametrize("form", ["plain", "weights-only"])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_in_bodies_are_counted(kind: str, form: str, tmp_path: Path) -> None:
    onnx.save(MODELS[kind](), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "d", samples(kind, 6))
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, "--no-bench", "--json"]
    chosen = ["--preset", "plain"] if form == "plain" else ["--weights-only", "--block-size", "16"]
    done = support.detent(*command, *chosen, "--op-types", "MatMul,Gemm,Conv" if form == "plain" else "MatMul,Gemm")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["nodes_quantized"] + told["nodes_in_float"] == PRODUCTS[kind], told
    if form == "plain":
        assert told["nodes_in_float"] == 0
