#!/usr/bin/env python3
"""Small networks with random weights, put together from the blocks that published networks are made of. blocks.py FOLDER COUNT"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Samples = list[dict[str, np.ndarray]]


class Net:
    """A network that grows at its end. Values are named after the node that makes them."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def one_of(self, *choices):
        return choices[self.random.integers(len(choices))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def constant(self, values, dtype=np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def weight(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> str:
        fan = max(int(np.prod(shape[1:])), 1) if len(shape) > 1 else 25
        return self.constant(self.random.normal(shift, scale / np.sqrt(fan), shape))

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes):
        name = f"{op_type}_{len(self.nodes)}"
        made = [f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), made, name=name, **attributes))
        return made[0] if outputs == 1 else made

    def model(self, inputs: dict[str, tuple], output: str) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(name, *given) for name, given in inputs.items()]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "blocks", infos, [result], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def activation(n: Net, x: str, kind: str) -> str:
    if kind == "silu":
        return n.add("Mul", x, n.add("Sigmoid", x))
    if kind == "hard silu":
        return n.add("Mul", x, n.add("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    if kind == "hard swish of sums":  # as PaddlePaddle exports it
        clipped = n.add("Clip", n.add("Add", x, n.constant(3)), n.constant(0), n.constant(6))
        return n.add("Div", n.add("Mul", x, clipped), n.constant(6))
    if kind == "relu6":
        return n.add("Clip", x, n.constant(0), n.constant(6))
    if kind == "gelu":
        inner = n.add("Add", n.add("Erf", n.add("Div", x, n.constant(2**0.5))), n.constant(1))
        return n.add("Mul", n.add("Mul", x, inner), n.constant(0.5))
    return n.add(kind, x) if kind else x


KINDS = "Relu,Relu,silu,hard silu,hard swish of sums,relu6,LeakyRelu,HardSwish,gelu,Sigmoid,Tanh,".split(",")


def conv(n: Net, x: str, into: int, out: int, size: int = 1, stride: int = 1, group: int = 1, bias: bool = True) -> str:
    inputs = [x, n.weight(out, into // group, size, size, scale=1.4)] + ([n.weight(out)] if bias else [])
    shape = {"kernel_shape": [size, size], "strides": [stride, stride], "pads": [size // 2] * 4}
    y = n.add("Conv", *inputs, group=group, **shape)
    if not bias and n.chance():  # a bias of its own, as PaddlePaddle exports it
        y = n.add("Add", y, n.constant(n.random.normal(0, 0.2, (1, out, 1, 1))))
    return y


def squeeze_and_excite(n: Net, x: str, width: int, kind: str) -> str:
    pooled = n.add("GlobalAveragePool", x) if n.chance() else n.add("ReduceMean", x, axes=[2, 3], keepdims=1)
    y = activation(n, conv(n, pooled, width, width // 4), "Relu" if n.chance() else kind)
    y = conv(n, y, width // 4, width)
    return n.add("Mul", x, n.add(n.one_of("Sigmoid", "HardSigmoid"), y))


def residual(n: Net, x: str, width: int, kind: str) -> str:
    y = conv(n, activation(n, conv(n, x, width, width, 3, bias=n.chance(0.7)), kind), width, width, n.one_of(1, 3))
    if n.chance(0.3):
        y = squeeze_and_excite(n, y, width, kind)
    side = conv(n, x, width, width) if n.chance(0.3) else x
    total = n.add("Add", y, side) if n.chance(0.7) else n.add("Add", side, y)
    return activation(n, total, kind if n.chance(0.6) else "")


def inverted(n: Net, x: str, width: int, kind: str) -> str:
    y = activation(n, conv(n, x, width, 2 * width), kind)
    y = activation(n, conv(n, y, 2 * width, 2 * width, 3, group=2 * width), kind)
    if n.chance():
        y = squeeze_and_excite(n, y, 2 * width, kind)
    y = conv(n, y, 2 * width, width)
    return n.add("Add", x, y) if n.chance(0.7) else y


def split_and_join(n: Net, x: str, width: int, kind: str) -> str:
    """As YOLOv8's C2f."""
    y = activation(n, conv(n, x, width, width), kind)
    first, second = n.add("Split", y, n.ints(width // 2, width // 2), outputs=2, axis=1)
    inner = activation(n, conv(n, second, width // 2, width // 2, 3), kind)
    if n.chance():
        inner = n.add("Add", second, inner)
    return activation(n, conv(n, n.add("Concat", first, second, inner, axis=1), width * 3 // 2, width), kind)


def branches(n: Net, x: str, width: int, kind: str) -> str:
    parts = [activation(n, conv(n, x, width, width // 2, size), kind) for size in (1, 3)]
    pool = {"kernel_shape": [3, 3], "pads": [1] * 4}
    pooled = n.add("MaxPool", x, **pool) if n.chance() else n.add("AveragePool", x, count_include_pad=1, **pool)
    parts.append(conv(n, pooled, width, width // 2))
    return conv(n, n.add("Concat", *parts, axis=1), width * 3 // 2, width)


def pools(n: Net, x: str, width: int, kind: str) -> str:
    """As spatial pyramids."""
    y = activation(n, conv(n, x, width, width // 2), kind)
    parts = [y]
    for _ in range(2):
        parts.append(n.add("MaxPool", parts[-1], kernel_shape=[5, 5], pads=[2] * 4))
    return conv(n, n.add("Concat", *parts, axis=1), width * 3 // 2, width)


def down_and_up(n: Net, x: str, width: int, kind: str) -> str:
    y = activation(n, conv(n, x, width, width, 3, stride=2), kind)
    if n.chance(0.7):
        scales = [n.constant([], np.float32), n.constant([1, 1, 2, 2])]
        y = n.add("Resize", y, *scales, mode=n.one_of("nearest", "linear"), coordinate_transformation_mode="asymmetric")
    else:
        y = n.add("ConvTranspose", y, n.weight(width, width, 2, 2), strides=[2, 2])
    return n.add("Add", x, y) if n.chance() else conv(n, n.add("Concat", x, y, axis=1), 2 * width, width)


def shuffled(n: Net, x: str, width: int, kind: str, size: int) -> str:
    y = activation(n, conv(n, x, width, width, 3, group=width), kind)
    y = n.add("Reshape", y, n.ints(-1, 2, width // 2, size, size))
    y = n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3, 4]), n.ints(-1, width, size, size))
    return conv(n, y, width, width)


def affine(n: Net, x: str, width: int, kind: str) -> str:
    """A scale and an offset that no convolution takes in."""
    y = n.add("Mul", x, n.constant(n.random.normal(1, 0.2, (1, width, 1, 1))))
    y = n.add("Add", y, n.constant(n.random.normal(0, 0.2, (1, width, 1, 1))))
    return conv(n, activation(n, y, kind), width, width)


IMAGE_BLOCKS = (residual, residual, inverted, split_and_join, branches, pools, down_and_up, affine)


def image_network(n: Net) -> tuple[onnx.ModelProto, Samples]:
    width, size, kind = 16, 16, n.one_of(*KINDS)
    x = activation(n, conv(n, "x", 3, width, 3, stride=2), kind)
    for _ in range(n.random.integers(2, 5)):
        block = n.one_of(*IMAGE_BLOCKS, shuffled)
        x = block(n, x, width, kind, size) if block is shuffled else block(n, x, width, kind)
        if n.chance(0.25):
            kind = n.one_of(*KINDS)
        if n.chance(0.25) and size > 8:
            x, size = n.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), size // 2
    if n.chance(0.7):
        x = n.add("Flatten", n.add("GlobalAveragePool", x))
        x = n.add("Gemm", x, n.weight(width, 10), n.weight(10))
    else:  # of each position, as detectors have it
        x = n.add("Transpose", n.add("Reshape", conv(n, x, width, 12), n.ints(0, 12, -1)), perm=[0, 2, 1])
    if n.chance():
        x = n.add("Softmax", x, axis=-1)
    samples = [{"x": n.random.normal(size=(1, 3, 32, 32)).astype(np.float32)} for _ in range(4)]
    return n.model({"x": (TensorProto.FLOAT, [n.one_of(1, "N"), 3, 32, 32])}, x), samples


def linear(n: Net, x: str, into: int, out: int) -> str:
    y = n.add("MatMul", x, n.constant(n.random.normal(0, into**-0.5, (into, out))))
    bias = n.constant(n.random.normal(0, 0.2, out))
    return n.add("Add", *((y, bias) if n.chance() else (bias, y))) if n.chance(0.85) else y


def normalized(n: Net, x: str, width: int, whole: bool) -> str:
    scale, shift = (n.constant(n.random.normal(mean, 0.1, width)) for mean in (1, 0))
    if whole:
        return n.add("LayerNormalization", x, scale, shift, axis=-1)
    centred = n.add("Sub", x, n.add("ReduceMean", x, axes=[-1]))
    variance = n.add("ReduceMean", n.add("Pow", centred, n.constant(2)), axes=[-1])
    y = n.add("Div", centred, n.add("Sqrt", n.add("Add", variance, n.constant(1e-5))))
    return n.add("Add", n.add("Mul", y, scale), shift)


def attention(n: Net, x: str, width: int, length: int) -> str:
    heads, size = 4, width // 4
    parts = []
    if n.chance():
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            y = n.add("Reshape", linear(n, x, width, width), n.ints(0, length, heads, size))
            parts.append(n.add("Transpose", y, perm=order))
    else:
        y = n.add("Reshape", linear(n, x, width, 3 * width), n.ints(0, length, 3, heads, size))
        y = n.add("Transpose", y, perm=[2, 0, 3, 1, 4])
        for i in range(3):
            parts.append(n.add("Squeeze", n.add("Slice", y, n.ints(i), n.ints(i + 1), n.ints(0)), n.ints(0)))
        parts[1] = n.add("Transpose", parts[1], perm=[0, 1, 3, 2])
    if n.chance():
        scores = n.add("MatMul", n.add("Mul", parts[0], n.constant(size**-0.5)), parts[1])
    else:
        scores = n.add("Div", n.add("MatMul", parts[0], parts[1]), n.constant(size**0.5))
    y = n.add("MatMul", n.add("Softmax", scores, axis=-1), parts[2])
    y = n.add("Reshape", n.add("Transpose", y, perm=[0, 2, 1, 3]), n.ints(0, length, width))
    return linear(n, y, width, width)


def sequence_network(n: Net) -> tuple[onnx.ModelProto, Samples]:
    width, length, whole = 32, 16, n.chance()
    kind, first = n.one_of("gelu", "gelu", "silu", "Relu"), n.chance()
    x = linear(n, "x", 24, width)
    for _ in range(n.random.integers(1, 3)):
        y = attention(n, normalized(n, x, width, whole) if first else x, width, length)
        x = n.add("Add", x, y)
        if not first:
            x = normalized(n, x, width, whole)
        y = normalized(n, x, width, whole) if first else x
        y = linear(n, activation(n, linear(n, y, width, 2 * width), kind), 2 * width, width)
        x = n.add("Add", x, y)
        if not first:
            x = normalized(n, x, width, whole)
    if n.chance():
        x = n.add("ReduceMean", x, axes=[1], keepdims=0)
    x = linear(n, x, width, 10)
    if n.chance():
        x = n.add("Softmax", x, axis=-1)
    samples = [{"x": n.random.normal(size=(1, length, 24)).astype(np.float32)} for _ in range(4)]
    return n.model({"x": (TensorProto.FLOAT, [n.one_of(1, "N"), length, 24])}, x), samples


def network(seed: int) -> tuple[onnx.ModelProto, Samples]:
    """Every third is of sequences, the others are of images. The same seed gives the same network."""
    n = Net(seed)
    return sequence_network(n) if seed % 3 == 2 else image_network(n)


def save(seed: int, folder: Path) -> None:
    """model.onnx, and calibration/ with samples."""
    model, samples = network(seed)
    onnx.save(model, folder / "model.onnx")
    (folder / "calibration").mkdir()
    for i, sample in enumerate(samples):
        np.savez(folder / "calibration" / f"{i}.npz", **sample)


if __name__ == "__main__":
    for seed in range(int(sys.argv[2])):
        made = Path(sys.argv[1]) / str(seed)
        made.mkdir(parents=True)
        save(seed, made)
