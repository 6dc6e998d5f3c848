#!/usr/bin/env python3
"""inject_outliers.py MODEL OUT [--channels 8] [--by 64] [--seed 0]: the same function, harder to quantize.

In every normalization whose result is read by products with constant matrices alone, a few channels are made larger by a factor,
and the rows of the matrices that read them smaller by it. This is what large language models look like inside (Dettmers et al.
2022, arXiv:2208.07339: outlier features), and what quantizers of weights lose most on: those rows round to zero though they
carry the largest activations. A factor that is a power of two changes no bit of the float model's results, as long as nothing
underflows. MODEL may be a folder of onnxruntime-genai; then OUT is one too."""

import argparse
import pathlib
import shutil

import numpy as np
import onnx
from onnx import numpy_helper

# Operators, and their inputs that scale each channel of the result.
NORMS = {
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "RMSNormalization": (1,),
    "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2,),
}


def readers(graph: onnx.GraphProto, value: str, constants: dict[str, onnx.TensorProto]) -> list[str] | None:
    """The matrices by which a value is multiplied; None if it is read by anything else."""
    matrices = []
    for node in graph.node:
        if value not in node.input:
            continue
        if node.op_type != "MatMul" or node.input[0] != value or node.input[1] not in constants:
            return None
        matrices.append(node.input[1])
    return None if any(output.name == value for output in graph.output) else matrices


def scaled(tensor: onnx.TensorProto, channels: np.ndarray, factor: float) -> None:
    """Channels are the first dimension: of a gain its only one, of a matrix its rows."""
    values = numpy_helper.to_array(tensor).copy()
    values[channels] *= values.dtype.type(factor)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def inject(model: onnx.ModelProto, channels: int = 8, by: float = 64.0, seed: int = 0) -> int:
    """How many normalizations were changed."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    uses = [name for node in model.graph.node for name in node.input]
    random, changed = np.random.default_rng(seed), 0
    for node in model.graph.node:
        gains = [node.input[i] for i in NORMS.get(node.op_type, ()) if i < len(node.input) and node.input[i]]
        matrices = readers(model.graph, node.output[0], constants) if gains else None
        # Gains and matrices that something else reads too would change what that computes.
        if not matrices or any(name not in constants or uses.count(name) > 1 for name in [*gains, *matrices]):
            continue
        size = constants[gains[0]].dims[-1]
        chosen = np.sort(random.choice(size, min(channels, size), replace=False))
        for gain in gains:
            scaled(constants[gain], chosen, by)
        for matrix in matrices:
            scaled(constants[matrix], chosen, 1 / by)
        changed += 1
    return changed


def inject_folder(source: pathlib.Path, target: pathlib.Path, **settings: float) -> int:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("model.onnx*"))
    model = onnx.load(source / "model.onnx")
    changed = inject(model, **settings)
    onnx.save(model, target / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=256)
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--channels", type=int, default=8, help="in each normalization")
    parser.add_argument("--by", type=float, default=64.0, help="the factor")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of channels")
    options = parser.parse_args()
    settings = {"channels": options.channels, "by": options.by, "seed": options.seed}
    if options.model.is_dir():
        changed = inject_folder(options.model, options.out, **settings)
    else:
        model = onnx.load(options.model)
        changed = inject(model, **settings)
        onnx.save(model, options.out)
    print(f"{changed} normalizations changed")
    if not changed:
        raise SystemExit("inject_outliers: no normalization is read by products alone")


if __name__ == "__main__":
    main()
