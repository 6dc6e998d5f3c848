#!/usr/bin/env python3
"""Models with random weights and the size of well-known networks, for measuring memory and time (not accuracy).

models.py resnet50|resnet18|rrdb|bert|conv3 OUT.onnx [--batch 1] [--size PIXELS] [--blocks N] [--layers N] [--seq N]
          [--bn] [--external]"""

import argparse
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    def __init__(self, opset=17, seed=0):
        self.nodes, self.weights, self.opset = [], [], opset
        self.rng = np.random.default_rng(seed)
        self.parameters = 0

    def constant(self, array):
        name = f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def parameter(self, *shape, std=0.05, mean=0.0):
        self.parameters += int(np.prod(shape))
        return self.constant(np.float32(mean) + np.float32(std) * self.rng.standard_normal(shape, dtype=np.float32))

    def op(self, kind, *inputs, output=None, **attributes):
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output or name + "_out"], name=name, **attributes))
        return output or name + "_out"

    def conv(self, x, cin, cout, kernel=1, stride=1, gain=1.0, bn=False, bias=True):
        # He initialisation keeps activations finite through many layers
        w = self.parameter(cout, cin, kernel, kernel, std=gain * (2 / (cin * kernel * kernel)) ** 0.5)
        b = [self.parameter(cout)] if bias and not bn else []
        x = self.op("Conv", x, w, *b, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
        if bn:
            scale, shift = self.parameter(cout, mean=1.0), self.parameter(cout)
            mean, var = self.constant(np.zeros(cout, np.float32)), self.constant(np.ones(cout, np.float32))
            x = self.op("BatchNormalization", x, scale, shift, mean, var)
        return x

    def linear(self, x, cin, cout, gain=0.7):
        y = self.op("MatMul", x, self.parameter(cin, cout, std=gain * cin**-0.5))
        return self.op("Add", y, self.parameter(cout))

    def layer_norm(self, x, width):
        return self.op("LayerNormalization", x, self.parameter(width, mean=1.0), self.parameter(width), axis=-1, epsilon=1e-12)

    def finish(self, name, inputs, outputs, expect=None):
        assert expect in (None, self.parameters), f"{name}: {self.parameters} parameters, published {expect}"
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, name, [value(*i) for i in inputs], [value(n, TensorProto.FLOAT, s) for n, s in outputs], self.weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def residual_trunk(b, x, bn=False):
    """ResNet-50 without its classifier."""
    conv = lambda *a, **k: b.conv(*a, bn=bn, **k)
    x = b.op("Relu", conv(x, 3, 64, 7, 2))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for i in range(blocks):
            stride = 2 if stage and i == 0 else 1
            y = b.op("Relu", conv(x, width, inner))
            y = b.op("Relu", conv(y, inner, inner, 3, stride))
            y = conv(y, inner, 4 * inner, gain=0.3)
            skip = conv(x, width, 4 * inner, 1, stride, gain=0.7) if i == 0 else x
            x, width = b.op("Relu", b.op("Add", y, skip)), 4 * inner
    return x


def resnet50(batch=1, size=224, bn=False, **_):
    """25,557,032 parameters (torchvision); with BatchNorm folded, two vectors per layer become one bias: 26,560 fewer."""
    b = Builder()
    x = residual_trunk(b, "input", bn)
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    b.op("Gemm", x, b.parameter(1000, 2048, std=0.02), b.parameter(1000), transB=1, output="output")
    return b.finish(
        "resnet50",
        [("input", TensorProto.FLOAT, [batch, 3, size, size])],
        [("output", [batch, 1000])],
        25557032 if bn else 25530472,
    )


def resnet18(batch=1, size=224, bn=False, **_):
    """11,689,512 parameters (torchvision); 4,800 fewer with BatchNorm folded, as for resnet50."""
    b = Builder()
    conv = lambda *a, **k: b.conv(*a, bn=bn, **k)
    x = b.op("Relu", conv("input", 3, 64, 7, 2))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 64
    for stage in range(4):
        inner = 64 << stage
        for i in range(2):
            stride = 2 if stage and i == 0 else 1
            y = b.op("Relu", conv(x, width, inner, 3, stride))
            y = conv(y, inner, inner, 3, gain=0.3)
            skip = conv(x, width, inner, 1, stride, gain=0.7) if stride == 2 else x
            x, width = b.op("Relu", b.op("Add", y, skip)), inner
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    b.op("Gemm", x, b.parameter(1000, 512, std=0.02), b.parameter(1000), transB=1, output="output")
    return b.finish(
        "resnet18",
        [("input", TensorProto.FLOAT, [batch, 3, size, size])],
        [("output", [batch, 1000])],
        11689512 if bn else 11684712,
    )


def rrdb(batch=1, size=256, blocks=2, **_):
    """Residual-in-residual dense network, four times upscaling: 23 blocks have 16,697,987 parameters (Real-ESRGAN x4plus).
    Few weights and large activations; fewer blocks keep the peak and cost less time."""
    b = Builder()
    leaky = lambda t: b.op("LeakyRelu", t, alpha=0.2)
    fifth = b.constant(np.float32(0.2))
    twice = b.constant(np.array([1, 1, 2, 2], np.float32))
    up = lambda t: b.op("Resize", t, "", twice, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    x = first = b.conv("input", 3, 64, 3)
    for _ in range(blocks):
        block = x
        for _ in range(3):
            dense = [x]
            for k in range(4):
                joined = b.op("Concat", *dense, axis=1) if k else x
                dense.append(leaky(b.conv(joined, 64 + 32 * k, 32, 3, gain=0.7)))
            y = b.conv(b.op("Concat", *dense, axis=1), 192, 64, 3, gain=0.7)
            x = b.op("Add", b.op("Mul", y, fifth), x)
        x = b.op("Add", b.op("Mul", x, fifth), block)
    x = b.op("Add", first, b.conv(x, 64, 64, 3, gain=0.7))
    for _ in range(2):
        x = leaky(b.conv(up(x), 64, 64, 3))
    b.conv(leaky(b.conv(x, 64, 64, 3)), 64, 3, 3)
    b.nodes[-1].output[0] = "output"
    return b.finish(
        "rrdb",
        [("input", TensorProto.FLOAT, [batch, 3, size, size])],
        [("output", [batch, 3, 4 * size, 4 * size])],
        16697987 if blocks == 23 else None,
    )


def bert(batch=1, layers=12, seq=128, width=768, heads=12, **_):
    """BERT-base with embeddings and pooler: 109,482,240 parameters (bert-base-uncased)."""
    b = Builder()
    ids = lambda *v: b.constant(np.array(v, np.int64))
    split = lambda t, perm: b.op("Transpose", b.op("Reshape", t, ids(0, seq, heads, width // heads)), perm=perm)
    words = b.op("Gather", b.parameter(30522, width, std=0.02), "input_ids")
    kinds = b.op("Gather", b.parameter(2, width, std=0.02), "token_type_ids")
    table = b.parameter(512, width, std=0.02)
    place = b.op("Slice", table, ids(0), ids(seq), ids(0))
    x = b.layer_norm(b.op("Add", b.op("Add", words, kinds), place), width)
    mask = b.op("Cast", b.op("Unsqueeze", "attention_mask", ids(1, 2)), to=TensorProto.FLOAT)
    mask = b.op("Mul", b.op("Sub", b.constant(np.float32(1)), mask), b.constant(np.float32(-10000)))
    for _ in range(layers):
        q, k, v = (split(b.linear(x, width, width), p) for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = b.op("Div", b.op("MatMul", q, k), b.constant(np.float32((width // heads) ** 0.5)))
        mixed = b.op("MatMul", b.op("Softmax", b.op("Add", scores, mask), axis=-1), v)
        mixed = b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), ids(0, seq, width))
        x = b.layer_norm(b.op("Add", b.linear(mixed, width, width), x), width)
        h = b.linear(x, width, 4 * width)
        erf = b.op("Add", b.op("Erf", b.op("Div", h, b.constant(np.float32(2**0.5)))), b.constant(np.float32(1)))
        h = b.op("Mul", b.op("Mul", h, erf), b.constant(np.float32(0.5)))
        x = b.layer_norm(b.op("Add", b.linear(h, 4 * width, width), x), width)
    b.op("Identity", x, output="last_hidden_state")
    first = b.op("Gather", x, b.constant(np.int64(0)), axis=1)
    b.op("Tanh", b.op("Gemm", first, b.parameter(width, width, std=0.02), b.parameter(width)), output="pooler_output")
    inputs = [(n, TensorProto.INT64, [batch, seq]) for n in ("input_ids", "attention_mask", "token_type_ids")]
    return b.finish(
        "bert",
        inputs,
        [("last_hidden_state", [batch, seq, width]), ("pooler_output", [batch, width])],
        109482240 if (layers, width) == (12, 768) else None,
    )


def conv3(batch=1, size=32, **_):
    """Three convolutions without biases: a sample a thousand times smaller has activations a thousand times smaller throughout,
    so a histogram whose memory follows the spread of the values shows it here."""
    b = Builder()
    x = b.op("Relu", b.conv("input", 3, 16, 3, bias=False))
    x = b.op("Relu", b.conv(x, 16, 16, 3, bias=False))
    b.conv(x, 16, 8, 3, bias=False)
    b.nodes[-1].output[0] = "output"
    return b.finish("conv3", [("input", TensorProto.FLOAT, [batch, 3, size, size])], [("output", [batch, 8, size, size])])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("name", choices=["resnet50", "resnet18", "rrdb", "bert", "conv3"])
    p.add_argument("out")
    for option in "batch", "size", "blocks", "layers", "seq":
        p.add_argument("--" + option, type=int)
    p.add_argument("--bn", action="store_true", help="keep BatchNormalization nodes (resnet50, resnet18)")
    p.add_argument("--external", action="store_true", help="weights in OUT.data")
    a = vars(p.parse_args())
    name, out, external = a.pop("name"), a.pop("out"), a.pop("external")
    model = globals()[name](**{k: v for k, v in a.items() if v is not None})
    if external:
        onnx.save(model, out, save_as_external_data=True, location=os.path.basename(out) + ".data")
    else:
        onnx.save(model, out)
    onnx.checker.check_model(out)


if __name__ == "__main__":
    main()
