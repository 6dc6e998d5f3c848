#!/usr/bin/env python3
"""generate_options.py DETENT [--check]: what is written from the schema of options, which DETENT (the built binary) prints.

Writes the Python classes of options, docs/options.md, the man pages and the completions of bash, zsh and fish; and what C++,
Python and docs/results.md have of results (result_schema.py). With --check nothing is written; the exit code says whether all
files are up to date.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any

import result_schema

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMANDS = {
    "quantize": "write a quantized model",
    "calibrate": "write the statistics of a model's activations",
    "plan": "tell what quantize would do and take",
    "compare": "compare a quantized model with its float original",
    "inspect": "tell what a model consists of",
    "bench": "time models side by side",
    "check": "tell what a target makes of each node",
    "search": "find the smallest, fastest and most accurate of all formats and their mixtures",
    "verify": "show what the runtime makes of a quantized model, beside exact integers",
}
Option = dict[str, Any]
LINE = 132


def names_of(option: Option) -> list[str]:
    """Names as on the command line: those that take the option's side, then the opposite."""
    if option["name"].isupper():
        return []
    dashes = "--set " if option["detail"] else "--"
    return [dashes + option["name"]] + ([dashes + option["off"]] if option["off"] else [])


# --- Python -------------------------------------------------------------------------------------------------------------

HEAD = '''"""Options of the native library as dataclasses. Written by scripts/generate_options.py; do not edit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ._base import Options, Path, Size
'''
OVERRIDE = '''

@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorOverride(Options):
    """What is done differently for one activation, or for those whose names match a pattern that starts with '^'."""

    tensor: str
    method: MethodName | None = None
    range: tuple[float, float] | None = None  #: min, max
'''
# Class, base, member of QuantizeOptions that it stands for, which rows (by `only`), what choosing it sets, first line.
METHODS = [
    ("MinMax", "minmax", "The range from the smallest to the largest value."),
    ("Percentile", "percentile", "The range that keeps this percentage of the values."),
    ("LayerwisePercentile", "layerwise-percentile", "For each tensor the percentile, of the candidates, with the smallest error."),
    ("Mse", "mse", "The range with the smallest mean squared error."),
    ("Entropy", "entropy", "The range whose quantized distribution is nearest to the float one (Kullback-Leibler)."),
]
TUNINGS = [
    ("AdaRound", "adaround", "Each weight rounded up or down so that the layer's output stays close (Nagel et al., 2020)."),
    ("AdaQuant", "adaquant", "The weights themselves are moved before they are rounded (Hubara et al., 2020)."),
    ("Gptq", "gptq", "Columns rounded one after another, each making up for the errors before it (Frantar et al., 2022)."),
]
WEIGHTS_ONLY = "Weights in blocks that have a scale each. Samples are not needed, but make the result better."
KV_CACHE = "A decoder's cache of keys and values in fewer bits, with scales from the samples."
RESOURCES = "Memory and disk that a run may take. Nothing here changes the result."
DEVICE = "GPUs for calibration (on the first) and fine-tuning; everything else stays on the CPU."
CONFIG = "Everything that decides what becomes of a model. What is not set is as on the command line."
# Fields of Config that take other classes.
NESTED = {
    "method": ("Method | MethodName | None", "calibration method, by class or by name"),
    "overrides": ("Sequence[TensorOverride] | None", "what is done differently for single activations"),
    "accuracy": ("Accuracy | None", "what is measured of accuracy, and what for"),
    "finetune": ("Finetune | RoundingName | None", "fine-tuning of weights, by class or by name"),
    "weights_only": ("WeightsOnly | bool | None", "quantize weights alone, in blocks; activations stay in float"),
    "kv_cache": ("KvCache | str | None", 'a decoder keeps keys and values in fewer bits, by class or as in "int8"'),
    "resources": ("Resources | None", "memory and disk that the run may take"),
    "device": ("Device | str | None", 'where calibration and fine-tuning compute, by class or as in "cuda:0"'),
}
CALLS = {"model", "output", "calibration_data", "statistics", "external_data_threshold", "prepared_output", "profile", "report"}
CALLS |= {"trace", "runtime"}
TYPES = {
    **{"flag": "bool", "integer": "int", "number": "float", "size": "Size", "text": "str", "path": "Path"},
    **{"texts": "Sequence[str]", "numbers": "Sequence[float]", "pair": "tuple[float, float]", "devices": "Sequence[int]"},
    "shapes": "Mapping[str, Sequence[int]]",
}


def python_type(option: Option) -> str:
    if option["type"] in ("choice", "choices"):
        words = ", ".join(word if word.isdigit() else f'"{word}"' for word in option["words"])
        return f"Literal[{words}]" if option["type"] == "choice" else f"Sequence[Literal[{words}]]"
    return TYPES[option["type"]]


def python_value(option: Option) -> str:
    value = option["value"]
    if isinstance(value, list):
        return repr(tuple(value))
    if isinstance(value, str):
        return value if value.isdigit() else f'"{value}"'
    return repr(value)


def documented(first: str, options: list[tuple[str, str]]) -> list[str]:
    """A docstring: its first line, and a line for each attribute."""
    if not options:
        return [f'    """{first}"""', ""]
    lines = [f'    """{first}', "", "    Attributes:"]
    for name, text in options:
        lines += textwrap.wrap(f"{name}: {text}", 124, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False)
    return [*lines, '    """', ""]


def one_of(classes: str, names: str, rows: list[tuple[str, str, str]], more: list[str]) -> list[str]:
    """The type of one of several classes, and the type of their names."""
    words = ", ".join(f'"{word}"' for word in [*more, *(word for _, word, _ in rows)])
    return ["", "", f"{classes} = {' | '.join(name for name, _, _ in rows)}", f"{names} = Literal[{words}]"]


def explained(option: Option) -> str:
    text = option["help"] + (f"; {option['off_help']} if False" if option["off"] else "")
    default = option["default"].replace("--preset plain", "plain")
    if option["type"] == "flag":
        default = "" if option["value"] is not None else default
    return f"{text} (default: {default})" if default else text


def in_lines(field: str, kind: str) -> str:
    """A field whose type is too long for a line, as ruff formats it."""
    if len(f"    {field}: {kind} | None = (") <= LINE:
        return f"    {field}: {kind} | None = (\n        None\n    )"
    if len(kind) <= LINE - len("         | None"):
        return f"    {field}: (\n        {kind} | None\n    ) = None"
    words = "".join(f"            {word},\n" for word in kind.removeprefix("Literal[").removesuffix("]").split(", "))
    return f"    {field}: (\n        Literal[\n{words}        ]\n        | None\n    ) = None"


def python_class(
    name: str,
    base: str,
    first: str,
    options: list[Option],
    chosen: str = "",
    unset: bool = False,
    inherited: list[Option] | None = None,
) -> list[str]:
    """A dataclass; with `unset` its fields are None until they are given. Help lists the inherited fields as well."""
    fields = [(option["path"].split(".")[-1], option) for option in options]
    above = [(option["path"].split(".")[-1], option) for option in inherited or []]
    lines = ["", "", "@dataclasses.dataclass(frozen=True, kw_only=True)", f"class {name}({base}):"]
    lines += documented(first, [(field, explained(option)) for field, option in fields + above])
    if chosen:
        lines.append(f"    _chosen = {chosen}")
    for field, option in fields:
        optional = unset or option["value"] is None
        if name == "Config" and field in NESTED:
            lines.append(f"    {field}: {NESTED[field][0]} = None")
        elif name == "Device" and field == "cuda":
            lines.append("    cuda: Sequence[int] = (0,)")
        elif name == "Accuracy" and field == "metric":
            lines.append(f"    metric: {python_type(option)} | Callable[[str], float] | None = None")
        else:
            kind = python_type(option)
            line = f"    {field}: {kind} | None = None" if optional else f"    {field}: {kind} = {python_value(option)}"
            lines.append(line if len(line) <= LINE else in_lines(field, kind))
    if lines[-1] == "":
        lines.pop()
    return lines


def python_text(options: list[Option]) -> str:
    def of(group: str) -> list[Option]:
        return [o for o in options if o["path"].startswith(group + ".") and o["of_library"]]

    def read_by(rows: list[Option], method: str) -> list[Option]:
        return [o for o in rows if method in o["only"].split(", ")]

    lines = HEAD.splitlines()
    for name, word, first in METHODS:
        lines += python_class(name, "Options", first, read_by(of("method"), word), f'{{"method": "{word}"}}')
    lines += one_of("Method", "MethodName", METHODS, []) + OVERRIDE.splitlines()
    everyone = [o for o in of("finetune") if not o["only"] and o["path"] != "finetune.rounding"]
    lines += python_class("Tuning", "Options", "What all ways of fine-tuning have in common.", everyone)
    for name, word, first in TUNINGS:
        lines += python_class(name, "Tuning", first, read_by(of("finetune"), word), f'{{"rounding": "{word}"}}', inherited=everyone)
    lines += one_of("Finetune", "RoundingName", TUNINGS, ["auto", "nearest"])
    blocks = [o for o in of("weights_only") if o["path"] != "weights_only.enabled"]
    lines += python_class("WeightsOnly", "Options", WEIGHTS_ONLY, blocks, '{"enabled": True}')
    lines += python_class("KvCache", "Options", KV_CACHE, of("kv_cache"))
    lines += python_class("Accuracy", "Options", "What is measured of accuracy, and what for.", of("accuracy"), unset=True)
    lines += python_class("Resources", "Options", RESOURCES, of("resources"))
    lines += python_class("Device", "Options", DEVICE, of("device"))
    top: dict[str, Option] = {}
    for option in options:
        path = option["path"].removeprefix("config.")
        name = path.split(".")[0]
        if "quantize" in option["commands"] and option["of_library"] and name not in CALLS and name not in top:
            nested = {"help": NESTED[name][1], "off": "", "default": "", "type": "", "value": None} if name in NESTED else {}
            top[name] = {**option, **nested, "path": name}
    lines += python_class("Config", "Options", CONFIG, list(top.values()), unset=True)
    return "\n".join(lines) + "\n"


# --- Documentation ------------------------------------------------------------------------------------------------------


def spelled(option: Option) -> str:
    if option["name"].isupper():
        return f"`{option['name']}`"
    label = option["label"] and ("=" if option["detail"] else " ") + option["label"]
    letter = f"{option['letter']}, " if option["letter"] else ""
    return ", ".join(f"`{letter}{name}{label}`" for name in names_of(option))


def conflict_rows(conflicts: list[dict[str, str]]) -> list[str]:
    """Each refusal once, with the options whose values it tells by name."""
    rows = {(re.sub(r"\{[^}]+\}", "…", c["why"]), c["hint"]): None for c in conflicts}
    return [f"| {why} | {hint} |" for why, hint in rows]


def markdown(options: list[Option], presets: list[dict[str, str]], conflicts: list[dict[str, str]]) -> str:
    lines = [
        "# Options",
        "",
        "All options, written by `scripts/generate_options.py` from the schema in `src/config/`. In a YAML file (`--config`) an",
        "option is spelled as here without the dashes. In Python, `detent.Config` has the field in the third column. Options",
        "that few people need are in no help: give them by `--set NAME=VALUE`.",
        "",
        "The same is in the man pages, `detent-quantize(1)` and so on. Completions for bash, zsh and fish are beside them in",
        "`share/`, and `detent completions bash` prints them.",
        "",
        "| preset | what it means |",
        "|---|---|",
        *(f"| `{preset['name']}` | {preset['help']} |" for preset in presets),
    ]
    for group in dict.fromkeys(option["group"] for option in options):
        lines += ["", f"## {group}", "", "| option | what it does | Python | commands | default |", "|---|---|---|---|---|"]
        for option in (o for o in options if o["group"] == group):
            python = f"`{option['path'].removeprefix('config.')}`" if option["of_library"] else ""
            text = option["full_help"] + (f"; `{names_of(option)[1]}`: {option['off_help']}" if option["off"] else "")
            cells = [spelled(option), text, python, ", ".join(option["commands"]), option["default"]]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "## Options that do not go together", "", "`detent quantize` and `detent plan` refuse these with exit code 2."]
    lines += ["", "| why | what to change |", "|---|---|", *conflict_rows(conflicts)]
    return "\n".join(lines) + "\n"


def roff(text: str) -> str:
    return text.replace("\\", "\\\\").replace("-", "\\-").replace("…", "...").replace("'", "\\(aq")


EXIT_CODES = "0 done, 2 usage, 3 bad model or data, 4 out of memory or disk, 5 runtime or device, 130 interrupted, 1 a bug."


def man_of_all() -> str:
    lines = [
        '.TH DETENT 1 "" "detent" "User Commands"',
        ".SH NAME",
        "detent \\- quantize ONNX models after training",
        ".SH SYNOPSIS",
        ".B detent\n\\fICOMMAND\\fR [options]",
        ".SH COMMANDS",
    ]
    for command, what in COMMANDS.items():
        lines += [".TP", f".BR detent\\-{command} (1)", roff(what)]
    return "\n".join([*lines, ".SH EXIT STATUS", EXIT_CODES]) + "\n"


def man(command: str, options: list[Option]) -> str:
    taken = [option for option in options if command in option["commands"]]
    words = " ".join(f"\\fI{option['name']}\\fR" for option in taken if option["name"].isupper())
    lines = [
        f'.TH DETENT\\-{command.upper()} 1 "" "detent" "User Commands"',
        ".SH NAME",
        f"detent\\-{command} \\- {roff(COMMANDS[command])}",
        ".SH SYNOPSIS",
        f".B detent {command}\n{words} [options]",
    ]
    for group in dict.fromkeys(option["group"] for option in taken):
        lines.append(f".SH {group.upper()}")
        for option in (o for o in taken if o["group"] == group):
            names = roff(", ".join(names_of(option)) or option["name"])
            between = "=" if option["detail"] else " "
            lines += [".TP", f".B {names}" + (f"{between}\\fI{roff(option['label'])}\\fR" if option["label"] else "")]
            default = f" (default: {option['default']})" if option["default"] else ""
            other = f"; {names_of(option)[1]}: {option['off_help']}" if option["off"] else ""
            lines.append(roff(f"{option['full_help']}{other}{default}."))
    return "\n".join([*lines, ".SH EXIT STATUS", EXIT_CODES, ".SH SEE ALSO", ".BR detent (1)"]) + "\n"


def printed(binary: str, *words: str) -> str:
    return subprocess.run([binary, *words], check=True, capture_output=True, text=True).stdout


def files(binary: str) -> dict[str, str]:
    schema = json.loads(printed(binary, "options"))
    options = schema["options"]
    return {
        "python/detent/_options.py": python_text(options),
        "python/detent/_results.py": result_schema.python(),
        "src/config/result_fields.h": result_schema.cpp(),
        "docs/results.md": result_schema.markdown(),
        "docs/options.md": markdown(options, schema["presets"], schema["conflicts"]),
        "share/man/man1/detent.1": man_of_all(),
        **{f"share/man/man1/detent-{command}.1": man(command, options) for command in COMMANDS},
        "share/bash-completion/completions/detent": printed(binary, "completions", "bash"),
        "share/zsh/site-functions/_detent": printed(binary, "completions", "zsh"),
        "share/fish/vendor_completions.d/detent.fish": printed(binary, "completions", "fish"),
    }


def main() -> int:
    binary, *flags = sys.argv[1:]
    stale = []
    for name, text in files(binary).items():
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in flags:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for name in stale:
        print(("not up to date: " if "--check" in flags else "wrote ") + name)
    return 1 if stale and "--check" in flags else 0


if __name__ == "__main__":
    sys.exit(main())
