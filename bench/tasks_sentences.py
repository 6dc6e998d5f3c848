"""The sentence encoder all-MiniLM-L6-v2: which part of scikit-learn does a paragraph of its documentation come from?
The command line is tasks_common.py's. The paragraphs are docstrings in the wheel of scikit-learn, which
scripts/fetch_models.py keeps. Calibration paragraphs come from other parts of it than those that are asked about."""

import ast
import json
import pathlib
import re
import shutil
import unicodedata
import zipfile
from collections.abc import Iterator

import numpy as np
import tasks_common

TOPICS = ["cluster", "datasets", "decomposition", "ensemble", "linear_model", "metrics", "model_selection", "preprocessing"]
CALIBRATION_TOPICS = ["feature_extraction", "gaussian_process", "manifold", "neighbors", "neural_network", "svm"]
CALIBRATION, PER_TOPIC = 32, 118
LENGTH = 32  # tokens; shorter paragraphs are padded, as in practice


class WordPieces:
    """BERT's tokenizer for lower case: words are cut greedily into the longest pieces of the vocabulary."""

    def __init__(self, path: pathlib.Path):
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

    def __call__(self, text: str) -> list[int]:
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        words = re.findall(r"[^\W_]+|[^\w\s]|_", plain)
        tokens = [piece for word in words for piece in self.pieces(word)][: LENGTH - 2]
        return [self.vocabulary["[CLS]"], *tokens, self.vocabulary["[SEP]"]]

    def encode(self, texts: list[str]) -> dict[str, np.ndarray]:
        """The model's inputs, padded to LENGTH."""
        ids, mask = np.zeros((2, len(texts), LENGTH), np.int64)
        for row, tokens in enumerate(map(self, texts)):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def paragraphs(docstring: str) -> Iterator[str]:
    """The prose: no code, tables, lists or headings."""
    for part in re.split(r"\n\s*\n|\n\S+ : .*\n", docstring):
        text = " ".join(part.split())
        if 10 <= len(text.split()) <= 60 and not re.search(r"---|>>>|\.\. |:", text):
            yield text


def documentation(models: pathlib.Path) -> dict[str, list[str]]:
    """The paragraphs of each part of scikit-learn; none that stands in several parts."""
    wheel = next((models / "wheels").glob("scikit_learn-*.whl"), None)
    if wheel is None:
        raise SystemExit(f"{models}/wheels has no scikit-learn; remove {models}/text and run scripts/fetch_models.py")
    parts: dict[str, set[str]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            match = re.fullmatch(r"sklearn/([a-z]\w*)/\w+\.py", name)
            if not match:
                continue
            for node in ast.walk(ast.parse(archive.read(name))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    for text in paragraphs(ast.get_docstring(node) or ""):
                        parts.setdefault(text, set()).add(match[1])
    topics: dict[str, list[str]] = {}
    for text, names in sorted(parts.items()):
        if len(names) == 1:
            topics.setdefault(*names, []).append(text)
    return topics


def prepare(models: pathlib.Path, out: pathlib.Path) -> None:
    shutil.copyfile(models / "minilm.onnx", out / "model.onnx")
    topics, encode = documentation(models), WordPieces(models / "minilm" / "tokenizer.json").encode
    rng = np.random.default_rng(7)
    pick = lambda texts, count: [texts[i] for i in rng.permutation(len(texts))[:count]]
    others = [text for topic in CALIBRATION_TOPICS for text in topics[topic]]
    tasks_common.save_calibration(out, (encode([text]) for text in pick(others, CALIBRATION)))
    chosen = [(text, number) for number, topic in enumerate(TOPICS) for text in pick(topics[topic], PER_TOPIC)]
    texts, labels = zip(*pick(chosen, len(chosen)))
    np.savez(out / "test.npz", **encode(list(texts)))
    np.save(out / "labels.npy", labels)


def embeddings(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over the tokens that are not padding, length 1."""
    mean = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-9)


def accuracy(folder: pathlib.Path, known: np.ndarray, asked: np.ndarray, seed: int | None = None) -> float:
    mask, labels = np.load(folder / "test.npz")["attention_mask"], np.load(folder / "labels.npy")
    return tasks_common.cross_fitted(embeddings(known, mask), embeddings(asked, mask), labels, 1, seed)


if __name__ == "__main__":
    tasks_common.main(prepare, accuracy)
