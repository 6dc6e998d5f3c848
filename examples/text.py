#!/usr/bin/env python3
"""Quantizes a sentence encoder (all-MiniLM-L6-v2) with paragraphs of text.

    pip install . onnx                                  # onnx is needed only to build the encoder's graph
    python scripts/fetch_models.py minilm text
    python examples/text.py

Half of the paragraphs are used for calibration. For each of the others, both models look up the most similar one; how often do
they agree?"""

import argparse
import json
import pathlib
import re

import detent
import numpy as np
import onnxruntime as ort

MODELS = pathlib.Path(__file__).resolve().parents[1] / "build" / "models"
LENGTH = 64


class WordPieces:
    """BERT's tokenizer for lower case: words are cut greedily into the longest pieces of the vocabulary."""

    def __init__(self, path: pathlib.Path) -> None:
        self.vocabulary = json.loads(path.read_text())["model"]["vocab"]

    def pieces(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in self.vocabulary)
            end = next(ends, None)
            if end is None:
                return [self.vocabulary["[UNK]"]]
            found.append(self.vocabulary[prefix + word[start:end]])
            start = end
        return found

    def __call__(self, text: str) -> dict[str, np.ndarray]:
        words = re.findall(r"[^\W_]+|[^\w\s]|_", text.lower())
        tokens = [piece for word in words for piece in self.pieces(word)][: LENGTH - 2]
        ids = np.zeros((1, LENGTH), np.int64)
        ids[0, : len(tokens) + 2] = [self.vocabulary["[CLS]"], *tokens, self.vocabulary["[SEP]"]]
        return {"input_ids": ids, "attention_mask": np.int64(ids > 0), "token_type_ids": np.zeros_like(ids)}


def paragraphs() -> list[str]:
    texts = [path.read_text() for path in sorted((MODELS / "text").glob("*.rst"))]
    found = [" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text)]
    return sorted({part for part in found if len(part.split()) >= 12 and not re.search(r"===|---|\.\. |\|", part)})


def embeddings(path: pathlib.Path, samples: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The mean over tokens of what the encoder gives, of length 1."""
    session = ort.InferenceSession(path)
    rows = []
    for sample in samples:
        mask = sample["attention_mask"][0].astype(bool)
        mean = session.run(None, sample)[0][0, mask].mean(0)
        rows.append(mean / np.linalg.norm(mean))
    return np.array(rows)


def nearest(rows: np.ndarray) -> np.ndarray:
    similarity = rows @ rows.T
    np.fill_diagonal(similarity, -1)
    return similarity.argmax(1)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    model = MODELS / "minilm.onnx"
    samples = [WordPieces(MODELS / "minilm" / "tokenizer.json")(text) for text in paragraphs()]
    calibration, held_back = samples[0::2][:32], samples[1::2]
    reference = embeddings(model, held_back)
    print(f"{len(calibration)} paragraphs for calibration, {len(held_back)} for the comparison")
    configs = {
        "all operators": detent.Config(weight_type="uint8"),
        "MatMul alone": detent.Config(weight_type="uint8", op_types=["MatMul"]),
        "MatMul alone, percentile": detent.Config(weight_type="uint8", op_types=["MatMul"], method="percentile"),
    }
    for name, config in configs.items():
        output = MODELS / "minilm.int8.onnx"
        result = detent.quantize(model, output, calibration, config)
        found = embeddings(output, held_back)
        print(f"{name:25} {result.model_bytes_after / result.model_bytes_before:.2f} of the size", end=", ")
        print(f"cosine {np.sum(reference * found, 1).mean():.4f}", end=", ")
        print(f"the same neighbour for {np.mean(nearest(reference) == nearest(found)):.0%}")


if __name__ == "__main__":
    main()
