"""Networks in idioms of newer exporters: what torch's exporter by tracing of graphs, and networks since 2023, are made of."""

import numpy as np
from generators import number_of
from images import backbone, batch, pictures, up
from net import FLOAT, INT64, Net, Network, activation, conv, finished, linear, normalized, smooth
from sequences import conv1d, feed_forward, recurrent_layer, rotated


def root_norm(n: Net, x: str, width: int) -> str:
    """By Reciprocal of a root, as torch's rsqrt."""
    mean = n.add("ReduceMean", n.add("Pow", x, n.constant(2)), axes=[-1])
    root = n.add("Reciprocal", n.add("Sqrt", n.add("Add", mean, n.constant(n.one_of(1e-5, 1e-6)))))
    return n.add("Mul", n.weight(width, shift=1, scale=0.5), n.add("Mul", x, root))


def guarded(n: Net, scores: str) -> str:
    """torch's attention: rows in which everything is masked give 0, not NaN."""
    weights = n.add("Softmax", scores, axis=-1)
    return n.add("Where", n.add("IsNaN", weights), n.constant(0), weights)


def grouped_attention(n: Net, x: str, width: int, length: int, norms: bool) -> str:
    """Two heads of keys and values for four of queries, rotary positions, norms of queries and keys at times."""
    heads, size = (4, 2, 2), width // 4
    parts = []
    for count in heads:
        y = n.add("Reshape", linear(n, x, width, count * size), n.ints(1, length, count, size))
        parts.append(n.add("Transpose", y, perm=[0, 2, 1, 3]))
    q, k, v = parts
    if norms:  # Qwen 3's
        q, k = root_norm(n, q, size), root_norm(n, k, size)
    q, k = rotated(n, q, length, size), rotated(n, k, length, size)
    shared = []
    for y in (k, v):
        y = n.add("Expand", n.add("Unsqueeze", y, n.ints(2)), n.ints(1, 2, 2, length, size))
        shared.append(n.add("Reshape", y, n.ints(1, 4, length, size)))
    k, v = shared
    root = n.constant(size**-0.25)
    scores = n.add("MatMul", n.add("Mul", q, root), n.add("Mul", n.add("Transpose", k, perm=[0, 1, 3, 2]), root))
    if n.chance(0.3):  # Gemma 2's
        scores = n.add("Mul", n.add("Tanh", n.add("Div", scores, n.constant(5))), n.constant(5))
    later = np.triu(np.ones((length, length), bool), 1)
    if n.chance():  # a window
        later |= ~np.triu(np.ones((length, length), bool), -4)
    mask = n.add("Where", n.constant(~later, bool), n.constant(0), n.constant(-np.inf))
    scores = n.add("Add", scores, mask)
    y = n.add("MatMul", guarded(n, scores) if n.chance(0.7) else n.add("Softmax", scores, axis=-1), v)
    y = n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.ints(1, length, width))
    return linear(n, y, width, width)


def experts(n: Net, x: str, width: int) -> str:
    """Each word goes to two of four networks: all are computed, and weights that TopK scatters add them up."""
    scores = n.add("Softmax", linear(n, x, width, 4), axis=-1)
    best, where = n.add("TopK", scores, n.ints(2), outputs=2, axis=-1)
    best = n.add("Div", best, n.add("ReduceSum", best, n.ints(-1)))
    weights = n.add("ScatterElements", n.add("Mul", scores, n.constant(0)), where, best, axis=-1)
    total = None
    for i in range(4):
        y = feed_forward(n, x, width, "gated")
        y = n.add("Mul", y, n.add("Gather", weights, n.ints(i), axis=2))
        total = y if total is None else n.add("Add", total, y)
    return total


def language_model(n: Net) -> Network:
    width, length, vocabulary = 32, 12, 40
    norms, routed = n.chance(), n.chance(0.4)
    x = n.add("Gather", n.constant(n.random.normal(0, n.one_of(1, 0.02), (vocabulary, width))), "ids")
    for _ in range(2):
        x = n.add("Add", x, grouped_attention(n, root_norm(n, x, width), width, length, norms))
        y = root_norm(n, x, width)
        x = n.add("Add", x, experts(n, y, width) if routed else feed_forward(n, y, width, "gated"))
    x = linear(n, root_norm(n, x, width), width, vocabulary)
    samples = [{"ids": n.random.integers(0, vocabulary, (1, length))} for _ in range(4)]
    return finished(n, "language model, " + ("experts" if routed else "dense"), {"ids": (INT64, [1, length])}, [x], samples)


def rolled(n: Net, x: str, by: int) -> str:
    """Two slices change places, along each axis."""
    for axis in (1, 2):
        first = n.add("Slice", x, n.ints(by), n.ints(2**62), n.ints(axis))
        x = n.add("Concat", first, n.add("Slice", x, n.ints(0), n.ints(by), n.ints(axis)), axis=axis)
    return x


def windows(n: Net) -> Network:
    """As Swin: attention within windows that are shifted in every second block, with positions of a table, LayerScale at times."""
    width, side, window = 16, 8, 4
    x = n.add("Conv", "x", n.weight(width, 3, 4, 4, scale=2), n.weight(width), strides=[4, 4], kernel_shape=[4, 4])
    x = n.add("Transpose", x, perm=[0, 2, 3, 1])
    parts, cells = side // window, window * window
    for shift in (0, window // 2):
        y = normalized(n, x, width, True)
        y = rolled(n, y, shift) if shift else y
        y = n.add("Reshape", y, n.ints(-1, parts, window, parts, window, width))
        y = n.add("Reshape", n.add("Transpose", y, perm=[0, 1, 3, 2, 4, 5]), n.ints(-1, cells, width))
        y = n.add("Reshape", linear(n, y, width, 3 * width), n.ints(-1, cells, 3, 2, width // 2))
        y = n.add("Transpose", y, perm=[2, 0, 3, 1, 4])
        q, k, v = (n.add("Squeeze", s, n.ints(0)) for s in n.add("Split", y, n.ints(1, 1, 1), outputs=3, axis=0))
        scores = n.add("MatMul", n.add("Mul", q, n.constant(8**-0.5)), n.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = n.add("Add", scores, n.constant(n.random.normal(0, 0.3, (1, 2, cells, cells))))
        if shift:  # windows at the border hold two regions
            region = np.arange(parts * parts)[:, None] * np.ones((1, cells)) + (np.arange(cells) % 2)
            apart = np.where(region[:, None, :] != region[:, :, None], n.one_of(-100, -np.inf), 0)
            scores = n.add("Reshape", scores, n.ints(-1, parts * parts, 2, cells, cells))
            scores = n.add("Add", scores, n.constant(apart[None, :, None]))
            scores = n.add("Reshape", scores, n.ints(-1, 2, cells, cells))
        y = n.add("Transpose", n.add("MatMul", n.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        y = linear(n, n.add("Reshape", y, n.ints(-1, cells, width)), width, width)
        y = n.add("Reshape", y, n.ints(-1, parts, parts, window, window, width))
        y = n.add("Reshape", n.add("Transpose", y, perm=[0, 1, 3, 2, 4, 5]), n.ints(-1, side, side, width))
        y = rolled(n, y, side - shift) if shift else y
        y = n.add("Mul", y, n.weight(width, shift=0.5)) if n.chance() else y
        x = n.add("Add", x, y)
        x = n.add("Add", x, feed_forward(n, normalized(n, x, width, True), width, "gelu"))
    x = n.add("ReduceMean", normalized(n, x, width, True), axes=[1, 2], keepdims=0)
    x = n.add("Gemm", x, n.weight(7, width), n.weight(7), transB=1)
    return finished(n, "windows", batch_of(n, 3, 32, 32), [x], pictures(n, 32))


def batch_of(n: Net, *dims: int) -> dict[str, tuple]:
    return {"x": batch(n, *dims)}


def sampled(n: Net) -> Network:
    """Points that the network itself chooses are read by GridSample, as deformable attention and optical flow have it."""
    width, kind = 16, n.one_of("silu", "Relu", "gelu")
    x = backbone(n, kind)[0]
    flow = n.add("Mul", n.add("Tanh", conv(n, x, width, 2, 3)), n.constant(0.2))
    side = 16
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side)), -1)[None]
    where = n.add("Add", n.add("Transpose", flow, perm=[0, 2, 3, 1]), n.constant(grid))
    y = n.add("GridSample", x, where, mode="bilinear", padding_mode=n.one_of("zeros", "border"), align_corners=int(n.chance()))
    y = activation(n, conv(n, n.add("Concat", x, y, axis=1), 2 * width, width, 3), kind)
    return finished(n, "sampled points", batch_of(n, 3, 32, 32), [conv(n, y, width, 4)], pictures(n, 32))


def weight_normed(n: Net, into: int, out: int, size: int) -> str:
    """A direction and a length, of which the graph makes the weight."""
    direction = n.weight(out, into, size, scale=1.3)
    length = n.constant(n.random.uniform(0.7, 1.4, (out, 1, 1)))
    norm = n.add("ReduceL2", direction, axes=[1, 2], keepdims=1)
    return n.add("Mul", direction, n.add("Div", length, norm))


def conformer(n: Net) -> Network:
    """Sound: weight-normalized convolutions, then blocks of half a feed-forward, attention and a gated convolution."""
    width, length = 16, 128
    attributes = {"kernel_shape": [9], "strides": [4], "pads": [4, 4]}
    x = n.add("Conv", "x", weight_normed(n, 1, width, 9), n.weight(width), **attributes)
    x = n.add("Transpose", activation(n, x, n.one_of("gelu", "silu", "LeakyRelu")), perm=[0, 2, 1])
    for _ in range(2):
        y = feed_forward(n, normalized(n, x, width, True), width, "silu")
        x = n.add("Add", x, n.add("Mul", y, n.constant(0.5)))
        y = n.add("Transpose", normalized(n, x, width, True), perm=[0, 2, 1])
        first, gate = n.add("Split", conv1d(n, y, width, 2 * width, 1), n.ints(width, width), outputs=2, axis=1)
        y = conv1d(n, n.add("Mul", first, n.add("Sigmoid", gate)), width, width, 5, group=width)
        y = conv1d(n, activation(n, y, "silu"), width, width, 1)
        x = n.add("Add", x, n.add("Transpose", y, perm=[0, 2, 1]))
    x = linear(n, normalized(n, x, width, True), width, 11)
    x = n.add("LogSoftmax", x, axis=-1) if n.chance() else x
    return finished(
        n,
        "conformer",
        {"x": (FLOAT, [n.one_of(1, "N"), 1, length])},
        [x],
        [{"x": smooth(n.random, 1, 1, length)} for _ in range(4)],
    )


def computed_shapes(n: Net) -> Network:
    """Axes that the graph itself asks for: Shape, Gather or Slice, Concat, Reshape, Expand, and Resize to such sizes."""
    width, kind = 16, n.one_of("silu", "Relu", "HardSwish")
    first, second, _ = backbone(n, kind)
    x = up(n, second, width, first, "interpolated" if n.chance() else "nearest")
    x = activation(n, conv(n, n.add("Concat", x, first, axis=1), 2 * width, width, 3), kind)
    count = n.add("Mul", number_of(n, x, 2), number_of(n, x, 3))
    y = n.add("Reshape", x, n.add("Concat", number_of(n, x, 0), n.ints(width), count, axis=0))
    pooled = n.add("ReduceMean", y, axes=[2])
    gate = n.add("Sigmoid", conv1d(n, pooled, width, width, 1))
    y = n.add("Mul", y, n.add("Expand", gate, n.add("Shape", y)))
    y = n.add("Einsum", y, n.weight(6, width, scale=1.2), equation="bcl,oc->bol")
    sizes = n.add("Slice", n.add("Shape", x), n.ints(2), n.ints(4), n.ints(0))
    y = n.add("Reshape", y, n.add("Concat", number_of(n, x, 0), n.ints(6), sizes, axis=0))
    return finished(n, "computed shapes", batch_of(n, 3, 32, 32), [y], pictures(n, 32))


def both_directions(n: Net) -> Network:
    """Sound features through recurrent layers behind each other, and a head over all steps."""
    width, frames = 12, 20
    x = n.add("Transpose", activation(n, conv1d(n, "x", 8, width, 3), n.one_of("Relu", "silu")), perm=[2, 0, 1])
    for _ in range(2):
        x = recurrent_layer(n, x, width, width)
    x = n.add("Transpose", x, perm=[1, 0, 2])
    x = linear(n, normalized(n, x, width, True), width, 9)
    return finished(
        n, "recurrent layers", {"x": (FLOAT, [1, 8, frames])}, [x], [{"x": smooth(n.random, 1, 8, frames)} for _ in range(4)]
    )


def scaled_blocks(n: Net) -> Network:
    """As ConvNeXt: depthwise convolutions, norms over channels that lie last, LayerScale; norms of groups at times."""
    width = 16
    x = conv(n, "x", 3, width, 4, stride=4) if n.chance() else activation(n, conv(n, "x", 3, width, 3, stride=4), "gelu")
    for _ in range(3):
        y = conv(n, x, width, width, 7, group=width)
        if n.chance(0.3):
            y = n.add("InstanceNormalization", y, n.weight(width, shift=1), n.weight(width), epsilon=1e-5)
        y = normalized(n, n.add("Transpose", y, perm=[0, 2, 3, 1]), width, True)
        y = n.add("Mul", feed_forward(n, y, width, "gelu"), n.weight(width, shift=0.5))
        x = n.add("Add", x, n.add("Transpose", y, perm=[0, 3, 1, 2]))
    x = normalized(n, n.add("Flatten", n.add("GlobalAveragePool", x)), width, True)
    x = n.add("Gemm", x, n.weight(9, width), n.weight(9), transB=1)
    return finished(n, "scaled blocks", batch_of(n, 3, 32, 32), [x], pictures(n, 32))


def log_features(n: Net) -> Network:
    """Logarithms and exponentials between products: log-sum-exp, softplus, distances."""
    width = 16
    x = normalized(n, linear(n, "x", 12, width), width, True)
    y = n.add(
        "Log", n.add("Add", n.add("Exp", n.add("Clip", linear(n, x, width, width), n.constant(-6), n.constant(3))), n.constant(1))
    )
    z = n.add("Softplus", linear(n, x, width, width))
    x = n.add("Mul", y, n.add("Div", z, n.add("Add", n.add("ReduceSum", z, n.ints(-1)), n.constant(0.1))))
    x = linear(n, n.add("Concat", x, y, axis=-1), 2 * width, width)
    centres = n.constant(n.random.normal(0, 1, (1, 1, 5, width)))
    apart = n.add("Sub", n.add("Unsqueeze", x, n.ints(2)), centres)
    near = n.add("ReduceSum", n.add("Mul", apart, apart), n.ints(-1), keepdims=0)
    x = n.add("Softmax", n.add("Neg", near), axis=-1) if n.chance() else n.add("Sqrt", near)
    samples = [{"x": n.random.normal(0, 1, (1, 10, 12)).astype(np.float32)} for _ in range(4)]
    return finished(n, "logarithms", {"x": (FLOAT, [n.one_of(1, "N"), 10, 12])}, [x], samples)
