"""The native half of the package where there is no extension: each call runs the command beside it. In wheels for Windows.

Options go to the command as a file of --config, samples as a folder of .npz, and results come back as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .errors import Interrupted, UsageError, make

_Path = str | os.PathLike[str]
_Options = dict[str, Any]
_Progress = Callable[[str, int, int], object] | None

_COMMAND = pathlib.Path(__file__).with_name("detent.exe" if os.name == "nt" else "detent")
_KINDS = {2: "usage", 3: "bad_input", 4: "resource", 5: "device"}
_INTERRUPTED = 130
_PROGRESS = re.compile(r"(\w[\w ]*): (\d+) of (\d+)\b")
_ERROR = "detent: error: "
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def _run(words: Sequence[object], told: Callable[[str], object] = str) -> Any:
    """What the command prints as JSON; `told` hears the lines of its standard error."""
    command = [os.fspath(_COMMAND), *(os.fsdecode(os.fspath(w)) if isinstance(w, os.PathLike) else str(w) for w in words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace") as child:
        assert child.stdout is not None and child.stderr is not None
        printed: list[str] = []
        reader = threading.Thread(target=lambda out: printed.append(out.read()), args=[child.stdout])
        reader.start()
        failure = ""
        try:
            for line in child.stderr:
                failure = line[len(_ERROR) :].rstrip() if line.startswith(_ERROR) else failure
                told(line)
        except BaseException:  # of the user's function, or Ctrl-C
            child.terminate()
            raise
        finally:
            reader.join()
            child.wait()
    if child.returncode == _INTERRUPTED:
        raise Interrupted(failure)
    if child.returncode != 0:
        raise make(_KINDS.get(child.returncode, "internal"), failure or f"{_COMMAND.name} ended with {child.returncode}", "")
    return json.loads("".join(printed), object_hook=_number)


def _number(found: dict[str, Any]) -> Any:
    return float(found["float"]) if found.keys() == {"float"} else found


@functools.cache
def _rows() -> list[_Options]:
    options: list[_Options] = _run(["options"])["options"]
    return [row for row in options if row["of_library"]]


def _path_of(row: _Options) -> str:
    return str(row["path"]).removeprefix("config.")


def _text(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fsdecode(os.fspath(value))
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value if isinstance(value, str | bool | int | float) or value is None else str(value)


def _entry(row: _Options, value: Any) -> Any:
    """The value as a file of --config has it."""
    if row["type"] == "shapes":
        return [f"{name}:{'x'.join(map(str, shape))}" for name, shape in value.items()]
    if isinstance(value, Mapping):
        raise UsageError(f"{_path_of(row)} is a dict, which this package cannot hand to the command", "give single values")
    if not isinstance(value, str) and isinstance(value, Sequence):
        texts = [_text(entry) for entry in value]
        return ",".join(map(str, texts)) if row["type"] in ("pair", "numbers", "devices") else texts
    return _text(value)


def _overrides(values: Sequence[Mapping[str, Any]]) -> _Options:
    """Entries of `overrides` as --tensor-method and --tensor-range."""
    methods = [f"{v['tensor']}={v['method']}" for v in values if v.get("method") is not None]
    ranges = [f"{v['tensor']}={v['range'][0]!r},{v['range'][1]!r}" for v in values if v.get("range") is not None]
    return {name: given for name, given in (("tensor-method", methods), ("tensor-range", ranges)) if given}


def _settings(command: str, options: Mapping[str, Any], group: str = "") -> tuple[list[str], _Options]:
    """The arguments without a name, and what a file of --config says for the others."""
    rows = {_path_of(row): row for row in _rows() if command in row["commands"]}
    words: list[str] = []
    named: _Options = {}
    for name, value in options.items():
        path = f"{group}.{name}" if group else name
        value = value.to_dict() if hasattr(value, "to_dict") else value
        row = rows.get(path)
        is_all = path == "max_samples" and value == 0 and command in ("compare", "verify", "bench")
        if value is None or is_all or path in ("command", "program"):
            continue
        if path == "overrides":
            named |= _overrides([v.to_dict() if hasattr(v, "to_dict") else v for v in value])
        elif row is None and isinstance(value, Mapping) and any(known.startswith(path + ".") for known in rows):
            named |= _settings(command, value, path)[1]
        elif row is None:
            raise UsageError(f"there is no option '{path}', or it takes a function, which only the package for Linux can call")
        elif row["name"].isupper():
            words += [_text(v) for v in value] if row["type"] == "paths" else [_text(value)]
        else:
            named[row["name"]] = _entry(row, value)
    return words, named


@contextlib.contextmanager
def _samples(given: Any, folder: str, options: _Options) -> Iterator[list[str]]:
    """Words that name the samples, which a stream has written below `folder` first."""
    if given is None:
        yield []
    elif isinstance(given, dict):  # Pictures
        size = ["--image-size", str(given["size"])] if given["size"] else []
        yield ["--images", given["folder"], "--image-preset", given["preset"], *size]
    else:
        import numpy as np

        place = pathlib.Path(folder) / "samples"
        place.mkdir()
        limit, count = options.get("max_samples") or math.inf, 0
        while count < limit and (sample := given.next()) is not None:
            names = given.inputs() if "" in sample else []
            arrays = {name or names[0]: np.asarray(array) for name, array in sample.items()}
            np.savez(place / f"{count:08}.npz", **arrays)  # type: ignore[arg-type]
            count += 1
        yield ["--calibration-data", os.fspath(place)]


def _call(command: str, options: _Options, samples: Any = None, progress: _Progress = None) -> _Options:
    def told(line: str) -> None:
        if progress is not None and (found := _PROGRESS.match(line)):
            progress(found[1], int(found[2]), int(found[3]))

    with tempfile.TemporaryDirectory(prefix="detent-") as folder:
        with _samples(samples, folder, options) as words:
            places, named = _settings(command, options)
            file = pathlib.Path(folder) / "options.yaml"
            file.write_text(json.dumps(named), encoding="utf-8")  # of which YAML is made as well
            made: _Options = _run([command, *places, "--config", file, "--set", "json-members", *words], told)
    return made


class Profiler:
    """A profile of several runs needs the library in this process."""

    def __init__(self, yaml: _Path | None) -> None:
        raise UsageError("detent.Profiler is not in this package", "give profile= the path of a file")


def _without(profiler: Profiler | None) -> None:
    if profiler is not None:
        raise UsageError("this package takes no Profiler", "give profile= the path of a file")


def quantize(options: _Options, samples: object | None, progress: _Progress, profiler: Profiler | None) -> _Options:
    _without(profiler)
    return _call("quantize", options, samples, progress)


def calibrate(options: _Options, samples: object | None, progress: _Progress, profiler: Profiler | None) -> _Options:
    _without(profiler)
    return _call("calibrate", options, samples, progress)


def plan(options: _Options, samples: object | None, progress: _Progress) -> _Options:
    return _call("plan", options, samples, progress)


def compare(options: _Options, samples: object | None, progress: _Progress) -> _Options:
    return _call("compare", options, samples, progress)


def bench(options: _Options, samples: object | None, progress: _Progress) -> _Options:
    return _call("bench", options, samples, progress)


def search(options: _Options, samples: object | None, progress: _Progress) -> _Options:
    return _call("search", options, samples, progress)


def check(options: _Options) -> _Options:
    return _call("check", options)


def inspect(options: _Options) -> _Options:
    return _call("inspect", options)


def verify(options: _Options, samples: object | None, progress: _Progress, consumer: object | None) -> _Options:
    if consumer is not None:
        raise UsageError("this package compares with no runtime but ONNX Runtime", "leave out consumer")
    return _call("verify", options, samples, progress)


def merge(inputs: Sequence[_Path], output: _Path) -> _Options:
    made: _Options = _run(["calibrate", "--merge", *inputs, "-o", output, "--set", "json-members"])
    return made


def histograms(statistics: _Path) -> dict[str, tuple[list[float], list[float], list[int], float, float]]:
    raise UsageError("methods of one's own are not in this package", "use the package for Linux, or a method of detent's")


def parse_devices(text: str) -> Sequence[int]:
    if text != "cpu":
        raise UsageError(f"device '{text}': this package computes on the CPU alone", "give cpu")
    return []


def format_size(bytes: int) -> str:
    size, unit = float(bytes), 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{bytes} B" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"


@functools.cache
def option_names() -> Mapping[str, Sequence[str]]:
    names: dict[str, list[str]] = {}
    for row in _rows():
        for command in row["commands"]:
            name = _path_of(row).partition(".")[0]
            if name not in names.setdefault(command, []):
                names[command].append(name)
    return names


def end_runs() -> None:
    """Runs are processes of their own, which their calls wait for."""


def schema() -> str:
    return json.dumps(_run(["options"]))


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(name)
    command = [os.fspath(_COMMAND), "--version"]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.split()[-1]
