"""What every refused run must look like: its exit code, one line that helps, and nothing left behind."""

import os
import pathlib
import re
import signal
import subprocess

import support

Path = pathlib.Path
USAGE, BAD_INPUT, RESOURCE, DEVICE, INTERRUPTED = 2, 3, 4, 5, 130


class Place:
    """A folder with a place each for inputs, the output and temporary files."""

    def __init__(self, folder: Path) -> None:
        self.inputs, self.out, self.temporary = (folder / name for name in ("inputs", "out", "tmp"))
        for path in (self.inputs, self.out, self.temporary):
            path.mkdir()
        self.output = self.out / "q.onnx"
        self.environment = {**os.environ, "TMPDIR": str(self.temporary)}

    def refused(self, code: int, says: str, model: Path, data: Path, *options: object, output: Path | None = None) -> str:
        """`detent quantize`, which must fail."""
        return self.refuses(code, says, "quantize", model, "-o", output or self.output, "--calibration-data", data, *options)

    def refuses(self, code: int, says: str, *arguments: object) -> str:
        """Runs detent, which must fail with `code` and a line that `says` (a regular expression) is found in."""
        before = sorted(self.out.rglob("*"))
        result = support.detent(*arguments, env=self.environment)
        assert sorted(self.out.rglob("*")) == before, "nothing partial is left"
        self.assert_no_temporary_files()
        return check(code, says, result.returncode, result.stderr, result.stdout)

    def assert_no_temporary_files(self) -> None:
        assert not list(self.temporary.iterdir())


def take_signals() -> None:
    """As in a terminal: what runs in the background, or by nohup, ignores some, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def stopped(process: subprocess.Popen[str]) -> None:
    """Waits until a run has stopped itself at a fail point."""
    ended = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert ended is not None and ended.si_code == os.CLD_STOPPED, "it has ended before"


def check(code: int, says: str, returncode: int, stderr: str, stdout: str = "") -> str:
    assert returncode == code, (returncode, stderr)
    assert stdout == ""
    lines = support.without_notes(stderr).splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("detent: error: ")
    assert re.search(says, lines[0]), f"{says!r} is not in: {lines[0]}"
    return lines[0]
