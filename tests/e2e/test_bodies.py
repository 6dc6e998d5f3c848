"""Bodies of If, Loop and Scan are observed and quantized like the graph around them."""

import json
from collections.abc import Iterator
from pathlib import Path

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WIDTH = 16
QUANTIZED = {"QLinearMatMul", "QGemm", "QLinearConv", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}


def info(name: str, kind: int = FLOAT, shape: list | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


class Body(graphs.Builder):
    """Names in it are its own unless they are made unique by `prefix`: bodies of one model often share them."""

    def __init__(self, seed: int, prefix: str = "") -> None:
        super().__init__(seed)
        self.prefix = prefix

    def layer(self, x: str, name: str, activation: str = "Relu") -> str:
        weight = self.weight(f"{self.prefix}{name}.w", WIDTH, WIDTH, scale=0.3)
        return self.add(activation, self.add("MatMul", x, weight, name=f"{self.prefix}{name}"), name=f"{self.prefix}{name}.act")

    def graph(self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, inputs, outputs, self.initializers)


def branches(seen: str, inner: tuple[onnx.GraphProto, onnx.GraphProto] | None = None) -> dict[str, onnx.GraphProto]:
    """Two of them, with the same names in both."""
    made = {}
    for seed, branch in enumerate(("then", "else")):
        b = Body(seed + 10)
        y = b.layer(b.layer(seen, "first"), "second")
        if inner and branch == "then":
            y = b.add("Add", y, b.add("If", "deep", name="inner", then_branch=inner[0], else_branch=inner[1]))
        y = b.add("MatMul", y, b.weight("last.w", WIDTH, WIDTH), name="last")
        made[f"{branch}_branch"] = b.graph(branch, [], [info(y)])
    return made


def with_if(nested: bool = False) -> onnx.ModelProto:
    b = graphs.Builder(1)
    seen = b.add("Relu", b.add("MatMul", "x", b.weight("w", WIDTH, WIDTH), name="before"))
    inner = None
    if nested:
        parts = []
        for seed, name in enumerate(("shallow", "steep")):
            part = Body(seed + 20, "inner.")
            parts.append(part.graph(name, [], [info(part.layer(seen, "only"))]))
        inner = tuple(parts)
    y = b.add("If", "flag", name="choose", **branches(seen, inner))
    y = b.add("MatMul", y, b.weight("w2", WIDTH, WIDTH), name="after")
    inputs = {"x": (FLOAT, ["N", WIDTH]), "flag": (BOOL, [])} | ({"deep": (BOOL, [])} if nested else {})
    model = b.model(inputs, [y])
    model.graph.output[0].CopyFrom(info(y, FLOAT, ["N", WIDTH]))
    return model


def with_loop() -> onnx.ModelProto:
    """h = Tanh(h W + seen U), and the sum of the second as a scan output."""
    b = graphs.Builder(2)
    seen = b.add("Relu", b.add("MatMul", "x", b.weight("w", WIDTH, WIDTH), name="before"))
    body = Body(3)
    mixed = body.add("Add", body.layer("h", "carried", "Tanh"), body.layer(seen, "captured"), name="mixed")
    step = body.add("Tanh", mixed, name="step")
    row = body.add("MatMul", step, body.weight("row.w", WIDTH, 4), name="row")
    body.nodes.append(helper.make_node("Identity", ["go"], ["going"]))
    infos = [info("i", INT64, []), info("go", BOOL, []), info("h", FLOAT, ["N", WIDTH])]
    graph = body.graph("body", infos, [info("going", BOOL, []), info(step), info(row)])
    h = b.add("Loop", "times", b.constant("yes", True, np.bool_), seen, body=graph, name="loop", count=2)
    y = b.add("MatMul", h, b.weight("w2", WIDTH, WIDTH), name="after")
    model = b.model({"x": (FLOAT, ["N", WIDTH]), "times": (INT64, [])}, [y])
    model.graph.output[0].CopyFrom(info(y, FLOAT, ["N", WIDTH]))
    model.graph.output.append(info("loop.out.1", FLOAT, ["T", "N", 4]))
    return model


def with_scan(several: bool = False) -> onnx.ModelProto:
    """A recurrent net along the second axis; with `several`, next to another one that reads from the end, a count, and a
    value from around the body."""
    b = graphs.Builder(4)
    body = Body(5)
    mixed = body.add("Add", body.layer("step", "input"), body.layer("h", "state"), name="mixed")
    h = body.add("Sigmoid", mixed, name="new")
    out = body.add("MatMul", h, body.weight("out.w", WIDTH, WIDTH), name="out")
    row = [FLOAT, ["N", WIDTH]]
    ins, outs = [info("h", *row), info("step", *row)], [info(h), info(out)]
    given, axes, shapes = ["h0", "x"], [1], {"h0": row, "x": (FLOAT, ["N", "T", WIDTH])}
    more: dict[str, object] = {}
    if several:
        seen = b.add("Relu", b.add("MatMul", "h0", b.weight("w", WIDTH, WIDTH), name="before"))
        both = body.add("Add", "back", "c", name="both")
        c = body.add("Tanh", body.add("Add", body.layer(both, "second", "Tanh"), seen, name="with"), name="c2")
        count = body.add("Add", "n", body.constant("one", 1, np.int64), name="count")
        ins = [info("n", INT64, []), info("h", *row), info("c", *row), info("step", *row), info("back", *row)]
        outs = [info(count, INT64, []), info(h), info(c), info(out), info(body.add("Identity", c))]
        given, axes = [b.constant("zero", 0, np.int64), "h0", seen, "x", "z"], [1, 1]
        shapes["z"] = (FLOAT, ["T", "N", WIDTH])
        more = {"scan_input_directions": [0, 1], "scan_output_directions": [0, 1]}
        more["scan_input_axes"] = [1, 0]
    attributes = {"num_scan_inputs": len(axes), "scan_input_axes": axes, "scan_output_axes": axes} | more
    b.add("Scan", *given, body=body.graph("body", ins, outs), name="scan", count=len(outs), **attributes)
    y = b.add("MatMul", "scan.out.3" if several else "scan.out.1", b.weight("w2", WIDTH, WIDTH), name="after")
    if several:
        y = b.add("Add", y, "scan.out.4", name="sum")
    model = b.model(shapes, [y])
    model.graph.output[0].CopyFrom(info(y, FLOAT, ["N", "T", WIDTH]))
    if several:
        model.graph.output.append(info("scan.out", INT64, []))
    return model


def samples(kind: str, count: int = 8) -> list[graphs.Sample]:
    rng = np.random.default_rng(6)
    made = []
    for i in range(count):
        x = rng.normal(size=(3, WIDTH)).astype(np.float32)
        if kind in ("Scan", "several"):
            made.append({"h0": x, "x": rng.normal(size=(3, 4 + i % 3, WIDTH)).astype(np.float32)})
            if kind == "several":
                made[-1]["z"] = rng.normal(size=(4 + i % 3, 3, WIDTH)).astype(np.float32)
        elif kind == "Loop":
            made.append({"x": x, "times": np.array(1 + i % 4)})
        else:
            deep = {"deep": np.array(i % 4 < 2)} if kind == "nested" else {}
            made.append({"x": x, "flag": np.array(i % 2 == 0)} | deep)
    return made


MODELS = {
    "If": with_if,
    "nested": lambda: with_if(nested=True),
    "Loop": with_loop,
    "Scan": with_scan,
    "several": lambda: with_scan(several=True),
}
PRODUCTS = {"If": 8, "nested": 10, "Loop": 5, "Scan": 4, "several": 6}


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes_of(attribute.g)


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
    options = ["--preset", preset, "--weight-range", "reduced", "--no-bench", "--optimize-for", "size"]
    said = support.quantize(model, output, data, *options, "--sensitivity", "off")
    assert not any("body" in note for note in said["notes"]), said["notes"]
    ran = as_run(output, tmp_path)
    assert sum(t in QUANTIZED for t in ran) >= PRODUCTS[kind], ran
    assert quality(model, output, kind) > 22


def test_measured_and_the_same_bytes(case: tuple[str, Path, Path], tmp_path: Path) -> None:
    """Errors are measured with bodies, and neither the budget nor workers change the result."""
    kind, model, data = case
    options = ["--preset", "balanced", "--method", "percentile"]
    said = support.quantize(model, tmp_path / "a.onnx", data, *options)
    assert said["accuracy"]["integer_macs"] > 0.5
    assert quality(model, tmp_path / "a.onnx", kind) > 20
    (tmp_path / "work").mkdir()
    limited = ["--memory-level", "2", "--work-dir", tmp_path / "work"]
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
        options = ["--preset", preset, "--no-bench", "--optimize-for", "size", "--weight-range", "reduced"]
        said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, *options)
        told = [note for note in said["notes"] if "no sample came" in note]
        assert len(told) == 1
        assert "'choose'" in told[0]
        assert "'else_branch': 3 products" in told[0]
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
    options = ["--preset", "balanced", "--no-bench", "--optimize-for", "size", "--sensitivity", "off", "--finetune", "gptq"]
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", data, *options)
    assert any("'else_branch': 2 products" in note for note in said["notes"]), said["notes"]
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
    options = ["--no-bench", "--optimize-for", "size", "--weight-range", "reduced", "--sensitivity", "off"]
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


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        (["--weights-only", "--bits", "8", "--block-size", "16"], 30),
        (["--activations", "dynamic"], 8),  # without VNNI full-range weights saturate
        (["--preset", "none", "--float", "16"], 50),
        (["--quant-format", "qoperator", "--no-bench", "--weight-range", "reduced", "--optimize-for", "size"], 22),
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


def test_inspection_counts_bodies(tmp_path: Path) -> None:
    onnx.save(with_if(nested=True), tmp_path / "model.onnx")
    result = support.detent("inspect", tmp_path / "model.onnx", "--shape", f"x:3x{WIDTH}", "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["macs"] == 10 * 3 * WIDTH * WIDTH
    assert told["op_types"]["MatMul"] == 10


def correlated(kind: str, count: int, seed: int = 8) -> list[graphs.Sample]:
    """Rows that are mixtures of a few: what rounding can make use of."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(9).normal(size=(4, WIDTH))
    made = samples(kind, count)
    for sample in made:
        for name, values in sample.items():
            if values.ndim >= 2:
                noise = rng.normal(size=values.shape)
                sample[name] = (rng.normal(size=(*values.shape[:-1], 4)) @ mix + 0.3 * noise).astype(np.float32)
    return made


FOUR_BITS = ["--preset", "plain", "--weight-type", "int4", "--no-bench", "--activation-type", "uint16"]
METHODS = {"gptq": ["--finetune", "gptq"], "adaround": ["--finetune", "adaround", "--num-iterations", 200]}


def in_float(model: Path) -> ort.InferenceSession:
    """With Q/DQ computed in float, so that kernels have no say."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("method", list(METHODS))
def test_weights_in_bodies_are_tuned(case: tuple[str, Path, Path], method: str, tmp_path: Path) -> None:
    """Every layer gains on the samples that are held back, and the model on others."""
    kind, model, _ = case
    data = support.save_samples(tmp_path / "many", correlated(kind, 48))
    support.quantize(model, tmp_path / "nearest.onnx", data, *FOUR_BITS, "--finetune", "nearest")
    said = support.quantize(model, tmp_path / "tuned.onnx", data, *FOUR_BITS, *METHODS[method])
    assert not any("not fine-tuned" in note for note in said["notes"]), said["notes"]
    assert len(said["layers"]) == PRODUCTS[kind]
    assert sum(layer["tuned"] for layer in said["layers"]) >= PRODUCTS[kind] - 1
    assert support.gain(said["layers"]) < 0.8
    fresh = correlated(kind, 16, seed=10)
    exact = support.outputs(support.load(model), fresh)
    nearest, tuned = (
        support.sqnr(exact, support.outputs(in_float(tmp_path / name), fresh)) for name in ("nearest.onnx", "tuned.onnx")
    )
    assert tuned > nearest + 0.5, (nearest, tuned)


@pytest.mark.parametrize("kind", ["Loop", "Scan"])
def test_bodies_are_tuned_where_measuring_asks_for_it(kind: str, tmp_path: Path) -> None:
    onnx.save(MODELS[kind](), tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", correlated(kind, 32))
    options = ["--preset", "balanced", "--weight-type", "int4", "--no-bench", "--equalize", "off", "--threads", 2]
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "default.onnx", data, *options)
    tuned = said["accuracy"]["tuned"]
    assert tuned["kept"]
    assert tuned["error_after"] < 0.5 * tuned["error_before"]
    assert {"Loop": "carried", "Scan": "state"}[kind] in {layer["name"] for layer in said["layers"]}


def test_tuned_bodies_are_the_same_bytes(case: tuple[str, Path, Path], tmp_path: Path) -> None:
    """Whatever the budget, threads and interruptions."""
    kind, model, _ = case
    data = support.save_samples(tmp_path / "many", correlated(kind, 16))
    options = [*FOUR_BITS, *METHODS["adaround"]]
    support.quantize(model, tmp_path / "a.onnx", data, *options, "--threads", 1)
    expected = support.sha256(tmp_path / "a.onnx")
    support.quantize(model, tmp_path / "b.onnx", data, *options, "--threads", 2, "--memory-level", 2)
    support.quantize(model, tmp_path / "c.onnx", data, *options, "--memory-budget", "200MiB")
    assert support.sha256(tmp_path / "b.onnx") == support.sha256(tmp_path / "c.onnx") == expected
    # The second layer is solved, or in the middle of a pass over a body.
    for point in ("finetune.solved=kill@2", "finetune.sample=kill@45"):
        folder = tmp_path / point.split("=")[0]
        folder.mkdir()
        assert support.sha256(support.resumed_after_kill(point, model, data, folder, *options)) == expected


def with_more_outputs(path: Path, value: str, result: str) -> onnx.ModelProto:
    """The model, whose Loop gives a value in its body as one more output, of all runs."""
    model = onnx.load(path)
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    loop.attribute[0].g.output.append(info(value))
    loop.output.append(result)
    model.graph.output.append(info(result, FLOAT, ["T", "N", WIDTH]))
    return model


def test_error_of_a_layer_in_a_loop(tmp_path: Path) -> None:
    """Reported errors are those over all runs of the body for the sample held back, as NumPy computes them."""
    onnx.save(with_loop(), tmp_path / "model.onnx")
    feeds = correlated("Loop", 8)
    for feed in feeds:
        feed["times"] = np.array(4)
    data = support.save_samples(tmp_path / "data", feeds)
    options = [*FOUR_BITS, "--finetune-nodes", "carried"]
    found: dict[str, np.ndarray] = {}
    for method in ("nearest", "gptq"):
        path = tmp_path / f"{method}.onnx"
        said = support.quantize(tmp_path / "model.onnx", path, data, *options, "--finetune", method)
        body = next(node for node in onnx.load(path).graph.node if node.op_type == "Loop").attribute[0].g
        product = next(node for node in body.node if node.name == "carried")
        if method == "nearest":  # what the layer reads while it is solved: of a model with all weights rounded so
            read = in_float_of(with_more_outputs(path, product.input[0], "read"), tmp_path)
        found[method] = dequantized(onnx.load(path), body, product.input[1])
    exact = in_float_of(with_more_outputs(tmp_path / "model.onnx", "carried.out", "given"), tmp_path)
    (layer,) = said["layers"]
    assert layer["tuned"]
    told = [layer["error_before"], layer["error_after"]]
    matches = []
    for feed in feeds:  # one of which is held back
        x, y = (session.run([name], feed)[0] for session, name in ((read, "read"), (exact, "given")))
        assert len(x) == 4
        matches.append(np.allclose(told, [np.mean((x @ w - y) ** 2) for w in found.values()], rtol=1e-3))
    assert matches.count(True) == 1, (told, matches)


def in_float_of(model: onnx.ModelProto, folder: Path) -> ort.InferenceSession:
    onnx.save(model, folder / "more.onnx")
    return in_float(folder / "more.onnx")


def dequantized(model: onnx.ModelProto, body: onnx.GraphProto, value: str) -> np.ndarray:
    """A weight as a DequantizeLinear makes it, in the body or around it."""
    node = next(n for graph in (body, model.graph) for n in graph.node if value in n.output)
    tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in node.input}
    integers, scale = (tensors[name].astype(np.float32) for name in node.input[:2])
    return integers * scale


def test_bodies_that_few_samples_come_to(tmp_path: Path) -> None:
    """Samples held back alone teach nothing: such layers keep nearest rounding, with a word."""
    onnx.save(with_if(), tmp_path / "model.onnx")
    told = []
    for seed in range(60):  # until the sample is held back that comes to the other branch: contents decide which is
        feeds = correlated("If", 8, seed)
        for i, feed in enumerate(feeds):
            feed["flag"] = np.array(i > 0)
        data = support.save_samples(tmp_path / f"data{seed}", feeds)
        said = support.quantize(tmp_path / "model.onnx", tmp_path / "gptq.onnx", data, *FOUR_BITS, "--finetune", "gptq")
        told = [note for note in said["notes"] if "none came to it" in note]
        if told:
            break
    assert len(told) == 3, said["notes"]
    support.quantize(tmp_path / "model.onnx", tmp_path / "nearest.onnx", data, *FOUR_BITS, "--finetune", "nearest")
    left = [layer["name"] for layer in said["layers"] if not layer["tuned"]]
    assert len(said["layers"]) == 8 and len(left) >= 3
    stored = [{t.name: t for t in onnx.load(tmp_path / f"{m}.onnx").graph.initializer} for m in ("nearest", "gptq")]
    changed = {name for name, tensor in stored[0].items() if stored[1][name] != tensor}
    assert changed and not any("else" in name for name in changed), changed


def test_outer_and_shared_weights(tmp_path: Path) -> None:
    """A weight from around a body is tuned like one in it; one that both branches read is left, with a note."""
    model = with_if()
    choose = next(node for node in model.graph.node if node.op_type == "If")
    bodies = {a.name: a.g for a in choose.attribute}
    for body in bodies.values():
        for tensor in [t for t in body.initializer if t.name in ("first.w", "last.w")]:
            body.initializer.remove(tensor)
            if tensor.name == "first.w" and body is bodies["else_branch"]:
                continue
            name = "shared" if tensor.name == "first.w" else f"outer.{body.name}"
            for node in body.node:
                node.input[:] = [name if n == tensor.name else n for n in node.input]
            tensor.name = name
            model.graph.initializer.append(tensor)
    for node in bodies["else_branch"].node:
        node.input[:] = ["shared" if n == "first.w" else n for n in node.input]
    onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", correlated("If", 32))
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, *FOUR_BITS, "--finetune", "gptq")
    assert sum("several consumers" in note for note in said["notes"]) == 2, said["notes"]
    assert len(said["layers"]) == 6
    assert support.gain(said["layers"]) < 0.9
