"""A small decoder with a KV cache, of the shape that onnxruntime-genai's builder makes."""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support import Path

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY, CONTEXT = 2, 64, 4, 2, 16, 128, 256, 256
MICROSOFT = "com.microsoft"


class Builder:
    """Nodes and constants, collected."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.tensors: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def constant(self, name: str, values: object) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, (0.3 * self.random.standard_normal(shape)).astype(np.float32))

    def add(
        self, op_type: str, inputs: list[str], outputs: list[str], name: str = "", domain: str = "", **attributes: object
    ) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name or outputs[0], domain=domain, **attributes))
        return outputs[0]

    def matmul(self, x: str, name: str, rows: int, columns: int, output: str) -> str:
        return self.add("MatMul", [x, self.weight(f"{name}.weight", rows, columns)], [output], f"/{name}/MatMul")


def lengths(b: Builder) -> None:
    """How long each row is, from the mask."""
    b.add("ReduceSum", ["attention_mask", b.constant("axes", np.array([1]))], ["lengths"], keepdims=0)
    b.add("Sub", ["lengths", b.constant("one", np.array([1]))], ["last"])
    b.add("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32)
    b.add("Shape", ["attention_mask"], ["mask_shape"])
    b.add("Gather", ["mask_shape", b.constant("second", np.array(1))], ["total_length"], axis=0)
    b.add("Cast", ["total_length"], ["total"], to=TensorProto.INT32)
    angles = np.outer(np.arange(CONTEXT), 1e4 ** (-np.arange(0, HEAD, 2) / HEAD)).astype(np.float32)
    b.constant("cos", np.cos(angles))
    b.constant("sin", np.sin(angles))


def norm(b: Builder, name: str, skip: str, x: str) -> tuple[str, str]:
    """The normalized sum, and the sum."""
    scale = b.constant(f"{name}.scale", np.ones(HIDDEN, np.float32))
    outputs = [name, "", "", f"{name}.sum"]
    b.add("SkipSimplifiedLayerNormalization", [skip, x, scale], outputs, domain=MICROSOFT, epsilon=1e-5)
    return outputs[0], outputs[3]


def decoder() -> onnx.ModelProto:
    b = Builder()
    lengths(b)
    skip = b.add("Gather", [b.weight("model.embed_tokens.weight", VOCABULARY, HIDDEN), "input_ids"], ["embedded"])
    scale = b.constant("input.scale", np.ones(HIDDEN, np.float32))
    x = b.add("SimplifiedLayerNormalization", [skip, scale], ["normalized"], epsilon=1e-5, axis=-1)
    cache = []
    for layer in range(LAYERS):
        at = f"model/layers.{layer}"
        q, k, v = (
            b.matmul(x, f"{at}/attn/{part}_proj", HIDDEN, heads * HEAD, f"{part}{layer}")
            for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        cache += zip(past, present, strict=True)
        attended = b.add(
            *("GroupQueryAttention", [q, k, v, *past, "seqlens_k", "total", "cos", "sin"], [f"attended{layer}", *present]),
            *(f"/{at}/attn/GroupQueryAttention", MICROSOFT),
            **{"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1},
        )
        x, skip = norm(b, f"{at}/norm", skip, b.matmul(attended, f"{at}/attn/o_proj", HEADS * HEAD, HIDDEN, f"o{layer}"))
        gate, up = (b.matmul(x, f"{at}/mlp/{part}_proj", HIDDEN, INNER, f"{part}{layer}") for part in ("gate", "up"))
        gated = b.add(
            "Mul", [b.add("Mul", [gate, b.add("Sigmoid", [gate], [f"s{layer}"])], [f"silu{layer}"]), up], [f"gated{layer}"]
        )
        x, skip = norm(b, f"{at}/last_norm", skip, b.matmul(gated, f"{at}/mlp/down_proj", INNER, HIDDEN, f"down{layer}"))
    b.matmul(x, "lm_head", HIDDEN, VOCABULARY, "logits")

    def floats(name: str, *shape: object) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    inputs += [helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])]
    inputs += [floats(past, "batch", KV_HEADS, "past", HEAD) for past, _ in cache]
    outputs = [floats("logits", "batch", "sequence", VOCABULARY)]
    outputs += [floats(present, "batch", KV_HEADS, "total", HEAD) for _, present in cache]
    graph = helper.make_graph(b.nodes, "main_graph", inputs, outputs, b.tensors)
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=7)


def empty_cache() -> dict[str, np.ndarray]:
    empty = np.zeros((1, KV_HEADS, 0, HEAD), np.float32)
    return {f"past_key_values.{layer}.{part}": empty for layer in range(LAYERS) for part in ("key", "value")}


def genai_folder(folder: Path) -> Path:
    """As onnxruntime-genai's builder writes it."""
    folder.mkdir(parents=True)
    onnx.save(decoder(), folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=256)
    names = {"inputs": {"past_key_names": "past_key_values.%d.key"}, "outputs": {"present_key_names": "present.%d.key"}}
    config = {"model": {"type": "llama", "decoder": {"filename": "model.onnx", **names}}, "search": {"max_length": CONTEXT}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def transformers_folder(folder: Path) -> Path:
    """As transformers.js has them."""
    (folder / "onnx").mkdir(parents=True)
    where = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 256}
    onnx.save(decoder(), folder / "onnx" / "model.onnx", **where)
    onnx.save(decoder(), folder / "onnx" / "model_q4.onnx")
    config = {"model_type": "llama", "transformers.js_config": {"use_external_data_format": {"model.onnx": True}}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
