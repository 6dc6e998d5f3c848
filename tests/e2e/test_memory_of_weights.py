"""--memory-budget with weights whose columns are long: parts of a column are in memory, as the kernel counts it."""

import re

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import DETENT, Path

ROWS, COLUMNS, BUDGET = 1_000_000, 64, 200


def product(path: Path, rows: int, columns: int) -> Path:
    weight = np.random.default_rng(3).standard_normal((rows, columns), np.float32)
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k]) for n, k in (("x", rows), ("y", columns))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=16)
    return path


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return product(tmp_path_factory.mktemp("tall") / "m.onnx", ROWS, COLUMNS)


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--bits", 8],
        ["--bits", 8, "--block-size", "channel", "--weights-form", "qdq"],
        ["--max-size", "60MiB"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_long_columns_keep_to_the_budget(options: list[object], tall: Path, tmp_path: Path) -> None:
    words = ["quantize", tall, "-o", tmp_path / "q.onnx", "--weights-only", "--no-bench", "-q", "--memory-budget", f"{BUDGET}MiB"]
    peak = support.peak_memory(tmp_path, DETENT, *words, *options)
    assert peak < 1.1 * (BUDGET << 20), f"{peak >> 20} MiB"
    assert (tmp_path / "q.onnx").exists()


@pytest.mark.full
def test_without_samples_a_large_float_model_is_not_opened(tall: Path, tmp_path: Path) -> None:
    """256 MB of weights; the file of 40 MB is loaded and run."""
    peak = support.peak_memory(tmp_path, DETENT, "quantize", tall, "-o", tmp_path / "q.onnx", "--format", "q4", "-q")
    assert peak < 160 << 20, f"{peak >> 20} MiB"
    assert (tmp_path / "q.onnx").exists()


@pytest.mark.full
def test_the_sizes_of_channels_are_found_in_pieces(tmp_path: Path) -> None:
    rows = 400_000
    model = product(tmp_path / "m.onnx", rows, COLUMNS)
    support.save_samples(tmp_path / "data", [{"x": np.ones((1, rows), np.float32)}])
    words = ["quantize", model, "-o", tmp_path / "q.onnx", "--preset", "plain", "--calibration-data", tmp_path / "data"]
    peak = support.peak_memory(tmp_path, DETENT, *words, "--no-bench", "-q", "--memory-budget", f"{BUDGET}MiB")
    assert peak < BUDGET << 20, f"{peak >> 20} MiB"


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten products of 16 MiB each, with samples beside."""
    random, size, folder = np.random.default_rng(1), 2048, tmp_path_factory.mktemp("deep")
    weights = [(random.standard_normal((size, size)) / 45).astype(np.float32) for _ in range(10)]
    nodes = []
    for n in range(len(weights)):
        nodes.append(helper.make_node("MatMul", [f"y{n}", f"w{n}"], [f"m{n}"], f"product_{n}"))
        nodes.append(helper.make_node("Tanh", [f"m{n}"], [f"y{n + 1}"], f"tanh_{n}"))
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n in ("y0", f"y{len(weights)}")]
    constants = [numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], constants)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx")
    support.save_samples(folder / "data", [{"y0": random.standard_normal((1, size), np.float32)} for _ in range(12)])
    return folder


@pytest.mark.full
def test_measuring_and_the_proof_keep_to_the_budget(deep: Path, tmp_path: Path) -> None:
    words = ["quantize", deep / "m.onnx", "-o", tmp_path / "q.onnx", "--preset", "balanced", "--calibration-data", deep / "data"]
    peak = support.peak_memory(tmp_path, DETENT, *words, "-q", "--memory-budget", f"{BUDGET}MiB")
    assert peak < 1.15 * (BUDGET << 20), f"{peak >> 20} MiB"  # timing kernels leaves 20 MiB of the runtime behind


@pytest.mark.full
def test_weights_that_need_no_solving_count_as_well(tmp_path: Path) -> None:
    """40 matrices of 4 MiB whose values lie on grids of 4 bits, before one that is solved."""
    random, size = np.random.default_rng(2), 1024
    weights = [(random.integers(-8, 8, (size, size)) / 128).astype(np.float32) for _ in range(40)]
    weights.append((random.standard_normal((size, size)) / 32).astype(np.float32))
    nodes = []
    for n in range(len(weights)):
        nodes.append(helper.make_node("MatMul", [f"y{n}", f"w{n}"], [f"m{n}"], f"product_{n}"))
        nodes.append(helper.make_node("Tanh", [f"m{n}"], [f"y{n + 1}"], f"tanh_{n}"))
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n in ("y0", f"y{len(weights)}")]
    constants = [numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], constants)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"y0": random.standard_normal((4, size), np.float32)} for _ in range(12)])
    words = ["quantize", tmp_path / "m.onnx", "--format", "q4", "--calibration-data", data, "-q", "--threads", 1, "-o"]
    peak = support.peak_memory(tmp_path, DETENT, *words, tmp_path / "q.onnx", "--memory-budget", "180MiB")
    assert peak < 180 << 20, f"{peak >> 20} MiB"
    support.peak_memory(tmp_path, DETENT, *words, tmp_path / "free.onnx")
    assert support.sha256(tmp_path / "q.onnx") == support.sha256(tmp_path / "free.onnx")


@pytest.mark.full
def test_without_a_budget_weights_are_solved_in_what_plain_inference_takes(deep: Path, tmp_path: Path) -> None:
    weights, process = 10 * (16 << 20), 128 << 20
    words = ["quantize", deep / "m.onnx", "--weights-only", "--calibration-data", deep / "data", "--set", "weights-method=search"]
    peak = support.peak_memory(tmp_path, DETENT, *words, "--no-bench", "-q", "-o", tmp_path / "q.onnx")
    assert peak < 1.1 * (weights + process), f"{peak >> 20} MiB"  # all sums at once: 640 MiB
    assert (tmp_path / "q.onnx").exists()


def test_what_is_asked_for_and_has_no_room_is_refused_before_samples_run(deep: Path, tmp_path: Path) -> None:
    words = [
        "quantize",
        deep / "m.onnx",
        "-o",
        tmp_path / "q.onnx",
        "--preset",
        "balanced",
        "--calibration-data",
        deep / "data",
        "--memory-budget",
    ]
    for asked, what, budget in (
        (["--finetune", "gptq"], "fine-tuning", 80),
        (["--accuracy-target", 0.9], "measuring accuracy", 100),
    ):
        refused = support.detent(*words, f"{budget}MiB", *asked)
        assert refused.returncode == 4 and f"{what} needs" in refused.stderr, refused.stderr
    left_out = support.detent(*words, "90MiB")
    assert left_out.returncode == 0, left_out.stderr
    assert "the effect of roundings is not measured" in left_out.notes


@pytest.mark.full
def test_a_search_without_room_for_timing_is_refused_at_once(deep: Path, tmp_path: Path) -> None:
    words = ["search", deep / "m.onnx", "-o", tmp_path / "front", "--calibration-data", deep / "data"]
    refused = support.detent(*words, "--memory-budget", f"{BUDGET}MiB")
    assert refused.returncode == 4 and "a search times the float model" in refused.stderr, refused.stderr
    assert not (tmp_path / "front").exists()


@pytest.mark.full
def test_a_choice_of_bits_by_samples_keeps_to_the_budget_or_is_refused(tmp_path: Path) -> None:
    rows, columns = 256, 60_000
    model = product(tmp_path / "m.onnx", rows, columns)
    samples = np.random.default_rng(5).standard_normal((4, rows), np.float32)
    support.save_samples(tmp_path / "data", [{"x": sample[None]} for sample in samples])
    words = ["quantize", model, "-o", tmp_path / "q.onnx", "--weights-only", "--max-size", "15MiB"]
    words += ["--calibration-data", tmp_path / "data", "--no-bench", "-q", "--memory-budget"]
    refused = support.detent(*words, "160MiB")
    assert refused.returncode == 4 and "the choice of bits measures the whole model at once" in refused.stderr, refused.stderr
    least = int(re.search(r"which takes about (\d+) MiB", refused.stderr)[1]) + 2
    peak = support.peak_memory(tmp_path, DETENT, *words, f"{least}MiB")
    assert peak < least << 20, f"{peak >> 20} MiB of {least} MiB"
