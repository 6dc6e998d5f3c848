#!/usr/bin/env python3
"""What weights of 4 bits cost a language model, by detent and by ONNX Runtime's MatMulNBitsQuantizer: tables in Markdown.

  language.py [--weights FOLDER] [--samples N] [--peer-python PYTHON] [--hqq-python PYTHON] [--no-peers] [--json FILE]
  language.py --mixed [--weights FOLDER] [--samples N]

The model is the trained decoder of scripts/build_decoder.py, as it is and with outlier channels (scripts/inject_outliers.py),
which change its results by no bit. detent's methods that need samples get windows of calibration.txt; everything is judged on
held_out.txt, which neither the training nor a quantizer has seen. All tools quantize the same products (MatMul), with blocks of
32 and 128 weights, and the products compute in float32 (accuracy level 1), so that weights decide.

--mixed: what bits that differ by weight keep (--max-size), beside the same bits for all and bits by rules of thumb.

PYTHON: an interpreter that has onnxruntime, onnx, onnx_ir, and for HQQ torch. This one needs numpy, onnxruntime, tokenizers and
onnx."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import build_decoder
import inject_outliers

ROOT = build_decoder.ROOT

LENGTH = 256
BLOCKS = (32, 128)
PEERS = {
    "DEFAULT, symmetric": ("default", True),
    "DEFAULT": ("default", False),
    "RTN, symmetric": ("rtn", True),
    "RTN": ("rtn", False),
    "k_quant": ("k_quant", False),
    "HQQ": ("hqq", False),
}
METHODS = ("nearest", "search", "gptq", "auto")


@dataclass(frozen=True)
class Quality:
    perplexity: float
    agreement: float  # share of positions with the float model's likeliest token
    divergence: float  # mean KL divergence from the float model, nats


def windows(folder: pathlib.Path, text: pathlib.Path) -> np.ndarray:
    from tokenizers import Tokenizer

    ids = np.array(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text.read_text(encoding="utf-8")).ids)
    return ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)


def log_probabilities(folder: pathlib.Path, ids: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    past = [(i.name, i.shape) for i in session.get_inputs() if i.name.startswith("past_key_values.")]
    told = []
    for row in ids:
        cache = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in past}
        feed = {"input_ids": row[None], "attention_mask": np.ones((1, LENGTH), np.int64), **cache}
        logits = session.run(["logits"], feed)[0][0, :-1].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        told.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    return np.stack(told)


def quality(told: np.ndarray, in_float: np.ndarray, ids: np.ndarray) -> Quality:
    loss = -np.take_along_axis(told, ids[:, 1:, None], -1).mean()
    same = (told.argmax(-1) == in_float.argmax(-1)).mean()
    return Quality(float(np.exp(loss)), float(same), float((np.exp(in_float) * (in_float - told)).sum(-1).mean()))


@dataclass
class Runs:
    """One model's quantized forms."""

    model: pathlib.Path
    samples: pathlib.Path  # .npy of token ids
    work: pathlib.Path
    peer_python: str
    hqq_python: str

    def made(self, name: str, block: int, command: list[object]) -> pathlib.Path | str:
        """A folder with model.onnx, or why there is none."""
        result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return self.work / name
        return (result.stderr.strip() or result.stdout.strip() or "?").splitlines()[-1][:100]

    def detent(self, method: str, block: int) -> pathlib.Path | str:
        name = f"{method}-{block}"
        command = [ROOT / "build" / "detent", "quantize", self.model, "-o", self.work / name, "--weights-only", "--no-bench"]
        command += ["--op-types", "MatMul", "--block-size", block, "--set", "accuracy-level=1", "--set", f"weights-method={method}"]
        samples = ["--calibration-data", self.samples, "--batch-size", 1] if method in ("gptq", "auto") else []
        return self.made(name, block, command + samples)

    def mixed(self, block: int, *options: object) -> tuple[pathlib.Path, float, int]:
        """A folder, its bits for each weight without scales, and its size."""
        out = self.work / f"mixed-{block}-{len(list(self.work.iterdir()))}"
        command = [ROOT / "build" / "detent", "quantize", self.model, "-o", out, "--weights-only", "--no-bench", "--json"]
        command += ["--op-types", "MatMul", "--block-size", block, "--set", "accuracy-level=1"]
        command += ["--calibration-data", self.samples, "--batch-size", 1, *options]
        told = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
        weights = [(w["bits"], w["rows"] * w["columns"]) for w in json.loads(told)["weights"]]
        count = sum(values for _, values in weights)
        return out, sum(bits * values for bits, values in weights) / count, sum(f.stat().st_size for f in out.glob("model.onnx*"))

    def peer(self, method: str, symmetric: bool, block: int) -> pathlib.Path | str:
        name = f"{method}-{symmetric}-{block}-peer"
        (self.work / name).mkdir()
        python = self.hqq_python if method == "hqq" else self.peer_python
        script = pathlib.Path(__file__).with_name("language_peer.py")
        source, target = self.model / "model.onnx", self.work / name / "model.onnx"
        return self.made(name, block, [python, script, source, target, method, block, int(symmetric)])


def measured(runs: Runs, ids: np.ndarray, peers: bool) -> dict[str, dict[str, Quality | str]]:
    """By row and block size; a text says why there is no figure."""
    in_float = log_probabilities(runs.model, ids)
    rows: dict[str, dict[str, Quality | str]] = {"float32": {str(b): quality(in_float, in_float, ids) for b in BLOCKS}}

    def judge(row: str, block: int, made: pathlib.Path | str) -> None:
        found = made if isinstance(made, str) else quality(log_probabilities(made, ids), in_float, ids)
        rows.setdefault(row, {})[str(block)] = found
        print(f"{row}, block {block}: {found}", file=sys.stderr, flush=True)

    for block in BLOCKS:
        for row, (method, symmetric) in PEERS.items() if peers else ():
            judge(f"ONNX Runtime {row}", block, runs.peer(method, symmetric, block))
        for method in METHODS:
            judge(f"detent {method}", block, runs.detent(method, block))
    return rows


def mixed_table(runs: Runs, ids: np.ndarray) -> str:
    """4 bits for all, and more for some: chosen by detent, by rules of thumb, and by detent for the size that a rule takes."""
    in_float = log_probabilities(runs.model, ids)
    graph = onnx.load(runs.model / "model.onnx", load_external_data=False).graph
    products = {node.input[1] for node in graph.node if node.op_type == "MatMul"}
    values = sum(int(np.prod(t.dims)) for t in graph.initializer if t.name in products)
    layers = 1 + max(int(name.split(".")[2]) for name in products if name.startswith("model.layers."))
    head = "^/lm_head.*=8"
    ends = f"^/model/layers.(0|{layers - 1})/.*=8"
    lines = ["| | bits | size | perplexity | KL divergence | the same next token |", "|---" * 6 + "|"]
    for block in BLOCKS:

        def row(name: str, *options: object, block: int = block) -> int:
            folder, bits, size = runs.mixed(block, *options)
            found = quality(log_probabilities(folder, ids), in_float, ids)
            figures = f"{found.perplexity:.3f} | {found.divergence:.4f} | {100 * found.agreement:.1f} %"
            lines.append(f"| block {block}, {name} | {bits:.2f} | {size / 2**20:.2f} MiB | {figures} |")
            return size

        uniform = row("4 bits for all")
        row("`--max-size` for 4.5 bits", "--max-size", uniform + values // 16 + 4096)  # and a little for zero points
        size = row("the last layer at 8 bits", "--set", f"node-bits={head}")
        row("`--max-size` of that", "--max-size", size)
        size = row("the last layer, and the first and the last of three layers at 8 bits", "--set", f"node-bits={head},{ends}")
        row("`--max-size` of that", "--max-size", size)
    return "\n".join(lines)


def table(results: dict[str, dict[str, dict[str, Quality | str]]]) -> str:
    columns = [(model, str(block)) for model in results for block in BLOCKS]
    lines = ["| | " + " | ".join(f"{model}, block {block}" for model, block in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    best = {}
    for model, block in columns:
        peers = [q[block] for row, q in results[model].items() if row.startswith("ONNX") and isinstance(q[block], Quality)]
        if peers:
            best[model, block] = min(q.perplexity for q in peers)

    def cell(row: str, model: str, block: str) -> str:
        found, start = results[model][row][block], results[model]["float32"][block]
        assert isinstance(start, Quality)
        if isinstance(found, str):
            return "fails"
        if row == "float32":
            return f"{found.perplexity:.3f}"
        loss = f"{found.perplexity:.3f} ({100 * (found.perplexity / start.perplexity - 1):+.2f} %)"
        return f"{loss}, KL {found.divergence:.4f}, {100 * found.agreement:.1f} %"

    for row in next(iter(results.values())):
        lines.append(f"| {row} | " + " | ".join(cell(row, *column) for column in columns) + " |")
    for model, block in columns:
        ours, start = results[model]["detent auto"][block], results[model]["float32"][block]
        if (model, block) in best and isinstance(ours, Quality) and isinstance(start, Quality):
            share = (ours.perplexity - start.perplexity) / (best[model, block] - start.perplexity)
            lines.append(f"\n{model}, block {block}: detent auto loses {100 * share:.0f} % of what the best peer loses.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, default=build_decoder.TRAINED, help="what train_decoder.py wrote")
    parser.add_argument("--samples", type=int, default=64, help=f"windows of {LENGTH} tokens for calibration")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--hqq-python")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        plain, outliers = build_decoder.build(work / "plain", options.weights), work / "outliers"
        inject_outliers.inject_folder(plain, outliers)
        text = windows(plain, options.weights / "calibration.txt")
        np.save(work / "ids.npy", text[np.linspace(0, len(text) - 1, min(options.samples, len(text))).astype(int)])
        held_out = windows(plain, options.weights / "held_out.txt")
        if options.mixed:
            (work / "made").mkdir()
            return print(mixed_table(Runs(plain, work / "ids.npy", work / "made", "", ""), held_out))
        results = {}
        for model in (plain, outliers):
            made = work / f"{model.name}-made"
            made.mkdir()
            python = options.peer_python
            runs = Runs(model, work / "ids.npy", made, python, options.hqq_python or python)
            results[model.name] = measured(runs, held_out, not options.no_peers)
    print(f"{held_out.size} tokens held out, {min(options.samples, len(text)) * LENGTH} for calibration\n")
    print(table(results))
    if options.json:
        plain_values = {
            m: {r: {b: vars(q) if isinstance(q, Quality) else q for b, q in c.items()} for r, c in rows.items()}
            for m, rows in results.items()
        }
        options.json.write_text(json.dumps(plain_values, indent=1))


if __name__ == "__main__":
    main()
