"""When the machine fails a run: one line, the documented exit code, nothing left, earlier outputs untouched."""

import json
import os
import resource
import shutil
import signal
import subprocess

import faults
import graphs
import kills
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, RESOURCE, USAGE, Place, check, stopped
from onnx import TensorProto
from support import DETENT, PLAIN, Path

pytestmark = pytest.mark.skipif(not faults.LIBRARY.exists(), reason="libfailing_calls.so is not built for sanitizers")

# A sample of the points that `make faults` goes through.
FEW = {
    "memory": 4,
    "open": 2,
    "read": 2,
    "write": 2,
    "sync": 1,
    "rename": 1,
    "map": 2,
    "thread": 2,
    "mkdir": 1,
    "stat": 2,
    "list": 1,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return faults.make_inputs(tmp_path_factory.mktemp("faults") / "inputs")


def in_turns(kinds: list[str], commands: list[str], command: str) -> list[str]:
    """Every second kind for one command, the others for the next."""
    return kinds[commands.index(command) % 2 :: 2]


FAILING = [name for name, command in faults.COMMANDS.items() if not command.python]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", FAILING)
def test_a_call_that_fails(command: str, inputs: dict[str, Path], tmp_path: Path) -> None:
    few = {kind: FEW[kind] for kind in in_turns(list(FEW), FAILING, command)}
    tallies = faults.try_points(tmp_path, command, inputs, few, os.cpu_count() or 1)
    assert not [line for tally in tallies.values() for line in tally.wrong]
    became = sum((tally.became for tally in tallies.values()), start=faults.Counter())
    assert became["refused"] > 1, "calls do fail"


@pytest.mark.parametrize("files", [3, 300])
def test_a_folder_is_saved_at_once(files: int, inputs: dict[str, Path], tmp_path: Path) -> None:
    """However many files it has: each by itself, 20,000 took a minute."""
    folder = shutil.copytree(inputs["folder"], tmp_path / "many")
    for number in range(files):
        (folder / f"{number}.txt").write_text("{}")
    bench = faults.Bench(tmp_path / "bench", faults.COMMANDS["folder"], {**inputs, "folder": folder})
    assert bench.counts()["sync"][0] < 10


def limited(what: int, value: int) -> object:
    return lambda: resource.setrlimit(what, (value, value))


def test_too_little_address_space(place: Place) -> None:
    """Whoever asks for the memory: detent, the runtime through detent's allocator, or the runtime by itself."""
    onnx.save(graphs.skips(256), place.inputs / "model.onnx")
    data = support.save_samples(place.inputs / "data", graphs.skip_samples(256, 1))
    command = ["quantize", place.inputs / "model.onnx", "-o", place.output, "--calibration-data", data, "--threads", 1]
    codes = set()
    for mib in range(60, 140, 6):
        place.output.write_text("an earlier output")
        result = support.detent(*command, env=place.environment, preexec_fn=limited(resource.RLIMIT_AS, mib << 20))
        codes.add(result.returncode)
        place.assert_no_temporary_files()
        if result.returncode not in (0, 127):  # the loader could not even map the libraries
            # ONNX Runtime writes a line of its own where its operators' schemas find no memory.
            told = "".join(line for line in result.stderr.splitlines(True) if not line.startswith("Schema error:"))
            check(RESOURCE, "memory|cannot start (a|the profiler's) thread", result.returncode, told)
            assert place.output.read_text() == "an earlier output"
    assert RESOURCE in codes


def large_product(path: Path, megabytes: int = 8) -> None:
    b = graphs.Builder()
    width = megabytes * (1 << 18) // 16
    x = b.add("MatMul", "x", b.weight("w", 16, width))
    onnx.save(
        b.model({"x": (TensorProto.FLOAT, ["N", 16])}, [x]), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )


MAPPED = {
    "runtime.open": ["inspect", "{model}"],
    "calibrate.sample": [
        "quantize",
        "{model}",
        "-o",
        "{output}",
        "--calibration-data",
        "{data}",
        "--preset",
        "plain",
        "--no-bench",
    ],
    "weights.sample": ["quantize", "{model}", "-o", "{output}", "--calibration-data", "{data}", "--weights-only", "--no-bench"],
}


@pytest.mark.parametrize("which", ["model.onnx", "w.bin"])
@pytest.mark.parametrize("point", MAPPED)
def test_a_mapped_file_that_becomes_shorter(which: str, point: str, place: Place) -> None:
    model = place.inputs / "model.onnx"
    large_product(model)
    data = support.save_samples(place.inputs / "data", [{"x": np.ones((1, 16), np.float32)}] * 2)
    command = [str(DETENT), *(word.format(model=model, output=place.output, data=data) for word in MAPPED[point])]
    environment = {**place.environment, "DETENT_FAILPOINT": f"{point}=stop"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    stopped(process)
    os.truncate(place.inputs / which, 0)
    process.send_signal(signal.SIGCONT)
    stdout, stderr = process.communicate(timeout=300)
    place.assert_no_temporary_files()
    if process.returncode != 0:  # what was needed of it may have been read before
        check(BAD_INPUT, which if point != "runtime.open" else "model.onnx", process.returncode, stderr, stdout)
        assert not list(place.out.iterdir())
    assert which == "model.onnx" or process.returncode != 0


def test_a_thread_that_cannot_be_started(place: Place, model: Path, data: Path) -> None:
    """As a limit of processes does it; detent's own threads are among the calls that fail above."""
    if os.geteuid() == 0:
        pytest.skip("root has no such limit")
    command = ["quantize", model, "-o", place.output, "--calibration-data", data]
    result = support.detent(*command, env=place.environment, preexec_fn=limited(resource.RLIMIT_NPROC, 1))
    check(RESOURCE, "thread", result.returncode, result.stderr)


def test_resuming_what_cannot_be_looked_at(place: Place, model: Path, data: Path) -> None:
    """A run that is there is not taken for none."""
    command = ["quantize", model, "-o", place.output, "--calibration-data", data, "--resume"]
    killed = support.detent(*command, env={**place.environment, "DETENT_FAILPOINT": "calibrate.sample=kill@3"})
    assert killed.returncode == -signal.SIGKILL
    library = {"LD_PRELOAD": str(faults.LIBRARY), "DETENT_FAULT": "list@1"}
    result = support.detent(*command, env={**place.environment, **library})
    check(RESOURCE, "cannot list '.*Input/output error", result.returncode, result.stderr)
    assert len(list(place.temporary.iterdir())) == 1
    assert support.detent(*command, env=place.environment).returncode == 0
    place.assert_no_temporary_files()


def test_a_run_of_names_that_are_no_utf8_is_resumed(place: Place, data: Path) -> None:
    folder = Path(os.fsdecode(bytes(place.inputs) + b"/caf\xe9"))
    folder.mkdir()
    made = graphs.small_cnn().SerializeToString().replace(b"conv_a", b"conv\xe9\x1b")
    (folder / "m.onnx").write_bytes(made)
    samples = data.rename(folder / os.fsdecode(b"\xff"))
    output = Path(os.fsdecode(bytes(place.out) + b"/\xe9.onnx"))
    command = ["quantize", folder / "m.onnx", "-o", output, "--calibration-data", samples]

    def run(**environment: str) -> subprocess.CompletedProcess[bytes]:
        whole = [str(DETENT), *map(str, command), *PLAIN, "--no-bench", "--resume"]
        return subprocess.run(whole, capture_output=True, check=False, env={**place.environment, **environment})

    assert run().returncode == 0
    expected = output.read_bytes()
    assert run(DETENT_FAILPOINT="calibrate.sample=kill@3").returncode == -signal.SIGKILL
    left = list(place.temporary.iterdir())
    assert len(left) == 1
    json.loads((left[0] / "run.json").read_text())
    resumed = run()
    assert (resumed.returncode, support.without_notes(resumed.stderr.decode(errors="backslashreplace"))) == (0, "")
    assert output.read_bytes() == expected
    place.assert_no_temporary_files()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", kills.COMMANDS)
def test_a_run_that_dies(command: str, inputs: dict[str, Path], tmp_path: Path) -> None:
    """Before a call that changes files, with and without what was not yet on the disk; fail points are in test_sweep.py."""
    kinds = dict.fromkeys(in_turns(kills.CHANGING, list(kills.COMMANDS), command), 2)
    tallies = kills.try_kills(tmp_path, command, inputs, os.cpu_count() or 1, kinds, at_random=1)
    assert not [line for tally in tallies.values() for line in tally.wrong]
    assert sum(tally.became["killed"] for tally in tallies.values()) > 1


def test_two_runs_at_a_time(place: Place, model: Path, data: Path) -> None:
    """For one output in one working directory: each writes the whole of it, and both write the same."""
    command = [str(DETENT), *map(str, ["quantize", model, "-o", place.output, "--calibration-data", data, *PLAIN, "--no-bench"])]
    support.quantize(model, place.output, data)
    expected = place.output.read_bytes()
    for options in ([], ["--set", "external-data-threshold=0"]):
        running = [subprocess.Popen([*command, *options], env=place.environment, stdout=subprocess.DEVNULL) for _ in range(3)]
        while any(process.poll() is None for process in running):
            onnx.load(place.output)  # never half of one, and never without its data
        assert [process.returncode for process in running] == [0, 0, 0]
        place.assert_no_temporary_files()
        if not options:
            assert place.output.read_bytes() == expected
        assert len(list(place.out.iterdir())) == 1 + bool(options)
    with_resume = [subprocess.Popen([*command, "--resume"], env=place.environment, stderr=subprocess.PIPE) for _ in range(3)]
    for process in with_resume:
        stderr = process.communicate()[1].decode()
        assert process.returncode == 0 or (process.returncode == USAGE and "is still going on" in stderr), stderr
    assert place.output.read_bytes() == expected
    place.assert_no_temporary_files()
