"""What several files of tests share: a folder with a small model and samples to break, and an older CPU."""

import os
import platform
import shutil
import subprocess
import sys

import failures
import graphs
import onnx
import pytest
import support
from failures import Place
from support import Path

OLD_CPU = "max,-avx512f,-avx512bw,-avx512vnni,-avx-vnni,-amx-int8"

failures.take_signals()


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
def old_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the CPU has AVX2 only, for support.detent and support.python: CPUID is made to fault, or the CPU is
    emulated."""
    library = os.environ.get("AVX2_CPU", "")
    if Path(library).is_file():
        env = {**os.environ, "LD_PRELOAD": library, "OPENBLAS_NUM_THREADS": "1"}
        if subprocess.run([sys.executable, "-c", ""], env=env, capture_output=True, check=False).returncode != 77:
            return env
    emulator = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if emulator is None or platform.machine() != "x86_64":
        pytest.skip("CPUID cannot be made to fault here, and there is no qemu-x86_64")
    return emulated_cpu(emulator, tmp_path_factory.mktemp("old_cpu"))


def emulated_cpu(emulator: str, folder: Path) -> dict[str, str]:
    """Programs are started by scripts, since what a process starts is not emulated by itself."""
    program = support.DETENT.resolve()
    for library in program.parent.glob("lib*.so"):
        (folder / library.name).symlink_to(library)
    shutil.copy(program, folder / "detent.bin")
    for name, started in (("detent", folder / "detent.bin"), ("python", Path(sys.executable))):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {emulator} -cpu {OLD_CPU} {started} "$@"\n')
        script.chmod(0o755)
    scripts = {"DETENT": str(folder / "detent"), "PYTHON": str(folder / "python")}
    return {**os.environ, **scripts, "OPENBLAS_NUM_THREADS": "1"}
