"""What is faster in float stays in float, by the times in a kernel table."""

import ctypes
import fcntl
import json
import os
import signal

import graphs
import numpy as np
import onnx
import pytest
import support
from support import Path

BALANCED = ["--preset", "balanced", "--set", "sensitivity=off"]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, its samples, and the table that a first run has measured."""
    folder = tmp_path_factory.mktemp("speed")
    model = folder / "model.onnx"
    onnx.save(graphs.small_cnn(), model)
    data = support.save_samples(folder / "data", graphs.cnn_samples())
    table = folder / "kernels.json"
    quantize(model, folder / "first.onnx", data, table)
    return model, data, table


def quantize(model: Path, output: Path, data: Path, table: Path, *options: object) -> dict:
    return support.quantize(model, output, data, *BALANCED, "--optimize-for", "latency", "--set", f"kernel-table={table}", *options)


def changed(table: Path, folder: Path, **fields: float) -> Path:
    """A copy of the table with these times, in microseconds, in all rows."""
    content = json.loads(table.read_text())
    for row in content["kernels"].values():
        row.update(fields)
    copy = folder / "changed.json"
    copy.write_text(json.dumps(content))
    return copy


def weights(model: Path) -> list[str]:
    """Types of the tensors that products read as weights, behind a DequantizeLinear or not."""
    graph = onnx.load(model).graph
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    behind = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    products = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
    return [onnx.TensorProto.DataType.Name(stored[behind.get(n.input[1], n.input[1])]) for n in products]


def test_every_product_is_timed_in_both_forms(case: tuple[Path, Path, Path]) -> None:
    kernels = json.loads(case[2].read_text())["kernels"]
    assert sorted(name.split("(")[0] for name in kernels) == ["Conv", "Conv", "Gemm"]
    for times in kernels.values():
        assert times["float"] > 0 and times["integers"] > 0 and times["quantize"] > 0


def test_integers_where_they_are_faster(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table = changed(case[2], tmp_path, float=1000, integers=1, quantize=1, dequantize=1)
    result = quantize(case[0], tmp_path / "q.onnx", case[1], table)
    assert result["faster_in_float"] == []
    assert "FLOAT" not in weights(tmp_path / "q.onnx")


def test_float_where_it_is_faster(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table = changed(case[2], tmp_path, float=1, integers=1000)
    result = quantize(case[0], tmp_path / "q.onnx", case[1], table)
    assert weights(tmp_path / "q.onnx") == ["FLOAT"] * 3
    assert any("3 of 3 layers left in float" in note for note in result["notes"])
    sample = support.load_samples(case[1])[0]
    expected = support.load(case[0]).run(None, sample)[0]
    np.testing.assert_allclose(support.check_model(tmp_path / "q.onnx").run(None, sample)[0], expected, rtol=1e-4, atol=1e-5)


def test_size_asks_for_integers_whatever_their_speed(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table = changed(case[2], tmp_path, float=1, integers=1000)
    options = [*BALANCED, "--optimize-for", "size", "--set", f"kernel-table={table}"]
    support.quantize(case[0], tmp_path / "q.onnx", case[1], *options)
    assert "FLOAT" not in weights(tmp_path / "q.onnx")


def test_one_number_says_what_size_is_worth(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table = changed(case[2], tmp_path, float=100, integers=110, quantize=0, dequantize=0, into_blocks=0, out_of_blocks=0)
    fast = quantize(case[0], tmp_path / "fast.onnx", case[1], table)
    assert weights(tmp_path / "fast.onnx") == ["FLOAT"] * 3
    (note,) = [note for note in fast["notes"] if "3 of 3 layers left in float" in note]
    assert "0.3 -> 0.33 ms a sample by the times of single operators" in note
    quantize(case[0], tmp_path / "small.onnx", case[1], table, "--set", "size-worth=100")
    assert "FLOAT" not in weights(tmp_path / "small.onnx")
    arguments = ["quantize", case[0], "-o", tmp_path / "q.onnx", "--calibration-data", case[1], "--optimize-for", "size"]
    refused = support.detent(*arguments, "--set", "size-worth=10")
    assert refused.returncode == 2
    assert "size-worth" in refused.stderr


def test_a_table_is_kept_and_decides_alike(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    before = case[2].read_text()
    for name in ("a", "b"):
        quantize(case[0], tmp_path / name, case[1], case[2])
    assert support.sha256(tmp_path / "a") == support.sha256(tmp_path / "b")
    assert case[2].read_text() == before


def test_a_resumed_run_decides_as_it_did(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table = changed(case[2], tmp_path, float=1, integers=1000)
    quantize(case[0], tmp_path / "expected.onnx", case[1], table)
    work = tmp_path / "work"
    work.mkdir()
    command = ["quantize", case[0], "-o", tmp_path / "q.onnx", "--calibration-data", case[1], "--work-dir", work]
    command += [*BALANCED, "--optimize-for", "latency", "--set", f"kernel-table={table}"]
    killed = support.detent(*command, env={**os.environ, "DETENT_FAILPOINT": "calibrate.sample=kill@3"})
    assert killed.returncode == -signal.SIGKILL
    changed(table, tmp_path, float=1000, integers=1)
    assert support.detent(*command, "--resume").returncode == 0
    assert support.sha256(tmp_path / "q.onnx") == support.sha256(tmp_path / "expected.onnx")


def test_what_is_no_table_is_an_error(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table = tmp_path / "kernels.json"
    table.write_text('{"format": "another"}')
    arguments = ["quantize", case[0], "-o", tmp_path / "q.onnx", "--calibration-data", case[1], *BALANCED]
    result = support.detent(*arguments, "--optimize-for", "latency", "--set", f"kernel-table={table}")
    assert result.returncode == 3
    assert f"'{table}' is not a table of kernel times" in result.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_a_model_that_stays_in_float_is_not_measured(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table = changed(case[2], tmp_path, float=1, integers=1000)
    options = ["--preset", "balanced", "--optimize-for", "accuracy", "--set", f"kernel-table={table}"]  # no weights of 8 bits
    result = support.quantize(case[0], tmp_path / "q.onnx", case[1], *options)
    assert result["nodes_quantized"] == 0
    assert "accuracy" not in result


def test_a_cache_that_cannot_be_written_is_told_of(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = ["--preset", "balanced", "--set", "sensitivity=off", "--optimize-for", "latency", "--no-bench"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file")}
    result = support.quantize(case[0], tmp_path / "q.onnx", case[1], *options, env=environment)
    assert any("cannot write the kernel table" in note and "not kept" in note for note in result["notes"])
    named = support.detent(
        *["quantize", case[0], "-o", tmp_path / "r.onnx", "--calibration-data", case[1], *options],
        *["--set", f"kernel-table={tmp_path / 'file' / 'kernels.json'}"],
    )
    assert named.returncode == 2
    assert not (tmp_path / "r.onnx").exists()


def test_without_shapes_all_goes_to_integers(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The model's batch is dynamic, and statistics do not tell it."""
    statistics = support.calibrate(case[0], tmp_path / "s.stats", case[1], "--preset", "balanced")
    options = ["--preset", "balanced", "--optimize-for", "latency", "--set", f"kernel-table={tmp_path / 'none.json'}"]
    result = support.detent("quantize", case[0], "-o", tmp_path / "q.onnx", "--statistics", statistics, *options, "--json")
    assert result.returncode == 0, result.stderr
    assert any("shapes are not known" in note for note in json.loads(result.stdout)["notes"])
    assert "FLOAT" not in weights(tmp_path / "q.onnx")


@pytest.mark.parametrize("first", ["Scaler", "Compress"])
def test_shapes_that_only_a_run_shows_are_timed(first: str, tmp_path: Path) -> None:
    """The runtime infers none behind operators of ai.onnx.ml, nor those that depend on values."""
    b = graphs.Builder(3)
    if first == "Scaler":
        x = b.add("Scaler", "x", domain="ai.onnx.ml", offset=[0.1] * 16, scale=[1.5] * 16)
    else:
        x = b.add("Compress", "x", b.constant("kept", [True, False, True, True], bool), axis=0)
    out = b.add("MatMul", b.add("Relu", b.add("MatMul", x, b.weight("w", 16, 24))), b.weight("v", 24, 8))
    onnx.save(b.model({"x": (onnx.TensorProto.FLOAT, ["N", 16])}, [out]), tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    data = support.save_samples(tmp_path / "data", [{"x": rng.random((4, 16), np.float32)} for _ in range(4)])
    told = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, tmp_path / "kernels.json")
    assert not any("not timed" in note for note in told["notes"])
    kernels = json.loads((tmp_path / "kernels.json").read_text())["kernels"]
    rows = 4 if first == "Scaler" else 3
    assert len(kernels) == 2 and all(f"[{rows}x16]" in name or f"[{rows}x24]" in name for name in kernels), kernels


def test_what_has_no_elements_stays_in_float(tmp_path: Path) -> None:
    """Its operator alone is a model that has nothing to quantize, which is no error of the whole."""
    b = graphs.Builder(2)
    outs = [b.add("MatMul", name, b.weight("of_" + name, 16, 8)) for name in "xy"]
    onnx.save(b.model({name: (onnx.TensorProto.FLOAT, [name + "s", 16]) for name in "xy"}, outs), tmp_path / "m.onnx")
    sample = {"x": np.zeros((0, 16), np.float32), "y": np.eye(16, dtype=np.float32)}
    data = support.save_samples(tmp_path / "data", [sample])
    quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data, tmp_path / "kernels.json")
    first, *_ = onnx.load(tmp_path / "q.onnx").graph.node
    assert first.op_type == "MatMul" and first.input[0] == "x"


def test_values_of_unknown_rank_are_not_timed(tmp_path: Path) -> None:
    """What follows a Reshape to computed dimensions has no rank without samples; the runtime says 0."""
    model = support.MODELS / "ppocr_cls.onnx"
    rng = np.random.default_rng(0)
    data = support.save_samples(tmp_path / "data", [{"x": rng.random((1, 3, 48, 192), dtype=np.float32)} for _ in range(2)])
    statistics = support.calibrate(model, tmp_path / "s.stats", data, "--preset", "balanced")
    options = ["--preset", "balanced", "--optimize-for", "latency", "--set", f"kernel-table={tmp_path / 'table.json'}"]
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--statistics", statistics, *options)
    assert result.returncode == 0, result.stderr


def without_privileges() -> None:
    """What root may and others may not: to enter any folder."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.parametrize("kind", ["long name", "loop of links", "closed folder", "damaged"])
def test_a_cache_that_cannot_be_looked_at_is_told_of(kind: str, case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if kind == "long name":
        cache = tmp_path / ("x" * 300)
    elif kind == "loop of links":
        cache.symlink_to(cache)
    elif kind == "closed folder":
        cache.mkdir(mode=0)
    options = ["--preset", "balanced", "--set", "sensitivity=off", "--optimize-for", "latency", "--no-bench"]
    run = {"env": {**os.environ, "XDG_CACHE_HOME": str(cache)}, "preexec_fn": without_privileges}
    if kind == "damaged":
        support.quantize(case[0], tmp_path / "p.onnx", case[1], *options, **run)
        (table,) = (cache / "detent").iterdir()
        table.write_text("{")
    result = support.quantize(case[0], tmp_path / "q.onnx", case[1], *options, **run)
    assert any("measured anew, and not kept" in note for note in result["notes"]), result["notes"]
    table = cache / "kernels.json" if kind != "damaged" else table
    named = support.detent(
        *["quantize", case[0], "-o", tmp_path / "r.onnx", "--calibration-data", case[1], *options],
        *["--set", f"kernel-table={table}"],
        **run,
    )
    assert named.returncode == (3 if kind == "damaged" else 2)
    assert str(table) in named.stderr
    assert not (tmp_path / "r.onnx").exists()


def test_a_table_that_another_holds_is_not_waited_for_without_end(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table = tmp_path / "kernels.json"
    arguments = ["quantize", case[0], "-o", tmp_path / "q.onnx", "--calibration-data", case[1], *BALANCED]
    with table.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = support.detent(*arguments, "--optimize-for", "latency", "--set", f"kernel-table={table}")
    assert result.returncode == 2
    assert f"'{table}': another process has held it for 10 seconds" in result.stderr
    assert sorted(tmp_path.iterdir()) == [table]


def test_nothing_is_made_beside_the_table(case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table, elsewhere = tmp_path / "t" / "kernels.json", tmp_path / "elsewhere"
    table.parent.mkdir()
    (table.parent / "kernels.json.lock").symlink_to(elsewhere)
    quantize(case[0], tmp_path / "q.onnx", case[1], table)
    assert not elsewhere.exists()
    assert sorted(path.name for path in table.parent.iterdir()) == ["kernels.json", "kernels.json.lock"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "FIFO", "folder"])
def test_what_is_no_file_does_not_become_a_table(kind: str, case: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table, elsewhere = tmp_path / "kernels.json", tmp_path / "elsewhere"
    if kind == "FIFO":
        os.mkfifo(table)
    elif kind == "folder":
        table.mkdir()
    else:
        table.symlink_to(elsewhere)
    if kind == "link":
        elsewhere.touch()
    arguments = ["quantize", case[0], "-o", tmp_path / "q.onnx", "--calibration-data", case[1], *BALANCED]
    result = support.detent(*arguments, "--optimize-for", "latency", "--set", f"kernel-table={table}")
    assert result.returncode in (2, 3)
    assert str(table) in result.stderr
    assert elsewhere.exists() == (kind == "link")
    assert not (kind == "link" and elsewhere.read_text())


def inverted_residuals(folder: Path) -> tuple[Path, Path]:
    """Depthwise convolutions with HardSwish, which the runtime fuses in float, and their samples."""
    random = np.random.default_rng(0)
    nodes, weights, value, channels = [], [], "x", 3
    for n, (to, size, group) in enumerate([(16, 3, 1), (48, 1, 1), (48, 3, 48), (24, 1, 1), (72, 1, 1), (72, 3, 72), (24, 1, 1)]):
        shape = (to, channels // group, size, size)
        weights.append(
            onnx.numpy_helper.from_array(
                (random.standard_normal(shape) / np.sqrt(shape[1] * size * size)).astype(np.float32), f"w{n}"
            )
        )
        nodes.append(onnx.helper.make_node("Conv", [value, f"w{n}"], [f"c{n}"], pads=[size // 2] * 4, group=group))
        nodes.append(onnx.helper.make_node("HardSwish", [f"c{n}"], [f"h{n}"]))
        value, channels = f"h{n}", to
    shapes = ["N", 3, 48, 48], ["N", 24, 48, 48]
    infos = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in zip(["x", value], shapes, strict=True)]
    model = folder / "inverted.onnx"
    onnx.save(
        onnx.helper.make_model(
            onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:], weights),
            opset_imports=[onnx.helper.make_opsetid("", 17)],
            ir_version=8,
        ),
        model,
    )
    samples = [{"x": random.standard_normal((1, 3, 48, 48)).astype(np.float32)} for _ in range(4)]
    return model, support.save_samples(folder / "data", samples)


def test_whole_models_decide_and_are_remembered(tmp_path: Path) -> None:
    model, data = inverted_residuals(tmp_path)
    table = tmp_path / "table.json"
    results = [quantize(model, tmp_path / f"{n}.onnx", data, table, "--bench") for n in range(2)]
    [choice] = json.loads(table.read_text())["models"].values()
    assert choice["time"] <= min(choice["float"], choice["integers"]) * 1.05  # size is worth a little
    assert results[0]["faster_in_float"] == results[1]["faster_in_float"]
    assert (tmp_path / "0.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()
    # Parts of HardSwish that stay in float are one operator again.
    types = [node.op_type for node in onnx.load(tmp_path / "0.onnx").graph.node]
    assert types.count("HardSigmoid") == 0


def test_a_table_that_is_given_complete_decides_alone(tmp_path: Path) -> None:
    model, data = inverted_residuals(tmp_path)
    table = tmp_path / "table.json"
    quantize(model, tmp_path / "0.onnx", data, table, "--bench")
    content = json.loads(table.read_text())
    del content["models"]
    for row in content["kernels"].values():
        row.update({"float": 1000.0, "integers": 1.0})
    table.write_text(json.dumps(content))
    assert not quantize(model, tmp_path / "1.onnx", data, table, "--bench")["faster_in_float"]
    assert "models" not in json.loads(table.read_text())


def test_dynamic_scales_are_taken_where_they_are_faster(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    weights = [
        onnx.numpy_helper.from_array((random.standard_normal((256, 256)) / 16).astype(np.float32), f"w{n}") for n in range(2)
    ]
    nodes = [onnx.helper.make_node("MatMul", ["x", "w0"], ["a"]), onnx.helper.make_node("Tanh", ["a"], ["b"])]
    nodes.append(onnx.helper.make_node("MatMul", ["b", "w1"], ["y"]))
    infos = [onnx.helper.make_tensor_value_info(name, 1, ["N", 64, 256]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    model, table = tmp_path / "model.onnx", tmp_path / "table.json"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), model)
    data = support.save_samples(
        tmp_path / "data", [{"x": random.standard_normal((1, 64, 256)).astype(np.float32)} for _ in range(8)]
    )

    def types(*options: object, **times: float) -> set[str]:
        """Of the result where whole models took these times."""
        if times:
            content = json.loads(table.read_text())
            [choice] = content["models"].values()
            choice.update({"time": 1000.0, "float": 2000.0, "integers": 1000.0, "in_float": [], "added": []} | times)
            table.write_text(json.dumps(content))
        given = ["--calibration-data", data, "--set", f"kernel-table={table}", "--bench", *options]
        support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--preset", "balanced", "--optimize-for", "latency", *given)
        return {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}

    types()
    assert "DynamicQuantizeLinear" in types(dynamic=500.0)
    assert "DynamicQuantizeLinear" not in types("--format", "int8")
    assert "DynamicQuantizeLinear" not in types(dynamic=1100.0)
    slow = types(dynamic=1100.0, float=10.0)
    assert not {"QuantizeLinear", "DynamicQuantizeLinear"} & slow
    assert "Cast" in slow  # weights of 8 bits all the same


def test_loops_end_as_the_sample_ends_them(tmp_path: Path) -> None:
    """With made-up ranges the state would never reach what ends the loop."""
    b, body = graphs.Builder(5), graphs.Builder(6)
    larger = body.add("Add", body.add("MatMul", "state", body.constant("same", np.eye(256))), body.constant("step", 100))
    goes_on = body.add("Less", body.add("ReduceMax", larger, keepdims=0), body.constant("most", 1000))
    info = onnx.helper.make_tensor_value_info
    inputs = [info("i", graphs.INT64, []), info("before", onnx.TensorProto.BOOL, []), info("state", graphs.FLOAT, [64, 256])]
    outputs = [info(goes_on, onnx.TensorProto.BOOL, []), info(larger, graphs.FLOAT, [64, 256])]
    graph = onnx.helper.make_graph(body.nodes, "body", inputs, outputs, body.initializers)
    start = b.add("MatMul", "x", b.weight("w", 256, 256))
    times, yes = b.constant("times", 5000, np.int64), b.constant("yes", True, np.bool_)
    end = b.add("Loop", times, yes, start, body=graph, name="loop")
    model, table = tmp_path / "m.onnx", tmp_path / "kernels.json"
    onnx.save(b.model({"x": (graphs.FLOAT, [64, 256])}, [b.add("MatMul", end, b.weight("v", 256, 256))]), model)
    rng = np.random.default_rng(0)
    data = support.save_samples(tmp_path / "data", [{"x": rng.normal(size=(64, 256)).astype(np.float32)} for _ in range(2)])
    quantize(model, tmp_path / "q.onnx", data, table, "--bench")
    (choice,) = json.loads(table.read_text())["models"].values()
    assert choice["integers"] < 50 * choice["float"]  # 5000 steps in place of 10 take 500 times as long
