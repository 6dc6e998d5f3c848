#!/usr/bin/env python3
"""build_minilm.py DIR OUT.onnx: the ONNX graph of the sentence encoder all-MiniLM-L6-v2 from DIR/config.json and
DIR/model.safetensors. Opset 17, any batch and sequence length; the attention mask is added as -3.4e38 where a token is
padding. Output: last_hidden_state."""

import json
import pathlib
import struct
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    types = {"F32": np.float32, "I64": np.int64}
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data[start + begin : start + end], types[entry["dtype"]]).reshape(entry["shape"])
            tensors[name.removeprefix("bert.")] = array
    return tensors


class Graph:
    """Nodes and initializers as they come; every method returns the name of what it made."""

    def __init__(self, weights):
        self.weights, self.nodes, self.initializers = weights, [], {}

    def add(self, op, *inputs, name, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name, value, dtype=np.float32):
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value, dtype), name)
        return name

    def weight(self, name):
        return self.constant(name, self.weights[name])

    def linear(self, x, prefix):
        weight = self.constant(f"{prefix}.weight", self.weights[f"{prefix}.weight"].T)
        product = self.add("MatMul", x, weight, name=f"{prefix}/MatMul")
        return self.add("Add", product, self.weight(f"{prefix}.bias"), name=f"{prefix}/Add")

    def norm(self, x, prefix, epsilon):
        return self.add(
            "LayerNormalization",
            x,
            self.weight(f"{prefix}.weight"),
            self.weight(f"{prefix}.bias"),
            name=f"{prefix}/LayerNormalization",
            axis=-1,
            epsilon=epsilon,
        )

    def gelu(self, x, scope):
        erf = self.add("Erf", self.add("Div", x, "sqrt_two", name=f"{scope}/Div"), name=f"{scope}/Erf")
        twice = self.add("Mul", x, self.add("Add", erf, "one", name=f"{scope}/Add"), name=f"{scope}/Mul")
        return self.add("Mul", twice, "half", name=f"{scope}/Mul_1")

    def attention(self, x, scope, mask):
        def heads(part, order):
            split = self.add("Reshape", self.linear(x, f"{scope}.self.{part}"), "to_heads", name=f"{scope}/{part}/Reshape")
            return self.add("Transpose", split, name=f"{scope}/{part}/Transpose", perm=order)

        query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
        scores = self.add("MatMul", query, key, name=f"{scope}/scores/MatMul")
        scores = self.add("Div", scores, "sqrt_head_size", name=f"{scope}/scores/Div")
        scores = self.add("Add", scores, mask, name=f"{scope}/scores/Add")
        shares = self.add("Softmax", scores, name=f"{scope}/Softmax", axis=-1)
        context = self.add("MatMul", shares, value, name=f"{scope}/context/MatMul")
        context = self.add("Transpose", context, name=f"{scope}/context/Transpose", perm=[0, 2, 1, 3])
        context = self.add("Reshape", context, "from_heads", name=f"{scope}/context/Reshape")
        return self.linear(context, f"{scope}.output.dense")


def encoder(graph, config):
    heads, hidden, epsilon = config["num_attention_heads"], config["hidden_size"], config["layer_norm_eps"]
    graph.constant("one", 1)
    graph.constant("half", 0.5)
    graph.constant("sqrt_two", np.sqrt(2))
    graph.constant("sqrt_head_size", np.sqrt(hidden // heads))
    graph.constant("to_heads", [0, 0, heads, hidden // heads], np.int64)
    graph.constant("from_heads", [0, 0, hidden], np.int64)

    positions = graph.constant("position_ids", np.arange(config["max_position_embeddings"])[None], np.int64)
    length = graph.add("Shape", "input_ids", name="embeddings/length", start=1, end=2)
    positions = graph.add(
        "Slice",
        positions,
        graph.constant("zero", [0], np.int64),
        length,
        graph.constant("axis_one", [1], np.int64),
        name="embeddings/positions",
    )
    x = None
    for table, index in (("word", "input_ids"), ("token_type", "token_type_ids"), ("position", positions)):
        rows = graph.add("Gather", graph.weight(f"embeddings.{table}_embeddings.weight"), index, name=f"embeddings/{table}/Gather")
        x = rows if x is None else graph.add("Add", x, rows, name=f"embeddings/{table}/Add")
    x = graph.norm(x, "embeddings.LayerNorm", epsilon)

    mask = graph.add("Cast", "attention_mask", name="mask/Cast", to=TensorProto.FLOAT)
    mask = graph.add("Unsqueeze", mask, graph.constant("mask_axes", [1, 2], np.int64), name="mask/Unsqueeze")
    mask = graph.add("Sub", "one", mask, name="mask/Sub")
    mask = graph.add("Mul", mask, graph.constant("lowest", np.finfo(np.float32).min), name="mask/Mul")

    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        attended = graph.attention(x, f"{layer}.attention", mask)
        x = graph.add("Add", attended, x, name=f"{layer}/attention/Add")
        x = graph.norm(x, f"{layer}.attention.output.LayerNorm", epsilon)
        inner = graph.gelu(graph.linear(x, f"{layer}.intermediate.dense"), f"{layer}/gelu")
        x = graph.add("Add", graph.linear(inner, f"{layer}.output.dense"), x, name=f"{layer}/output/Add")
        x = graph.norm(x, f"{layer}.output.LayerNorm", epsilon)
    return graph.add("Identity", x, name="last_hidden_state")


def build(folder, target):
    config = json.loads((folder / "config.json").read_text())
    graph = Graph(read_safetensors(folder / "model.safetensors"))
    output = encoder(graph, config)
    shape = ["batch", "sequence"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, [*shape, config["hidden_size"]])]
    body = helper.make_graph(graph.nodes, "all-MiniLM-L6-v2", inputs, outputs, list(graph.initializers.values()))
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    partial = target.with_name(target.name + ".part")
    onnx.save(model, partial)
    partial.replace(target)


if __name__ == "__main__":
    build(*(pathlib.Path(argument) for argument in sys.argv[1:]))
