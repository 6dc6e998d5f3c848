"""What detent writes loads and runs in every supported version of ONNX Runtime, and what it calibrates with is any of them."""

import os
import subprocess
import sys

import graphs
import numpy as np
import onnx
import pytest
import support
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
                # From 1.32 on, products of 16-bit activations are computed on 8 bits for each block of a row.
                assert then > min(now, 40) - (6 if "int16" in name else 3), (runtime.name, name, i, then, now)


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
