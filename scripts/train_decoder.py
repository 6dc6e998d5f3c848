#!/usr/bin/env python3
"""Trains the small decoder of tests/models/decoder, for tests and benchmarks of language models.

    train_decoder.py [--out DIR] [--steps N] [--text python3.11-doc_VERSION_all.deb]

The text is Python's documentation as Debian packages it (the reStructuredText sources in python3.11-doc; Python's license,
which allows this). Every 20th file is kept from training: half of these are the calibration text, half the text that
quality is measured on. Tokens are made by a byte-level BPE that is trained on the same text.

Writes weights.npz (float16, by the names of Hugging Face's Llama; products as [outputs, inputs]), tokenizer.json,
tokenizer_config.json, calibration.txt and held_out.txt. build_decoder.py makes ONNX of them. Needs: pip install jax tokenizers
numpy; half an hour on two cores."""

import argparse
import json
import math
import pathlib
import subprocess
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "python3.11-doc"

# The architecture; build_decoder.py reads it from what is written here.
SHAPE = {
    "layers": 3,
    "hidden": 256,
    "heads": 8,
    "kv_heads": 4,
    "inner": 384,
    "vocabulary": 512,
    "context": 1024,
    "theta": 10000.0,
    "epsilon": 1e-5,
}
END = "<|endoftext|>"
LENGTH, ROWS, WARM_UP, RATE, DECAY = 256, 8, 100, 3e-3, 0.1


def documents(package: pathlib.Path | None) -> list[str]:
    """The sources of the documentation, in the order of their paths."""
    with tempfile.TemporaryDirectory() as folder:
        if package is None:
            subprocess.run(["apt-get", "-qq", "download", PACKAGE], cwd=folder, check=True)
            package = next(pathlib.Path(folder).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, f"{folder}/root"], check=True)
        paths = sorted(pathlib.Path(folder, "root").rglob("_sources/**/*.rst.txt"))
        return [path.read_text(encoding="utf-8") for path in paths]


def byte_pairs(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=SHAPE["vocabulary"], special_tokens=[END], initial_alphabet=alphabet)
    )
    return tokenizer


def first_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    hidden, head = SHAPE["hidden"], SHAPE["hidden"] // SHAPE["heads"]
    kv = SHAPE["kv_heads"] * head

    def normal(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (scale / math.sqrt(columns) * random.standard_normal((rows, columns))).astype(np.float32)

    ones = np.ones(hidden, np.float32)
    deep = 1 / math.sqrt(2 * SHAPE["layers"])
    weights = {"model.embed_tokens": 0.5 * normal(SHAPE["vocabulary"], hidden) * math.sqrt(hidden) / 4}
    for layer in range(SHAPE["layers"]):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.input_layernorm": ones,
            f"{at}.self_attn.q_proj": normal(hidden, hidden),
            f"{at}.self_attn.k_proj": normal(kv, hidden),
            f"{at}.self_attn.v_proj": normal(kv, hidden),
            f"{at}.self_attn.o_proj": normal(hidden, hidden, deep),
            f"{at}.post_attention_layernorm": ones,
            f"{at}.mlp.gate_proj": normal(SHAPE["inner"], hidden),
            f"{at}.mlp.up_proj": normal(SHAPE["inner"], hidden),
            f"{at}.mlp.down_proj": normal(hidden, SHAPE["inner"], deep),
        }
    return weights | {"model.norm": ones, "lm_head": normal(SHAPE["vocabulary"], hidden, 0.2)}


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + SHAPE["epsilon"]) * gain


def rotated(x: jax.Array) -> jax.Array:
    """Rotary positions, halves of a head as pairs. x: [rows, heads, positions, head]."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(x.shape[2]), SHAPE["theta"] ** (-np.arange(half) / half)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(w: dict[str, jax.Array], at: str, x: jax.Array) -> jax.Array:
    rows, length, hidden = x.shape
    head = hidden // SHAPE["heads"]

    def heads(part: str) -> jax.Array:
        return (x @ w[f"{at}.{part}_proj"].T).reshape(rows, length, -1, head).transpose(0, 2, 1, 3)

    group = SHAPE["heads"] // SHAPE["kv_heads"]
    q, k, v = rotated(heads("q")), rotated(heads("k")).repeat(group, 1), heads("v").repeat(group, 1)
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(head)
    scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
    mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(rows, length, hidden)
    return mixed @ w[f"{at}.o_proj"].T


def logits(w: dict[str, jax.Array], ids: jax.Array) -> jax.Array:
    x = w["model.embed_tokens"][ids]
    for layer in range(SHAPE["layers"]):
        at = f"model.layers.{layer}"
        x = x + attention(w, f"{at}.self_attn", rms_norm(x, w[f"{at}.input_layernorm"]))
        y = rms_norm(x, w[f"{at}.post_attention_layernorm"])
        gate, up = y @ w[f"{at}.mlp.gate_proj"].T, y @ w[f"{at}.mlp.up_proj"].T
        x = x + (jax.nn.silu(gate) * up) @ w[f"{at}.mlp.down_proj"].T
    return rms_norm(x, w["model.norm"]) @ w["lm_head"].T


def loss_of(w: dict[str, jax.Array], ids: jax.Array) -> jax.Array:
    """Mean cross entropy of the next token in nats. ids: [rows, LENGTH + 1]."""
    told = jax.nn.log_softmax(logits(w, ids[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(told, ids[:, 1:, None], -1))


@jax.jit
def adam(w: dict, m: dict, v: dict, ids: jax.Array, step: jax.Array, rate: jax.Array) -> tuple:
    """One step of AdamW with gradients clipped to length 1."""
    loss, slope = jax.value_and_grad(loss_of)(w, ids)
    long = jnp.sqrt(sum(jnp.sum(g * g) for g in slope.values()))
    slope = {name: g / jnp.maximum(1, long) for name, g in slope.items()}
    m = {name: 0.9 * m[name] + 0.1 * g for name, g in slope.items()}
    v = {name: 0.95 * v[name] + 0.05 * g * g for name, g in slope.items()}

    def moved(name: str) -> jax.Array:
        to = (m[name] / (1 - 0.9**step)) / (jnp.sqrt(v[name] / (1 - 0.95**step)) + 1e-8)
        return w[name] - rate * (to + (DECAY * w[name] if w[name].ndim == 2 else 0))

    return {name: moved(name) for name in w}, m, v, loss


def train(ids: np.ndarray, steps: int) -> dict[str, np.ndarray]:
    w = {name: jnp.asarray(value) for name, value in first_weights().items()}
    m = {name: jnp.zeros_like(value) for name, value in w.items()}
    v = dict(m)
    random = np.random.default_rng(1)
    started, mean = time.monotonic(), None
    for step in range(1, steps + 1):
        starts = random.integers(0, len(ids) - LENGTH - 1, ROWS)
        batch = np.stack([ids[at : at + LENGTH + 1] for at in starts])
        rate = RATE * min(step / WARM_UP, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        w, m, v, loss = adam(w, m, v, batch, float(step), rate)
        mean = float(loss) if mean is None else 0.98 * mean + 0.02 * float(loss)
        if step % 50 == 0:
            print(f"step {step} of {steps}: {mean:.3f} nats, {time.monotonic() - started:.0f} s", flush=True)
    return {name: np.asarray(value) for name, value in w.items()}


def write(folder: pathlib.Path, tokenizer: Tokenizer, kept: list[str], weights: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "bos_token": END, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": SHAPE["context"]}, indent=2) + "\n")
    for name, texts in (("calibration.txt", kept[0::2]), ("held_out.txt", kept[1::2])):
        (folder / name).write_text("".join(texts)[:100_000], encoding="utf-8")
    halves = {name: value.astype(np.float16) for name, value in weights.items()}
    np.savez_compressed(folder / "weights.npz", shape=json.dumps(SHAPE), **halves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "models" / "decoder")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--text", type=pathlib.Path)
    options = parser.parse_args()
    texts = documents(options.text)
    kept, read = texts[10::20], [text for i, text in enumerate(texts) if i % 20 != 10]
    tokenizer = byte_pairs(read)
    ids = np.concatenate([[0, *encoded.ids] for encoded in tokenizer.encode_batch(read)]).astype(np.int32)
    print(
        f"{len(read)} files, {sum(map(len, read))} characters, {len(ids)} tokens; kept: {sum(map(len, kept))} characters",
        flush=True,
    )
    write(options.out, tokenizer, kept, train(ids, options.steps))


if __name__ == "__main__":
    main()
