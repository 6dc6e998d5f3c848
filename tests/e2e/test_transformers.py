"""The layers of transformers are recognised: fused and written out, in float and quantized."""

import json

import decoders
import numpy as np
import onnx
import pytest
import support
from onnx import TensorProto, helper, numpy_helper
from support import Path

RNG = np.random.default_rng(0)
HIDDEN, HEADS, INNER, WORDS = 64, 4, 128, 256


def told(model: Path) -> dict | None:
    result = support.detent("inspect", model, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout).get("transformer")


@pytest.mark.parametrize("way", ["float", "blocks", "blocks-qdq", "dynamic", "static", "float16"])
def test_decoder_of_genai(tmp_path: Path, way: str) -> None:
    model, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(decoders.decoder(), model)
    np.save(tmp_path / "ids.npy", RNG.integers(0, decoders.VOCABULARY, (8, 16)))
    ways = {
        "blocks": ["--weights-only"],
        "blocks-qdq": ["--weights-only", "--weights-form", "qdq"],
        "dynamic": ["--activations", "dynamic"],
        "static": ["--preset", "plain", "--calibration-data", tmp_path / "ids.npy", "--batch-size", 1],
        "float16": ["--float", 16, "--preset", "none"],
    }
    if way != "float":
        result = support.detent("quantize", model, "-o", output, "--json", *ways[way])
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["transformer"] == told(model)
    found = told(model if way == "float" else output)
    shape = decoders.SHAPE
    assert (found["hidden"], len(found["layers"]), found["tied"]) == (shape.hidden, shape.layers, False)
    for i, layer in enumerate(found["layers"]):
        at = f"/model/layers.{i}"
        assert (layer["kind"], layer["heads"], layer["kv_heads"]) == ("GroupQueryAttention", shape.heads, shape.kv_heads)
        assert (layer["head_size"], layer["mlp"], layer["inner"]) == (shape.head, "gated", shape.inner)
        assert layer["inputs"] == [f"{at}/attn/{part}_proj/MatMul" for part in "qkv"]
        assert layer["output"] == f"{at}/attn/o_proj/MatMul"
        assert sorted(layer["mlp_nodes"]) == [f"{at}/mlp/{part}_proj/MatMul" for part in ("down", "gate", "up")]
        if way == "float":
            assert layer["attention_bytes"] == 4 * shape.hidden * (2 * shape.hidden + 2 * shape.kv_heads * shape.head)
            assert layer["mlp_bytes"] == 4 * 3 * shape.hidden * shape.inner
        elif way == "blocks":
            assert layer["mlp_bytes"] < 0.2 * 4 * 3 * shape.hidden * shape.inner
    assert (found["embedding"]["entries"], found["embedding"]["width"]) == (shape.vocabulary, shape.hidden)
    assert (found["head"]["node"], found["head"]["entries"]) == ("/lm_head/MatMul", shape.vocabulary)


class Graph:
    """A decoder layer as exporters of other frameworks write it."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        self.tensors.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, (0.1 * RNG.standard_normal(shape)).astype(np.float32))

    def add(self, kind: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        product = self.add("MatMul", [x, self.weight(f"{name}.weight", rows, columns)], name)
        return self.add("Add", [product, self.weight(f"{name}.bias", columns)], f"{name}.sum")

    def heads(self, x: str, name: str, order: list[int]) -> str:
        shape = self.constant(f"{name}.shape", np.array([0, -1, HEADS, HIDDEN // HEADS]))
        return self.add(
            "Transpose",
            [
                self.add("Reshape", [x, shape], f"{name}.split"),
            ],
            f"{name}.heads",
            perm=order,
        )

    def norm(self, x: str, name: str) -> str:
        gain, bias = self.weight(f"{name}.gain", HIDDEN), self.weight(f"{name}.bias", HIDDEN)
        return self.add("LayerNormalization", [x, gain, bias], name, axis=-1)

    def attention(self, x: str, fused: bool) -> str:
        if fused:
            both = self.linear(x, "qkv", HIDDEN, 3 * HIDDEN)
            parts = [f"part_{p}" for p in "qkv"]
            split = self.constant("thirds", np.array([HIDDEN] * 3))
            self.nodes.append(helper.make_node("Split", [both, split], parts, "split", axis=-1))
        else:
            parts = [self.linear(x, p, HIDDEN, HIDDEN) for p in "qkv"]
        q, v = (self.heads(parts[i], f"{'qkv'[i]}h", [0, 2, 1, 3]) for i in (0, 2))
        k = self.heads(parts[1], "kh", [0, 2, 3, 1])
        scale = self.constant("scale", np.array(0.25, np.float32))
        scores = self.add("Mul", [self.add("MatMul", [q, k], "scores"), scale], "scaled")
        mixed = self.add("MatMul", [self.add("Softmax", [scores], "softmax", axis=-1), v], "mixed")
        flat = self.constant("flat", np.array([0, -1, HIDDEN]))
        back = self.add("Transpose", [mixed], "back", perm=[0, 2, 1, 3])
        return self.linear(self.add("Reshape", [back, flat], "joined"), "o", HIDDEN, HIDDEN)

    def mlp(self, x: str, kind: str) -> str:
        if kind == "plain":
            hidden = self.add("Relu", [self.linear(x, "up", HIDDEN, INNER)], "act")
        else:
            both = self.linear(x, "gate_up", HIDDEN, 2 * INNER)
            halves = self.constant("halves", np.array([INNER] * 2))
            self.nodes.append(helper.make_node("Split", [both, halves], ["gate", "upper"], "halve", axis=-1))
            silu = self.add("Mul", ["gate", self.add("Sigmoid", ["gate"], "sigmoid")], "silu")
            hidden = self.add("Mul", [silu, "upper"], "act")
        return self.linear(hidden, "down", INNER, HIDDEN)

    def model(self, fused: bool, mlp: str, tied: bool) -> onnx.ModelProto:
        table = self.weight("table", WORDS, HIDDEN)
        x = self.add("Gather", [table, "ids"], "embedded")
        x = self.add("Add", [x, self.attention(self.norm(x, "n1"), fused)], "r1")
        x = self.add("Add", [x, self.mlp(self.norm(x, "n2"), mlp)], "r2")
        last = self.add("Transpose", [table], "turned", perm=[1, 0]) if tied else self.weight("last", HIDDEN, WORDS)
        self.add("MatMul", [self.norm(x, "n3"), last], "logits")
        ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "tokens", WORDS])
        graph = helper.make_graph(self.nodes, "g", [ids], [logits], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("fused", "mlp", "tied"), [(False, "plain", False), (True, "gated, fused", True)])
def test_written_out(tmp_path: Path, fused: bool, mlp: str, tied: bool) -> None:
    onnx.save(Graph().model(fused, mlp, tied), tmp_path / "m.onnx")
    found = told(tmp_path / "m.onnx")
    (layer,) = found["layers"]
    assert (layer["attention"], layer["kind"], layer["output"]) == ("softmax", "Softmax", "o")
    assert layer["inputs"] == (["qkv"] if fused else ["q", "k", "v"])
    assert (layer["heads"], layer["kv_heads"], layer["head_size"]) == (HEADS, HEADS, HIDDEN // HEADS)
    assert (layer["mlp"], layer["inner"]) == (mlp, INNER)
    assert layer["mlp_nodes"] == (["up", "down"] if mlp == "plain" else ["gate_up", "down"])
    assert (found["hidden"], found["tied"]) == (HIDDEN, tied)
    assert (found["embedding"]["entries"], found["head"]["node"]) == (WORDS, "logits")
    written = support.detent("inspect", tmp_path / "m.onnx").stdout
    assert f"attention written out of {HEADS} heads of {HIDDEN // HEADS}; " in written
    assert ("also the last layer's weight" in written) == tied
    planned = support.detent("plan", tmp_path / "m.onnx", "--json")
    assert json.loads(planned.stdout)["transformer"] == found
    support.weights_only(tmp_path / "m.onnx", tmp_path / "q.onnx", "--set", "weight-symmetric")
    blocks = told(tmp_path / "q.onnx")
    assert blocks["tied"] == tied
    assert [layer["inputs"] for layer in blocks["layers"]] == [layer["inputs"]]


@pytest.mark.parametrize("packed", [True, False], ids=["QMoE", "MoE"])
def test_experts(tmp_path: Path, packed: bool) -> None:
    g = Graph()
    experts, domain = 4, "com.microsoft"
    x = g.add("Gather", [g.weight("table", WORDS, HIDDEN), "ids"], "embedded")
    attended = g.add("Add", [x, g.attention(g.norm(x, "n1"), False)], "r1")
    x = g.norm(attended, "n2")
    router = g.linear(x, "router", HIDDEN, experts)
    if packed:
        sizes = {"w1": (experts, INNER, HIDDEN // 2), "w2": (experts, HIDDEN, INNER // 2)}
        weights = {n: g.constant(n, RNG.integers(0, 255, s).astype(np.uint8)) for n, s in sizes.items()}
        scales = {"w1": g.weight("s1", experts, INNER), "w2": g.weight("s2", experts, HIDDEN)}
        inputs = [x, router, weights["w1"], scales["w1"], "", weights["w2"], scales["w2"]]
        attributes = {"expert_weight_bits": 4}
    else:
        inputs = [x, router, g.weight("w1", experts, INNER, HIDDEN), "", g.weight("w2", experts, HIDDEN, INNER)]
        attributes = {}
    flat = g.constant("rows", np.array([-1, HIDDEN]))
    inputs[0] = g.add("Reshape", [x, flat], "x2")
    inputs[1] = g.add("Reshape", [router, g.constant("scores_of", np.array([-1, experts]))], "router2")
    attributes |= {"k": 2, "activation_type": "relu"}
    g.nodes.append(helper.make_node("QMoE" if packed else "MoE", inputs, ["mixture"], "experts", domain=domain, **attributes))
    g.add("MatMul", ["mixture", g.weight("last", HIDDEN, WORDS)], "logits")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", WORDS])
    graph = helper.make_graph(g.nodes, "g", [ids], [logits], g.tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    (layer,) = told(tmp_path / "m.onnx")["layers"]
    assert (layer["mlp"], layer["experts"], layer["inner"], layer["mlp_nodes"]) == ("experts", experts, INNER, ["experts"])
    assert layer["mlp_bytes"] >= experts * 2 * HIDDEN * INNER // (2 if packed else 1)


def test_other_models_have_none(tmp_path: Path) -> None:
    assert told(support.MODELS / "ppocr_cls.onnx") is None
