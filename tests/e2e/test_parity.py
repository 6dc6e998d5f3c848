"""What detent writes against ONNX Runtime's quantize_static on the same prepared model."""

from collections.abc import Callable

import graphs
import numpy as np
import onnx
import parity
import pytest
import support
from onnx import TensorProto
from support import MODELS, Config, Path, Sample

CONFIGS = [
    Config(),
    Config("int8", "int8", per_channel=False),
    Config("uint8", "uint8", per_channel=False),
    Config("int8", "int8", symmetric=True),
    Config("uint8", "int4"),
    Config("uint8", "uint4", per_channel=False),
]


Case = Callable[[Path], tuple[Path, list[Sample]]]  # makes model and samples in a folder


def generated(model: Callable[[], onnx.ModelProto], samples: Callable[[], list[Sample]]) -> Case:
    def make(folder: Path) -> tuple[Path, list[Sample]]:
        onnx.save(model(), folder / "model.onnx")
        return folder / "model.onnx", samples()

    return make


def demo_task(name: str, count: int) -> Case:
    def make(folder: Path) -> tuple[Path, list[Sample]]:
        task = support.prepare_task(name, folder / "task")
        return task / "model.onnx", support.load_samples(task / "calibration")[:count]

    return make


def text_detector(_folder: Path) -> tuple[Path, list[Sample]]:
    rng = np.random.default_rng(7)
    return MODELS / "ppocr_det.onnx", [{"x": rng.normal(size=(1, 3, 160, 192)).astype(np.float32)} for _ in range(2)]


CASES = {
    "small_cnn": generated(graphs.small_cnn, graphs.cnn_samples),
    "transformer": generated(graphs.transformer, graphs.transformer_samples),
    "menagerie": generated(graphs.menagerie, graphs.menagerie_samples),
    "ppocr_cls": demo_task("ppocr_cls", 6),
    "opennsfw": demo_task("opennsfw", 3),
    "ppocr_det": text_detector,
}
_made: dict[str, tuple[Path, list[Sample], Path]] = {}


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sample], Path]:
    """Model, samples and the samples' folder of a case, made once."""
    name = request.param
    if name not in _made:
        folder = tmp_path_factory.mktemp(name)
        model, samples = CASES[name](folder)
        _made[name] = (model, samples, support.save_samples(folder / "data", samples))
    return _made[name]


# ORT's own ranges may be off by rounding: quantize_static runs the model without optimisation.
RANGE_ERROR = 1e-4
RUNS = [(name, config) for name in CASES for config in CONFIGS] + [("menagerie", Config(reduce_range=True))]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("made", "config"), [pytest.param(*run, id="-".join(map(str, run))) for run in RUNS], indirect=["made"])
def test_same_as_onnx_runtime(made: tuple[Path, list[Sample], Path], config: Config, tmp_path: Path) -> None:
    model, samples, data = made
    paths = [tmp_path / f"{name}.onnx" for name in ("ours", "theirs", "prepared")]
    report = support.quantize(model, paths[0], data, "--set", f"prepared-output={paths[2]}", *config.options())
    support.check_model(paths[2])
    support.outputs(support.check_model(paths[0]), samples[:1])
    activations = report["activations"]
    own: dict[str, parity.Range] = {}
    with parity.given_ranges({name: (p["min"], p["max"]) for name, p in activations.items()}, own):
        support.peer_quantize(paths[2], paths[1], samples, config)

    ours, theirs, prepared = (parity.Graph(path) for path in paths)
    parity.assert_params_follow_ranges(ours, activations, config)
    shared = {name for name in activations if f"{name}_scale" not in ours.tensors}
    fixed = {node.output[0] for node in prepared.order if node.op_type == "Softmax"}
    parity.assert_ranges_close({n: p for n, p in activations.items() if n not in shared | fixed}, own, RANGE_ERROR)
    if config.symmetric:
        parity.remove_pairs_before_activations(ours, theirs, prepared)
    else:
        parity.remove_kept_clips(ours, theirs, activations, config)
    for graph in (ours, theirs):
        parity.name_biases_by_node(graph)
    assert ours.form() == theirs.form()
    cut = set() if config.symmetric else parity.cut_outputs(prepared)
    if config.weight != "int8":
        cut |= parity.overflowing_biases(theirs, config.weight.startswith("u"))
    parity.assert_same_tensors(ours, theirs, but=parity.halved_biases(prepared) | cut)


def grouped_transposed() -> onnx.ModelProto:
    b = graphs.Builder(8)
    y = b.add("ConvTranspose", "x", b.weight("w", 8, 4, 2, 2), b.weight("b", 8, scale=1), name="up", group=2, strides=[2, 2])
    return b.model({"x": (TensorProto.FLOAT, [1, 8, 6, 6])}, [y])


def beta_gemm() -> onnx.ModelProto:
    b = graphs.Builder(9)
    y = b.add("Gemm", b.add("Flatten", "x"), b.weight("w", 5, 288), b.weight("b", 5, scale=30), name="half", transB=1, beta=0.5)
    return b.model({"x": (TensorProto.FLOAT, [1, 8, 6, 6])}, [y])


@pytest.mark.parametrize("build", [grouped_transposed, beta_gemm])
def test_right_where_onnx_runtime_is_not(build: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """A grouped ConvTranspose with a bias stops quantize_static, and it drops the beta of Gemm."""
    rng = np.random.default_rng(10)
    samples = [{"x": rng.normal(size=(1, 8, 6, 6)).astype(np.float32)} for _ in range(4)]
    model, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(build(), model)
    support.quantize(model, output, support.save_samples(tmp_path / "data", samples), "--set", "weight-range=reduced")
    integers = [t for t in parity.Graph(output).tensors.values() if t.dtype == np.int32 and t.size > 1 and t.any()]
    assert len(integers) == 1, "the bias is quantized"
    found = support.outputs(support.check_model(output), samples)
    assert support.sqnr(support.outputs(support.load(model), samples), found) > 30
