"""The trained decoder, quantized: onnxruntime-genai makes the tokens that ONNX Runtime makes, with and without cache, and
samples save most of what rounding loses."""

import json
import os
import subprocess
import sys

import decoders
import inject_outliers
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from decoders import build_decoder
from support import Path

sys.path.append(str(support.LANGUAGE))
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers are missing; scripts/setup.sh runtimes fetches them")

PROMPTS = ["The function returns", ".. class:: Thread", "If the file does not exist,"]
NEW_TOKENS = 40
# Prints the tokens of each prompt as JSON.
GENERATE = """
import json, sys
import onnxruntime_genai as og
model = og.Model(sys.argv[1])
tokenizer = og.Tokenizer(model)
made = []
for prompt in sys.argv[3:]:
    ids = tokenizer.encode(prompt)
    settings = og.GeneratorParams(model)
    settings.set_search_options(max_length=len(ids) + int(sys.argv[2]), do_sample=False)
    generator = og.Generator(model, settings)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
    made.append([int(token) for token in generator.get_sequence(0)])
print(json.dumps(made))
"""
WAYS = {
    "float": None,
    "blocks": ["--weights-only"],
    "blocks-128": ["--weights-only", "--block-size", 128, "--set", "weight-symmetric"],
    "blocks-8": ["--weights-only", "--bits", 8],
    "blocks-qdq": ["--weights-only", "--weights-form", "qdq"],
    "integers": ["--preset", "balanced"],
    "float16": ["--float", 16, "--preset", "none"],
    "blocks, float16": ["--weights-only", "--float", 16],
    "dynamic": ["--activations", "dynamic"],
}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_decoder.build(tmp_path_factory.mktemp("decoder") / "decoder")


def encoded(source: Path, text: str) -> list[int]:
    return tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids


@pytest.fixture(scope="session")
def ids(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = (build_decoder.TRAINED / "calibration.txt").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("ids") / "ids.npy"
    np.save(path, np.array(encoded(source, text)[: 16 * 128]).reshape(16, 128))
    return path


def step_by_step(session: ort.InferenceSession, tokens: list[int]) -> list[int]:
    """Greedily, one token at a time with the cache, until the text or the room ends."""
    shape, _ = build_decoder.trained()
    tokens, fed, cache = list(tokens), tokens, decoders.empty_cache(shape)
    for _ in range(NEW_TOKENS):
        mask = np.ones((1, len(tokens)), np.int64)
        logits, *present = session.run(None, {"input_ids": np.array([fed]), "attention_mask": mask, **cache})
        fed = [int(logits[0, -1].argmax())]
        tokens += fed
        cache = dict(zip(cache, present, strict=True))
        if fed == [0]:
            break
    return tokens


def behind_the_best(session: ort.InferenceSession, tokens: list[int], start: int) -> float:
    """Of a run without cache over all tokens: how far a token from `start` on is behind the likeliest at most, in logits."""
    shape, _ = build_decoder.trained()
    before = np.array([tokens[:-1]])
    feed = {"input_ids": before, "attention_mask": np.ones_like(before), **decoders.empty_cache(shape)}
    logits = session.run(["logits"], feed)[0][0, start - 1 :]
    return float((logits.max(-1) - logits[np.arange(len(logits)), tokens[start:]]).max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_onnxruntime_genai_makes_the_same_tokens(source: Path, ids: Path, tmp_path: Path, way: str) -> None:
    if not (support.LANGUAGE / "onnxruntime_genai").is_dir():
        pytest.skip("onnxruntime-genai is missing; scripts/setup.sh runtimes fetches it")
    folder = source
    if WAYS[way] is not None:
        folder = tmp_path / "result"
        support.quantize(source, folder, ids, "--batch-size", 1, *WAYS[way])
    environment = {**os.environ, "PYTHONPATH": str(support.LANGUAGE)}
    command = [sys.executable, "-c", GENERATE, str(folder), str(NEW_TOKENS), *PROMPTS]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    for prompt, made in zip(PROMPTS, json.loads(result.stdout), strict=True):
        tokens = encoded(source, prompt)
        assert made == step_by_step(session, tokens)
        # Activations that are rounded to 8 bits go another way where they are between two integers; with one scale for
        # all positions of a run, what one step makes is not what all at once do.
        most = {"float": 1e-3, "dynamic": 0.5}.get(way, 0.1)
        assert behind_the_best(session, made, len(tokens)) <= most


def windows(source: Path, text: str, target: Path, length: int) -> Path:
    tokens = np.array(encoded(source, (build_decoder.TRAINED / text).read_text(encoding="utf-8")))
    np.save(target, tokens[: len(tokens) // length * length].reshape(-1, length)[:64])
    return target


@pytest.mark.full
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("outliers", [False, True], ids=["plain", "outliers"])
def test_samples_halve_what_rounding_loses(source: Path, tmp_path: Path, block: int, outliers: bool) -> None:
    """Perplexity and KL divergence on text that neither the training nor the quantizer has seen."""
    model = source
    if outliers:
        model = tmp_path / "outliers"
        inject_outliers.inject_folder(source, model)
    calibration = windows(source, "calibration.txt", tmp_path / "calibration.npy", 256)
    held_out = windows(source, "held_out.txt", tmp_path / "held_out.npy", 256)
    told = {}
    for method in ("nearest", "auto"):
        options = ["--batch-size", 1, "--weights-only", "--op-types", "MatMul", "--set", "accuracy-level=1", "--block-size", block]
        support.quantize(model, tmp_path / method, calibration, *options, "--set", f"weights-method={method}")
        words = ("compare", model, tmp_path / method, "--calibration-data", held_out, "--batch-size", 1, "--outputs-only", "--json")
        result = support.detent(*words)
        assert (result.returncode, result.stderr) == (0, "")
        told[method] = json.loads(result.stdout)["next_tokens"]
    lost = {name: tokens["perplexity"] - tokens["float_perplexity"] for name, tokens in told.items()}
    assert lost["nearest"] > 0
    assert lost["auto"] <= 0.65 * lost["nearest"], told  # which moves by chance as well
    assert told["auto"]["kl_divergence"] <= 0.5 * told["nearest"]["kl_divergence"], told
    assert told["auto"]["agreement"] > told["nearest"]["agreement"]


@pytest.mark.full
def test_perplexity_is_kept(source: Path, ids: Path, tmp_path: Path) -> None:
    """By as few bits of weights, and by as few products in float, as it takes."""
    held_out = windows(source, "held_out.txt", tmp_path / "held_out.npy", 256)
    target = ["--batch-size", 1, "--accuracy-metric", "perplexity", "--accuracy-target"]
    blocks = support.quantize(source, tmp_path / "blocks", ids, *target, 0.998, "--weights-only")
    plan = blocks["bits_plan"]
    assert plan["reached"] >= 0.998
    assert len({w["bits"] for w in plan["weights"]}) > 1
    integers = support.quantize(source, tmp_path / "integers", ids, *target, 0.99, "--preset", "balanced")
    assert integers["accuracy"]["score"] >= 0.99
    for name, least in (("blocks", 0.994), ("integers", 0.985)):
        words = ("compare", source, tmp_path / name, "--calibration-data", held_out, "--batch-size", 1, "--outputs-only", "--json")
        told = json.loads(support.detent(*words).stdout)["next_tokens"]
        assert told["float_perplexity"] / told["perplexity"] >= least, (name, told)


def test_outlier_channels_change_no_bit(source: Path, tmp_path: Path) -> None:
    inject_outliers.inject_folder(source, tmp_path / "outliers")
    shape, _ = build_decoder.trained()
    tokens = np.array([encoded(source, " ".join(PROMPTS))])
    feed = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), **decoders.empty_cache(shape)}
    plain, changed = (support.load(folder / "model.onnx").run(None, feed) for folder in (source, tmp_path / "outliers"))
    assert all(np.array_equal(a, b) for a, b in zip(plain, changed, strict=True))
    gains = [
        onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(tmp_path / "outliers" / "model.onnx").graph.initializer
        if "norm" in tensor.name
    ]
    assert len(gains) == 2 * shape.layers + 1
    assert all(np.sort(np.abs(gain))[-8] > 16 * np.median(np.abs(gain)) for gain in gains)


@pytest.mark.full
def test_scaled_inputs_make_up_for_outlier_channels(source: Path, tmp_path: Path) -> None:
    """AWQ's factors, with and without GPTQ after them."""
    inject_outliers.inject_folder(source, tmp_path / "outliers")
    calibration = windows(source, "calibration.txt", tmp_path / "calibration.npy", 256)
    held_out = windows(source, "held_out.txt", tmp_path / "held_out.npy", 256)
    divergence = {}
    for method in ("search", "awq", "gptq", "auto"):
        options = ["--batch-size", 1, "--weights-only", "--op-types", "MatMul", "--set", "accuracy-level=1", "--block-size", 128]
        model, output = tmp_path / "outliers", tmp_path / method
        result = support.quantize(model, output, calibration, *options, "--set", f"weights-method={method}")
        scaled = {w["node"].split("/")[-2] for w in result["weights"] if "input_exponent" in w}
        assert ({"q_proj", "gate_proj", "lm_head"} <= scaled) == (method in ("awq", "auto"))
        words = ("compare", model, output, "--calibration-data", held_out, "--batch-size", 1, "--outputs-only", "--json")
        divergence[method] = json.loads(support.detent(*words).stdout)["next_tokens"]["kl_divergence"]
    assert divergence["awq"] < 0.5 * divergence["search"], divergence
    assert divergence["auto"] < 0.6 * divergence["gptq"], divergence
