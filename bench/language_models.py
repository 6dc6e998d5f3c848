#!/usr/bin/env python3
"""A language model in all formats: size, perplexity and tokens a second, beside other tools. A table in Markdown.

  language_models.py MODEL TOKENIZER TEXT [--samples IDS] [--formats q4,...] [--peers rtn,...] [--peer-python PYTHON]
                     [--gguf FILE ...] [--windows N] [--threads N] [--speed] [--work FOLDER]

MODEL is an ONNX file of a decoder with a KV cache in float32, TOKENIZER its tokenizer.json. Perplexity is that of N windows of
128 tokens of TEXT, which no quantizer sees. IDS (.npy of token ids, other text) are for the formats that make use of samples.
--peers are methods of ONNX Runtime's MatMulNBitsQuantizer (language_peer.py), which PYTHON has with onnx_ir, for HQQ with torch.
--gguf are files of the same model for llama-cpp-python, where it is installed.
--speed times a prefill of 128 tokens and 64 tokens after it, each the best of three: only a quiet machine tells something."""

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTH, DECODED = 128, 64
FORMATS = ("q8", "q4", "q4f16", "int8-dynamic")


def windows(tokenizer: pathlib.Path, text: pathlib.Path, count: int) -> np.ndarray:
    from tokenizers import Tokenizer

    ids = np.array(Tokenizer.from_file(str(tokenizer)).encode(text.read_text(encoding="utf-8", errors="replace")).ids)
    whole = ids[: len(ids) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    return whole[np.linspace(0, len(whole) - 1, min(count, len(whole)), dtype=int)]


def loss(logits: np.ndarray, following: np.ndarray) -> float:
    """The sum of -ln p over the tokens that follow."""
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return float((np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, following[:, None], -1)[:, 0]).sum())


class Onnx:
    """A decoder in ONNX Runtime."""

    def __init__(self, model: pathlib.Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]
        self.cache: dict[str, np.ndarray] = {}
        self.reset()

    def reset(self) -> None:
        types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        for name, given in self.inputs.items():
            if name.startswith("past_key_values."):
                self.cache[name] = np.zeros((1, given.shape[1], 0, given.shape[3]), types[given.type])

    def run(self, ids: np.ndarray) -> np.ndarray:
        """The scores behind each of these tokens, which the cache takes in."""
        past = next(iter(self.cache.values())).shape[2]
        feed = {"input_ids": ids[None].astype(np.int64), **self.cache}
        if "attention_mask" in self.inputs:
            feed["attention_mask"] = np.ones((1, past + len(ids)), np.int64)
        if "position_ids" in self.inputs:
            feed["position_ids"] = np.arange(past, past + len(ids))[None]
        results = dict(zip(self.outputs, self.session.run(None, feed), strict=True))
        self.cache = {name: results[name.replace("past_key_values", "present")] for name in self.cache}
        return results["logits"][0]


class Llama:
    """A decoder in llama.cpp."""

    def __init__(self, model: pathlib.Path, threads: int) -> None:
        import llama_cpp

        self.model = llama_cpp.Llama(str(model), n_ctx=2 * LENGTH, n_threads=threads, logits_all=True, verbose=False)

    def reset(self) -> None:
        self.model.reset()

    def run(self, ids: np.ndarray) -> np.ndarray:
        self.model.eval([int(i) for i in ids])
        return self.model.scores[self.model.n_tokens - len(ids) : self.model.n_tokens]


def perplexity(model: Onnx | Llama, texts: np.ndarray) -> float:
    total = 0.0
    for text in texts:
        model.reset()
        total += loss(model.run(text[:-1]), text[1:])
    return float(np.exp(total / texts[:, 1:].size))


def rates(model: Onnx | Llama, text: np.ndarray) -> tuple[float, float]:
    """Tokens a second of a prefill, and of the tokens after it."""
    best = [np.inf, np.inf]
    for _ in range(3):
        model.reset()
        start = time.perf_counter()
        model.run(text[:LENGTH])
        read = time.perf_counter()
        for token in text[:DECODED]:
            model.run(np.array([token]))
        best = [min(best[0], read - start), min(best[1], time.perf_counter() - read)]
    return LENGTH / best[0], DECODED / best[1]


def made(command: list[object], out: pathlib.Path) -> pathlib.Path | str:
    """The file, or why there is none."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return out
    return (result.stderr.strip() or result.stdout.strip() or "?").splitlines()[-1][:100]


def rows(given: argparse.Namespace, work: pathlib.Path) -> list[tuple[str, Callable, pathlib.Path | str]]:
    """By name: what runs the file, and the file."""
    found: list[tuple[str, Callable, pathlib.Path | str]] = [("float", Onnx, given.model)]
    samples = ["--calibration-data", given.samples, "--batch-size", 1] if given.samples else []
    for name in given.formats.split(","):
        for words in [[], samples] if samples else [[]]:
            out = work / f"{name}{'-samples' if words else ''}.onnx"
            command = [ROOT / "build" / "detent", "quantize", given.model, "-o", out, "--format", name, "--no-bench", *words]
            found.append((f"detent {name}{', samples' if words else ''}", Onnx, made(command, out)))
    for method in given.peers.split(",") if given.peers else ():
        out = work / f"peer-{method}.onnx"
        command = [given.peer_python, pathlib.Path(__file__).with_name("language_peer.py"), given.model, out, method, 32, 0]
        found.append((f"ONNX Runtime {method}", Onnx, made(command, out)))
    has_llama = importlib.util.find_spec("llama_cpp") is not None
    found += [(f"llama.cpp {file.name}", Llama, file if has_llama else "no llama-cpp-python") for file in given.gguf]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "tokenizer", "text"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--samples", type=pathlib.Path)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--peers", default="")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--gguf", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--work", type=pathlib.Path)
    given = parser.parse_args()
    texts = windows(given.tokenizer, given.text, given.windows)
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or pathlib.Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        print("| | size | perplexity | over float |" + (" prefill, tokens/s | decode, tokens/s |" if given.speed else ""))
        print("|---" * (6 if given.speed else 4) + "|")
        in_float = 0.0
        for name, runner, file in rows(given, work):
            if isinstance(file, str):
                print(f"| {name} | {file} |", flush=True)
                continue
            model = runner(file, given.threads)
            found = perplexity(model, texts)
            in_float = in_float or found
            size = sum(f.stat().st_size for f in file.parent.glob(file.name + "*")) / 1e6
            cells = [f"{size:.1f} MB", f"{found:.3f}", f"{found / in_float:.3f}"]
            if given.speed:
                cells += [f"{rate:.0f}" for rate in rates(model, texts[0])]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
            del model


if __name__ == "__main__":
    main()
