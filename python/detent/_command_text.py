"""--calibration-text on the command line: the text becomes a file of token ids, which the native binary takes as samples."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from . import _token_ids
from .errors import ResourceError, UsageError

TEXT = "--calibration-text"
TOKENIZER = "--tokenizer"
_DIGITS = 18


def _schema(binary: pathlib.Path) -> list[dict[str, Any]]:
    printed = subprocess.run([binary, "options"], stdout=subprocess.PIPE, text=True, check=False)
    if printed.returncode != 0:
        raise Refused(printed.returncode)
    rows: list[dict[str, Any]] = json.loads(printed.stdout)["options"]
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
        if given is not None and not (given.isascii() and given.isdecimal()):
            raise UsageError(f"{name}: '{given}' is not a whole number")
        if given is not None and len(given) > _DIGITS:
            raise UsageError(f"{name}: a number of {len(given)} digits is too large")
        return default if given is None else int(given)

    def seconds(self) -> float:
        """What reading the text may take; the native binary says what is wrong with a --time-limit."""
        try:
            return min(_token_ids.SECONDS, max(1.0, float(self.values.get("--time-limit", _token_ids.SECONDS))))
        except ValueError:
            return _token_ids.SECONDS


def _tokenizer_of(model: str) -> pathlib.Path:
    """Beside the model, or, of transformers.js' folders, above it."""
    path = pathlib.Path(model)
    folders = [path] if os.path.isdir(path) else [path.parent, path.parent.parent]
    return next((folder / "tokenizer.json" for folder in folders if os.path.isfile(folder / "tokenizer.json")), folders[0])


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


def _locked(path: pathlib.Path) -> int | None:
    """The folder, made if there is none, and this process's own until the descriptor is closed; None: it is another's."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(folder), os.stat(path, follow_symlinks=False)):
                return folder
        except BlockingIOError:
            os.close(folder)
            return None
        except FileNotFoundError:  # the other process has just removed it
            pass
        os.close(folder)


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Signals that end the command come after what must not be torn apart."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _own_folder(words: Sequence[str]) -> tuple[pathlib.Path, int | None]:
    """An empty folder for token ids, and the descriptor that holds its lock. Of two equal commands at once, each has its own."""
    try:
        path = _ids_path(words)
    except OSError as error:
        raise ResourceError(f"cannot find the current folder: {error.strerror}", "go to another one") from None
    try:
        held = _locked(path)
        if held is None and "--resume" in words:
            raise UsageError("the same command is still going on", "wait for it, or end it")
        if held is None:
            path = pathlib.Path(tempfile.mkdtemp(prefix=path.name + "-", dir=path.parent))
        for entry in path.iterdir():  # of a run that was killed
            shutil.rmtree(entry) if os.path.isdir(entry) and not os.path.islink(entry) else entry.unlink()
    except OSError as error:
        what = f"cannot keep token ids in '{path}': {error.strerror}"
        raise ResourceError(what, "set XDG_CACHE_HOME to a folder that can be written") from None
    return path, held


@contextlib.contextmanager
def _ids_folder(words: Sequence[str]) -> Iterator[pathlib.Path]:
    """A folder for token ids, which is removed whenever a signal comes."""
    with contextlib.ExitStack() as kept:
        with _signals_wait():
            path, held = _own_folder(words)
            kept.callback(_remove, path, held)
        yield path


def _remove(path: pathlib.Path, held: int | None) -> None:
    with _signals_wait():
        shutil.rmtree(path, ignore_errors=True)
        if held is not None:
            os.close(held)


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
    kind = "lines" if _is_encoder(binary, taken.model, taken.for_inspection()) else "text"
    rows = [] if "--batch-size" in taken.values else ["--batch-size", "1"]
    with _ids_folder(words) as folder:
        ids = folder / "ids.npy"
        _token_ids.write(kind, taken.values[TEXT], tokenizer, length, count, ids, taken.seconds())
        yield [*taken.rest, "--calibration-data", str(ids), *rows]
