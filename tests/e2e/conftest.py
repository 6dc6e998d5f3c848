"""What several files of tests share: a folder with a small model and samples to break, and an older CPU."""

import os
import subprocess
import sys

import graphs
import onnx
import pytest
import support
from failures import Place
from support import Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def model(place: Place) -> Path:
    onnx.save(graphs.small_cnn(), place.inputs / "model.onnx")
    return place.inputs / "model.onnx"


@pytest.fixture
def data(place: Place) -> Path:
    return support.save_samples(place.inputs / "data", graphs.cnn_samples())


@pytest.fixture(scope="session")
def old_cpu() -> dict[str, str]:
    """The environment in which the CPU has AVX2 only."""
    library = os.environ.get("AVX2_CPU", "")
    if not Path(library).is_file():
        pytest.skip("CPUID cannot be made to fault but on x86 under Linux")
    env = {**os.environ, "LD_PRELOAD": library, "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", ""], env=env, capture_output=True, text=True, check=False)
    if result.returncode == 77:
        pytest.skip(result.stderr.strip())
    return env
