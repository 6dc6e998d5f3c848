#!/usr/bin/env python3
"""A language model in all formats: size, perplexity and tokens a second, beside other tools. A table in Markdown.

  language_models.py MODEL TOKENIZER TEXT [--samples IDS] [--formats q4,...] [--peers rtn,...] [--peer-python PYTHON]
                     [--gguf FILE [--requantize Q8_0,...]] [--windows N] [--threads N] [--work FOLDER] [--speed]

MODEL is an ONNX file of a decoder with a KV cache in float32, TOKENIZER its tokenizer.json. Perplexity is that of N windows of
128 tokens of TEXT (or of a .npy of windows with 129 tokens each), which no quantizer sees. IDS (.npy of token ids, other text)
are for formats and peers that make use of samples. --peers are methods of language_peer.py, which PYTHON runs. --gguf is the
same model for llama.cpp (of the package llama-cpp-py-sync), which also makes the types of --requantize of it.
FOLDER keeps the files and figures.json: what is there is neither made nor measured again.
--speed times a prefill of 128 tokens and 64 tokens after it, each the best of three: only a quiet machine tells something."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import onnxruntime

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTH, DECODED = 128, 64
FORMATS = ("q8", "q4", "q4f16", "int8-dynamic")


def windows(tokenizer: pathlib.Path, text: pathlib.Path, count: int) -> np.ndarray:
    if text.suffix == ".npy":
        return np.load(text)[:count]
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
        from llama_cpp_py_sync import llama

        self.model = llama.Llama(str(model), n_ctx=2 * LENGTH, n_batch=LENGTH, n_threads=threads, verbose=False)
        self.lib, self.ffi = self.model._lib, self.model._ffi
        self.lib.llama_set_embeddings(self.model._ctx, False)
        self.past = 0

    def reset(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.model._ctx), True)
        self.past = 0

    def run(self, ids: np.ndarray) -> np.ndarray:
        batch = self.lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), self.past + i, 1, 1
            batch.seq_id[i][0] = 0
        if self.lib.llama_decode(self.model._ctx, batch) != 0:
            raise SystemExit("llama.cpp does not decode")
        self.lib.llama_batch_free(batch)
        self.past += len(ids)
        count = len(ids) * self.model.n_vocab
        scores = self.ffi.buffer(self.lib.llama_get_logits(self.model._ctx), 4 * count)
        return np.frombuffer(scores, np.float32).reshape(len(ids), -1).copy()


def requantized(source: pathlib.Path, out: pathlib.Path, name: str) -> pathlib.Path | str:
    from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib

    params = get_ffi().new("llama_model_quantize_params *", get_lib().llama_model_quantize_default_params())
    params.ftype, params.allow_requantize, params.nthread = getattr(get_lib(), f"LLAMA_FTYPE_MOSTLY_{name}"), True, 1
    failed = get_lib().llama_model_quantize(str(source).encode(), str(out).encode(), params)
    return "llama.cpp does not make it" if failed else out


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
    if out.exists():
        return out
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return out
    return (result.stderr.strip() or result.stdout.strip() or "?").splitlines()[-1][:100]


def rows(given: argparse.Namespace, work: pathlib.Path) -> Iterator[tuple[str, Callable, pathlib.Path | str]]:
    """By name: what runs the file, and the file."""
    yield "float", Onnx, given.model
    samples = ["--calibration-data", given.samples, "--batch-size", 1] if given.samples else []
    for name in given.formats.split(",") if given.formats else ():
        for words in [[], samples] if samples else [[]]:
            out = work / f"{name}{'-samples' if words else ''}.onnx"
            command = [ROOT / "build" / "detent", "quantize", given.model, "-o", out, "--format", name, "--no-bench", *words]
            yield f"detent {name}{', samples' if words else ''}", Onnx, made(command, out)
    for method in given.peers.split(",") if given.peers else ():
        out = work / f"peer-{method}.onnx"
        script = pathlib.Path(__file__).with_name("language_peer.py")
        command = [given.peer_python, script, given.model, out, method, 32, 0, *([given.samples] if given.samples else [])]
        tool = {"quark": "AMD Quark", "olive": "Olive"}.get(method.split("-")[0], "ONNX Runtime")
        yield f"{tool}, {method}", Onnx, made(command, out)
    if given.gguf:
        yield f"llama.cpp {given.gguf.name}", Llama, given.gguf
    for name in given.requantize.split(",") if given.requantize else ():
        out = work / f"{name}.gguf"
        yield f"llama.cpp {name}", Llama, out if out.exists() else requantized(given.gguf, out, name)


def figures_of(known: dict, runner: Callable, file: pathlib.Path, texts: np.ndarray, given: argparse.Namespace) -> dict:
    """Those that are known, and what is missing."""
    wanted = {"perplexity"} | ({"rates"} if given.speed else set())
    if not wanted <= known.keys():
        model = runner(file, given.threads)
        if "perplexity" not in known:
            known["perplexity"] = perplexity(model, texts)
        if given.speed and "rates" not in known:
            known["rates"] = rates(model, texts[0])
    known["size"] = sum(f.stat().st_size for f in file.parent.glob(file.name + "*"))
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "tokenizer", "text"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--samples", type=pathlib.Path)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--peers", default="")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--gguf", type=pathlib.Path)
    parser.add_argument("--requantize", default="")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--work", type=pathlib.Path)
    given = parser.parse_args()
    texts = windows(given.tokenizer, given.text, given.windows)
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or pathlib.Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        store = work / "figures.json"
        known = json.loads(store.read_text()) if store.exists() else {}
        lines = ["| | size | perplexity | over float |" + (" prefill, tokens/s | decode, tokens/s |" if given.speed else "")]
        lines.append("|---" * (6 if given.speed else 4) + "|")
        for name, runner, file in rows(given, work):
            print(name, file, file=sys.stderr, flush=True)
            if isinstance(file, str):
                lines.append(f"| {name} | {file} |" + " |" * (lines[0].count("|") - 3))
                continue
            of = figures_of(known.setdefault(name, {}), runner, file, texts, given)
            store.write_text(json.dumps(known, indent=1))
            value = of["perplexity"]
            cells = [f"{of['size'] / 1e6:.1f} MB", f"{value:.2f}", f"{value / known['float']['perplexity']:.3f}"]
            if given.speed:
                cells += [f"{rate:.0f}" for rate in of["rates"]]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print("\n".join(lines))


if __name__ == "__main__":
    main()
