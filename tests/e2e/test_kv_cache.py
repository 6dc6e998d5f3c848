"""A decoder's cache of keys and values in 8 and 4 bits: scales against numpy, and what onnxruntime-genai makes of it."""

import json
import os
import re
import signal
import subprocess
import sys

import decoders
import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from decoders import build_decoder
from failures import RESOURCE, check
from onnx import TensorProto, numpy_helper
from support import Path
from test_trained_decoder import GENERATE, NEW_TOKENS, PROMPTS, encoded, windows

MOST = {"int8": 127, "int4": 7, "fp8": 448}
ALONE = ["--preset", "none", "--kv-cache", "int8"]
TYPES = {"int8": TensorProto.INT8, "int4": TensorProto.UINT8, "fp8": TensorProto.FLOAT8E4M3FN}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_decoder.build(tmp_path_factory.mktemp("decoder") / "decoder")


@pytest.fixture(scope="session")
def samples(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers", reason="tokenizers are missing; scripts/setup.sh runtimes fetches them")
    path = windows(source, "calibration.txt", tmp_path_factory.mktemp("ids") / "ids.npy", 128)
    np.save(path, np.load(path)[:16])
    return path


def caches(source: Path, samples: Path) -> dict[str, np.ndarray]:
    """By output: [heads, positions of all samples, channels], with keys as long as the pair that positions turn."""
    shape, _ = build_decoder.trained()
    session = ort.InferenceSession(source / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs() if output.name != "logits"]
    found = []
    for row in np.load(samples)[:, None]:
        feed = {"input_ids": row, "attention_mask": np.ones_like(row), **decoders.empty_cache(shape)}
        found.append([value[0] for value in session.run(names, feed)])
    values = {name: np.abs(np.concatenate(parts, 1)) for name, parts in zip(names, zip(*found, strict=True), strict=True)}
    half = shape.head // 2
    for name in names:
        if name.endswith(".key"):
            length = np.hypot(values[name][..., :half], values[name][..., half:])
            values[name] = np.concatenate([length, length], -1)
    return values


def scales_of(path: Path) -> dict[str, np.ndarray]:
    """By output of the attention."""
    graph = onnx.load(path).graph
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    return {node.output[1 + part]: tensors[node.input[12 + part]] for node in nodes for part in (0, 1)}


def error(values: np.ndarray, scale: float, most: int) -> float:
    return float(((np.clip(np.rint(values / scale), -most, most) * scale - values) ** 2).sum())


def test_the_plan_of_a_cache_alone(source: Path, samples: Path) -> None:
    line = [source, "--preset", "none", "--kv-cache", "int8", "--calibration-data", samples]
    planned = json.loads(support.detent("plan", *line, "--json").stdout)
    assert planned["samples"] > 0 and planned["nodes_quantized"] == 0
    assert planned["output_bytes"] > 0.9 * (source / "model.onnx").stat().st_size
    told = support.detent("plan", *line[:-2])
    assert told.returncode == 2 and "--kv-cache needs samples" in told.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("granularity", [[], ["--set", "kv-cache-per-channel"]], ids=["tensor", "channel"])
@pytest.mark.parametrize("kind", MOST)
def test_scales_are_the_best_for_what_the_cache_held(
    source: Path, samples: Path, tmp_path: Path, kind: str, granularity: list[str]
) -> None:
    shape, _ = build_decoder.trained()
    file = tmp_path / "scales.json"
    options = ["--preset", "none", "--kv-cache", kind, *granularity, "--set", f"kv-cache-scales={file}", "--batch-size", 1]
    result = support.quantize(source, tmp_path / "out", samples, *options)
    model = onnx.load(tmp_path / "out" / "model.onnx")
    ends = [v for v in (*model.graph.input, *model.graph.output) if v.name.startswith(("past", "present"))]
    assert {v.type.tensor_type.elem_type for v in ends} == {TYPES[kind]}
    width = shape.head // 2 if kind == "int4" else shape.head
    assert {v.type.tensor_type.shape.dim[3].dim_value for v in ends} == {width}
    attributes = next(n for n in model.graph.node if n.op_type == "GroupQueryAttention").attribute
    told = {a.name: onnx.helper.get_attribute_value(a) for a in attributes}
    assert told["k_quant_type"] == told["v_quant_type"] == (b"PER_CHANNEL" if granularity else b"PER_TENSOR")
    assert told["kv_cache_bit_width"] == (4 if kind == "int4" else 8)

    stored = scales_of(tmp_path / "out" / "model.onnx")
    most, expected = MOST[kind], caches(source, samples)
    for name, scales in stored.items():
        values = expected[name]
        parts = values.transpose(0, 2, 1).reshape(-1, values.shape[1]) if granularity else values.reshape(1, -1)
        assert scales.size == len(parts)
        found = least = 0.0
        for scale, part in list(zip(scales.ravel(), parts, strict=True))[:: 8 if granularity else 1]:
            largest = part.max() / most
            if kind == "fp8":
                np.testing.assert_allclose(scale, largest, rtol=1e-6)
                continue
            least += min(error(part, largest * share, most) for share in np.linspace(0.2, 1, 33))
            assert scale <= largest * (1 + 1e-6)
            found += error(part, scale, most)
        assert found <= 1.15 * least

    builder = json.loads(file.read_text())
    assert builder["layer_ids"] == [layer["layer"] for layer in result["kv_scales"]] == list(range(shape.layers))
    for layer in range(shape.layers):
        for part, names in (("key", ("k_scales", "keys")), ("value", ("v_scales", "values"))):
            scales = stored[f"present.{layer}.{part}"].ravel()
            np.testing.assert_allclose(np.ravel(builder["scales"][names[0]][layer]), scales, rtol=1e-6)
            np.testing.assert_allclose(result["kv_scales"][layer][names[1]], scales, rtol=1e-6)


def test_the_memory_budget_counts_and_changes_nothing(source: Path, samples: Path, tmp_path: Path) -> None:
    command = ["quantize", source, "--preset", "none", "--kv-cache", "int8", "--no-bench", "--calibration-data", samples]
    refused = support.detent(*command, "-o", tmp_path / "out", "--memory-budget", "10MiB")
    check(RESOURCE, "the smallest --memory-budget that works is", refused.returncode, refused.stderr, refused.stdout)
    assert not (tmp_path / "out").exists()
    smallest = re.search(r"works is (\d+)MiB", refused.stderr).group(1)
    written = []
    for name, options in {"a": [], "b": ["--memory-budget", f"{smallest}MiB"], "c": ["--set", "segments=3"]}.items():
        done = support.detent(*command, "-o", tmp_path / name, *options)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        written.append((tmp_path / name / "model.onnx").read_bytes())
    assert written[0] == written[1] == written[2]


def test_a_run_that_was_killed_goes_on_in_other_segments(source: Path, samples: Path, tmp_path: Path) -> None:
    command = ["quantize", source, *ALONE, "--no-bench", "--calibration-data", samples, "--batch-size", 1]
    assert support.detent(*command, "-o", tmp_path / "reference").returncode == 0
    (tmp_path / "work").mkdir()
    command += ["-o", tmp_path / "out", "--work-dir", tmp_path / "work", "--resume", "--set", "memory-level=2"]
    killed = support.detent(*command, "--set", "segments=20", env={**os.environ, "DETENT_FAILPOINT": "weights.sample=kill@20"})
    assert killed.returncode == -signal.SIGKILL
    resumed = support.detent(*command, "--set", "segments=6")
    assert resumed.returncode == 0, resumed.stderr
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (tmp_path / "reference" / "model.onnx").read_bytes()
    assert not list((tmp_path / "work").iterdir())


def step_by_step(path: Path, tokens: list[int]) -> list[int]:
    """Greedily with the cache, in whatever type the model has it."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8}
    cache = {
        i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), types[i.type]) for i in session.get_inputs() if i.name.startswith("past")
    }
    tokens, fed = list(tokens), tokens
    for _ in range(NEW_TOKENS):
        mask = np.ones((1, len(tokens)), np.int64)
        logits, *present = session.run(None, {"input_ids": np.array([fed]), "attention_mask": mask, **cache})
        fed = [int(logits[0, -1].argmax())]
        tokens += fed
        cache = dict(zip(cache, present, strict=True))
        if fed == [0]:
            break
    return tokens


# KL divergence on text that was no sample; of weights in blocks of 4 bits alone it is 0.004.
WAYS = {
    "int8": (["--preset", "none", "--kv-cache", "int8"], 0.0005),
    "int4 by channel": (["--preset", "none", "--kv-cache", "int4", "--set", "kv-cache-per-channel"], 0.03),
    "blocks": (["--weights-only", "--kv-cache", "int8", "--set", "kv-cache-per-channel"], 0.01),
    "blocks, float16": (["--weights-only", "--float", 16, "--set", "keep-io-types", "--kv-cache", "int8"], 0.01),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_onnxruntime_genai_runs_it(source: Path, samples: Path, tmp_path: Path, way: str) -> None:
    options, most = WAYS[way]
    folder = tmp_path / "out"
    support.quantize(source, folder, samples, "--batch-size", 1, *options)
    held_out = windows(source, "held_out.txt", tmp_path / "held_out.npy", 256)
    np.save(held_out, np.load(held_out)[:16])
    words = ("compare", source, folder, "--calibration-data", held_out, "--batch-size", 1, "--outputs-only", "--json")
    result = support.detent(*words)
    assert (result.returncode, result.stderr) == (0, "")
    assert 0 < json.loads(result.stdout)["next_tokens"]["kl_divergence"] <= most
    if not (support.LANGUAGE / "onnxruntime_genai").is_dir():
        pytest.skip("onnxruntime-genai is missing; scripts/setup.sh runtimes fetches it")
    environment = {**os.environ, "PYTHONPATH": str(support.LANGUAGE)}
    command = [sys.executable, "-c", GENERATE, str(folder), str(NEW_TOKENS), *PROMPTS]
    made = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == 0, made.stderr
    prompts = [encoded(source, prompt) for prompt in PROMPTS]
    assert json.loads(made.stdout) == [step_by_step(folder / "model.onnx", tokens) for tokens in prompts]


@pytest.mark.full
def test_scales_of_the_pass_that_solves_weights_are_those_of_a_pass_alone(source: Path, samples: Path, tmp_path: Path) -> None:
    alone = support.quantize(source, tmp_path / "a", samples, "--batch-size", 1, "--preset", "none", "--kv-cache", "int8")
    options = ["--batch-size", 1, "--weights-only", "--kv-cache", "int8"]
    beside = support.quantize(source, tmp_path / "b", samples, *options)
    floats = support.quantize(source, tmp_path / "c", samples, *options, "--weight-type", "float8e4m3fn")
    assert alone["kv_scales"] == beside["kv_scales"] == floats["kv_scales"]
    tensors = [{t.name: t.SerializeToString() for t in onnx.load(tmp_path / f / "model.onnx").graph.initializer} for f in "ab"]
    assert all(tensors[0][name] == tensors[1][name] for name in tensors[0] if name.endswith("_scale"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kv-cache", "int8"], "--kv-cache goes with --weights-only, or with --preset none"),
        ([*ALONE, "--set", "block-float=bfp16"], "--set block-float means nothing with --kv-cache and --preset none"),
        ([*ALONE, "--target", "amd-npu:bfp16"], "--target means nothing with --kv-cache"),
        ([*ALONE, "--exclude-nodes", "no_node"], "--exclude-nodes means nothing with --kv-cache"),
        ([*ALONE, "--shape", "input_ids:1x8"], "--shape means nothing with --kv-cache"),
        ([*ALONE, "--workers", 2], "--workers means nothing with --kv-cache"),
        ([*ALONE, "--set", "gds=on"], "--set gds means nothing with --kv-cache"),
        ([*ALONE, "--bits", 8], "--bits means nothing with --kv-cache"),
        ([*ALONE, "--set", "no-keep-io-types"], "--set no-keep-io-types means nothing with --kv-cache"),
        (["--preset", "none", "--kv-cache", "int8", "--float", 16], "goes with --weights-only, or with --preset none"),
        (["--weights-only", "--set", "kv-cache-per-channel"], "give --kv-cache int8, int4 or fp8"),
        (["--weights-only", "--kv-cache", "int8", "--accuracy-target", 0.9], "leave out one of them"),
        (["--weights-only", "--float", 16, "--kv-cache", "fp8"], "--kv-cache fp8 does not go with --float 16"),
        (["--family", "q4", "--kv-cache", "int8"], "does not go with --family"),
    ],
)
def test_what_does_not_go_together(source: Path, samples: Path, tmp_path: Path, options: list[object], message: str) -> None:
    result = support.detent("quantize", source, "-o", tmp_path / "out", "--calibration-data", samples, *options)
    assert result.returncode != 0
    assert message in result.stderr
    assert result.stderr.count("\n") <= 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [["int8"], ["int4", "--set", "kv-cache-per-channel"]], ids=lambda options: options[0])
def test_verify_gives_each_model_the_cache_that_it_reads(source: Path, samples: Path, tmp_path: Path, options: list[str]) -> None:
    support.quantize(source, tmp_path / "out", samples, "--batch-size", 1, "--preset", "none", "--kv-cache", *options)
    data = ("--calibration-data", samples, "--batch-size", 1, "--samples", 2)
    result = support.detent("verify", source, tmp_path / "out", *data, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    logits = next(output for output in told["outputs"] if output["name"] == "logits")
    assert logits["deployed"]["sqnr_db"] > 10
    assert told["latency"]


def test_models_and_folders_without_such_a_cache(samples: Path, tmp_path: Path) -> None:
    scale = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    opset = [onnx.helper.make_opsetid("", 17)]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [scale])
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    options = ["--preset", "none", "--kv-cache", "int8"]
    words = ("quantize", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--calibration-data", tmp_path / "x.npy")
    plain = support.detent(*words, *options)
    assert "has no attention with past and present keys" in plain.stderr
    folder = decoders.transformers_folder(tmp_path / "transformers")
    web = support.detent("quantize", folder, "-o", tmp_path / "out", "--calibration-data", samples, *options)
    assert "transformers.js" in web.stderr
    without = support.detent("quantize", folder / "onnx" / "model.onnx", "-o", tmp_path / "out.onnx", *options)
    assert "--kv-cache needs samples" in without.stderr


HEADS, HEAD, WIDTH = 2, 32, 64
PASTS = ("past_key_values.0.key", "past_key_values.0.value")


def joined_decoder(path: Path) -> dict[str, np.ndarray]:
    """Attention as exporters write it without an operator of its own: a Concat of earlier and new keys, and one of values."""
    b = graphs.Builder(3)
    weights = {name: b.rng.normal(0, 0.15, (WIDTH, WIDTH)).astype(np.float32) for name in ("q", "k", "v", "o")}
    for name, weight in weights.items():
        b.constant(name, weight)
    parts, whole = b.constant("parts", [0, 0, HEADS, HEAD], np.int64), b.constant("whole", [0, 0, WIDTH], np.int64)
    q, k, v = (b.add("Transpose", b.add("Reshape", b.add("MatMul", "x", n), parts), perm=[0, 2, 1, 3]) for n in ("q", "k", "v"))
    turned = b.add("Mul", b.add("Neg", k), b.constant("sine", 0.6))
    keys = b.add("Concat", PASTS[0], b.add("Add", b.add("Mul", k, b.constant("cosine", 0.8)), turned), name="present.0.key", axis=2)
    values = b.add("Concat", PASTS[1], v, axis=-2)
    present = b.add("Identity", values, name="present.0.value")
    shares = b.add("Softmax", b.add("MatMul", q, b.add("Transpose", keys, perm=[0, 1, 3, 2])), axis=-1)
    mixed = b.add("Transpose", b.add("MatMul", shares, values), perm=[0, 2, 1, 3])
    logits = b.add("MatMul", b.add("Reshape", mixed, whole), "o", name="logits")
    cache = (graphs.FLOAT, [1, HEADS, "past", HEAD])
    inputs = {"x": (graphs.FLOAT, [1, "new", WIDTH]), PASTS[0]: cache, PASTS[1]: cache}
    onnx.save(b.model(inputs, [logits, keys, present, b.add("Shape", PASTS[0])]), path)
    return weights


def joined_samples(folder: Path) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    rows = [rng.normal(size=(1, 24, WIDTH)).astype(np.float32) for _ in range(8)]
    empty = np.zeros((1, HEADS, 0, HEAD), np.float32)
    support.save_samples(folder, [{"x": row, PASTS[0]: empty, PASTS[1]: empty} for row in rows])
    return rows


@pytest.mark.parametrize("granularity", [[], ["--set", "kv-cache-per-channel"]], ids=["tensor", "channel"])
@pytest.mark.parametrize("way", [["--preset", "none"], ["--weights-only", "--bits", 8, "--float", 16]], ids=["alone", "beside"])
def test_caches_that_a_concat_joins(tmp_path: Path, granularity: list[object], way: list[object]) -> None:
    weights = joined_decoder(tmp_path / "m.onnx")
    rows = joined_samples(tmp_path / "data")
    options = [*way, "--kv-cache", "int8", *granularity]
    result = support.quantize(tmp_path / "m.onnx", tmp_path / "o.onnx", tmp_path / "data", *options)
    session = ort.InferenceSession(tmp_path / "o.onnx", providers=["CPUExecutionProvider"])
    assert [i.type for i in session.get_inputs()[1:]] == ["tensor(int8)"] * 2

    def heads(row: np.ndarray, name: str) -> np.ndarray:
        return (row @ weights[name]).reshape(1, -1, HEADS, HEAD).transpose(0, 2, 1, 3)

    scales = [np.array(result["kv_scales"][0][part], np.float32) for part in ("keys", "values")]
    if granularity:
        scales = [scale.reshape(1, HEADS, 1, HEAD) for scale in scales]
    row = rows[0]
    made = [heads(row, "k") * np.float32(0.8) - heads(row, "k") * np.float32(0.6), heads(row, "v")]
    stored = [np.clip(np.rint(value / scale), -128, 127) for value, scale in zip(made, scales, strict=True)]
    assert all(0.5 < np.abs(value).max() / 127 <= 1.1 for value in stored)
    cache = {name: np.zeros((1, HEADS, 0, HEAD), np.int8) for name in PASTS}
    for begin, end in ((0, 10), (10, 11), (11, 24)):
        logits, *present, shape = session.run(None, {"x": row[:, begin:end], **cache})
        assert list(shape) == [1, HEADS, begin, HEAD]
        cache = dict(zip(PASTS, present, strict=True))
        for found, expected in zip(present, stored, strict=True):
            assert found.dtype == np.int8
            assert np.abs(found - expected[:, :, :end]).max() <= (3 if len(way) > 2 else 0)  # rounded weights
        keys, values = (p.astype(np.float32) * scale for p, scale in zip(present, scales, strict=True))
        scores = heads(row[:, begin:end], "q") @ keys.transpose(0, 1, 3, 2)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (share / share.sum(-1, keepdims=True)) @ values
        expected = mixed.transpose(0, 2, 1, 3).reshape(1, -1, WIDTH) @ weights["o"]
        np.testing.assert_allclose(logits, expected, atol=0.15 if len(way) > 2 else 1e-4)
    verified = support.detent("verify", tmp_path / "m.onnx", tmp_path / "o.onnx", "--calibration-data", tmp_path / "data", "--json")
    assert verified.returncode == 0, verified.stderr


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_a_concat_joins_integers_of_8_bits_alone(tmp_path: Path, kind: str) -> None:
    joined_decoder(tmp_path / "m.onnx")
    joined_samples(tmp_path / "data")
    options = ["--preset", "none", "--kv-cache", kind, "--calibration-data", tmp_path / "data"]
    told = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", *options)
    assert told.returncode == 3 and "which only int8 can be" in told.stderr and "--kv-cache int8" in told.stderr, told.stderr


def test_scale_files_replace_nothing_else(source: Path, samples: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for path, message in ((source / "model.onnx", "would overwrite"), (notes, "has no scales of a cache")):
        before = path.read_bytes()
        options = ["--preset", "none", "--kv-cache", "int8", "--set", f"kv-cache-scales={path}", "--calibration-data", samples]
        result = support.detent("quantize", source, "-o", tmp_path / "out", *options)
        assert result.returncode == 2 and message in result.stderr, result.stderr
        assert path.read_bytes() == before


@pytest.mark.full
def test_caches_that_samples_fill_are_not_compared(tmp_path: Path) -> None:
    shape, _ = build_decoder.trained()
    build_decoder.build(tmp_path / "decoder")
    model = tmp_path / "decoder" / "model.onnx"
    rng = np.random.default_rng(0)
    filled = [
        {
            "input_ids": rng.integers(0, shape.vocabulary, (1, 8)),
            "attention_mask": np.ones((1, 8 + past), np.int64),
            **{
                name: rng.standard_normal((1, value.shape[1], past, value.shape[3]), np.float32)
                for name, value in decoders.empty_cache(shape).items()
            },
        }
        for past in (0, 4)
    ]
    data = support.save_samples(tmp_path / "data", filled)
    for way in (["--weights-only"], ["--weights-only", "--float", 16], ["--preset", "none"]):
        options = [*way, "--kv-cache", "int8", "--batch-size", 1]
        result = support.quantize(model, tmp_path / "out.onnx", data, *options)
        assert any("fills the cache" in note for note in result["notes"])
    empty = support.save_samples(tmp_path / "empty", filled[:1])
    told = json.loads(support.detent("compare", model, tmp_path / "out.onnx", "--calibration-data", empty, "--json").stdout)
    assert [output["name"] for output in told["outputs"]] == ["logits"]
    assert any("not compared" in note for note in told["notes"])
