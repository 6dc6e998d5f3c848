#!/usr/bin/env python3
"""XINT8 and A8W8 beside AMD Quark's own: which values both quantize, and whether their scales are the same bits.

    quark_scales.py [COLUMN ...] --quark-python PYTHON [--samples N]

COLUMN: those of scores.py with convolutional networks; the default is direction and digits. Both quantize the model that detent
prepared, with the same samples: Quark by its configurations of these names (without CLE, which changes weights), detent for
amd-npu:xint8 and amd-npu:a8w8 with the preset plain."""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import onnx
from measure import HERE, ToolFailed, environment
from onnx import numpy_helper
from scores import COLUMNS
from targets import TargetJob

METHODS = {"xint8": "mse", "a8w8": "minmax"}


def values_of(path: Path) -> dict[str, tuple[str, np.ndarray, np.ndarray]]:
    """Kind, scale and zero point of each value and constant, by its name in the float model."""
    graph = onnx.load(path).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    array = lambda name: numpy_helper.to_array(constants[name])
    found = {}
    for node in graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        name = node.input[0].removesuffix("_QuantizeLinear_Input")
        scale, zero = array(node.input[1]), array(node.input[2])
        if node.op_type == "QuantizeLinear":
            found[name] = ("constant" if name in constants else "activation", scale, zero)
        elif name in constants:
            kind = "bias" if zero.dtype == np.int32 or constants[name].dims[1:] == [] else "weight"
            found[name.removesuffix("_quantized")] = (kind, scale, zero)
    return found


def of_kind(values: dict[str, tuple[str, np.ndarray, np.ndarray]], kind: str) -> set[str]:
    return {name for name, value in values.items() if value[0] == kind}


def compare(ours: Path, theirs: Path) -> list[str]:
    mine, other = values_of(ours), values_of(theirs)
    lines = []
    for kind in ("activation", "weight", "bias"):
        here, there = of_kind(mine, kind), of_kind(other, kind)
        ratios = {name: float(np.ravel(mine[name][1])[0]) / float(np.ravel(other[name][1])[0]) for name in here & there}
        same = sum(mine[name][1].tobytes() == other[name][1].tobytes() for name in ratios)
        near = sum(abs(ratio - 1) < 1e-5 for ratio in ratios.values())
        others = {name: round(float(np.log2(ratio)), 2) for name, ratio in ratios.items() if abs(ratio - 1) >= 1e-5}
        rest = ", ".join(f"{name} {other}" for name, other in sorted(others.items(), key=lambda item: item[1])[:4])
        text = f"{kind}: detent {len(here)}, Quark {len(there)}, in both {len(ratios)}; scales: {same} the same bits"
        lines.append(text + f", {near - same} within 1e-5" + (f"; log2 of {len(others)} other ratios: {rest}" if rest else ""))
    for what, names in (("detent", set(mine) - set(other)), ("Quark", set(other) - set(mine))):
        if names:
            lines.append(f"only {what}: {', '.join(sorted(names)[:6])}{' …' if len(names) > 6 else ''}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", nargs="*", metavar="COLUMN", default=["direction", "digits"])
    parser.add_argument("--quark-python", required=True)
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--detent", default="build/detent")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=8)
    a = parser.parse_args()
    a.detent, a.models, a.memory_limit_mb, a.time_limit = os.path.abspath(a.detent), a.models.resolve(), None, 3600
    for name in a.columns:
        with tempfile.TemporaryDirectory(prefix="detent-quark-") as folder:
            job = TargetJob(COLUMNS[name], a, environment(None), Path(folder))
            job.static = True
            for path in sorted((job.folder / "calibration").iterdir())[a.samples :]:
                path.unlink()
            # With sums that follow convolutions in their biases, as Quark's preparation has them too.
            given = [
                "--set",
                "sensitivity=off",
                "--set",
                f"prepared-output={job.folder / 'prepared.onnx'}",
                "--target",
                "amd-npu:a8w8",
            ]
            job.quantize_here("balanced", *given)
            job.folder.joinpath("prepared.onnx").rename(job.folder / "model.onnx")
            for flavour, method in METHODS.items():
                print(f"{job.column.title}, {flavour.upper()}", flush=True)
                ours = job.folder / "ours.onnx"
                job.quantize_here("plain", "--target", f"amd-npu:{flavour}", "--method", method)
                job.out.rename(ours)
                try:
                    job.run([a.quark_python, f"{HERE}/quark_quantize.py", job.folder / "model.onnx", job.out,
                             job.folder / "calibration", method, a.threads])  # fmt: skip
                except ToolFailed as error:
                    print(f"  Quark: {str(error).strip().splitlines()[-1]}")
                    continue
                for line in compare(ours, job.out):
                    print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
