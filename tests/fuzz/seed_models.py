"""Tiny models of each construct that detent reads, for make_seeds.py."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
rng = np.random.default_rng(0)


def weight(name: str, *shape: int, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(rng.normal(size=shape).astype(dtype), name)


def value(name: str, shape: list | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list, inputs: list, outputs: list, weights: list = (), opset: int = 17, **more: object) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    opsets = [helper.make_opsetid("", opset), *[helper.make_opsetid(d, 1) for d in more.pop("domains", [])]]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="p", **more)
    return made


def external(tensor: TensorProto, location: str, **keys: object) -> TensorProto:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **keys}.items():
        tensor.external_data.add(key=key, value=str(text))
    return tensor


def convolutions() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "v"], ["n"], name="bn"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["a"], name="mean"),
        helper.make_node("Flatten", ["a"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "g", "h"], ["y"], name="head", transB=1),
    ]
    weights = [weight("w", 4, 2, 3, 3), weight("b", 4), weight("s", 4), weight("g", 3, 4), weight("h", 3)]
    weights.append(numpy_helper.from_array(np.ones(4, np.float32), "v"))
    return model(nodes, [value("x", ["N", 2, 4, 4])], [value("y", ["N", 3])], weights)


def attention() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "q"], ["a"], name="query"),
        helper.make_node("MatMul", ["x", "k"], ["b"], name="key"),
        helper.make_node("Transpose", ["b"], ["t"], name="turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["s"], name="scores"),
        helper.make_node("Div", ["s", "two"], ["d"], name="scale"),
        helper.make_node("Softmax", ["d"], ["p"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["p", "x"], ["m"], name="mix"),
        helper.make_node("LayerNormalization", ["m", "one", "one"], ["y"], name="norm"),
    ]
    weights = [weight("q", 4, 4), weight("k", 4, 4), weight("one", 4), numpy_helper.from_array(np.float32(2), "two")]
    return model(nodes, [value("x", [1, 3, 4])], [value("y", [1, 3, 4])], weights)


def constants() -> onnx.ModelProto:
    ints = helper.make_tensor("i", INT64, [2], [1, 4])
    nodes = [
        helper.make_node("Constant", [], ["w"], name="const", value=weight("", 4, 4)),
        helper.make_node("Constant", [], ["f"], name="float", value_float=2.0),
        helper.make_node("Constant", [], ["fs"], name="floats", value_floats=[1.0, 2.0, 3.0, 4.0]),
        helper.make_node("Constant", [], ["shape"], name="ints", value_ints=[1, 4]),
        helper.make_node("ConstantOfShape", ["i"], ["z"], name="zeros", value=helper.make_tensor("", FLOAT, [1], [0.5])),
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Mul", ["m", "f"], ["n"], name="scaled"),
        helper.make_node("Add", ["n", "fs"], ["o"], name="shifted"),
        helper.make_node("Add", ["o", "z"], ["p"], name="again"),
        helper.make_node("Reshape", ["p", "shape"], ["y"], name="shaped"),
    ]
    return model(nodes, [value("x", [1, 4])], [value("y", [1, 4])], [ints])


def bodies() -> onnx.ModelProto:
    then = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"], name="inner")], "then", [], [value("t", [1, 4])], [weight("w", 4, 4)]
    )
    other = helper.make_graph([helper.make_node("Relu", ["x"], ["e"], name="relu")], "else", [], [value("e", [1, 4])])
    loop = helper.make_graph(
        [helper.make_node("Identity", ["cond"], ["out"]), helper.make_node("Add", ["state", "u"], ["next"], name="step")],
        "loop",
        [value("i", [], INT64), value("cond", [], BOOL), value("state", [1, 4])],
        [value("out", [], BOOL), value("next", [1, 4])],
        [weight("u", 4)],
    )
    nodes = [
        helper.make_node("If", ["c"], ["a"], name="if", then_branch=then, else_branch=other),
        helper.make_node("Loop", ["n", "", "a"], ["b"], name="loop", body=loop),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="outer"),
    ]
    counts = [helper.make_tensor("n", INT64, [], [2]), weight("v", 4, 4)]
    return model(nodes, [value("x", [1, 4]), value("c", [], BOOL)], [value("y", [1, 4])], counts)


def functions() -> onnx.ModelProto:
    inner = helper.make_function(
        "own",
        "Double",
        ["p"],
        ["q"],
        [
            helper.make_node("Constant", [], ["two"], value=helper.make_tensor("", FLOAT, [], [2.0])),
            helper.make_node("Mul", ["p", "two"], ["q"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    outer = helper.make_function(
        "own",
        "Fourfold",
        ["p"],
        ["q"],
        [helper.make_node("Double", ["p"], ["h"], domain="own"), helper.make_node("Double", ["h"], ["q"], domain="own")],
        [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
        attributes=["alpha"],
    )
    nodes = [
        helper.make_node("Fourfold", ["x"], ["f"], name="call", domain="own"),
        helper.make_node("MatMul", ["f", "w"], ["y"], name="product"),
    ]
    return model(nodes, [value("x", [1, 4])], [value("y", [1, 4])], [weight("w", 4, 4)], functions=[inner, outer], domains=["own"])


def sparse() -> onnx.ModelProto:
    made = model(
        [helper.make_node("MatMul", ["x", "w"], ["m"], name="product"), helper.make_node("MatMul", ["m", "v"], ["y"])],
        [value("x", [1, 4])],
        [value("y", [1, 4])],
        [weight("v", 4, 4)],
    )
    indices = helper.make_tensor("", INT64, [2], [1, 7])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(weight("w", 2), indices, [4, 4]))
    return made


def quantized() -> onnx.ModelProto:
    scale, zero = helper.make_tensor("s", FLOAT, [], [0.1]), helper.make_tensor("z", TensorProto.UINT8, [], [128])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq"),
        helper.make_node("MatMul", ["d", "w"], ["y"], name="product"),
    ]
    return model(nodes, [value("x", [1, 4])], [value("y", [1, 4])], [scale, zero, weight("w", 4, 4)])


def operators_in_integers() -> onnx.ModelProto:
    """Convolution, product and sum as operators of integers, with scales for each channel."""
    of = lambda name, kind, *values: helper.make_tensor(name, kind, [len(values)] if len(values) > 1 else [], values)  # noqa: E731
    scales = [of("s", FLOAT, 0.1), of("z", TensorProto.UINT8, 128), of("t", FLOAT, 0.1, 0.2), of("o", TensorProto.INT8, 0, 0)]
    weights = [numpy_helper.from_array(rng.integers(-9, 9, (2, 2, 1, 1)).astype(np.int8), "w"), of("b", TensorProto.INT32, 5, 6)]
    weights.append(numpy_helper.from_array(rng.integers(-9, 9, (4, 3)).astype(np.int8), "v"))
    shape = numpy_helper.from_array(np.array([1, 4], np.int64), "shape")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("QLinearConv", ["q", "s", "z", "w", "t", "o", "s", "z", "b"], ["c"], name="conv"),
        helper.make_node("QLinearAdd", ["c", "s", "z", "q", "s", "z", "s", "z"], ["a"], name="sum", domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["a", "s", "z"], ["d"], name="dq"),
        helper.make_node("Reshape", ["d", "shape"], ["r"], name="shaped"),
        helper.make_node("DynamicQuantizeLinear", ["r"], ["e", "es", "ez"], name="dynamic"),
        helper.make_node("MatMulInteger", ["e", "v", "ez"], ["i"], name="product"),
        helper.make_node("Cast", ["i"], ["f"], name="cast", to=FLOAT),
        helper.make_node("Mul", ["f", "es"], ["y"], name="scaled"),
    ]
    initializers = [*scales, *weights, shape]
    return model(nodes, [value("x", [1, 2, 2, 1])], [value("y", [1, 3])], initializers, opset=17, domains=["com.microsoft"])


def weights_in_blocks() -> onnx.ModelProto:
    """MatMulNBits, and weights of 4 bits behind a DequantizeLinear of blocks."""
    packed = numpy_helper.from_array(rng.integers(0, 256, (4, 1, 8)).astype(np.uint8), "p")
    int4 = helper.make_tensor("i", TensorProto.INT4, [16, 4], rng.integers(0, 256, 32).astype(np.uint8).tobytes(), raw=True)
    sizes = dict(K=16, N=4, bits=4, block_size=16)
    nodes = [
        helper.make_node("MatMulNBits", ["x", "p", "ps"], ["m"], name="blocks", domain="com.microsoft", **sizes),
        helper.make_node("DequantizeLinear", ["i", "is"], ["w"], name="dq", axis=0, block_size=8),
        helper.make_node("MatMul", ["x", "w"], ["n"], name="product"),
        helper.make_node("Add", ["m", "n"], ["y"], name="sum"),
    ]
    initializers = [packed, weight("ps", 4), int4, weight("is", 2, 4)]
    return model(nodes, [value("x", [1, 16])], [value("y", [1, 4])], initializers, opset=21, domains=["com.microsoft"])


def quantized_layers() -> onnx.ModelProto:
    """A convolution and its Relu between pairs, with weights for each channel and 16 bits behind."""
    of = lambda name, kind, value: helper.make_tensor(name, kind, [], [value])  # noqa: E731
    scales = [of("s", FLOAT, 0.1), of("z", TensorProto.INT8, -3), of("u", FLOAT, 0.001), of("k", TensorProto.UINT16, 32768)]
    weights = [numpy_helper.from_array(rng.integers(-9, 9, (2, 2, 1, 1)).astype(np.int8), "w"), weight("t", 2)]
    weights.append(numpy_helper.from_array(np.zeros(2, np.int8), "o"))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq"),
        helper.make_node("DequantizeLinear", ["w", "t", "o"], ["v"], name="weights", axis=0),
        helper.make_node("Conv", ["d", "v"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("QuantizeLinear", ["r", "u", "k"], ["e"], name="wide", domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["e", "u", "k"], ["y"], name="back", domain="com.microsoft"),
    ]
    initializers = [*scales, *weights]
    return model(nodes, [value("x", [1, 2, 2, 2])], [value("y", [1, 2, 2, 2])], initializers, domains=["com.microsoft"])


def halves() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], name="down", to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "w"], ["m"], name="product"),
        helper.make_node("Cast", ["m"], ["y"], name="up", to=FLOAT),
    ]
    return model(nodes, [value("x", ["N", 4])], [value("y", ["N", 4])], [weight("w", 4, 4, dtype=np.float16)])


def outside() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    tensor = external(weight("w", 4, 4), "data.bin", offset=0, length=64)
    return model(nodes, [value("x", [1, 4])], [value("y", [1, 4])], [tensor])


def elementwise() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"], name="a"),
        helper.make_node("HardSigmoid", ["x"], ["b"], name="b"),
        helper.make_node("Concat", ["a", "b"], ["c"], name="c", axis=1),
        helper.make_node("Split", ["c"], ["d", "e"], name="d", axis=1),
        helper.make_node("Clip", ["d", "", "hi"], ["f"], name="f"),
        helper.make_node("Resize", ["f", "", "", "size"], ["g"], name="g", mode="nearest"),
        helper.make_node("Gather", ["g", "at"], ["h"], name="h", axis=1),
        helper.make_node("ReduceMean", ["h"], ["i"], name="i", axes=[1], keepdims=1),
        helper.make_node("Dropout", ["i"], ["j"], name="j"),
        helper.make_node("ConvTranspose", ["x", "w"], ["k"], name="k"),
        helper.make_node("Add", ["k", "i"], ["y"], name="y"),
    ]
    sizes = [helper.make_tensor("size", INT64, [4], [1, 2, 2, 2]), helper.make_tensor("at", INT64, [2], [0, 1])]
    weights = [*sizes, helper.make_tensor("hi", FLOAT, [], [6.0]), weight("w", 2, 1, 1, 1)]
    return model(nodes, [value("x", [1, 2, 2, 2])], [value("y", None)], weights)


def endless() -> onnx.ModelProto:
    """Functions that call themselves, and that double at each level."""
    made = functions()
    made.functions[0].node.append(helper.make_node("Fourfold", ["p"], ["again"], domain="own"))
    made.metadata_props.add(key="k", value="v")
    return made


def doubling() -> onnx.ModelProto:
    made = functions()
    del made.functions[:]
    for level in range(24):
        inner = "Relu" if level == 0 else f"F{level - 1}"
        domain = "" if level == 0 else "own"
        calls = [helper.make_node(inner, [a], [b], domain=domain) for a, b in (("p", "h"), ("h", "q"))]
        name = "Fourfold" if level == 23 else f"F{level}"
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        made.functions.append(helper.make_function("own", name, ["p"], ["q"], calls, opsets))
    return made


def own_operators() -> onnx.ModelProto:
    made = attention()
    made.graph.node[0].domain = "detent.exec"
    return made


def calls() -> onnx.ModelProto:
    """Attributes of the call, given and by default; an output that is an input; names that are taken; an overload."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    leaky = helper.make_node("LeakyRelu", ["p"], ["h"], name="taken")
    for name in ("alpha", "beta"):
        leaky.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=name, type=onnx.AttributeProto.FLOAT))
    function = helper.make_function("own", "Leak", ["p"], ["h", "p"], [leaky], opsets, attributes=["alpha"])
    function.attribute_proto.append(helper.make_attribute("beta", 0.5))
    overloaded = helper.make_function("own", "Leak", ["p"], ["q"], [helper.make_node("Relu", ["p"], ["q"])], opsets)
    overloaded.overload = "other"
    nodes = [
        helper.make_node("Leak", ["x"], ["a", "b"], name="call", domain="own", alpha=0.1),
        helper.make_node("Leak", ["a"], ["call/h", "d"], name="call", domain="own"),
        helper.make_node("Sum", ["a", "b", "call/h", "d"], ["y"], name="taken"),
    ]
    return model(nodes, [value("x", [1, 4])], [value("y", [1, 4])], functions=[function, overloaded], domains=["own"])


def numbers_in_functions() -> bytes:
    """Fields of another wire type than those that are known, in a function and in its opset."""
    function = helper.make_function("own", "F", ["p"], ["q"], [helper.make_node("Relu", ["p"], ["q"])], []).SerializeToString()
    opset = helper.make_opsetid("", 17).SerializeToString() + b"\x1d\0\0\0\0"
    function += b"\x18\x01\x4a" + bytes([len(opset)]) + opset
    return calls().SerializeToString() + b"\xca\x01" + bytes([len(function)]) + function


def shadows() -> onnx.ModelProto:
    """Bodies with names, weights and stated shapes of what stands around them."""
    made = bodies()
    for branch, weights in ((made.graph.node[0].attribute[0].g, ["w"]), (made.graph.node[1].attribute[0].g, ["u"])):
        branch.value_info.append(value("t", [1, 4]))
        for name in weights:
            made.graph.initializer.append(weight(name, 4, 4))
        branch.node[0].name = "outer"
    return made


def misread(kind: str) -> onnx.ModelProto:
    """Nodes that read what they cannot, or make what is made elsewhere."""
    made = bodies()
    graph, branch = made.graph, made.graph.node[0].attribute[0].g
    if kind == "cycle":
        graph.node.extend([helper.make_node("Relu", ["r"], ["s"]), helper.make_node("Relu", ["s"], ["r"])])
    elif kind == "cycle_in_a_body":
        branch.node.extend([helper.make_node("Relu", ["r"], ["s"]), helper.make_node("Relu", ["s"], ["r"])])
    elif kind == "twice":
        branch.node.append(helper.make_node("Relu", ["x"], ["t"]))
    elif kind == "nowhere":
        branch.node[0].input[0] = "nothing"
    elif kind == "of_a_body":
        graph.node[2].input[0] = "t"
    elif kind == "own_body":
        graph.node[0].input[0] = "t"
    elif kind == "output":
        branch.output[0].name = "nothing"
    elif kind == "outer_output":
        graph.output[0].name = "t"
    elif kind == "either_of_two":
        branch.node.append(helper.make_node("Relu", ["w"], ["x"]))
    elif kind == "hidden_constant":
        branch.initializer.append(weight("x", 1, 4))
    return made


MISREAD = (
    "cycle",
    "cycle_in_a_body",
    "twice",
    "nowhere",
    "of_a_body",
    "own_body",
    "output",
    "outer_output",
    "either_of_two",
    "hidden_constant",
)
QUANTIZED = [quantized, operators_in_integers, weights_in_blocks, quantized_layers]
MODELS = [convolutions, attention, constants, bodies, functions, sparse, quantized, halves, elementwise]
