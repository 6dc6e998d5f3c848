"""Small decoders with a KV cache, of the shape that onnxruntime-genai's builder makes, in folders."""

import json
import sys

import numpy as np
import onnx
import support
from support import Path

sys.path.append(str(support.ROOT / "scripts"))
import build_decoder

SHAPE = build_decoder.Shape(layers=2, hidden=64, heads=4, kv_heads=2, inner=128, vocabulary=256, context=256)
VOCABULARY = SHAPE.vocabulary


def decoder() -> onnx.ModelProto:
    """With random weights."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> np.ndarray:
        return np.ones(shape, np.float32) if "norm" in name else (0.3 * random.standard_normal(shape)).astype(np.float32)

    return build_decoder.decoder(SHAPE, weight)


def empty_cache(shape: build_decoder.Shape = SHAPE) -> dict[str, np.ndarray]:
    empty = np.zeros((1, shape.kv_heads, 0, shape.head), np.float32)
    return {f"past_key_values.{layer}.{part}": empty for layer in range(shape.layers) for part in ("key", "value")}


def genai_folder(folder: Path) -> Path:
    """As onnxruntime-genai's builder writes it."""
    folder.mkdir(parents=True)
    onnx.save(decoder(), folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=256)
    (folder / "genai_config.json").write_text(json.dumps(build_decoder.genai_config(SHAPE)))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def transformers_folder(folder: Path) -> Path:
    """As transformers.js has them."""
    (folder / "onnx").mkdir(parents=True)
    where = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 256}
    onnx.save(decoder(), folder / "onnx" / "model.onnx", **where)
    onnx.save(decoder(), folder / "onnx" / "model_q4.onnx")
    config = {"model_type": "llama", "transformers.js_config": {"use_external_data_format": {"model.onnx": True}}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
