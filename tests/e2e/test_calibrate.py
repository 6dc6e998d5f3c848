"""Statistics files: the same bytes whatever may not matter, and the same models as without them."""

import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Callable

import graphs
import numpy as np
import onnx
import pytest
import support
from launcher import mpirun
from support import DETENT, Path, Sample, calibrate, sha256

POWERS = ["--set", "power-of-two-scale", "--set", "activation-symmetric"]
METHODS = {
    "minmax": ["--method", "minmax"],
    "percentile": ["--method", "percentile", "--set", "percentile=99.9"],
    "two-sided": ["--method", "percentile", "--set", "two-sided"],
    "layerwise": ["--method", "layerwise-percentile", "--set", "percentile-metric=mse"],
    "mse": ["--method", "mse"],
    "mse-power-of-two": ["--method", "mse", *POWERS],
    "entropy": ["--method", "entropy", "--set", "entropy-bins=256"],  # as few as the values of small tensors can fill
    "mixed": ["--set", "tensor-method=^(relu|matmul).*=mse"],
}
# These look at each run by itself, so the size of batches counts.
BY_RUN = {"average": ["--set", "average"], "most-common": ["--method", "mse", "--set", "most-common", *POWERS]}


@dataclasses.dataclass
class Setup:
    folder: Path
    model: Path
    samples: list[Sample]
    statistics: Path
    name: str
    digests: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def batches(self, size: int) -> Path:
        """The samples joined into fewer files."""
        folder = self.folder / f"batches{size}"
        if not folder.exists():
            groups = (self.samples[i : i + size] for i in range(0, len(self.samples), size))
            support.save_samples(folder, [{k: np.concatenate([s[k] for s in group]) for k in group[0]} for group in groups])
        return folder

    def quantized(self, *options: object) -> str:
        """The hash of what `detent quantize` writes."""
        result = support.detent("quantize", self.model, "-o", self.folder / "q.onnx", *options)
        assert (result.returncode, result.stderr) == (0, "")
        return sha256(self.folder / "q.onnx")

    def expected(self, method: str) -> str:
        """The same, from the statistics of all samples."""
        if method not in self.digests:
            self.digests[method] = self.quantized("--statistics", self.statistics, *{**METHODS, **BY_RUN}[method])
        return self.digests[method]


@pytest.fixture(scope="module", params=["cnn", "transformer", "ppocr_cls"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp(request.param)
    model = folder / "model.onnx"
    if request.param == "ppocr_cls":
        task = support.prepare_task("ppocr_cls", folder / "task")
        model, samples = task / "model.onnx", support.load_samples(task / "calibration")[:8]
    elif request.param == "cnn":
        onnx.save(graphs.small_cnn(), model)
        samples = graphs.cnn_samples(8)
    else:
        onnx.save(graphs.transformer(), model)
        samples = graphs.transformer_samples(8)
    data = support.save_samples(folder / "data", samples)
    statistics = calibrate(model, folder / "first.stats", data, "--set", "most-common")
    return Setup(folder, model, samples, statistics, request.param)


def reversed_order(setup: Setup, folder: Path) -> Path:
    return support.save_samples(folder / "reversed", setup.samples[::-1])


def as_it_is(setup: Setup, _folder: Path) -> Path:
    return setup.data


def in_fours(setup: Setup, _folder: Path) -> Path:
    if setup.name == "transformer":
        pytest.skip("its samples have several lengths")
    return setup.batches(4)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("data", "options"),
    [
        (as_it_is, []),
        (reversed_order, []),
        (reversed_order, ["--workers", 2]),
        (as_it_is, ["--workers", 4]),
        (reversed_order, ["--workers", 3, "--threads", 1]),
        (as_it_is, ["--threads", 1]),
        (reversed_order, ["--threads", 2]),
        (in_fours, ["--batch-size", 1]),
        (as_it_is, ["--samples", 100]),
    ],
    ids=lambda value: value.__name__ if callable(value) else " ".join(map(str, value)) or "plain",
)
def test_same_statistics(setup: Setup, data: Callable[[Setup, Path], Path], options: list, tmp_path: Path) -> None:
    again = calibrate(setup.model, tmp_path / "again.stats", data(setup, tmp_path), "--set", "most-common", *options)
    assert sha256(again) == sha256(setup.statistics)


def test_merged_parts_are_the_whole(setup: Setup, tmp_path: Path) -> None:
    parts = []
    for i, samples in enumerate((setup.samples[:3], setup.samples[3:4], setup.samples[4:])):
        data = support.save_samples(tmp_path / f"data{i}", samples)
        parts.append(calibrate(setup.model, tmp_path / f"part{i}.stats", data, "--set", "most-common", "--workers", 1 + i))
    for order in list(itertools.permutations(parts))[::2]:
        result = support.detent("calibrate", "--merge", *order, "-o", tmp_path / "merged.stats", "--json")
        assert (result.returncode, result.stderr) == (0, "")
        assert json.loads(result.stdout)["samples"] == len(setup.samples)
        assert sha256(tmp_path / "merged.stats") == sha256(setup.statistics)
    # Two of them, and then the third.
    for first, second, third in ((0, 1, 2), (1, 2, 0)):
        both = tmp_path / f"both{third}.stats"
        assert support.detent("calibrate", "--merge", parts[first], parts[second], "-o", both).returncode == 0
        assert support.detent("calibrate", "--merge", parts[third], both, "-o", tmp_path / "all.stats").returncode == 0
        assert sha256(tmp_path / "all.stats") == sha256(setup.statistics)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [1, 2, 4, 11])
def test_same_statistics_with_mpi(setup: Setup, ranks: int, tmp_path: Path) -> None:
    """Also with more ranks than samples."""
    if ranks > 2 and setup.name != "cnn":
        pytest.skip("takes long")
    output = tmp_path / "ranks.stats"
    command = ["calibrate", setup.model, "-o", output, "--calibration-data", setup.data, *support.PLAIN]
    result = mpirun(ranks, *command, "--set", "most-common", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["ranks"], report["samples"]) == (ranks, len(setup.samples))
    assert sha256(output) == sha256(setup.statistics)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", [*METHODS, *BY_RUN])
def test_same_model_with_and_without_statistics(setup: Setup, method: str) -> None:
    options = {**METHODS, **BY_RUN}[method]
    assert setup.quantized("--calibration-data", setup.data, *options) == setup.expected(method)
    assert setup.quantized("--statistics", setup.statistics, "--threads", 1, *options) == setup.expected(method)


def test_statistics_are_checked_against_the_samples(setup: Setup, tmp_path: Path) -> None:
    both = ["--statistics", setup.statistics, "--calibration-data", reversed_order(setup, tmp_path)]
    assert setup.quantized(*both, *METHODS["mse"]) == setup.expected("mse")


@pytest.mark.sampled(1)
def test_methods_differ(setup: Setup) -> None:
    """Equal models above would mean little if all were equal."""
    found = {method: setup.expected(method) for method in [*METHODS, *BY_RUN]}
    del found["most-common"]  # may well be the scale that is best for all
    assert len(set(found.values())) == len(found), found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_same_models_from_batches(setup: Setup, size: int, tmp_path: Path) -> None:
    """Batches count as runs, which statistics tell; ranges do not depend on them."""
    if setup.name == "transformer":
        pytest.skip("its samples have several lengths")
    statistics = calibrate(setup.model, tmp_path / "batches.stats", setup.batches(size))
    assert sha256(statistics) != sha256(setup.statistics)
    for method, options in METHODS.items():
        assert setup.quantized("--statistics", statistics, *options) == setup.expected(method), method


def test_selective_calibration(tmp_path: Path) -> None:
    """Fewer tensors are observed; what depends on them follows the input of the operator."""
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples())

    def run(*options: object) -> tuple[int, dict]:
        result = support.detent(
            "calibrate", tmp_path / "model.onnx", "-o", tmp_path / "s", "--calibration-data", data, "--json", *options
        )
        report = support.quantize(tmp_path / "model.onnx", tmp_path / "q.onnx", data, "--statistics", tmp_path / "s", *options)
        return json.loads(result.stdout)["tensors"], report["activations"]

    plain, ranges = run()
    fewer, passed = run("--set", "passthrough-op-types=GlobalAveragePool")
    assert fewer == plain - 1
    pooled = "globalaveragepool1.out"
    assert passed[pooled]["max"] > ranges[pooled]["max"]
    assert {name: found for name, found in passed.items() if "pool1" not in name and "flatten" not in name} == {
        name: found for name, found in ranges.items() if "pool1" not in name and "flatten" not in name
    }


def test_ranges_of_single_tensors(model: Path, data: Path, tmp_path: Path) -> None:
    plain = support.quantize(model, tmp_path / "q.onnx", data)["activations"]
    found = support.quantize(
        model,
        tmp_path / "q.onnx",
        data,
        "--set",
        "tensor-range=x=-1.5,2",
        "--set",
        "tensor-method=^head.*=percentile",
        "--set",
        "percentile=60",
    )["activations"]
    assert (found["x"]["min"], found["x"]["max"]) == (-1.5, 2)
    assert found["head.out"]["max"] < plain["head.out"]["max"]
    rest = set(plain) - {"x", "head.out"}
    assert {name: found[name] for name in rest} == {name: plain[name] for name in rest}


def peak_megabytes(model: Path, data: Path, folder: Path) -> float:
    """Of the child alone: a small process starts it, whose own memory does not hide it."""
    program = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [DETENT, "calibrate", model, "-o", folder / "s.stats", "--calibration-data", data, "--threads", "1", *support.PLAIN]
    result = subprocess.run([sys.executable, "-c", program, *map(str, command)], capture_output=True, text=True, check=True)
    return int(result.stdout) / 1024


def test_a_small_first_sample_costs_no_memory(tmp_path: Path) -> None:
    """What was counted finely before the large values came is made coarser."""
    b = graphs.Builder(1)
    x = "x"
    for _ in range(3):
        x = b.add("Relu", b.add("Conv", x, b.weight(f"w{x}", 16, 16, 3, 3), pads=[1] * 4))
    onnx.save(b.model({"x": (graphs.FLOAT, ["N", 16, 64, 64])}, [x]), tmp_path / "model.onnx")
    samples = [{"x": np.random.default_rng(i).normal(size=(1, 16, 64, 64)).astype(np.float32)} for i in range(4)]
    plain = peak_megabytes(tmp_path / "model.onnx", support.save_samples(tmp_path / "plain", samples), tmp_path)
    samples[0]["x"] *= np.float32(1e-5)
    small = peak_megabytes(tmp_path / "model.onnx", support.save_samples(tmp_path / "small", samples), tmp_path)
    assert abs(small - plain) < 8, (small, plain)
