"""`detent bench`: what it tells of models that are known to differ."""

import json
import re

import decoders
import graphs
import numpy as np
import onnx
import pytest
import support
from support import Path


def product(folder: Path, size: int, **saving: object) -> Path:
    """x @ W, with W of size × size."""
    b = graphs.Builder(size)
    y = b.add("MatMul", "x", b.weight("w", size, size))
    path = folder / f"product{size}.onnx"
    onnx.save(b.model({"x": (graphs.FLOAT, (32, size))}, [y]), path, **saving)
    return path


def bench(*arguments: object) -> dict:
    result = support.detent("bench", *arguments, "--json", "--threads", 1)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of 256 KiB and 16 MiB of weights; the second does 64 times the work."""
    folder = tmp_path_factory.mktemp("pair")
    return product(folder, 256), product(folder, 2048)


def test_tells_models_apart(pair: tuple[Path, Path]) -> None:
    result = bench(*pair, "--seconds", 0.3, "--by-operator")
    small, large = result["models"]
    assert (small["ratio"], result["threads"], result["synthetic"]) == (1, 1, True)
    assert large["ratio_low"] <= large["ratio"] <= large["ratio_high"] and large["ratio"] > 5 and large["cpu_ratio"] > 5
    for model, path in zip((small, large), pair, strict=True):
        assert model["bytes"] == path.stat().st_size
        assert 0 < model["min_seconds"] <= model["median_seconds"] <= model["p90_seconds"]
        assert 0 <= model["waiting_share"] < 1
        (operator,) = model["operators"]
        assert (operator["op_type"], operator["nodes"], operator["share"]) == ("MatMul", 1, 1)
        assert 0.05 < operator["seconds"] / model["median_seconds"] < 20, "as far as a busy machine lets one tell"
    assert small["runs"] == large["runs"]
    more = large["peak_memory_bytes"] - small["peak_memory_bytes"]
    assert 12 << 20 < more < 80 << 20, "weights, at most as file, as read and as packed"


def test_external_data_count(tmp_path: Path) -> None:
    path = product(tmp_path, 512, save_as_external_data=True, location="w.data", size_threshold=1024)
    (model,) = bench(path, "--runs", 7, "--no-memory")["models"]
    assert model["bytes"] == path.stat().st_size + (tmp_path / "w.data").stat().st_size
    assert model["runs"] == 7 and "peak_memory_bytes" not in model


def test_inputs_are_samples_or_synthetic(tmp_path: Path) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(3))
    real = bench(tmp_path / "model.onnx", "--calibration-data", data, "--runs", 3)
    assert (real["samples"], real["synthetic"]) == (3, False)
    assert real["models"][0]["peak_memory_bytes"] > 1 << 20
    name, array = next(iter(graphs.cnn_samples(1)[0].items()))
    given = bench(tmp_path / "model.onnx", "--shape", f"{name}:{'x'.join(map(str, array.shape))}", "--runs", 3)
    assert given["synthetic"]


def test_a_decoder_reads_and_then_makes_one_token(tmp_path: Path) -> None:
    folder = decoders.genai_folder(tmp_path / "decoder")
    result = bench(folder, folder, "--runs", 2, "--no-memory")
    assert result["synthetic"] and len(result["notes"]) >= 2, result["notes"]
    for note in result["notes"][-2:]:
        assert re.search(r"decoder: one token with 128 in the cache takes [\d.]+ ms", note)
    result = bench(folder, "--runs", 2, "--no-memory", "--shape", "input_ids:1x5")
    assert not any("one token" in note for note in result["notes"]), "who gives shapes asks for these alone"


def test_says_what_to_do_where_synthetic_inputs_fail(tmp_path: Path) -> None:
    b = graphs.Builder()
    y = b.add("Add", "x", b.constant("c", np.zeros(5)))
    onnx.save(b.model({"x": (graphs.FLOAT, ("n", "m"))}, [y]), tmp_path / "model.onnx")
    failed = support.detent("bench", tmp_path / "model.onnx", "--no-memory")
    assert failed.returncode == 3 and "the inputs were made up: give samples by --calibration-data" in failed.stderr
    assert support.detent("bench").returncode == 2


def test_prints_a_table(pair: tuple[Path, Path]) -> None:
    result = support.detent("bench", *pair, "--runs", 3, "--threads", 1, "--by-operator")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[1].endswith(str(pair[0])) and lines[2].endswith(str(pair[1])) and "1.00" in lines[1]
    assert lines[3].startswith("1 thread, 3 interleaved runs of each model, on synthetic inputs, ONNX Runtime ")
    assert sum("MatMul" in line for line in lines) == 2


def quantize(*arguments: object) -> str:
    """What `detent quantize --bench` prints. Once more where the machine stood still, so that samples seemed to take long."""
    for _ in range(5):
        result = support.detent("quantize", *arguments, "--bench", "--threads", 1)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        if "latency was not measured: one run takes" not in result.stdout + result.notes:
            break
    return result.stdout


def quantized(model: Path, output: Path, *options: object) -> dict:
    return json.loads(quantize(model, "-o", output, "--json", *options))


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("cnn")
    onnx.save(graphs.small_cnn(), folder / "model.onnx")
    return folder / "model.onnx", support.save_samples(folder / "data", graphs.cnn_samples(6))


def test_quantize_ends_with_the_latency(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = cnn
    latency = quantized(model, tmp_path / "timed.onnx", "--calibration-data", data)["latency"]
    before, after = latency["before"], latency["after"]
    assert (latency["threads"], latency["samples"], latency["synthetic"], before["ratio"]) == (1, 4, False, 1)
    assert before["runs"] == after["runs"] > 0
    assert 0 < after["min_seconds"] <= after["median_seconds"] <= after["p90_seconds"]
    assert after["ratio_low"] <= after["ratio"] <= after["ratio_high"]
    untimed = support.quantize(model, tmp_path / "untimed.onnx", data, "--threads", 1)
    assert "latency" not in untimed and not any("latency" in note for note in untimed["notes"])
    assert (tmp_path / "timed.onnx").read_bytes() == (tmp_path / "untimed.onnx").read_bytes()


def test_the_summary_ends_with_what_came_of_it(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = cnn
    command = [model, "-o", tmp_path / "q.onnx", "--calibration-data", data, "--preset", "balanced"]
    last = quantize(*command).splitlines()[-1]
    timed = r"[\d.]+ -> [\d.]+ ms \(([\d.]+x (faster|slower)|as fast), 1 thread\)"
    latency = rf"latency ({timed}|not measured: the machine was busy), "
    others = r"size .* -> .*, worst output SQNR [\d.]+ dB on 6 samples, [\d.]+ on the worst"
    assert re.fullmatch(latency + others, last), last
    last = support.detent("quantize", *command, "--threads", 1).stdout.splitlines()[-1]
    assert re.fullmatch(others, last), last


def test_without_samples_inputs_are_synthetic(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = cnn
    statistics = support.calibrate(model, tmp_path / "s.stats", data)
    result = quantized(model, tmp_path / "q.onnx", "--statistics", statistics)
    assert result["latency"]["synthetic"] and result["latency"]["after"]["runs"] > 0


def test_says_why_there_is_no_latency(tmp_path: Path) -> None:
    b = graphs.Builder()
    y = b.add("MatMul", b.add("Add", "x", b.constant("c", np.ones(5))), b.weight("w", 5, 5))
    onnx.save(b.model({"x": (graphs.FLOAT, ("n", "m"))}, [y]), tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    data = support.save_samples(tmp_path / "data", [{"x": rng.standard_normal((3, 5), np.float32)}])
    statistics = support.calibrate(tmp_path / "model.onnx", tmp_path / "s.stats", data)
    result = quantized(tmp_path / "model.onnx", tmp_path / "q.onnx", "--statistics", statistics)
    assert "latency" not in result
    (note,) = [note for note in result["notes"] if note.startswith("latency was not measured: ")]
    assert "synthetic inputs" in note
