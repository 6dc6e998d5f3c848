"""Small generated models with random weights, and samples for them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Sample = dict[str, np.ndarray]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Builder:
    """Collects nodes and initializers; every node's outputs are named after it."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.counts: dict[str, int] = {}

    def constant(self, name: str, array: object, dtype: type = np.float32) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.2, shift: float = 0) -> str:
        return self.constant(name, self.rng.normal(shift, scale, shape))

    def add(self, op_type: str, *inputs: str, name: str = "", count: int = 1, **attributes: object) -> str:
        """Adds a node and returns its output, or the first of `count`: the others end in .1, .2, …"""
        if not name:
            self.counts[op_type] = self.counts.get(op_type, 0) + 1
            name = f"{op_type.lower()}{self.counts[op_type]}"
        results = [f"{name}.out"] + [f"{name}.out.{i}" for i in range(1, count)]
        self.nodes.append(helper.make_node(op_type, list(inputs), results, name=name, **attributes))
        return results[0]

    def model(self, inputs: dict[str, tuple], outputs: list[str], opset: int = 17) -> onnx.ModelProto:
        """`inputs`: name to (type, shape). Outputs get the shapes that inference finds."""
        graph = helper.make_graph(
            self.nodes,
            "generated",
            [helper.make_tensor_value_info(n, *v) for n, v in inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self.initializers,
        )
        imports = [helper.make_opsetid("", opset)]
        imports += [helper.make_opsetid("ai.onnx.ml", 3)] if any(node.domain == "ai.onnx.ml" for node in self.nodes) else []
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        found = onnx.shape_inference.infer_shapes(model, strict_mode=False).graph.output
        del model.graph.output[:]
        for info in found:
            if not info.type.HasField("tensor_type"):
                info = helper.make_tensor_value_info(info.name, FLOAT, None)
            model.graph.output.append(info)
        return model


def small_cnn(opset: int = 17, batch: int | str = "N", fp16: bool = False) -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu, MaxPool, Conv, Relu, GlobalAveragePool, Flatten, Gemm."""
    b = Builder(1)
    statistics = [
        b.weight("scale", 8, shift=1),
        b.weight("shift", 8),
        b.weight("mean", 8),
        b.constant("var", b.rng.uniform(0.5, 2, 8)),
    ]
    x = b.add("Conv", "x", b.weight("w1", 8, 3, 3, 3), b.weight("b1", 8), name="conv_a", pads=[1] * 4)
    x = b.add("Relu", b.add("BatchNormalization", x, *statistics))
    x = b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.add("Relu", b.add("Conv", x, b.weight("w2", 16, 8, 3, 3), b.weight("b2", 16), name="conv_b"))
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    x = b.add("Gemm", x, b.weight("w3", 16, 10), b.weight("b3", 10), name="head")
    if fp16:
        for i, tensor in enumerate(b.initializers):
            b.initializers[i] = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
    return b.model({"x": (TensorProto.FLOAT16 if fp16 else FLOAT, [batch, 3, 16, 16])}, [x], opset)


def cnn_samples(count: int = 4, rows: int = 1, seed: int = 2) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(rows, 3, 16, 16)).astype(np.float32)} for _ in range(count)]


def transformer() -> onnx.ModelProto:
    """Embedding, one block of masked attention and a feed-forward part with GELU."""
    b, width, heads = Builder(3), 32, 4
    x = b.add("Gather", b.weight("table", 50, width, scale=1), "ids")
    x = b.add("LayerNormalization", x, b.weight("ln1.w", width, shift=1), b.weight("ln1.b", width))
    split = b.constant("split_shape", [0, -1, heads, width // heads], np.int64)
    parts = []
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        y = b.add("Add", b.add("MatMul", x, b.weight(f"{part}.w", width, width)), b.weight(f"{part}.b", width))
        parts.append(b.add("Transpose", b.add("Reshape", y, split), perm=order))
    scores = b.add("Div", b.add("MatMul", parts[0], parts[1]), b.constant("root", (width // heads) ** 0.5))
    mask = b.add("Mul", b.add("Sub", b.constant("one", 1), b.add("Cast", "mask", to=FLOAT)), b.constant("low", -100))
    attention = b.add("Softmax", b.add("Add", scores, mask), axis=-1)
    y = b.add("Transpose", b.add("MatMul", attention, parts[2]), perm=[0, 2, 1, 3])
    y = b.add("MatMul", b.add("Reshape", y, b.constant("join_shape", [0, -1, width], np.int64)), b.weight("o.w", width, width))
    x = b.add("LayerNormalization", b.add("Add", x, y), b.weight("ln2.w", width, shift=1), b.weight("ln2.b", width))
    y = b.add("MatMul", x, b.weight("up.w", width, 4 * width))
    y = b.add("Mul", y, b.add("Add", b.add("Erf", b.add("Div", y, b.constant("root2", 2**0.5))), "one"))
    x = b.add("Add", x, b.add("MatMul", y, b.weight("down.w", 4 * width, width)))
    return b.model({"ids": (INT64, ["N", "T"]), "mask": (INT64, ["N", 1, 1, "T"])}, [x])


def transformer_samples(count: int = 6) -> list[Sample]:
    rng = np.random.default_rng(4)
    samples = []
    for i in range(count):
        mask = np.ones((2, 1, 1, 7 + i), np.int64)
        mask[1, ..., 5:] = 0
        samples.append({"ids": rng.integers(0, 50, (2, 7 + i)), "mask": mask})
    return samples


def menagerie() -> onnx.ModelProto:
    """One of every operator that has a placement rule of its own, and the corners of those rules."""
    b = Builder(5)
    ends = []

    def conv(x: str, name: str, bias: str | None = None, weight: str | None = None, outs: int = 8) -> str:
        weight = weight or b.weight(f"{name}.w", outs, 8, 3, 3)
        return b.add("Conv", x, weight, bias or b.weight(f"{name}.b", outs), name=name, pads=[1] * 4)

    x = b.add("Relu", conv("x", "stem"))
    # Data movement.
    left = b.add("Split", x, axis=1, count=2)
    x = b.add("Concat", f"{left}.1", left, axis=1)
    whole = b.constant("pads", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    ends.append(b.add("Pad", x, whole))
    ends.append(conv(b.add("Pad", x, whole, b.constant("minus", -9.0)), "padded"))
    ends.append(conv(b.add("Resize", x, "", b.constant("scales", [1, 1, 2, 2]), mode="nearest"), "resized"))
    cut = [b.constant(n, v, np.int64) for n, v in (("starts", [2]), ("stops", [14]), ("axes", [2]))]
    ends.append(conv(b.add("Slice", x, *cut), "sliced"))
    ends.append(conv(b.add("Gather", x, b.constant("order", [7, 6, 5, 4, 3, 2, 1, 0], np.int64), axis=1), "gathered"))
    ends.append(conv(b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), "pooled"))
    ends.append(b.add("TopK", conv(x, "ranked"), b.constant("k", [3], np.int64), axis=3, count=2))
    one, two = conv(x, "one"), conv(x, "two")
    ends.append(conv(b.add("Where", b.add("Greater", x, b.constant("half", 0.5)), one, two), "chosen"))
    # Normalizations.
    y = b.add("InstanceNormalization", x, b.weight("in.w", 8, shift=1), b.weight("in.b", 8))
    y = b.add("LayerNormalization", y, b.weight("ln.w", 16, shift=1), b.weight("ln.b", 16))
    y = b.add(
        "BatchNormalization",
        b.add("Add", y, x),
        b.weight("bn.w", 8, shift=1),
        b.weight("bn.b", 8),
        b.weight("bn.m", 8),
        b.constant("bn.v", b.rng.uniform(0.5, 2, 8)),
    )
    ends.append(y)
    # Biases and weights: shared, too large for int32, transposed.
    shared = [conv(x, "same_bias_1", "shared.b"), conv(x, "same_bias_2", b.weight("shared.b", 8))]
    shared += [conv(x, "same_weight_1", weight="shared.w"), conv(y, "same_weight_2", weight=b.weight("shared.w", 8, 8, 3, 3))]
    ends += shared
    ends.append(conv(x, "great_bias", b.weight("great.b", 8, scale=100), b.weight("tiny.w", 8, 8, 3, 3, scale=1e-7)))
    ends.append(b.add("ConvTranspose", x, b.weight("up.w", 8, 4, 2, 2), name="up", group=2, strides=[2, 2]))
    ends.append(b.add("ConvTranspose", x, b.weight("up1.w", 8, 4, 2, 2), b.weight("up1.b", 4), name="up1", strides=[2, 2]))
    flat = b.add("Flatten", b.add("AveragePool", x, kernel_shape=[4, 4], strides=[4, 4]))
    ends.append(b.add("Gemm", flat, b.weight("fc.w", 5, 128), b.weight("fc.b", 5), name="fc", transB=1))
    ends.append(
        b.add("Gemm", flat, b.weight("half.w", 5, 128), b.weight("half.b", 5, scale=3), name="half_beta", transB=1, beta=0.5)
    )
    # Activations: bounds without 0, read twice, and at the graph's outputs.
    ends.append(conv(b.add("Clip", conv(x, "clipped"), b.constant("lo", 1), b.constant("hi", 6), name="clip_1_6"), "after_clip"))
    ends.append(conv(b.add("Clip", conv(x, "clipped6"), b.constant("zero", 0), "hi", name="clip_0_6"), "after_clip6"))
    ends.append(
        conv(b.add("Clip", conv(x, "loose"), b.constant("far", -50), b.constant("off", 50), name="clip_loose"), "after_loose")
    )
    exposed = conv(x, "exposed")
    ends += [exposed, b.add("Relu", exposed, name="relu_of_output"), b.add("Relu", conv(x, "last"), name="relu_output")]
    return b.model({"x": (FLOAT, [1, 8, 16, 16])}, ends)


def menagerie_samples(count: int = 4) -> list[Sample]:
    rng = np.random.default_rng(6)
    return [{"x": rng.normal(size=(1, 8, 16, 16)).astype(np.float32)} for _ in range(count)]


def skips(size: int = 512, depth: int = 9) -> onnx.ModelProto:
    """Convolutions whose results all wait for the end, where they are added up: much is alive at a time, little is at work."""
    b = Builder(7)
    x, waiting = "x", []
    for i in range(depth):
        x = b.add("Relu", b.add("Conv", x, b.weight(f"down{i}.w", 16, 16 if i else 3, 1, 1), name=f"down{i}"))
        waiting.append(x)
    for i, earlier in enumerate(reversed(waiting[:-1])):
        x = b.add("Add", b.add("Conv", x, b.weight(f"up{i}.w", 16, 16, 1, 1), name=f"up{i}"), earlier)
    x = b.add("Conv", x, b.weight("last.w", 3, 16, 1, 1), name="last")
    return b.model({"x": (FLOAT, [1, 3, size, size])}, [x])


def skip_samples(size: int = 512, count: int = 2) -> list[Sample]:
    rng = np.random.default_rng(8)
    return [{"x": rng.normal(size=(1, 3, size, size)).astype(np.float32)} for _ in range(count)]


def picked_rows(width: int = 256) -> onnx.ModelProto:
    """Products before and behind a choice of rows by their values."""
    b = Builder(11)
    x = b.add("Relu", b.add("MatMul", "x", b.weight("w0", 16, 32), name="before"))
    best = b.add("ReduceMax", "x", axes=[1], keepdims=0)
    rows = b.add("Reshape", b.add("NonZero", b.add("Relu", best)), b.constant("flat", [-1], np.int64))
    x = b.add("Gather", x, rows, name="picked")
    for i in range(4):
        x = b.add("Relu", b.add("MatMul", x, b.weight(f"w{i + 1}", width if i else 32, width, scale=0.08)))
    y = b.add("MatMul", x, b.weight("last", width, 4), name="after")
    model = b.model({"x": (FLOAT, ["N", 16])}, [y])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(y, FLOAT, ["M", 4]))
    return model


def picked_samples(rows: int, count: int = 6) -> list[Sample]:
    """Of later ones fewer rows are picked."""
    rng = np.random.default_rng(12)
    return [{"x": rng.normal(-1.5 - 0.2 * i, 1, size=(rows, 16)).astype(np.float32)} for i in range(count)]
