"""What stands where an output goes: replaced whole or kept, never half of each, and never what is no regular file."""

import os
import signal
import socket

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import USAGE, Place
from support import Path

OUTPUTS = {
    "output": ["quantize", "{model}", "-o", "{place}"],
    "prepared": ["quantize", "{model}", "-o", "{other}", "--set", "prepared-output={place}"],
    "statistics": ["calibrate", "{model}", "-o", "{place}"],
    "report": ["quantize", "{model}", "-o", "{other}", "--report", "{place}"],
    "trace": ["quantize", "{model}", "-o", "{other}", "--set", "trace={place}"],
}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making devices needs root")


def link(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("somebody's work")
    path.symlink_to(target)


def dangling_link(path: Path) -> None:
    path.symlink_to("nothing")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [fifo, unix_socket, device, link, dangling_link, folder], ids=lambda f: f.__name__)
def test_only_regular_files_are_replaced(make, place: Place, model: Path, data: Path) -> None:
    path = place.out / "there"
    make(path)
    before = path.lstat()
    for command in OUTPUTS.values():
        arguments = [a.format(model=model, place=path, other=place.out / "other.onnx") for a in command]
        place.refuses(USAGE, "there' (is|exists and is)", *arguments, "--calibration-data", data)
        assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    if make is link:
        assert path.read_text() == "somebody's work"


def results(path: Path) -> list[np.ndarray]:
    return support.outputs(support.load(path), graphs.cnn_samples(2, seed=7))


def visible(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("old", ["apart", "whole"])
@pytest.mark.parametrize("new", ["apart", "whole"])
def test_killed_between_model_and_data(old: str, new: str, place: Place, model: Path, data: Path) -> None:
    """Whenever the process dies, what stands at the output is the old model or the new one, each with its own data."""
    threshold = {"apart": ["--set", "external-data-threshold=0"], "whole": []}
    first = ["--weight-type", "int8", *threshold[old]]
    second = ["--weight-type", "uint8", "--per-tensor", *threshold[new]]
    support.quantize(model, place.out / "new.onnx", data, *second)
    expected_new = results(place.out / "new.onnx")
    for file in place.out.iterdir():
        file.unlink()
    support.quantize(model, place.output, data, *first)
    expected_old = results(place.output)
    was = {p.name: p.read_bytes() for p in place.out.iterdir()}
    assert not np.array_equal(expected_old, expected_new)
    command = ["quantize", model, "-o", place.output, "--calibration-data", data, *second]
    kills = 0
    for point in ("file.commit", "file.committed", "model.old_data_removed"):
        for count in range(1, 20):
            for file in place.out.iterdir():
                file.unlink()
            for name, contents in was.items():
                (place.out / name).write_bytes(contents)
            done = support.detent(*command, env={**place.environment, "DETENT_FAILPOINT": f"{point}=kill@{count}"})
            found = results(place.output)
            is_new = np.array_equal(found, expected_new)
            assert is_new or np.array_equal(found, expected_old), (point, count)
            onnx.checker.check_model(place.output)
            if done.returncode == 0:
                assert is_new
                break
            assert done.returncode == -signal.SIGKILL
            kills += 1
            support.quantize(model, place.output, data, *second)  # the next run is none the worse
            assert np.array_equal(results(place.output), expected_new)
            left = set(visible(place.out)) - set(was)  # a kill after all but the removal leaves the old data
            assert len(left) == (new == "apart")
    assert kills >= 2 + (old == "apart") + 2 * (new == "apart")


def test_the_data_of_the_input_are_not_removed(place: Place, model: Path, data: Path) -> None:
    """A copy of an output refers to the output's data file: a run that reads the copy may not replace the output."""
    prepared, copy = place.out / "p.onnx", place.out / "copy.onnx"
    options = ["--set", "external-data-threshold=0"]
    support.quantize(model, place.output, data, "--set", f"prepared-output={prepared}", *options)
    copy.write_bytes(prepared.read_bytes())
    place.refused(USAGE, "would overwrite", copy, data, output=prepared)
    support.quantize(copy, place.output, data)
    assert results(copy)
