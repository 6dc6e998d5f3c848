"""The ranges of every calibration method on trained networks, against numpy over all values of all tensors."""

import dataclasses
import json

import numpy as np
import onnx
import pytest
import reference
import support
from reference import INT8, UINT8, Integers, Values
from support import Path, Sample

# From so many different values on a tensor's distribution counts, not the luck of each value. Small tensors (those behind
# a global pooling) and images of a few grey levels are smooth to detent, and are not in truth.
SMOOTH = 10_000


@dataclasses.dataclass
class Network:
    model: Path
    folder: Path
    samples: list[Sample]
    values: dict[str, Values]  # of each activation with a range of its own
    prepared: Path

    def ranges(self, *options: object) -> dict[str, dict]:
        """Activations as `detent quantize` reports them, from the statistics of all samples."""
        result = support.detent(
            "quantize", self.model, "-o", self.folder / "q.onnx", "--statistics", self.folder / "all.stats", "--json", *options
        )
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        found = json.loads(result.stdout)["activations"]
        return {name: found[name] for name in self.values}

    def smooth(self) -> list[str]:
        names = [name for name, values in self.values.items() if values.distinct >= SMOOTH]
        assert len(names) > 30
        return names


@pytest.fixture(scope="module", params=[("ppocr_cls", 4), ("opennsfw", 2)], ids=lambda param: param[0])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Network:
    task, count = request.param
    folder = tmp_path_factory.mktemp(task)
    task = support.prepare_task(task, folder / "task")
    samples = support.load_samples(task / "calibration")[:count]
    data = support.save_samples(folder / "data", samples)
    model, prepared, quantized = task / "model.onnx", folder / "prepared.onnx", folder / "q.onnx"
    report = support.quantize(model, quantized, data, "--set", f"prepared-output={prepared}")
    support.calibrate(model, folder / "all.stats", data)
    # Others share the range of what they read, or have one by nature.
    scales = {tensor.name for tensor in onnx.load(quantized).graph.initializer}
    fixed = {node.output[0] for node in onnx.load(prepared).graph.node if node.op_type == "Softmax"}
    names = [name for name in report["activations"] if f"{name}_scale" in scales and name not in fixed]
    return Network(model, folder, samples, reference.all_values(prepared, names, samples, folder), prepared)


def as_row(found: dict) -> np.ndarray:
    return np.array([found["min"], found["max"]])


@pytest.mark.sampled(1)
def test_minmax_is_exact(network: Network) -> None:
    """But for the last bits of activations, which layouts and fusions of the runtime round otherwise."""
    for name, found in network.ranges().items():
        values = network.values[name]
        assert np.abs(as_row(found) - [values.low, values.high]).max() <= 2e-5 * values.largest, name


@pytest.mark.sampled(1)
def test_average(network: Network) -> None:
    expected = reference.averages(network.prepared, list(network.values), network.samples, network.folder)
    for name, found in network.ranges("--set", "average").items():
        assert np.abs(as_row(found) - expected[name]).max() <= 2e-5 * network.values[name].largest, name


@pytest.mark.sampled(1)
@pytest.mark.parametrize("two_sided", [False, True], ids=["symmetric", "two-sided"])
def test_percentile(network: Network, two_sided: bool) -> None:
    """Within 0.3 % of numpy's; of what lies 32 times below the largest value, within 0.03 % of that."""
    percents = [99.9, 99.99, 99.999]
    expected = {name: values.percentile_ranges(percents, two_sided) for name, values in network.values.items()}
    for i, percent in enumerate(percents):
        ranges = network.ranges("--method", "percentile", "--set", f"percentile={percent}", *["--set", "two-sided"] * two_sided)
        for name, found in ranges.items():
            wanted, largest = expected[name][i], network.values[name].largest
            small = np.abs(wanted) < largest / 32
            errors = np.abs(as_row(found) - wanted)
            assert (errors <= np.where(small, 0.0003 * largest, 0.003 * np.abs(wanted))).all(), (name, percent, found, wanted)


def test_mse_with_power_of_two_scales(network: Network) -> None:
    ranges = network.ranges("--method", "mse", "--set", "power-of-two-scale", *INT8.options())
    wrong = [name for name, found in ranges.items() if found["scale"] != 2.0 ** network.values[name].best_exponent(INT8)]
    assert len(wrong) <= 0.01 * len(ranges), wrong


@pytest.mark.sampled(1)
@pytest.mark.parametrize("integers", [INT8, UINT8], ids=lambda integers: integers.name)
def test_mse(network: Network, integers: Integers) -> None:
    """Errors over all values at the scale found, and at the best there is."""
    ranges = network.ranges("--method", "mse", *integers.options())
    ratios = {}
    for name, found in ranges.items():
        values = network.values[name]
        mine = values.errors(found["scale"], found["zero_point"], integers)[0]
        ratios[name] = mine / max(values.least_error(integers, (found["min"], found["max"])), 1e-30)
    smooth = np.array([ratios.pop(name) for name in network.smooth()])
    assert (smooth <= 1.01).mean() >= 0.95, np.sort(smooth)
    assert smooth.max() <= 1.03
    assert np.median(list(ratios.values())) <= 1.02, ratios
    assert max(ratios.values()) <= 1.5, ratios


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("metric", "integers", "two_sided"),
    [("mae", UINT8, False), ("mse", UINT8, True), ("mae", INT8, True), ("mse", INT8, False)],
    ids=lambda value: value.name if isinstance(value, Integers) else str(value),
)
def test_layerwise_percentile(network: Network, metric: str, integers: Integers, two_sided: bool) -> None:
    """The candidate with the least error over all values; those within a thousandth of it count as equal."""
    candidates = [99, 99.9, 99.99, 99.999, 99.99999]
    options = ["--set", f"percentile-metric={metric}", "--set", f"candidates={','.join(map(str, candidates))}", *integers.options()]
    ranges = network.ranges("--method", "layerwise-percentile", *options, *["--set", "two-sided"] * two_sided)
    ratios = {}
    for name in network.smooth():
        values = network.values[name]
        wanted = values.percentile_ranges(candidates, two_sided)
        errors = values.errors(*integers.params(*wanted.T), integers, metric)
        chosen = np.abs(wanted - as_row(ranges[name])).max(1).argmin()
        ratios[name] = errors[chosen] / errors.min()
    wrong = {name: ratio for name, ratio in ratios.items() if ratio > 1.001}
    assert len(wrong) <= 0.03 * len(ratios), wrong
    assert max(ratios.values()) <= 1.03


def test_entropy(network: Network) -> None:
    """The divergence over true counts. It jumps from candidate to candidate where the tail is thin (to infinity where the
    last group is empty), which detent's smooth counts do not: so the best of the candidate and its two neighbours counts."""
    bins, levels = 2048, 128
    ranges = network.ranges("--method", "entropy", "--set", f"entropy-bins={bins}", "--set", f"entropy-levels={levels}")
    exact, near, names = [], [], network.smooth()[::3]
    for name in names:
        values = network.values[name]
        divergences = values.divergences(bins, levels)
        ends = np.arange(bins, levels - 1, -levels // 16)
        at = np.abs(ends - np.abs(as_row(ranges[name])).max() / values.largest * bins).argmin()
        limit = 1.05 * divergences.min() + 1e-4
        exact.append(divergences[at] <= limit)
        near.append(divergences[max(at - 1, 0) : at + 2].min() <= limit)
    assert np.all(near), [name for name, good in zip(names, near, strict=True) if not good]
    assert np.mean(exact) >= 0.8
