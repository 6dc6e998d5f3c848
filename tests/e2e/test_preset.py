"""The preset `balanced`: what stays in float, what is measured, and targets of accuracy."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, numpy_helper
from support import Path, Sample

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
BALANCED = ["--preset", "balanced"]
BY_COMMAND = ["--accuracy-target", 1, "--accuracy-metric", "command", "--accuracy-command"]
WIDE = ["--accuracy-fallback", "int16"]
USAGE, BAD_INPUT = 2, 3


def chain(layers: int = 5) -> onnx.ModelProto:
    """Products of unlike sizes, one of which has an input of a few large values."""
    b = graphs.Builder(5)
    x, width = "x", 16
    for i, out in enumerate([32, 8, 48, 24, 10][:layers]):
        x = b.add("Tanh" if i != 2 else "Exp", b.add("MatMul", x, b.weight(f"w{i}", width, out, scale=0.35), name=f"product{i}"))
        width = out
    return b.model({"x": (FLOAT, ["N", 16])}, [x])


def chain_samples(count: int = 16) -> list[Sample]:
    rng = np.random.default_rng(6)
    return [{"x": rng.normal(size=(4, 16)).astype(np.float32)} for _ in range(count)]


def attention() -> onnx.ModelProto:
    """One head whose mask adds -3.4e38 where nothing shall be looked at."""
    b = graphs.Builder(7)
    q, k, v = (b.add("MatMul", "x", b.weight(n, 16, 16, scale=0.4), name=n + "_product") for n in "qkv")
    scores = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 2, 1]), name="scores")
    off = b.add("Mul", b.add("Sub", b.constant("one", 1), "mask"), b.constant("lowest", -3.4028235e38))
    out = b.add("MatMul", b.add("Softmax", b.add("Add", scores, off), axis=-1), v, name="context")
    return b.model({"x": (FLOAT, [1, 8, 16]), "mask": (FLOAT, [1, 1, 8])}, [out])


def attention_samples(count: int = 8) -> list[Sample]:
    rng = np.random.default_rng(8)
    mask = lambda: (np.arange(8) < rng.integers(4, 9)).astype(np.float32)[None, None]
    return [{"x": rng.normal(size=(1, 8, 16)).astype(np.float32), "mask": mask()} for _ in range(count)]


def detector() -> onnx.ModelProto:
    """Boxes of up to 320 and scores of up to 1 in one output."""
    b = graphs.Builder(9)
    x = b.add("Relu", b.add("Conv", "x", b.weight("w", 8, 3, 3, 3), name="body"))
    boxes = b.add("Mul", b.add("Sigmoid", b.add("Conv", x, b.weight("wb", 4, 8, 1, 1), name="boxes")), b.constant("size", 320))
    scores = b.add("Sigmoid", b.add("Conv", x, b.weight("ws", 6, 8, 1, 1), name="scores"))
    return b.model({"x": (FLOAT, [1, 3, 12, 12])}, [b.add("Concat", boxes, scores, axis=1)])


def detector_samples(count: int = 8) -> list[Sample]:
    rng = np.random.default_rng(10)
    return [{"x": rng.normal(size=(1, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


def saved(folder: Path, model: onnx.ModelProto, samples: list[Sample]) -> tuple[Path, Path]:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx", support.save_samples(folder / "data", samples)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def results(model: Path, samples: list[Sample]) -> np.ndarray:
    return np.concatenate([out[0] for out in support.outputs(support.check_model(model), samples)])


def integer_products(model: Path) -> set[str]:
    """Products whose data input comes out of a DequantizeLinear."""
    graph = onnx.load(model).graph
    made = {name: node.op_type for node in graph.node for name in node.output}
    products = [n for n in graph.node if n.op_type in ("Conv", "MatMul", "Gemm")]
    return {n.name for n in products if made.get(n.input[0]) == made.get(n.input[1]) == "DequantizeLinear"}


def test_a_mask_ruins_no_range(tmp_path: Path) -> None:
    samples = attention_samples()
    model, data = saved(tmp_path, attention(), samples)
    found = {}
    for preset in ("plain", "balanced"):
        support.quantize(model, tmp_path / f"{preset}.onnx", data, "--preset", preset)
        found[preset] = cosine(results(model, samples), results(tmp_path / f"{preset}.onnx", samples))
    assert min(found.values()) > 0.999, found
    assert integer_products(tmp_path / "balanced.onnx") == {"q_product", "k_product", "v_product", "scores", "context"}


def test_small_parts_of_an_output_keep_their_values(tmp_path: Path) -> None:
    samples = detector_samples()
    model, data = saved(tmp_path, detector(), samples)
    found = {}
    for preset in ("plain", "balanced"):
        support.quantize(model, tmp_path / f"{preset}.onnx", data, "--preset", preset, "--weight-type", "uint8")
        scores = [results(path, samples)[:, 4:] for path in (model, tmp_path / f"{preset}.onnx")]
        found[preset] = np.abs(scores[0] - scores[1]).max()
    assert max(found.values()) < 0.03, found


def test_what_is_near_as_it_is_has_no_single_values_measured(tmp_path: Path) -> None:
    """Weights that 8 bits hold, and activations of 16."""
    model = chain(3)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.sign(numpy_helper.to_array(tensor)) * np.float32(0.25), tensor.name))
    path, data = saved(tmp_path, model, chain_samples())
    wide = [*BALANCED, "--activation-type", "int16", "--optimize-for", "size"]
    near = support.quantize(path, tmp_path / "q.onnx", data, *wide)["accuracy"]
    assert near["sqnr_db"] > 40 and near["sensitivities"] == []
    asked = support.quantize(path, tmp_path / "r.onnx", data, *wide, "--set", "sensitivity=report")["accuracy"]
    assert asked["sensitivities"]


def test_each_sensitivity_is_that_of_the_value_alone(tmp_path: Path) -> None:
    """A weight's: of a float model with that weight replaced by what its integers stand for."""
    samples = [{"x": chain_samples(16)[0]["x"][:1]}]  # one row only, so that the same ones are measured
    model, data = saved(tmp_path, chain(3), samples)  # few enough values for one trial each
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--set", "sensitivity=report")
    told = {s["value"]: s for s in report["accuracy"]["sensitivities"] if s["kind"] == "weight"}
    integers = onnx.load(tmp_path / "q.onnx").graph
    tensors = {t.name: numpy_helper.to_array(t) for t in integers.initializer}
    reference = results(model, samples).astype(np.float64)
    assert len(told) == 3
    for name in told:
        changed = onnx.load(model)
        for tensor in changed.graph.initializer:
            if tensor.name == name:
                q, scale, zero = (tensors[name + part] for part in ("_quantized", "_scale", "_zero_point"))
                tensor.CopyFrom(numpy_helper.from_array(((q.astype(np.float32) - zero) * scale).astype(np.float32), name))
        onnx.save(changed, tmp_path / "changed.onnx")
        error = np.square(results(tmp_path / "changed.onnx", samples) - reference).sum() / np.square(reference).sum()
        assert told[name]["error"] == pytest.approx(error, rel=1e-3), name


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return saved(tmp_path_factory.mktemp("chain"), chain(), chain_samples())


def macs(model: Path, floats: set[str]) -> int:
    """Multiplications, times the bits that they are made with."""
    graph = onnx.load(model).graph
    shapes = {t.name: t.dims for t in graph.initializer}
    cost = {n.name: int(np.prod(shapes[n.input[1]])) for n in graph.node if n.op_type == "MatMul"}
    return sum(count * (32 if name in floats else 8) for name, count in cost.items())


def test_a_target_is_reached_at_nearly_the_least_cost(products: tuple[Path, Path], tmp_path: Path) -> None:
    """Beside all 32 assignments, each written by detent and measured by ONNX Runtime on the samples that detent judges by."""
    model, data = products
    balanced = [*BALANCED, "--weight-type", "uint8", "--set", "weight-symmetric"]
    names = [n.name for n in onnx.load(model).graph.node if n.op_type == "MatMul"]
    report = support.quantize(model, tmp_path / "q.onnx", data, *balanced, "--set", "sensitivity=off")
    assert "accuracy" not in report
    target = 42.0
    options = [*balanced, "--accuracy-target", target, "--accuracy-metric", "sqnr"]
    report = support.quantize(model, tmp_path / "q.onnx", data, *options)
    assert report["accuracy"]["sqnr_db"] >= target
    samples = support.load_samples(data)[: report["accuracy"]["samples"]]
    reference = [[results(model, samples)]]
    chosen = macs(model, set(names) - integer_products(tmp_path / "q.onnx"))
    costs = []
    for count in range(len(names)):
        for floats in itertools.combinations(names, count):
            left = ["--exclude-nodes", ",".join(floats)] if floats else []
            out = tmp_path / "try.onnx"
            support.quantize(model, out, data, *balanced, "--set", "sensitivity=off", *left)
            if support.sqnr(reference, [[results(out, samples)]]) >= target:
                costs.append(macs(model, set(floats)))
    assert chosen <= 1.1 * min(costs), (chosen, sorted(costs)[:5])
    assert chosen > macs(model, set()), "the target asks for something"


def test_a_target_that_integers_reach_leaves_all_of_them(products: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = products
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--accuracy-target", 0.9)
    assert report["accuracy"]["float_nodes"] == []
    assert report["accuracy"]["integer_macs"] == pytest.approx(1)
    assert report["accuracy"]["cosine"] >= 0.9


def test_where_the_processor_computes_in_float_bytes_are_the_cost(tmp_path: Path) -> None:
    """The head has most of the bytes, of the error, and hardly a multiplication."""
    b = graphs.Builder(4)
    x = b.add("Relu", b.add("Conv", "x", b.weight("w1", 16, 3, 3, 3), name="first", pads=[1] * 4))
    x = b.add("Relu", b.add("Conv", x, b.weight("w2", 16, 16, 3, 3), name="second", pads=[1] * 4))
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    x = b.add("Gemm", x, b.constant("w3", b.rng.standard_t(1.5, (16, 400)).T), name="head", transB=1)
    samples = [{"x": np.random.default_rng(i).normal(size=(1, 3, 32, 32)).astype(np.float32)} for i in range(8)]
    model, data = saved(tmp_path, b.model({"x": (FLOAT, [1, 3, 32, 32])}, [x]), samples)
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--format", "a16w8", "--no-bench")
    assert report["accuracy"]["sqnr_db"] < 40, "more in float would help"
    assert "Gemm 'head'" not in {node["node"] for node in report["accuracy"]["float_nodes"]}


def scoring(folder: Path, score: str) -> list[object]:
    """A command that prints `score`, where `integers` is the share of products with integer weights."""
    script = folder / "it's a score.py"
    script.write_text(
        "import sys, onnx\n"
        "nodes = onnx.load(sys.argv[1]).graph.node\n"
        "made = {name: n.op_type for n in nodes for name in n.output}\n"
        "products = [n for n in nodes if n.op_type == 'MatMul']\n"
        "integers = sum(made.get(n.input[1]) == 'DequantizeLinear' for n in products) / len(products)\n"
        f"print('score:', {score})\n"
    )
    return ["--accuracy-metric", "command", "--accuracy-command", f'{sys.executable} "{script}"']


@pytest.mark.sampled(1)
@pytest.mark.parametrize("score", ["1 - integers", "-1 - integers"])
def test_a_command_scores(products: tuple[Path, Path], tmp_path: Path, score: str) -> None:
    """Only fewer integers raise the score; as a loss with its sign changed it is negative, and the share of float's the same."""
    model, data = products
    options = [*BALANCED, "--accuracy-target", 0.39, *scoring(tmp_path, score)]
    report = support.quantize(model, tmp_path / "q.onnx", data, *options)
    assert report["accuracy"]["score"] == pytest.approx(0.4)
    assert len(report["accuracy"]["float_nodes"]) == 2


def test_there_is_no_share_of_a_score_of_zero(products: tuple[Path, Path], tmp_path: Path) -> None:
    options = [*BALANCED, "--accuracy-target", 0.4, *scoring(tmp_path, "-integers")]
    result = support.detent("quantize", products[0], "-o", tmp_path / "q.onnx", "--calibration-data", products[1], *options)
    assert result.returncode == BAD_INPUT, result.stderr
    assert "the float model's score is -0" in result.stderr or "the float model's score is 0" in result.stderr


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("that never came")


def is_running(pid: str) -> bool:
    """Zombies, which nobody has waited for yet, have no command line."""
    try:
        return pathlib.Path("/proc", pid, "cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGINT]], ids=str)
def test_a_signal_ends_the_command_as_well(products: tuple[Path, Path], tmp_path: Path, signals: list[signal.Signals]) -> None:
    """The command ignores SIGTERM; one signal gives it a moment, a second one does not."""
    pids, model, data = tmp_path / "pids", *products
    score = f"trap '' TERM INT; sleep 2000 & echo $$ $! > '{pids}'; wait; :"
    command = ["quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, *BALANCED, *BY_COMMAND, score]
    command += ["--optimize-for", "size"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([support.DETENT, *map(str, command)], stdout=subprocess.DEVNULL, env=environment) as process:
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.3)
        process.wait(timeout=200)
    assert process.returncode == 130
    for pid in pids.read_text().split():
        wait_until(lambda: not is_running(pid))
    assert not (tmp_path / "q.onnx").exists()
    assert not list(tmp_path.glob("detent-*")), "the working directory is removed"


def quantized_in(model: Path, bits: int) -> set[str]:
    """Activations that are quantized to integers of so many bits."""
    graph = onnx.load(model).graph
    types = {t.name: t.data_type for t in graph.initializer}
    wanted = {8: TensorProto.UINT8, 16: TensorProto.UINT16}[bits]
    return {n.input[0] for n in graph.node if n.op_type == "QuantizeLinear" and types[n.input[2]] == wanted}


def test_products_fall_back_to_16_bits(products: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = products
    samples, reference = chain_samples(), [[results(model, chain_samples())]]
    q = tmp_path / "q.onnx"
    found = {}
    for target in (45, 52):
        report = support.quantize(
            model, q, data, *BALANCED, *WIDE, "--weight-type", "int16", "--accuracy-metric", "sqnr", "--accuracy-target", target
        )
        assert report["accuracy"]["float_nodes"] == []
        assert report["accuracy"]["integer_macs"] == pytest.approx(0), "this runtime multiplies no 16-bit weights as integers"
        assert len(integer_products(q)) == 5
        assert report["accuracy"]["sqnr_db"] >= target
        assert support.sqnr(reference, [[results(q, samples)]]) > target - 5, "over more samples than were measured"
        found[target] = (report["accuracy"]["wide_macs"], len(quantized_in(q, 16)), len(quantized_in(q, 8)))
    assert 0 < found[45][0] < found[52][0] <= 1
    assert 0 < found[45][1] < found[52][1]
    assert found[45][2] > 0, "where 8 bits do, they stay"
    support.check_model(q)


@pytest.mark.parametrize(
    ("code", "says", "options"),
    [
        (USAGE, "--preset plain makes none", ["--preset", "plain", *WIDE]),
        (
            BAD_INPUT,
            "activations of 16 bits do not reach",
            [*WIDE, "--accuracy-metric", "sqnr", "--accuracy-target", 90],
        ),
        (USAGE, "which --preset plain has fixed", ["--preset", "plain", "--accuracy-target", 0.9]),
        (USAGE, "5 is not above 0 and at most 1", ["--accuracy-target", 5]),
        (USAGE, "go together", ["--accuracy-metric", "command", "--accuracy-target", 1]),
        (BAD_INPUT, "ended with status 7", [*BY_COMMAND, "exit 7;"]),
        (BAD_INPUT, "printed no number", [*BY_COMMAND, "true"]),
        (BAD_INPUT, "only the float model reaches", ["--accuracy-metric", "sqnr", "--accuracy-target", 200]),
    ],
)
def test_errors(products: tuple[Path, Path], tmp_path: Path, code: int, says: str, options: list[object]) -> None:
    preset = [] if "--preset" in options else BALANCED
    common = ["quantize", products[0], "-o", tmp_path / "q.onnx", "--calibration-data", products[1]]
    result = support.detent(*common, *preset, *options)
    assert result.returncode == code, result.stderr
    assert says in result.stderr
    assert not (tmp_path / "q.onnx").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = support.prepare_task("ppocr_cls", tmp_path_factory.mktemp("task") / "ppocr_cls")
    return folder / "model.onnx", folder / "calibration"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [[], ["--set", "segments=3"], ["--set", "segments=4", "--set", "memory-level=2"], ["--workers", 2]],
    ids=str,
)
def test_budgets_change_nothing(trained: tuple[Path, Path], tmp_path: Path, options: list[object]) -> None:
    common = [*BALANCED, "--samples", 4, "--threads", 2, "--accuracy-target", 20, "--accuracy-metric", "sqnr"]
    support.quantize(trained[0], tmp_path / "plain.onnx", trained[1], *common)
    support.quantize(trained[0], tmp_path / "other.onnx", trained[1], *common, *options)
    assert support.sha256(tmp_path / "plain.onnx") == support.sha256(tmp_path / "other.onnx")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [[], ["--set", "segments=3", "--set", "memory-level=2"]], ids=str)
def test_killed_while_it_measures(trained: tuple[Path, Path], tmp_path: Path, options: list[object]) -> None:
    common = [*BALANCED, "--samples", 4, "--threads", 2, *options]
    support.quantize(trained[0], tmp_path / "whole.onnx", trained[1], *common)
    resumed = support.resumed_after_kill("accuracy.trial=kill@9", *trained, tmp_path, *common)
    assert support.sha256(resumed) == support.sha256(tmp_path / "whole.onnx")


def test_without_samples_nothing_is_measured(products: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = products
    statistics = support.calibrate(model, tmp_path / "s", data, *BALANCED)
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--statistics", statistics, *BALANCED, "--json")
    assert result.returncode == 0, result.stderr
    assert "accuracy" not in json.loads(result.stdout)
    assert pathlib.Path(tmp_path / "q.onnx").exists()
