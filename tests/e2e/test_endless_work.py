"""What would take forever, all memory, or the process with it: bounded, or refused with a word."""

import functools
import os
import resource
import zipfile
from collections.abc import Callable

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, RESOURCE, USAGE, Place
from onnx import TensorProto, helper
from support import Path

FLOAT = TensorProto.FLOAT


# Whatever ends at all ends in seconds; a run that takes five minutes is ended by support.detent(), which fails then.


def test_long_names_and_patterns(place: Place, data: Path) -> None:
    """Names of 50 kB, and patterns that take exponential time in engines that go back."""
    model = graphs.small_cnn()
    for i, node in enumerate(model.graph.node):
        node.name = node.op_type + "a" * (50_000 + i)
    path = place.inputs / "long.onnx"
    onnx.save(model, path)
    for pattern in ("^Gemm.*", "^(G|e|m|a)+$", "^(Gemm|Conv)(a+)+$"):
        support.quantize(path, place.output, data, "--exclude-nodes", pattern)
    place.output.unlink()
    place.refused(USAGE, "--nodes", path, data, "--nodes", "^(Conv|a+)+!")
    place.refused(USAGE, "not a valid regular expression.*RE2", path, data, "--nodes", "^(?!Conv).*")


def test_a_runtime_that_answers_with_a_long_name(place: Place, data: Path) -> None:
    model = graphs.small_cnn()
    model.graph.node[0].op_type = "N" * 100_000
    path = place.inputs / "unknown.onnx"
    onnx.save(model, path)
    place.refused(BAD_INPUT, "unknown.onnx", path, data)


def with_functions(place: Place, functions: list[onnx.FunctionProto], call: onnx.NodeProto) -> Path:
    model = graphs.small_cnn()
    model.functions.extend(functions)
    model.graph.node.append(call)
    if call.domain:
        model.opset_import.append(helper.make_opsetid(call.domain, 1))
    model.graph.output.append(helper.make_tensor_value_info(call.output[0], FLOAT, None))
    path = place.inputs / "functions.onnx"
    onnx.save(model, path)
    return path


def function(name: str, inputs: list[str], outputs: list[str], nodes: list[onnx.NodeProto], domain: str = "own"):
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function(domain, name, inputs, outputs, nodes, imports)


def test_functions_that_double(place: Place, data: Path) -> None:
    """10 kB that come to 2^40 nodes."""
    functions = [function("f0", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])])]
    for i in range(1, 41):
        calls = [
            helper.make_node(f"f{i - 1}", ["x"], ["m"], domain="own"),
            helper.make_node(f"f{i - 1}", ["m"], ["y"], domain="own"),
        ]
        functions.append(function(f"f{i}", ["x"], ["y"], calls))
    path = with_functions(place, functions, helper.make_node("f40", ["x"], ["z"], domain="own"))
    place.refused(BAD_INPUT, "come to more than 1000000 nodes", path, data)
    place.refuses(BAD_INPUT, "come to more than 1000000 nodes", "inspect", path)
    path = with_functions(place, functions[:8], helper.make_node("f7", ["x"], ["z"], domain="own"))
    support.quantize(path, place.output, data)


def calls_of_calls(place: Place, widths: list[int], name: str = "m") -> Path:
    """Functions that call the one before so many times."""
    functions = [function("f0", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])])]
    for i, width in enumerate(widths):
        values = ["x", *(f"{name}{n}" for n in range(1, width)), "y"]
        calls = [helper.make_node(f"f{i}", [a], [b], name + b, domain="own") for a, b in zip(values, values[1:], strict=False)]
        functions.append(function(f"f{i + 1}", ["x"], ["y"], calls))
    return with_functions(place, functions, helper.make_node(f"f{len(widths)}", ["x"], ["z"], domain="own"))


def processor_seconds() -> float:
    """Of all commands so far: a busy machine does not add to them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_expansion_keeps_to_the_time_limit(place: Place, data: Path) -> None:
    """One second and little more, though nothing in the runtime looks for a stop."""
    path = calls_of_calls(place, [300, 300])
    begin = processor_seconds()
    place.refused(RESOURCE, "time limit of 1 s", path, data, "--time-limit", 1)
    assert processor_seconds() - begin < 4


@pytest.mark.parametrize("options", [["--preset", "plain"], ["--weights-only"], ["--activations", "dynamic"]], ids=" ".join)
def test_expansion_keeps_to_the_memory_budget(options: list[str], place: Place, data: Path) -> None:
    path = calls_of_calls(place, [2] * 13, "n" * 300)
    place.refused(RESOURCE, "more than 25.0 MiB.*raise --memory-budget", path, data, *options, "--memory-budget", "200MiB")


CONTRIB = ["FusedConv", "FusedMatMul", "Gelu", "FastGelu", "BiasGelu", "LayerNormalization", "SkipLayerNormalization", "QLinearAdd"]


@pytest.mark.parametrize("arity", [(0, 1), (1, 0), (1, 3), (9, 1)], ids=str)
def test_functions_named_like_operators(arity: tuple[int, int], place: Place, data: Path) -> None:
    """Both detent and the runtime know what such an operator takes; a function of another arity ended either."""
    inputs, outputs = [f"i{n}" for n in range(arity[0])], [f"o{n}" for n in range(arity[1])]
    for name in CONTRIB:
        nodes = [helper.make_node("Constant", [], [o], value_float=1.0) for o in outputs]
        made = function(name, inputs, outputs, nodes, "com.microsoft")
        call = helper.make_node(name, ["x"] * arity[0], ["z", "z2", "z3"][: arity[1]] or ["z"], domain="com.microsoft")
        place.refused(BAD_INPUT, "domain of its own", with_functions(place, [made], call), data)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("op_type", sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}))
def test_operators_without_inputs(op_type: str, place: Place, data: Path) -> None:
    model = graphs.small_cnn()
    model.graph.node.append(helper.make_node(op_type, [], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", FLOAT, None))
    path = place.inputs / "bare.onnx"
    onnx.save(model, path)
    for command in (["inspect", path], ["quantize", path, "-o", place.output, "--calibration-data", data]):
        result = support.detent(*command, env=place.environment)
        assert result.returncode in (0, BAD_INPUT), (command[0], result.returncode, result.stderr)


def no_rows(folder: Path) -> None:
    """A header of 128 bytes that claims 2^60 rows of nothing."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 0, 16, 16), }" % (1 << 60)
    header += b" " * (117 - len(header)) + b"\n"
    (folder / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def test_rows_without_bytes(place: Place) -> None:
    b = graphs.Builder()
    path = place.inputs / "empty.onnx"
    onnx.save(b.model({"x": (FLOAT, ["N", "C", 16, 16])}, [b.add("MatMul", "x", b.weight("w", 16, 16))]), path)
    folder = place.inputs / "rows"
    folder.mkdir()
    no_rows(folder)
    place.refused(BAD_INPUT, "a.npy.*hold no data", path, folder, "--batch-size", 1)


def test_a_small_file_that_is_large_in_memory(place: Place, model: Path) -> None:
    folder = place.inputs / "bomb"
    folder.mkdir()
    row = np.zeros((1, 3, 16, 16), np.float32)
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (100_000, 3, 16, 16)})
        for _ in range(100):
            member.write(bytes(1000 * row.nbytes))
    assert (folder / "a.npz").stat().st_size < 1_000_000
    place.refused(RESOURCE, "a.npz.*takes 293 MiB.*200 MiB", model, folder, "--memory-budget", "200MiB")


def endless(starts_from_input: bool) -> onnx.ModelProto:
    """With a Loop whose condition stays true."""
    made = graphs.small_cnn()
    infos = {"i": TensorProto.INT64, "c": TensorProto.BOOL, "v": FLOAT, "c2": TensorProto.BOOL, "v2": FLOAT}
    shapes = {"i": [], "c": [], "c2": [], "v": None, "v2": None}
    values = {name: helper.make_tensor_value_info(name, t, shapes[name]) for name, t in infos.items()}
    nodes = [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Identity", ["v"], ["v2"])]
    body = helper.make_graph(nodes, "body", [values["i"], values["c"], values["v"]], [values["c2"], values["v2"]])
    made.graph.initializer.append(helper.make_tensor("true", TensorProto.BOOL, [], [True]))
    made.graph.initializer.append(helper.make_tensor("start", FLOAT, [1], [1.0]))
    start = made.graph.output[0].name if starts_from_input else "start"
    made.graph.node.append(helper.make_node("Loop", ["", "true", start], ["looped"], body=body, name="loop"))
    made.graph.output.append(helper.make_tensor_value_info("looped", FLOAT, None))
    return made


@pytest.mark.parametrize("starts_from_input", [True, False], ids=["data", "constant"])
def test_a_loop_without_end(starts_from_input: bool, place: Place, data: Path) -> None:
    """What only looks at the model does not run it, also where its input is constant; what runs it keeps to a limit."""
    path = place.inputs / "endless.onnx"
    onnx.save(endless(starts_from_input), path)
    for command in (["inspect", path], ["plan", path, "--calibration-data", data]):
        assert support.detent(*command, env=place.environment).returncode == 0
    limit = ["--time-limit", 1]
    place.refused(RESOURCE, "time limit of 1 s", path, data, *limit)
    arguments = ["-o", place.out / "s", "--calibration-data", data]
    place.refuses(RESOURCE, "time limit of 1 s", "calibrate", path, *arguments, *limit)
    place.refuses(RESOURCE, "longer than 0.5 s for one sample", "calibrate", path, *arguments, "--set", "sample-time-limit=0.5")


@pytest.mark.parametrize(
    ("command", "point"), [("quantize", "session.create"), ("quantize", "guarded.ports"), ("plan", "guarded.ports")]
)
def test_a_time_limit_ends_what_looks_for_no_stop(command: str, point: str, place: Place, model: Path, data: Path) -> None:
    """As the runtime while it makes a session, here or in a process of its own: the process ends five seconds later."""
    place.environment["DETENT_FAILPOINT"] = f"{point}=hang"
    output = ["-o", place.output] if command == "quantize" else []
    place.refuses(RESOURCE, "time limit of 0.5 s", command, model, *output, "--calibration-data", data, "--time-limit", 0.5)


def test_more_segments_than_there_are_nodes(place: Place, model: Path, data: Path) -> None:
    support.quantize(model, place.output, data, "--set", "segments=2000000000")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [fifo, directory, device], ids=lambda f: f.__name__)
def test_settings_that_are_no_files(make: Callable[[Path], None], place: Place, model: Path, data: Path) -> None:
    path = place.inputs / "settings"
    make(path)
    place.refused(USAGE, "settings.*not a regular file", model, data, "--config", path)
    table = ["--preset", "balanced", "--optimize-for", "latency", "--set", f"kernel-table={path}"]
    place.refused(BAD_INPUT, "settings.*not a regular file", model, data, *table)
    sample = place.inputs / "samples"
    sample.mkdir()
    make(sample / "a.npy")
    make(sample / "b.npz")
    for name in ("a.npy", "b.npz"):
        place.refused(BAD_INPUT, "regular file|folder|directory|is empty|layout", model, sample / name)


@functools.cache
def wide(values: int) -> bytes:
    """One node that reads so many constants: the runtime takes time that grows with their square."""
    names = [f"i{i}" for i in range(values)]
    node = helper.make_node("Concat", ["x", *names], ["y"], axis=0)
    ends = [helper.make_tensor_value_info(name, FLOAT, [rows, 4]) for name, rows in (("x", 1), ("y", values + 1))]
    constants = [helper.make_tensor(name, FLOAT, [1, 4], [1, 2, 3, 4]) for name in names]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


READING = {"inspect": 1, "check": 1, "bench": 1, "compare": 2, "verify": 2, "plan": 1, "quantize": 1, "calibrate": 1}


def given_to(command: str, model: Path, data: Path, output: Path) -> list[object]:
    """With samples for all but those that run nothing, and an output where one is written."""
    samples = [] if command in ("inspect", "check") else ["--calibration-data", data]
    return [command, *[model] * READING[command], *samples, *(["-o", output] if command in ("quantize", "calibrate") else [])]


@pytest.fixture
def rows(place: Place) -> Path:
    return support.save_samples(place.inputs / "rows", [{"x": np.ones((1, 4), np.float32)}])


@pytest.mark.parametrize("command", READING)
def test_graphs_have_a_place_in_the_budget(place: Place, rows: Path, command: str) -> None:
    """Told before the work, by every command that reads a model."""
    (place.inputs / "wide.onnx").write_bytes(wide(40_000))
    given = given_to(command, place.inputs / "wide.onnx", rows, place.output)
    place.refuses(
        RESOURCE, "wide.onnx' has 1 nodes and 4000. values, which take about .*memory budget", *given, "--memory-budget", "100MiB"
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", READING)
def test_every_command_has_a_limit_of_time(place: Place, rows: Path, command: str) -> None:
    (place.inputs / "wide.onnx").write_bytes(wide(200_000))
    given = given_to(command, place.inputs / "wide.onnx", rows, place.output)
    begin = processor_seconds()
    place.refuses(RESOURCE, "the time limit of 1 s has passed", *given, "--time-limit", 1)
    assert processor_seconds() - begin < 60
