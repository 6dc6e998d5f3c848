"""Models that try to carry a file out: no tensor of a model, wherever it stands, opens what is not the model's own."""

import ctypes
import os
import resource
from collections.abc import Callable

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, Place
from onnx import AttributeProto, SparseTensorProto, TensorProto, TrainingInfoProto, helper, numpy_helper
from support import Path

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
COUNT = 512  # elements of a tensor that lies elsewhere: too many to be kept inline on the way to the runtime


def external(location: str, name: str = "", kind: int = FLOAT) -> TensorProto:
    tensor = TensorProto(name=name, data_type=kind, dims=[COUNT], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def inline(kind: int = FLOAT) -> TensorProto:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    return numpy_helper.from_array(np.arange(COUNT, dtype=dtype))


def expose(model: onnx.ModelProto, nodes: list[onnx.NodeProto], name: str = "leak") -> None:
    """Makes the nodes' value a factor of an output of its own, so that its contents matter."""
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info(name, FLOAT, None))


def constant(tensor: TensorProto, name: str = "leak") -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=tensor)


def graph_output(model: onnx.ModelProto, location: str) -> None:
    expose(model, [constant(external(location))])


def lifted_constant(model: onnx.ModelProto, location: str) -> None:
    expose(model, [constant(external(location), "inner"), helper.make_node("Neg", ["inner"], ["leak"])])


def if_node(branch: onnx.GraphProto, output: str) -> list[onnx.NodeProto]:
    other = helper.make_graph([constant(inline(), "b")], "else", [], [helper.make_tensor_value_info("b", FLOAT, None)])
    condition = helper.make_node("Constant", [], [f"{output}.c"], value=numpy_helper.from_array(np.array(True)))
    return [condition, helper.make_node("If", [f"{output}.c"], [output], then_branch=branch, else_branch=other)]


def body(nodes: list[onnx.NodeProto], initializers: tuple = (), sparse: tuple = ()) -> onnx.GraphProto:
    outputs = [helper.make_tensor_value_info("a", FLOAT, None)]
    graph = helper.make_graph(nodes, "then", [], outputs, list(initializers))
    graph.sparse_initializer.extend(sparse)
    return graph


def in_body(model: onnx.ModelProto, location: str) -> None:
    expose(model, if_node(body([constant(external(location), "a")]), "leak"))


def in_nested_body(model: onnx.ModelProto, location: str) -> None:
    inner = body([constant(external(location), "a")])
    expose(model, if_node(body(if_node(inner, "a")), "leak"))


def body_initializer(model: onnx.ModelProto, location: str) -> None:
    expose(model, if_node(body([helper.make_node("Neg", ["i"], ["a"])], (external(location, "i"),)), "leak"))


def add_function(model: onnx.ModelProto, nodes: list[onnx.NodeProto], defaults: list[AttributeProto]) -> None:
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Leak", [], ["a"], nodes, imports, attributes=[], attribute_protos=defaults)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    expose(model, [helper.make_node("Leak", [], ["leak"], domain="own")])


def in_function(model: onnx.ModelProto, location: str) -> None:
    add_function(model, [constant(external(location), "a")], [])


def default_of_function(model: onnx.ModelProto, location: str) -> None:
    node = helper.make_node("Constant", [], ["a"])
    node.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, ref_attr_name="v"))
    add_function(model, [node], [helper.make_attribute("v", external(location))])


def sparse(values: TensorProto, indices: TensorProto) -> SparseTensorProto:
    return SparseTensorProto(values=values, indices=indices, dims=[2 * COUNT])


def sparse_values(model: onnx.ModelProto, location: str) -> None:
    model.graph.sparse_initializer.append(sparse(external(location, "s"), inline(INT64)))
    expose(model, [helper.make_node("Neg", ["s"], ["leak"])])


def sparse_indices(model: onnx.ModelProto, location: str) -> None:
    values = inline()
    values.name = "s"
    model.graph.sparse_initializer.append(sparse(values, external(location, "", INT64)))
    expose(model, [helper.make_node("Neg", ["s"], ["leak"])])


def sparse_attribute(model: onnx.ModelProto, location: str) -> None:
    expose(model, [helper.make_node("Constant", [], ["leak"], sparse_value=sparse(external(location), inline(INT64)))])


def constant_of_shape(model: onnx.ModelProto, location: str) -> None:
    value = external(location)
    value.dims[:] = [1]
    model.graph.initializer.append(numpy_helper.from_array(np.array([7], np.int64), "seven"))
    expose(model, [helper.make_node("ConstantOfShape", ["seven"], ["leak"], value=value)])


def initializer(model: onnx.ModelProto, location: str) -> None:
    model.graph.initializer.append(external(location, "i"))
    expose(model, [helper.make_node("Neg", ["i"], ["leak"])])


def unknown_type(model: onnx.ModelProto, location: str) -> None:
    model.graph.initializer.append(external(location, "i", 99))


def strings(model: onnx.ModelProto, location: str) -> None:
    model.graph.initializer.append(external(location, "i", TensorProto.STRING))


def training(model: onnx.ModelProto, location: str) -> None:
    model.training_info.append(TrainingInfoProto(initialization=body([constant(external(location), "a")])))


CARRIERS = [
    graph_output,
    lifted_constant,
    in_body,
    in_nested_body,
    body_initializer,
    in_function,
    default_of_function,
    sparse_values,
    sparse_indices,
    sparse_attribute,
    constant_of_shape,
    initializer,
    unknown_type,
    strings,
    training,
]
LOCATIONS = ["{secret}", "{secret_from_root}", "../secret.bin", "link.bin", "folder/secret.bin", "hard.bin", "fifo"]
Carrier = Callable[[onnx.ModelProto, str], None]


class Watch:
    """Tells whether anybody opens a file, by whatever name."""

    OPENED = 0x20

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(self.descriptor, os.fsencode(path), self.OPENED) >= 0

    def opened(self) -> bool:
        try:
            return bool(os.read(self.descriptor, 4096))
        except BlockingIOError:
            return False

    def __del__(self) -> None:
        os.close(self.descriptor)


def hostile(place: Place, carrier: Carrier, location: str, base: onnx.ModelProto | None = None) -> Path:
    model = base or graphs.small_cnn()
    carrier(model, location)
    path = place.inputs / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def secret(place: Place) -> Path:
    path = place.inputs.parent / "secret.bin"
    path.write_bytes(np.full(2 * COUNT, 1234.5, np.float32).tobytes())
    (place.inputs / "link.bin").symlink_to(path)
    (place.inputs / "folder").symlink_to(path.parent)
    os.mkfifo(place.inputs / "fifo")
    return path


@pytest.mark.sampled(5)
@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda c: c.__name__)
def test_no_file_is_carried_out(carrier: Carrier, place: Place, data: Path, secret: Path) -> None:
    """The model is refused and the file is not even opened, whatever the command and the name of the file."""
    watch = Watch(secret)
    for pattern in LOCATIONS:
        (place.inputs / "hard.bin").unlink(missing_ok=True)
        if pattern == "hard.bin":
            (place.inputs / "hard.bin").hardlink_to(secret)
        location = pattern.format(secret=secret, secret_from_root=str(secret)[1:])
        model = hostile(place, carrier, location)
        place.refused(BAD_INPUT, "model.onnx", model, data)
        if pattern != "hard.bin":  # which is judged when it is open, and never read
            assert not watch.opened(), pattern
        watch.opened()
    commands = [["inspect"], ["plan"], ["bench"], ["calibrate", "-o", place.out / "s"], ["compare", place.inputs / "model.onnx"]]
    for command in commands:
        model = hostile(place, carrier, str(secret))
        samples = [] if command[0] in ("inspect", "bench") else ["--calibration-data", data]
        place.refuses(BAD_INPUT, "model.onnx", command[0], model, *command[1:], *samples)
        assert not watch.opened(), command


READABLE = [c for c in CARRIERS if c not in (unknown_type, strings)]


@pytest.mark.parametrize("carrier", READABLE, ids=lambda c: c.__name__)
def test_a_file_beside_the_model_is_read(carrier: Carrier, place: Place, data: Path) -> None:
    """The same tensors are sound when their data are the model's own; the result holds them."""
    is_index = carrier is sparse_indices
    values = np.arange(COUNT, dtype=np.int64) if is_index else np.arange(COUNT, dtype=np.float32) + 0.5
    (place.inputs / "own.bin").write_bytes(values.tobytes())
    model = hostile(place, carrier, "own.bin")
    runs = carrier not in (default_of_function, training, sparse_values, sparse_indices, sparse_attribute)
    if not runs:  # the runtime or the checker may have its own view of these
        result = support.detent("inspect", model, env=place.environment)
        assert result.returncode == 0, result.stderr
        return
    support.quantize(model, place.output, data)
    (place.inputs / "own.bin").unlink()
    session = support.load(place.output)
    leak = session.run(["leak"], graphs.cnn_samples()[0])[0]
    expected = values[:1] if carrier is constant_of_shape else values
    negated = carrier in (lifted_constant, body_initializer, initializer)
    np.testing.assert_array_equal(np.unique(np.abs(leak)), expected if not negated else np.unique(np.abs(expected)))


def test_more_data_files_than_a_shell_allows(place: Place, data: Path) -> None:
    """Data files stay open; where the soft limit of open files is too low it is raised."""
    model = graphs.small_cnn()
    for i in range(100):
        (place.inputs / f"{i}.bin").write_bytes(np.full(COUNT, i, np.float32).tobytes())
        initializer = external(f"{i}.bin", f"i{i}")
        model.graph.initializer.append(initializer)
        expose(model, [helper.make_node("Neg", [f"i{i}"], [f"leak{i}"])], f"leak{i}")
    path = place.inputs / "model.onnx"
    path.write_bytes(model.SerializeToString())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))}
    support.quantize(path, place.output, data, **few)
    none = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))}
    result = support.detent("quantize", path, "-o", place.output, "--calibration-data", data, **none)
    assert result.returncode == 4 and "ulimit -n" in result.stderr, result.stderr
