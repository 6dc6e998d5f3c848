"""Values that one grid cannot hold: parts of very different size, masks, large biases; and what the runtime's integers make."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from graphs import FLOAT, INT64
from onnx import TensorProto, helper, numpy_helper
from support import detent, quantize, save_samples


def db(a, b):
    noise = np.square(a.astype(float) - b).sum()
    return np.inf if noise == 0 else 10 * np.log10(np.square(a.astype(float)).sum() / noise)


def save(folder, nodes, inputs, outputs, constants, opset=17, kind=FLOAT):
    values = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
    results = [helper.make_tensor_value_info(n, kind, s) for n, s in outputs]
    graph = helper.make_graph(nodes, "g", values, results, [numpy_helper.from_array(a, n) for n, a in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def floats(seed, *shape, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def run(path, sample):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, sample)


BALANCED = ["--preset", "balanced"]
TARGETS = ["qnn", "qnn:a16", "amd-npu:xint8", "amd-npu:a8w8", "tflite-like", "openvino", "tensorrt"]


FORMS = {"plain": ["--preset", "plain"], **{t: [*BALANCED, "--target", t] for t in TARGETS}}
BEHIND = [("plain", "Transpose"), ("plain", "Split"), ("qnn", "Split"), ("amd-npu:xint8", "Transpose"), ("tflite-like", "Split")]


@pytest.mark.parametrize(("form", "behind"), [*[(f, "") for f in FORMS], *BEHIND])
def test_small_parts_of_an_output_live_beside_large_ones(tmp_path, form, behind):
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Conv", ["c", "wb", "bb"], ["large"]),
        node("Conv", ["c", "ws"], ["s"]),
        node("Sigmoid", ["s"], ["small"]),
        node("Concat", ["large", "small"], ["y" if not behind else "joined"], axis=1),
    ]
    outputs = [("y", [1, 8, 6, 6])]
    if behind == "Transpose":
        nodes.append(node("Transpose", ["joined"], ["y"], perm=[0, 2, 3, 1]))
        outputs = [("y", [1, 6, 6, 8])]
    if behind == "Split":
        nodes.append(node("Split", ["joined"], ["y", "z"], axis=1))
        outputs = [("y", [1, 4, 6, 6]), ("z", [1, 4, 6, 6])]
    constants = {
        "w": floats(1, 8, 3, 1, 1),
        "wb": floats(2, 4, 8, 1, 1, scale=60),
        "ws": floats(3, 4, 8, 1, 1),
        "bb": floats(4, 4) * 100,
    }
    samples = [{"x": floats(i, 1, 3, 6, 6)} for i in range(3)]
    model = save(tmp_path, nodes, [("x", FLOAT, [1, 3, 6, 6])], outputs, constants)
    save_samples(tmp_path / "data", samples)
    quantize(model, tmp_path / "q.onnx", tmp_path / "data", "--no-bench", *FORMS[form])
    expected, found = run(model, samples[0]), run(tmp_path / "q.onnx", samples[0])
    for a, b in zip(expected, found, strict=True):
        if behind != "Split":
            a, b = (v[..., 4:] if behind else v[:, 4:] for v in (a, b))
        assert db(a, b) > 15, db(a, b)


LOWEST = float(np.finfo(np.float32).min)
LOWEST_16 = float(np.finfo(np.float16).min)
MASKS = [
    ("Where", -np.inf),
    ("Where", -1e9),
    ("Mul", LOWEST),
    ("Mul", -1e4),
    ("input", -1e9),
    ("input", LOWEST),
    ("filled", -np.inf),
]
MASKS_16 = [("Where", -np.inf), ("Where", LOWEST_16), ("Mul", LOWEST_16), ("input", LOWEST_16), ("filled", -np.inf)]
MASKS_IN = [(np.float32, *mask) for mask in MASKS] + [(np.float16, *mask) for mask in MASKS_16]


def masked_scores(form, kind, mask):
    """Of scores s and what is kept of them, m, that the Softmax reads: t."""
    node = helper.make_node
    choice = [node("Cast", ["m"], ["f"], to=kind), node("Sub", ["one", "f"], ["h"]), node("Mul", ["h", "low"], ["a"])]
    number = numpy_helper.from_array(np.array([mask], helper.tensor_dtype_to_np_dtype(kind)))
    filled = [node("Shape", ["s"], ["shape"]), node("ConstantOfShape", ["shape"], ["full"], value=number)]
    filled += [node("Trilu", ["full", "above"], ["a"], upper=1), node("Add", ["s", "a"], ["t"])]
    return {
        "Where": [node("Cast", ["m"], ["b"], to=TensorProto.BOOL), node("Where", ["b", "s", "low"], ["t"])],
        "Mul": [*choice, node("Add", ["s", "a"], ["t"])],
        "input": [node("Add", ["s", "m"], ["t"])],
        "filled": filled,
    }[form]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("target", ["plain", "qnn", "qnn:a16", "amd-npu:a8w8", "openvino", "tensorrt"])
@pytest.mark.parametrize(("dtype", "form", "mask"), MASKS_IN)
def test_masks_do_not_ruin_the_scores(tmp_path, target, mask, form, dtype):
    node, kind = helper.make_node, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("MatMul", ["x", "wq"], ["q"]),
        node("MatMul", ["x", "wk"], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"]),
        *masked_scores(form, kind, mask),
        node("Softmax", ["t"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["y"]),
    ]
    constants = {
        "wq": floats(1, 16, 16, scale=0.3).astype(dtype),
        "wk": floats(2, 16, 16, scale=0.3).astype(dtype),
        "one": dtype(1),
        "low": dtype(mask),
        "above": np.int64(1),
    }
    kept = np.ones((8, 1, 8), np.int64)
    for i in range(8):
        kept[i, 0, 8 - i % 4 :] = 0
    masks = np.where(kept == 1, dtype(0), dtype(mask)) if form == "input" else kept
    samples = [{"x": floats(10 + i, 1, 8, 16).astype(dtype), "m": masks[i : i + 1]} for i in range(8)]
    inputs = [("x", kind, [1, 8, 16]), ("m", kind if form == "input" else INT64, [1, 1, 8])]
    model = save(tmp_path, nodes, inputs, [("y", [1, 8, 16])], constants, kind=kind)
    save_samples(tmp_path / "data", samples)
    quantize(model, tmp_path / "q.onnx", tmp_path / "data", "--no-bench", *FORMS[target])
    found = min(db(run(model, s)[0], run(tmp_path / "q.onnx", s)[0]) for s in samples)
    assert found > 15, found


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("per", ["--per-channel", "--per-tensor"])
@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
def test_biases_beyond_int32(tmp_path, weights, per, kind):
    constants = {
        "w": floats(1, 6, 4, 1, 1, scale=1e-9) if kind == "Conv" else floats(1, 4, 6, scale=1e-9),
        "b": floats(2, 6, scale=5),
    }
    shape = [1, 4, 3, 3] if kind == "Conv" else [2, 4]
    nodes = [helper.make_node(kind, ["x", "w", "b"], ["y"])]
    samples = [{"x": floats(i, *shape, scale=20)} for i in range(4)]
    model = save(tmp_path, nodes, [("x", FLOAT, shape)], [("y", None)], constants)
    save_samples(tmp_path / "data", samples)
    quantize(model, tmp_path / "q.onnx", tmp_path / "data", "--preset", "plain", "--weight-type", weights, per)
    assert db(run(model, samples[0])[0], run(tmp_path / "q.onnx", samples[0])[0]) > 25


POOLS = [dict(ceil_mode=c, count_include_pad=i, pads=[p] * 4) for c in (0, 1) for i in (0, 1) for p in (0, 1)]
ALONE = {
    **{f"AveragePool {a}": ("AveragePool", ["x"], dict(kernel_shape=[3, 3], strides=[2, 2], **a)) for a in POOLS},
    "MaxPool ceil": ("MaxPool", ["x"], dict(kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)),
    "GlobalAveragePool": ("GlobalAveragePool", ["x"], {}),
    "LeakyRelu": ("LeakyRelu", ["x"], dict(alpha=0.3)),
    "Sigmoid": ("Sigmoid", ["x"], {}),
    "Softmax 1": ("Softmax", ["x"], dict(axis=1)),
    "Softmax -1": ("Softmax", ["x"], dict(axis=-1)),
    "Pad reflect": ("Pad", ["x", "pads"], dict(mode="reflect")),
    "Pad edge": ("Pad", ["x", "pads"], dict(mode="edge")),
    "Pad constant": ("Pad", ["x", "pads", "five"], {}),
    "Add": ("Add", ["x", "row"], {}),
    "Mul": ("Mul", ["x", "row"], {}),
    "Concat": ("Concat", ["x", "x"], dict(axis=2)),
    "Resize": ("Resize", ["x", "", "scales"], dict(mode="nearest")),
    "Clip": ("Clip", ["x", "low", "five"], {}),
    "ConvTranspose": ("ConvTranspose", ["x", "wt"], dict(strides=[2, 2], output_padding=[1, 1])),
    "ConvTranspose groups": ("ConvTranspose", ["x", "wg", "b"], dict(group=2)),
    "Conv groups": ("Conv", ["x", "wc", "b"], dict(group=2, pads=[1] * 4)),
    "InstanceNormalization": ("InstanceNormalization", ["x", "b", "b"], {}),
}


@pytest.mark.parametrize("name", ALONE)
def test_the_runtimes_integers_are_those_of_an_operator_between_pairs(tmp_path, name):
    """With the runtime's optimizations and without: within a step and a half of the output."""
    kind, inputs, attributes = ALONE[name]
    constants = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "five": np.float32(2.5),
        "low": np.float32(-1),
        "zero": np.zeros(1, np.float32),
        "row": floats(5, 1, 4, 1, 8),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "b": np.abs(floats(6, 4)),
        "wt": floats(7, 4, 4, 3, 3, scale=0.2),
        "wg": floats(8, 4, 2, 3, 3, scale=0.3),
        "wc": floats(9, 4, 2, 3, 3, scale=0.3),
    }
    samples = [{"x": floats(i, 1, 4, 7, 8)} for i in range(4)]
    # Behind an operator whose results are quantized.
    inputs = ["h" if name == "x" else name for name in inputs]
    nodes = [helper.make_node("Add", ["x", "zero"], ["h"]), helper.make_node(kind, inputs, ["y"], **attributes)]
    model = save(
        tmp_path, nodes, [("x", FLOAT, [1, 4, 7, 8])], [("y", None)], {n: a for n, a in constants.items() if n in [*inputs, "zero"]}
    )
    save_samples(tmp_path / "data", samples)
    quantize(model, tmp_path / "q.onnx", tmp_path / "data", "--preset", "plain")
    expected, found = run(model, samples[0])[0], run(tmp_path / "q.onnx", samples[0])[0]
    assert db(expected, found) > 25, db(expected, found)


def test_an_idle_cast_in_front_of_integers(tmp_path):
    node = helper.make_node
    nodes, constants = [], {"one": np.float32(1), "two": np.float32(2), "eps": np.float32(1e-6)}
    x = "x"
    for i in range(3):
        nodes += [
            node("Cast", [x], [f"c{i}"], to=FLOAT),
            node("Pow", [f"c{i}", "two"], [f"p{i}"]),
            node("ReduceMean", [f"p{i}"], [f"m{i}"], axes=[-1]),
            node("Add", [f"m{i}", "eps"], [f"a{i}"]),
            node("Sqrt", [f"a{i}"], [f"s{i}"]),
            node("Div", ["one", f"s{i}"], [f"r{i}"]),
            node("Mul", [f"c{i}", f"r{i}"], [f"n{i}"]),
            node("MatMul", [f"n{i}", f"w{i}"], [f"z{i}"]),
            node("Add", [x, f"z{i}"], [f"o{i}"]),
        ]
        constants[f"w{i}"] = floats(i, 32, 32, scale=0.2)
        x = f"o{i}"
    nodes.append(node("Relu", [x], ["y"]))
    samples = [{"x": floats(i, 1, 8, 32)} for i in range(4)]
    model = save(tmp_path, nodes, [("x", FLOAT, [1, 8, 32])], [("y", [1, 8, 32])], constants, opset=14)
    save_samples(tmp_path / "data", samples)
    for target in ("qnn", "amd-npu:a8w8", "tflite-like"):
        quantize(model, tmp_path / "q.onnx", tmp_path / "data", "--no-bench", *BALANCED, "--target", target)
        assert db(run(model, samples[0])[0], run(tmp_path / "q.onnx", samples[0])[0]) > 20


@pytest.mark.parametrize("target", ["openvino", "tensorrt", "xnnpack", "qnn:a16", "amd-npu:a16w8", "amd-npu:xint8"])
def test_silu_under_targets(tmp_path, target):
    node = helper.make_node
    nodes, constants, x = [], {}, "x"
    for i in range(4):
        nodes += [
            node("Conv", [x, f"w{i}", f"b{i}"], [f"c{i}"], pads=[1] * 4),
            node("Sigmoid", [f"c{i}"], [f"g{i}"]),
            node("Mul", [f"c{i}", f"g{i}"], [f"s{i}"]),
        ]
        constants |= {f"w{i}": floats(i, 8, 3 if i == 0 else 8, 3, 3, scale=0.2), f"b{i}": floats(10 + i, 8)}
        x = f"s{i}"
    nodes.append(node("Conv", [x, "wo"], ["y"]))
    constants["wo"] = floats(9, 5, 8, 1, 1)
    samples = [{"x": np.abs(floats(i, 1, 3, 12, 12))} for i in range(4)]
    model = save(tmp_path, nodes, [("x", FLOAT, [1, 3, 12, 12])], [("y", [1, 5, 12, 12])], constants)
    save_samples(tmp_path / "data", samples)
    result = detent(
        "quantize",
        model,
        "-o",
        tmp_path / "q.onnx",
        "--calibration-data",
        tmp_path / "data",
        "--no-bench",
        *BALANCED,
        "--target",
        target,
    )
    assert result.returncode == 0, result.stderr
    assert "no values of it were seen" not in result.notes
    if target.startswith(("qnn", "amd")):
        assert "in float:" not in result.stdout


def test_convolutions_become_bfloat16(tmp_path):
    """Which is a type of Conv from opset 22 on."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    model = save(tmp_path, nodes, [("x", FLOAT, [1, 3, 8, 8])], [("y", None)], {"w": floats(1, 8, 3, 3, 3)})
    result = detent("quantize", model, "-o", tmp_path / "q.onnx", "--preset", "none", "--target", "amd-npu:bf16")
    assert result.returncode == 0, result.stderr
    written = onnx.load(tmp_path / "q.onnx")
    assert [t.data_type for t in written.graph.initializer] == [TensorProto.BFLOAT16]
    assert max(o.version for o in written.opset_import if not o.domain) == 22


def test_positions_stay_as_they_are(tmp_path):
    """Logarithms of relative positions, infinite where they are thrown away."""
    node = helper.make_node
    nodes = [
        node("Cast", ["n"], ["f"], to=FLOAT),
        node("Log", ["f"], ["l"]),
        node("Mul", ["l", "three"], ["k"]),
        node("Cast", ["k"], ["i"], to=INT64),
        node("Less", ["n", "small"], ["is_small"]),
        node("Where", ["is_small", "n", "i"], ["at"]),
        node("Gather", ["table", "at"], ["bias"]),
        node("MatMul", ["x", "w"], ["z"]),
        node("Add", ["z", "bias"], ["y"]),
    ]
    constants = {"three": np.float32(3), "small": np.array(4), "table": floats(1, 16, 8), "w": floats(2, 8, 8)}
    samples = [{"x": floats(i, 9, 8), "n": np.arange(9)} for i in range(3)]
    model = save(tmp_path, nodes, [("x", FLOAT, [9, 8]), ("n", INT64, [9])], [("y", [9, 8])], constants)
    save_samples(tmp_path / "data", samples)
    for options in (["--preset", "plain"], [*BALANCED, "--target", "qnn"]):
        quantize(model, tmp_path / "q.onnx", tmp_path / "data", "--no-bench", *options)
        assert db(run(model, samples[0])[0], run(tmp_path / "q.onnx", samples[0])[0]) > 25


def noted(tmp_path, samples, weight=0.3, options=()):
    constants = {"w": floats(1, 8, 3, 3, 3, scale=weight), "b": floats(2, 8)}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"])]
    model = save(tmp_path, nodes, [("x", FLOAT, [1, 3, 8, 8])], [("y", None)], constants)
    save_samples(tmp_path / "data", samples)
    result = detent(
        "quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", tmp_path / "data", "--preset", "plain", *options
    )
    return result.returncode, result.stdout + result.notes + result.stderr


@pytest.mark.parametrize(
    ("samples", "weight", "said"),
    [
        ([np.zeros((1, 3, 8, 8))] * 3, 0.3, "is 0 everywhere"),
        ([np.full((1, 3, 8, 8), i / 4) for i in range(3)], 0.3, "is one number everywhere in each of the 3 samples"),
        ([np.abs(floats(1, 1, 3, 8, 8))] * 4, 0.3, "all 4 samples are the same"),
        ([np.abs(floats(i % 2, 1, 3, 8, 8)) for i in range(4)], 0.3, "2 of 4 samples are the same"),
        ([np.abs(floats(i, 1, 3, 8, 8)) * 100 for i in range(3)], 0.3, "as of 0 to 1"),
        ([floats(i, 1, 3, 8, 8) * 100 for i in range(3)], 0.3, "as of 0 to 1"),
        ([np.abs(np.tanh(floats(i, 1, 3, 8, 8))) for i in range(3)], 0.001, "as of 0 to 255"),
        ([np.tanh(floats(i, 1, 3, 8, 8)) for i in range(3)], 0.001, "as of 0 to 255"),
        ([np.abs(np.tanh(floats(i, 1, 3, 8, 8))) for i in range(3)], 0.3, None),
    ],
)
def test_suspicious_samples_are_named(tmp_path, samples, weight, said):
    code, text = noted(tmp_path, [{"x": s.astype(np.float32)} for s in samples], weight)
    assert code == 0, text
    if said is None:
        assert "samples are" not in text and "look like" not in text and "everywhere" not in text, text
    else:
        assert said in text, text


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("behind", ["table", "cast", "columns"])
@pytest.mark.parametrize(("least", "most", "said"), [(0, 30, None), (-3, 30, "negative numbers in"), (0, 40, "has 30 entries")])
def test_places_outside_of_a_table_are_named(tmp_path, kind, behind, least, most, said):
    nodes = [
        helper.make_node("Cast", ["ids"], ["places"], to=INT64 if behind == "cast" else TensorProto.INT32),
        helper.make_node("Gather", ["table", "places" if behind == "cast" else "ids"], ["e"], axis=int(behind == "columns")),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    table, rows = ((16, 30), 7) if behind == "columns" else ((30, 16), 16)
    nodes = nodes if behind == "cast" else nodes[1:]
    dtype = INT64 if kind == np.int64 else TensorProto.INT32
    constants = {"table": floats(1, *table), "w": floats(2, rows, 8)}
    model = save(tmp_path, nodes, [("ids", dtype, [7])], [("y", None)], constants)
    samples = [{"ids": np.random.default_rng(i).integers(least, most, 7).astype(kind)} for i in range(8)]
    samples[5]["ids"][3] = most - 1
    samples[6]["ids"][2] = least
    save_samples(tmp_path / "data", samples)
    command = ["quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", tmp_path / "data", "--preset", "plain"]
    result = detent(*command)
    text = result.stdout + result.notes + result.stderr
    assert result.returncode == (3 if most > 30 else 0), text
    if said is None:
        assert "input 'ids'" not in text, text
    else:
        assert "input 'ids' holds" in text and said in text and "'table'" in text, text


def test_samples_without_values_are_refused(tmp_path):
    constants = {"w": floats(1, 8, 3, 3, 3), "b": floats(2, 8)}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"])]
    model = save(tmp_path, nodes, [("x", FLOAT, ["N", 3, 8, 8])], [("y", None)], constants)
    save_samples(tmp_path / "data", [{"x": np.zeros((0, 3, 8, 8), np.float32)}] * 2)
    result = detent("quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", tmp_path / "data", "--preset", "plain")
    assert result.returncode == 3 and "the samples hold no values" in result.stderr, result.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_nan_is_blamed_on_the_input(tmp_path):
    broken = floats(1, 1, 3, 8, 8)
    broken[0, 0, 0, :2] = np.nan
    code, text = noted(tmp_path, [{"x": floats(0, 1, 3, 8, 8)}, {"x": broken}])
    assert code == 3 and "input 'x' holds 2 NaN" in text, text


def test_weights_only_refuses_targets_that_it_does_not_serve(tmp_path):
    save(
        tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", FLOAT, [1, 64])], [("y", None)], {"w": floats(1, 64, 64)}
    )
    for target, expected in (("qnn", 2), ("ort-cpu", 0)):
        result = detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / f"w{expected}.onnx", "--weights-only", "--target", target)
        assert result.returncode == expected, result.stderr
