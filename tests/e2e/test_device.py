"""--device: what is refused where there is no GPU, and that the plain binary knows nothing of CUDA."""

import pathlib
import subprocess

import onnx
import onnx.numpy_helper
import pytest
import support
from failures import DEVICE, USAGE, Place
from support import Path

ADAROUND = ["--finetune", "adaround", "--num-iterations", 10]


@pytest.fixture
def no_driver() -> None:
    if pathlib.Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")


def test_the_binary_is_free_of_cuda() -> None:
    needed = subprocess.run(["ldd", support.DETENT], capture_output=True, text=True, check=True).stdout
    assert not [line for line in needed.splitlines() if any(word in line.lower() for word in ("cuda", "cublas", "cudnn", "nvidia"))]


@pytest.mark.parametrize("device", ["cuda:0", "cuda", "cuda:1,cuda:0"])
@pytest.mark.parametrize("rest", [[], ADAROUND])
def test_without_a_driver(device: str, rest: list, place: Place, model: Path, data: Path, no_driver: None) -> None:
    line = place.refused(DEVICE, "no CUDA driver|CUDA driver does not start|sees no device", model, data, "--device", device, *rest)
    assert "--device cpu" in line


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:0,", "cuda:0,cuda:0", ""])
def test_what_is_no_device(device: str, place: Place, model: Path, data: Path) -> None:
    place.refused(USAGE, "device", model, data, f"--device={device}")


@pytest.mark.parametrize("option", [("--device-memory-budget", "1GiB"), ("--device-precision", "tf32"), ("--device-layout", "nhwc")])
def test_options_of_gpus_need_one(option: tuple, place: Place, model: Path, data: Path) -> None:
    place.refused(USAGE, "--device cuda:0", model, data, *option)


def test_cpu_is_the_default(place: Place, model: Path, data: Path) -> None:
    plain, named = place.out / "a.onnx", place.out / "b.onnx"
    support.quantize(model, plain, data, *ADAROUND)
    support.quantize(model, named, data, "--device", "cpu", *ADAROUND)
    assert support.sha256(plain) == support.sha256(named)


def calibrate_refused(place: Place, code: int, says: str, model: Path, data: Path, *options: object) -> str:
    return place.refuses(code, says, "calibrate", model, "-o", place.out / "s.stats", "--calibration-data", data, *options)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1,cuda:0"])
def test_calibration_without_a_driver(device: str, place: Place, model: Path, data: Path, no_driver: None) -> None:
    line = calibrate_refused(place, DEVICE, "no CUDA driver|CUDA driver does not start|sees no device", model, data, "--device", device)
    assert "--device cpu" in line


def test_calibration_on_a_device_takes_one_sample_at_a_time(place: Place, model: Path, data: Path) -> None:
    calibrate_refused(place, USAGE, "one sample at a time", model, data, "--device", "cuda:0", "--workers", 2)
    place.refused(USAGE, "one sample at a time", model, data, "--device", "cuda:0", "--workers", 2)


def test_calibration_with_options_of_gpus_needs_one(place: Place, model: Path, data: Path) -> None:
    calibrate_refused(place, USAGE, "--device cuda:0", model, data, "--device-memory-budget", "1GiB")


def test_calibration_on_a_gpu_agrees_with_the_cpus(place: Place, model: Path, data: Path) -> None:
    """Ranges within the rounding of another order of additions. Needs an ONNX Runtime with CUDA in DETENT_ONNXRUNTIME."""
    if not pathlib.Path("/dev/nvidiactl").exists():
        pytest.skip("no CUDA driver (/dev/nvidiactl)")
    scales = {}
    for device in ("cpu", "cuda:0"):
        output = place.out / f"{device[:3]}.onnx"
        support.quantize(model, output, data, "--preset", "plain", "--device", device)
        found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(output).graph.initializer}
        scales[device] = {name: float(scale) for name, scale in found.items() if name.endswith("_scale") and scale.ndim == 0}
    assert scales["cpu"].keys() == scales["cuda:0"].keys()
    for name, scale in scales["cpu"].items():
        assert scales["cuda:0"][name] == pytest.approx(scale, rel=1e-4), name
