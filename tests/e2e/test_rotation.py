"""The residual stream, rotated: the float model is the same, and outliers among channels cost nothing any more."""

import json
import re

import decoders
import inject_outliers
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from decoders import build_decoder
from failures import RESOURCE, check
from onnx import TensorProto, helper, numpy_helper
from support import Path
from test_trained_decoder import windows

RNG = np.random.default_rng(0)
WIDTH, WORDS, LENGTH = 48, 96, 12  # 48: three times a power of two


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_decoder.build(tmp_path_factory.mktemp("decoder") / "decoder")


def constants(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def only_in_blocks(product: str) -> list[object]:
    """All weights stay in float but that of one product."""
    return [
        "--weights-only",
        "--bits",
        8,
        "--set",
        "node-bits=^.*=float",
        "--set",
        f"node-bits={product}=8",
        "--set",
        "rotation=on",
    ]


def with_float_product(path: Path, node: str, weight: np.ndarray) -> onnx.ModelProto:
    """The model with a product by this matrix where it has one in blocks."""
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), "float_weight"))
    for place, found in enumerate(model.graph.node):
        if found.op_type == "MatMulNBits":
            assert found.name == node
            plain = helper.make_node("MatMul", [found.input[0], "float_weight"], [found.output[0]])
            model.graph.node[place].CopyFrom(plain)
    return model


def rotation_between(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """By which the rows of a table were multiplied: orthogonal, and constant vectors stay as they are."""
    rotation = np.linalg.lstsq(before.astype(np.float64), after.astype(np.float64), rcond=None)[0]
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(len(rotation)), atol=1e-5)
    np.testing.assert_allclose(rotation.sum(0), 1, atol=1e-4)
    return rotation


def outputs(model: onnx.ModelProto | Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    loaded = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(loaded, providers=["CPUExecutionProvider"]).run(["logits"], feed)[0]


def test_the_trained_decoder_stays_the_same(source: Path, tmp_path: Path) -> None:
    node, weight = "/model/layers.1/mlp/gate_proj/MatMul", "model.layers.1.mlp.gate_proj.weight"
    result = support.detent("quantize", source, "-o", tmp_path / "out", "--no-bench", *only_in_blocks(node))
    assert result.returncode == 0, result.stderr
    before, after = constants(source / "model.onnx"), constants(tmp_path / "out" / "model.onnx")
    rotation = rotation_between(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
    gain = before["model.layers.1.post_attention_layernorm.weight"]
    model = with_float_product(tmp_path / "out" / "model.onnx", node, rotation.T @ (gain[:, None] * before[weight]))
    shape, _ = build_decoder.trained()
    ids = RNG.integers(1, shape.vocabulary, (2, 64))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    feed |= {name: np.zeros((2, *value.shape[1:]), np.float32) for name, value in decoders.empty_cache(shape).items()}
    x, y = outputs(source / "model.onnx", feed), outputs(model, feed)
    assert np.abs(x - y).max() <= 2e-4 * np.abs(x).max()
    # Values of heads were rotated too, and nothing is left as it was but queries and keys in their own space.
    changed = {name for name in before if name in after and not np.array_equal(before[name], after[name])}
    assert {f"model.layers.{n}.self_attn.{p}_proj.weight" for n in range(shape.layers) for p in "qkvo"} <= changed


class Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int, shift: float = 0) -> str:
        values = (RNG.standard_normal(shape) * (shape[0] ** -0.5 if len(shape) > 1 else 0.3) + shift).astype(np.float32)
        self.tensors.append(numpy_helper.from_array(values, name))
        return name

    def add(self, kind: str, inputs: list[str], output: str, **more: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **more))
        return output

    def norm(self, x: str, name: str) -> str:
        return self.add("LayerNormalization", [x, self.weight(f"{name}.g", WIDTH, shift=1), self.weight(f"{name}.b", WIDTH)], name)

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        product = self.add("MatMul", [x, self.weight(f"{name}.w", rows, columns)], f"{name}.product")
        return self.add("Add", [self.weight(f"{name}.b", columns), product], name)


def gpt(post_norm: bool = False, constant_positions: bool = False) -> onnx.ModelProto:
    """Of GPT-2's shape: learned positions, LayerNormalization with biases, the table tied to the last product."""
    g = Graph()
    words = g.add("Gather", [g.weight("wte", WORDS, WIDTH), "input_ids"], "words")
    g.tensors.append(numpy_helper.from_array(np.arange(LENGTH), "places"))
    positions = g.weight("wpe", *([1] if constant_positions else []), LENGTH, WIDTH)
    x = g.add("Add", [words, positions if constant_positions else g.add("Gather", [positions, "places"], "positions")], "x")
    for layer in range(2):
        at = f"layer{layer}"
        y = x if post_norm else g.norm(x, f"{at}.ln1")
        q, k, v = (g.linear(y, f"{at}.{part}", WIDTH, WIDTH) for part in "qkv")
        y = g.add("MultiHeadAttention", [q, k, v], f"{at}.attention", domain="com.microsoft", num_heads=4)
        x = g.add("Add", [x, g.linear(y, f"{at}.o", WIDTH, WIDTH)], f"{at}.x1")
        y = x = g.norm(x, f"{at}.ln2") if post_norm else x
        y = y if post_norm else g.norm(x, f"{at}.ln2")
        y = g.add("Relu", [g.linear(y, f"{at}.up", WIDTH, 2 * WIDTH)], f"{at}.relu")
        x = g.add("Add", [g.linear(y, f"{at}.down", 2 * WIDTH, WIDTH), x], f"{at}.x2")
    y = g.norm(x, "final")
    g.add("MatMul", [y, g.add("Transpose", ["wte"], "wte.t", perm=[1, 0])], "logits")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", LENGTH])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", LENGTH, WORDS])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(g.nodes, "g", [ids], [logits], g.tensors), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("constant_positions", [True, False], ids=["constant", "table"])
def test_layer_normalization_and_a_tied_table_stay_the_same(tmp_path: Path, constant_positions: bool) -> None:
    onnx.save(gpt(constant_positions=constant_positions), tmp_path / "m.onnx")
    node, weight = "layer1.up.product", "layer1.up.w"
    options = ["--json", "--no-bench", *only_in_blocks(node)]
    result = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", *options)
    assert result.returncode == 0, result.stderr
    assert any("'wte' is stored twice" in note for note in json.loads(result.stdout)["notes"])
    before, after = constants(tmp_path / "m.onnx"), constants(tmp_path / "q.onnx")
    rotation = rotation_between(before["wte"], after["wte"])
    rotated = rotation.T @ (before["layer1.ln2.g"][:, None] * before[weight])
    model = with_float_product(tmp_path / "q.onnx", node, rotated)
    feed = {"input_ids": RNG.integers(0, WORDS, (3, LENGTH))}
    x, y = outputs(tmp_path / "m.onnx", feed), outputs(model, feed)
    assert np.abs(x - y).max() <= 1e-4 * np.abs(x).max()


@pytest.fixture(scope="session")
def outliers(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outliers") / "decoder"
    inject_outliers.inject_folder(source, folder)
    return folder


def divergence(model: Path, output: Path, held_out: Path, *options: object) -> float:
    words = ("quantize", model, "-o", output, "--weights-only", "--set", "accuracy-level=1", "--no-bench", *options)
    result = support.detent(*words)
    assert result.returncode == 0, result.stderr
    words = ("compare", model, output, "--calibration-data", held_out, "--batch-size", 1, "--outputs-only", "--json")
    return json.loads(support.detent(*words).stdout)["next_tokens"]["kl_divergence"]


@pytest.mark.full
def test_outliers_cost_nothing_without_samples(source: Path, outliers: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers are missing; scripts/setup.sh runtimes fetches them")
    held_out = windows(source, "held_out.txt", tmp_path / "held_out.npy", 256)
    np.save(held_out, np.load(held_out)[:24])
    options = ["--set", "weights-method=nearest"]
    as_it_is = divergence(outliers, tmp_path / "a", held_out, *options)
    rotated = divergence(outliers, tmp_path / "b", held_out, *options, "--set", "rotation=on")
    without = divergence(source, tmp_path / "c", held_out, *options, "--set", "rotation=on")
    assert rotated < 0.4 * as_it_is
    # A rotation does not see by which powers of two gains and weights make up for each other.
    assert rotated == pytest.approx(without, rel=1e-6)


@pytest.mark.full
def test_auto_keeps_what_is_nearer(source: Path, outliers: Path, tmp_path: Path) -> None:
    ids = RNG.integers(1, 512, (16, 64))
    np.save(tmp_path / "ids.npy", ids)
    options = ["--weights-only", "--batch-size", 1, "--set", "rotation=auto"]
    kept = {}
    for name, model, method in (("search", outliers, "search"), ("auto", source, "auto")):
        result = support.quantize(model, tmp_path / name, tmp_path / "ids.npy", *options, "--set", f"weights-method={method}")
        told = result["rotated"]
        assert told["kept"] == (told["error_after"] < told["error_before"])
        norm = constants(tmp_path / name / "model.onnx")
        assert told["kept"] == any(tensor.endswith("_ones") for tensor in norm)
        kept[name] = told["kept"]
    assert kept["search"]
    # The better way is solved on all samples, as if it had been asked for.
    on = ["--set", "rotation=on", "--set", "weights-method=search"]
    support.quantize(outliers, tmp_path / "on", tmp_path / "ids.npy", *options[:3], *on)
    assert (tmp_path / "on" / "model.onnx").read_bytes() == (tmp_path / "search" / "model.onnx").read_bytes()


@pytest.mark.full
def test_the_summary_tells_what_auto_chose(source: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", RNG.integers(1, 512, (8, 16)))
    options = [
        "--calibration-data",
        tmp_path / "ids.npy",
        "--batch-size",
        1,
        "--weights-only",
        "--set",
        "rotation=auto",
        "--no-bench",
    ]
    floats = ["--weight-type", "float8e4m3fn", "--set", "scale-type=float8e4m3fn"]
    result = support.detent("quantize", source, "-o", tmp_path / "out", *options, *floats)
    assert result.returncode == 0, result.stderr
    found = re.search(r"^rotation: (kept|left out), SQNR .* (\S+) dB without, (\S+) dB with it$", result.stdout, re.MULTILINE)
    assert found
    assert (found[1] == "kept") == (float(found[3]) > float(found[2])) and float(found[2]) > 10
    worst = re.search(r"worst output SQNR (\S+) dB", result.stdout)
    assert float(worst[1]) > 10, "values in the cache are rotated, and no worse for it"
    table = support.detent("quantize", source, "-o", tmp_path / "md", *options, *floats, "--summary", "md")
    assert f"- {found[0]}\n" in table.stdout, table.stdout
    family = [option for option in options if option != "--weights-only"]
    told = support.detent("quantize", source, "-o", tmp_path / "family", *family, "--family", "fp16,q4,q4f16")
    lines = re.findall(r"^(\S+): rotation: (kept|left out), SQNR ", told.stdout, re.MULTILINE)
    assert [name for name, _ in lines] == ["q4", "q4f16"], told.stderr


@pytest.mark.parametrize("options", [["--weight-type", "float4e2m1"], ["--bits", 4, "--set", "scale-type=float8e8m0"]])
def test_auto_needs_a_format_that_runs_here(source: Path, tmp_path: Path, options: list[object]) -> None:
    np.save(tmp_path / "ids.npy", RNG.integers(1, 512, (8, 16)))
    words = ("quantize", source, "-o", tmp_path / "out", "--calibration-data", tmp_path / "ids.npy", "--batch-size", 1)
    result = support.detent(*words, "--weights-only", "--set", "rotation=auto", *options)
    assert result.returncode == 2
    assert "ONNX Runtime's CPU does not run this format; give --set rotation=on or off" in result.stderr


@pytest.mark.parametrize("options", [["--set", "rotation=auto"], ["--set", "rotation=auto", "--max-size", "1MiB"]])
def test_auto_needs_samples(source: Path, tmp_path: Path, options: list[object]) -> None:
    result = support.detent("quantize", source, "-o", tmp_path / "out", "--weights-only", *options)
    assert result.returncode != 0
    assert "--set rotation=auto needs samples" in result.stderr


def test_what_cannot_be_rotated_is_named(tmp_path: Path) -> None:
    onnx.save(gpt(post_norm=True), tmp_path / "m.onnx")
    words = ("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--weights-only", "--set", "rotation=on", "--no-bench")
    result = support.detent(*words)
    assert result.returncode != 0
    assert "the residual stream cannot be rotated at Add 'layer0.x2'" in result.stderr
    np.save(tmp_path / "ids.npy", RNG.integers(0, WORDS, (8, LENGTH)))
    told = support.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "ids.npy", "--weights-only", "--set", "rotation=auto"
    )
    assert any(note.startswith("not rotated: ") for note in told["notes"])
    assert "rotated" not in told


def test_rotated_weights_count_as_disk(source: Path, tmp_path: Path) -> None:
    command = ["quantize", source, "--weights-only", "--no-bench", "--set", "rotation=on"]
    refused = support.detent(*command, "-o", tmp_path / "out", "--disk-budget", "1KiB")
    check(RESOURCE, r"rotated weights need .* of disk, but only 1\.0 KiB", refused.returncode, refused.stderr, refused.stdout)
    assert not (tmp_path / "out").exists()
    smallest = re.search(r"--disk-budget (\d+)MiB", refused.stderr).group(1)
    done = support.detent(*command, "-o", tmp_path / "out", "--disk-budget", f"{smallest}MiB")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_other_members_of_a_family_do_not_take_values_of_the_rotated_model(tmp_path: Path) -> None:
    """A channel that is too large for float16, with room for other samples, and which rotation spreads over all."""
    model = gpt()
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "layer0.down.b")
    values = numpy_helper.to_array(bias).copy()
    values[3] = 4e4
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "ids.npy", RNG.integers(0, WORDS, (4, LENGTH)))
    options = ["--calibration-data", tmp_path / "ids.npy", "--batch-size", 1]
    family = ["--family", "fp16,q4", "--block-size", 16, "--set", "rotation=on"]
    done = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "family", *options, *family)
    assert done.returncode == 0, done.stderr
    alone = ("--preset", "none", "--float", 16)
    assert support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "fp16.onnx", *options, *alone).returncode == 0
    member = next((tmp_path / "family").rglob("*_fp16.onnx"))
    assert member.read_bytes() == (tmp_path / "fp16.onnx").read_bytes()
