"""verify() with runtimes that the caller brings along: numpy's exact integers agree with the reference, and what saturates does
not."""

import importlib.util
import pathlib
import sys

import detent
import graphs
import integers
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
import test_integers
from detent import _qnn


def session(path: pathlib.Path, level: ort.GraphOptimizationLevel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Numpy:
    """Products of integers by numpy, all else by ONNX Runtime."""

    name = "numpy 1"

    def __init__(self) -> None:
        self.products = 0
        self.sums: set[str] = set()

    def elementwise(self, graph: integers.Graph, node: onnx.NodeProto, given: dict[str, np.ndarray]) -> np.ndarray:
        x, y = (self.value(graph, graph.quantized(name), given) for name in node.input)
        scale, zero = (graph.constants[name] for name in graph.quantizer(node.output[0]).input[1:])
        return integers.divided(x + y if node.op_type == "Add" else x * y, scale, zero)

    @staticmethod
    def value(graph: integers.Graph, dequantized: onnx.NodeProto, given: dict[str, np.ndarray]) -> np.ndarray:
        scale, zero = (graph.constants[name] for name in dequantized.input[1:])
        return (given[dequantized.input[0]].astype(float) - float(zero)) * np.float64(scale)

    def product(self, graph: integers.Graph, node: onnx.NodeProto, x: np.ndarray) -> np.ndarray:
        return integers.product_again(graph, node, x, in_double=True)

    def load(self, path: pathlib.Path):
        model = onnx.load(path)
        graph = integers.Graph(model.graph)
        given = [value.name for value in model.graph.input]
        products = [node for node in graph.nodes if integers.is_integer(graph, node)]
        computing = [node for node in graph.nodes if not node.op_type.endswith("tizeLinear")]
        if products and {node.op_type for node in computing} <= {*integers.PRODUCTS, "Relu"} and len(model.graph.output) == 1:
            self.products += 1
            return lambda inputs: [self.product(graph, products[0], inputs[0])]
        if [node.op_type for node in computing] in (["Add"], ["Mul"]) and len(model.graph.input) == 2:
            self.sums.add(computing[0].name)
            return lambda inputs: [self.elementwise(graph, computing[0], dict(zip(given, inputs, strict=True)))]
        run = session(path, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
        names = [value.name for value in run.get_inputs()]
        return lambda inputs: run.run(None, dict(zip(names, inputs, strict=True)))


class Saturating(Numpy):
    """Adds pairs of products in 16 bits, as CPUs without VNNI do."""

    def product(self, graph: integers.Graph, node: onnx.NodeProto, x: np.ndarray) -> np.ndarray:
        if node.op_type != "MatMul":
            return super().product(graph, node, x)
        of_input, of_weight, to = graph.quantized(node.input[0]), graph.quantized(node.input[1]), graph.quantizer(node.output[0])
        (x_scale, x_zero), (w_scale, _) = ([graph.constants[n] for n in g.input[1:]] for g in (of_input, of_weight))
        y_scale, y_zero = (graph.constants[n] for n in to.input[1:])
        w = graph.constants[of_weight.input[0]].astype(np.int64)
        terms = np.pad(x.astype(np.int64)[:, :, None] * w[None], [(0, 0), (0, -len(w) % 2), (0, 0)])
        total = np.clip(terms[:, ::2] + terms[:, 1::2], -32768, 32767).sum(axis=1) - int(x_zero) * w.sum(axis=0)
        return integers.exactly_requantized(total.astype(float), np.float64(x_scale) * w_scale / y_scale, y_zero)


def verified(model: pathlib.Path, data: pathlib.Path, folder: pathlib.Path, consumer: object = None, **config: object):
    chosen = {"preset": "plain", **config}
    detent.quantize(model, folder / "q.onnx", data, chosen)
    return detent.verify(model, folder / "q.onnx", data, consumer=consumer, bench=False)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    folder = tmp_path_factory.mktemp("large")
    onnx.save(test_integers.large_weights(), folder / "m.onnx")
    rng = np.random.default_rng(72)
    samples = [{"x": rng.uniform(0.5, 1, (2, 15, 17, 16)).astype(np.float32)} for _ in range(4)]
    return folder / "m.onnx", support.save_samples(folder / "data", samples)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("types", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("uint16", "int8"), ("int16", "int8")])
def test_the_reference_is_what_numpy_makes_of_the_integers(
    large: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path, types: tuple[str, str], per_channel: bool
) -> None:
    numpy = Numpy()
    options = {"activation_type": types[0], "weight_type": types[1], "per_channel": per_channel, "weight_range": "full"}
    result = verified(*large, tmp_path, numpy, **options)
    products = [layer for layer in result.layers if layer.made_by.split()[0] in integers.PRODUCTS and layer.quantized]
    assert numpy.products >= 16 and len(products) >= 16
    assert all(layer.exact and layer.max_steps == 0 for layer in products), result
    assert result.consumer == "numpy 1" and result.latency == []


def test_the_reference_of_a_trained_model(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(73)
    data = support.save_samples(tmp_path / "data", [{"x": rng.uniform(-1, 1, (1, 3, 48, 96)).astype(np.float32)} for _ in range(2)])
    numpy = Numpy()
    result = verified(support.MODELS / "ppocr_cls.onnx", data, tmp_path, numpy)
    products = [layer for layer in result.layers if layer.made_by.startswith("Conv ") and layer.quantized]
    assert numpy.products > 40 and len(products) > 40
    assert all(layer.exact and layer.max_steps == 0 for layer in products), result


def test_the_reference_of_sums(tmp_path: pathlib.Path) -> None:
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.transformer_samples())
    numpy = Numpy()
    result = verified(tmp_path / "m.onnx", data, tmp_path, numpy)
    sums = [layer for layer in result.layers if layer.made_by.split("'")[1] in numpy.sums]
    assert len(sums) == len(numpy.sums) >= 2 and all(layer.exact and layer.max_steps == 0 for layer in sums), result


def test_a_runtime_that_saturates_is_found(large: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path) -> None:
    result = verified(*large, tmp_path, Saturating(), weight_range="full")
    worst = result.layers[0]
    assert worst.made_by == "MatMul 'matrix'" and worst.max_steps == result.max_steps > 5 and worst.share_over_one > 0.1
    assert all(layer.max_steps <= 1 for layer in result.layers if layer.quantized and not layer.made_by.startswith("MatMul"))
    assert "MatMul 'matrix'" in str(result)
    assert verified(*large, tmp_path, Saturating(), weight_range="pairs").layers[0].max_steps <= 1


def test_layers_that_a_runtime_does_not_take_are_noted(model: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    class Choosy(Numpy):
        def load(self, path: pathlib.Path):
            nodes = onnx.load(path).graph.node
            return super().load(path) if "GlobalAveragePool" not in {n.op_type for n in nodes} or len(nodes) > 5 else None

    result = verified(model, folder, tmp_path, Choosy())
    noted = [note for note in result.notes if "was not compared on its own: numpy 1 does not take the model" in note]
    assert len(noted) == 1
    assert not any("GlobalAveragePool" in layer.made_by for layer in result.layers)


def test_errors_of_a_runtime_come_through(model: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    class Broken(Numpy):
        def load(self, path: pathlib.Path):
            raise ZeroDivisionError(path.name)

    with pytest.raises(ZeroDivisionError, match=r"part\.onnx"):
        verified(model, folder, tmp_path, Broken())


def test_openvino(model: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    detent.quantize(model, tmp_path / "q.onnx", folder, {"preset": "plain", "target": "openvino"})
    if importlib.util.find_spec("openvino") is None:
        with pytest.raises(detent.DeviceError, match="nothing here runs models as openvino does") as error:
            detent.verify(model, tmp_path / "q.onnx", folder, target="openvino")
        assert "where the package openvino is installed" in (error.value.hint or "")
        pytest.skip("openvino is not installed")
    result = detent.verify(model, tmp_path / "q.onnx", folder, target="openvino")
    assert result.consumer.startswith("OpenVINO ") and len(result.latency) == 2
    assert result.max_steps <= 1


def test_the_htp_in_its_simulator(model: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = {"preset": "plain", "target": "qnn", "input_shapes": {"x": [1, 3, 16, 16]}}
    data = support.save_samples(tmp_path / "data", [{"x": sample["x"][:1]} for sample in graphs.cnn_samples(3)])
    detent.quantize(model, tmp_path / "q.onnx", data, config)
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        with pytest.raises(detent.DeviceError, match="nothing here runs models as qnn does") as error:
            detent.verify(model, tmp_path / "q.onnx", data, target="qnn")
        assert "where the package onnxruntime-qnn is installed" in (error.value.hint or "")
        pytest.skip("onnxruntime-qnn is not installed")
    result = detent.verify(model, tmp_path / "q.onnx", data, target="qnn")
    assert result.consumer.startswith("onnxruntime-qnn ") and result.latency == []
    assert len(result.layers) >= 4 and result.max_steps <= 1
    # Dynamic axes are what the HTP never takes.
    detent.quantize(model, tmp_path / "dynamic.onnx", data, {"preset": "plain"})
    with pytest.raises(detent.BadInput, match="onnxruntime-qnn .* does not take the model"):
        detent.verify(model, tmp_path / "dynamic.onnx", data, target="qnn")


def test_a_trained_model_in_the_simulator_of_the_htp(tmp_path: pathlib.Path) -> None:
    """As a whole, and within a step of exact integers; where some values have 16 bits, their steps are 256 times finer."""
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("onnxruntime-qnn is not installed")
    rng = np.random.default_rng(73)
    data = support.save_samples(tmp_path / "data", [{"x": rng.uniform(-1, 1, (1, 3, 48, 96)).astype(np.float32)} for _ in range(4)])
    config = {"target": "qnn", "input_shapes": {"x": [1, 3, 48, 96]}, "bench": False}
    detent.quantize(support.MODELS / "ppocr_cls.onnx", tmp_path / "q.onnx", data, config)
    result = detent.verify(support.MODELS / "ppocr_cls.onnx", tmp_path / "q.onnx", data, target="qnn", max_samples=1)
    graph = onnx.load(tmp_path / "q.onnx").graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    made = {node.output[0]: types[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"}
    steps = {
        kind: [layer.max_steps for layer in result.layers if made.get(layer.name) == kind]
        for kind in (onnx.TensorProto.UINT8, onnx.TensorProto.UINT16)
    }
    assert len(steps[onnx.TensorProto.UINT8]) > 60 and max(steps[onnx.TensorProto.UINT8]) <= 1, result
    assert max(steps[onnx.TensorProto.UINT16], default=0) < 128, result


def test_qnn_without_a_device_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Devices:
        get_ep_devices = staticmethod(list)
        register_execution_provider_library = staticmethod(lambda name, path: None)

    class Package:
        get_ep_name = staticmethod(lambda: "QNNExecutionProvider")
        get_library_path = get_qnn_htp_path = staticmethod(lambda: "library")

    monkeypatch.setitem(sys.modules, "onnxruntime", Devices)
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", Package)
    with pytest.raises(detent.DeviceError, match="onnxruntime-qnn finds no device here"):
        _qnn.Qnn()


def test_samples_in_memory_and_models_as_bytes(model: pathlib.Path, samples: list[support.Sample]) -> None:
    quantized = detent.quantize(model.read_bytes(), data=samples, config={"preset": "plain"})
    result = detent.verify(model.read_bytes(), quantized, samples[:3], threads=1)
    assert result.samples == 3 and result.target == "ort-cpu" and result.target_reason == ""
    assert len(result.latency) == 2 and all(latency.runs > 0 for latency in result.latency)


def test_float_models_have_no_steps(tmp_path: pathlib.Path) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(2))
    result = detent.verify(tmp_path / "m.onnx", tmp_path / "m.onnx", data, bench=False)
    assert result.max_steps < 0.01 and not any(layer.quantized for layer in result.layers)
