"""Models and samples of the Hugging Face hub, from a cache as its own package leaves it: no network is asked."""

import hashlib
import importlib
import os
import pathlib
import subprocess
import sys

import detent
import pytest
import support

HUB = support.MODELS.parent / "deps" / "hub"
REVISION = "0" * 40


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    sys.path.append(str(HUB))
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is missing; scripts/setup.sh runtimes fetches it")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def save(cache: pathlib.Path, kind: str, repository: str, files: dict[str, bytes]) -> None:
    """Files are links to blobs, by revision, and a branch is a file with its revision."""
    base = cache / f"{kind}s--{repository.replace('/', '--')}"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text(REVISION)
    (base / "blobs").mkdir()
    for name, content in files.items():
        blob = base / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = base / "snapshots" / REVISION / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))


@pytest.fixture
def hub(cache: pathlib.Path, model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    save(cache, "model", "me/net", {"onnx/model.onnx": model.read_bytes(), "config.json": b"{}"})
    save(cache, "dataset", "me/data", {f"held/{path.name}": path.read_bytes() for path in folder.iterdir()})
    return cache


def test_the_bytes_are_those_of_local_files(hub, model, folder, tmp_path):
    detent.quantize(model, tmp_path / "a.onnx", folder, {"preset": "plain"})
    for name in ("hf://me/net/onnx/model.onnx", "hf://models/me/net@main/onnx/model.onnx"):
        detent.quantize(name, tmp_path / "b.onnx", "hf://datasets/me/data/held", {"preset": "plain"})
        assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_command_takes_them_too(hub, model, folder, tmp_path):
    detent.quantize(model, tmp_path / "a.onnx", folder, {"preset": "plain"})
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(HUB)])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
    words = ["quantize", "hf://me/net/onnx/model.onnx", "-o", "b.onnx", "--preset", "plain", "--no-bench"]
    words.append("--calibration-data=hf://datasets/me/data/held")
    run = [sys.executable, "-m", "detent", *words]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    run[4] = "hf://me/none/model.onnx"
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and done.stderr.startswith("detent: error: 'hf://me/none/model.onnx' cannot be fetched: ")


@pytest.mark.parametrize("path", ["hf://", "hf://me", "hf://me//x", "hf://me/@main", "hf://datasets/me", "hf://me/net/../../x"])
def test_what_is_no_path_of_the_hub(path):
    with pytest.raises(detent.errors.UsageError, match="no path on the Hugging Face hub"):
        detent.inspect(path)


def test_what_is_not_there(hub):
    with pytest.raises(detent.errors.BadInput, match="cannot be fetched"):
        detent.inspect("hf://me/other")
    with pytest.raises(detent.errors.BadInput, match="has no 'onnx/other.onnx'"):
        detent.inspect("hf://me/net/onnx/other.onnx")


def test_without_the_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(detent.errors.UsageError, match="needs huggingface_hub; pip install huggingface_hub"):
        detent.inspect("hf://me/net")


def test_the_native_command_says_who_reads_them(tmp_path):
    done = support.detent("quantize", "hf://me/net", "-o", tmp_path / "q.onnx")
    assert done.returncode == 2 and "python3 -m detent" in done.stderr
