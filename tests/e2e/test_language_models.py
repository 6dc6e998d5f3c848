"""Decoders with a KV cache: from the folder that they come in to one that runs the same way."""

import json
import subprocess

import decoders
import inject_outliers
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from onnx import numpy_helper
from support import Path

NO_TABLE = ["--set", "node-bits=/model/embed_tokens/Gather=float"]
PROMPT = [5, 17, 99, 200, 3, 44]
WAYS = {
    "default": ["--preset", "balanced"],
    "blocks": ["--weights-only"],
    "blocks-qdq": ["--weights-only", "--weights-form", "qdq"],
    "blocks-8": ["--weights-only", "--bits", 8, "--block-size", 64],
}


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    np.save(tmp_path / "ids.npy", np.random.default_rng(1).integers(0, decoders.VOCABULARY, (12, 32)))
    return tmp_path / "ids.npy"


def quantized(source: Path, output: Path, ids: Path, *options: object) -> dict:
    return support.quantize(source, output, ids, "--batch-size", 1, *options)


def step_by_step(model: Path, count: int) -> list[int]:
    """Tokens, one at a time with the cache, which must be those without it."""
    session = support.load(model)
    tokens, fed, cache = list(PROMPT), PROMPT, decoders.empty_cache()
    for _ in range(count):
        mask = np.ones((1, len(tokens)), np.int64)
        logits, *present = session.run(None, {"input_ids": np.array([fed]), "attention_mask": mask, **cache})
        fed = [int(logits[0, -1].argmax())]
        tokens += fed
        cache = dict(zip(cache, present, strict=True))
    before = {"input_ids": np.array([tokens[:-1]]), "attention_mask": np.ones((1, len(tokens) - 1), np.int64)}
    at_once = session.run(None, {**before, **decoders.empty_cache()})[0][0].argmax(-1)
    assert at_once[len(PROMPT) - 1 :].tolist() == tokens[len(PROMPT) :]
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("way", WAYS)
def test_folder_of_onnxruntime_genai(tmp_path: Path, ids: Path, way: str) -> None:
    source = decoders.genai_folder(tmp_path / "source")
    # From where the folder is, as a user would.
    output = tmp_path / "result"
    result = support.detent(
        *("quantize", "source", "-o", "result", "--calibration-data", ids, "--batch-size", 1, "--json", *WAYS[way]), cwd=tmp_path
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(p.name for p in output.iterdir()) == ["genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json"]
    assert json.loads((output / "genai_config.json").read_text()) == json.loads((source / "genai_config.json").read_text())
    assert len(step_by_step(output / "model.onnx", 12)) == 12
    if way != "default":
        size = (output / "model.onnx.data").stat().st_size
        assert size < (0.35 if way == "blocks-8" else 0.31) * (source / "model.onnx.data").stat().st_size


def test_folder_of_transformers_js(tmp_path: Path, ids: Path) -> None:
    source, output = decoders.transformers_folder(tmp_path / "source"), tmp_path / "result"
    result = quantized(source, output, ids, "--weights-only")
    files = sorted(str(p.relative_to(output)) for p in output.rglob("*") if p.is_file())
    assert files == ["config.json", "onnx/model.onnx", "onnx/model.onnx_data"]
    assert any("model_q4.onnx" in note for note in result["notes"])
    settings = json.loads((output / "config.json").read_text())["transformers.js_config"]
    assert settings == {"use_external_data_format": {"model.onnx": True}}
    step_by_step(output / "onnx" / "model.onnx", 4)


def test_samples_help_a_decoder(tmp_path: Path, ids: Path) -> None:
    onnx.save(decoders.decoder(), tmp_path / "m.onnx")
    unseen = np.random.default_rng(2).integers(0, decoders.VOCABULARY, (1, 64))
    sample = {"input_ids": unseen, "attention_mask": np.ones_like(unseen), **decoders.empty_cache()}
    in_float = support.outputs(support.load(tmp_path / "m.onnx"), [sample])
    db = {}
    for name, options in {"nearest": ["--set", "weights-method=nearest"], "auto": []}.items():
        options += ["--op-types", "MatMul", "--set", "accuracy-level=1"]
        quantized(tmp_path / "m.onnx", tmp_path / f"{name}.onnx", ids, "--weights-only", *options)
        db[name] = support.sqnr(in_float, support.outputs(support.load(tmp_path / f"{name}.onnx"), [sample]))
    assert db["auto"] > db["nearest"] + 0.4  # random weights leave little to make use of


def test_format_q4_keeps_what_lies_on_grids(tmp_path: Path, ids: Path) -> None:
    """Weights as a file of 4 bits leaves them, with a float for the least of each block; the last product has 8 bits."""
    random, model = np.random.default_rng(4), decoders.decoder()
    for tensor in model.graph.initializer:
        rows, columns = (*tensor.dims, 0, 0)[:2]
        if "proj" not in tensor.name or columns == 0:
            continue
        distance, least = (random.uniform(a, b, (rows // 32, 1, columns)) for a, b in ((0.02, 0.05), (-0.5, -0.1)))
        values = distance * random.integers(0, 16, (rows // 32, 32, columns)) + least
        tensor.CopyFrom(numpy_helper.from_array(values.reshape(rows, columns).astype(np.float32), tensor.name))
    onnx.save(model, tmp_path / "m.onnx")
    unseen = random.integers(0, decoders.VOCABULARY, (1, 64))
    sample = {"input_ids": unseen, "attention_mask": np.ones_like(unseen), **decoders.empty_cache()}
    in_float = support.outputs(support.load(tmp_path / "m.onnx"), [sample])
    db = {}
    for name, options in {
        "q4": [],
        "search": [*NO_TABLE, "--set", "weights-method=search"],
        "named": ["--set", "node-bits=/model/embed_tokens/Gather=float,/lm_head/MatMul=4"],
    }.items():
        command = [
            "quantize",
            tmp_path / "m.onnx",
            "-o",
            tmp_path / f"{name}.onnx",
            "--format",
            "q4",
            "--no-bench",
            "--json",
            "--quiet",
        ]
        words = [support.DETENT, *command, "--set", "accuracy-level=1", *(options or NO_TABLE)]
        result = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        weights = json.loads(result.stdout)["weights"]
        assert {w["bits"] for w in weights if "lm_head" in w["node"]} == {4 if name == "named" else 8}
        assert any(w["method"] == "grid" for w in weights) == (name != "search")
        assert all(w["sqnr_db"] > 30 for w in weights if w["method"] == "grid")
        graph = onnx.load(tmp_path / f"{name}.onnx").graph
        of_halves = [t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT16]
        assert len(of_halves) == sum(w["method"] == "grid" for w in weights), "scales, which came from such numbers"
        db[name] = support.sqnr(in_float, support.outputs(support.load(tmp_path / f"{name}.onnx"), [sample]))
    assert db["q4"] > db["search"] + 3 and db["q4"] > db["named"] + 3, db
    accuracy = quantized(tmp_path / "m.onnx", tmp_path / "samples.onnx", ids, "--weights-only", *NO_TABLE)["accuracy"]
    assert "sqnr_db" in accuracy and "rounded_db" not in accuracy, "nothing is computed in 16 bits"
    half = quantized(tmp_path / "m.onnx", tmp_path / "half.onnx", ids, "--weights-only", "--float", 16, *NO_TABLE)["weights"]
    assert any(w["method"] == "grid" for w in half)
    found = support.outputs(support.load(tmp_path / "half.onnx"), [sample])
    assert support.sqnr(in_float, found) > db["search"] + 1, "float16 beside them"
    without = ort.SessionOptions()
    without.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(tmp_path / "samples.onnx", without, providers=["CPUExecutionProvider"])
    assert support.sqnr(in_float, support.outputs(session, [sample])) > db["search"], "optimizations or not"


@pytest.mark.parametrize("samples", [False, True])
def test_large_channels_cost_integers_nothing(tmp_path: Path, ids: Path, samples: bool) -> None:
    """With dynamic activations factors move from normalizations into weights, by samples or by token ids drawn at random."""
    random, db, nodes = np.random.default_rng(4), {}, {}
    unseen = random.integers(0, decoders.VOCABULARY, (1, 64))
    sample = {"input_ids": unseen, "attention_mask": np.ones_like(unseen), **decoders.empty_cache()}
    for name in ("even", "uneven"):
        model = decoders.decoder()
        if name == "uneven":
            assert inject_outliers.inject(model) > 0
        onnx.save(model, tmp_path / f"{name}.onnx")
        command = ["quantize", tmp_path / f"{name}.onnx", "-o", tmp_path / "q.onnx", "--activations", "dynamic", "--no-bench"]
        options = ["--calibration-data", ids, "--batch-size", 1] if samples else []
        result = support.detent(*command, *options, "--json", "--quiet")
        assert result.returncode == 0, result.stderr
        assert any("large channels" in note for note in json.loads(result.stdout)["notes"])
        in_float = support.outputs(support.load(tmp_path / f"{name}.onnx"), [sample])
        db[name] = support.sqnr(in_float, support.outputs(support.load(tmp_path / "q.onnx"), [sample]))
        nodes[name] = len(onnx.load(tmp_path / "q.onnx").graph.node)
    assert db["uneven"] > db["even"] - 3, db
    assert nodes["uneven"] == nodes["even"]


@pytest.mark.parametrize("runtime", support.RUNTIMES, ids=lambda path: path.name)
def test_every_runtime_calibrates_a_decoder(tmp_path: Path, ids: Path, runtime: Path) -> None:
    library = next((runtime / "onnxruntime" / "capi").glob("libonnxruntime.so.*"))
    onnx.save(decoders.decoder(), tmp_path / "m.onnx")
    for options in (["--weights-only"], ["--preset", "plain"], ["--preset", "plain", "--set", "segments=3"]):
        result = quantized(tmp_path / "m.onnx", tmp_path / "q.onnx", ids, *options, "--runtime", library)
        assert result["nodes_quantized"] >= 16


def test_compare_tells_how_well_the_next_token_is_told(tmp_path: Path, ids: Path) -> None:
    """Against numpy, on the outputs of ONNX Runtime."""
    source, output = decoders.genai_folder(tmp_path / "source"), tmp_path / "result"
    quantized(source, output, ids, "--weights-only")
    result = support.detent("compare", source, output, "--calibration-data", ids, "--outputs-only", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)["next_tokens"]

    tokens = np.load(ids)
    cache = {name: np.zeros((len(tokens), *past.shape[1:]), np.float32) for name, past in decoders.empty_cache().items()}
    feed = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), **cache}
    x, y = (support.load(folder / "model.onnx").run(["logits"], feed)[0][:, :-1].astype(float) for folder in (source, output))
    p, q = (logits - np.log(np.exp(logits).sum(-1, keepdims=True)) for logits in (x, y))
    perplexities = [np.exp(-np.take_along_axis(told_by, tokens[:, 1:, None], -1).mean()) for told_by in (p, q)]
    assert told["positions"] == tokens[:, 1:].size
    np.testing.assert_allclose([told["float_perplexity"], told["perplexity"]], perplexities, rtol=1e-4)
    np.testing.assert_allclose(told["kl_divergence"], (np.exp(p) * (p - q)).sum(-1).mean(), rtol=1e-3)
    assert abs(told["agreement"] - (x.argmax(-1) == y.argmax(-1)).mean()) < 2 / told["positions"]


@pytest.mark.parametrize("runtime", support.RUNTIMES, ids=lambda path: path.name)
@pytest.mark.parametrize("preset", ["plain", "balanced"])
def test_a_length_that_is_a_vector(tmp_path: Path, ids: Path, runtime: Path, preset: str) -> None:
    """Where shapes are static ONNX Runtime takes it for an int64, and does not load the operator that reads it."""
    model = decoders.decoder()
    second = next(t for t in model.graph.initializer if t.name == "second")
    second.CopyFrom(numpy_helper.from_array(np.array([1]), "second"))
    onnx.save(model, tmp_path / "m.onnx")
    library = next((runtime / "onnxruntime" / "capi").glob("libonnxruntime.so.*"))
    report = quantized(tmp_path / "m.onnx", tmp_path / "q.onnx", ids, "--preset", preset, "--runtime", library)
    assert report["nodes_quantized"] > 0
    assert len(step_by_step(tmp_path / "q.onnx", 3)) == 3


@pytest.mark.parametrize("samples", [True, False], ids=["samples", "no-samples"])
def test_blocks_in_16_bits(tmp_path: Path, ids: Path, samples: bool) -> None:
    """The integers are those without --float 16, scales and most values become float16, and the results stay."""
    source = decoders.genai_folder(tmp_path / "source")
    data = ["--calibration-data", ids, "--batch-size", 1] if samples else []
    blocks, low = (tmp_path / name / "model.onnx" for name in ("blocks", "low"))
    support.weights_only(source, blocks.parent, *data)
    result = support.weights_only(source, low.parent, *data, "--float", 16)
    assert result["floats"]["nodes"] > 20 and len(result["weights"]) == 16
    tensors = [{t.name: t for t in onnx.load(path).graph.initializer} for path in (blocks, low)]
    integers = {n: numpy_helper.to_array(t) for n, t in tensors[0].items() if t.data_type != onnx.TensorProto.FLOAT}
    for name, values in integers.items():
        np.testing.assert_array_equal(numpy_helper.to_array(tensors[1][name]), values)
    scales = [t.data_type for n, t in tensors[1].items() if "_scales" in n]
    assert len(scales) == 16 and scales.count(onnx.TensorProto.FLOAT16) >= 15  # a small table may save a cast
    ids_of_prompt = np.array([PROMPT])
    sample = {"input_ids": ids_of_prompt, "attention_mask": np.ones_like(ids_of_prompt), **decoders.empty_cache()}
    found = [support.outputs(support.load(path), [sample]) for path in (blocks, low)]
    assert support.sqnr(*found) > 20
    assert len(step_by_step(low, 12)) == 12
