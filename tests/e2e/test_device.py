"""--device: what is refused where there is no GPU, and that the plain binary knows nothing of CUDA."""

import json
import os
import pathlib
import re
import subprocess

import onnx
import onnx.numpy_helper
import pytest
import support
from failures import DEVICE, RESOURCE, USAGE, Place
from support import Path

ADAROUND = ["--finetune", "adaround", "--set", "num-iterations=10"]


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


@pytest.mark.parametrize(
    "option",
    [
        ("--set", "device-memory-budget=1GiB"),
        ("--set", "device-precision=tf32"),
        ("--set", "device-layout=nhwc"),
        ("--set", "gds=on"),
        (
            "--set",
            "no-pin-memory",
        ),
    ],
)
def test_options_of_gpus_need_one(option: tuple, place: Place, model: Path, data: Path) -> None:
    place.refused(USAGE, "--device cuda:0|runs on the CPU", model, data, "--finetune", "adaround", *option)


def test_cpu_is_the_default(place: Place, model: Path, data: Path) -> None:
    plain, named = place.out / "a.onnx", place.out / "b.onnx"
    support.quantize(model, plain, data, *ADAROUND)
    support.quantize(model, named, data, "--device", "cpu", *ADAROUND)
    assert support.sha256(plain) == support.sha256(named)


def calibrate_refused(place: Place, code: int, says: str, model: Path, data: Path, *options: object) -> str:
    return place.refuses(code, says, "calibrate", model, "-o", place.out / "s.stats", "--calibration-data", data, *options)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1,cuda:0"])
def test_calibration_without_a_driver(device: str, place: Place, model: Path, data: Path, no_driver: None) -> None:
    why = "no CUDA driver|CUDA driver does not start|sees no device"
    line = calibrate_refused(place, DEVICE, why, model, data, "--device", device)
    assert "--device cpu" in line


def test_calibration_on_a_device_takes_one_sample_at_a_time(place: Place, model: Path, data: Path) -> None:
    calibrate_refused(place, USAGE, "one sample at a time", model, data, "--device", "cuda:0", "--workers", 2)
    place.refused(USAGE, "one sample at a time", model, data, "--device", "cuda:0", "--workers", 2)


def test_calibration_with_options_of_gpus_needs_one(place: Place, model: Path, data: Path) -> None:
    calibrate_refused(place, USAGE, "--device cuda:0", model, data, "--set", "device-memory-budget=1GiB")


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


def plan(model: Path, data: Path, *options: object, **more: object) -> dict:
    result = support.detent("plan", model, "--calibration-data", data, "--json", *options, **more)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("form", ["gram", "streamed"])
def test_a_plan_for_a_known_budget_needs_no_device(form: str, model: Path, data: Path, no_driver: None) -> None:
    options = [*ADAROUND, "--set", f"finetune-form={form}", "--device", "cuda:0,cuda:1", "--set"]
    fits = plan(model, data, *options, "device-memory-budget=1GiB")["device"]
    assert fits["fits"] and fits["devices"] == 2 and fits["budget_bytes"] == 1 << 30
    assert fits["layers"] and all(layer["fits"] and layer["form"] == form for layer in fits["layers"])
    assert fits["peak_bytes"] == max(fits["calibration_counters_bytes"], *(layer["bytes"] for layer in fits["layers"]))
    tight = plan(model, data, *options, "device-memory-budget=1MiB")["device"]
    assert not tight["fits"] and tight["peak_bytes"] == fits["peak_bytes"]
    text = support.detent("plan", model, "--calibration-data", data, *options, "device-memory-budget=1MiB").stdout
    assert "does not fit the budget of 1" in text


def test_a_plan_without_a_budget_asks_the_device(place: Place, model: Path, data: Path, no_driver: None) -> None:
    line = place.refuses(DEVICE, "cuda:0: ", "plan", model, "--calibration-data", data, *ADAROUND, "--device", "cuda:0")
    assert "--set device-memory-budget" in line


def test_comparing_without_a_driver(place: Place, model: Path, data: Path, no_driver: None) -> None:
    why = "no CUDA driver|CUDA driver does not start|sees no device"
    line = place.refuses(DEVICE, why, "compare", model, model, "--calibration-data", data, "--device", "cuda:0")
    assert "--device cpu" in line
    compared = ("compare", model, model, "--calibration-data", data, "--json")
    plain, named = support.detent(*compared), support.detent(*compared, "--device", "cpu")
    assert plain.returncode == 0 and json.loads(plain.stdout) == json.loads(named.stdout)


# From here on a device that is the host: the plugin with its kernels run by the CPU, and a driver that says it has two.


@pytest.fixture
def on_host() -> dict:
    plugin = os.environ.get("CUDA_ON_HOST", "")
    if not pathlib.Path(plugin).exists():
        pytest.skip("no plugin for the host was built (no oneDNN)")
    return {**os.environ, "DETENT_CUDA_PLUGIN": plugin, "LD_LIBRARY_PATH": os.environ["CUDA_DRIVER"]}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["gram", "streamed"])
@pytest.mark.parametrize("rounding", ["adaround", "adaquant"])
def test_finds_what_the_cpu_finds(form: str, rounding: str, place: Place, model: Path, data: Path, on_host: dict) -> None:
    options = ["--finetune", rounding, "--set", f"finetune-form={form}", "--set", "num-iterations=40"]
    options += ["--set", f"learning-rate={0.1 if rounding == 'adaround' else 1e-3}"]
    # Calibration apart: on a device it rounds otherwise, and gives another problem to solve.
    options += ["--statistics", support.calibrate(model, place.out / "s.stats", data)]
    cpu = support.quantize(model, place.out / "cpu.onnx", data, *options)
    one = support.quantize(model, place.out / "one.onnx", data, *options, "--device", "cuda:0", env=on_host)
    two = support.quantize(model, place.out / "two.onnx", data, *options, "--device", "cuda:0,cuda:1", env=on_host)
    support.check_model(place.out / "one.onnx")
    assert support.sha256(place.out / "one.onnx") == support.sha256(place.out / "two.onnx")
    for ours, theirs in zip(one["layers"], cpu["layers"], strict=True):
        assert ours["name"] == theirs["name"]
        if form == "gram":
            assert ours["error_after"] == pytest.approx(theirs["error_after"], rel=0.1, abs=0.02 * theirs["error_before"])
        else:  # another way of making mini-batches
            assert ours["error_after"] <= 1.4 * theirs["error_after"]
    assert support.gain(one["layers"]) < 0.95
    assert any("cuda:0" in note for note in one["notes"])
    assert any("cuda:1" in note for note in two["notes"])


def test_stored_samples_come_by_the_way_asked_for(place: Place, model: Path, data: Path, on_host: dict) -> None:
    options = ["--finetune", "adaround", "--set", "finetune-form=streamed", "--set", "num-iterations=20", "--device", "cuda:0"]
    options += ["--statistics", support.calibrate(model, place.out / "s.stats", data)]
    support.quantize(model, place.out / "memory.onnx", data, *options, env=on_host)
    from_disk = support.quantize(
        model, place.out / "disk.onnx", data, *options, "--set", "memory-level=2", "--set", "gds=off", env=on_host
    )
    assert support.sha256(place.out / "memory.onnx") == support.sha256(place.out / "disk.onnx")
    assert any("read spooled samples by pinned buffers" in note for note in from_disk["notes"]), from_disk["notes"]


def test_what_a_runtime_without_the_devices_provider_runs(place: Place, model: Path, data: Path, on_host: dict) -> None:
    """Trials and branches run on the CPU, and a note says so; a comparison on the device, asked for as such, is refused."""
    options = [*ADAROUND, "--device", "cuda:0", "--statistics", support.calibrate(model, place.out / "s.stats", data)]
    notes = support.quantize(model, place.out / "q.onnx", data, *options, env=on_host)["notes"]
    told = "ran on the CPU: this ONNX Runtime was built without CUDAExecutionProvider"
    assert f"both branches of fine-tuning {told}" in notes, notes
    files = [model, place.out / "q.onnx", "--calibration-data", data]
    result = support.detent("compare", *files, "--device", "cuda:0", env=on_host)
    assert result.returncode == DEVICE and "was built without CUDAExecutionProvider" in result.stderr, result.stderr


def test_sensitivities_of_weights_in_blocks(place: Place, model: Path, data: Path, on_host: dict) -> None:
    blocks = ["--weights-only", "--max-size"]
    result = support.detent("quantize", model, "-o", place.output, *blocks[:1], "--device", "cuda:0", env=on_host)
    assert result.returncode == USAGE and "--weights-only solves weights on the CPU" in result.stderr, result.stderr
    options = [*blocks, str(model.stat().st_size * 97 // 100)]
    support.quantize(model, place.out / "cpu.onnx", data, *options)
    told = support.quantize(model, place.out / "device.onnx", data, *options, "--device", "cuda:0", env=on_host)
    note = "sensitivities ran on the CPU: this ONNX Runtime was built without CUDAExecutionProvider"
    assert note in told["notes"], told["notes"]
    assert support.sha256(place.out / "cpu.onnx") == support.sha256(place.out / "device.onnx")


def test_gpudirect_storage_that_cannot_be_is_refused_at_once(place: Place, model: Path, data: Path, on_host: dict) -> None:
    options = [*ADAROUND, "--device", "cuda:0", "--set", "gds=on"]
    result = support.detent("quantize", model, "-o", place.output, "--calibration-data", data, *options, env=on_host)
    assert result.returncode == DEVICE, result.stderr
    assert "--set gds=on: " in result.stderr
    assert not place.output.exists()


def test_gptq_says_what_the_cpu_did(place: Place, model: Path, data: Path, on_host: dict) -> None:
    result = support.quantize(model, place.output, data, "--finetune", "gptq", "--device", "cuda", env=on_host)
    assert any("GPTQ itself was solved by the CPU" in note for note in result["notes"])


@pytest.mark.parametrize("options", [[], ["--method", "minmax"], ["--set", "segments=3"]])
def test_calibrates_as_the_cpu_does(options: list, place: Place, model: Path, data: Path, on_host: dict) -> None:
    cpu = support.calibrate(model, place.out / "cpu.stats", data, "--preset", "plain")
    device = support.calibrate(model, place.out / "device.stats", data, "--preset", "plain", "--device", "cuda:0", env=on_host)
    plain = ["--preset", "plain", *options]
    from_cpu = support.quantize(model, place.out / "cpu.onnx", data, *plain, "--statistics", cpu)
    from_device = support.quantize(model, place.out / "device.onnx", data, *plain, "--statistics", device)
    here = support.quantize(model, place.out / "here.onnx", data, *plain, "--device", "cuda:0", env=on_host)
    assert any("calibration ran on cuda:0 (host)" in note for note in here["notes"])
    for name, activation in from_cpu["activations"].items():
        assert from_device["activations"][name]["scale"] == pytest.approx(activation["scale"], rel=1e-4), name
        assert here["activations"][name]["scale"] == pytest.approx(activation["scale"], rel=1e-4), name


def test_says_when_there_is_nothing_for_a_device(place: Place, model: Path, data: Path, on_host: dict) -> None:
    statistics = support.calibrate(model, place.out / "s.stats", data)
    result = support.quantize(model, place.output, data, "--statistics", statistics, "--device", "cuda", env=on_host)
    assert any("nothing ran on the device" in note for note in result["notes"])


def test_memory_budget_of_a_device(place: Place, model: Path, data: Path, on_host: dict) -> None:
    place.environment = {**place.environment, **on_host, "TMPDIR": str(place.temporary)}
    line = place.refused(RESOURCE, "cuda:0", model, data, *ADAROUND, "--device", "cuda:0", "--set", "device-memory-budget=64KiB")
    assert "--set device-memory-budget" in line


@pytest.mark.parametrize("form", ["gram", "streamed"])
def test_a_run_takes_no_more_than_its_plan(form: str, place: Place, model: Path, data: Path, on_host: dict) -> None:
    options = [*ADAROUND, "--set", f"finetune-form={form}", "--device", "cuda:0"]
    planned = plan(model, data, *options, env=on_host)["device"]
    assert planned["budget_bytes"] > 1 << 30  # of what is free
    report = place.out / "report.html"
    support.quantize(model, place.output, data, *options, "--report", report, env=on_host)
    told = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', report.read_text(), re.DOTALL)
    device = json.loads(told[1])["device"]["devices"][0]
    assert 0 < device["memory_peak_bytes"] <= device["memory_foretold_bytes"] <= planned["peak_bytes"]


def test_the_trace_has_a_lane_for_each_part_of_the_way(place: Place, model: Path, data: Path, on_host: dict) -> None:
    """Samples rest on disk, so that they are read; the report is of the same run, and is there in a moment."""
    trace, report = place.out / "trace.json", place.out / "report.html"
    options = [
        *ADAROUND,
        "--set",
        "finetune-form=streamed",
        "--set",
        "memory-level=2",
        "--set",
        "gds=off",
        "--device",
        "cuda:0,cuda:1",
    ]
    support.quantize(model, place.output, data, *options, "--set", f"trace={trace}", "--report", report, env=on_host)
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    for lane in ("cuda:0 gather", "cuda:0 read", "cuda:0 copy", "cuda:0 compute", "cuda:1 read", "cuda:1 compute"):
        assert lane in tracks, sorted(tracks)
        assert any(event.get("tid") == tracks[lane] and event["ph"] == "X" for event in events), lane
    names = {event["name"] for event in events if event.get("tid") == tracks["cuda:0 compute"] and event["ph"] == "X"}
    assert any(name.startswith("observers: ") for name in names) and any(name.startswith("mini-batches: ") for name in names)
    moved = [event["args"]["copied"] for event in events if event["name"] == "bus to the GPU (MB/s)"]
    assert max(moved) > 0
    data_of = json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', report.read_text(), re.DOTALL)[1])
    device = data_of["device"]
    assert device["flops_per_second"] > 0 and device["memory_bytes_per_second"] > 0 and device["bus_bytes_per_second"] > 0
    assert "pinned buffers" in device["devices"][0]["storage"]
    work = {(entry["lane"], entry["name"]) for entry in device["work"]}
    assert {("read", "stored sample"), ("copy", "stored sample"), ("compute", "mini-batches"), ("compute", "observers")} <= work
    assert device["seconds_in_use"] > 0


def test_a_device_that_the_driver_does_not_have(place: Place, model: Path, data: Path, on_host: dict) -> None:
    place.environment = {**place.environment, **on_host, "TMPDIR": str(place.temporary)}
    place.refused(DEVICE, "cuda:2: the CUDA driver sees 2 devices", model, data, "--device", "cuda:2")


def test_a_driver_without_a_plugin(place: Place, model: Path, data: Path, on_host: dict) -> None:
    place.environment = {**place.environment, **on_host, "TMPDIR": str(place.temporary), "DETENT_CUDA_PLUGIN": "/nonexistent/p.so"}
    place.refused(DEVICE, "/nonexistent/p.so", model, data, "--device", "cuda:0")
