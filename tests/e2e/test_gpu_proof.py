"""scripts/gpu_proof on a device that is the host: what can be tried there is met, and a miss is told."""

import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import support
from support import Path

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_proof"


@pytest.fixture
def prepared(tmp_path: Path, model: Path, data: Path) -> Path:
    shutil.copy(model, tmp_path / "resnet18.onnx")
    shutil.copytree(data, tmp_path / "resnet18")
    return tmp_path


def proof(work: Path, *words: str, env: dict | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, SCRIPT, "--work", work, *words]
    environment = {**(env or os.environ), "DETENT": support.DETENT}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.full
def test_on_the_host(prepared: Path) -> None:
    plugin = os.environ.get("CUDA_ON_HOST", "")
    if not pathlib.Path(plugin).exists():
        pytest.skip("no plugin for the host was built (no oneDNN)")
    env = {**os.environ, "DETENT_CUDA_PLUGIN": plugin, "LD_LIBRARY_PATH": os.environ["CUDA_DRIVER"]}
    done = proof(prepared, "--only", "same bytes", "as planned", env=env)
    rows = [line for line in done.stdout.splitlines() if "| met |" in line]
    assert any("fine-tuning: the same bytes" in row for row in rows), done.stdout + done.stderr
    assert any("memory is as planned" in row for row in rows), done.stdout
    assert done.returncode == 1 and "is missing: gpu_proof --prepare" in done.stdout  # the row that needs a provider
    assert proof(prepared, "--only", "as planned", "--minutes", "0", env=env).returncode == 1  # no time is left


def test_without_a_gpu(prepared: Path) -> None:
    if pathlib.Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    assert proof(prepared).returncode == 5
    (prepared / "resnet18.onnx").unlink()
    unprepared = proof(prepared)
    assert unprepared.returncode == 2 and "--prepare" in unprepared.stderr


def test_overlap() -> None:
    loader = importlib.machinery.SourceFileLoader("gpu_proof", str(SCRIPT))
    spec = importlib.util.spec_from_loader("gpu_proof", loader)
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["gpu_proof"] = script  # dataclasses look it up
    loader.exec_module(script)
    lanes = {"cuda:0 copy": 1, "cuda:0 compute": 2}
    events = [{"name": "thread_name", "tid": tid, "args": {"name": lane}} for lane, tid in lanes.items()]
    bars = [(1, 0, 10), (1, 20, 10), (2, 5, 20)]
    events += [{"name": "x", "ph": "X", "tid": tid, "ts": 1e6 * ts, "dur": 1e6 * dur} for tid, ts, dur in bars]
    assert script.overlap_seconds(events, "cuda:0 copy", "cuda:0 compute") == 10
    assert script.overlap_seconds(events, "cuda:0 read", "cuda:0 compute") == 0
