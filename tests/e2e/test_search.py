"""One search over all formats: the front, the chosen models, and what is asked for that cannot be."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time

import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from support import Path

FEW = ["--points", 3, "--formats", "int8,int8-dynamic,q4"]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions with a sum around one of them, and two products."""
    folder = tmp_path_factory.mktemp("net")
    random = np.random.default_rng(2)
    weights = {"k1": (16, 3, 3, 3), "k2": (16, 16, 3, 3), "w1": (16 * 64, 64), "w2": (64, 10)}
    constants = [
        numpy_helper.from_array((random.standard_normal(shape) / 8).astype(np.float32), name) for name, shape in weights.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["a"], "conv_1", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu_1"),
        helper.make_node("Conv", ["b", "k2"], ["c"], "conv_2", pads=[1] * 4),
        helper.make_node("Add", ["c", "b"], ["d"], "add"),
        helper.make_node("Flatten", ["d"], ["e"], "flat"),
        helper.make_node("MatMul", ["e", "w1"], ["f"], "fc_1"),
        helper.make_node("Relu", ["f"], ["g"], "relu_2"),
        helper.make_node("MatMul", ["g", "w2"], ["y"], "fc_2"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    np.save(folder / "x.npy", random.standard_normal((24, 3, 8, 8)).astype(np.float32))
    return folder


def search(net: Path, output: Path, *options: object) -> subprocess.CompletedProcess[str]:
    data = ["--calibration-data", net / "x.npy", "--batch-size", 1]
    return support.detent("search", net / "net.onnx", "-o", output, *data, *options)


def quantize(net: Path, output: Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [support.DETENT, "quantize", net / "net.onnx", "-o", output, "--calibration-data", net / "x.npy"]
    command += ["--batch-size", 1, "--quiet", *options]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def found(net: Path) -> Path:
    result = search(net, net / "found", "--points", 4)
    assert result.returncode == 0, result.stderr
    return net / "found"


def points_of(folder: Path) -> list[dict]:
    return json.loads((folder / "front.json").read_text())["points"]


def costs(point: dict) -> tuple[float, float, float]:
    return point["error"], point["seconds"], point["bytes"]


def test_no_point_of_the_front_is_beaten(found: Path) -> None:
    points = points_of(found)
    assert {"fp32", "int8", "int8-dynamic", "a16w8", "q8", "q4"} < {p["name"] for p in points}
    assert any(p["name"].startswith("mixed") for p in points)
    for point in points:
        share = 0.9 if point["single"] else 0.99
        better = [q for q in points if all(a < share * b for a, b in zip(costs(q), costs(point), strict=True))]
        assert not (point["on_front"] and better), (point, better)


def test_sizes_and_errors_are_those_of_the_files(net: Path, found: Path) -> None:
    samples = [{"x": row[None]} for row in np.load(net / "x.npy")]
    reference = support.outputs(support.load(net / "net.onnx"), samples)
    for point in points_of(found):
        if "written" not in point or point["sqnr_db"] is None:
            continue
        file = Path(point["written"])
        assert file.stat().st_size == point["bytes"]
        sqnr = support.sqnr(reference, support.outputs(support.load(file), samples))
        assert sqnr == pytest.approx(point["sqnr_db"], abs=2.5)


def test_each_command_makes_its_model_byte_for_byte(found: Path, tmp_path: Path) -> None:
    written = [point for point in points_of(found) if "written" in point and point["command"]]
    assert written
    for point in written:
        words = shlex.split(point["command"])
        words[0] = str(support.DETENT)
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
        assert (tmp_path / f"{point['name']}.onnx").read_bytes() == Path(point["written"]).read_bytes(), point["name"]


def test_the_picture_has_all_points_and_asks_no_network(found: Path) -> None:
    page = (found / "front.html").read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["points"] == points_of(found)
    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="', page)


def test_limits_give_one_model_that_meets_them(net: Path, tmp_path: Path) -> None:
    result = search(net, tmp_path / "out", *FEW, "--max-size", "120KiB", "--max-latency", "1s", "--json")
    assert result.returncode == 0, result.stderr
    chosen = [p for p in json.loads(result.stdout)["points"] if p["chosen"]]
    assert [p["chosen"] for p in chosen] == [["meets the limits"]]
    assert chosen[0]["bytes"] <= 120 * 1024
    assert (tmp_path / "out" / "model.onnx").stat().st_size == chosen[0]["bytes"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "limit", [["--max-size", "1KiB"], ["--max-latency", "1us"], ["--accuracy-target", "200", "--accuracy-metric", "sqnr"]]
)
def test_limits_that_cannot_be_met_name_the_nearest(net: Path, tmp_path: Path, limit: list[str]) -> None:
    result = search(net, tmp_path / "out", *FEW, *limit, "--quiet")
    assert (result.returncode, "the nearest is" in result.stderr) == (4, True), result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_quantize_makes_the_model_that_meets_the_limits(net: Path, tmp_path: Path) -> None:
    limits = ["--max-size", "120KiB", "--accuracy-target", "20", "--accuracy-metric", "sqnr"]
    result = quantize(net, tmp_path / "out.onnx", *limits, "--json", "--no-bench")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert (tmp_path / "out.onnx").stat().st_size == told["model_bytes_after"] <= 120 * 1024
    assert told["accuracy"]["sqnr_db"] > 18
    assert any("meets the limits best" in note for note in told["notes"])
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


@pytest.mark.full
def test_quantize_keeps_what_is_there_where_nothing_meets_the_limits(net: Path, tmp_path: Path) -> None:
    (tmp_path / "out.onnx").write_text("mine")
    result = quantize(net, tmp_path / "out.onnx", "--max-size", "1KiB")
    assert (result.returncode, "the nearest is" in result.stderr) == (4, True), result.stderr
    assert (tmp_path / "out.onnx").read_text() == "mine"


@pytest.mark.parametrize(
    "option",
    [
        ["--format", "int8"],
        ["--method", "mse"],
        ["--method", "percentile"],
        ["--target", "qnn"],
        ["--finetune", "gptq"],
        ["--per-tensor"],
        ["--exclude-nodes", "fc_1"],
    ],
)
def test_what_says_how_nodes_are_quantized_does_not_go_with_limits(net: Path, tmp_path: Path, option: list[str]) -> None:
    result = quantize(net, tmp_path / "out.onnx", *option, "--max-latency", "1s")
    assert (result.returncode, option[0] in result.stderr) == (2, True), result.stderr
    assert not list(tmp_path.iterdir())


def test_a_killed_search_goes_on(net: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    resumable = ["--resume", "--work-dir", work, "--json", "--quiet"]
    command = [support.DETENT, "search", net / "net.onnx", "-o", tmp_path / "out", "--calibration-data", net / "x.npy"]
    command += ["--batch-size", 1, *FEW, *resumable]
    killed = subprocess.run([*map(str, command)], env={**os.environ, "DETENT_FAILPOINT": "search.point=kill@3"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    made = {path: path.stat().st_mtime_ns for path in work.glob("*/points/*.json")}
    assert len(made) >= 2
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as resumed:
        while resumed.poll() is None:
            for path, time_made in made.items():
                with contextlib.suppress(FileNotFoundError):
                    assert path.stat().st_mtime_ns == time_made
            time.sleep(0.01)
    assert resumed.returncode == 0
    assert {p["name"] for p in points_of(tmp_path / "out")} > {"fp32", "int8"}
    assert not list(work.iterdir())


@pytest.mark.full
def test_a_chosen_float_model_brings_its_data(net: Path, tmp_path: Path) -> None:
    model = onnx.load(net / "net.onnx")
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    data = ["--calibration-data", net / "x.npy", "--batch-size", 1]
    found = support.detent(
        "search",
        tmp_path / "net.onnx",
        "-o",
        tmp_path / "out",
        *data,
        "--max-size",
        "1MiB",
        "--formats",
        "fp32,q4",
        "--points",
        1,
    )
    assert found.returncode == 0, found.stderr
    chosen = next(p for p in points_of(tmp_path / "out") if p["chosen"])
    assert chosen["name"] == "fp32"
    sample = {"x": np.load(net / "x.npy")[:1]}
    runs = [support.outputs(support.load(path), [sample]) for path in (net / "net.onnx", Path(chosen["written"]))]
    assert support.sqnr(*runs) > 100


def test_commands_name_the_pictures(net: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    (tmp_path / "photos").mkdir()
    for n in range(9):
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / "photos" / f"{n}.png")
    words = ["--images", tmp_path / "photos", "--image-preset", "01", "--set", "image-size=8", "--formats", "q8", "--points", 1]
    result = support.detent("search", net / "net.onnx", "-o", tmp_path / "out", *words)
    assert result.returncode == 0, result.stderr
    point = next(p for p in points_of(tmp_path / "out") if p["chosen"] and p["command"])
    line = shlex.split(point["command"])
    line[line.index("-o") + 1] = str(tmp_path / "again.onnx")
    again = subprocess.run([support.DETENT, *line[1:]], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.onnx").read_bytes() == Path(point["written"]).read_bytes()


def write_machines(folder: Path, *machines: dict[str, object]) -> Path:
    (folder / "machines.json").write_text(json.dumps({"machines": machines}))
    return folder / "machines.json"


@pytest.fixture(scope="module")
def table(net: Path) -> Path:
    """Times of this machine's operators, and of one whose operators take twice as long."""
    found = search(net, net / "for-table", *FEW, "--set", f"kernel-table={net / 'here.json'}")
    assert found.returncode == 0, found.stderr
    times = json.loads((net / "here.json").read_text())
    for kernel in times["kernels"].values():
        for name in kernel:
            kernel[name] *= 2
    (net / "slow.json").write_text(json.dumps(times))
    return net / "here.json"


@pytest.mark.full
def test_machines_serve_with_the_models_that_suit_them(net: Path, table: Path, tmp_path: Path) -> None:
    machines = write_machines(
        net,
        {"name": "here", "kernel-table": "here.json", "threads": 3, "price": 1.0},
        {"name": "slow", "kernel-table": "slow.json", "threads": 8, "memory": "8GiB", "price": 0.1},
        {"name": "tiny", "kernel-table": "here.json", "threads": 64, "memory": "1MiB", "price": 0.001},
    )
    words = [*FEW, "--set", f"kernel-table={table}", "--machines", machines, "--requests", 1000]
    found = search(net, tmp_path / "out", *words)
    assert found.returncode == 0, found.stderr
    front = json.loads((tmp_path / "out" / "front.json").read_text())
    points = {p["name"]: p for p in front["points"]}
    served = {m["machine"]: m for m in front["machines"]}
    assert set(served) == {"here", "slow"}, "no instance fits the memory of the third"
    assert served["here"]["seconds"] == pytest.approx(points[served["here"]["model"]]["seconds"])
    assert served["slow"]["seconds"] == pytest.approx(2 * points[served["slow"]["model"]]["seconds"], rel=0.01)
    for machine, threads in (("here", 3), ("slow", 8)):
        told = served[machine]
        assert told["instances"] == threads
        assert told["requests"] == pytest.approx(threads / told["seconds"])
        assert told["peak_memory_bytes"] > 5 << 20
    assert sum(m["needed"] * m["requests"] for m in served.values()) >= 1000
    chosen = {why for p in front["points"] for why in p["chosen"]}
    assert chosen == {f"on {name}" for name, m in served.items() if m["needed"]}
    for point in front["points"]:
        assert not point["chosen"] or Path(point["written"]).exists()
    assert "requests a second at the lowest price: " in found.stdout


@pytest.mark.full
def test_machines_that_cannot_serve_are_told(net: Path, table: Path, tmp_path: Path) -> None:
    machines = write_machines(net, {"name": "here", "kernel-table": "here.json", "threads": 1, "price": 1})
    words = [*FEW, "--set", f"kernel-table={table}", "--machines", machines, "--requests", 10, "--max-latency", "1us"]
    found = search(net, tmp_path / "out", *words)
    assert (found.returncode, found.stderr.count("\n")) == (4, 1), found.stderr
    assert "none of 1 machine serves within --max-latency 0.001ms" in found.stderr
    assert " on here: " in found.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        ({"kernel-table": "here.json", "threads": 1, "price": 1}, "machine 1 needs a text 'name'"),
        ({"name": "a b", "kernel-table": "here.json", "threads": 1, "price": 1}, "needs a name of letters"),
        ({"name": "a" * 101, "kernel-table": "here.json", "threads": 1, "price": 1}, "has a name of more than 100 characters"),
        ({"name": "a", "kernel-table": "here.json", "threads": 1.5, "price": 1}, "'threads' is not a whole number"),
        ({"name": "a", "kernel-table": "here.json", "threads": 1, "price": -1}, "'price' is not from 0 to 10^12"),
        ({"name": "a", "kernel-table": "here.json", "threads": 1, "price": 1e300}, "'price' is not from 0 to 10^12"),
        ({"name": "a", "kernel-table": "here.json", "threads": 1, "price": 1, "memory": "much"}, "'memory': "),
        ({"name": "a", "kernel-table": "here.json", "threads": 1, "price": 1, "cost": 2}, "unknown member 'cost'"),
        ({"name": "a", "kernel-table": "none.json", "threads": 1, "price": 1}, "has no times of "),
        ([], "machine 1 is no object"),
    ],
)
def test_machine_files_are_checked(net: Path, tmp_path: Path, machine: object, says: str) -> None:
    found = search(net, tmp_path / "out", *FEW, "--machines", write_machines(net, machine), "--requests", 10)
    assert (found.returncode, found.stderr.count("\n")) == (3, 1), found.stderr
    assert says in found.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--requests", 10], "--machines and --requests go together"),
        (["--requests", 0, "--machines", "m.json"], "--requests"),
        (["--requests", "1e300", "--machines", "m.json"], "--requests"),
        (["--requests", "inf", "--machines", "m.json"], "--requests"),
        (["--requests", 10, "--machines", "m.json", "--threads", 2], "leave out --threads"),
    ],
)
def test_options_of_machines(net: Path, tmp_path: Path, words: list[object], says: str) -> None:
    found = search(net, tmp_path / "out", *FEW, *words)
    assert (found.returncode, found.stderr.count("\n")) == (2, 1), found.stderr
    assert says in found.stderr


def test_the_float_model_is_timed_where_nothing_else_is(net: Path, tmp_path: Path) -> None:
    found = search(net, tmp_path / "out", "--formats", "fp32", "--points", 1, "--max-size", "1MiB")
    assert found.returncode == 0, found.stderr
    (point,) = points_of(tmp_path / "out")
    assert (point["name"], point["seconds"] > 0) == ("fp32", True)


def test_time_that_is_up_gives_what_is_there_or_nothing(net: Path, tmp_path: Path) -> None:
    result = search(net, tmp_path / "out", "--time-limit", "0.05", "--quiet")
    assert (result.returncode, result.stderr.count("\n")) == (4, 1), result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--max-latency", "soon"], "is not a time"), (["--formats", "int7"], "did you mean int8"), (["--points", "many"], "whole")],
)
def test_bad_options_are_told_in_one_line(net: Path, tmp_path: Path, options: list[str], said: str) -> None:
    result = search(net, tmp_path / "out", *options)
    assert (result.returncode, said in result.stderr) == (2, True), result.stderr


def test_other_files_stay(net: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    result = search(net, tmp_path, *FEW)
    assert (result.returncode, "is there already" in result.stderr) == (2, True), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
