"""Where input or machine is at fault, a line says so: nothing is an internal error, and nothing is found only after the work."""

import os
import resource
import subprocess
from collections.abc import Callable

import graphs
import numpy as np
import onnx
import onnx.parser
import pytest
import support
from failures import BAD_INPUT, DEVICE, RESOURCE, USAGE, Place, check
from onnx import TensorProto, helper
from support import DETENT, PLAIN, Path

LONG = "a" * 300
BYTES = os.fsdecode(b"caf\xe9")  # Latin 1, no UTF-8


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-o", ""], "output is empty"),
        (["-o", LONG], "File name too long"),
        (["-o", f"{LONG}/q.onnx"], "File name too long"),
        (["-o", "loop/q.onnx"], "Too many levels of symbolic links"),
        (["--report", "nowhere/r.html"], "nowhere.*does not exist"),
        (["--report", LONG], "File name too long"),
        (["--report", "fifo"], "fifo.*not a regular file"),
        (["--report", "loop"], "loop"),
        (["--set", "trace=nowhere/t.json"], "nowhere.*does not exist"),
        (["--profile", "nowhere/p.yaml"], "nowhere.*does not exist"),
        (["--set", "prepared-output=nowhere/p.onnx"], "nowhere.*does not exist"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_outputs_that_cannot_be_written(options: list[str], says: str, place: Place, model: Path, data: Path) -> None:
    """Told before anything else: also when the model is no model."""
    model.write_bytes(b"no model")
    (place.out / "loop").symlink_to("loop")
    os.mkfifo(place.out / "fifo")
    command = ["quantize", model, "--calibration-data", data, *([] if "-o" in options else ["-o", "q.onnx"]), *options]
    result = support.detent(*command, env=place.environment, cwd=place.out)
    check(USAGE, says, result.returncode, result.stderr)


@pytest.mark.parametrize("what", ["model", "data", "statistics", "config", "merge"])
@pytest.mark.parametrize("name", [LONG, "loop", f"{LONG}/x", "", BYTES])
def test_inputs_that_cannot_be_read(what: str, name: str, place: Place, model: Path, data: Path) -> None:
    (place.inputs / "loop").symlink_to("loop")
    path = place.inputs / name if name else Path()
    if what == "merge":
        command = ["calibrate", "--merge", path, "-o", place.output]
    else:
        command = ["quantize", path if what == "model" else model, "-o", place.output]
        command += ["--calibration-data", path if what == "data" else data]
        command += [f"--{what}", path] if what in ("statistics", "config") else []
    result = support.detent(*command, env=place.environment)
    assert result.returncode in (USAGE, BAD_INPUT), result.stderr
    assert result.stderr.count("\n") == 1
    assert "internal" not in result.stderr


def test_names_that_are_no_utf8(place: Place) -> None:
    """Of files and of tensors: in text and in JSON."""
    folder = place.inputs / BYTES
    folder.mkdir()
    made = graphs.small_cnn().SerializeToString().replace(b"conv_a", b"conv\xe9\x1b")
    (folder / "m.onnx").write_bytes(made)
    for options in ([], ["--json"]):
        for command in (["inspect", folder / "m.onnx"], ["plan", folder / "m.onnx"]):
            result = subprocess.run([DETENT, *command, *options], capture_output=True, check=False)
            assert result.returncode == 0, result.stderr
            assert all(line.startswith(b"detent: note: ") for line in result.stderr.splitlines())
            (result.stdout + result.stderr).decode()
            assert b"\x1b" not in result.stdout + result.stderr


def test_escape_sequences_do_not_reach_a_terminal(place: Place, data: Path) -> None:
    made = graphs.small_cnn()
    made.graph.node[0].name = "\x1b]0;title\x07conv\x1b[2J"
    onnx.save(made, place.inputs / "m.onnx")
    quantizing = ["quantize", "-o", place.output, "--calibration-data", data, "--set", "sensitivity=report", "--preset", "balanced"]
    for command, *options in (["inspect"], quantizing):
        result = support.detent(command, place.inputs / "m.onnx", *options)
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout + result.notes + result.stderr
        assert "\\x1b[2J" in result.stdout


def with_tap(where: str) -> onnx.ModelProto:
    """A model that has detent's own operator, with an index of its own choice."""
    made = graphs.small_cnn()
    output = made.graph.output[0].name
    tap = helper.make_node("Tap", [output], ["tapped"], domain="detent.exec", index=1 << 40)
    value = helper.make_tensor_value_info("tapped", TensorProto.FLOAT, None)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("detent.exec", 1)]
    if where == "graph":
        made.graph.node.append(tap)
    elif where == "body":
        body = helper.make_graph([tap], "body", [], [value])
        true = helper.make_tensor("true", TensorProto.BOOL, [], [True])
        made.graph.initializer.append(true)
        made.graph.node.append(helper.make_node("If", ["true"], ["tapped"], then_branch=body, else_branch=body))
    else:
        tap = helper.make_node("Tap", ["a"], ["b"], domain="detent.exec", index=7)
        made.functions.append(helper.make_function("mine", "F", ["a"], ["b"], [tap], imports))
        made.graph.node.append(helper.make_node("F", [output], ["tapped"], domain="mine"))
        imports = [helper.make_opsetid("mine", 1)]
    made.graph.output.append(value)
    made.opset_import.extend(o for o in imports if o.domain)
    return made


@pytest.mark.parametrize("where", ["graph", "body", "function"])
def test_taps_of_a_strangers(where: str, place: Place, data: Path) -> None:
    path = place.inputs / "tapped.onnx"
    onnx.save(with_tap(where), path)
    place.refused(BAD_INPUT, "tapped.onnx.*'detent.exec', which is detent's own", path, data)
    place.refuses(BAD_INPUT, "tapped.onnx.*'detent.exec', which is detent's own", "inspect", path)


STATES_ANOTHER_SHAPE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 1, 4] x, bool c) => (float[1, 4] y) <float[4, 4] w = {ONES}> {
  a = If (c) <
    then_branch = yes () => (float[1, 4] t) { t = MatMul (x, w) },
    else_branch = no () => (float[1, 4] e) { e = Relu (x) }
  >
  y = MatMul (a, w)
}
"""


def test_a_body_that_states_another_shape_than_it_computes(place: Place) -> None:
    """The runtime finds that while detent's own operator runs in the body."""
    path = place.inputs / "shapes.onnx"
    onnx.save(onnx.parser.parse_model(STATES_ANOTHER_SHAPE.replace("ONES", ",".join("1" * 16))), path)
    samples = [{"x": np.ones((1, 1, 4), np.float32), "c": np.array(value)} for value in (True, False)]
    data = support.save_samples(place.inputs / "samples", samples)
    place.refused(BAD_INPUT, "shapes.onnx.*output shape", path, data, "--preset", "plain")


def limited(what: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (value, value))


def test_too_few_descriptors_are_the_machines_fault(place: Place, model: Path, data: Path) -> None:
    codes = set()
    for count in range(3, 24):
        limit = limited(resource.RLIMIT_NOFILE, count)
        command = ["quantize", model, "-o", place.output, "--calibration-data", data]
        result = support.detent(*command, env=place.environment, preexec_fn=limit)
        codes.add(result.returncode)
        assert result.returncode in (0, 4, 5, 127), (count, result.stderr)  # 127: the loader found no libraries
        if result.returncode != 127:
            assert "internal" not in result.stderr
    assert RESOURCE in codes


@pytest.mark.parametrize("kib", [32, 64, 512])
@pytest.mark.parametrize("words", [["--version"], ["quantize"]], ids=" ".join)
def test_a_small_stack(kib: int, words: list[str], place: Place, model: Path, data: Path) -> None:
    """The soft limit is raised; where the hard one is too low, a line says so."""
    command = words if words == ["--version"] else [*words, model, "-o", place.output, "--calibration-data", data, *PLAIN]
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    soft = lambda: resource.setrlimit(resource.RLIMIT_STACK, (kib << 10, hard))  # noqa: E731
    assert support.detent(*command, env=place.environment, preexec_fn=soft).returncode == 0
    result = support.detent(*command, env=place.environment, preexec_fn=limited(resource.RLIMIT_STACK, kib << 10))
    check(RESOURCE, r"stack is limited.*ulimit -s", result.returncode, result.stderr, result.stdout)
    place.assert_no_temporary_files()


WITHOUT_PROC = "unshare --mount sh -c 'mount --bind {empty} /proc && exec {command}'"


@pytest.mark.parametrize("command", ["quantize {model} -o {output} --calibration-data {data}", "inspect {model}", "bench {model}"])
def test_no_proc(command: str, place: Place, model: Path, data: Path) -> None:
    (place.inputs / "empty").mkdir()
    words = f"{support.DETENT} " + command.format(model=model, output=place.output, data=data)
    whole = WITHOUT_PROC.format(empty=place.inputs / "empty", command=words)
    result = subprocess.run(whole, shell=True, capture_output=True, text=True, env=place.environment, check=False)
    if "unshare:" in result.stderr or "mount:" in result.stderr:
        pytest.skip("no rights to mount")
    said = "".join(line for line in result.stderr.splitlines(True) if not line.startswith("Error in cpuinfo:"))
    check(DEVICE, "no /proc/self/fd.*mount /proc", result.returncode, said, result.stdout)
    place.assert_no_temporary_files()


def test_a_time_limit(place: Place, model: Path, data: Path) -> None:
    environment = {**place.environment, "DETENT_FAILPOINT": "calibrate.sample=nap"}
    command = ["quantize", model, "-o", place.output, "--calibration-data", data, *PLAIN, "--time-limit"]
    result = support.detent(*command, "0.01", env=environment)
    check(RESOURCE, "time limit of 0.01 s has passed; .*--resume", result.returncode, result.stderr, result.stdout)
    place.assert_no_temporary_files()
    result = support.detent(*command, "0.01", "--resume", env=environment)
    check(RESOURCE, "the same command continues the run", result.returncode, result.stderr, result.stdout)
    assert support.detent(*command, "100", "--resume", env=place.environment).returncode == 0
    place.assert_no_temporary_files()
