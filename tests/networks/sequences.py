"""Networks of sequences in the idioms of exporters: transformers, sound, recurrent nets."""

import numpy as np
from net import FLOAT, INT64, LOW, Net, Network, activation, finished, linear, normalized, smooth


def root_mean_square(n: Net, x: str, width: int, with_casts: bool) -> str:
    """As LLaMA and T5 are exported, at times with Casts of float to float."""
    x = n.add("Cast", x, to=FLOAT) if with_casts else x
    mean = n.add("ReduceMean", n.add("Pow", x, n.constant(2)), axes=[-1])
    root = n.add("Sqrt", n.add("Add", mean, n.constant(1e-6)))
    y = n.add("Div", x, root) if n.chance() else n.add("Mul", x, n.add("Div", n.constant(1), root))
    y = n.add("Cast", y, to=FLOAT) if with_casts else y
    return n.add("Mul", n.weight(width, shift=1, scale=0.5), y)


def norm(n: Net, x: str, width: int, way: str) -> str:
    if way in ("whole", "parts"):
        return normalized(n, x, width, way == "whole")
    return root_mean_square(n, x, width, way == "casts")


def heads_of(n: Net, x: str, width: int, length: int, heads: int) -> list[str]:
    """Queries, keys that are not transposed, and values: of one product or of three."""
    size = width // heads
    if n.chance(0.4):
        y = n.add("Reshape", linear(n, x, width, 3 * width), n.ints(0, length, 3, heads, size))
        y = n.add("Transpose", y, perm=[2, 0, 3, 1, 4])
        return [n.add("Gather", y, n.constant(i, np.int64), axis=0) for i in range(3)]
    parts = []
    for _ in range(3):
        y = n.add("Reshape", linear(n, x, width, width), n.ints(0, length, heads, size))
        parts.append(n.add("Transpose", y, perm=[0, 2, 1, 3]))
    return parts


def rotated(n: Net, x: str, length: int, size: int) -> str:
    """Rotary positions: halves are swapped and one is negated."""
    angles = np.arange(length)[:, None] / 10.0 ** (np.arange(size // 2) / 2)
    angles = np.concatenate([angles, angles], -1)
    low = n.add("Slice", x, n.ints(0), n.ints(size // 2), n.ints(3))
    high = n.add("Slice", x, n.ints(size // 2), n.ints(2**62), n.ints(3))
    turned = n.add("Concat", n.add("Neg", high), low, axis=-1)
    return n.add("Add", n.add("Mul", x, n.constant(np.cos(angles))), n.add("Mul", turned, n.constant(np.sin(angles))))


def relative_positions(n: Net, length: int, heads: int) -> str:
    """T5's buckets: a logarithm of distances, of 0 as well, of which Where takes the large ones; then rows of a table."""
    span = n.add("Range", n.constant(0, np.int64), n.constant(length, np.int64), n.constant(1, np.int64))
    distances = n.add("Sub", n.add("Unsqueeze", span, n.ints(0)), n.add("Unsqueeze", span, n.ints(1)))
    past = n.add("Neg", n.add("Min", distances, n.constant(np.zeros((1, 1)), np.int64)))
    near = n.add("Less", past, n.constant(4, np.int64))
    far = n.add("Log", n.add("Div", n.add("Cast", past, to=FLOAT), n.constant(4)))
    far = n.add("Mul", n.add("Div", far, n.constant(np.log(8))), n.constant(4))
    far = n.add("Add", n.add("Cast", far, to=INT64), n.constant(4, np.int64))
    bucket = n.add("Where", near, past, n.add("Min", far, n.constant(np.full((1, 1), 7), np.int64)))
    table = n.constant(n.random.normal(0, 0.5, (8, heads)))
    return n.add("Unsqueeze", n.add("Transpose", n.add("Gather", table, bucket), perm=[2, 0, 1]), n.ints(0))


def masked(n: Net, scores: str, length: int, way: str) -> str:
    """What is not to be attended to."""
    later = np.triu(np.ones((1, 1, length, length), bool), 1)
    if way == "sum":  # -1e9 and the like
        return n.add("Add", scores, n.constant(later * n.one_of(-1e9, -1e4, LOW)))
    if way == "sum of infinities":
        table = n.add("Where", n.constant(later, bool), n.constant(-np.inf), n.constant(0))
        return n.add("Add", scores, table)
    if way == "choice":
        low = n.constant(-np.inf) if n.chance() else n.constant(n.one_of(-1e9, LOW))
        return n.add("Where", n.constant(later, bool), low, scores)
    if way == "of the input":  # as BERT's: 1 - mask, times a great number
        given = n.add("Cast", n.add("Unsqueeze", "mask", n.ints(1, 2)), to=FLOAT)
        return n.add("Add", scores, n.add("Mul", n.add("Sub", n.constant(1), given), n.constant(n.one_of(-1e4, LOW))))
    return scores


def attention(n: Net, x: str, width: int, length: int, way: dict) -> str:
    heads, size = 4, width // 4
    q, k, v = heads_of(n, x, width, length, heads)
    if way["positions"] == "rotary":
        q, k = rotated(n, q, length, size), rotated(n, k, length, size)
    spelling = way["spelling"]
    if spelling == "einsum of positions":  # heads behind positions, as JAX has them
        q, k, v = (n.add("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, k, v))
        scores = n.add("Einsum", n.add("Mul", q, n.constant(size**-0.5)), k, equation="bihd,bjhd->bhij")
    elif spelling == "einsum":
        scores = n.add("Einsum", q, k, equation="bhid,bhjd->bhij")
        scores = n.add("Mul", scores, n.constant(size**-0.5))
    elif spelling == "scaled operands":  # torch's scaled_dot_product_attention
        root = n.constant(size**-0.25)
        scores = n.add("MatMul", n.add("Mul", q, root), n.add("Mul", n.add("Transpose", k, perm=[0, 1, 3, 2]), root))
    elif spelling == "flat":  # heads in the batch, as timm and fairseq write it
        q, k, v = (n.add("Reshape", y, n.ints(-1, length, size)) for y in (q, k, v))
        scores = n.add("MatMul", n.add("Mul", q, n.constant(size**-0.5)), n.add("Transpose", k, perm=[0, 2, 1]))
        scores = n.add("Reshape", scores, n.ints(-1, heads, length, length))
    else:
        scores = n.add("Div", n.add("MatMul", q, n.add("Transpose", k, perm=[0, 1, 3, 2])), n.constant(size**0.5))
    if way["positions"] == "relative":
        scores = n.add("Add", scores, relative_positions(n, length, heads))
    weights = n.add("Softmax", masked(n, scores, length, way["mask"]), axis=-1)
    if spelling == "flat":
        weights = n.add("Reshape", weights, n.ints(-1, length, length))
        y = n.add("Reshape", n.add("MatMul", weights, v), n.ints(-1, heads, length, size))
    elif spelling == "einsum of positions":
        y = n.add("Einsum", weights, v, equation="bhij,bjhd->bihd")
        return linear(n, n.add("Reshape", y, n.ints(0, length, width)), width, width)
    else:
        y = n.add("Einsum", weights, v, equation="bhij,bhjd->bhid") if spelling == "einsum" else n.add("MatMul", weights, v)
    return linear(n, n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.ints(0, length, width)), width, width)


def feed_forward(n: Net, x: str, width: int, kind: str) -> str:
    if kind == "gated":  # LLaMA's
        return linear(
            n, n.add("Mul", activation(n, linear(n, x, width, 2 * width), "silu"), linear(n, x, width, 2 * width)), 2 * width, width
        )
    return linear(n, activation(n, linear(n, x, width, 2 * width), kind), 2 * width, width)


SPELLINGS = ("plain", "scaled operands", "flat", "einsum", "einsum of positions")
MASKS = ("", "sum", "sum of infinities", "choice", "of the input")


def transformer(n: Net) -> Network:
    """Ids of tokens or patches of a picture; attention in one of five spellings; norms, masks and positions of several kinds."""
    width, length, vocabulary = 32, 12, 40
    way = {
        "spelling": n.one_of(*SPELLINGS),
        "positions": n.one_of("table", "rotary", "relative"),
        "mask": n.one_of(*MASKS),
    }
    form, kind, first = n.one_of("whole", "parts", "root", "casts"), n.one_of("gelu", "Relu", "silu", "gated"), n.chance(0.7)
    free = n.one_of(1, "N")
    inputs = {"ids": (INT64, [free, length])}
    if way["mask"] == "of the input":
        inputs["mask"] = (INT64, [free, length])
    x = n.add("Gather", n.constant(n.random.normal(0, 1, (vocabulary, width))), "ids")
    if way["positions"] == "table":
        x = n.add("Add", x, n.constant(n.random.normal(0, 0.5, (1, length, width))))
    for _ in range(n.random.integers(1, 3)):
        y = attention(n, norm(n, x, width, form) if first else x, width, length, way)
        x = n.add("Add", x, y)
        x = x if first else norm(n, x, width, form)
        y = feed_forward(n, norm(n, x, width, form) if first else x, width, kind)
        x = n.add("Add", x, y)
        x = x if first else norm(n, x, width, form)
    x = norm(n, x, width, form) if first else x
    end = n.one_of("class", "words", "states")
    if end == "class":
        x = n.add("Slice", x, n.ints(0), n.ints(1), n.ints(1))
        x = n.add("Tanh", n.add("Gemm", n.add("Reshape", x, n.ints(-1, width)), n.weight(width, 10), n.weight(10)))
    elif end == "words":
        x = linear(n, x, width, vocabulary)
    samples = []
    for i in range(4):
        sample = {"ids": n.random.integers(0, vocabulary, (1, length))}
        if "mask" in inputs:
            sample["mask"] = np.array([[1] * (length - i) + [0] * i])
        samples.append(sample)
    name = ", ".join(["transformer", way["spelling"], way["positions"], f"mask: {way['mask'] or 'none'}"])
    return finished(n, name, inputs, [x], samples)


def patches(n: Net) -> Network:
    """A vision transformer: a convolution makes tokens, a class token stands before them."""
    width = 32
    x = n.add("Conv", "x", n.weight(width, 3, 8, 8, scale=2), n.weight(width), strides=[8, 8], kernel_shape=[8, 8])
    x = n.add("Transpose", n.add("Reshape", x, n.ints(0, width, 16)), perm=[0, 2, 1])
    if n.chance():
        first = n.add("Slice", n.add("Shape", x), n.ints(0), n.ints(1), n.ints(0))
        token = n.add("Expand", n.constant(n.random.normal(size=(1, 1, width))), n.add("Concat", first, n.ints(1, width), axis=0))
        x, length = n.add("Concat", token, x, axis=1), 17
    else:
        length = 16
    x = n.add("Add", x, n.constant(n.random.normal(0, 0.3, (1, length, width))))
    way = {"spelling": n.one_of(*SPELLINGS), "positions": "", "mask": ""}
    for _ in range(2):
        y = attention(n, normalized(n, x, width, True), width, length, way)
        if n.chance():
            y = n.add("Mul", y, n.weight(width, shift=0.5))  # LayerScale
        x = n.add("Add", x, y)
        x = n.add("Add", x, feed_forward(n, normalized(n, x, width, True), width, "gelu"))
    x = normalized(n, x, width, True)
    x = n.add("ReduceMean", x, axes=[1], keepdims=0) if n.chance() else n.add("Gather", x, n.constant(0, np.int64), axis=1)
    x = n.add("Gemm", x, n.weight(10, width), n.weight(10), transB=1)
    samples = [{"x": smooth(n.random, 1, 3, 32, 32)} for _ in range(4)]
    return finished(n, "vision transformer", {"x": (FLOAT, [n.one_of(1, "N"), 3, 32, 32])}, [x], samples)


def conv1d(n: Net, x: str, into: int, out: int, size: int, stride: int = 1, group: int = 1, dilation: int = 1) -> str:
    pad = dilation * (size - 1) // 2
    attributes = {"kernel_shape": [size], "strides": [stride], "pads": [pad, pad], "group": group, "dilations": [dilation]}
    return n.add("Conv", x, n.weight(out, into // group, size, scale=1.3), n.weight(out), **attributes)


def group_norm(n: Net, x: str, width: int) -> str:
    """As torch exports it: an InstanceNormalization of groups."""
    y = n.add("Reshape", x, n.ints(0, 4, -1))
    y = n.add("InstanceNormalization", y, n.constant(np.ones(4)), n.constant(np.zeros(4)), epsilon=1e-5)
    y = n.add("Mul", n.add("Reshape", y, n.add("Shape", x)), n.constant(n.random.normal(1, 0.2, (width, 1))))
    return n.add("Add", y, n.constant(n.random.normal(0, 0.2, (width, 1))))


def snake(n: Net, x: str) -> str:
    """As voices have it."""
    return n.add("Add", x, n.add("Mul", n.add("Pow", n.add("Sin", n.add("Mul", x, n.constant(2))), n.constant(2)), n.constant(0.5)))


def sound(n: Net) -> Network:
    """Dilated convolutions with gates, as WaveNet's and voices'; group norms; a transposed convolution at the end."""
    width, length = 16, 128
    x = conv1d(n, "x", 1, width, 5, stride=2)
    total = None
    for i in range(3):
        y = group_norm(n, x, width) if n.chance(0.4) else x
        y = conv1d(n, y, width, 2 * width, 3, dilation=2**i)
        if n.chance():
            first, second = n.add("Split", y, n.ints(width, width), outputs=2, axis=1)
            y = n.add("Mul", n.add(n.one_of("Tanh", "Sigmoid", "Identity"), first), n.add("Sigmoid", second))
        else:
            y = conv1d(
                n,
                snake(n, y) if n.chance(0.3) else activation(n, y, n.one_of("LeakyRelu", "silu", "Relu", "Elu")),
                2 * width,
                width,
                1,
            )
        total = y if total is None else n.add("Add", total, y)
        x = n.add("Add", x, y)
    x = n.one_of(x, total)
    if n.chance(0.6):
        weight, attributes = n.weight(width, 8, 4, scale=1.4), {"kernel_shape": [4], "strides": [2], "pads": [1, 1]}
        x = n.add("ConvTranspose", n.add("LeakyRelu", x, alpha=0.1), weight, n.weight(8), **attributes)
        quiet = n.one_of(1, 0.1, 1e-3)  # less than a step of the grids that targets fix for Tanh
        x = n.add("Tanh", n.add("Mul", conv1d(n, x, 8, 1, 7), n.constant(quiet)))
        name = "sound to sound"
    else:
        x = n.add("Gemm", n.add("Flatten", n.add("GlobalAveragePool", x)), n.weight(width, 6), n.weight(6))
        name = "sound classifier"
    samples = [{"x": smooth(n.random, 1, 1, length)} for _ in range(4)]
    return finished(n, name, {"x": (FLOAT, [n.one_of(1, "N"), 1, length])}, [x], samples)


def listener(n: Net) -> Network:
    """As wav2vec 2: convolutions over sound with silence in it, whose features are normalized where they are almost nothing."""
    width = 16
    x = activation(n, conv1d(n, "x", 1, width, 9, stride=4), "gelu")
    x = n.add("Transpose", activation(n, conv1d(n, x, width, width, 3, stride=2), "gelu"), perm=[0, 2, 1])
    x = linear(n, normalized(n, x, width, False), width, 32)
    way = {"spelling": n.one_of(*SPELLINGS), "positions": "", "mask": ""}
    for _ in range(n.random.integers(1, 3)):
        x = normalized(n, n.add("Add", x, attention(n, x, 32, 16, way)), 32, False)
        x = normalized(n, n.add("Add", x, feed_forward(n, x, 32, "gelu")), 32, False)
    samples = [{"x": smooth(n.random, 1, 1, 128) * (np.arange(128) > 40 * (i % 3))} for i in range(4)]
    samples = [{"x": sample["x"].astype(np.float32)} for sample in samples]
    return finished(n, "listener", {"x": (FLOAT, [n.one_of(1, "N"), 1, 128])}, [linear(n, x, 32, 8)], samples)


def front_end(n: Net) -> Network:
    """A spectrum by a convolution with a Fourier basis, by framed products, or by the operator, then mel bands and a network."""
    size, bins, mels, frames = 32, 17, 12, 15
    window = np.hanning(size)
    angles = 2 * np.pi * np.outer(np.arange(bins), np.arange(size)) / size
    basis = np.concatenate([np.cos(angles), -np.sin(angles)]) * window
    way = n.one_of("convolution", "convolution", "operator")
    if way == "convolution":
        y = n.add("Conv", "x", n.constant(basis[:, None, :]), kernel_shape=[size], strides=[16])
        real, imaginary = n.add("Split", y, n.ints(bins, bins), outputs=2, axis=1)
        power = n.add("Add", n.add("Pow", real, n.constant(2)), n.add("Mul", imaginary, imaginary))
    else:
        flat = n.add("Reshape", "x", n.ints(1, 256))
        y = n.add("STFT", flat, n.constant(16, np.int64), n.constant(window), n.constant(size, np.int64), onesided=1)
        power = n.add("ReduceSum", n.add("Mul", y, y), n.ints(3), keepdims=0)
        power = n.add("Transpose", power, perm=[0, 2, 1])
    if n.chance():
        power = n.add("Sqrt", n.add("Add", power, n.constant(1e-6)))
    bands = n.constant(np.maximum(0, 1 - np.abs(np.arange(bins)[None] * mels / bins - np.arange(mels)[:, None]) / 1.5))
    y = n.add("MatMul", bands, power)
    y = n.add("Log", n.add("Add", y, n.constant(1e-3)) if n.chance() else n.add("Clip", y, n.constant(1e-3)))
    y = n.add("Sub", y, n.add("ReduceMean", y, axes=[2])) if n.chance() else y
    x = n.add("Relu", conv1d(n, y, mels, 16, 3))
    x = conv1d(n, x, 16, 16, 3)
    if n.chance():
        x = recurrent_layer(n, n.add("Transpose", n.add("Relu", x), perm=[2, 0, 1]), 16, 12)
        x = n.add("Gather", x, n.constant(frames - 1, np.int64), axis=0)
        x = n.add("Gemm", x, n.weight(12, 5), n.weight(5))
    else:
        x = n.add("Gemm", n.add("ReduceMean", x, axes=[2], keepdims=0), n.weight(16, 5), n.weight(5))
    samples = [{"x": smooth(n.random, 1, 1, 256)} for _ in range(4)]
    return finished(n, f"front end, {way}", {"x": (FLOAT, [1, 1, 256])}, [x], samples)


def recurrent_layer(n: Net, x: str, into: int, width: int) -> str:
    """Time, batch and channels; the results of both directions are joined."""
    kind = n.one_of("GRU", "LSTM")
    gates, both = {"GRU": 3, "LSTM": 4}[kind], n.chance()
    sides = 2 if both else 1
    weights = [n.constant(n.random.normal(0, c**-0.5, (sides, gates * width, c))) for c in (into, width)]
    bias = n.constant(n.random.normal(0, 0.2, (sides, 2 * gates * width)))
    attributes = {"hidden_size": width, "direction": "bidirectional" if both else "forward"}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    y = n.add(kind, x, *weights, bias, **attributes)
    if not both:
        return n.add("Squeeze", y, n.ints(1))
    y = n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.ints(0, 0, -1))
    return linear(n, y, 2 * width, width)


def reader(n: Net) -> Network:
    """Lines of text, as recognisers read them: convolutions, then a recurrent net over columns."""
    width, kind = 16, n.one_of("Relu", "silu", "LeakyRelu", "hard silu")
    x = "x"
    for into, out, strides in ((1, 8, [2, 2]), (8, width, [2, 1]), (width, width, [2, 1])):
        attributes = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": strides}
        x = activation(n, n.add("Conv", x, n.weight(out, into, 3, 3, scale=1.4), n.weight(out), **attributes), kind)
    x = n.add("ReduceMean", x, axes=[2], keepdims=0)
    x = recurrent_layer(n, n.add("Transpose", x, perm=[2, 0, 1]), width, 12)
    x = linear(n, x, 12, 9)
    if n.chance():
        x = n.add(n.one_of("Softmax", "LogSoftmax"), x, axis=-1)
    samples = [{"x": smooth(n.random, 1, 1, 16, 32)} for _ in range(4)]
    return finished(n, "reader", {"x": (FLOAT, [n.one_of(1, "N"), 1, 16, 32])}, [x], samples)
