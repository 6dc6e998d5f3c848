#!/usr/bin/env python3
"""build_decoder.py OUT [--weights DIR]: the ONNX model of the trained decoder in tests/models/decoder, in the folder layout of
onnxruntime-genai: model.onnx, model.onnx.data, genai_config.json and the tokenizer's files.

The graph is what onnxruntime-genai's builder makes of a Llama for CPUs: GroupQueryAttention with its rotary positions, past and
present keys and values, (Skip)SimplifiedLayerNormalization. Weights are stored as float16 and become float32 here."""

import argparse
import dataclasses
import json
import pathlib
import re
import shutil
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRAINED = ROOT / "tests" / "models" / "decoder"
MICROSOFT = "com.microsoft"

# A weight by its name in Hugging Face's Llama and its shape: its values, or a tensor that says where they are. Products are
# [inputs, outputs].
Weight = Callable[..., np.ndarray | onnx.TensorProto]


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    context: int
    theta: float = 1e4
    epsilon: float = 1e-5

    @property
    def head(self) -> int:
        return self.hidden // self.heads


def node_path(name: str) -> str:
    """model.layers.0.self_attn.q_proj as the builder calls its node."""
    return "/" + re.sub(r"\.(?!\d)", "/", name.replace("self_attn", "attn"))


class Builder:
    """Nodes and constants, collected."""

    def __init__(self, shape: Shape, weight: Weight) -> None:
        self.shape, self.values = shape, weight
        self.tensors: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def constant(self, name: str, values: object) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        values = self.values(name, *shape)
        if not isinstance(values, onnx.TensorProto):
            return self.constant(f"{name}.weight", values)
        values.name = f"{name}.weight"
        self.tensors.append(values)
        return values.name

    def add(
        self, op_type: str, inputs: list[str], outputs: list[str], name: str = "", domain: str = "", **attributes: object
    ) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name or outputs[0], domain=domain, **attributes))
        return outputs[0]

    def matmul(self, x: str, name: str, rows: int, columns: int, output: str) -> str:
        return self.add("MatMul", [x, self.weight(name, rows, columns)], [output], f"{node_path(name)}/MatMul")

    def norm(self, name: str, x: str, skip: str = "") -> tuple[str, str]:
        """The normalized sum of x and skip, and the sum."""
        gain, epsilon = self.weight(name, self.shape.hidden), self.shape.epsilon
        if not skip:
            outputs, label = [f"{name}.out"], f"{node_path(name)}/LayerNorm"
            return self.add("SimplifiedLayerNormalization", [x, gain], outputs, label, epsilon=epsilon, axis=-1), x
        outputs, label = [f"{name}.out", "", "", f"{name}.sum"], f"{node_path(name)}/SkipLayerNorm"
        self.add("SkipSimplifiedLayerNormalization", [skip, x, gain], outputs, label, MICROSOFT, epsilon=epsilon)
        return outputs[0], outputs[3]


def lengths(b: Builder) -> None:
    """How long each row is, from the mask; and the tables of rotary positions."""
    b.add("ReduceSum", ["attention_mask", b.constant("axes", np.array([1]))], ["lengths"], keepdims=0)
    b.add("Sub", ["lengths", b.constant("one", np.array([1]))], ["last"])
    b.add("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32)
    b.add("Shape", ["attention_mask"], ["mask_shape"])
    b.add("Gather", ["mask_shape", b.constant("second", np.array(1))], ["total_length"], axis=0)
    b.add("Cast", ["total_length"], ["total"], to=TensorProto.INT32)
    head = b.shape.head
    angles = np.outer(np.arange(b.shape.context), b.shape.theta ** (-np.arange(0, head, 2) / head)).astype(np.float32)
    b.constant("cos_cache", np.cos(angles))
    b.constant("sin_cache", np.sin(angles))


def attention(b: Builder, layer: int, x: str) -> tuple[str, list[tuple[str, str]]]:
    """The output product's result, and the names of past and present keys and values."""
    s, at = b.shape, f"model.layers.{layer}.self_attn"
    parts = (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads))
    q, k, v = (b.matmul(x, f"{at}.{part}_proj", s.hidden, heads * s.head, f"{part}{layer}") for part, heads in parts)
    past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
    present = [f"present.{layer}.{part}" for part in ("key", "value")]
    attended = b.add(
        "GroupQueryAttention",
        [q, k, v, *past, "seqlens_k", "total", "cos_cache", "sin_cache"],
        [f"attended{layer}", *present],
        f"/model/layers.{layer}/attn/GroupQueryAttention",
        MICROSOFT,
        num_heads=s.heads,
        kv_num_heads=s.kv_heads,
        do_rotary=1,
    )
    output = b.matmul(attended, f"{at}.o_proj", s.heads * s.head, s.hidden, f"o{layer}")
    return output, list(zip(past, present, strict=True))


def swiglu(b: Builder, layer: int, x: str) -> str:
    s, at = b.shape, f"model.layers.{layer}.mlp"
    gate, up = (b.matmul(x, f"{at}.{part}_proj", s.hidden, s.inner, f"{part}{layer}") for part in ("gate", "up"))
    silu = b.add("Mul", [gate, b.add("Sigmoid", [gate], [f"sigmoid{layer}"])], [f"silu{layer}"])
    return b.matmul(b.add("Mul", [silu, up], [f"gated{layer}"]), f"{at}.down_proj", s.inner, s.hidden, f"down{layer}")


def decoder(shape: Shape, weight: Weight) -> onnx.ModelProto:
    b = Builder(shape, weight)
    lengths(b)
    embedded = b.weight("model.embed_tokens", shape.vocabulary, shape.hidden)
    x = b.add("Gather", [embedded, "input_ids"], ["embedded"], "/model/embed_tokens/Gather")
    x, skip = b.norm("model.layers.0.input_layernorm", x)
    cache = []
    for layer in range(shape.layers):
        attended, names = attention(b, layer, x)
        cache += names
        x, skip = b.norm(f"model.layers.{layer}.post_attention_layernorm", attended, skip)
        last = layer + 1 == shape.layers
        x, skip = b.norm("model.norm" if last else f"model.layers.{layer + 1}.input_layernorm", swiglu(b, layer, x), skip)
    b.matmul(x, "lm_head", shape.hidden, shape.vocabulary, "logits")

    def floats(name: str, *dimensions: object) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dimensions)

    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    inputs += [helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])]
    inputs += [floats(past, "batch", shape.kv_heads, "past", shape.head) for past, _ in cache]
    outputs = [floats("logits", "batch", "sequence", shape.vocabulary)]
    outputs += [floats(present, "batch", shape.kv_heads, "total", shape.head) for _, present in cache]
    graph = helper.make_graph(b.nodes, "main_graph", inputs, outputs, b.tensors)
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=7)


def genai_config(shape: Shape, end: int = 0) -> dict:
    """genai_config.json. end: the token that ends a text, and, having no other use, begins and pads one."""
    parts = ("key", "value")
    names = {
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask"}
        | {f"past_{part}_names": f"past_key_values.%d.{part}" for part in parts},
        "outputs": {"logits": "logits"} | {f"present_{part}_names": f"present.%d.{part}" for part in parts},
    }
    sizes = {
        "head_size": shape.head,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
    }
    tokens = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    options = {"session_options": {"provider_options": []}, "filename": "model.onnx"}
    model = {"type": "llama", "context_length": shape.context, "vocab_size": shape.vocabulary, **tokens}
    search = {"max_length": shape.context, "do_sample": False, "past_present_share_buffer": False}
    return {"model": {**model, "decoder": {**options, **sizes, **names}}, "search": search}


def trained(folder: pathlib.Path = TRAINED) -> tuple[Shape, Weight]:
    """What train_decoder.py wrote."""
    stored = np.load(folder / "weights.npz")
    shape = Shape(**json.loads(str(stored["shape"])))

    def weight(name: str, *dimensions: int) -> np.ndarray:
        values = stored[name].astype(np.float32)
        values = values.T if values.ndim == 2 and name != "model.embed_tokens" else values
        if values.shape != dimensions:
            raise SystemExit(f"build_decoder: {name} has the shape {values.shape}, not {dimensions}")
        return values

    return shape, weight


def build(target: pathlib.Path, source: pathlib.Path = TRAINED) -> pathlib.Path:
    target.mkdir(parents=True, exist_ok=True)
    shape, weight = trained(source)
    (target / "model.onnx.data").unlink(missing_ok=True)  # onnx appends to what is there
    onnx.save(
        decoder(shape, weight), target / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=256
    )
    (target / "genai_config.json").write_text(json.dumps(genai_config(shape), indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, target / name)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--weights", type=pathlib.Path, default=TRAINED)
    options = parser.parse_args()
    build(options.out, options.weights)


if __name__ == "__main__":
    main()
