"""2, 4 or 8 bits or float for each weight under --max-size: sizes are exact, and bits go where they matter."""

import math

import decoders
import numpy as np
import onnx
import pytest
import support
from failures import USAGE, Place
from onnx import TensorProto, helper, numpy_helper
from support import Path
from test_weights_only import correlated, products, twice_a_product

RNG = np.random.default_rng(11)


def bytes_of(path: Path) -> int:
    """Of a model and its data file."""
    return path.stat().st_size + sum(p.stat().st_size for p in path.parent.glob(f"{path.name}.*.data"))


def bits_of(result: dict) -> dict[str, int]:
    return {w["node"]: w["bits"] for w in result["bits_plan"]["weights"]}


@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
@pytest.mark.parametrize("beside", [[], ["--set", "external-data-threshold=256"]], ids=["inline", "beside"])
def test_size_is_what_was_planned(tmp_path: Path, form: str, beside: list[str]) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(decoders.decoder(), model)
    options = ["--weights-form", form, *beside]
    sizes = {}
    for bits in (4, 8):
        support.weights_only(model, tmp_path / f"{bits}.onnx", "--bits", bits, *options)
        sizes[bits] = bytes_of(tmp_path / f"{bits}.onnx")
    errors = []
    for share in (0, 0.2, 0.5, 0.9):
        most = math.ceil(sizes[4] + share * (sizes[8] - sizes[4]))
        output = tmp_path / f"{share}.onnx"
        result = support.weights_only(model, output, "--max-size", most, *options)
        plan = result["bits_plan"]
        assert bytes_of(output) == plan["size"] == result["model_bytes_after"] <= plan["max_size"] == most
        written = {w["node"]: w["bits"] for w in result["weights"]}
        assert {node: bits for node, bits in bits_of(result).items() if bits} == written
        for layer in range(decoders.SHAPE.layers):
            for part in (("attn", "qkv"), ("mlp", ("gate", "up"))):
                names = [f"/model/layers.{layer}/{part[0]}/{p}_proj/MatMul" for p in part[1]]
                assert len({bits_of(result)[name] for name in names}) == 1, names
        errors.append(plan["error"])
        # The errors that are told are those of what was written: all columns are few enough to be asked.
        told = sum(10 ** (-w["sqnr_db"] / 10) for w in result["weights"])
        assert told == pytest.approx(plan["error"], rel=1e-3)
    assert errors == sorted(errors, reverse=True)
    support.load(tmp_path / "0.5.onnx")


def unequal(path: Path) -> Path:
    """Two branches of one size, of which one counts a hundred times as much in the output."""
    tensors = {"much": RNG.standard_normal((128, 64)), "little": RNG.standard_normal((128, 64)), "share": np.array(0.01)}
    nodes = [
        helper.make_node("MatMul", ["x", "little"], ["a"], "little"),
        helper.make_node("Relu", ["x"], ["positive"], "relu"),
        helper.make_node("MatMul", ["positive", "much"], ["b"], "much"),
        helper.make_node("Mul", ["a", "share"], ["c"], "scale"),
        helper.make_node("Add", ["b", "c"], ["y"], "sum"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t", 128])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "t", 64])
    initializers = [numpy_helper.from_array(np.float32(v), k) for k, v in tensors.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_bits_go_where_they_matter(tmp_path: Path) -> None:
    model = unequal(tmp_path / "m.onnx")
    data, samples = correlated(tmp_path / "data")
    support.weights_only(model, tmp_path / "four.onnx", "--set", "accuracy-level=1")
    most = bytes_of(tmp_path / "four.onnx") + 3000  # a branch takes 4 KiB at 4 bits
    options = ["--max-size", most, "--set", "accuracy-level=1"]
    result = support.weights_only(model, tmp_path / "q.onnx", "--calibration-data", data, *options)
    assert bits_of(result) == {"little": 2, "much": 8}
    in_float = support.outputs(support.load(model), samples)
    four = support.sqnr(in_float, support.outputs(support.load(tmp_path / "four.onnx"), samples))
    mixed = support.sqnr(in_float, support.outputs(support.load(tmp_path / "q.onnx"), samples))
    assert mixed > four + 10
    # What is expected is about what comes.
    assert abs(-10 * math.log10(result["bits_plan"]["error"]) - mixed) < 4
    # By the values of the weights alone neither counts more.
    alone = support.weights_only(model, tmp_path / "alone.onnx", *options)
    assert set(bits_of(alone).values()) <= {2, 4, 8}
    assert alone["bits_plan"]["error"] > result["bits_plan"]["error"]


@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
def test_size_of_a_tied_weight(tmp_path: Path, form: str) -> None:
    """A table that is the last product's weight as well, beside another product."""
    tensors = {"table": RNG.standard_normal((96, 64)), "w": RNG.standard_normal((64, 64))}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "table"),
        helper.make_node("MatMul", ["x", "w"], ["h"], "hidden"),
        helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["h", "turned"], ["y"], "head"),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 96])
    initializers = [numpy_helper.from_array(np.float32(v), k) for k, v in tensors.items()]
    graph = helper.make_graph(nodes, "g", [ids], [y], initializers)
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)
    support.weights_only(model, tmp_path / "4.onnx", "--weights-form", form, "--bits", 4)
    for more in (0, 1500, 3000, 6000):
        most = bytes_of(tmp_path / "4.onnx") + more
        result = support.weights_only(model, tmp_path / "q.onnx", "--max-size", most, "--weights-form", form)
        assert bytes_of(tmp_path / "q.onnx") == result["bits_plan"]["size"] <= most
        support.load(tmp_path / "q.onnx").run(None, {"ids": np.arange(9)})


def test_named_nodes_keep_their_bits(tmp_path: Path) -> None:
    model = products(tmp_path / "m.onnx", 128, 64)
    support.weights_only(model, tmp_path / "eight.onnx", "--bits", 8)
    most = bytes_of(tmp_path / "eight.onnx")
    named = ["--set", "node-bits=transposed=8,straight=float,gather=8"]
    result = support.weights_only(model, tmp_path / "q.onnx", "--max-size", most + 30000, *named)
    assert {w["name"]: w["bits"] for w in result["weights"]}.items() >= {"table": 8, "t": 8}.items()
    assert "g" not in {w["name"] for w in result["bits_plan"]["weights"]}
    assert any("'straight'" in note and "--set node-bits" in note for note in result["notes"])


def test_weights_that_the_size_has_room_for_stay_float(tmp_path: Path) -> None:
    model = twice_a_product(tmp_path / "m.onnx")
    result = support.weights_only(model, tmp_path / "q.onnx", "--max-size", int(0.7 * model.stat().st_size))
    assert sorted(bits_of(result).values())[0] == 0
    assert any("--max-size has room for it" in note for note in result["notes"])
    assert result["nodes_in_float"] == 1
    support.load(tmp_path / "q.onnx")


def test_same_bytes(tmp_path: Path) -> None:
    """Whatever the threads, the order of samples, the budget, and an interruption."""
    model = twice_a_product(tmp_path / "m.onnx")
    data, samples = correlated(tmp_path / "data")
    options = ["--max-size", 25000]
    support.weights_only(model, tmp_path / "q.onnx", "--calibration-data", data, *options)

    def same(name: str, *more: object, samples: Path = data) -> None:
        support.weights_only(model, tmp_path / name, "--calibration-data", samples, *options, *more)
        assert support.sha256(tmp_path / name) == support.sha256(tmp_path / "q.onnx"), name

    same("one thread.onnx", "--threads", 1)
    same("shuffled.onnx", samples=support.save_samples(tmp_path / "shuffled", samples[::-1]))
    same("on disk.onnx", "--memory-budget", "156MiB", "--set", "memory-level=2")
    for point in ("weights.sample=kill@5", "weights.solved=kill@1"):
        (tmp_path / point).mkdir()
        found = support.resumed_after_kill(point, model, data, tmp_path / point, "--weights-only", *options)
        assert support.sha256(found) == support.sha256(tmp_path / "q.onnx"), point


def test_words(tmp_path: Path) -> None:
    model = twice_a_product(tmp_path / "m.onnx")
    options = ["--weights-only", "--max-size", 25000, "--no-bench"]
    done = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *options)
    assert done.returncode == 0 and "planned: " in done.stdout and " bits: " in done.stdout


REFUSED = {
    "small": (["--max-size", "1KiB"], "with the fewest bits the model takes"),
    "large": (["--max-size", "1MiB"], "in float the model takes"),
    "sparse": (["--max-size", "1MiB", "--set", "sparsity=2:4", "--calibration-data", "data"], "do not go together"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    options, says = REFUSED[case]
    place = Place(tmp_path)
    model = products(place.inputs / "m.onnx")
    place.refuses(USAGE, says, "quantize", model, "-o", place.output, "--weights-only", *options)


def test_sizes_beside_each_other_are_used(tmp_path: Path) -> None:
    """What names and alignment take depends on the choice: a choice that is too large by a little is no reason for the smallest."""
    model = tmp_path / "model.onnx"
    onnx.save(decoders.decoder(), model)
    options = ["--set", "external-data-threshold=256"]
    support.weights_only(model, tmp_path / "4.onnx", *options)
    size = bytes_of(tmp_path / "4.onnx")
    for more in range(3000, 3600, 60):
        support.weights_only(model, tmp_path / f"{more}.onnx", "--max-size", size + more, *options)
        assert size < bytes_of(tmp_path / f"{more}.onnx") <= size + more
