"""Small graphs of layers: products, convolutions, recurrent layers, pooling, normalizations, in the forms that exporters give."""

import functools
from collections.abc import Callable

import numpy as np
import onnx
from case import INT64, Case, Graph, case, in_float16
from onnx import TensorProto, helper

IMAGE = [1, 3, 16, 16]


def on_images(middle: Callable[[Graph, str], str], opset: int = 17, channels: int = 8, kernel: int = 3) -> Case:
    """Something between two convolutions of a picture."""
    b = Graph(1)
    x = middle(b, b.relu(b.conv("x", 3, channels)))
    return case(b, IMAGE, [b.conv(x, channels, 4, kernel)], opset)


def pool(op: str, **attributes: object) -> Case:
    return on_images(lambda b, x: b.add(op, x, **attributes), 22 if "dilations" in attributes else 19)


def resize(mode: str, factor: float, **attributes: object) -> Case:
    opset = 18 if "antialias" in attributes else 17
    return on_images(lambda b, x: b.add("Resize", x, "", b.values([1, 1, factor, factor]), mode=mode, **attributes), opset)


def transposed(group: int = 1, **attributes: object) -> Case:
    def middle(b: Graph, x: str) -> str:
        weight = b.fan(8, 8 // group, 3, 3, inputs=18)
        return b.add("ConvTranspose", x, weight, b.weight("tb", 8), group=group, strides=[2, 2], **attributes)

    return on_images(middle)


def grouped(group: int) -> Case:
    return on_images(lambda b, x: b.relu(b.conv(x, 8, 8, group=group)))


def along_time() -> Case:
    b = Graph(2)
    x = b.relu(b.conv("x", 6, 12, 5, 1))
    x = b.add("Sigmoid", b.conv(x, 12, 12, 3, 1, dilations=[2], pads=[2, 2]))
    return case(b, [1, 6, 40], [b.conv(x, 12, 4, 1, 1)])


def group_norm(opset: int) -> Case:
    """As one operator, or as exporters took it apart before there was one."""

    def middle(b: Graph, x: str) -> str:
        scale, shift = b.weight("gs", 8, shift=1), b.weight("gb", 8)
        if opset >= 21:
            return b.add("GroupNormalization", x, scale, shift, num_groups=4)
        y = b.add("Reshape", x, b.ints(1, 4, -1))
        y = b.add("InstanceNormalization", y, b.values(np.ones(4)), b.values(np.zeros(4)))
        y = b.add("Reshape", y, b.add("Shape", x))
        y = b.add("Mul", y, b.add("Reshape", scale, b.ints(1, 8, 1, 1)))
        return b.add("Add", y, b.add("Reshape", shift, b.ints(1, 8, 1, 1)))

    return on_images(middle, opset)


def recurrent(kind: str, direction: str = "forward", initial: bool = False) -> Case:
    b = Graph(4)
    gates, sides = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 2 if direction == "bidirectional" else 1
    weights = [b.fan(sides, gates * 12, 16, inputs=16), b.fan(sides, gates * 12, 12, inputs=12)]
    weights.append(b.weight("bias", sides, 2 * gates * 12))
    more = ["", b.values(np.zeros((sides, 1, 12)))] if initial else []
    attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
    x = b.product("x", 16, 16)
    y = b.add(kind, x, *weights, *more, hidden_size=12, direction=direction, **attributes)
    y = b.add("Reshape", b.add("Transpose", y, perm=[0, 2, 1, 3]), b.ints(0, 0, -1))
    return case(b, [9, 1, 16], [b.product(y, 12 * sides, 8)])


def gates(kind: str) -> Case:
    """Activations with a shape of their own, behind convolutions."""

    def middle(b: Graph, x: str) -> str:
        x = b.conv(x, 8, 8)
        if kind == "SiLU":
            return b.add("Mul", x, b.add("Sigmoid", x))
        if kind == "Clip":
            return b.add("Clip", x, b.values(0), b.values(6))
        if kind == "PRelu":
            return b.add("PRelu", x, b.values(np.full((8, 1, 1), 0.2)))
        return b.add(kind, x)

    return on_images(middle, 20)


def squeeze() -> Case:
    def middle(b: Graph, x: str) -> str:
        y = b.add("GlobalAveragePool", x)
        y = b.add("HardSigmoid", b.conv(b.relu(b.conv(y, 8, 4, 1)), 4, 8, 1))
        return b.add("Mul", x, y)

    return on_images(middle)


def movement() -> Case:
    """Split, Concat, Pad, Slice, DepthToSpace and Transpose between convolutions."""

    def middle(b: Graph, x: str) -> str:
        first = b.add("Split", x, axis=1, count=2)
        x = b.add("Concat", f"{first}.1", first, axis=1)
        x = b.add("Pad", x, b.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect")
        x = b.add("Slice", x, b.ints(1, 1), b.ints(17, 17), b.ints(2, 3))
        x = b.add("SpaceToDepth", b.add("DepthToSpace", x, blocksize=2), blocksize=2)
        return b.add("Transpose", b.add("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])

    return on_images(middle)


def residual() -> Case:
    def middle(b: Graph, x: str) -> str:
        statistics = [b.weight(n, 8, shift=s) for n, s in (("s", 1), ("t", 0), ("m", 0))] + [b.values(np.ones(8))]
        return b.relu(b.add("Add", x, b.add("BatchNormalization", b.conv(x, 8, 8), *statistics)))

    return on_images(middle)


def attention(grouped_heads: bool = False) -> Case:
    """Of one layer; with grouped heads as ONNX Runtime's operator has it."""
    b = Graph(5)
    x = b.add("LayerNormalization", "x", b.weight("ls", 32, shift=1), b.weight("lb", 32))
    if grouped_heads:
        q, k, v = b.product(x, 32, 32), b.product(x, 32, 16), b.product(x, 32, 16)
        past = [b.values(np.zeros((1, 1, 0, 16))), b.values(np.zeros((1, 1, 0, 16)))]
        lengths = [b.values([[9]], np.int32), b.values(10, np.int32)]
        b.add("GroupQueryAttention", q, k, v, *past, *lengths, count=3, num_heads=2, kv_num_heads=1, name="gqa")
        b.nodes[-1].domain = "com.microsoft"
        y = "gqa.out"
    else:
        heads = [b.add("Reshape", b.product(x, 32, 32, bias=True), b.ints(1, -1, 4, 8)) for _ in range(3)]
        q, k, v = (b.add("Transpose", h, perm=p) for h, p in zip(heads, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True))
        weights = b.add("Softmax", b.add("Div", b.add("MatMul", q, k), b.values(np.sqrt(8))))
        y = b.add("Reshape", b.add("Transpose", b.add("MatMul", weights, v), perm=[0, 2, 1, 3]), b.ints(1, -1, 32))
    x = b.add("Add", "x", b.product(y, 32, 32))
    y = b.product(x, 32, 64)
    y = b.add("Mul", y, b.add("Sigmoid", y))
    return case(b, [1, 10, 32], [b.add("Add", x, b.product(y, 64, 32))])


def experts() -> Case:
    """ONNX Runtime's MoE, with a router before it."""
    b = Graph(6)
    router = b.add("Add", b.product("x", 16, 4), b.values([0.0, 0.1, 0.2, 0.3]))
    first, second = b.fan(4, 32, 16, inputs=16), b.fan(4, 16, 32, inputs=32)
    given = ["x", router, first, b.weight("eb", 4, 32), second, b.weight("eb2", 4, 16)]
    y = b.add("MoE", *given, k=2, activation_type="relu", name="moe")
    b.nodes[-1].domain = "com.microsoft"
    return case(b, [12, 16], [b.product(y, 16, 8)])


def perceptron(bias_scale: float = 0.2, transposed_weights: bool = True) -> Case:
    b = Graph(7)
    x = "x"
    for i, (inner, outer) in enumerate([(32, 48), (48, 48), (48, 10)]):
        shape = (outer, inner) if transposed_weights else (inner, outer)
        weight = b.fan(*shape, inputs=inner)
        x = b.add("Gemm", x, weight, b.weight(f"gb{i}", outer, scale=bias_scale), transB=int(transposed_weights))
        x = b.relu(x) if i < 2 else x
    return case(b, [1, 32], [x], free=True)


def gemm(bias: tuple[int, ...], transposed_input: bool = False, **factors: float) -> Case:
    """In a form that has no kernel on integers: factors, or a bias that is no vector."""
    b = Graph(7)
    x = b.relu(b.product("x", 32, 32))
    x = b.add("Transpose", x, perm=[1, 0]) if transposed_input else x
    x = b.add("Gemm", x, b.fan(32, 24), b.weight("gb", *bias), transA=int(transposed_input), **factors)
    return case(b, [6, 32], [b.product(b.relu(x), 24, 8)])


def summed(shape: list[int], bias: tuple[int, ...]) -> Case:
    """A product and a sum, of which the runtime makes a Gemm or does not."""
    b = Graph(7)
    x = b.add("Add", b.product("x", 32, 24), b.weight("bias", *bias))
    return case(b, shape, [b.product(b.add("Clip", x, b.values(0), b.values(6)), 24, 8)])


def scattered(op: str, reduction: str) -> Case:
    b = Graph(7)
    x = b.relu(b.product("x", 32, 32))
    if op == "ND":
        x = b.add("ScatterND", x, b.values([[0, 2], [0, 5]], np.int64), b.weight("new", 2, 32), reduction=reduction)
    else:
        rows = b.values(b.rng.integers(0, 6, (1, 3, 32)), np.int64)
        x = b.add("ScatterElements", x, rows, b.weight("new", 1, 3, 32), axis=1, reduction=reduction)
    return case(b, [1, 6, 32], [b.product(x, 32, 8)], 18)


def beyond_float16() -> Case:
    b = Graph(7)
    y = b.add("MatMul", b.relu(b.product("x", 32, 48)), b.weight("great", 48, 16, scale=1e11))
    return case(b, [1, 8, 32], [y])


def perceptron_of_matmul(bias_scale: float) -> Case:
    b = Graph(7)
    x = "x"
    for i, (inner, outer) in enumerate([(32, 48), (48, 48), (48, 10)]):
        x = b.add("Add", b.product(x, inner, outer), b.weight(f"gb{i}", outer, scale=bias_scale))
        x = b.relu(x) if i < 2 else x
    return case(b, [1, 6, 32], [x])


def biased(rank: int, opset: int, norm: str = "") -> Case:
    """A block of a transformer with static shapes: products with biases, some between integers, some beside floats."""
    b = Graph(7)
    x = b.product("x", 32, 32, bias=True)
    if norm:
        x = b.add(norm, x, b.weight("scale", 32, shift=1))
    y = b.product(b.relu(b.product(x, 32, 48, bias=True)), 48, 32, bias=True)
    return case(b, [*[1] * (rank - 2), 6, 32], [b.product(b.add("Sin", b.add("Add", x, y)), 32, 8, bias=True)], opset)


def moved(opset: int) -> Case:
    """Integers that go through operators which only move values, and then into floats."""
    b = Graph(7)
    x = b.product(b.add("Transpose", b.product("x", 32, 32), perm=[1, 0, 2]), 32, 32)
    x = b.add("Sin", b.add("Slice", b.add("Reshape", x, b.ints(2, 3, 32)), b.ints(0), b.ints(24), b.ints(2)))
    return case(b, [1, 6, 32], [b.add("Unsqueeze", b.product(x, 24, 8), b.ints(0))], opset)


def softmax_at_the_end() -> Case:
    b = Graph(8)
    x = b.relu(b.product("x", 32, 64, bias=True))
    return case(b, [1, 32], [b.add("Softmax", b.product(x, 64, 10, bias=True))], free=True)


def einsum() -> Case:
    b = Graph(9)
    x = b.add("Einsum", "x", b.fan(16, 4, 8, inputs=16), equation="bsd,dhk->bhsk")
    return case(b, [1, 6, 16], [b.product(b.relu(x), 8, 8)])


def cast_like() -> Case:
    """As PyTorch's newer exporter writes it: constants pass through CastLike."""
    b = Graph(10)
    x = b.add("Conv", "x", b.add("CastLike", b.fan(8, 3, 3, 3), "x"), b.add("CastLike", b.weight("cb", 8), "x"), pads=[1] * 4)
    x = b.add("Mul", b.relu(x), b.add("CastLike", b.values(0.5), "x"))
    return case(b, IMAGE, [b.conv(x, 8, 4)], 18)


def unpacked(kind: int, name: str) -> Case:
    """Weights that come in 4-bit integers with scales of blocks, beside ones in float."""
    b = Graph(11)
    low, high = (-8, 8) if name == "int4" else (0, 16)
    stored = b.rng.integers(low, high, (32, 32))
    b.initializers.append(helper.make_tensor("packed", kind, [32, 32], stored.flatten().tolist()))
    scales = b.values(b.rng.uniform(0.02, 0.06, (2, 32)))
    b.initializers.append(helper.make_tensor("middle", kind, [2, 32], [0 if name == "int4" else 8] * 64))
    y = b.relu(b.product("x", 32, 32))
    y = b.add("MatMul", y, b.add("DequantizeLinear", "packed", scales, "middle", axis=0, block_size=16))
    return case(b, [1, 6, 32], [b.product(y, 32, 8)], 21)


def tied_embedding(by: str) -> Case:
    b = Graph(12)
    table = b.weight("table", 64, 32)
    x = b.relu(b.product(b.add("Gather", table, "ids"), 32, 32))
    head = b.add("MatMul", x, b.add("Transpose", table, perm=[1, 0])) if by == "Transpose" else None
    flat = head or b.add("Gemm", b.add("Reshape", x, b.ints(-1, 32)), table, transB=1)
    model = b.model({"ids": (INT64, [1, 6])}, [flat])
    return Case(model, [{"ids": np.random.default_rng(i).integers(0, 64, (1, 6))} for i in range(8)])


def decoder() -> Case:
    import decoders

    random = np.random.default_rng(3)
    samples = [{"input_ids": random.integers(0, decoders.VOCABULARY, (1, 12))} for _ in range(6)]
    model: onnx.ModelProto = decoders.decoder()
    names = {value.name: value for value in model.graph.input}
    for sample in samples:
        if "attention_mask" in names:
            sample["attention_mask"] = np.ones((1, 12), np.int64)
        if "position_ids" in names:
            sample["position_ids"] = np.arange(12)[None]
        sample.update(decoders.empty_cache())
    return Case(model, samples, decoder=True)


def network(seed: int) -> Case:
    from networks import network as made_network

    made = made_network(seed)
    ends = {"NonMaxSuppression", "TopK", "NonZero"}
    return Case(made.model, made.samples, varies=bool(ends & {node.op_type for node in made.model.graph.node}))


def small(name: str) -> Case:
    import graphs

    make = {"cnn": graphs.cnn_samples, "transformer": graphs.transformer_samples, "menagerie": graphs.menagerie_samples}
    model = {"cnn": graphs.small_cnn, "transformer": graphs.transformer, "menagerie": graphs.menagerie}[name]
    return Case(model(), make[name](6))


P = functools.partial
GRAPHS: dict[str, Callable[[], Case]] = {
    "cnn": P(small, "cnn"),
    "transformer": P(small, "transformer"),
    "menagerie": P(small, "menagerie"),
    "average pool, ceil and pads": P(
        pool, "AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1, pads=[1] * 4
    ),
    "average pool without pads": P(pool, "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 1]),
    "average pool, dilated": P(pool, "AveragePool", kernel_shape=[2, 2], dilations=[2, 2]),
    "max pool, ceil": P(pool, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1] * 4),
    "global pool": lambda: on_images(lambda b, x: b.add("GlobalAveragePool", x), kernel=1),
    "resize nearest": P(resize, "nearest", 2.0),
    "resize linear": P(resize, "linear", 2.3, coordinate_transformation_mode="half_pixel"),
    "resize cubic": P(resize, "cubic", 1.5),
    "resize antialiased": P(resize, "linear", 0.6, antialias=1),
    "resize to half, aligned": P(resize, "linear", 0.5, coordinate_transformation_mode="align_corners"),
    "conv transpose": transposed,
    "conv transpose, grouped": P(transposed, 2, output_padding=[1, 1]),
    "grouped conv": P(grouped, 2),
    "depthwise conv": P(grouped, 8),
    "conv along time": along_time,
    "group norm": P(group_norm, 21),
    "group norm in parts": P(group_norm, 17),
    "SiLU": P(gates, "SiLU"),
    "Gelu": P(gates, "Gelu"),
    "HardSwish": P(gates, "HardSwish"),
    "Clip": P(gates, "Clip"),
    "PRelu": P(gates, "PRelu"),
    "squeeze": squeeze,
    "movement": movement,
    "residual": residual,
    "residual in float16": lambda: in_float16(residual()),
    "attention": attention,
    "attention in float16": lambda: in_float16(attention()),
    "grouped queries": P(attention, True),
    "experts": experts,
    "perceptron": perceptron,
    "great biases": P(perceptron, 50.0),
    "great biases behind MatMul": P(perceptron_of_matmul, 50.0),
    "Gemm, scaled": P(gemm, (24,), alpha=0.5, beta=2.0),
    "Gemm, half of it": P(gemm, (24,), alpha=0.5),
    "Gemm, biases of rows": P(gemm, (6, 1)),
    "Gemm, one bias": P(gemm, (1,)),
    "Gemm, turned input": P(gemm, (6, 24), True),
    "beyond float16": beyond_float16,
    **{f"scatter, {op} by {how}": P(scattered, op, how) for op, how in (("Elements", "add"), ("ND", "max"), ("ND", "none"))},
    **{
        f"{len(s)} axes and a bias of {b}": P(summed, s, b)
        for s, b in (([6, 32], (1, 24)), ([6, 32], (6, 1)), ([1, 6, 32], (1, 1, 24)), ([1, 6, 32], (6, 24)), ([6, 32], (1,)))
    },
    **{f"biases of {rank} axes, opset {opset}": P(biased, rank, opset) for rank, opset in ((3, 17), (4, 21), (3, 24))},
    "root mean square": P(biased, 3, 23, "RMSNormalization"),
    **{f"moved integers, opset {opset}": P(moved, opset) for opset in (20, 22)},
    "mean and variance": lambda: on_images(lambda b, x: b.add("MeanVarianceNormalization", x, axes=[0, 2, 3])),
    "softmax at the end": softmax_at_the_end,
    "einsum": einsum,
    "CastLike": cast_like,
    "int4 weights": P(unpacked, TensorProto.INT4, "int4"),
    "uint4 weights": P(unpacked, TensorProto.UINT4, "uint4"),
    "LSTM": P(recurrent, "LSTM"),
    "LSTM both ways": P(recurrent, "LSTM", "bidirectional", True),
    "GRU": P(recurrent, "GRU"),
    "GRU both ways": P(recurrent, "GRU", "bidirectional"),
    "RNN": P(recurrent, "RNN", "reverse", True),
    "tied embedding": P(tied_embedding, "Transpose"),
    "tied embedding by Gemm": P(tied_embedding, "Gemm"),
    "decoder": decoder,
    **{f"network {seed}": P(network, seed) for seed in (0, 2, 3, 5, 6, 8, 9, 13)},
}
