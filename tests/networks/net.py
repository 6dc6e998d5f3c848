"""What the generators of networks share: a network that grows at its end, and what a finished one consists of."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from blocks import IMAGE_BLOCKS, KINDS, Net, activation, conv, image_network, linear, normalized, shuffled  # noqa: E402, F401

Sample = dict[str, np.ndarray]
FLOAT, FLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
#: What masks are filled with.
LOW = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True)
class Part:
    """Entries of an output that mean the same, such as the scores beside boxes."""

    output: int
    axis: int = -1
    first: int = 0
    last: int | None = None

    def of(self, values: np.ndarray) -> np.ndarray:
        return np.take(values, range(*slice(self.first, self.last).indices(values.shape[self.axis])), self.axis)


@dataclasses.dataclass
class Network:
    name: str
    model: onnx.ModelProto
    samples: list[Sample]
    parts: list[Part]

    @property
    def shapes(self) -> list[str]:
        """Options that give dynamic axes the numbers of the first sample."""
        options = []
        for info in self.model.graph.input:
            dims = info.type.tensor_type.shape.dim
            if any(d.dim_param for d in dims):
                options += ["--shape", f"{info.name}:{'x'.join(map(str, self.samples[0][info.name].shape))}"]
        return options


def smooth(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Values that resemble their neighbours along the last axis, as pictures and sounds have them."""
    noise = random.normal(size=(*shape[:-1], shape[-1] + 4))
    return sum(noise[..., i : i + shape[-1]] for i in range(5)).astype(np.float32) / 2


def finished(
    n: Net,
    name: str,
    inputs: dict[str, tuple],
    outputs: list[str] | dict[str, int],
    samples: list[Sample],
    parts: list[Part] | None = None,
    opset: int = 17,
) -> Network:
    """A network with outputs of float, or of the types given."""
    if isinstance(outputs, list):
        outputs = dict.fromkeys(outputs, FLOAT)
    infos = [helper.make_tensor_value_info(key, *given) for key, given in inputs.items()]
    results = [helper.make_tensor_value_info(key, kind, None) for key, kind in outputs.items()]
    graph = helper.make_graph(n.nodes, name.replace(" ", "_"), infos, results, n.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9 if opset > 17 else 8)
    inferred = onnx.shape_inference.infer_shapes(model)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    if parts is None:
        parts = [Part(i) for i, kind in enumerate(outputs.values()) if kind == FLOAT]
    return Network(name, model, samples, parts)


def halves(values: np.ndarray) -> np.ndarray:
    """What is too large becomes the largest, what is infinite stays so."""
    return np.asarray(np.where(np.isinf(values), values, np.clip(values, -65504, 65504)), np.float16)


def in_float16(network: Network) -> Network:
    """The same network as if its exporter had written float16: inputs, constants and results."""
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    scales = {name for node in model.graph.node if node.op_type == "Resize" for name in node.input[1:]}
    for i, tensor in enumerate(model.graph.initializer):
        if tensor.data_type == FLOAT and tensor.name not in scales:
            model.graph.initializer[i].CopyFrom(numpy_helper.from_array(halves(numpy_helper.to_array(tensor)), tensor.name))
    for info in [*model.graph.input, *model.graph.output]:
        if info.type.tensor_type.elem_type == FLOAT:
            info.type.tensor_type.elem_type = FLOAT16
    del model.graph.value_info[:]
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = FLOAT16
            if attribute.HasField("t") and attribute.t.data_type == FLOAT:
                attribute.t.CopyFrom(numpy_helper.from_array(halves(numpy_helper.to_array(attribute.t))))
    samples = [{key: v.astype(np.float16) if v.dtype == np.float32 else v for key, v in s.items()} for s in network.samples]
    return Network(f"{network.name}, float16", model, samples, network.parts)
