"""Values that nobody means, for every option: a run works or ends with one line, and takes away nothing."""

import json
import os
import random
import subprocess
import zlib

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, DEVICE, RESOURCE, USAGE, Place
from graphs import FLOAT, Builder
from support import DETENT, Path

COMMANDS = {
    "quantize": "quantize {model} -o {out}/q.onnx --calibration-data {data} --preset plain --no-bench",
    "calibrate": "calibrate {model} -o {out}/statistics --calibration-data {data}",
    "compare": "compare {model} {model} --calibration-data {data}",
    "bench": "bench {model}",
    "plan": "plan {model}",
    "verify": "verify {model} {model} --calibration-data {data}",
    "search": "search {model} -o {out}/s --calibration-data {data} --points 1 --formats int8",
}
WORDS = ["nan", "-inf", "-0", "1e400", "9" * 40, "", "٣", "0x10", "1_000", " 1", "+1", "-1", "18446744073709551616", ",", "1=1"]
WORDS += [os.fsdecode(b"\xe9\xff"), "%s%n", "99999999999GiB", "1e300GiB", "a\nb\x1b[2J", "{}", "[", "~", "(a{1,99999})", "*"]
PATHS = ["fifo", "folder", "dangling", "loop", "empty", "/dev/full", "/dev/zero", "/proc/self/mem", "a" * 300, "no/such", "/"]
FEW = 4  # values of an option; all with STRANGE=all


def options() -> list[dict]:
    listed = subprocess.run([DETENT, "options"], capture_output=True, text=True, check=True)
    return json.loads(listed.stdout)["options"]


def cases() -> list:
    given = [row for row in options() if row["name"].islower() and row["label"] != "CMD"]  # no words, and nothing to execute
    rows = {(row["name"], command): row for row in given for command in row["commands"] if command in COMMANDS}
    return [pytest.param(command, row, id=f"{command}-{name}") for (name, command), row in rows.items()]


def strange_things(folder: Path) -> list[Path]:
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "empty").touch()
    return sorted(folder.iterdir())


def test_every_option(place: Place, model: Path, data: Path) -> None:
    """Which option gets which values follows from its name; with more time, all get all."""
    things = strange_things(place.inputs)
    kinds = [path.lstat().st_mode for path in things]
    for case in cases():
        command, row = case.values
        values = [str(place.inputs / path) for path in PATHS] if row["type"].startswith("path") else WORDS
        chance = random.Random(zlib.crc32(case.id.encode()))
        # One option in so many is enough for each run of the tests.
        if os.environ.get("STRANGE") != "all":
            values = chance.sample(values, FEW) if chance.random() < 0.06 else []
        base = COMMANDS[command].format(model=model, data=data, out=place.out).split()
        for value in values:
            given = chance.choice([[f"--{row['name']}={value}"], ["--set", f"{row['name']}={value}"]])
            result = subprocess.run(
                [DETENT, *base, *given],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=120,
                env=place.environment,
                check=False,
            )
            told = support.without_notes(result.stderr.decode(errors="backslashreplace"))
            said = f"{command} {given}: {result.returncode}: {told[-300:]}"
            assert result.returncode in (0, USAGE, BAD_INPUT, RESOURCE, DEVICE), said
            assert "internal error" not in told and "\x1b" not in told, said
            if result.returncode:
                assert len([line for line in told.splitlines() if line.startswith("detent: error: ")]) == 1, said
            place.assert_no_temporary_files()
            assert [path.lstat().st_mode for path in things] == kinds, said
            for made in place.out.iterdir():
                subprocess.run(["rm", "-rf", made], check=True)


FINETUNED = [["--finetune", "gptq"], ["--finetune", "adaround", "--set", "num-iterations=5"]]


@pytest.mark.parametrize("options", [*FINETUNED, [], ["--weight-type", "int4"], ["--target", "openvino"]], ids=" ".join)
def test_weights_without_elements(tmp_path: Path, options: list[str]) -> None:
    """ONNX Runtime multiplies them, and gives zeros."""
    b = graphs.Builder(2)
    x = b.add("MatMul", "x", b.constant("v", np.zeros((16, 0)), np.float32))
    x = b.add("Add", b.add("MatMul", x, b.constant("w", np.zeros((0, 16)), np.float32)), "x")
    onnx.save(b.model({"x": (graphs.FLOAT, ["n", 16])}, [b.add("MatMul", x, b.weight("u", 16, 16))]), tmp_path / "m.onnx")
    rng = np.random.default_rng(3)
    samples = [{"x": rng.normal(0, 1, (4, 16)).astype(np.float32)} for _ in range(4)]
    data = support.save_samples(tmp_path / "d", samples)
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, "--no-bench"]
    result = support.detent(*command, "--optimize-for", "size", "--threads", "1", *options)
    assert result.returncode == 0, result.stderr
    float_model, quantized = (support.outputs(support.load(tmp_path / f"{name}.onnx"), samples) for name in "mq")
    assert support.sqnr(float_model, quantized) > 10


SOLVERS = ["gptq", pytest.param("adaround", marks=pytest.mark.full), pytest.param("adaquant", marks=pytest.mark.full)]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("value", [np.inf, -3.4e38])
def test_biases_beyond_all_values(tmp_path: Path, value: float, solver: str) -> None:
    """They are no damage of the disk: a right file, or one line."""
    b = Builder(4)
    bias = np.zeros(16, np.float32)
    bias[3] = value
    x = b.add("Relu", b.add("Gemm", "x", b.weight("w", 16, 16), b.constant("b", bias, np.float32)))
    onnx.save(b.model({"x": (FLOAT, ["n", 16])}, [b.add("MatMul", x, b.weight("u", 16, 16))]), tmp_path / "m.onnx")
    rng = np.random.default_rng(3)
    data = support.save_samples(tmp_path / "d", [{"x": rng.normal(0, 1, (4, 16)).astype(np.float32)} for _ in range(4)])
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, "--finetune", solver]
    for options in ([], ["--set", "allow-nonfinite"]):
        result = support.detent(*command, "--set", "num-iterations=5", *options)
        assert result.returncode in (0, BAD_INPUT), result.stderr
        assert result.stderr.count("detent: error: ") == (result.returncode != 0), result.stderr


def test_metadata_are_read_when_the_model_is(tmp_path: Path, model: Path, data: Path) -> None:
    """An entry with a group, which nothing writes: no command meets it in the midst of its work."""
    for number, entry in enumerate((b"\x0a\x01a\x1b\x08\x01\x1c", b"\x0b\x0c")):
        damaged = tmp_path / f"{number}.onnx"
        damaged.write_bytes(model.read_bytes() + b"\x72" + bytes([len(entry)]) + entry)
        result = support.detent("compare", model, damaged, "--calibration-data", data)
        assert result.returncode == BAD_INPUT and "internal" not in result.stderr, result.stderr


def test_samples_that_hold_no_values_tell_of_no_accuracy(tmp_path: Path) -> None:
    b = Builder()
    model = b.model({"x": (FLOAT, ["n", "t", 8])}, [b.add("Relu", b.add("MatMul", "x", b.weight("w", 8, 32)))])
    onnx.save(model, tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", [{"x": np.zeros((1, 0, 8), np.float32)}])
    files = [tmp_path / "m.onnx", tmp_path / "q.onnx", "--calibration-data", data]
    told = support.detent("quantize", files[0], "-o", *files[1:], "--activations", "dynamic")
    assert told.returncode == 0, told.stderr
    assert "Accuracy was not measured" in told.stdout and " inf" not in told.stdout
    for command in (["compare"], ["verify"]):
        told = support.detent(*command, *files)
        assert told.returncode == 0 and " inf" not in told.stdout, told.stdout
    refused = support.detent("compare", *files, "--min-sqnr", 20)
    assert refused.returncode == 3 and "no output could be compared" in refused.stderr
