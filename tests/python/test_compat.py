"""Scripts for other quantizers, with another import."""

import os
import pathlib
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
import support
from detent.compat import _quark_search

EXAMPLE = pathlib.Path(__file__).parent / "onnxruntime_example"
IMPORT = "from onnxruntime.quantization import "


class Reader(compat.CalibrationDataReader):
    def __init__(self, samples):
        self.samples = iter(samples)

    def get_next(self):
        return next(self.samples, None)


def image_model():
    b = graphs.Builder(3)
    x = b.add("Relu", b.add("Conv", "data", b.weight("w1", 8, 3, 7, 7), b.weight("b1", 8), name="stem", strides=[4, 4]))
    x = b.add("Flatten", b.add("GlobalAveragePool", b.add("Conv", x, b.weight("w2", 16, 8, 3, 3), name="body")))
    return b.model({"data": (graphs.FLOAT, [1, 3, 224, 224])}, [b.add("Gemm", x, b.weight("w3", 16, 10), name="head")])


def test_onnx_runtimes_own_example_runs(tmp_path):
    onnx.save(image_model(), tmp_path / "model.onnx")
    for path in EXAMPLE.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text().replace(IMPORT, "from detent.compat import "))
    assert IMPORT not in (tmp_path / "run.py").read_text()
    command = [sys.executable, "run.py", "--input_model", "model.onnx", "--output_model", "int8.onnx"]
    command += ["--calibrate_dataset", str(support.MODELS / "photos")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "Calibrated and quantized model saved." in result.stdout
    made = onnx.load(tmp_path / "int8.onnx")
    assert made.producer_name == "detent"
    assert any(node.op_type == "QuantizeLinear" for node in made.graph.node)


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, {"activation_type": "int8", "per_channel": False}),
        (
            {"activation_type": compat.QuantType.QUInt8, "weight_type": ort_quantization.QuantType.QUInt8, "per_channel": True},
            {"activation_type": "uint8", "weight_type": "uint8"},
        ),
        (
            {"calibrate_method": compat.CalibrationMethod.Percentile, "extra_options": {"CalibPercentile": 99.9}},
            {"activation_type": "int8", "per_channel": False, "method": detent.Percentile(percentile=99.9)},
        ),
        (
            {"calibrate_method": ort_quantization.CalibrationMethod.Entropy, "nodes_to_exclude": ["head"]},
            {"activation_type": "int8", "per_channel": False, "method": "entropy", "exclude_nodes": ["head"]},
        ),
        (
            {"extra_options": {"ActivationSymmetric": True, "CalibMovingAverage": True, "SmoothQuant": False}},
            {
                "activation_type": "int8",
                "per_channel": False,
                "activation_symmetric": True,
                "method": detent.MinMax(average=True),
            },
        ),
        (
            {"op_types_to_quantize": ["Conv"], "extra_options": {"TensorQuantOverrides": {"x": [{"rmin": -1.0, "rmax": 1.0}]}}},
            {
                "activation_type": "int8",
                "per_channel": False,
                "op_types": ["Conv"],
                "overrides": [detent.TensorOverride(tensor="x", range=(-1, 1))],
            },
        ),
    ],
)
def test_arguments_of_onnx_runtime_mean_the_same(model, samples, tmp_path, options, config):
    assert compat.quantize_static(model, tmp_path / "out.onnx", Reader(samples), **options) is None
    assert (tmp_path / "out.onnx").read_bytes() == detent.quantize(model, data=samples, config={"preset": "plain", **config})


def test_external_data_and_protobuf_models(model, samples, tmp_path):
    compat.quantize_static(onnx.load(model), tmp_path / "out.onnx", Reader(samples), use_external_data_format=True)
    assert len(list(tmp_path.glob("out.onnx.*.data"))) == 1
    support.check_model(tmp_path / "out.onnx")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"calibrate_method": compat.CalibrationMethod.Distribution}, "calibrate_method=Distribution"),
        ({"activation_type": compat.QuantType.QFLOAT8E4M3FN}, "activation_type=QFLOAT8E4M3FN"),
        ({"calibration_providers": ["CUDAExecutionProvider"]}, "CUDAExecutionProvider"),
        ({"calibration_cache_path": "cache.json"}, "calibration_cache_path"),
        ({"extra_options": {"SmoothQuant": True}}, "SmoothQuant=True"),
        ({"extra_options": {"CalibTensorRangeSymmetric": True}}, "CalibTensorRangeSymmetric=True with MinMax"),
        ({"extra_options": {"TensorQuantOverrides": {"x": [{"scale": 1.0, "zero_point": 0}]}}}, "scale, zero_point"),
        ({"extra_options": {"ActivationSymetric": True}}, "no option 'ActivationSymetric'"),
        ({"extra_options": {"CalibMovingAverage": True, "CalibStridedMinMax": 2}}, "CalibMovingAverage with"),
        ({"extra_options": {"UseQDQContribOps": True}}, "UseQDQContribOps=True with 8-bit types"),
    ],
)
def test_what_is_not_done_is_refused_by_name(model, samples, tmp_path, options, part):
    with pytest.raises(detent.UsageError, match=part):
        compat.quantize_static(model, tmp_path / "out.onnx", Reader(samples), **options)
    assert not (tmp_path / "out.onnx").exists()


def test_operators_on_integers(model, samples, tmp_path):
    compat.quantize_static(model, tmp_path / "q.onnx", Reader(samples), quant_format=compat.QuantFormat.QOperator)
    kinds = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert "QLinearConv" in kinds and "Conv" not in kinds


def product_model():
    b = graphs.Builder(3)
    x = b.add("Relu", b.add("MatMul", "data", b.weight("w1", 32, 24), name="first"))
    x = b.add("Gemm", x, b.weight("w2", 8, 24), b.weight("b2", 8), name="second", transB=1)
    return b.model({"data": (onnx.TensorProto.FLOAT, ["n", 32])}, [x])


@pytest.mark.parametrize("options", [{}, {"per_channel": True}, {"weight_type": compat.QuantType.QUInt8, "per_channel": True}])
def test_dynamic_quantization_has_the_numbers_of_onnxruntime(tmp_path, options):
    onnx.save(product_model(), tmp_path / "m.onnx")
    compat.quantize_dynamic(tmp_path / "m.onnx", tmp_path / "ours.onnx", **options)
    theirs = {k: ort_quantization.QuantType.QUInt8 if k == "weight_type" else v for k, v in options.items()}
    theirs["extra_options"] = {"WeightSymmetric": True}
    ort_quantization.quantize_dynamic(tmp_path / "m.onnx", tmp_path / "theirs.onnx", **theirs)
    x = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    ours, expected = (support.load(tmp_path / f"{name}.onnx").run(None, {"data": x})[0] for name in ("ours", "theirs"))
    np.testing.assert_array_equal(ours, expected)


def test_quarks_dynamic_configuration(tmp_path):
    onnx.save(product_model(), tmp_path / "m.onnx")
    quantizer = quark.ModelQuantizer(quark.QConfig.get_default_config("UINT8_DYNAMIC_QUANT"))
    quantizer.quantize_model(str(tmp_path / "m.onnx"), str(tmp_path / "ours.onnx"), Reader([]))
    extra = {"WeightSymmetric": False}
    theirs = {"weight_type": ort_quantization.QuantType.QUInt8, "extra_options": extra}
    ort_quantization.quantize_dynamic(tmp_path / "m.onnx", tmp_path / "theirs.onnx", **theirs)
    x = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    ours, expected = (support.load(tmp_path / f"{name}.onnx").run(None, {"data": x})[0] for name in ("ours", "theirs"))
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("extra", [{"MatMulConstBOnly": False}, {"ActivationSymmetric": True}, {"CalibPercentile": 99}])
def test_options_of_dynamic_quantization_that_are_refused(tmp_path, extra):
    onnx.save(product_model(), tmp_path / "m.onnx")
    with pytest.raises(detent.UsageError, match=next(iter(extra))):
        compat.quantize_dynamic(tmp_path / "m.onnx", tmp_path / "out.onnx", extra_options=extra)


def test_every_extra_option_of_onnx_runtime_is_known():
    """Those that its documentation and code name."""
    source = pathlib.Path(ort_quantization.__file__).parent / "quantize.py"
    documented = {
        line.split("=")[0].strip()
        for line in source.read_text().split("def quantize_static(")[1].split('"""')[1].splitlines()
        if line.startswith(" " * 16) and not line.startswith(" " * 17) and " = " in line
    }
    assert len(documented) > 15
    assert documented <= set(compat.onnxruntime.EXTRA_OPTIONS)


MEAN_SQUARES = quark.Int8Spec(calibration_method=quark.CalibMethod.MinMSE)
QUARK = quark.QLayerConfig(input_tensors=quark.UInt8Spec(), weight=quark.Int8Spec())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            quark.QConfig(QUARK),
            {"activation_type": "uint8", "per_channel": False, "method": "percentile"},
        ),
        (
            quark.QConfig(
                quark.QLayerConfig(
                    activation=quark.Int16Spec(calibration_method=quark.CalibMethod.MinMSE),
                    weight=quark.Int8Spec(quant_granularity=quark.QuantGranularity.Channel),
                ),
                exclude=["head"],
                layer_type_config={None: ["MaxPool"]},
                algo_config=[quark.AdaRoundConfig(num_iterations=20, data_size=1000, optim_device="cpu", drop_ratio=0.5)],
            ),
            {
                "activation_type": "int16",
                "activation_symmetric": True,
                "method": "mse",
                "exclude_nodes": ["head"],
                "exclude_op_types": ["MaxPool"],
                "finetune": detent.AdaRound(num_iterations=20, drop_ratio=0.5, learning_rate=0.1),
            },
        ),
        (
            quark.QConfig(QUARK, algo_config=[quark.GPTQConfig(perc_damp=0.02)], extra_options={"Percentile": 99.9}),
            {
                "per_channel": False,
                "method": detent.Percentile(percentile=99.9),
                "finetune": detent.Gptq(damping=0.02, activation_order=False),
            },
        ),
    ],
)
def test_quarks_configuration_means_the_same(model, samples, config, expected):
    found = quark.ModelQuantizer(config).quantize_model(str(model), None, samples)
    assert found.SerializeToString(deterministic=True) == onnx.load_from_string(
        detent.quantize(model, data=samples, config={"preset": "plain", **expected})
    ).SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: quark.QConfig(QUARK, specific_layer_config={QUARK: ["head"]}), "specific_layer_config"),
        (lambda: quark.QConfig(QUARK, exclude=[(["a"], ["b"])]), "sub-graph"),
        (lambda: quark.QConfig(QUARK, AlignConcat=True), "AlignConcat=True"),
        (lambda: quark.QConfig(QUARK, extra_options={"Nonsense": 1}), "no option 'Nonsense'"),
        (lambda: quark.QConfig(QUARK, algo_config=[quark.AdaRoundConfig(optim_device="hip:0")]), "hip:0"),
        (lambda: quark.QConfig(QUARK, algo_config=[quark.AdaRoundConfig(infer_device="cuda:0")]), "infer_device"),
        (lambda: quark.QConfig(QUARK, algo_config=[quark.AdaQuantConfig(data_size=3)]), "data_size=3"),
        (lambda: quark.QConfig(QUARK, algo_config=[quark.GPTQConfig(bits=4)]), "bits=4"),
        (lambda: quark.QConfig(quark.QLayerConfig(quark.UInt8Spec(), weight=MEAN_SQUARES)), "MinMSE for weights"),
        (lambda: quark.QConfig.get_default_config("MX9_INT8"), "preset 'MX9_INT8'"),
        (lambda: quark.QConfig.get_default_config("S16S16_MIXED_S8S8"), "mixes two formats"),
        (lambda: quark.QConfig(quark.QLayerConfig(quark.MX9Spec(), weight=quark.Int8Spec())), "block floats beside other types"),
    ],
)
def test_what_quark_does_beyond_is_refused_by_name(model, samples, make, part):
    with pytest.raises(detent.UsageError, match=part):
        quark.ModelQuantizer(make()).quantize_model(model, None, samples)


def test_quarks_search_is_detents(model, samples, tmp_path):
    space = {"activation": ["UInt8Spec", "Int8Spec", "UInt16Spec"], "weight": ["Int8Spec"], "algorithms": [None]}
    config = {"model_input": model, "calib_data_reader": Reader(samples), "output_dir": tmp_path / "found", "n_trials": 1}
    study = {"search_algo": "TPE", "n_jobs": 1, "temp_dir": "none", "search_metric": "L2", "two_stage_search": True}
    found = quark.AutoSearchPro({**config, **study, "search_space": space}).run()
    assert {point.name for point in found.points if point.single} <= {"fp32", "int8", "int8-for-size", "a16w8"}
    formats = {entry.rpartition("=")[2] for point in found.points for entry in point.node_formats}
    assert formats <= {"int8", "a16w8"}
    assert (tmp_path / "found" / "front.html").is_file()


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"direction": "maximize"}, "direction"),
        ({"search_space": {"activation": ["BFP16Spec"]}}, "BFP16Spec"),
        ({"search_space": {"weight": ["Int16Spec"]}}, "Int16Spec"),
        ({"trials": 3}, "trials"),
        ({"model_input": None}, "model_input"),
        ({"eval_data_reader": []}, "eval_data_reader"),
    ],
)
def test_searches_of_quark_that_are_refused(model, samples, config, part):
    with pytest.raises(detent.UsageError, match=part):
        quark.AutoSearchPro({"model_input": model, "calib_data_reader": samples, **config})


def test_absent_names_say_so():
    with pytest.raises(detent.UsageError, match="CLEConfig is not supported by detent"):
        from detent.compat.quark import CLEConfig  # noqa: F401
    with pytest.raises(ImportError):
        from detent.compat.quark import Nonsense  # noqa: F401


def test_compat_does_not_import_onnx():
    code = "import detent.compat, sys; print('onnx' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ).stdout
    assert out == "False False\n"


def test_samples_of_onnx_runtimes_reader_are_read_once(model, samples, tmp_path):
    reader = Reader(samples)
    compat.quantize_static(model, tmp_path / "out.onnx", reader)
    assert reader.get_next() is None
    assert np.isfinite(samples[0]["x"]).all()


def test_the_guide_names_every_option():
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "migration.md").read_text()
    named = {
        *_quark_search.OPTIONS,
        *compat.onnxruntime.EXTRA_OPTIONS,
        *quark.EXTRA_OPTIONS,
        *quark.AdaRoundConfig._takers,
        *quark.GPTQConfig._takers,
    }
    assert [name for name in named if f"`{name}`" not in guide] == []


PRESETS = {
    "A8W8": {"activation_type": "int8", "activation_symmetric": True, "target": "amd-npu:a8w8", "method": "minmax"},
    "U8S8_AAWS": {"activation_type": "uint8", "per_channel": False, "method": "percentile"},
    "U8U8_AAWA": {"weight_type": "uint8", "weight_symmetric": False},
    "S16S8_ASWS_ADAQUANT": {"activation_type": "int16", "finetune": "adaquant"},
    "INT16_CNN_ACCURATE": {"weight_type": "int16", "finetune": "adaround"},
    "XINT8": {"power_of_two_scale": True, "target": "amd-npu:xint8", "method": "mse"},
}


@pytest.mark.parametrize("name", PRESETS)
def test_quark_configurations_by_name(name):
    chosen = quark.QConfig.get_default_config(name).to_detent(2).to_dict()
    for option, value in PRESETS[name].items():
        found = chosen[option]
        if isinstance(found, dict):
            found = found.get("method", found.get("rounding"))
        assert found == value, (option, found)


def test_floats_and_unknown_names_of_quark():
    assert quark.QConfig.get_default_config("BF16").to_detent().float_type == "bf16"
    with pytest.raises(detent.UsageError, match="not fine-tuned"):
        quark.QConfig.get_default_config("UINT8_DYNAMIC_QUANT_ADAROUND")
    with pytest.raises(detent.UsageError, match="choose from: XINT8"):
        quark.QConfig.get_default_config("A9W9")
    with pytest.raises(detent.UsageError, match="block floats are not fine-tuned"):
        quark.QConfig.get_default_config("BFP16_ADAQUANT")


BLOCKS = "BFP16 MX4 MX6 MX9 MXFP8E5M2 MXFP8E4M3 MXFP6E3M2 MXFP6E2M3 MXFP4E2M1 MXINT8".split()


@pytest.mark.parametrize("name", BLOCKS)
def test_block_floats_of_quark(tmp_path, name):
    onnx.save(graphs.small_cnn(batch=1), tmp_path / "m.onnx")
    spec = getattr(quark, "MXInt8Spec" if name == "MXINT8" else f"{name}Spec")()
    made = [
        quark.ModelQuantizer(config).quantize_model(str(tmp_path / "m.onnx"))
        for config in (quark.QConfig.get_default_config(name), quark.QConfig(quark.QLayerConfig(spec, weight=spec)))
    ]
    operator = "BFPQuantizeDequantize" if name in ("BFP16", "MX4", "MX6", "MX9") else "MXQuantizeDequantize"
    assert {node.op_type for node in made[0].graph.node if node.domain == "com.amd.quark"} == {operator}
    assert made[0].SerializeToString(deterministic=True) == made[1].SerializeToString(deterministic=True)


def test_names_that_are_not_there_cannot_be_imported() -> None:
    with pytest.raises(ImportError, match="is not supported by detent; quantize_static"):
        from detent.compat import QDQQuantizer  # noqa: F401
