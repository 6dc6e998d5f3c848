#!/usr/bin/env python3
"""What 4 bits for the products of a sentence encoder leave of its output, by detent and by MatMulNBitsQuantizer, and what bits
that differ by weight leave: SQNR on 64 sentences that no quantizer has seen, as tables in Markdown.

  encoder.py [--models FOLDER] [--peer-python PYTHON] [--no-peers]

FOLDER has what `scripts/fetch_models.py minilm` fetches. Products compute in float32 (accuracy level 1), so that weights decide.
This interpreter needs numpy, onnx and onnxruntime, PYTHON also onnx_ir."""

import argparse
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import numpy as np
import onnxruntime
import tasks_sentences

ROOT = pathlib.Path(__file__).resolve().parent.parent
DETENT = ROOT / "build" / "detent"
SENTENCES = 64
BLOCKS = (32, 128)
PEERS = {
    "DEFAULT, symmetric": ("default", 1),
    "DEFAULT": ("default", 0),
    "RTN, symmetric": ("rtn", 1),
    "RTN": ("rtn", 0),
    "k_quant": ("k_quant", 0),
}
DETENTS: dict[str, tuple[bool, list[str]]] = {  # whether samples are given, options
    "detent without samples": (False, []),
    "detent with samples, symmetric": (True, ["--set", "weight-symmetric"]),
    "detent with samples": (True, []),
}
ENDS = "^encoder.layer.[05]\\..*=8"


def outputs(model: pathlib.Path, sentences: list[dict[str, np.ndarray]]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.stack([session.run(None, sentence)[0] for sentence in sentences]).astype(np.float64)


@dataclass
class Bench:
    model: pathlib.Path
    data: pathlib.Path
    sentences: list[dict[str, np.ndarray]]
    in_float: np.ndarray
    work: pathlib.Path
    python: str  # of the peers

    def sqnr(self, made: pathlib.Path) -> float:
        noise = outputs(made, self.sentences) - self.in_float
        return float(10 * np.log10((self.in_float**2).sum() / (noise**2).sum()))

    def detent(self, block: int, samples: bool, options: list[str]) -> pathlib.Path:
        out = self.work / "out.onnx"
        words = [DETENT, "quantize", self.model, "-o", out, "--weights-only", "--no-bench", "--op-types", "MatMul"]
        words += [
            "--block-size",
            block,
            "--set",
            "accuracy-level=1",
            *(["--calibration-data", self.data] if samples else []),
            *options,
        ]
        subprocess.run([str(word) for word in words], check=True, capture_output=True)
        return out

    def peer(self, block: int, method: str, symmetric: int) -> pathlib.Path | None:
        out = self.work / "peer.onnx"
        words = [self.python, pathlib.Path(__file__).with_name("language_peer.py"), self.model, out, method, block, symmetric]
        result = subprocess.run([str(word) for word in words], check=False, capture_output=True)
        return out if result.returncode == 0 else None

    def cell(self, made: pathlib.Path | None) -> str:
        return "fails" if made is None else f"{self.sqnr(made):.1f} dB"

    def methods(self, peers: bool) -> None:
        print("| | " + " | ".join(f"block {block}" for block in BLOCKS) + " |\n" + "|---" * (len(BLOCKS) + 1) + "|")
        for name, (method, symmetric) in PEERS.items() if peers else ():
            cells = [self.cell(self.peer(block, method, symmetric)) for block in BLOCKS]
            print(f"| ONNX Runtime, {name} | " + " | ".join(cells) + " |", flush=True)
        for name, (samples, options) in DETENTS.items():
            cells = [self.cell(self.detent(block, samples, options)) for block in BLOCKS]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)

    def mixed(self) -> None:
        print("\n| | size | SQNR |\n|---|---|---|")

        def row(name: str, *options: object) -> int:
            made = self.detent(32, True, [str(option) for option in options])
            size = made.stat().st_size
            print(f"| {name} | {size / 2**20:.1f} MiB | {self.sqnr(made):.1f} dB |", flush=True)
            return size

        uniform = row("4 bits for all")
        row("`--max-size` of 1 MiB more", "--max-size", uniform + 2**20)
        ends = row("first and last of six layers at 8 bits, others at 4", "--set", f"node-bits={ENDS}")
        row("`--max-size` of that", "--max-size", ends)
        row("`--max-size` of 1 MiB more than that", "--max-size", ends + 2**20)
        row("8 bits for all", "--bits", 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "build" / "models")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tasks_sentences.prepare(options.models, folder)
        test = dict(np.load(folder / "test.npz"))
        sentences = [{key: values[i : i + 1] for key, values in test.items()} for i in range(SENTENCES)]
        model = folder / "model.onnx"
        bench = Bench(model, folder / "calibration", sentences, outputs(model, sentences), folder, options.peer_python)
        bench.methods(not options.no_peers)
        bench.mixed()


if __name__ == "__main__":
    main()
