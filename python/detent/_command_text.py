"""--calibration-text on the command line: the text becomes a file of token ids, which the native binary takes as samples."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from . import data
from .errors import UsageError

TEXT = "--calibration-text"
TOKENIZER = "--tokenizer"


def _schema(binary: pathlib.Path) -> list[dict[str, Any]]:
    printed = subprocess.run([binary, "options"], capture_output=True, text=True, check=True).stdout
    rows: list[dict[str, Any]] = json.loads(printed)["options"]
    return rows


class _Words:
    """A command line, taken apart by the schema of options."""

    def __init__(self, words: Sequence[str], schema: list[dict[str, Any]]) -> None:
        command = words[0]
        rows = [row for row in schema if command in row["commands"]]
        with_value = {name for row in rows if row["type"] != "flag" for name in ("--" + row["name"], row["letter"]) if name}
        self.values: dict[str, str] = {}
        self.rest = [command]
        positional: list[str] = []
        at = 1
        while at < len(words):
            name, joined, value = words[at].partition("=")
            taken = 1 if joined or name not in with_value or at + 1 == len(words) else 2
            if name in with_value and (joined or taken == 2):
                self.values[name] = value if joined else words[at + 1]
            elif not name.startswith("-"):
                positional.append(words[at])
            if name not in (TEXT, "--text-length", TOKENIZER):
                self.rest += words[at : at + taken]
            at += taken
        self.model = positional[0] if positional else None

    def for_inspection(self) -> list[str]:
        """The options that decide whether the model can be opened."""
        runtime = ["--runtime", self.values["--runtime"]] if "--runtime" in self.values else []
        return [*runtime, *(word for word in self.rest if word == "--isolate")]

    def number(self, name: str, default: int) -> int:
        given = self.values.get(name)
        if given is not None and not given.isdecimal():
            raise UsageError(f"{name}: '{given}' is not a whole number")
        return default if given is None else int(given)


def _tokenizer_of(model: str) -> pathlib.Path:
    """Beside the model, or, of transformers.js' folders, above it."""
    path = pathlib.Path(model)
    folders = [path] if path.is_dir() else [path.parent, path.parent.parent]
    return next((folder / "tokenizer.json" for folder in folders if (folder / "tokenizer.json").is_file()), folders[0])


class Refused(Exception):
    """The native binary said on stderr what is wrong, and ended so."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _is_encoder(binary: pathlib.Path, model: str, options: Sequence[str]) -> bool:
    """Whether the model reads token ids and no cache."""
    told = subprocess.run([binary, "inspect", model, "--json", *options], stdout=subprocess.PIPE, text=True, check=False)
    if told.returncode != 0:
        raise Refused(told.returncode)
    names = {value["name"] for value in json.loads(told.stdout)["inputs"]}
    return "input_ids" in names and not any(name.startswith("past_key_values.") for name in names)


def _ids_path(words: Sequence[str]) -> pathlib.Path:
    """The same for the same command, so that --resume finds its samples."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    named = "\0".join([os.getcwd(), *(word for word in words if word != "--resume")])
    return pathlib.Path(home, "detent", f"text-{hashlib.sha256(named.encode(errors='surrogateescape')).hexdigest()[:16]}")


@contextlib.contextmanager
def with_token_ids(binary: pathlib.Path, words: Sequence[str]) -> Iterator[list[str]]:
    """The words with --calibration-data instead of --calibration-text; the file exists until the context ends."""
    taken = _Words(words, _schema(binary))
    if "--calibration-data" in taken.values:
        raise UsageError(f"{TEXT} and --calibration-data were both given", "give one of them")
    if TEXT not in taken.values or taken.model is None:
        raise UsageError(f"{TEXT} needs a file, and a model with its tokenizer", f"see: detent {words[0]} --help")
    tokenizer = pathlib.Path(taken.values[TOKENIZER]) if TOKENIZER in taken.values else _tokenizer_of(taken.model)
    length, count = taken.number("--text-length", 512), taken.number("--samples", 0)
    of_texts = data.lines if _is_encoder(binary, taken.model, taken.for_inspection()) else data.text
    samples = of_texts(taken.values[TEXT], tokenizer, length, count=count)
    path = _ids_path(words)
    shutil.rmtree(path, ignore_errors=True)  # of a run that was killed
    path.mkdir(parents=True)
    rows = [] if "--batch-size" in taken.values else ["--batch-size", "1"]
    try:
        samples.save(path / "ids.npy")
        yield [*taken.rest, "--calibration-data", str(path / "ids.npy"), *rows]
    finally:
        shutil.rmtree(path, ignore_errors=True)
