"""numpy's answers over every value of every observed tensor: what each calibration method should find."""

import dataclasses
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import onnx
import onnxruntime as ort
from support import Path, Sample


@dataclasses.dataclass(frozen=True)
class Integers:
    """What activations become."""

    name: str
    lowest: int
    highest: int
    symmetric: bool

    def options(self) -> list[str]:
        return ["--activation-type", self.name] + ["--set", "activation-symmetric"] * self.symmetric

    def params(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scales and zero points of ranges, as ONNX Runtime computes them."""
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        if self.symmetric:
            scale = np.maximum(-low, high) / self.highest
            return np.float32(scale).astype(np.float64), np.zeros_like(scale)
        scale = (high - low) / (self.highest - self.lowest)
        return np.float32(scale).astype(np.float64), np.rint(self.lowest - low / scale)


INT8 = Integers("int8", -128, 127, symmetric=True)
UINT8 = Integers("uint8", 0, 255, symmetric=False)


class Values:
    """All values of a tensor, sorted, and their running sums: exact errors of many grids at once."""

    def __init__(self, values: np.ndarray) -> None:
        self.sorted = np.sort(values, axis=None)
        self.low, self.high = float(self.sorted[0]), float(self.sorted[-1])
        self.largest = max(-self.low, self.high)
        self.distinct = 1 + np.count_nonzero(np.diff(self.sorted))

    @cached_property
    def magnitudes(self) -> np.ndarray:
        return np.sort(np.abs(self.sorted))

    @cached_property
    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        values = self.sorted.astype(np.float64)
        return tuple(np.concatenate([[0], np.cumsum(terms)]) for terms in (values, values * values))

    def percentile_ranges(self, percents: Iterable[float], two_sided: bool) -> np.ndarray:
        """One row of minimum and maximum for each."""
        percents = np.array(percents)
        if two_sided:
            cut = (100 - percents) / 2
            return np.stack([np.percentile(self.sorted, cut), np.percentile(self.sorted, 100 - cut)], 1)
        bound = np.percentile(self.magnitudes, percents)
        return np.stack([np.maximum(-bound, self.low), np.minimum(bound, self.high)], 1)

    def errors(self, scales: np.ndarray, zeros: np.ndarray, integers: Integers, metric: str = "mse") -> np.ndarray:
        """Mean error of all values for each scale and zero point. Sums between the borders of rounding need no loop over values."""
        scales, zeros = (np.reshape(a, (-1, 1)).astype(np.float64) for a in (scales, zeros))
        steps = np.arange(integers.lowest, integers.highest + 1)
        centres = (steps - zeros) * scales
        ends = np.zeros((len(scales), len(steps) + 1), np.int64)
        ends[:, 1:-1] = np.searchsorted(self.sorted, np.float32((steps[:-1] + 0.5 - zeros) * scales))
        ends[:, -1] = len(self.sorted)
        ones, twos = self.sums
        first, last = ends[:, :-1], ends[:, 1:]
        if metric == "mse":
            cells = twos[last] - twos[first] - 2 * centres * (ones[last] - ones[first]) + centres**2 * (last - first)
        else:
            middle = np.clip(np.searchsorted(self.sorted, np.float32(centres)), first, last)
            cells = centres * (2 * middle - first - last) + ones[first] + ones[last] - 2 * ones[middle]
        return np.maximum(cells.sum(1), 0) / len(self.sorted)

    def range_errors(self, low: np.ndarray, high: np.ndarray, integers: Integers) -> np.ndarray:
        return self.errors(*integers.params(low, high), integers)

    def least_error(self, integers: Integers, near: tuple[float, float]) -> float:
        """The least mean squared error of ranges within the extremes: a coarse net over 6 octaves, and ever finer ones around
        its best and around the range `near`."""
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        sides = integers.symmetric or low == 0 or high == 0
        best, least = near, np.inf

        def search(bounds: Iterable[tuple[float, float]], factors: np.ndarray) -> None:
            nonlocal best, least
            for bound in bounds:
                lows, highs = bound[0] * factors, bound[1] * factors
                if not sides:
                    lows, highs = (net.ravel() for net in np.meshgrid(lows, highs))
                lows, highs = np.maximum(lows, low), np.minimum(highs, high)
                errors = self.range_errors(lows, highs, integers)
                if errors.min() < least:
                    least, best = errors.min(), (lows[errors.argmin()], highs[errors.argmin()])

        search([(low, high)], np.exp2(-np.arange(0, 6, 1 / 32 if sides else 1 / 2)))
        for width, count in ((1 / 3, 33), (1 / 32, 33)) if sides else ((1 / 3, 9), (1 / 12, 9), (1 / 64, 7)):
            search({best, near}, np.exp2(np.linspace(-width, width, count)))
        return least

    def best_exponent(self, integers: Integers) -> int:
        """Of the power-of-two scale with the least mean squared error: all that are smaller than what covers the values."""
        exponents = np.ceil(np.log2(self.largest / integers.highest)) - np.arange(24)
        return int(exponents[self.errors(np.exp2(exponents), np.zeros(24), integers).argmin()])

    def divergences(self, bins: int, levels: int) -> np.ndarray:
        """Kullback-Leibler divergence for each candidate threshold, the widest first: see src/calibration/methods.h."""
        counts = np.histogram(self.magnitudes, bins, (0, self.largest))[0].astype(np.float64)
        counts[0] = counts[1]
        found = []
        for end in range(bins, levels - 1, -max(levels // 16, 1)):
            p = counts[:end].copy()
            p[-1] += counts[end:].sum()
            groups = np.arange(levels + 1) * end // levels
            sums = np.add.reduceat(counts[:end], groups[:-1])
            used = np.add.reduceat((p > 0).astype(np.float64), groups[:-1])
            q = np.repeat(sums / np.maximum(used, 1), np.diff(groups))[p > 0]
            p = p[p > 0]
            with np.errstate(divide="ignore"):
                found.append((p / p.sum() * np.log(p / p.sum() / (q / max(q.sum(), 1e-300)))).sum())
        return np.array(found)


def all_values(prepared: Path, names: list[str], samples: list[Sample], folder: Path) -> dict[str, Values]:
    """Runs the float model with every named value an output."""
    model = onnx.load(prepared)
    makes = {name for node in model.graph.node for name in node.output}
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name in makes)
    onnx.save(model, folder / "outputs.onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = ort.InferenceSession(folder / "outputs.onnx", options, providers=["CPUExecutionProvider"])
    found: dict[str, list] = {name: [sample[name].ravel() for sample in samples] for name in names if name not in makes}
    for sample in samples:
        for output, value in zip(session.get_outputs(), session.run(None, sample), strict=True):
            found.setdefault(output.name, []).append(value.ravel())
    return {name: Values(np.concatenate(parts)) for name, parts in found.items()}


def averages(prepared: Path, names: list[str], samples: list[Sample], folder: Path) -> dict[str, tuple[float, float]]:
    """Mean over samples of each sample's smallest and largest value."""
    single = [all_values(prepared, names, [sample], folder) for sample in samples]
    return {name: tuple(np.mean([(one[name].low, one[name].high) for one in single], axis=0)) for name in names}
