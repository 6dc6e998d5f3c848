"""Block floats: the operators that AMD Quark's library runs, where they stand, and what they make of a model."""

import json

import block_floats
import numpy as np
import onnx
import pytest
from graphs import FLOAT, Builder, cnn_samples, small_cnn, transformer, transformer_samples
from support import MODELS, detent, save_samples

FORMATS = {
    "bfp16": {"bfp_method": b"to_bfp", "bit_width": 16, "block_size": 8},
    "mx4": {"bfp_method": b"to_bfp_prime", "bit_width": 11, "block_size": 16},
    "mx6": {"bfp_method": b"to_bfp_prime", "bit_width": 13, "block_size": 16},
    "mx9": {"bfp_method": b"to_bfp_prime", "bit_width": 16, "block_size": 16},
    "mxfp8e5m2": {"element_dtype": b"fp8_e5m2", "block_size": 32},
    "mxfp8e4m3": {"element_dtype": b"fp8_e4m3", "block_size": 32},
    "mxfp6e3m2": {"element_dtype": b"fp6_e3m2", "block_size": 32},
    "mxfp6e2m3": {"element_dtype": b"fp6_e2m3", "block_size": 32},
    "mxfp4e2m1": {"element_dtype": b"fp4_e2m1", "block_size": 32},
    "mxint8": {"element_dtype": b"int8", "block_size": 32},
}


def converted(folder, *options, data=None):
    out = folder / "q.onnx"
    given = ["--calibration-data", data] if data else []
    result = detent("quantize", folder / "m.onnx", "-o", out, *given, *options, "--json")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return onnx.load(out), json.loads(result.stdout)


def operators(model):
    """Attributes of the operators by the value that they round."""
    found = {}
    for node in model.graph.node:
        if node.domain == "com.amd.quark":
            found.setdefault(node.input[0], []).append({a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
    return found


@pytest.fixture(scope="module")
def cnn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cnn")
    onnx.save(small_cnn(batch=1), folder / "m.onnx")
    save_samples(folder / "data", cnn_samples())
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_by_the_arithmetic_of_a_reference(cnn, name):
    model, told = converted(cnn, "--set", f"block-float={name}", data=cnn / "data")
    found = operators(model)
    attributes = {"axis": 1, "rounding_mode": 2, **FORMATS[name]}
    if "bfp_method" in attributes:
        attributes |= {"sub_block_size": 2, "sub_block_shift_bits": 1, "convert_to_bfloat_before_bfp": 0}
    assert found["x"] == [attributes] and len(found) == 13
    assert {o.domain: o.version for o in model.opset_import}["com.amd.quark"] == 1
    signal = noise = 0.0
    for sample in cnn_samples():
        x = block_floats.evaluate(onnx.load(cnn / "m.onnx"), sample)[0].astype(float)
        y = block_floats.evaluate(model, sample)[0].astype(float)
        signal, noise = signal + (x * x).sum(), noise + ((x - y) ** 2).sum()
    assert told["accuracy"]["sqnr_db"] == pytest.approx(10 * np.log10(signal / noise), abs=0.05)
    assert told["accuracy"]["samples"] == 4 and told["nodes_quantized"] == 8


def test_blocks_lie_along_what_products_add_up(tmp_path):
    onnx.save(transformer(), tmp_path / "m.onnx")
    model, _ = converted(tmp_path, "--set", "block-float=mx9")
    by_output = {node.output[0]: node for node in model.graph.node}
    constants = {t.name: list(t.dims) for t in model.graph.initializer}
    seen = 0
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Softmax"):
            continue
        for value, wanted in zip(node.input, (-1, -2), strict=False):
            rounding = by_output[value]
            assert rounding.domain == "com.amd.quark"
            axis = next(a.i for a in rounding.attribute if a.name == "axis")
            rank = len(constants[rounding.input[0]]) if rounding.input[0] in constants else {"ids": 3}.get(value, 0)
            assert axis == wanted or (rank and axis == rank + wanted) or axis in (3 + wanted, 4 + wanted), (node.name, axis)
            seen += 1
    assert seen > 10
    sample = transformer_samples()[0]
    assert np.isfinite(block_floats.evaluate(model, sample)[0]).all()


def test_a_value_whose_readers_want_different_axes_gets_an_operator_for_each(tmp_path):
    b = Builder()
    y = b.add("Relu", b.add("Conv", "x", b.weight("w", 4, 3, 1, 1)))
    ends = [b.add("MatMul", y, b.weight("m", 8, 8)), b.add("Conv", y, b.weight("v", 2, 4, 1, 1)), y]
    onnx.save(b.model({"x": (FLOAT, [1, 3, 8, 8])}, ends), tmp_path / "m.onnx")
    model, _ = converted(tmp_path, "--target", "amd-npu:bfp16")
    axes = {value: sorted(a["axis"] for a in all_of) for value, all_of in operators(model).items()}
    assert axes["relu1.out_QuantizeLinear_Input"] == [1, 3] and axes["m"] == [0] and axes["v"] == [1]
    assert onnx.load(tmp_path / "q.onnx").graph.output[2].name == "relu1.out"


def test_a_trained_model(tmp_path):
    """Nearly the float model's results with 16 bits, and worse with fewer."""
    rng = np.random.default_rng(73)
    (tmp_path / "m.onnx").symlink_to(MODELS / "ppocr_cls.onnx")
    data = save_samples(tmp_path / "data", [{"x": rng.uniform(-1, 1, (1, 3, 48, 96)).astype(np.float32)} for _ in range(3)])
    shape = ["--shape", "x:1x3x48x96"]
    found = [
        converted(tmp_path, *options, *shape, data=data)[1]["accuracy"]["sqnr_db"]
        for options in (["--target", "amd-npu:bfp16"], ["--set", "block-float=mxint8"], ["--set", "block-float=mx4"])
    ]
    assert found[0] > found[2] + 6 and found[1] > found[2] + 6, found


def spelled(option: list) -> str:
    return f"--set {option[1].split('=')[0]}" if option[0] == "--set" else option[0]


# Of samples that values are observed on.
OF_SAMPLES = [
    *(["--set", "segments=2"], ["--workers", 2], ["--set", "memory-level=2"]),
    *(["--set", "spool-access=buffered"], ["--set", "checkpoint-seconds=1"], ["--disk-budget", "1GiB"], ["--device", "cuda:0"]),
]


def test_what_does_not_go_with_block_floats(cnn, tmp_path):
    for options, part in [
        (["--preset", "balanced"], "--optimize-for means nothing with --set block-float"),
        (["--weight-type", "uint8"], "--weight-type means nothing with --set block-float"),
        (["--finetune", "adaround"], "--finetune means nothing with --set block-float"),
        (["--weights-only"], "--set block-float means nothing with --weights-only"),
        (["--float", 16], "--set block-float and --float are both the format of all numbers"),
        (["--set", "no-keep-io-types"], "--set no-keep-io-types needs --float 16"),
        *(([*option], f"{spelled(option)} means nothing with --set block-float") for option in OF_SAMPLES),
    ]:
        result = detent("quantize", cnn / "m.onnx", "-o", tmp_path / "q.onnx", "--set", "block-float=mx9", *options)
        assert result.returncode == 2 and part in result.stderr, result.stderr
    for options in (["--set", "block-float=mx9"], ["--target", "amd-npu:bfp16"]):
        result = detent("plan", cnn / "m.onnx", *options)
        assert result.returncode == 0 and "not for this format" in result.notes, result.stderr
    converted(cnn, "--set", "block-float=mx9")
    again = detent("quantize", cnn / "q.onnx", "-o", tmp_path / "q.onnx", "--set", "block-float=mx9")
    assert again.returncode == 3 and "is quantized already" in again.stderr
    refused = detent(
        "quantize", cnn / "m.onnx", "-o", tmp_path / "q.onnx", "--target", "amd-npu:bfp16", "--set", "block-float=none"
    )
    assert refused.returncode == 2 and "contradicts --target amd-npu:bfp16" in refused.stderr


def test_attributes_of_another_type_are_refused(cnn):
    for options, wrong in (
        (["bfp16"], {"bit_width": 16.0, "bfp_method": 1}),
        (["mxint8"], {"element_dtype": 8, "block_size": "32"}),
    ):
        converted(cnn, "--set", f"block-float={options[0]}", *options[1:])
        for name, value in wrong.items():
            model = onnx.load(cnn / "q.onnx")
            node = next(n for n in model.graph.node if n.domain)
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
            onnx.save(model, cnn / "wrong.onnx")
            refused = detent("compare", cnn / "m.onnx", cnn / "wrong.onnx", "--calibration-data", cnn / "data")
            assert refused.returncode == 3 and f"the attribute {name} must be a" in refused.stderr, refused.stderr


def test_check_of_what_the_npu_gets(cnn):
    converted(cnn, "--target", "amd-npu:bfp16")
    result = json.loads(detent("check", cnn / "q.onnx", "--target", "amd-npu:bfp16", "--json").stdout)
    assert result["falls_back"] == 0 and {n["precision"] for n in result["nodes"] if n["macs"]} == {"block floats"}
    result = json.loads(detent("check", cnn / "m.onnx", "--target", "amd-npu:bfp16", "--json").stdout)
    assert all(n["on_cpu"] for n in result["nodes"] if n["macs"])


def test_results_of_no_use_on_a_target_are_refused(tmp_path):
    """One input of a block is so large that nothing is left of the others, which alone count."""
    b = Builder(3)
    weights = np.random.default_rng(3).normal(size=(8, 4)).astype(np.float32)
    weights[0] = 0
    model = b.model({"x": (FLOAT, [1, 8])}, [b.add("MatMul", "x", b.constant("w", weights, np.float32), name="product")])
    onnx.save(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(4)
    samples = [np.concatenate([[[1e7]], rng.normal(size=(1, 7))], axis=1).astype(np.float32) for _ in range(4)]
    data = save_samples(tmp_path / "data", [{"x": x} for x in samples])
    (tmp_path / "q.onnx").write_bytes(b"what stood there")
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data]
    result = detent(*command, "--target", "amd-npu:bfp16")
    assert result.returncode == 3 and "the block floats of --target amd-npu:bfp16 leave the worst output" in result.stderr
    assert result.stderr.count("\n") == 1 and (tmp_path / "q.onnx").read_bytes() == b"what stood there"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "m.onnx", "q.onnx"]
    assert detent(*command, "--set", "block-float=bfp16").returncode == 0  # as asked for, of no target
