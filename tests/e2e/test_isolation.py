"""Runs in a process of their own: whatever becomes of it, one line and an exit code tell, and nothing of it stays."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from failures import BAD_INPUT, INTERRUPTED, RESOURCE, USAGE, Place, check
from support import DETENT, PLAIN, Path


def run(place: Place, *arguments: object, point: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**place.environment, "DETENT_FAILPOINT": point}
    command = [str(DETENT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False, **options)


def quantizing(place: Place, model: Path, data: Path, *options: object) -> list[object]:
    return ["quantize", model, "-o", place.output, "--calibration-data", data, *PLAIN, *options]


# Where a run has no directory yet, has one, writes its statistics, and is about to rename its output.
POINTS = ["runtime.open", "session.create", "calibrate.sample=@3", "file.commit"]
ENDS = [("crash", BAD_INPUT, "ended by a signal .*Segmentation fault"), ("kill", RESOURCE, "was killed.*memory")]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end[0])
def test_what_ends_by_a_signal_leaves_nothing(end: tuple, point: str, place: Place, model: Path, data: Path) -> None:
    action, code, says = end
    name, _, time_of = point.partition("=")
    result = run(place, *quantizing(place, model, data, "--isolate"), point=f"{name}={action}{time_of}")
    check(code, says, result.returncode, result.stderr, result.stdout)
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()


@pytest.mark.parametrize("command", ["inspect", "plan", "bench", "check", "compare", "verify", "calibrate"])
def test_every_command_can_be_isolated(command: str, place: Place, model: Path, data: Path) -> None:
    arguments: dict[str, list[object]] = {
        "compare": [model, "--calibration-data", data],
        "verify": [model, "--calibration-data", data],
        "calibrate": ["-o", place.out / "s", "--calibration-data", data],
    }
    ended = run(place, command, model, *arguments.get(command, []), "--isolate", point="runtime.open=crash")
    check(BAD_INPUT, "Segmentation fault", ended.returncode, ended.stderr, ended.stdout)
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()


def test_results_and_errors_are_the_same(place: Place, model: Path, data: Path) -> None:
    plain = run(place, *quantizing(place, model, data, "--json", "--no-bench"))
    wanted = place.output.read_bytes()
    settings = place.inputs / "settings.yaml"
    settings.write_text("isolate: true\n")
    for how in (["--isolate"], ["--config", settings]):
        place.output.unlink()
        isolated = run(place, *quantizing(place, model, data, "--json", "--no-bench", *how))
        assert isolated.returncode == plain.returncode == 0, isolated.stderr
        assert place.output.read_bytes() == wanted
        assert isolated.stdout.count("\n") == plain.stdout.count("\n")
    refused = run(place, "inspect", place.inputs / "none.onnx", "--isolate")
    check(BAD_INPUT, "none.onnx", refused.returncode, refused.stderr)
    refused = run(place, "inspect", "--isolate", "--none")
    check(USAGE, "--none", refused.returncode, refused.stderr)


def start(place: Place, *arguments: object, point: str, **options: object) -> subprocess.Popen[str]:
    environment = {**place.environment, "DETENT_FAILPOINT": point}
    command = [str(DETENT), *map(str, arguments)]
    return subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def wait_until(fulfilled: Callable[[], object]) -> None:
    end = time.monotonic() + 200
    while not fulfilled():
        assert time.monotonic() < end
        time.sleep(0.01)


def child_of(process: subprocess.Popen[str]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(children.read_text)
    return int(children.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_handed_on(number: signal.Signals, place: Place, model: Path, data: Path) -> None:
    process = start(place, *quantizing(place, model, data, "--isolate"), point="calibrate.sample=hang@3")
    wait_until(lambda: list(place.temporary.iterdir()))
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=200)
    check(INTERRUPTED, "interrupted", process.returncode, stderr, stdout)
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()


def test_the_child_ends_with_its_parent(place: Place, model: Path, data: Path) -> None:
    process = start(place, *quantizing(place, model, data, "--isolate"), point="session.create=hang")
    wait_until(lambda: list(place.temporary.iterdir()))
    child = child_of(process)
    process.kill()
    process.wait()
    wait_until(lambda: not Path(f"/proc/{child}/maps").exists())
    wait_until(lambda: not list(place.temporary.iterdir()))
    assert not list(place.out.iterdir())


def test_an_accuracy_command_ends_with_the_child(place: Place, model: Path, data: Path) -> None:
    pids = place.inputs / "pids"
    measure = f"trap '' INT TERM; echo $$ >> {pids}; sleep 2000; echo 1;"
    options = ["--accuracy-target", "0.99", "--accuracy-metric", "command", "--accuracy-command", measure]
    command = ["quantize", model, "-o", place.output, "--calibration-data", data, "--optimize-for", "size", *options, "--isolate"]
    process = start(place, *command, point="")
    wait_until(lambda: pids.exists() and pids.read_text())
    os.kill(child_of(process), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=200)
    check(RESOURCE, "was killed", process.returncode, stderr, stdout)
    # Whoever collects those that ended may take a moment for it.
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids.read_text().split()))
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()


def test_a_run_that_is_to_be_resumed_goes_on(place: Place, model: Path, data: Path) -> None:
    command = quantizing(place, model, data, "--isolate", "--resume", "--set", "checkpoint-seconds=0")
    ended = run(place, *command, point="calibrate.sample=kill@3")
    check(RESOURCE, "was killed", ended.returncode, ended.stderr)
    assert len(list(place.temporary.iterdir())) == 1
    assert run(place, *command).returncode == 0
    place.assert_no_temporary_files()


def test_a_reader_that_goes_away(place: Place, model: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**place.environment}
    command = [str(DETENT), "inspect", str(model), "--isolate"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False, timeout=300)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, b"")
