"""The package gives the bytes of the command line, for every form of model and data."""

import hashlib
import subprocess

import detent
import numpy as np
import onnx
import pytest
import support

OPTIONS = {
    (): {},
    ("--preset", "plain"): {"preset": "plain"},
    ("--preset", "plain", "--weight-type", "uint8"): {"weight_type": "uint8", "preset": "plain"},
    ("--weight-type", "int8"): {"weight_type": "int8"},
    ("--weight-type", "uint8"): {"weight_type": "uint8"},
    ("--set", "weight-range=reduced"): {"weight_range": "reduced"},
    ("--accuracy-target", "0.999"): {"accuracy": detent.Accuracy(target=0.999)},
    ("--method", "percentile", "--set", "percentile=99.9"): {"method": detent.Percentile(percentile=99.9)},
    ("--method", "mse", "--set", "power-of-two-scale"): {"method": "mse", "power_of_two_scale": True},
    ("--activation-type", "int16", "--per-tensor"): {"activation_type": "int16", "per_channel": False},
    ("--set", "tensor-range=x=-2,2", "--exclude-nodes", "^head"): {
        "overrides": [detent.TensorOverride(tensor="x", range=(-2, 2))],
        "exclude_nodes": ["^head"],
    },
    ("--finetune", "gptq", "--set", "damping=0.05"): {"finetune": detent.Gptq(damping=0.05)},
    ("--finetune", "adaround", "--set", "num-iterations=50"): {"finetune": detent.AdaRound(num_iterations=50)},
    ("--set", "segments=3", "--set", "memory-level=2", "--memory-budget", "1GiB"): {
        "resources": detent.Resources(segments=3, memory_level=2, memory_budget="1GiB")
    },
}


def run(*arguments):
    result = subprocess.run([support.DETENT, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr


def command_line(model, output, folder, *flags):
    integers = ["--format", "int8"] if support.may_be_int8(list(flags)) else []
    given = ["--calibration-data", folder, "--optimize-for", "size", "--no-bench", *integers, *flags]
    run("quantize", model, "-o", output, *given)


@pytest.fixture
def reference(model, folder, tmp_path):
    command_line(model, tmp_path / "reference.onnx", folder)
    return (tmp_path / "reference.onnx").read_bytes()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("flags", OPTIONS, ids=" ".join)
def test_every_option_means_the_same(model, folder, samples, tmp_path, flags):
    command_line(model, tmp_path / "cli.onnx", folder, *flags)
    expected = support.sha256(tmp_path / "cli.onnx")
    detent.quantize(model, tmp_path / "path.onnx", folder, OPTIONS[flags])
    assert support.sha256(tmp_path / "path.onnx") == expected
    assert hashlib.sha256(detent.quantize(model, data=samples, config=OPTIONS[flags])).hexdigest() == expected


def test_models_as_bytes_and_as_protobuf(model, samples, reference):
    proto = onnx.load(model)
    before = proto.SerializeToString()
    assert detent.quantize(proto, data=samples) == reference
    assert proto.SerializeToString() == before
    assert detent.quantize(model.read_bytes(), data=samples) == reference
    assert detent.quantize(bytearray(model.read_bytes()), data=samples) == reference
    onnx.checker.check_model(onnx.load_from_string(detent.quantize(proto, data=samples)))


class Reader:
    def __init__(self, samples):
        self.samples = samples
        self.rewind()

    def rewind(self):
        self.left = iter(self.samples)

    def get_next(self):
        return next(self.left, None)


class Tensor:
    """An array that shares itself by DLPack alone, as tensors of other libraries do."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def data_forms(samples):
    arrays = [s["x"] for s in samples]
    return {
        "generator": (s for s in samples),
        "tuple": tuple(samples),
        "bare arrays": arrays,
        "a function": lambda: iter(samples),
        "a reader": Reader(samples),
        "dlpack": [{"x": Tensor(a)} for a in arrays],
        "strided": [{"x": np.repeat(a, 2, axis=3)[..., ::2]} for a in arrays],
        "column-major": [{"x": np.asfortranarray(a)} for a in arrays],
        "big-endian": [{"x": a.astype(">f4")} for a in arrays],
        "read-only": [{"x": np.frombuffer(a.tobytes(), np.float32).reshape(a.shape)} for a in arrays],
        "without batch axis": [{"x": a[0]} for a in arrays],
        "one array of rows": np.concatenate(arrays),
    }


@pytest.mark.sampled(5)
@pytest.mark.parametrize("form", list(data_forms([{"x": np.zeros((1, 3, 16, 16), np.float32)}])))
def test_data_in_every_form(model, samples, reference, form):
    assert detent.quantize(model, data=data_forms(samples)[form]) == reference


def test_batches_join_and_split(model, samples, reference):
    pairs = [{"x": np.concatenate([a["x"], b["x"]])} for a, b in zip(samples[:-1:2], samples[1::2], strict=True)]
    assert detent.quantize(model, data=[*pairs, samples[-1]], config={"batch_size": 1}) == reference


def test_statistics_serve_several_methods(model, samples, folder, tmp_path):
    told = detent.calibrate(model, tmp_path / "python.stats", samples)
    assert (told.samples, told.output) == (9, str(tmp_path / "python.stats"))
    run("calibrate", model, "-o", tmp_path / "cli.stats", "--calibration-data", folder)
    assert support.sha256(tmp_path / "python.stats") == support.sha256(tmp_path / "cli.stats")
    for method in ("minmax", "entropy"):
        direct = detent.quantize(model, data=samples, config={"method": method})
        assert detent.quantize(model, statistics=tmp_path / "python.stats", config={"method": method}) == direct
    detent.calibrate(model, tmp_path / "a.stats", samples[:4])
    detent.calibrate(model, tmp_path / "b.stats", samples[4:])
    merged = detent.merge_statistics([tmp_path / "a.stats", tmp_path / "b.stats"], tmp_path / "merged.stats")
    assert merged.samples == 9
    assert support.sha256(tmp_path / "merged.stats") == support.sha256(tmp_path / "python.stats")


def test_workers_do_not_change_bytes(model, samples, reference):
    assert detent.quantize(model, data=iter(samples), config={"workers": 3}) == reference


def test_samples_are_not_changed(model, samples):
    """Measuring rounds values in place: not those that it was handed."""
    before = [s["x"].copy() for s in samples]
    told = detent.quantize(model, data=samples, config={"accuracy": {"sensitivity": "report"}})
    assert len(told) > 0
    for sample, array in zip(samples, before, strict=True):
        np.testing.assert_array_equal(sample["x"], array)
