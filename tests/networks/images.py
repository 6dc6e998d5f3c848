"""Networks of images in the idioms of exporters: backbones, detectors, decoders."""

import numpy as np
import onnx
from net import FLOAT, IMAGE_BLOCKS, INT64, KINDS, Net, Network, Part, activation, conv, finished, image_network, shuffled, smooth


def pictures(n: Net, size: int, count: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"x": smooth(n.random, 1, 3, size, size)} for _ in range(count)]


def batch(n: Net, *dims: int) -> tuple:
    return (FLOAT, [n.one_of(1, "N"), *dims])


def classifier(n: Net) -> Network:
    """Residual, inverted, split, pooled and shuffled blocks behind each other."""
    model, samples = image_network(n)
    model.graph.output[0].CopyFrom(onnx.shape_inference.infer_shapes(model).graph.output[0])
    return Network("classifier", model, samples, [Part(0)])


def backbone(n: Net, kind: str, width: int = 16, size: int = 32) -> list[str]:
    """Maps of half, a quarter and an eighth of the size."""
    maps, x = [], activation(n, conv(n, "x", 3, width, 3, stride=2), kind)
    for _ in range(3):
        block = n.one_of(*IMAGE_BLOCKS, shuffled)
        size //= 2
        x = block(n, x, width, kind, size) if block is shuffled else block(n, x, width, kind)
        maps.append(x)
        if len(maps) < 3:
            x = activation(n, conv(n, x, width, width, 3, stride=2), kind)
    return maps


def boxes_of(n: Net, distances: str, cells: int, stride: int) -> str:
    """Pixels, from the distances that a head predicts to the sides of each cell."""
    side = int(cells**0.5)
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), 0).reshape(1, 2, cells) + 0.5
    anchors = n.constant(grid)
    first, second = n.add("Split", distances, n.ints(2, 2), outputs=2, axis=1)
    low, high = n.add("Sub", anchors, first), n.add("Add", second, anchors)
    if n.chance():
        centre = n.add("Div", n.add("Add", low, high), n.constant(2))
        low, high = centre, n.add("Sub", high, low)
    return n.add("Mul", n.add("Concat", low, high, axis=1), n.constant(stride))


def expected_distances(n: Net, x: str, cells: int) -> str:
    """Of each side the mean of a distribution of 8 distances, as YOLOv8's heads compute it."""
    y = n.add("Transpose", n.add("Reshape", x, n.ints(-1, 4, 8, cells)), perm=[0, 2, 1, 3])
    weight = n.constant(np.arange(8).reshape(1, 8, 1, 1))
    return n.add("Reshape", n.add("Conv", n.add("Softmax", y, axis=1), weight), n.ints(-1, 4, cells))


def at_least_nothing(n: Net, x: str) -> str:
    """Distances that are not negative, of which exponentials are bounded, as torchvision's."""
    return n.add("Relu", x) if n.chance() else n.add("Exp", n.add("Clip", x, "", n.constant(np.log(1000 / 16))))


def anchor_free_head(n: Net, maps: list[str], kind: str, width: int, classes: int) -> list[tuple[str, str]]:
    """Boxes and scores of each map, N x 4 x cells and N x classes x cells."""
    found = []
    spread = n.chance()
    for level, x in enumerate(maps):
        cells, stride = (16 >> level) ** 2, 2 << level
        box = activation(n, conv(n, x, width, width, 3), kind)
        box = n.add("Reshape", conv(n, box, width, 32 if spread else 4), n.ints(-1, 32 if spread else 4, cells))
        box = expected_distances(n, box, cells) if spread else at_least_nothing(n, box)
        score = activation(n, conv(n, x, width, width, 3), kind)
        score = n.add("Reshape", conv(n, score, width, classes), n.ints(-1, classes, cells))
        found.append((boxes_of(n, box, cells, stride), n.add("Sigmoid", score)))
    return found


def detector(n: Net) -> Network:
    """One output of boxes and scores, one of each, or both of each map; with NonMaxSuppression at times."""
    kind, width, classes = n.one_of("silu", "silu", "silu", *KINDS), 16, 6
    heads = anchor_free_head(n, backbone(n, kind), kind, width, classes)
    way = n.one_of("joined", "joined", "two", "maps", "suppressed")
    inputs = {"x": batch(n, 3, 32, 32) if way != "suppressed" else (FLOAT, [1, 3, 32, 32])}
    if way == "maps":
        ends = [n.add("Concat", box, score, axis=1) for box, score in heads]
        parts = [Part(i, 1, *ends) for i in range(3) for ends in ((0, 4), (4, None))]
        return finished(n, "detector, three outputs", inputs, ends, pictures(n, 32), parts)
    boxes, scores = (n.add("Concat", *values, axis=2) for values in zip(*heads, strict=True))
    if way == "joined":
        end = n.add("Concat", boxes, scores, axis=1)
        axis = 1
        if n.chance():
            end, axis = n.add("Transpose", end, perm=[0, 2, 1]), 2
        parts = [Part(0, axis, 0, 4), Part(0, axis, 4, None)]
        return finished(n, "detector, one output", inputs, [end], pictures(n, 32), parts)
    if way == "two":
        return finished(n, "detector, two outputs", inputs, [boxes, scores], pictures(n, 32))
    corners = n.add("Transpose", boxes, perm=[0, 2, 1])
    limits = [n.ints(20), n.constant([0.5]), n.constant([0.3])]
    picked = n.add("NonMaxSuppression", corners, scores, *limits)
    rows = n.add("Reshape", n.add("Slice", picked, n.ints(2), n.ints(3), n.ints(1)), n.ints(-1))
    chosen = n.add("Gather", corners, rows, axis=1)
    outputs = {chosen: FLOAT, picked: INT64, scores: FLOAT}
    return finished(n, "detector with NMS", inputs, outputs, pictures(n, 32), [Part(2)])


def anchors_of_grid(n: Net) -> Network:
    """As YOLOv5's head: sigmoids of which slices are shifted, squared and scaled by anchors."""
    kind, width, classes, anchors = "silu", 16, 5, 2
    ends = []
    for level, x in enumerate(backbone(n, kind)[1:]):
        side = 8 >> level
        y = n.add("Reshape", conv(n, x, width, anchors * (5 + classes)), n.ints(-1, anchors, 5 + classes, side, side))
        y = n.add("Sigmoid", n.add("Transpose", y, perm=[0, 1, 3, 4, 2]))
        xy, wh, rest = n.add("Split", y, n.ints(2, 2, 1 + classes), outputs=3, axis=4)
        grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(1, 1, side, side, 2) - 0.5
        xy = n.add("Mul", n.add("Add", n.add("Mul", xy, n.constant(2)), n.constant(grid)), n.constant(32 / side))
        wh = n.add("Pow", n.add("Mul", wh, n.constant(2)), n.constant(2))
        wh = n.add("Mul", wh, n.constant(n.random.uniform(4, 20, (1, anchors, 1, 1, 2))))
        y = n.add("Concat", xy, wh, rest, axis=4)
        ends.append(n.add("Reshape", y, n.ints(-1, anchors * side * side, 5 + classes)))
    end = n.add("Concat", *ends, axis=1)
    parts = [Part(0, 2, 0, 4), Part(0, 2, 4, None)]
    return finished(n, "detector with anchors", {"x": batch(n, 3, 32, 32)}, [end], pictures(n, 32), parts)


def up(n: Net, x: str, width: int, like: str, way: str) -> str:
    """Twice as large."""
    if way == "transposed":
        return n.add("ConvTranspose", x, n.weight(width, width, 2, 2, scale=1.4), n.weight(width), strides=[2, 2])
    if way == "transposed, overlapping":
        attributes = {"strides": [2, 2], "pads": [1] * 4, "kernel_shape": [4, 4]}
        return n.add("ConvTranspose", x, n.weight(width, width, 4, 4, scale=2), **attributes)
    if way == "shuffle":
        return n.add("DepthToSpace", conv(n, x, width, 4 * width), blocksize=2, mode=n.one_of("CRD", "DCR"))
    # The sizes of another map, as torch's interpolate exports them.
    sizes = n.add("Slice", n.add("Shape", like), n.ints(2), n.ints(4), n.ints(0))
    sizes = n.add("Concat", n.add("Slice", n.add("Shape", x), n.ints(0), n.ints(2), n.ints(0)), sizes, axis=0)
    attributes = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    if way == "interpolated":
        attributes = {"mode": "linear", "coordinate_transformation_mode": n.one_of("half_pixel", "align_corners")}
    return n.add("Resize", x, n.constant([]), n.constant([]), sizes, **attributes)


def segmenter(n: Net) -> Network:
    """An encoder, and a decoder with connections to it."""
    kind, width = n.one_of("silu", *KINDS), 16
    first, second, third = backbone(n, kind)
    ways = ("transposed", "transposed, overlapping", "shuffle", "repeated", "interpolated")
    x = third
    for like in (second, first):
        x = up(n, x, width, like, n.one_of(*ways))
        x = n.add("Concat", x, like, axis=1) if n.chance() else n.add("Add", x, like)
        into = 2 * width if n.nodes[-1].op_type == "Concat" else width
        x = activation(n, conv(n, x, into, width, 3), kind)
    x = up(n, conv(n, x, width, width), width, "x", n.one_of(*ways))
    x = conv(n, x, width, 5)
    end = n.one_of("", "Sigmoid", "Softmax", "ArgMax")
    if end == "Softmax":
        x = n.add("Softmax", x, axis=1)
    elif end == "ArgMax":
        outputs = {x: FLOAT, n.add("ArgMax", x, axis=1, keepdims=0): INT64}
        return finished(n, "segmenter", {"x": batch(n, 3, 32, 32)}, outputs, pictures(n, 32))
    elif end:
        x = n.add(end, x)
    return finished(n, "segmenter", {"x": batch(n, 3, 32, 32)}, [x], pictures(n, 32))


def super_resolution(n: Net) -> Network:
    """Residual blocks without bounds, sums over far connections, and a pixel shuffle."""
    width, kind = 16, n.one_of("Relu", "LeakyRelu", "PRelu", "silu")
    start = x = conv(n, "x", 3, width, 3)
    for _ in range(2):
        y = conv(n, x, width, width, 3)
        y = n.add("PRelu", y, n.constant(n.random.uniform(0.1, 0.4, (width, 1, 1)))) if kind == "PRelu" else activation(n, y, kind)
        y = conv(n, y, width, width, 3)
        x = n.add("Add", x, n.add("Mul", y, n.constant(0.2)) if n.chance() else y)
    x = n.add("Add", conv(n, x, width, width, 3), start)
    x = n.add("DepthToSpace", conv(n, x, width, 12, 3), blocksize=2, mode="CRD")
    if n.chance():
        x = n.add("Clip", x, n.constant(0), n.constant(1))
    return finished(n, "super resolution", {"x": batch(n, 3, 16, 16)}, [x], pictures(n, 16))


def channels_last(n: Net) -> Network:
    """As tf2onnx writes networks: transposes at the ends, and weights that a Reshape makes by a computed shape."""
    x = n.add("Transpose", "x", perm=[0, 3, 1, 2])
    kind = n.one_of("Relu", "relu6", "silu")
    for into, out in ((3, 16), (16, 16)):
        pads = n.ints(0, 0, 0, 0, 0, 0, 1, 1)
        attributes = {"strides": [2, 2], "kernel_shape": [3, 3]}
        x = n.add("Conv", n.add("Pad", x, pads), n.weight(out, into, 3, 3, scale=1.4), **attributes)
        x = activation(n, n.add("Add", x, n.constant(n.random.normal(0, 0.2, (1, out, 1, 1)))), kind)
    x = n.add("Transpose", x, perm=[0, 2, 3, 1])
    x = n.add("ReduceMean", x, axes=[1, 2], keepdims=0) if n.chance() else n.add("Reshape", x, n.ints(-1, 16 * 64))
    width = 16 if n.nodes[-1].op_type == "ReduceMean" else 16 * 64
    weight = n.constant(n.random.normal(0, width**-0.5, (width, 10)))
    if n.chance(0.7):
        shape = n.add("Concat", n.ints(width), n.add("Unsqueeze", n.constant(10, np.int64), n.ints(0)), axis=0)
        weight = n.add("Reshape", n.constant(n.random.normal(0, width**-0.5, (width, 2, 5))), shape)
    x = n.add("Gemm", x, weight, n.weight(10)) if n.chance() else n.add("Add", n.add("MatMul", x, weight), n.weight(10))
    samples = [{"x": smooth(n.random, 1, 32, 32, 3)} for _ in range(4)]
    x = n.add("Softmax", x, axis=-1) if n.chance() else x
    return finished(n, "channels last", {"x": batch(n, 32, 32, 3)}, [x], samples)
