"""When the machine fails a call from Python: an exception that says so, nothing left, the earlier output untouched."""

import os
import pathlib

import faults
import pytest

pytestmark = pytest.mark.skipif(not faults.LIBRARY.exists(), reason="libfailing_calls.so is not built for sanitizers")

FEW = dict.fromkeys(faults.KINDS, 2) | {"memory": 6, "write": 3}


def test_a_call_that_fails(tmp_path: pathlib.Path) -> None:
    tallies = faults.try_points(tmp_path / "f", "python", FEW, os.cpu_count() or 1)
    assert not [line for tally in tallies.values() for line in tally.wrong]
    assert sum(tally.became["refused"] for tally in tallies.values()) > 5
