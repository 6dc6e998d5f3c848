"""Weights in bodies of If, Loop and Scan are tuned like others."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from bodies import FLOAT, MODELS, PRODUCTS, WIDTH, correlated, info, samples, with_if, with_loop
from launcher import mpirun
from onnx import numpy_helper


@pytest.fixture(params=list(MODELS))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Path]:
    """Which, the model, its data."""
    model = tmp_path / "model.onnx"
    onnx.save(MODELS[request.param](), model)
    return request.param, model, support.save_samples(tmp_path / "data", samples(request.param))


FOUR_BITS = ["--preset", "plain", "--weight-type", "int4", "--no-bench", "--activation-type", "uint16"]
METHODS = {"gptq": ["--finetune", "gptq"], "adaround": ["--finetune", "adaround", "--set", "num-iterations=200"]}


def in_float(model: Path) -> ort.InferenceSession:
    """With Q/DQ computed in float, so that kernels have no say."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.sampled(5)
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
    options = ["--preset", "balanced", "--weight-type", "int4", "--no-bench", "--set", "equalize=off", "--threads", 2]
    said = support.quantize(tmp_path / "model.onnx", tmp_path / "default.onnx", data, *options)
    tuned = said["accuracy"]["tuned"]
    assert tuned["kept"]
    assert tuned["error_after"] < 0.5 * tuned["error_before"]
    assert {"Loop": "carried", "Scan": "state"}[kind] in {layer["name"] for layer in said["layers"]}


@pytest.mark.sampled(1)
def test_tuned_bodies_are_the_same_bytes(case: tuple[str, Path, Path], tmp_path: Path) -> None:
    """Whatever the budget, threads, ranks and interruptions."""
    kind, model, _ = case
    data = support.save_samples(tmp_path / "many", correlated(kind, 16))
    options = [*FOUR_BITS, *METHODS["adaround"]]
    support.quantize(model, tmp_path / "a.onnx", data, *options, "--threads", 1)
    expected = support.sha256(tmp_path / "a.onnx")
    support.quantize(model, tmp_path / "b.onnx", data, *options, "--threads", 2, "--set", "memory-level=2")
    support.quantize(model, tmp_path / "c.onnx", data, *options, "--memory-budget", "200MiB")
    assert support.sha256(tmp_path / "b.onnx") == support.sha256(tmp_path / "c.onnx") == expected
    shared = mpirun(2, "quantize", model, "-o", tmp_path / "d.onnx", "--calibration-data", data, *options)
    assert (shared.returncode, shared.stderr) == (0, "")
    assert support.sha256(tmp_path / "d.onnx") == expected
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
    options = [*FOUR_BITS, "--set", "finetune-nodes=carried"]
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
    if node.op_type == "Max":  # which keeps the runtime from merging both
        return dequantized(model, body, node.input[0])
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
