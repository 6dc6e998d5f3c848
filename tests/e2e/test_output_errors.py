"""Places where the output cannot or must not go, disks that are full, and runs that the user stops."""

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import INTERRUPTED, RESOURCE, USAGE, Place, check
from support import DETENT, Path


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs at `folder`; the test is left out where mounting is not allowed."""
    folder.mkdir()
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if result.returncode != 0:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_output_in_places_that_do_not_work(place: Place, model: Path, data: Path) -> None:
    place.refused(USAGE, "nowhere.*does not exist.*create it", model, data, output=place.out / "nowhere" / "q.onnx")
    place.refused(USAGE, "out' is a directory", model, data, output=place.out)
    (place.out / "file").write_text("a file")
    place.refused(USAGE, "file", model, data, output=place.out / "file" / "q.onnx")
    place.refused(USAGE, "/proc", model, data, output=Path("/proc/q.onnx"))


def test_read_only_file_system(place: Place, model: Path, data: Path) -> None:
    with mounted(place.out / "fixed", "ro") as folder:
        place.refused(USAGE, "fixed.*Read-only", model, data, output=folder / "q.onnx")


def test_output_over_the_model(place: Place, model: Path, data: Path) -> None:
    before = support.sha256(model)
    (place.out / "symbolic.onnx").symlink_to(model)
    (place.out / "hard.onnx").hardlink_to(model)
    for output in (model, place.inputs / ".." / "inputs" / "model.onnx", place.out / "symbolic.onnx", place.out / "hard.onnx"):
        place.refused(USAGE, "would overwrite.*choose another", model, data, output=output)
        place.refused(USAGE, "would overwrite.*choose another", model, data, "--set", f"prepared-output={output}")
    assert support.sha256(model) == before


def test_output_over_the_models_data(place: Place, data: Path) -> None:
    """The output may not be what the model's weights are read from; its data file has a name of its own."""
    model, weights = place.inputs / "split.onnx", place.inputs / "q.onnx.data"
    onnx.save_model(graphs.small_cnn(), model, save_as_external_data=True, location=weights.name, size_threshold=0)
    before = support.sha256(weights)
    place.refused(USAGE, "would overwrite", model, data, "--set", "external-data-threshold=0", output=weights)
    support.quantize(model, place.inputs / "q.onnx", data, "--set", "external-data-threshold=0")
    assert support.sha256(weights) == before


@pytest.mark.parametrize("option", ["--set=prepared-output", "--profile"])
def test_outputs_over_each_other(option: str, place: Place, model: Path, data: Path) -> None:
    place.refused(USAGE, "q.onnx", model, data, f"{option}={place.output}")


def test_output_over_a_sample(place: Place, model: Path, data: Path) -> None:
    before = {path: support.sha256(path) for path in data.iterdir()}
    place.refused(USAGE, "000.npz", model, data, output=data / "000.npz")
    assert before == {path: support.sha256(path) for path in data.iterdir()}


QUANTIZE = ["quantize", "{model}", "--calibration-data", "{data}"]
CALIBRATE = ["calibrate", "{model}", "--calibration-data", "{data}"]
SEARCH = ["search", "{model}", "--calibration-data", "{data}"]
WRITERS = {
    "quantize": [*QUANTIZE, "-o", "{place}"],
    "weights": ["quantize", "{model}", "--weights-only", "-o", "{place}"],
    "calibrate": [*CALIBRATE, "-o", "{place}"],
    "merge": ["calibrate", "--merge", "{result}", "-o", "{place}"],
    "search": [*SEARCH, "-o", "{place}"],
    "report": ["report", "{result}", "-o", "{place}"],
    **{
        f"{command[0]}{option}": [*command, "-o", "{other}", *option.replace("=", " ").split(), "{place}"]
        for command in (QUANTIZE, CALIBRATE)
        for option in ("--report", "--profile")
    },
    **{
        f"{command[0]} {option}": [*command, "-o", "{other}", "--set", option + "={place}"]
        for command, option in [
            (QUANTIZE, "trace"),
            (CALIBRATE, "trace"),
            (QUANTIZE, "prepared-output"),
            (QUANTIZE, "kernel-table"),
            (SEARCH, "kernel-table"),
        ]
    },
    "quantize--save-config": [*QUANTIZE, "-o", "{other}", "--save-config", "{place}"],
    "scales": [*QUANTIZE, "-o", "{other}", "--kv-cache", "int8", "--set", "kv-cache-scales={place}"],
}
MAKES_FOLDERS = ("search", "quantize kernel-table", "search kernel-table")


@pytest.mark.parametrize("writer", WRITERS)
def test_outputs_are_claimed_before_work(writer: str, place: Place, model: Path, data: Path) -> None:
    """The sample cannot be read: a run that gets to it ends with another code."""
    (data / "000.npz").write_text("no sample")
    (place.out / "file").write_text("a file")
    (place.inputs / "result").write_text("{}")
    places = [place.out / "file" / "o", Path("/proc/o"), place.out / ("n" * 253), place.out / ("n" * 300), ""]
    if writer not in MAKES_FOLDERS:
        places += [place.out / "nowhere" / "o", place.out]
    files = {"model": model, "data": data, "result": place.inputs / "result", "other": place.out / "other.onnx"}
    for path in places:
        place.refuses(USAGE, "", *[word.format(place=path, **files) for word in WRITERS[writer]])


def wide_model(path: Path) -> Path:
    """4 MB of weights, and a BatchNormalization to fold into them."""
    b = graphs.Builder(14)
    x = b.add("Conv", "x", b.weight("w", 1000, 3, 18, 18), b.weight("b", 1000), kernel_shape=[18, 18], pads=[1] * 4)
    statistics = [
        b.weight("scale", 1000, shift=1),
        b.weight("shift", 1000),
        b.weight("mean", 1000),
        b.constant("var", np.ones(1000)),
    ]
    onnx.save(b.model({"x": (onnx.TensorProto.FLOAT, ["N", 3, 16, 16])}, [b.add("BatchNormalization", x, *statistics)]), path)
    return path


@pytest.mark.parametrize("options", [[], ["--set", "external-data-threshold=0"]], ids=["model", "data"])
def test_full_disk_for_the_output(options: list, place: Place, data: Path) -> None:
    model = wide_model(place.inputs / "wide.onnx")
    with mounted(place.out / "small", "size=256k") as folder:
        place.refused(RESOURCE, "q.onnx.*No space.*free some", model, data, *options, output=folder / "q.onnx")


def test_full_disk_for_working_files(place: Place, data: Path) -> None:
    model = wide_model(place.inputs / "wide.onnx")
    with mounted(place.out / "small", "size=256k") as folder:
        place.refused(RESOURCE, "small.*No space.*--work-dir", model, data, "--work-dir", folder)


def test_full_disk_for_what_a_search_found(place: Place, data: Path) -> None:
    model = wide_model(place.inputs / "wide.onnx")
    with mounted(place.out / "small", "size=64k") as folder:
        given = ["--calibration-data", data, "--formats", "fp32,int8", "--points", "1"]
        result = support.detent("search", model, "-o", folder / "found", *given)
        assert result.returncode == RESOURCE, result.stderr
        assert "No space left" in result.stderr and "free some space" in result.stderr
        assert not list(folder.iterdir())


@pytest.mark.parametrize("size", [0, 600, 2000])
@pytest.mark.parametrize("options", [[], ["--weights-only"], ["--weights-only", "--isolate"]], ids=" ".join)
def test_limit_of_file_sizes(size: int, options: list, place: Place, model: Path, data: Path) -> None:
    """Standard error may be a file as well, which takes nothing then."""
    command = [DETENT, "quantize", model, "-o", place.output, "--calibration-data", data, "--no-bench", *options]
    with (place.inputs / "stderr").open("w") as words:
        result = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            env=place.environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
            check=False,
        )
    told = (place.inputs / "stderr").read_text() + result.stdout
    assert result.returncode == 4
    assert "File too large; raise the limit of file sizes (ulimit -f)" in told if size else told.startswith("detent: error: cannot")
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("begun", [False, True], ids=["start", "midst"])
def test_stopped_by_the_user(number: signal.Signals, begun: bool, place: Place) -> None:
    """A calibration that would take minutes ends, at its start as in its midst."""
    data = place.inputs / "data"
    data.mkdir()
    sample = np.zeros((1, 3, 960, 960), np.float32)
    np.save(data / "0.npy", sample)
    for i in range(1, 2000):
        os.link(data / "0.npy", data / f"{i}.npy")
    model = support.MODELS / "ppocr_det.onnx"
    command = [DETENT, "quantize", model, "-o", place.output, "--calibration-data", data, *support.PLAIN]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=place.environment)
    time.sleep(0.02)
    while begun and not list(place.temporary.iterdir()):
        time.sleep(0.01)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=120)
    if not begun and process.returncode == -number:
        assert stderr == ""  # before anything began
    else:
        check(INTERRUPTED, "interrupted", process.returncode, stderr, stdout)
    assert not list(place.out.iterdir())
    place.assert_no_temporary_files()


def test_outputs_over_what_is_read(place: Place, model: Path, data: Path) -> None:
    """Also where it is yet to be made."""
    table = place.out / "table"
    place.refused(USAGE, "which is read", model, data, "--set", f"kernel-table={place.output}")
    place.refused(USAGE, "which is read", model, data, "--set", f"kernel-table={table}", "--report", table)
    place.refused(USAGE, "as well", model, data, "--set", f"kernel-table={table}", "--save-config", table)
    place.refused(USAGE, "calibration sample", model, data, "--save-config", data / "000.npz")
    place.refused(USAGE, "not UTF-8", model, data, "--save-config", place.out / os.fsdecode(b"\xff.yaml"))
    place.refused(USAGE, "not a number", model, data, "--accuracy-target", "nan")
    (place.inputs / "twice.yaml").write_text('samples: 1\n"samples": 2\n')
    place.refused(USAGE, "'samples' twice", model, data, "--config", place.inputs / "twice.yaml")
    place.refuses(USAGE, "which is read", "report", model, "-o", model)
    (place.inputs / "result.json").write_text('{"model_bytes_after": 1}')
    place.refuses(USAGE, "not an HTML file", "report", place.inputs / "result.json", "-o", model)
    words = ["search", model, "--calibration-data", data, "-o", place.out / "o", "--set", f"kernel-table={place.out}/o/table"]
    place.refuses(USAGE, "in the folder that is made", *words)


@pytest.mark.parametrize("output", ["file", "dangling", "missing/o", "n" * 250, ".", "-", "claimed"])
def test_a_search_looks_at_its_output_first(output: str, tmp_path: Path, model: Path, data: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / ".claimed.partial").mkdir()
    (tmp_path / ".claimed.partial" / "mine").touch()
    command = [DETENT, "search", model, "-o", output, "--calibration-data", data, "--points", "1", "--formats", "int8"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == USAGE and "samples" not in result.stderr, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in ("-", "claimed", ".n.partial")) == []
    assert (tmp_path / ".claimed.partial" / "mine").exists()


def test_copies_are_as_private_as_the_model(tmp_path: Path, model: Path) -> None:
    private, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    private.write_bytes(model.read_bytes())
    private.chmod(0o600)
    for mode in (0o600, 0o640):  # the model's, then the replaced file's
        result = support.detent("quantize", private, "-o", output, "--weights-only", "--no-bench")
        assert result.returncode == 0, result.stderr
        assert output.stat().st_mode & 0o777 == mode
        output.chmod(0o640)
