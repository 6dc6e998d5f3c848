"""Signals, closed and full streams: one signal ends any run, nothing of it stays, nothing is lost without a word."""

import contextlib
import os
import pty
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
import support
from failures import INTERRUPTED, RESOURCE, Place, check, stopped
from support import DETENT, PLAIN, Path

ENDING = [signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT]


def wait_until(fulfilled: Callable[[], object]) -> None:
    end = time.monotonic() + 200
    while not fulfilled():
        assert time.monotonic() < end
        time.sleep(0.01)


def start(place: Place, *arguments: object, point: str = "", **options: object) -> subprocess.Popen[str]:
    environment = {**place.environment, "DETENT_FAILPOINT": point}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([str(DETENT), *map(str, arguments)], text=True, env=environment, **streams)


def signals(process: int, name: str) -> int:
    """A set of signals that the kernel tells of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(rf"^{name}:\t(\w+)$", status, re.MULTILINE)[1], 16)


def is_in(process: int, name: str, number: signal.Signals) -> bool:
    return bool(signals(process, name) >> (number - 1) & 1)


def quantizing(place: Place, model: Path, data: Path) -> list[object]:
    return ["quantize", model, "-o", place.output, "--calibration-data", data, *PLAIN]


def ends(process: subprocess.Popen[str], place: Place) -> float:
    """Seconds that it took. It must end before the fail point that it hangs at."""
    begun = time.monotonic()
    stdout, stderr = process.communicate(timeout=50)
    seconds = time.monotonic() - begun
    check(INTERRUPTED, "interrupted", process.returncode, stderr, stdout)
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()
    return seconds


def ends_at_once(process: Callable[[], subprocess.Popen[str]], place: Place) -> None:
    """In less than the five seconds that runs have for an end in order. On a busy machine one of several tries does."""
    assert any(ends(process(), place) < 4 for _ in range(5))


def test_one_signal_ends_what_cannot_be_interrupted(place: Place, model: Path, data: Path) -> None:
    """As the runtime while it makes a session."""
    process = start(place, *quantizing(place, model, data), point="session.create=hang")
    wait_until(lambda: list(place.temporary.iterdir()))
    process.send_signal(signal.SIGINT)
    ends(process, place)


@pytest.mark.parametrize("number", ENDING)
def test_a_second_signal_ends_at_once_and_leaves_nothing(number: signal.Signals, place: Place, model: Path, data: Path) -> None:
    def signalled_twice() -> subprocess.Popen[str]:
        process = start(place, *quantizing(place, model, data), point="session.create=hang")
        wait_until(lambda: list(place.temporary.iterdir()))
        process.send_signal(number)
        wait_until(lambda: not is_in(process.pid, "ShdPnd", number))  # two that wait together are one
        process.send_signal(number)
        return process

    ends_at_once(signalled_twice, place)


@pytest.mark.parametrize("command", ["inspect", "plan"])
def test_what_cannot_be_stopped_ends_at_the_first_signal(command: str, place: Place, model: Path) -> None:
    def signalled() -> subprocess.Popen[str]:
        process = start(place, command, model, point="guarded.ports=hang")
        wait_until(lambda: b"libonnxruntime" in Path(f"/proc/{process.pid}/maps").read_bytes())
        process.send_signal(signal.SIGTERM)
        return process

    ends_at_once(signalled, place)


def test_a_run_that_can_be_resumed_stays(place: Place, model: Path, data: Path) -> None:
    command = [*quantizing(place, model, data), "--resume"]
    process = start(place, *command, point="calibrate.sample=stop@3")
    stopped(process)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=200) == INTERRUPTED
    assert [path.name for path in place.temporary.glob("*/*")].count("run.json") == 1
    support.detent(*command, env=place.environment)
    assert place.output.exists()
    place.assert_no_temporary_files()


def test_signals_that_were_ignored_stay_so(place: Place, model: Path, data: Path) -> None:
    """As nohup does it."""
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = start(place, *quantizing(place, model, data), point="session.create=hang", preexec_fn=ignore)
    wait_until(lambda: list(place.temporary.iterdir()))
    wait_until(lambda: not is_in(process.pid, "SigBlk", signal.SIGHUP))  # all wait while a folder is made
    assert is_in(process.pid, "SigIgn", signal.SIGHUP)
    assert is_in(process.pid, "SigBlk", signal.SIGTERM)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    ends(process, place)


def test_a_limit_of_file_sizes_is_told_of(place: Place, model: Path, data: Path) -> None:
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    process = start(place, *quantizing(place, model, data), preexec_fn=limit)
    stdout, stderr = process.communicate(timeout=300)
    check(RESOURCE, "File too large", process.returncode, stderr, stdout)
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()


def test_a_limit_of_processor_time_is_told_of(place: Place, model: Path, data: Path) -> None:
    process = start(place, *quantizing(place, model, data), point="session.create=hang")
    wait_until(lambda: list(place.temporary.iterdir()))
    process.send_signal(signal.SIGXCPU)
    stdout, stderr = process.communicate(timeout=50)
    check(RESOURCE, "processor time.*ulimit -t", process.returncode, stderr, stdout)
    place.assert_no_temporary_files()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal_ends_the_accuracy_command_too(times: int, place: Place, model: Path, data: Path) -> None:
    pids = place.inputs / "pids"
    measure = f"trap '' INT TERM; echo $$ >> {pids}; sleep 2000; echo 1;"
    options = ["--preset", "balanced", "--accuracy-target", "0.99", "--accuracy-metric", "command", "--accuracy-command", measure]
    command = ["quantize", model, "-o", place.output, "--calibration-data", data, "--optimize-for", "size", *options]
    try:
        child, terminal = pty.fork()
    except OSError as error:
        pytest.skip(f"there are no terminals here: {error}")
    if child == 0:
        os.execve(DETENT, [str(DETENT), *map(str, command)], place.environment)
    wait_until(pids.exists)
    for _ in range(times):
        with contextlib.suppress(OSError):  # the first may have ended it, and then nobody is at the terminal
            os.write(terminal, b"\x03")
        time.sleep(0.2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == INTERRUPTED
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids.read_text().split()))
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()


@pytest.mark.parametrize("options", [["--json"], []], ids=["json", "text"])
@pytest.mark.parametrize("command", ["inspect", "plan", "--help", "options"])
def test_a_full_stdout_is_an_error(command: str, options: list[str], place: Place, model: Path) -> None:
    arguments = [command, model, *options] if command in ("inspect", "plan") else [command]
    with open("/dev/full", "w") as full:
        process = start(place, *arguments, stdout=full)
        stderr = process.communicate(timeout=300)[1]
    check(RESOURCE, "standard output.*No space", process.returncode, stderr)


def test_a_reader_that_goes_away_is_no_error_of_a_kind_of_its_own(place: Place, model: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start(place, "inspect", model, stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=300)[1] == ""
    assert process.returncode == -signal.SIGPIPE


def test_nobody_reads_progress(place: Place, model: Path, data: Path) -> None:
    """A run with a closed pipe at stderr goes on."""
    reading, writing = os.pipe()
    os.close(reading)
    process = start(place, *quantizing(place, model, data), stderr=writing)
    os.close(writing)
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert place.output.exists()


def test_closed_streams_are_not_taken_by_files(place: Place, model: Path, data: Path) -> None:
    def close() -> None:
        for number in (0, 1, 2):
            os.close(number)

    process = start(place, *quantizing(place, model, data), point="session.create=hang", preexec_fn=close)
    wait_until(lambda: list(place.temporary.iterdir()))
    assert {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)} == {"/dev/null"}
    process.terminate()
    assert process.wait(timeout=50) == INTERRUPTED
    process = start(place, *quantizing(place, model, data), preexec_fn=close)
    assert process.wait(timeout=300) == 0
    support.check_model(place.output)
