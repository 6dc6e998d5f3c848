"""What detent writes loads and runs in every supported version of ONNX Runtime, and what it calibrates with is any of them."""

import json
import os
import subprocess
import sys

import graphs
import numpy as np
import onnx
import pytest
import support
from onnx import helper, numpy_helper
from support import Path, Sample

FORMATS = {
    "default": ["--preset", "balanced"],
    "fast": ["--preset", "balanced", "--optimize-for", "latency"],
    "plain": [],
    "per-tensor": ["--per-tensor"],
    "symmetric": ["--activation-type", "int8", "--set", "activation-symmetric"],
    "uint8-weights": ["--weight-type", "uint8"],
    "int16": ["--activation-type", "int16"],
    "wide-fallback": ["--preset", "balanced", "--accuracy-fallback", "int16"],
    "int4": ["--weight-type", "int4"],
    "power-of-two": ["--set", "power-of-two-scale"],
    "dynamic": ["--activations", "dynamic"],
    "blocks": ["--weights-only"],
    "blocks-symmetric": ["--weights-only", "--set", "weight-symmetric", "--block-size", 16],
    "blocks-qdq": ["--weights-only", "--weights-form", "qdq", "--block-size", 16],
}
# Runs every model of a folder, in a process that has another onnxruntime.
RUN = """
import pathlib, sys
import numpy as np, onnxruntime as ort
assert ort.__version__ == sys.argv[1], ort.__version__
options = ort.SessionOptions()
options.log_severity_level = 3
for path in sorted(pathlib.Path(sys.argv[2]).glob("*.onnx")):
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    sample = dict(np.load(path.with_name(path.name.split("-")[0] + ".sample.npz")))
    np.savez(pathlib.Path(sys.argv[3]) / path.stem, *session.run(None, sample))
"""


def classifier_samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    return [{"x": rng.random((1, 3, 48, 192), dtype=np.float32)} for _ in range(4)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each model in float and in every format, with a sample."""
    folder = tmp_path_factory.mktemp("written")
    inputs = tmp_path_factory.mktemp("inputs")
    models = {
        "cnn": (graphs.small_cnn(), graphs.cnn_samples()),
        "transformer": (graphs.transformer(), graphs.transformer_samples()),
        "menagerie": (graphs.menagerie(), graphs.menagerie_samples()),
        "classifier": (onnx.load(support.MODELS / "ppocr_cls.onnx"), classifier_samples()),
    }
    for name, (model, samples) in models.items():
        path = folder / f"{name}-float.onnx"
        onnx.save(model, path)
        np.savez(folder / f"{name}.sample.npz", **samples[0])
        data = support.save_samples(inputs / name, samples)
        for form, options in FORMATS.items():
            if name == "classifier" and form not in ("default", "plain", "int4"):
                continue  # takes longer to load than the others
            quick = ["--set", f"kernel-table={inputs / f'{name}.json'}"] if form in ("default", "fast") else []
            support.quantize(path, folder / f"{name}-{form}.onnx", data, *options, *quick)
    return folder


def run_all(folder: Path, results: Path, version: str, python_path: str) -> dict[str, list[np.ndarray]]:
    results.mkdir()
    command = [sys.executable, "-c", RUN, version, folder, results]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": python_path})
    assert done.returncode == 0, done.stderr[-600:]
    return {path.stem: list(np.load(path).values()) for path in results.iterdir()}


def test_there_are_older_and_newer_runtimes() -> None:
    assert [path.name for path in support.RUNTIMES][0] == "1.21.1" and len(support.RUNTIMES) >= 4


@pytest.mark.full
def test_every_format_runs_in_every_version(written: Path, tmp_path: Path) -> None:
    reference = run_all(written, tmp_path / "now", support.ort.__version__, "")
    assert len(reference) == 3 * (1 + len(FORMATS)) + 4
    for runtime in support.RUNTIMES:
        found = run_all(written, tmp_path / runtime.name, runtime.name, str(runtime))
        assert found.keys() == reference.keys()
        for name, values in found.items():
            in_float = reference[name.split("-")[0] + "-float"]
            for i, value in enumerate(values):
                if value.dtype != np.float32:
                    continue
                then = support.sqnr([in_float], [values], i)
                now = support.sqnr([in_float], [reference[name]], i)
                assert then > min(now, 40) - 3, (runtime.name, name, i, then, now)


def outlier_channels(kind: str) -> tuple[onnx.ModelProto, list[Sample]]:
    """Products that read two channels of another size, as those of transformers do: 8 bits for all of them say little."""
    width, rng = 64, np.random.default_rng(7)
    gain = np.ones(width, np.float32)
    gain[[7, 40]] = 300, 150
    nodes, constants, last = [], {"gain": gain}, "x"
    for i in range(3):
        weight = rng.normal(0, 0.125, (width, width)).astype(np.float32)
        constants |= {f"w{i}": weight / gain[:, None] if i else weight, f"b{i}": rng.normal(0, 0.1, width).astype(np.float32)}
        out = "y" if i == 2 else f"h{i}"
        if kind == "Gemm":
            nodes.append(helper.make_node("Gemm", [last, f"w{i}", f"b{i}"], [out], f"fc{i}"))
        else:
            nodes += [
                helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], f"fc{i}"),
                helper.make_node("Add", [f"m{i}", f"b{i}"], [out], f"add{i}"),
            ]
        if i < 2:
            nodes += [
                helper.make_node("Tanh", [f"h{i}"], [f"t{i}"], f"tanh{i}"),
                helper.make_node("Mul", [f"t{i}", "gain"], [f"o{i}"], f"gain{i}"),
            ]
            last = f"o{i}"
    shape = [96, width] if kind == "Gemm" else [8, 12, width]
    ports = [helper.make_tensor_value_info(name, 1, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(v, k) for k, v in constants.items()])
    samples = [{"x": rng.normal(0, 1, shape).astype(np.float32)}]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), samples


WIDE = {
    "a16w8": ["--format", "a16w8"],
    "int16": ["--activation-type", "int16", "--optimize-for", "size"],
    "per-tensor": ["--format", "a16w8", "--per-tensor"],
    "int4": ["--activation-type", "uint16", "--weight-type", "int4", "--optimize-for", "size"],
    "nodes": ["--node-formats", "^fc.*=a16w8"],
    "qnn": ["--target", "qnn"],
    "qnn-a16": ["--target", "qnn:a16"],
    "amd-npu": ["--target", "amd-npu:a16w8"],
    "qdq": ["--format", "q8", "--set", "weights-form=qdq", "--set", "accuracy-level=1"],
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["MatMul", "Gemm"])
def test_what_is_told_holds_in_every_version(kind: str, tmp_path: Path) -> None:
    """From 1.26 and 1.32 on, runtimes round to 8 bits what products read beside weights, unless these are written otherwise."""
    model, samples = outlier_channels(kind)
    folder = tmp_path / "written"
    folder.mkdir()
    onnx.save(model, folder / "model-float.onnx")
    np.savez(folder / "model.sample.npz", **samples[0])
    data = support.save_samples(tmp_path / "data", samples)
    told = {}
    for name, options in WIDE.items():
        command = [support.DETENT, "quantize", folder / "model-float.onnx", "-o", folder / f"model-{name}.onnx"]
        command += ["--calibration-data", data, "--json", "--no-bench", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, done.stderr)
        told[f"model-{name}"] = json.loads(done.stdout)["accuracy"]["sqnr_db"]
    for version, path in [(runtime.name, str(runtime)) for runtime in support.RUNTIMES] + [(support.ort.__version__, "")]:
        found = run_all(folder, tmp_path / version, version, path)
        expected = [found.pop("model-float")]
        assert {name: support.sqnr(expected, [value]) for name, value in found.items()} == pytest.approx(told, abs=0.3), version


@pytest.mark.parametrize("runtime", support.RUNTIMES, ids=lambda path: path.name)
def test_every_version_calibrates(runtime: Path, tmp_path: Path) -> None:
    library = next((runtime / "onnxruntime" / "capi").glob("libonnxruntime.so.*"))
    onnx.save(graphs.transformer(), tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", graphs.transformer_samples())
    report = support.quantize(
        tmp_path / "model.onnx", tmp_path / "q.onnx", data, "--preset", "balanced", "--finetune", "gptq", "--runtime", library
    )
    assert report["nodes_quantized"] > 0
    support.check_model(tmp_path / "q.onnx")


@pytest.mark.parametrize("kind", ["FIFO", "link to a FIFO", "device"])
@pytest.mark.parametrize("by", ["--runtime", "DETENT_ONNXRUNTIME", "DETENT_CPU_PLUGIN"])
def test_what_is_no_file_is_no_library(by: str, kind: str, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    os.mkfifo(tmp_path / "fifo")
    library.symlink_to("/dev/zero" if kind == "device" else tmp_path / "fifo")
    if kind == "FIFO":
        library = tmp_path / "fifo"
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples())
    more = ["--runtime", library] if by == "--runtime" else ["--finetune", "adaround"]
    environment = {**os.environ, **({} if by == "--runtime" else {by: str(library)})}
    command = ["quantize", tmp_path / "model.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, *more]
    result = support.detent(*command, env=environment)
    assert result.returncode == 5
    assert f"'{library}' is not a regular file" in result.stderr
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("options", [support.PLAIN, ["--preset", "balanced"]], ids=["plain", "balanced"])
def test_gemms_with_factors_are_right_in_every_version(options: list[str], tmp_path: Path) -> None:
    """Before 1.28, alpha multiplied an int32 bias as well. References are numpy's."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(0, 0.2, (2, 32, 32)).astype(np.float32)
    c, row, x = rng.normal(0, 2, 32), rng.normal(0, 2, (1, 32)), rng.normal(0, 1, (6, 4, 32))
    constants = {"a": a, "b": b, "c": np.float32(c), "row": np.float32(row)}
    nodes = [
        helper.make_node("Gemm", ["x", "a", "c"], ["h"], "first", alpha=0.5, beta=2.0, transB=1),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "b", "row"], ["y"], "second", alpha=3.0, beta=0.25),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [4, 32])], [helper.make_tensor_value_info("y", 1, [4, 32])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), tmp_path / "m.onnx")
    samples = [{"x": np.float32(value)} for value in x]
    data = support.save_samples(tmp_path / "data", samples)
    support.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, *options)
    expected = 3 * np.maximum(0.5 * x[0] @ a.T + 2 * c, 0) @ b + 0.25 * row
    for runtime in [*support.RUNTIMES, Path()]:
        found = support.run_in(runtime, tmp_path / "q.onnx", tmp_path / "found.npz", **samples[0])
        assert support.sqnr([[expected]], [found]) > 30, runtime.name


@pytest.mark.parametrize("options", [["--format", "q8"], ["--format", "int8-dynamic"]], ids=["blocks", "dynamic"])
def test_factors_of_gemms_keep_no_weight_in_float(options: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    a, c, x = np.float32(rng.normal(0, 0.2, (64, 64))), np.float32(rng.normal(0, 1, (1, 64))), rng.normal(0, 1, (4, 4, 64))
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "a", "c"], ["y"], "gemm", alpha=0.5, beta=2.0)],
        "g", [helper.make_tensor_value_info("x", 1, [4, 64])], [helper.make_tensor_value_info("y", 1, [4, 64])],
        [numpy_helper.from_array(a, "a"), numpy_helper.from_array(c, "c")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), tmp_path / "m.onnx")
    command = [support.DETENT, "quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--no-bench", *options]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "Gemm" not in [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    found = support.load(tmp_path / "q.onnx").run(None, {"x": np.float32(x[0])})
    assert support.sqnr([[0.5 * x[0] @ a + 2 * c]], [found]) > 30
