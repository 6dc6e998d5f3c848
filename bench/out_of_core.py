#!/usr/bin/env python3
"""Calibrates a model whose weights do not fit in memory, within a budget, and shows what that took.

  out_of_core.py [--gib 6] [--samples 64] [--budget 1GiB] [--limit 1.5GiB] [--dir DIR] [--detent PATH] [-- MORE OPTIONS]

The model is a stack of square products with residual additions, random weights, external data. Where cgroups allow it
the run gets a hard limit of memory (page cache included), else only its own figures count. Shown: anonymous memory and
resident memory at the peak (sampled every 20 ms and the kernel's own), bytes read from disk beside the weights' bytes."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import onnx
from onnx import TensorProto, helper

WIDTH = 8192
ROWS = 8


def make_model(path: pathlib.Path, gib: float) -> int:
    """Writes the model, one layer in memory at a time; returns the bytes of its weights."""
    layers = max(1, round(gib * 2**30 / (WIDTH * WIDTH * 4)))
    rng = np.random.default_rng(0)
    nodes, tensors, offset = [], [], 0
    value = "x"
    with open(path.with_suffix(".data"), "wb") as data:
        for layer in range(layers):
            block = rng.standard_normal((256, WIDTH), dtype=np.float32) * np.float32(WIDTH**-0.5)
            for part in range(WIDTH // 256):
                data.write(np.roll(block, part + layer, axis=1).tobytes())
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            for key, entry in (("location", data.name.rsplit("/", 1)[-1]), ("offset", offset), ("length", WIDTH * WIDTH * 4)):
                tensor.external_data.add(key=key, value=str(entry))
            offset += WIDTH * WIDTH * 4
            tensors.append(tensor)
            nodes += [
                helper.make_node("MatMul", [value, tensor.name], [f"p{layer}"]),
                helper.make_node("Relu", [f"p{layer}"], [f"r{layer}"]),
                helper.make_node("Add", [value, f"r{layer}"], [f"y{layer}"]),
            ]
            value = f"y{layer}"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [ROWS, WIDTH]) for n in ("x", value)]
    graph = helper.make_graph(nodes, "stack", info[:1], info[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return offset


def parse_size(text: str) -> int:
    number, unit = re.fullmatch(r"([\d.]+)([KMG]iB)?", text).groups()
    return int(float(number) * {None: 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit])


def make_cgroup(limit: int) -> pathlib.Path | None:
    """A group with a hard limit, below our own; None where that is not allowed."""
    root = pathlib.Path("/sys/fs/cgroup")
    version_2 = (root / "cgroup.controllers").exists()
    base, file = (root, "memory.max") if version_2 else (root / "memory", "memory.limit_in_bytes")
    group = base / f"detent-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / file).write_text(str(limit))
        return group
    except OSError:
        if group.is_dir():
            group.rmdir()
        return None


def status(pid: int, key: str) -> int:
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def io(pid: int) -> dict[str, int]:
    try:
        return {k: int(v) for k, v in (line.split(": ") for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines())}
    except (OSError, ValueError):
        return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=6)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--budget", default="1GiB")
    parser.add_argument("--limit", default="1.5GiB")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("build/bench/out_of_core"))
    parser.add_argument("--detent", default="build/detent")
    parser.add_argument("more", nargs="*")
    a = parser.parse_args()
    (a.dir / "samples").mkdir(parents=True, exist_ok=True)
    model = a.dir / f"stack-{a.gib:g}.onnx"
    if not model.exists():
        make_model(model, a.gib)
    weights = model.with_suffix(".data").stat().st_size
    rng = np.random.default_rng(1)
    for s in range(a.samples):
        np.save(a.dir / "samples" / f"{s:03}.npy", rng.standard_normal((ROWS, WIDTH), dtype=np.float32))

    group = make_cgroup(parse_size(a.limit))
    for file in (model, model.with_suffix(".data")):  # cold: what is read is read from disk
        with open(file, "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [
        a.detent,
        "calibrate",
        "--preset",
        "plain",
        str(model),
        "-o",
        str(a.dir / "statistics"),
        "--calibration-data",
        str(a.dir / "samples"),
        "--memory-budget",
        a.budget,
        "--samples",
        str(a.samples),
        *a.more,
    ]
    start = time.monotonic()
    join = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
    child = subprocess.Popen(command, preexec_fn=join, stdout=subprocess.PIPE, text=True)
    anonymous, last = 0, {}
    while child.poll() is None:
        anonymous = max(anonymous, status(child.pid, "RssAnon"))
        last = io(child.pid) or last
        peak = status(child.pid, "VmHWM")
        resident = peak if peak else locals().get("resident", 0)
        time.sleep(0.02)
    seconds = time.monotonic() - start
    print(child.stdout.read())
    mib = 2**20
    print(f"exit {child.returncode}, {seconds:.1f} s, cgroup limit {a.limit if group else 'could not be set'}")
    print(f"peak: anonymous {anonymous / mib:.0f} MiB, resident {resident / mib:.0f} MiB (budget {a.budget})")
    print(
        f"read from disk {last.get('read_bytes', 0) / mib:.0f} MiB, weights {weights / mib:.0f} MiB: "
        f"{last.get('read_bytes', 0) / weights:.2f} times; written {last.get('write_bytes', 0) / mib:.0f} MiB"
    )
    if group:
        group.rmdir()
    return child.returncode


if __name__ == "__main__":
    sys.exit(main())
