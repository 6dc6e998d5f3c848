"""Networks that make something: words behind those that are kept (decoders), pictures out of noise, voices out of a mixture."""

import numpy as np
import onnx
from net import FLOAT, INT64, LOW, Net, Network, Part, activation, conv, finished, linear, smooth
from sequences import conv1d, feed_forward, norm, rotated


def number_of(n: Net, x: str, axis: int) -> str:
    """Of an axis, as one element."""
    return n.add("Gather", n.add("Shape", x), n.ints(axis), axis=0)


def filled(n: Net, low: float, *sides: str) -> str:
    tensor = onnx.numpy_helper.from_array(np.array([low], np.float32))
    return n.add("ConstantOfShape", n.add("Concat", *sides, axis=0), value=tensor)


def counted(n: Net, first: str, last: str) -> str:
    ends = (n.add("Squeeze", end, n.ints(0)) for end in (first, last))
    return n.add("Range", *ends, n.constant(1, np.int64))


def later_hidden(n: Net, new: str, kept: str, every: str, low: float) -> str:
    """Words do not see later ones: of each new word a row over all, kept ones first."""
    way = n.one_of("chosen", "triangle", "product")
    if way == "chosen":  # transformers 4.36
        steps = counted(n, n.ints(0), new)
        seen = n.add("Less", steps, n.add("Reshape", n.add("Add", steps, n.constant(1, np.int64)), n.ints(-1, 1)))
        own = n.add("Where", seen, n.constant(0), filled(n, low, new, new))
        rows = n.add("Concat", n.add("Cast", filled(n, 0, new, kept), to=FLOAT), n.add("Cast", own, to=FLOAT), axis=1)
    else:
        shift = n.add("Add", n.add("Squeeze", kept, n.ints(0)), n.constant(1, np.int64))
        rows = n.add("Trilu", filled(n, low, new, every), shift, upper=1)
        if way == "product":
            behind = n.add("Greater", counted(n, n.ints(0), every), n.add("Reshape", counted(n, kept, every), n.ints(-1, 1)))
            rows = n.add("Mul", rows, n.add("Cast", behind, to=FLOAT))
    rows = n.add("Unsqueeze", rows, n.ints(0, 1))
    return n.add("Expand", rows, n.add("Concat", n.ints(1, 1), new, every, axis=0))


def padding_hidden(n: Net, rows: str, new: str, every: str, low: float) -> str:
    given = n.add("Expand", n.add("Unsqueeze", "mask", n.ints(1, 2)), n.add("Concat", n.ints(1, 1), new, every, axis=0))
    absent = n.add("Sub", n.constant(1), n.add("Cast", given, to=FLOAT))
    return n.add("Where", n.add("Cast", absent, to=onnx.TensorProto.BOOL), n.constant(low), rows)


def repeated(n: Net, x: str, times: int, size: int, every: str) -> str:
    """Each head of keys and values serves several of queries."""
    shape = n.add("Concat", n.ints(1, 2, times), every, n.ints(size), axis=0)
    y = n.add("Expand", n.add("Unsqueeze", x, n.ints(2)), shape)
    return n.add("Reshape", y, n.add("Concat", n.ints(1, 2 * times), every, n.ints(size), axis=0))


def with_kept(n: Net, x: str, layer: int, rows: str, lengths: tuple[str, str], count: int, outputs: dict[str, int]) -> str:
    """Attention of new words to kept ones and themselves."""
    width, size, (new, every) = 32, 8, lengths
    turn = n.chance()
    parts = []
    for heads in (4, 2, 2):
        y = n.add("Reshape", linear(n, x, width, heads * size), n.add("Concat", n.ints(1), new, n.ints(heads, size), axis=0))
        parts.append(n.add("Transpose", y, perm=[0, 2, 1, 3]))
    q, k, v = parts
    if turn:
        q, k = rotated(n, q, count, size), rotated(n, k, count, size)
    k = n.add("Concat", f"past.{layer}.key", k, axis=2)
    v = n.add("Concat", f"past.{layer}.value", v, axis=2)
    outputs |= {k: FLOAT, v: FLOAT}
    k, v = repeated(n, k, 2, size, every), repeated(n, v, 2, size, every)
    root = n.constant(size**0.5)
    if layer == 1:  # GPT-2's, of a shape
        root = n.add("Sqrt", n.add("Cast", number_of(n, q, 3), to=FLOAT))
    scores = n.add("Div", n.add("MatMul", q, n.add("Transpose", k, perm=[0, 1, 3, 2])), root)
    if layer == 1:
        scores = n.add("Where", n.add("Less", rows, n.constant(-1)), n.constant(-1e4), scores)
    weights = n.add("Softmax", n.add("Add", scores, rows), axis=-1)
    y = n.add("Transpose", n.add("MatMul", weights, v), perm=[0, 2, 1, 3])
    return linear(n, n.add("Reshape", y, n.add("Concat", n.ints(1), new, n.ints(width), axis=0)), width, width)


def decoder(n: Net) -> Network:
    """The next words, with what earlier runs kept of earlier ones: LLaMA's kind, the masks made from shapes."""
    width, vocabulary, count, past = 32, 40, 4, 6
    low = n.one_of(LOW, LOW, -np.inf, -1e4)
    free = n.chance()
    words, kept_axis, all_axis = ("T", "P", "S") if free else (count, past, past + count)
    inputs = {"ids": (INT64, [1, words]), "mask": (INT64, [1, all_axis])}
    kept = number_of(n, "past.0.key", 2)
    new = number_of(n, "ids", 1)
    every = n.add("Add", kept, new)
    rows = later_hidden(n, new, kept, every, low)
    if n.chance():
        rows = padding_hidden(n, rows, new, every, LOW)
    x = n.add("Gather", n.constant(n.random.normal(0, 1, (vocabulary, width))), "ids")
    outputs: dict[str, int] = {}
    form, kind = n.one_of("root", "casts", "whole"), n.one_of("gated", "gelu")
    for layer in range(2):
        inputs |= {f"past.{layer}.{part}": (FLOAT, [1, 2, kept_axis, 8]) for part in ("key", "value")}
        x = n.add("Add", x, with_kept(n, norm(n, x, width, form), layer, rows, (new, every), count, outputs))
        x = n.add("Add", x, feed_forward(n, norm(n, x, width, form), width, kind))
    x = linear(n, norm(n, x, width, form), width, vocabulary)
    samples = []
    for i in range(4):
        sample = {"ids": n.random.integers(0, vocabulary, (1, count)), "mask": np.ones((1, past + count), np.int64)}
        sample["mask"][0, : i % 2] = 0
        for key in list(inputs)[2:]:
            sample[key] = n.random.normal(0, 1, (1, 2, past, 8)).astype(np.float32)
        samples.append(sample)
    return finished(n, "decoder with a past", inputs, {x: FLOAT} | outputs, samples)


def group_norm(n: Net, x: str, width: int) -> str:
    """Of pictures, as torch exports it."""
    y = n.add("Reshape", x, n.ints(0, 4, -1))
    y = n.add("InstanceNormalization", y, n.constant(np.ones(4)), n.constant(np.zeros(4)), epsilon=1e-5)
    y = n.add("Mul", n.add("Reshape", y, n.add("Shape", x)), n.constant(n.random.normal(1, 0.2, (width, 1, 1))))
    return n.add("Add", y, n.constant(n.random.normal(0, 0.2, (width, 1, 1))))


def stage(n: Net, x: str, moment: str, into: int, width: int) -> str:
    """A residual block that is told the time."""
    y = conv(n, activation(n, group_norm(n, x, into), "silu"), into, width, 3)
    told = n.add("Unsqueeze", linear(n, activation(n, moment, "silu"), 16, width), n.ints(2, 3))
    y = n.add("Add", y, told)
    y = conv(n, activation(n, group_norm(n, y, width), "silu"), width, width, 3)
    return n.add("Add", x if into == width else conv(n, x, into, width), y)


def looks_around(n: Net, x: str, width: int, cells: int) -> str:
    """Attention of pixels to pixels."""
    y = n.add("Transpose", n.add("Reshape", group_norm(n, x, width), n.ints(0, width, cells)), perm=[0, 2, 1])
    q, k, v = (linear(n, y, width, width) for _ in range(3))
    scores = n.add("MatMul", n.add("Mul", q, n.constant(width**-0.5)), n.add("Transpose", k, perm=[0, 2, 1]))
    y = linear(n, n.add("MatMul", n.add("Softmax", scores, axis=-1), v), width, width)
    return n.add("Add", x, n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1]), n.add("Shape", x)))


def denoiser(n: Net) -> Network:
    """As diffusion has it: a picture of noise and a time; group norms, attention at the bottom, connections to the way up."""
    size, batch = 16, n.one_of(1, "N")
    angles = n.add("Mul", n.add("Unsqueeze", "time", n.ints(1)), n.constant(np.exp(-np.arange(8) / 2)[None]))
    moment = n.add("Concat", n.add("Sin", angles), n.add("Cos", angles), axis=1)
    moment = linear(n, moment, 16, 16)
    first = stage(n, conv(n, "x", 3, 16, 3), moment, 16, 16)
    x = stage(n, conv(n, first, 16, 16, 3, stride=2), moment, 16, 32)
    x = looks_around(n, x, 32, (size // 2) ** 2)
    if n.chance():
        x = n.add("ConvTranspose", x, n.weight(32, 16, 2, 2, scale=1.4), n.weight(16), strides=[2, 2])
    else:
        attributes = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        x = conv(n, n.add("Resize", x, "", n.constant([1, 1, 2, 2]), **attributes), 32, 16, 3)
    x = stage(n, n.add("Concat", x, first, axis=1), moment, 32, 16)
    x = conv(n, activation(n, group_norm(n, x, 16), "silu"), 16, 3, 3)
    samples = [{"x": smooth(n.random, 1, 3, size, size), "time": np.array([i * 3 + 1], np.float32)} for i in range(4)]
    inputs = {"x": (FLOAT, [batch, 3, size, size]), "time": (FLOAT, [batch])}
    return finished(n, "denoiser", inputs, [x], samples)


def over_all(n: Net, x: str, width: int) -> str:
    """A norm over channels and time."""
    centred = n.add("Sub", x, n.add("ReduceMean", x, axes=[1, 2]))
    variance = n.add("ReduceMean", n.add("Pow", centred, n.constant(2)), axes=[1, 2])
    y = n.add("Div", centred, n.add("Sqrt", n.add("Add", variance, n.constant(1e-8))))
    y = n.add("Mul", y, n.constant(n.random.normal(1, 0.2, (1, width, 1))))
    return n.add("Add", y, n.constant(n.random.normal(0, 0.2, (1, width, 1))))


def separator(n: Net) -> Network:
    """As Conv-TasNet: frames, masks of two voices from dilated convolutions, and frames to sound."""
    width, length = 16, 128
    frames = n.add("Relu", conv1d(n, "x", 1, width, 9, stride=4))
    x = conv1d(n, over_all(n, frames, width), width, width, 1)
    total = None
    for i in range(3):
        y = n.add("PRelu", conv1d(n, x, width, 2 * width, 1), n.constant(n.random.uniform(0.1, 0.4, (1, 1))))
        y = conv1d(n, over_all(n, y, 2 * width), 2 * width, 2 * width, 3, group=2 * width, dilation=2**i)
        y = n.add("PRelu", y, n.constant(n.random.uniform(0.1, 0.4, (1, 1))))
        skip = conv1d(n, y, 2 * width, width, 1)
        total = skip if total is None else n.add("Add", total, skip)
        x = n.add("Add", x, conv1d(n, y, 2 * width, width, 1))
    masks = n.add("Reshape", conv1d(n, total, width, 2 * width, 1), n.ints(-1, 2, width, length // 4))
    masks = n.add(n.one_of("Sigmoid", "Relu"), masks)
    y = n.add("Mul", n.add("Unsqueeze", frames, n.ints(1)), masks)
    y = n.add("Reshape", y, n.ints(-1, width, length // 4))
    attributes = {"kernel_shape": [8], "strides": [4], "pads": [2, 2]}
    y = n.add("ConvTranspose", y, n.weight(width, 1, 8, scale=1.4), **attributes)
    y = n.add("Reshape", y, n.ints(-1, 2, length))
    samples = [{"x": smooth(n.random, 1, 1, length)} for _ in range(4)]
    parts = [Part(0, 1, i, i + 1) for i in range(2)]
    return finished(n, "separator", {"x": (FLOAT, [n.one_of(1, "N"), 1, length])}, [y], samples, parts)
