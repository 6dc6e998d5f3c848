"""When the machine fails a call from Python: an exception that says so, nothing left, the earlier output untouched."""

import os
import pathlib
import subprocess
import sys

import faults
import pytest

pytestmark = pytest.mark.skipif(not faults.LIBRARY.exists(), reason="libfailing_calls.so is not built for sanitizers")

FEW = dict.fromkeys(faults.KINDS, 2) | {"memory": 6, "write": 3}


NO_DESCRIPTORS = """
import os, pathlib, resource
from detent import _models
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with _models.folder(None) as folder:
    pathlib.Path(folder, "model.onnx").touch()
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError as error:
        print(error.strerror)
"""


def test_no_folder_stays_when_no_descriptor_is_left(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", NO_DESCRIPTORS], capture_output=True, text=True, env=environment, check=False)
    assert (ended.stdout, ended.stderr) == ("Too many open files\n", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_call_that_fails(tmp_path: pathlib.Path) -> None:
    inputs = faults.make_inputs(tmp_path / "inputs")
    tallies = faults.try_points(tmp_path, "python", inputs, FEW, os.cpu_count() or 1)
    assert not [line for tally in tallies.values() for line in tally.wrong]
    assert sum(tally.became["refused"] for tally in tallies.values()) > 5
