"""What the documentation of Quark and ONNX Runtime shows, with only the import changed."""

import os
import pathlib
import re
import subprocess
import sys

import detent
import detent.compat as compat
import detent.compat.quark as quark
import graphs
import numpy as np
import onnx
import onnxruntime.quantization as ort_quantization
import pytest

# As published, with nothing else changed than what is named in IMPORTS.
IMPORTS = {
    "from quark.onnx import ": "from detent.compat.quark import ",
    "from quark.common.profiler import ": "from detent.compat.quark import ",
    "from onnxruntime.quantization.shape_inference import ": "from detent.compat.shape_inference import ",
    "from onnxruntime.quantization import ": "from detent.compat import ",
}
# The reader and the models that the snippets leave to their readers.
GIVEN = """
import numpy as np

class DataReader:
    def __init__(self, samples):
        self.samples = iter(samples)

    def get_next(self):
        return next(self.samples, None)

def load_and_preprocess_data():
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((1, 3, 8, 8), dtype=np.float32)} for _ in range(4)]

def validate_quantized_model(path):
    assert open(path, "rb").read(1)

calibration_data_reader = DataReader(load_and_preprocess_data())
"""

AUTOMATIC_PROFILING = """
import os
os.environ["QUARK_PROFILING"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = "0"

from quark.onnx import quantize_static

quantize_static(
    model_input="float_model.onnx",
    model_output="quantized_model.onnx",
    calibration_data_reader=calibration_data_reader,
)
"""

USER_CHECKPOINTS = """
import os
os.environ["QUARK_PROFILING"] = "1"

from quark.common.profiler import GlobalProfiler, ProfileStep
from quark.onnx import quantize_static

profiler = GlobalProfiler(output_path="onnx_profile.yaml")

# User-defined: Profile custom data preparation
with profiler.scope(ProfileStep.USER_DEFINED, user_msg="Custom Data Loading"):
    calibration_data = load_and_preprocess_data()
    calibration_data_reader = DataReader(calibration_data)

# Quark auto-profiles internal steps (no manual profiling needed)
quantize_static(
    model_input="float_model.onnx",
    model_output="quantized_model.onnx",
    calibration_data_reader=calibration_data_reader,
)

# User-defined: Profile model validation
with profiler.scope(ProfileStep.USER_DEFINED, user_msg="Model Validation"):
    validate_quantized_model("quantized_model.onnx")
"""

GDS = """
from quark.onnx import AdaRoundConfig, Int8Spec, QConfig, QLayerConfig
adaround_algo = AdaRoundConfig(
    learning_rate=0.1,
    num_iterations=100,
    mem_opt_level=2,
    optim_device="cuda:0",
    use_gds=True,
)
quant_config = QConfig(
    global_config=QLayerConfig(
        input_tensors=Int8Spec(),
        weight=Int8Spec(),
    ),
    algo_config=[adaround_algo],
)
"""

# Its page lacks a comma and leaves MemOptLevel open.
HEAVIEST_LAYER = """
from quark.onnx import AdaQuantConfig

SelectMaxMemLayer = True
MemOptLevel = 1
adaround_algo = AdaQuantConfig(
     learning_rate=0.1,
     fixed_seed=1705472343,
     batch_size=1,
     num_iterations=100,
     output_qdq=True,
     mem_opt_level=MemOptLevel,
     select_max_mem_layer=SelectMaxMemLayer
 )
"""
THEN_QUANTIZE = """
from quark.onnx import Int8Spec, ModelQuantizer, QConfig, QLayerConfig
config = QConfig(QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec()), algo_config=[adaround_algo])
ModelQuantizer(config).quantize_model("float_model.onnx", "quantized_model.onnx", calibration_data_reader)
"""

ONNX_RUNTIME = """
from onnxruntime.quantization.shape_inference import quant_pre_process
quant_pre_process("float_model.onnx", "prepared.onnx", skip_symbolic_shape=True)

from onnxruntime.quantization import quantize, StaticQuantConfig, CalibrationMethod, QuantFormat, QuantType
config = StaticQuantConfig(
    calibration_data_reader=calibration_data_reader,
    calibrate_method=CalibrationMethod.MinMax,
    quant_format=QuantFormat.QDQ,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    per_channel=True,
)
quantize("prepared.onnx", "quantized_model.onnx", config)
"""


@pytest.fixture
def folder(tmp_path):
    b = graphs.Builder(3)
    x = b.add("Relu", b.add("Conv", "x", b.weight("w1", 8, 3, 3, 3), b.weight("b1", 8), name="stem"))
    x = b.add("Flatten", b.add("GlobalAveragePool", b.add("Conv", x, b.weight("w2", 16, 8, 3, 3), name="body")))
    model = b.model({"x": (graphs.FLOAT, [1, 3, 8, 8])}, [b.add("Gemm", x, b.weight("w3", 16, 10), name="head")])
    onnx.save(model, tmp_path / "float_model.onnx")
    return tmp_path


def run(folder: pathlib.Path, *parts: str) -> str:
    script = GIVEN + "\n".join(parts)
    for theirs, ours in IMPORTS.items():
        script = script.replace(theirs, ours)
    assert "quark." not in script.replace("compat.quark", "") and "onnxruntime" not in script
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def quantized(folder):
    return {node.op_type for node in onnx.load(folder / "quantized_model.onnx").graph.node} >= {"QuantizeLinear"}


def steps(profile):
    return re.findall(r'^- step: "(.*)"', profile.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("snippet", "name", "own"),
    [
        (AUTOMATIC_PROFILING, "quark_profile.yaml", []),
        (USER_CHECKPOINTS, "onnx_profile.yaml", ["Custom Data Loading", "Model Validation"]),
    ],
)
def test_profiles_of_quarks_pages(folder, snippet, name, own):
    run(folder, snippet)
    assert quantized(folder)
    found = steps(folder / name)
    assert found[0] == "Start" and found[-1] == "End"
    for stage in ["Pre-process", "Calibration", "Quantization (Static)", "Post-process", *own]:
        assert found.index(f"{stage} Start") < found.index(f"{stage} End")
    text = (folder / name).read_text()
    assert re.search(r'"Start"\n.*\n.*\n.*\n  gpu_memory_mb: 0\.0', text)
    assert "peak_memory_mb: " in text and len(list(folder.glob("*.yaml"))) == 1


def test_nothing_is_profiled_unless_it_is_asked_for(folder):
    run(folder, "os = __import__('os'); os.environ.pop('QUARK_PROFILING', None)", USER_CHECKPOINTS.split("\n\n", 1)[1])
    assert quantized(folder) and list(folder.glob("*.yaml")) == []


def test_direct_reads_of_quarks_page(folder):
    run(folder, GDS, "print(quant_config)")
    config = quark.QConfig(
        quark.QLayerConfig(input_tensors=quark.Int8Spec(), weight=quark.Int8Spec()),
        algo_config=[quark.AdaRoundConfig(mem_opt_level=2, optim_device="cuda:0", use_gds=True)],
    ).to_detent(4)
    assert config.device == detent.Device(cuda=(0,), gds="on")
    with pytest.raises(detent.UsageError, match="use_gds=True needs a GPU"):
        quark.QConfig(
            quark.QLayerConfig(input_tensors=quark.Int8Spec(), weight=quark.Int8Spec()),
            algo_config=[quark.AdaRoundConfig(use_gds=True)],
        ).to_detent(4)


def test_the_heaviest_layer_of_quarks_page(folder):
    told = run(folder, HEAVIEST_LAYER, THEN_QUANTIZE)
    assert quantized(folder)
    assert "output_qdq=True: detent compares" in told


def test_powers_of_two_for_weights(folder):
    config = quark.QConfig(quark.QLayerConfig(input_tensors=quark.XInt8Spec(), weight=quark.XInt8Spec()))
    with pytest.warns(UserWarning, match="MinMSE for weights: detent takes the power of two"):
        quark.ModelQuantizer(config).quantize_model(folder / "float_model.onnx", folder / "quantized_model.onnx", samples(4))
    made = onnx.load(folder / "quantized_model.onnx")
    (scale,) = (onnx.numpy_helper.to_array(t) for t in made.graph.initializer if t.name == scale_of(made, "w1"))
    assert np.log2(scale) == np.round(np.log2(scale))


def samples(count):
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((1, 3, 8, 8), dtype=np.float32)} for _ in range(count)]


def scale_of(model, weight):
    (node,) = (n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0].startswith(weight))
    return node.input[1]


def test_onnx_runtimes_page(folder):
    run(folder, ONNX_RUNTIME)
    assert quantized(folder)
    assert (folder / "prepared.onnx").read_bytes() == (folder / "float_model.onnx").read_bytes()


def test_onnx_runtimes_own_configurations_are_taken(folder):
    static = ort_quantization.StaticQuantConfig(_Reader(samples(2)), per_channel=True)
    compat.quantize(folder / "float_model.onnx", folder / "quantized_model.onnx", static)
    compat.quantize_static(folder / "float_model.onnx", folder / "direct.onnx", _Reader(samples(2)), per_channel=True)
    assert (folder / "direct.onnx").read_bytes() == (folder / "quantized_model.onnx").read_bytes()
    compat.quantize(folder / "float_model.onnx", folder / "dynamic.onnx", ort_quantization.DynamicQuantConfig())
    assert "DynamicQuantizeLinear" in {node.op_type for node in onnx.load(folder / "dynamic.onnx").graph.node}
    with pytest.raises(detent.UsageError, match="configuration of type dict"):
        compat.quantize(folder / "float_model.onnx", folder / "x.onnx", {})


class _Reader(ort_quantization.CalibrationDataReader):
    def __init__(self, given):
        self.given = iter(given)

    def get_next(self):
        return next(self.given, None)


def test_a_model_with_external_data_is_copied_whole(folder):
    (folder / "away").mkdir()
    model = onnx.load(folder / "float_model.onnx")
    onnx.save(model, folder / "large.onnx", save_as_external_data=True, location="large.data", size_threshold=0)
    compat.quant_pre_process(folder / "large.onnx", folder / "away" / "prepared.onnx")
    assert onnx.load(folder / "away" / "prepared.onnx") == onnx.load(folder / "large.onnx")


def test_absent_names_say_what_works_instead():
    for module, names in ((compat, compat._ABSENT), (quark, quark.ABSENT)):
        for name in names:
            with pytest.raises(detent.UsageError, match=f"{name} is not supported by detent") as raised:
                getattr(module, name)
            assert raised.value.hint
    public = {name for name in vars(ort_quantization) if name[0].isupper()}
    assert {name for name in public if not hasattr_safe(compat, name)} == set()


def hasattr_safe(module, name):
    try:
        return hasattr(module, name)
    except detent.UsageError:
        return True


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"enable_npu_cnn": True}, "enable_npu_cnn=True"),
        ({"subgraphs_to_exclude": [(["a"], ["b"])]}, "subgraphs_to_exclude"),
        ({"include_sq": True}, "include_sq=True"),
    ],
)
def test_arguments_of_quarks_quantize_static_are_refused_by_name(folder, arguments, part):
    with pytest.raises(detent.UsageError, match=part):
        quark.quantize_static(folder / "float_model.onnx", folder / "x.onnx", samples(1), **arguments)
    with pytest.raises(TypeError, match="nonsense"):
        quark.quantize_static(folder / "float_model.onnx", folder / "x.onnx", samples(1), nonsense=1)


def test_a_profiler_records_several_runs(folder):
    with detent.Profiler(folder / "all.yaml") as profiler:
        with profiler.scope("Both"):
            for name in ("a.onnx", "b.onnx"):
                detent.quantize(folder / "float_model.onnx", folder / name, samples(2), {"preset": "plain"}, profile=profiler)
        profiler.checkpoint("between")
    found = steps(folder / "all.yaml")
    assert found.count("Calibration Start") == 2
    assert found.index("Both Start") < found.index("Calibration Start") < found.index("Both End") < found.index("between")
    assert profiler.peak_memory > 0 and os.path.getsize(folder / "all.yaml") > 0
