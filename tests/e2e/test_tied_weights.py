"""Weights that several nodes read are stored once."""

import json
import subprocess

import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT
from onnx import TensorProto, helper, numpy_helper
from support import Path

RNG = np.random.default_rng(11)
FORMATS = (
    *("int8", "int8-dynamic", "uint8-dynamic", "int8-qoperator", "a16w8", "q8", "q4", "q2", "q4f16", "fp16", "bf16"),
    *("fp8", "mxfp8", "mxfp4", "nvfp4", "bfp16"),
)


def tied(path: Path, rows: int = 64, entries: int = 96, head: str = "transpose") -> Path:
    """As in language models whose last product has the embedding's weights."""
    table = RNG.standard_normal((entries, rows)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"], "table")]
    if head == "transpose":
        nodes.append(helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "turned"], ["y"], "head"))
    elif head == "gemm":
        nodes.append(helper.make_node("Gemm", ["x", "table"], ["y"], "head", transB=1))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", d]) for n, d in (("x", rows), ("y", entries))][: len(nodes)]
    graph = helper.make_graph(nodes, "g", [ids], ends, [numpy_helper.from_array(table, "table")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def integers(path: Path) -> list[onnx.TensorProto]:
    """Initializers that hold packed integers, without zero points and shapes."""
    return [t for t in onnx.load(path).graph.initializer if "_Q" in t.name and not t.name.endswith("_shape")]


@pytest.mark.parametrize("head", ["transpose", "gemm"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_table_and_product_share_their_integers(tmp_path: Path, bits: int, symmetric: bool, head: str) -> None:
    model = tied(tmp_path / "m.onnx", head=head)
    options = ["--bits", bits, "--set", "accuracy-level=1", "--set", "weight-symmetric" if symmetric else "weight-asymmetric"]
    result = support.weights_only(model, tmp_path / "q.onnx", *options)
    types = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    assert types == ["Reshape", "GatherBlockQuantized", "MatMulNBits"]
    assert len(integers(tmp_path / "q.onnx")) == 1 and not any("stored twice" in note for note in result["notes"])

    # Both are what the definition says of the integers.
    found = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    parts = [found[f"table_Q{bits}"] >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    values = np.stack(parts, axis=-1).reshape(96, 2, 32).astype(np.float64)
    zero = np.full((96, 2), 1 << bits - 1)
    if not symmetric:
        zero = np.stack([found["table_zero_points"] >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], axis=-1).reshape(
            96, 2
        )
    weight = ((values - zero[..., None]) * found["table_scales"].reshape(96, 2, 1)).reshape(96, 64)
    x, y = support.load(tmp_path / "q.onnx").run(None, {"ids": np.arange(9)})
    np.testing.assert_allclose(x, weight[:9], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, weight[:9] @ weight.T, rtol=1e-3, atol=1e-2)


def test_16_bits_beside_blocks_store_a_table_once(tmp_path: Path) -> None:
    support.weights_only(tied(tmp_path / "m.onnx"), tmp_path / "q.onnx", "--float", 16)
    assert len(integers(tmp_path / "q.onnx")) == 1
    x, y = support.load(tmp_path / "q.onnx").run(None, {"ids": np.arange(9)})
    expected = support.load(tmp_path / "m.onnx").run(None, {"ids": np.arange(9)})
    assert support.sqnr([expected[0]], [x]) > 15 and support.sqnr([expected[1]], [y]) > 10


@pytest.mark.full
@pytest.mark.parametrize("rows", [64, 50])
def test_every_runtime_reads_what_is_shared(rows: int, tmp_path: Path) -> None:
    """From 1.24 on; the oldest has no tables of bytes."""
    tied(tmp_path / "m.onnx", rows=rows)
    for bits in (4, 8):
        for form in ("matmul-nbits", "qdq"):
            quantized = tmp_path / f"{bits}-{form}.onnx"
            chosen = ["--op-types", "MatMul,Gather"] if form == "qdq" else []
            support.weights_only(tmp_path / "m.onnx", quantized, "--bits", bits, "--weights-form", form, *chosen)
            assert len(integers(quantized)) == (2 if form == "qdq" and rows % 32 else 1)
            expected = support.load(quantized).run(None, {"ids": np.arange(9)})
            for runtime in support.RUNTIMES:
                found = support.run_in(runtime, quantized, tmp_path / "r.npz", ids=np.arange(9))
                if runtime.name == "1.21.1" and form == "matmul-nbits":
                    assert found is None
                    continue
                assert found is not None, runtime.name
                for a, b in zip(expected, found, strict=True):
                    assert support.sqnr([[a]], [[b]]) > 35, (bits, form, runtime.name)


def test_zero_points_that_fill_no_bytes_are_stored_twice(tmp_path: Path) -> None:
    """ONNX Runtime 1.24 looks up wrong values of such tables, and says nothing."""
    model = tied(tmp_path / "m.onnx", rows=96)
    result = support.weights_only(model, tmp_path / "q.onnx")
    assert any("'table' is stored twice" in note and "--set weight-symmetric" in note for note in result["notes"])
    assert len(integers(tmp_path / "q.onnx")) == 2
    support.weights_only(model, tmp_path / "q.onnx", "--set", "weight-symmetric")
    assert len(integers(tmp_path / "q.onnx")) == 1


@pytest.mark.parametrize("block", [32, "channel"])
@pytest.mark.parametrize("bits", [4, 8])
def test_dequantizers_share_a_table(tmp_path: Path, bits: int, block: object) -> None:
    """The product reads it transposed, which the runtime computes once: it fuses the product all the same. With scales
    of whole channels it does not, so these are stored twice."""
    model = tied(tmp_path / "m.onnx")
    options = ["--weights-form", "qdq", "--bits", bits, "--block-size", block, "--op-types", "MatMul,Gather"]
    result = support.weights_only(model, tmp_path / "q.onnx", *options)
    support.check_model(tmp_path / "q.onnx")
    twice = block == "channel"
    assert len(integers(tmp_path / "q.onnx")) == 1 + twice
    assert any("stored twice" in note for note in result["notes"]) == twice
    sample = [{"ids": np.arange(9)}]
    found = support.outputs(support.load(tmp_path / "q.onnx"), sample)
    assert support.sqnr(support.outputs(support.load(model), sample), found) > (15 if bits == 4 else 35)
    session = support.ort.SessionOptions()
    session.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session.log_severity_level = 3
    support.ort.InferenceSession(tmp_path / "q.onnx", session, providers=["CPUExecutionProvider"])
    types = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert sorted(types) == ["DequantizeLinear", "Gather", "MatMulNBits"]


@pytest.mark.parametrize("others", [0, 2000])
def test_a_table_stays_in_float_beside_blocks_where_the_file_shrinks_all_the_same(others: int, tmp_path: Path) -> None:
    model = onnx.load(tied(tmp_path / "m.onnx"))
    small, large = (numpy_helper.from_array(RNG.normal(0, 0.1, (96, n)).astype(np.float32), f"w{n}") for n in (4, others + 1))
    model.graph.initializer.extend([small, large])
    for weight, out in ((small, "small"), (large, "large")):
        model.graph.node.append(helper.make_node("MatMul", ["y", weight.name], [out], out))
        model.graph.output.append(helper.make_tensor_value_info(out, TensorProto.FLOAT, ["n", weight.dims[1]]))
    onnx.save(model, tmp_path / "m.onnx")
    result = support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", "--weights-form", "qdq")
    assert any("'table' stays in float as well" in note for note in result["notes"]) == (others > 0), result["notes"]
    assert result["model_bytes_after"] < result["model_bytes_before"]


@pytest.mark.parametrize("options", [["--block-size", 32], ["--bits", 2], ["--block-size", 32, "--set", "weights-form=qdq"]])
def test_a_table_and_a_product_get_a_form_that_both_can_read(options: list, tmp_path: Path) -> None:
    """Blocks of 32 do not divide 48 values, and no table is looked up in 2 bits: in float, it would stand beside blocks."""
    model = tied(tmp_path / "m.onnx", rows=48)
    result = support.weights_only(model, tmp_path / "q.onnx", *options)
    assert result["nodes_quantized"] == 2
    assert result["model_bytes_after"] < 0.6 * result["model_bytes_before"]
    assert any("4 bits in blocks of 16, which both can read" in note for note in result["notes"]), result["notes"]
    sample = [{"ids": np.arange(9)}]
    found = support.outputs(support.load(tmp_path / "q.onnx"), sample)
    assert support.sqnr(support.outputs(support.load(model), sample), found) > 15


@pytest.mark.parametrize("head", ["transpose", "gemm", "none"])
@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
def test_blocks_need_not_divide_the_entries_of_a_table(form: str, head: str, tmp_path: Path) -> None:
    """Entries are filled up to whole blocks, and cut where they are read: 300 values are usual for words."""
    model = tied(tmp_path / "m.onnx", rows=50, entries=300, head=head)
    options = ["--set", f"weights-form={form}", "--op-types", "MatMul,Gemm,Gather"]
    result = support.weights_only(model, tmp_path / "q.onnx", *options)
    assert result["nodes_quantized"] == (1 if head == "none" else 2)
    copies = 2 if form == "qdq" and head != "none" else 1
    assert result["model_bytes_after"] < 0.25 * copies * result["model_bytes_before"]
    ends = [support.outputs(support.load(tmp_path / f"{n}.onnx"), [{"ids": np.arange(9)}]) for n in "mq"]
    assert min(support.sqnr(*ends, output=i) for i in range(len(ends[0][0]))) > 15


def test_products_share_data_in_a_file_beside_the_model(tmp_path: Path) -> None:
    """Each needs a DequantizeLinear with tensors of its own, or the runtime merges them and fuses none."""
    weight = numpy_helper.from_array(RNG.standard_normal((256, 64)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"y{i}"], f"p{i}") for i in range(3)]
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["n", 256]) for i in range(3)]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["n", 64]) for i in range(3)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight])
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)

    result = support.weights_only(model, tmp_path / "inside.onnx", "--weights-form", "qdq")
    assert any("of 3 layers" in note and "--set external-data-threshold" in note for note in result["notes"])
    support.weights_only(model, tmp_path / "beside.onnx", "--weights-form", "qdq", "--set", "external-data-threshold=1")
    files = [t for t in onnx.load(tmp_path / "beside.onnx", load_external_data=False).graph.initializer]
    places = {tuple((e.key, e.value) for e in t.external_data) for t in files}
    assert (len(files), len(places)) == (9, 3)
    data = next(p for p in tmp_path.iterdir() if p.name.startswith("beside.onnx") and p.name != "beside.onnx")
    assert data.stat().st_size < 256 * 64 // 2 + 8 * 64 * 5 + 256
    for a, b in zip(
        onnx.load(tmp_path / "inside.onnx").graph.initializer, onnx.load(tmp_path / "beside.onnx").graph.initializer, strict=True
    ):
        np.testing.assert_array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))
    sample = [{f"x{i}": RNG.standard_normal((2, 256)).astype(np.float32) for i in range(3)}]
    both = [support.outputs(support.load(tmp_path / f"{name}.onnx"), sample) for name in ("inside", "beside")]
    assert all(support.sqnr(*both, i) > 100 for i in range(3))


@pytest.mark.parametrize("head", ["transpose", pytest.param("gemm", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", FORMATS)
def test_no_file_is_larger_than_the_float_models(tmp_path: Path, name: str, head: str) -> None:
    """Whoever reads the table: it is stored once, as integers or in float."""
    model = onnx.load(tied(tmp_path / "m.onnx", rows=50, entries=300, head=head))
    middle = (RNG.standard_normal((50, 50)) / 7).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(middle, "middle"))
    model.graph.node.insert(1, helper.make_node("MatMul", ["x", "middle"], ["m"], "middle"))
    model.graph.node[-1].input[0] = "m"
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"ids": RNG.integers(0, 300, 7)} for _ in range(4)]
    data = support.save_samples(tmp_path / "data", samples)
    for options in ([], ["--op-types", "MatMul,Gemm"]):
        command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, "--no-bench"]
        command += ["--json", "--format", name, *options]
        ran = subprocess.run([support.DETENT, *command], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        result = json.loads(ran.stdout)
        # The operators of block floats are in the file beside the floats that they round.
        assert result["model_bytes_after"] <= result["model_bytes_before"] * (1.05 if name == "bfp16" else 1), options
        made = onnx.load(tmp_path / "q.onnx")
        kinds = {t.name: t.data_type for t in made.graph.initializer}
        turned = [kinds.get(node.input[0]) for node in made.graph.node if node.op_type == "Transpose"]
        assert TensorProto.FLOAT8E4M3FN not in turned  # the runtime transposes none
        if name in ("fp16", "int8-dynamic"):
            ends = [support.outputs(support.load(tmp_path / f"{n}.onnx"), samples) for n in "mq"]
            assert support.sqnr(*ends, output=1) > (60 if name == "fp16" else 20)


@pytest.mark.parametrize("product", ["MatMul", "transposed", "Gemm", "transB"])
@pytest.mark.parametrize("columns", [9, 10, 11, 12])
def test_2_bits_that_the_runtime_computes_wrongly_are_not_written(tmp_path: Path, columns: int, product: str) -> None:
    """As DequantizeLinear it takes rows of a product's weight for whole bytes; its own operator does not."""
    rows, turned = 64, product in ("transposed", "transB")
    weight = RNG.standard_normal((columns, rows) if turned else (rows, columns)).astype(np.float32)
    nodes = [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0])] if product == "transposed" else []
    read = "t" if product == "transposed" else "w"
    if product in ("MatMul", "transposed"):
        nodes.append(helper.make_node("MatMul", ["x", read], ["y"], "product"))
    else:
        nodes.append(helper.make_node("Gemm", ["x", read], ["y"], "product", transB=int(turned)))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", d]) for n, d in (("x", rows), ("y", columns))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    samples = [{"x": RNG.standard_normal((4, rows)).astype(np.float32)} for _ in range(4)]
    reference = support.outputs(support.load(tmp_path / "m.onnx"), samples)
    for form in ("qdq", "matmul-nbits"):
        options = ["--weights-only", "--bits", "2", "--weights-form", form]
        if form == "qdq" and columns % 4:
            done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *options)
            assert done.returncode == BAD_INPUT and "--set weights-form=matmul-nbits stores it" in done.stderr
            assert not (tmp_path / "q.onnx").exists()
            continue
        support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", *options[1:])
        assert support.sqnr(reference, support.outputs(support.load(tmp_path / "q.onnx"), samples)) > 7
