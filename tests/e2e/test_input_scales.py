"""AWQ on weights in blocks: inputs are divided in what makes them, weights multiplied, and results stay what they are."""

import os
import signal

import decoders
import numpy as np
import onnx
import pytest
import support
from failures import USAGE, Place
from onnx import TensorProto, helper, numpy_helper
from support import Path
from test_weights_only import initializers

RNG = np.random.default_rng(17)
WIDTH = 64
# Some inputs are much larger than the others, as in language models.
LARGE = np.where(np.arange(WIDTH) % 13 == 5, 12.0, np.exp(0.5 * RNG.standard_normal(WIDTH)))


class Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, np.ndarray] = {}

    def constant(self, name: str, value: object) -> str:
        self.tensors[name] = np.asarray(value, np.float32)
        return name

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], output, **attributes))
        return output

    def weight(self, name: str, columns: int = WIDTH) -> str:
        return self.constant(name, RNG.standard_normal((WIDTH, columns)) / 8)

    def save(self, path: Path, *outputs: str) -> Path:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t", WIDTH])
        ends = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        tensors = [numpy_helper.from_array(v, k) for k, v in self.tensors.items()]
        graph = helper.make_graph(self.nodes, "g", [x], ends, tensors)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def by_norm(g: Graph) -> str:
    g.constant("gain", LARGE), g.constant("shift", RNG.standard_normal(WIDTH))
    return g.add("LayerNormalization", ["x", "gain", "shift"], "v")


def by_constants(g: Graph) -> str:
    """A gain and a shift of their own, as exporters write them."""
    g.add("Mul", ["x", g.constant("gain", LARGE)], "scaled")
    return g.add("Add", [g.constant("shift", RNG.standard_normal((1, WIDTH))), "scaled"], "v")


def by_product(g: Graph) -> str:
    g.add("MatMul", ["x", g.constant("before", RNG.standard_normal((WIDTH, WIDTH)) * LARGE)], "made")
    g.add("Add", ["made", g.constant("bias", RNG.standard_normal(WIDTH))], "sum")
    return g.add("Relu", ["sum"], "v")


def by_gate(g: Graph) -> str:
    g.add("MatMul", ["x", g.weight("gate")], "gated")
    g.add("Sigmoid", ["gated"], "share")
    g.add("MatMul", ["x", g.constant("up", RNG.standard_normal((WIDTH, WIDTH)) * LARGE)], "risen")
    return g.add("Mul", ["share", "risen"], "v")


def samples(count: int = 16) -> list[dict[str, np.ndarray]]:
    return [{"x": RNG.standard_normal((1, 24, WIDTH)).astype(np.float32)} for _ in range(count)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("method", ["awq", "auto"])
@pytest.mark.parametrize("form", ["matmul-nbits", "qdq"])
@pytest.mark.parametrize("make", [by_norm, by_constants, by_product, by_gate])
def test_what_makes_the_inputs_is_divided(tmp_path: Path, make: object, form: str, method: str) -> None:
    g = Graph()
    value = make(g)
    g.add("MatMul", [value, g.weight("first")], "y")
    g.add("MatMul", [value, g.weight("second", 48)], "z")
    model = g.save(tmp_path / "m.onnx", "y", "z")
    data, unseen = support.save_samples(tmp_path / "data", samples()), samples(8)
    in_float = support.outputs(support.load(model), unseen)
    found = {}
    for name in ("search", method):
        options = [
            "--set",
            f"weights-method={name}",
            "--weights-form",
            form,
            "--set",
            "accuracy-level=1",
            "--calibration-data",
            data,
        ]
        # Whole outputs share a scale: blocks of few weights hide what the factors are good for.
        result = support.weights_only(model, tmp_path / f"{name}.onnx", "--block-size", 64, *options)
        session = support.load(tmp_path / f"{name}.onnx")
        found[name] = [support.sqnr(in_float, support.outputs(session, unseen), i) for i in range(2)]
    weights = {w["name"]: w for w in result["weights"]}
    assert 0 < weights["first"]["input_exponent"] == weights["second"]["input_exponent"] <= 1
    assert all(better > worse for better, worse in zip(found[method], found["search"], strict=True))
    if method == "awq":
        assert weights["first"]["method"] == "awq"
    assert support.sha256(tmp_path / "search.onnx") != support.sha256(tmp_path / f"{method}.onnx")


def test_decoder(tmp_path: Path) -> None:
    """Normalizations with a second input, and the gate of an MLP."""
    model = decoders.decoder()
    for tensor in model.graph.initializer:
        if "norm" in tensor.name:
            tensor.CopyFrom(numpy_helper.from_array(LARGE.astype(np.float32) / 4, tensor.name))
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "ids.npy", RNG.integers(0, decoders.VOCABULARY, (12, 32)))
    ids = RNG.integers(0, decoders.VOCABULARY, (1, 64))
    sample = {"input_ids": ids, "attention_mask": np.ones_like(ids), **decoders.empty_cache()}
    in_float = support.outputs(support.load(tmp_path / "m.onnx"), [sample])
    db = {}
    for method in ("search", "awq"):
        options = [
            "--op-types",
            "MatMul",
            "--block-size",
            64,
            "--set",
            "accuracy-level=1",
            "--calibration-data",
            tmp_path / "ids.npy",
        ]
        result = support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", "--set", f"weights-method={method}", *options)
        db[method] = support.sqnr(in_float, support.outputs(support.load(tmp_path / "q.onnx"), [sample]))
    scaled = {w["node"].split("/")[-2] for w in result["weights"] if "input_exponent" in w}
    assert {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"} <= scaled
    assert "o_proj" not in scaled
    assert db["awq"] > db["search"] + 0.5


def test_planned_size_holds(tmp_path: Path) -> None:
    """Bits by size, and inputs scaled: what is divided keeps its size."""
    g = Graph()
    value = by_norm(g)
    g.add("MatMul", [value, g.weight("first")], "y")
    g.add("MatMul", ["y", g.weight("second")], "z")
    model = g.save(tmp_path / "m.onnx", "z")
    data = support.save_samples(tmp_path / "data", samples())
    result = support.weights_only(model, tmp_path / "q.onnx", "--max-size", 8000, "--calibration-data", data)
    assert any("input_exponent" in w for w in result["weights"])
    assert (tmp_path / "q.onnx").stat().st_size == result["bits_plan"]["size"] <= 8000


def shared_by_a_sum(g: Graph) -> list[str]:
    value = by_norm(g)
    g.add("MatMul", [value, g.weight("first")], "product")
    return [g.add("Add", ["product", value], "y")]


def an_output(g: Graph) -> list[str]:
    value = by_norm(g)
    return [g.add("MatMul", [value, g.weight("first")], "y"), value]


def one_weight_of_two_values(g: Graph) -> list[str]:
    value = by_norm(g)
    weight = g.weight("first")
    return [g.add("MatMul", [value, weight], "y"), g.add("MatMul", ["x", weight], "z")]


def one_gain_of_two_norms(g: Graph) -> list[str]:
    value = by_norm(g)
    g.add("MatMul", [value, g.weight("first")], "a")
    g.add("LayerNormalization", ["a", "gain", "shift"], "b")
    return [g.add("Add", ["a", "b"], "y")]


def a_float_product(g: Graph) -> list[str]:
    value = by_norm(g)
    g.add("MatMul", [value, g.constant("small", RNG.standard_normal((WIDTH, 2, 2)).reshape(1, WIDTH, 4))], "float")
    return [g.add("MatMul", [value, g.weight("first")], "y"), "float"]


@pytest.mark.parametrize("make", [shared_by_a_sum, an_output, one_weight_of_two_values, one_gain_of_two_norms, a_float_product])
def test_others_that_read_the_value_keep_it(tmp_path: Path, make: object) -> None:
    """Where not all that reads a value or a constant takes part nothing is scaled."""
    g = Graph()
    model = g.save(tmp_path / "m.onnx", *make(g))
    data = support.save_samples(tmp_path / "data", samples())
    result = support.weights_only(model, tmp_path / "q.onnx", "--set", "weights-method=awq", "--calibration-data", data)
    assert "input_exponent" not in result["weights"][0]
    if "gain" in initializers(tmp_path / "q.onnx"):
        np.testing.assert_array_equal(initializers(tmp_path / "q.onnx")["gain"], initializers(model)["gain"])


def test_same_bytes(tmp_path: Path) -> None:
    g = Graph()
    value = by_gate(g)
    g.add("MatMul", [value, g.weight("first", 256)], "y")
    model = g.save(tmp_path / "m.onnx", "y")
    given = samples()
    data = support.save_samples(tmp_path / "data", given)
    support.weights_only(model, tmp_path / "q.onnx", "--calibration-data", data)

    def same(name: str, *options: object, samples: Path = data) -> None:
        support.weights_only(model, tmp_path / name, "--calibration-data", samples, *options)
        assert support.sha256(tmp_path / name) == support.sha256(tmp_path / "q.onnx"), name

    same("one thread.onnx", "--threads", 1)
    same("shuffled.onnx", samples=support.save_samples(tmp_path / "shuffled", given[::-1]))
    same("on disk.onnx", "--memory-budget", "156MiB", "--set", "memory-level=2")
    for point in ("weights.factors=kill@1", "weights.solved=kill@1", "weights.solved=kill@3"):
        (tmp_path / point).mkdir()
        found = support.resumed_after_kill(point, model, data, tmp_path / point, "--weights-only")
        assert support.sha256(found) == support.sha256(tmp_path / "q.onnx"), point


@pytest.mark.parametrize("point", ["weights.factors=kill@1", "weights.solved=kill@3"])
def test_factors_that_are_damaged_are_chosen_again(point: str, tmp_path: Path) -> None:
    """And with them what was solved with them."""
    g = Graph()
    value = by_gate(g)
    g.add("MatMul", [value, g.weight("first", 256)], "y")
    model = g.save(tmp_path / "m.onnx", "y")
    data = support.save_samples(tmp_path / "data", samples())
    support.weights_only(model, tmp_path / "q.onnx", "--calibration-data", data)
    (work := tmp_path / "work").mkdir()
    command = ["quantize", model, "-o", tmp_path / "again.onnx", "--weights-only", "--calibration-data", data]
    command += ["--work-dir", work, "--resume"]
    for damage in (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"), lambda file: file.unlink()):
        killed = support.detent(*command, env={**os.environ, "DETENT_FAILPOINT": point})
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        for file in (factors := list(work.rglob("factors-*.bin"))):
            damage(file)
        assert factors
        done = support.detent(*command)
        assert done.returncode == 0, done.stderr
        assert support.sha256(tmp_path / "again.onnx") == support.sha256(tmp_path / "q.onnx")


def test_refused_without_samples(tmp_path: Path) -> None:
    place = Place(tmp_path)
    g = Graph()
    g.add("MatMul", ["x", g.weight("first")], "y")
    model = g.save(place.inputs / "m.onnx", "y")
    options = ["--weights-only", "--set", "weights-method=awq"]
    place.refuses(USAGE, "awq needs samples", "quantize", model, "-o", place.output, *options)
