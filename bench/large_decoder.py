#!/usr/bin/env python3
"""Decoders with the widths of Llama 3 and random weights: what calibration and 4-bit writing take, as a table in Markdown.

  large_decoder.py FOLDER [--shape 1b|8b] [--layers N] [--type float32|float16] [--samples N] [--length N] [--options …] [--resume]

FOLDER gets the model (kept, so that a second call finds it), the samples (random tokens) and the result. --resume kills the run
with samples once half of the weights are solved and starts it again. Told are time, the time of a layer, and the most anonymous
memory of the process (RssAnon of /proc): pages of the mapped model are the page cache's, which any other program may have."""

import argparse
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
from onnx import TensorProto

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import build_decoder

BINARY = build_decoder.ROOT / "build" / "detent"
SHAPES = {
    "1b": {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "inner": 8192, "vocabulary": 128256},
    "8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "inner": 14336, "vocabulary": 128256},
}
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def build(folder: pathlib.Path, shape: build_decoder.Shape, element: str) -> pathlib.Path:
    """The model, its weights written one after another."""
    folder.mkdir(parents=True, exist_ok=True)
    random, kind = np.random.default_rng(0), np.dtype(element)
    pool = random.standard_normal(1 << 24, np.float32)  # drawn once: each piece begins elsewhere in it
    with (folder / "model.onnx.data").open("wb") as data:

        def weight(name: str, *dims: int) -> onnx.TensorProto:
            tensor = onnx.TensorProto(data_type=TYPES[element], dims=dims, data_location=TensorProto.EXTERNAL)
            count, spread = int(np.prod(dims)), np.float32(1 if "embed" in name else dims[0] ** -0.5)
            where = {"location": "model.onnx.data", "offset": data.tell(), "length": count * kind.itemsize}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            for first in range(0, count, len(pool)):
                some = min(len(pool), count - first)
                values = np.ones(some) if "norm" in name else np.roll(pool, random.integers(len(pool)))[:some] * spread
                data.write(values.astype(kind).tobytes())
            return tensor

        model = build_decoder.decoder(shape, weight)
    if element == "float16":
        make_float16(model)
    onnx.save(model, folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(build_decoder.genai_config(shape), indent=2) + "\n")
    return folder


def make_float16(model: onnx.ModelProto) -> None:
    """All that is float32 in the graph."""
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name))


def anonymous(pid: int) -> int:
    """Bytes that are in no file, now."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(found[0]) * 1024 if found else 0


def solved(work: pathlib.Path) -> int:
    return sum(1 for _ in work.rglob("blocks-*.bin"))


class Run:
    """One command, watched."""

    def __init__(self, words: list[object], work: pathlib.Path, log: pathlib.Path, stop_at: int = 0) -> None:
        begin, self.peak, self.marks = time.monotonic(), 0, []
        with log.open("ab") as told:
            process = subprocess.Popen([str(word) for word in words], stdout=told, stderr=told)
            before = solved(work)
            while process.poll() is None:
                self.peak = max(self.peak, anonymous(process.pid))
                if (now := solved(work)) > before:
                    self.marks += [time.monotonic() - begin] * (now - before)
                    before = now
                if stop_at and now >= stop_at:
                    process.send_signal(signal.SIGKILL)
                time.sleep(0.1)
        self.seconds, self.status = time.monotonic() - begin, process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--type", choices=TYPES, default="float32")
    parser.add_argument("--samples", type=int, default=16, help="0: none")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--options", default="")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    sizes = SHAPES[given.shape] | ({"layers": given.layers} if given.layers else {})
    shape = build_decoder.Shape(**sizes, context=2048, theta=5e5)
    name = f"{given.shape}-{shape.layers}-{given.type}"
    model, out, work = (given.folder / f"{name}{end}" for end in ("", "-q4", "-work"))
    if not (model / "genai_config.json").exists():
        build(model, shape, given.type)
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    words = [BINARY, "quantize", model, "-o", out, "--weights-only", "--no-bench", "--work-dir", work, *given.options.split()]
    if given.samples:
        ids = np.random.default_rng(1).integers(0, shape.vocabulary, (given.samples, given.length))
        np.save(given.folder / "ids.npy", ids)
        words += ["--calibration-data", given.folder / "ids.npy", "--batch-size", 1]
    weights, log, runs = 7 * shape.layers + 1, given.folder / f"{name}.log", []
    if given.resume:
        runs.append(Run(words, work, log, weights // 2))
        words.append("--resume")
    runs.append(Run(words, work, log))
    if runs[-1].status != 0:
        raise SystemExit(f"large_decoder: the run ended with {runs[-1].status}; see {log}")
    size = sum(f.stat().st_size for f in out.iterdir())
    print("| | seconds | anonymous memory, MiB | weights solved |\n|---|---|---|---|")
    for run in runs:
        end = "killed" if run.status else "complete"
        print(f"| {name}, {end} | {run.seconds:.0f} | {run.peak / 2**20:.0f} | {len(run.marks)} |")
    marks = runs[0].marks
    if len(marks) >= 14:
        layer = (marks[len(marks) // 7 * 7 - 1] - marks[6]) / (len(marks) // 7 - 1)
        print(f"\nA layer: {layer:.1f} s. Result: {size / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
