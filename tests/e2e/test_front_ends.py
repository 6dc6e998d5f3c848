"""A Fourier transform and mel filters in front of a logarithm, a division or a power: small values count as large ones do."""

import numpy as np
import onnx
import pytest
import support
from graphs import Builder
from onnx import TensorProto, helper
from support import Path

LENGTH, WINDOW, HOP, BANDS = 4096, 128, 64, 24
FREQUENCIES = WINDOW // 2 + 1
BALANCED = [
    "--preset",
    "balanced",
]


def transform() -> tuple[np.ndarray, np.ndarray]:
    angle = 2 * np.pi * np.arange(FREQUENCIES)[:, None] * np.arange(WINDOW) / WINDOW
    return np.cos(angle) * np.hanning(WINDOW), np.sin(angle) * np.hanning(WINDOW)


def filters() -> np.ndarray:
    """Triangles over the frequencies, wider towards the high ones."""
    edges = np.geomspace(1, FREQUENCIES, BANDS + 2) - 1
    at = np.arange(FREQUENCIES)[:, None]
    rising, falling = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling))


def spectrum(b: Builder, form: str) -> str:
    """Powers of the frequencies of frames [1, frames, FREQUENCIES]."""
    real, imaginary = transform()
    if form == "stft":
        sizes = [b.constant(name, value, np.int64) for name, value in (("hop", HOP), ("window", WINDOW))]
        shape = b.add("Unsqueeze", "x", b.constant("axes", [2], np.int64))
        bins = b.add("STFT", shape, sizes[0], b.constant("hann", np.hanning(WINDOW)), sizes[1], onesided=1)
        return b.add("ReduceSumSquare", bins, axes=[3], keepdims=0)
    if form == "conv":
        weight = b.constant("transform", np.concatenate([real, imaginary])[:, None])
        bins = b.add("Conv", b.add("Unsqueeze", "x", b.constant("axes", [1], np.int64)), weight, strides=[HOP])
        b.add("Split", bins, b.constant("halves", [FREQUENCIES] * 2, np.int64), axis=1, name="split", count=2)
        parts = [b.add("Pow", half, b.constant(f"two{i}", 2.0)) for i, half in enumerate(["split.out", "split.out.1"])]
        return b.add("Transpose", b.add("Add", *parts), perm=[0, 2, 1])
    at = np.arange(0, LENGTH - WINDOW + 1, HOP)[:, None] + np.arange(WINDOW)
    if form == "scan":
        frames = frames_of_scan(b, at)
        bins = b.add("DFT", b.add("Unsqueeze", frames, b.constant("axes", [3], np.int64)), axis=2, onesided=1)
        return b.add("ReduceSumSquare", bins, axes=[3], keepdims=0)
    frames = b.add("Gather", "x", b.constant("frames", at, np.int64), axis=1)
    parts = [b.add("MatMul", frames, b.constant(name, part.T)) for name, part in (("cos", real), ("sin", imaginary))]
    return b.add("Add", *(b.add("Mul", part, part) for part in parts))


def frames_of_scan(b: Builder, at: np.ndarray) -> str:
    """[1, frames, WINDOW], windowed, by a loop over where they are, as exporters of Kaldi's features write it."""
    taken = helper.make_node("Gather", ["sound", "place"], ["taken"], axis=1)
    kept = helper.make_node("Identity", ["sound"], ["kept"])
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("sound", [1, LENGTH]), ("kept", [1, LENGTH]), ("taken", [1, WINDOW]))
    ]
    place = helper.make_tensor_value_info("place", TensorProto.INT64, [WINDOW])
    body = helper.make_graph([kept, taken], "frame", [values[0], place], values[1:])
    b.add("Scan", "x", b.constant("places", at, np.int64), body=body, num_scan_inputs=1, name="frames", count=2)
    return b.add("Mul", b.add("Transpose", "frames.out.1", perm=[1, 0, 2]), b.constant("hann", np.hanning(WINDOW)))


def features(b: Builder, bands: str, made: str) -> str:
    def sum_with(value: str, number: float) -> str:
        return b.add("Add", value, b.constant(f"n{number}", number))

    if made == "logarithm":
        return b.add("Log", sum_with(bands, 1e-6))
    if made == "clipped":
        return b.add("Log", b.add("Clip", bands, b.constant("least", np.float32(1e-6))))
    if made == "power":
        return b.add("Pow", bands, b.constant("exponent", 0.3))
    mean = b.add("ReduceMean", bands, axes=[1], keepdims=1)
    return b.add("Pow", sum_with(b.add("Div", bands, sum_with(mean, 1e-6)), 0.5), b.constant("half", 0.5))


def front_end(form: str, made: str = "logarithm") -> onnx.ModelProto:
    b = Builder(3)
    bands = b.add("MatMul", spectrum(b, form), b.constant("mel", filters()), name="bands")
    value, channels = b.add("Transpose", features(b, bands, made), perm=[0, 2, 1]), BANDS
    for n, outputs in enumerate((48, 48, 8)):
        weight = b.weight(f"w{n}", outputs, channels, 3, scale=(2 / (3 * channels)) ** 0.5)
        value, channels = b.add("Conv", value, weight, pads=[1, 1]), outputs
        value = b.add("Relu", value) if n < 2 else value
    return b.model({"x": (TensorProto.FLOAT, [1, LENGTH])}, [value])


def sounds(count: int, seed: int) -> list[support.Sample]:
    """Vowels of changing pitch with pauses between them, over a faint noise."""
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        phase = np.cumsum(2 * np.pi * (rng.uniform(0.01, 0.04) + 0.004 * np.sin(np.arange(LENGTH) / 700)))
        voice = sum(rng.uniform(0.1, 1) / n**2 * np.sin(n * phase) for n in range(1, 12))
        loudness = np.clip(np.sin(np.arange(LENGTH) / LENGTH * rng.uniform(4, 9) + rng.uniform(0, 6)), 0, 1) ** 2
        samples.append({"x": (0.3 * loudness * voice + rng.normal(0, 1e-4, LENGTH)).astype(np.float32)[None]})
    return samples


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return support.save_samples(tmp_path / "samples", sounds(16, 1))


def saved(model: onnx.ModelProto, tmp_path: Path) -> Path:
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("made", ["logarithm", "clipped", "power", "mean"])
@pytest.mark.parametrize("form", ["matmul", "conv", "stft", "scan"])
def test_stays_in_float(form: str, made: str, data: Path, tmp_path: Path) -> None:
    model = saved(front_end(form, made), tmp_path)
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED)
    held = sounds(8, 2)
    reference = support.outputs(support.load(model), held)
    assert support.sqnr(reference, support.outputs(support.check_model(tmp_path / "q.onnx"), held)) > 25
    assert "bands" in str(report["accuracy"]["float_nodes"])
    integers = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node].count("QuantizeLinear")
    assert integers >= 2  # of the layers behind it


@pytest.mark.parametrize("form", ["matmul", "conv", "scan"])
def test_where_nothing_is_left_to_quantize(form: str, data: Path, tmp_path: Path) -> None:
    """A front end alone: without integers it is the float model, whose weights may still take 8 bits."""
    b = Builder(5)
    bands = b.add("MatMul", spectrum(b, form), b.constant("mel", filters()), name="bands")
    model = saved(b.model({"x": (TensorProto.FLOAT, [1, LENGTH])}, [features(b, bands, "logarithm")]), tmp_path)
    report = support.quantize(model, tmp_path / "q.onnx", data, *BALANCED)
    held = sounds(8, 2)
    reference = support.outputs(support.load(model), held)
    assert support.sqnr(reference, support.outputs(support.check_model(tmp_path / "q.onnx"), held)) > 20
    assert report["accuracy"]["sqnr_db"] is None or report["accuracy"]["sqnr_db"] > 20  # None: the outputs are equal


@pytest.mark.parametrize(
    "options",
    [["--activations", "dynamic"], ["--weights-only", "--bits", "8"], ["--weights-only"]],
    ids=" ".join,
)
def test_stays_in_float_where_nothing_is_measured(options: list[str], tmp_path: Path) -> None:
    b = Builder(4)
    bands = b.add("MatMul", spectrum(b, "matmul"), b.constant("mel", filters()), name="bands")
    output = b.add("MatMul", features(b, bands, "logarithm"), b.weight("head", BANDS, 256), name="head")
    model = saved(b.model({"x": (TensorProto.FLOAT, [1, LENGTH])}, [output]), tmp_path)
    ran = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *options)
    assert ran.returncode == 0, ran.stderr
    assert "and 2 more stay in float: a logarithm or a power behind it" in ran.notes
    held = sounds(8, 2)
    reference = support.outputs(support.load(model), held)
    assert support.sqnr(reference, support.outputs(support.load(tmp_path / "q.onnx"), held)) > 15
    named = support.detent("quantize", model, "-o", tmp_path / "all.onnx", "--nodes", "bands", *options)
    assert named.returncode == 0, named.stderr
    assert "behind it" not in named.notes


def test_where_float_is_no_way_out_its_nodes_are_named(data: Path, tmp_path: Path) -> None:
    model = saved(front_end("conv"), tmp_path)
    options = ["--preset", "balanced", "--calibration-data", data, "--target", "amd-npu:xint8"]
    ran = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *options)
    said = (ran.stderr + ran.notes).split("--exclude-nodes ")[1].split()[0]
    assert {"bands", "conv1"} <= set(said.split(",")), said
    support.quantize(model, tmp_path / "q.onnx", data, "--preset", "balanced", "--target", "amd-npu:xint8", "--exclude-nodes", said)
    held = sounds(8, 2)
    reference = support.outputs(support.load(model), held)
    assert support.sqnr(reference, support.outputs(support.load(tmp_path / "q.onnx"), held)) > 20


def test_tables_that_nodes_make_are_written_as_these(data: Path, tmp_path: Path) -> None:
    """A transform of 32 KiB whose angles are products of two vectors, computed when the model loads."""
    b = Builder(5)
    steps = b.constant("steps", np.arange(FREQUENCIES)[:, None] * (2 * np.pi / WINDOW))
    angles = b.add("Mul", steps, b.constant("at", np.arange(WINDOW)[None]))
    frames = b.add("Reshape", "x", b.constant("frames", [WINDOW, -1], np.int64))
    parts = [b.add("MatMul", b.add(turn, angles), frames) for turn in ("Cos", "Sin")]
    powers = b.add("Add", *(b.add("Mul", part, part) for part in parts))
    features = b.add("Log", b.add("Add", powers, b.constant("least", 1e-6)))
    output = b.add("MatMul", features, b.weight("head", LENGTH // WINDOW, 8))
    model = saved(b.model({"x": (TensorProto.FLOAT, [1, LENGTH])}, [output]), tmp_path)
    support.quantize(model, tmp_path / "q.onnx", data, *BALANCED, "--exclude-nodes", "matmul1,matmul2")
    assert (tmp_path / "q.onnx").stat().st_size < model.stat().st_size + 1024
    held = sounds(2, 2)
    assert support.sqnr(support.outputs(support.load(model), held), support.outputs(support.load(tmp_path / "q.onnx"), held)) > 20


def test_most_of_a_model_stays_in_float_where_integers_make_it_useless(tmp_path: Path) -> None:
    """Rows from 1 to a million times as large, behind a curve and normalized again: half of the multiplications serve no
    one in integers. What falls back costs time that integers saved, and no more."""
    b, rng = Builder(6), np.random.default_rng(6)
    value = b.add("MatMul", b.add("Exp", "x"), b.constant("first", rng.uniform(0, 1, (256, 256))), name="far")
    ones, zeros = b.constant("scale", np.ones(256)), b.constant("shift", np.zeros(256))
    value = b.add("Tanh", b.add("LayerNormalization", value, ones, zeros))
    output = b.add("MatMul", value, b.weight("second", 256, 256), name="near")
    model = saved(b.model({"x": (TensorProto.FLOAT, [64, 256])}, [output]), tmp_path)
    rows = [{"x": (rng.uniform(0, 14, (64, 1)) + 0.5 * rng.standard_normal((64, 256))).astype(np.float32)} for _ in range(24)]
    report = support.quantize(model, tmp_path / "q.onnx", support.save_samples(tmp_path / "rows", rows[:16]), *BALANCED)
    reference = support.outputs(support.load(model), rows[16:])
    assert support.sqnr(reference, support.outputs(support.check_model(tmp_path / "q.onnx"), rows[16:])) > 20, report["accuracy"]
