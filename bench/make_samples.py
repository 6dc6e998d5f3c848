#!/usr/bin/env python3
"""Random calibration samples for a model: OUT/npz/NNNN.npz (keys = input names) and the same tensors as OUT/bin/NNNN.bin.

  make_samples.py MODEL.onnx OUT -n 8 [--shape NAME:1x3x224x224 ...] [--dist uniform|gaussian] [--seed 0]
                  [--first-scale 1e-5]

A .bin file is: magic "DETBIN1\\0", u32 count; per input u32 name length, name, u32 ONNX data type, u32 rank, i64 dims,
u64 byte count, zero bytes up to a multiple of 64, the raw data. Little-endian."""

import argparse
import os
import struct

import numpy as np
import onnx
from onnx import helper


def shape_of(value, given):
    if value.name in given:
        return given[value.name]
    t = value.type.tensor_type
    free = 224 if t.elem_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16) else 128
    return [d.dim_value if d.dim_value > 0 else 1 if i == 0 else free for i, d in enumerate(t.shape.dim)]


def draw(name, dtype, shape, rng, dist, scale):
    if np.issubdtype(dtype, np.floating):
        a = rng.random(shape, dtype=np.float32) if dist == "uniform" else rng.standard_normal(shape, dtype=np.float32)
        return (a * np.float32(scale)).astype(dtype)
    if "mask" in name or dtype == np.bool_:
        a = rng.integers(0, 2, shape)
        a[..., :1] = 1  # a row that is masked out entirely is not a real input
    elif "type" in name:
        a = np.zeros(shape)  # segment ids: two rows in the usual table
    else:
        a = rng.integers(0, 1000 if np.dtype(dtype).itemsize > 1 else 100, shape)
    return a.astype(dtype)


def write_bin(path, sample):
    with open(path, "wb") as f:
        f.write(b"DETBIN1\0" + struct.pack("<I", len(sample)))
        for name, a in sample.items():
            key = name.encode()
            f.write(struct.pack("<I", len(key)) + key)
            f.write(struct.pack(f"<II{a.ndim}qQ", helper.np_dtype_to_tensor_dtype(a.dtype), a.ndim, *a.shape, a.nbytes))
            f.write(b"\0" * (-f.tell() % 64))
            f.write(a.tobytes())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("-n", type=int, default=8)
    p.add_argument("--shape", action="append", default=[], metavar="NAME:1x3x224x224")
    p.add_argument("--dist", choices=["uniform", "gaussian"], default="uniform")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--first-scale", type=float, default=1, help="factor for the first sample's values (a black image)")
    a = p.parse_args()
    given = {n: [int(d) for d in s.split("x")] for n, s in (x.rsplit(":", 1) for x in a.shape)}
    graph = onnx.load(a.model, load_external_data=False).graph
    weights = {t.name for t in graph.initializer}
    inputs = [
        (v.name, helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type), shape_of(v, given))
        for v in graph.input
        if v.name not in weights
    ]
    unknown = set(given) - {name for name, _, _ in inputs}
    if unknown:
        p.error(f"no such input: {', '.join(sorted(unknown))}")
    for kind in "npz", "bin":
        os.makedirs(os.path.join(a.out, kind), exist_ok=True)
    for i in range(a.n):
        rng = np.random.default_rng([a.seed, i])  # sample i is the same whatever n is
        scale = a.first_scale if i == 0 else 1
        sample = {name: draw(name, dtype, shape, rng, a.dist, scale) for name, dtype, shape in inputs}
        np.savez(os.path.join(a.out, "npz", f"{i:04}.npz"), **sample)
        write_bin(os.path.join(a.out, "bin", f"{i:04}.bin"), sample)


if __name__ == "__main__":
    main()
