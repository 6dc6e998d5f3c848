"""The nine models of AMD's table of peak memory (docs/benchmarks.md), by random weights: published structure and number of
parameters, activations of the published size. resnet50 and the residual dense network are those of models.py."""

from __future__ import annotations

import models
import numpy as np
import onnx
from onnx import TensorProto

FLOAT = TensorProto.FLOAT


class Builder(models.Builder):
    def __init__(self) -> None:
        super().__init__(opset=20)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def gelu(self, x: str) -> str:
        return self.op("Gelu", x)

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def parts(self, x: str, sizes: list[int], axis: int) -> list[str]:
        names = [f"split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        self.op("Split", x, self.ints(*sizes), output=names[0], axis=axis)
        self.nodes[-1].output.extend(names[1:])
        return names

    def transposed(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=perm)

    def shaped(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.ints(*shape))

    def attention(self, q: str, k: str, v: str, width: int, heads: int, rows: int, columns: int) -> str:
        """Of queries [N, rows, width] and keys and values [N, columns, width]."""
        each = width // heads
        split = lambda t, length, *perm: self.transposed(self.shaped(t, 0, length, heads, each), *perm)
        scores = self.op("MatMul", split(q, rows, 0, 2, 1, 3), split(k, columns, 0, 2, 3, 1))
        scores = self.op("Softmax", self.op("Mul", scores, self.number(each**-0.5)), axis=-1)
        mixed = self.op("MatMul", scores, split(v, columns, 0, 2, 1, 3))
        return self.shaped(self.transposed(mixed, 0, 2, 1, 3), 0, rows, width)

    def projected(self, q: str, k: str, v: str, width: int, heads: int, rows: int, columns: int, inner: int = 0) -> str:
        """Attention with a product in front of each of its inputs and one behind, of `inner` channels between them."""
        inner = inner or width
        given = [self.linear(t, width, inner) for t in (q, k, v)]
        return self.linear(self.attention(*given, inner, heads, rows, columns), inner, width, gain=0.3)

    def mlp(self, x: str, width: int, inner: int, act: str = "gelu") -> str:
        hidden = self.linear(x, width, inner)
        return self.linear(self.gelu(hidden) if act == "gelu" else self.op("Relu", hidden), inner, width, gain=0.3)

    def plus(self, x: str, y: str) -> str:
        return self.op("Add", x, y)

    def nearest(self, x: str) -> str:
        twice = self.constant(np.array([1, 1, 2, 2], np.float32))
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.op("Resize", x, "", twice, **how)

    def grouped(self, x: str, channels: int, kernel: int) -> str:
        w = self.parameter(channels, 1, kernel, kernel, std=(2 / kernel**2) ** 0.5)
        pads = [kernel // 2] * 4
        return self.op("Conv", x, w, self.parameter(channels), kernel_shape=[kernel] * 2, pads=pads, group=channels)

    def strided(self, x: str, cin: int, cout: int, kernel: int, stride: int, pad: int = 0) -> str:
        w = self.parameter(cout, cin, kernel, kernel, std=(2 / (cin * kernel**2)) ** 0.5)
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return self.op("Conv", x, w, self.parameter(cout), **shape)

    def named(self, x: str, name: str) -> None:
        self.op("Identity", x, output=name)


def convnext_t() -> onnx.ModelProto:
    """28,589,128 parameters (torchvision)."""
    b, widths = Builder(), (96, 192, 384, 768)
    norm = lambda x, width: b.transposed(b.layer_norm(b.transposed(x, 0, 2, 3, 1), width), 0, 3, 1, 2)
    x = norm(b.strided("input", 3, 96, 4, 4), 96)
    for stage, (blocks, width) in enumerate(zip((3, 3, 9, 3), widths, strict=True)):
        if stage:
            x = b.strided(norm(x, widths[stage - 1]), widths[stage - 1], width, 2, 2)
        for _ in range(blocks):
            y = b.layer_norm(b.transposed(b.grouped(x, width, 7), 0, 2, 3, 1), width)
            y = b.transposed(b.mlp(y, width, 4 * width), 0, 3, 1, 2)
            x = b.plus(b.op("Mul", b.parameter(width, 1, 1, mean=0.3), y), x)
    x = b.op("Flatten", norm(b.op("GlobalAveragePool", x), 768), axis=1)
    b.op("Gemm", x, b.parameter(1000, 768), b.parameter(1000), transB=1, output="output")
    return b.finish("convnext_t", [("input", FLOAT, [1, 3, 224, 224])], [("output", [1, 1000])], 28589128)


def detr_r50() -> onnx.ModelProto:
    """41,551,328 parameters (facebookresearch/detr, with batch norms folded into biases), 480 x 640 pixels."""
    b, d, height, width, queries = Builder(), 256, 15, 20, 100
    n = height * width
    x = b.transposed(b.shaped(b.conv(models.residual_trunk(b, "input"), 2048, d), 0, d, n), 0, 2, 1)
    place = b.constant(b.rng.standard_normal((1, n, d), dtype=np.float32))
    add = lambda x, y: b.layer_norm(b.plus(x, y), d)
    feed = lambda x: add(x, b.mlp(x, d, 2048, "relu"))
    for _ in range(6):
        q = b.plus(x, place)
        x = feed(add(x, b.projected(q, q, x, d, 8, n, n)))
    asked = b.parameter(1, queries, d)
    keys, t = b.plus(x, place), b.op("Mul", asked, b.number(0))
    for _ in range(6):
        q = b.plus(t, asked)
        t = add(t, b.projected(q, q, t, d, 8, queries, queries))
        t = feed(add(t, b.projected(b.plus(t, asked), keys, x, d, 8, queries, n)))
    t = b.layer_norm(t, d)
    b.named(b.linear(t, d, 92), "logits")
    box = b.linear(b.op("Relu", b.linear(b.op("Relu", b.linear(t, d, d)), d, d)), d, 4)
    b.op("Sigmoid", box, output="boxes")
    size = [1, 3, 32 * height, 32 * width]
    return b.finish("detr_r50", [("input", FLOAT, size)], [("logits", [1, 100, 92]), ("boxes", [1, 100, 4])], 41551328)


def esrgan() -> onnx.ModelProto:
    """16,697,987 parameters (Real-ESRGAN x4plus), a picture of 168 x 168."""
    return models.rrdb(size=168, blocks=23)


def _windows(b: Builder, x: str, size: int, window: int, width: int) -> tuple[str, int]:
    """[1, size, size, width] as windows [N, window, window, width], with a margin where size is no multiple."""
    whole = -(-size // window) * window
    if whole != size:
        x = b.op("Pad", x, b.ints(0, 0, 0, 0, 0, whole - size, whole - size, 0))
    n = whole // window
    x = b.transposed(b.shaped(x, 1, n, window, n, window, width), 0, 1, 3, 2, 4, 5)
    return b.shaped(x, n * n, window, window, width), whole


def _from_windows(b: Builder, x: str, size: int, window: int, whole: int, width: int) -> str:
    n = whole // window
    x = b.shaped(b.transposed(b.shaped(x, 1, n, n, window, window, width), 0, 1, 3, 2, 4, 5), 1, whole, whole, width)
    return x if whole == size else b.op("Slice", x, b.ints(0, 0), b.ints(size, size), b.ints(1, 2))


def _pooled(b: Builder, x: str) -> str:
    pooled = b.op("MaxPool", b.transposed(x, 0, 3, 1, 2), kernel_shape=[2, 2], strides=[2, 2])
    return b.transposed(pooled, 0, 2, 3, 1)


def sam2_image_encoder() -> onnx.ModelProto:
    """Hiera-T and the neck of SAM 2: attention in windows, queries pooled between stages, 1024 x 1024 pixels."""
    b, size, width, heads = Builder(), 256, 96, 1
    x = b.transposed(b.strided("image", 3, 96, 7, 4, 3), 0, 2, 3, 1)
    x = b.plus(x, b.constant(np.float32(0.02) * b.rng.standard_normal((1, size, size, 96), dtype=np.float32)))
    levels = []
    stage, last_of = 0, {0: 0, 1: 2, 2: 9, 3: 11}
    for i in range(12):
        grows = i in (1, 3, 10)
        window = 0 if i in (5, 7, 9) else (8, 4, 14, 7)[stage]
        stage += grows
        wider, heads = (2 * width, 2 * heads) if grows else (width, heads)
        y = b.layer_norm(x, width)
        skip = _pooled(b, b.linear(y, width, wider)) if grows else x
        side, whole = window or size, size
        if window:
            y, whole = _windows(b, y, size, window, width)
        q, k, v = b.parts(b.linear(y, width, 3 * wider), [wider] * 3, axis=3)
        rows = side
        if grows:
            q, rows = _pooled(b, q), side // 2
            size, whole = size // 2, whole // 2
        flat = lambda t, n, wider=wider: b.shaped(t, -1, n * n, wider)
        y = b.attention(flat(q, rows), flat(k, side), flat(v, side), wider, heads, rows * rows, side * side)
        y = b.linear(y, wider, wider, gain=0.3)
        y = _from_windows(b, y, size, rows, whole, wider) if window else b.shaped(y, 1, size, size, wider)
        x, width = b.plus(skip, y), wider
        x = b.plus(x, b.mlp(b.layer_norm(x, width), width, 4 * width))
        if i == last_of[stage]:
            levels.append((b.transposed(x, 0, 3, 1, 2), width))
    sides = [b.conv(level, channels, 256) for level, channels in levels]
    b.named(b.plus(sides[2], b.nearest(sides[3])), "image_embed")
    b.named(b.conv(sides[0], 256, 32), "high_res_0")
    b.named(b.conv(sides[1], 256, 64), "high_res_1")
    outputs = [("image_embed", [1, 256, 64, 64]), ("high_res_0", [1, 32, 256, 256]), ("high_res_1", [1, 64, 128, 128])]
    return b.finish("sam2_image_encoder", [("image", FLOAT, [1, 3, 1024, 1024])], outputs)


def sam2_mask_decoder() -> onnx.ModelProto:
    """The two-way transformer of SAM 2 with its upscaling, and the embedding of a mask."""
    b, d, n, tokens = Builder(), 256, 64 * 64, 9
    mask = b.gelu(b.strided("mask", 1, 4, 2, 2))
    mask = b.conv(b.gelu(b.strided(mask, 4, 16, 2, 2)), 16, d)
    keys = b.transposed(b.shaped(b.plus("image_embed", mask), 0, d, n), 0, 2, 1)
    place = b.constant(b.rng.standard_normal((1, n, d), dtype=np.float32))
    learnt = b.parameter(1, 6, d)
    asked = t = b.op("Concat", learnt, "points", axis=1)
    add = lambda x, y: b.layer_norm(b.plus(x, y), d)
    for _ in range(2):
        q = b.plus(t, asked)
        t = add(t, b.projected(q, q, t, d, 8, tokens, tokens))
        t = add(t, b.projected(b.plus(t, asked), b.plus(keys, place), keys, d, 8, tokens, n, 128))
        t = add(t, b.mlp(t, d, 2048, "relu"))
        keys = add(keys, b.projected(b.plus(keys, place), b.plus(t, asked), t, d, 8, n, tokens, 128))
    t = add(t, b.projected(b.plus(t, asked), b.plus(keys, place), keys, d, 8, tokens, n, 128))
    up = b.shaped(b.transposed(keys, 0, 2, 1), 1, d, 64, 64)
    for cin, cout, level in ((256, 64, "high_res_1"), (64, 32, "high_res_0")):
        w = b.parameter(cin, cout, 2, 2, std=cin**-0.5)
        up = b.op("ConvTranspose", up, w, b.parameter(cout), kernel_shape=[2, 2], strides=[2, 2])
        up = b.gelu(b.plus(up, level))
    up = b.shaped(up, 1, 32, 256 * 256)
    masks = []
    for token in b.parts(t, [1] * 4 + [tokens - 4], axis=1)[:4]:
        y = b.op("Relu", b.linear(b.op("Relu", b.linear(token, d, d)), d, d))
        masks.append(b.op("MatMul", b.linear(y, d, 32), up))
    b.named(b.shaped(b.op("Concat", *masks, axis=1), 1, 4, 256, 256), "masks")
    shapes = {"image_embed": [1, d, 64, 64], "high_res_0": [1, 32, 256, 256], "high_res_1": [1, 64, 128, 128]}
    shapes |= {"points": [1, tokens - 6, d], "mask": [1, 1, 256, 256]}
    return b.finish("sam2_mask_decoder", [(n, FLOAT, s) for n, s in shapes.items()], [("masks", [1, 4, 256, 256])])


def blip_image_encoder() -> onnx.ModelProto:
    """ViT-B/16 at 384 x 384 pixels, 86,090,496 parameters."""
    b, d, n = Builder(), 768, 24 * 24
    x = b.transposed(b.shaped(b.strided("pixels", 3, d, 16, 16), 0, d, n), 0, 2, 1)
    x = b.plus(b.op("Concat", b.parameter(1, 1, d), x, axis=1), b.parameter(1, n + 1, d))
    for _ in range(12):
        q, k, v = b.parts(b.linear(b.layer_norm(x, d), d, 3 * d), [d] * 3, axis=2)
        x = b.plus(x, b.linear(b.attention(q, k, v, d, 12, n + 1, n + 1), d, d, gain=0.3))
        x = b.plus(x, b.mlp(b.layer_norm(x, d), d, 4 * d))
    b.named(b.layer_norm(x, d), "image_embeds")
    return b.finish("blip_image_encoder", [("pixels", FLOAT, [1, 3, 384, 384])], [("image_embeds", [1, n + 1, d])], 86090496)


def blip_text_decoder(length: int = 32) -> onnx.ModelProto:
    """BERT with attention to the picture, and a head of its own: 160 million parameters."""
    b, d, words, n = Builder(), 768, 30524, 577
    x = b.op("Gather", b.parameter(words, d, std=0.02), "input_ids")
    x = b.layer_norm(b.plus(x, b.parameter(1, length, d, std=0.02)), d)
    causal = b.constant(np.triu(np.full((1, 1, length, length), -10000, np.float32), 1))
    split = lambda t, *perm: b.transposed(b.shaped(t, 0, length, 12, 64), *perm)
    for _ in range(12):
        q, k, v = (split(b.linear(x, d, d), *p) for p in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        scores = b.plus(b.op("Div", b.op("MatMul", q, k), b.number(8)), causal)
        mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
        mixed = b.shaped(b.transposed(mixed, 0, 2, 1, 3), 0, length, d)
        x = b.layer_norm(b.plus(b.linear(mixed, d, d), x), d)
        x = b.layer_norm(b.plus(b.projected(x, "image_embeds", "image_embeds", d, 12, length, n), x), d)
        x = b.layer_norm(b.plus(b.mlp(x, d, 4 * d), x), d)
    x = b.layer_norm(b.gelu(b.linear(x, d, d)), d)
    b.named(b.linear(x, d, words), "logits")
    inputs = [("input_ids", TensorProto.INT64, [1, length]), ("image_embeds", FLOAT, [1, n, d])]
    return b.finish("blip_text_decoder", inputs, [("logits", [1, length, words])])


def yolov8n(size: int = 640, classes: int = 80) -> onnx.ModelProto:
    """3,151,904 parameters (Ultralytics, fused), with the decoding of boxes."""
    b = Builder()
    conv = lambda x, cin, cout, kernel=1, stride=1, gain=0.9: b.silu(b.conv(x, cin, cout, kernel, stride, gain))

    def bottlenecks(x: str, cin: int, cout: int, count: int, adds: bool) -> str:
        half = cout // 2
        ys = b.parts(conv(x, cin, cout), [half, half], axis=1)
        for _ in range(count):
            y = conv(conv(ys[-1], half, half, 3), half, half, 3, gain=0.6)
            ys.append(b.plus(ys[-1], y) if adds else y)
        return conv(b.op("Concat", *ys, axis=1), (2 + count) * half, cout)

    join = lambda *xs: b.op("Concat", *xs, axis=1)
    x = bottlenecks(conv(conv("images", 3, 16, 3, 2), 16, 32, 3, 2), 32, 32, 1, True)
    third = bottlenecks(conv(x, 32, 64, 3, 2), 64, 64, 2, True)
    fourth = bottlenecks(conv(third, 64, 128, 3, 2), 128, 128, 2, True)
    y = conv(bottlenecks(conv(fourth, 128, 256, 3, 2), 256, 256, 1, True), 256, 128)
    pooled = [y]
    for _ in range(3):
        pooled.append(b.op("MaxPool", pooled[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    fifth = conv(join(*pooled), 512, 256)
    up4 = bottlenecks(join(b.nearest(fifth), fourth), 384, 128, 1, False)
    up3 = bottlenecks(join(b.nearest(up4), third), 192, 64, 1, False)
    down4 = bottlenecks(join(conv(up3, 64, 64, 3, 2), up4), 192, 128, 1, False)
    down5 = bottlenecks(join(conv(down4, 128, 128, 3, 2), fifth), 384, 256, 1, False)
    heads = []
    for x, width in ((up3, 64), (down4, 128), (down5, 256)):
        box = b.conv(conv(conv(x, width, 64, 3), 64, 64, 3), 64, 64)
        kind = b.conv(conv(conv(x, width, 80, 3), 80, 80, 3), 80, classes)
        heads.append(b.shaped(join(box, kind), 0, 64 + classes, -1))
    n = sum((size // stride) ** 2 for stride in (8, 16, 32))
    box, kind = b.parts(b.op("Concat", *heads, axis=2), [64, classes], axis=1)
    box = b.op("Softmax", b.transposed(b.shaped(box, 0, 4, 16, n), 0, 2, 1, 3), axis=1)
    b.parameters += 16
    steps = b.constant(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    box = b.shaped(b.op("Conv", box, steps, kernel_shape=[1, 1]), 0, 4, n)
    left, right = b.parts(box, [2, 2], axis=1)
    centres = b.constant(b.rng.random((1, 2, n), dtype=np.float32) * size / 8)
    first, second = b.op("Sub", centres, left), b.plus(centres, right)
    middle = b.op("Div", b.plus(first, second), b.number(2))
    box = b.op("Mul", join(middle, b.op("Sub", second, first)), b.number(8))
    b.op("Concat", box, b.op("Sigmoid", kind), axis=1, output="output")
    shape = [1, 3, size, size]
    return b.finish("yolov8n", [("images", FLOAT, shape)], [("output", [1, 4 + classes, n])], 3151904)


#: Name, the model, and AMD's published peaks in GB by minmax, percentile, layerwise percentile and mse.
HEADLINE = {
    "ConvNeXt-T": (convnext_t, (2.52, 2.66, 2.41, 2.52)),
    "DETR-R50": (detr_r50, (6.73, 8.11, 6.05, 6.19)),
    "ESRGAN": (esrgan, (26.4, 20.71, 21.15, 21.63)),
    "SAM 2 image encoder": (sam2_image_encoder, (15.58, 16.26, 16.65, 16.71)),
    "SAM 2 mask decoder": (sam2_mask_decoder, (5.69, 3.99, 4.08, 4.12)),
    "BLIP image encoder": (blip_image_encoder, (5.97, 6.68, 5.39, 6.77)),
    "BLIP text decoder": (blip_text_decoder, (9.49, 9.97, 9.46, 10.01)),
    "ResNet-50": (models.resnet50, (1.8, 1.877, 1.876, 1.879)),
    "YOLOv8n": (yolov8n, (0.997, 1.066, 1.066, 1.078)),
}
