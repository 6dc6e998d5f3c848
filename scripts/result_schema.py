"""The fields of results, read off the public headers: each member of a result's struct, with its comment.

A comment that starts with "[bytes]" or the like names the unit, which JSON has behind the member's name; one that ends with
"(since 0.2)" the version that brought the member. generate_options.py writes from here what C++ and Python have of each field.
"""

from __future__ import annotations

import pathlib
import re
import textwrap
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEADERS = ["latency", "stage_report", "transformer", "quantize", "calibrate", "compare", "inspect", "check", "verify", "bench"]
HEADERS += ["search", "plan"]
#: What is no member's name with its unit in JSON; "": left to those who write it, or out.
JSON = {
    ("TensorParams", "range_min"): "min",
    ("TensorParams", "range_max"): "max",
    ("Transformer", "is_tied"): "tied",
    ("Plan", "work_bytes"): "work_dir_bytes",
    **{("QuantizeResult", name): "" for name in ("repeated_samples", "conditions", "rank", "ranks", "received_bytes", "family")},
    **{("SearchResult", name): "" for name in ("rank", "ranks")},
    **{("Plan", name): "" for name in ("name", "shares", "inputs", "family")},
    **{("Inspection", name): "" for name in ("heaviest", "peak_at", "runtime")},
    ("CalibrateResult", "rank"): "",
    ("LayerTuning", "seen"): "",
    ("Fidelity", "worst_sample_db"): "",
    ("BenchedModel", "latency"): "",
}
PYTHON = {"StageReport": "Stage", "TensorParams": "Activation", "LayerTuning": "TunedLayer", "ValueReport": "Value"}
PYTHON |= {"LayerReport": "Layer", "PlannedSegment": "Segment"}
#: Of several processes, of the graph, or put elsewhere.
NOT_IN_PYTHON = {"seen", "repeated_samples", "conditions", "transformer", "rank", "ranks", "received_bytes", "shares"}
#: Classes that the C++ library has alone.
CPP_ALONE = {"Transformer", "TransformerLayer", "VocabularyWeight", "FamilyMember", "PlannedShare"}
ADDED = {
    "QuantizeResult": [("output", "str", 'path; "" if the model was returned as bytes')],
    "CalibrateResult": [("output", "str", "path")],
    "SearchResult": [("folder", "str", "with front.json, front.html and the chosen models")],
    "TensorParams": [("name", "str", "")],
    "VerifiedOutput": [("name", "str", "")],
}
#: What calls return, and what prints itself as they do.
PRINTED = {"QuantizeResult", "CalibrateResult", "Comparison", "Plan", "CheckResult", "Inspection", "Verification", "BenchResult"}
PRINTED |= {"SearchResult", "AccuracyResult"}
WITH_TEXT = {"NextTokens", "Outcome", "LatencyChange"}
#: Rows that are shown as a table.
TABLES = {"BlockedWeight", "EqualizedValue", "MethodChoice", "FallbackNode", "Sensitivity", "Fidelity", "CheckedNode"}
TABLES |= {"QuantizedProduct", "PlannedMemory", "PlannedWeight", "VerifiedOutput", "VerifiedLayer", "OperatorTime", "BenchedModel"}
TABLES |= {"SearchPoint", "ServingMachine", *PYTHON}
LINE = 132
FIRST_VERSION = "0.1"
MEMBER = re.compile(r"^  ((?:std::|[A-Z])[\w:]*(?:<.*>)?|bool|double|float|int) (\w[^(]*?);(?:\s*// ?(.*))?$")


class Field(NamedTuple):
    name: str
    type: str  # of C++, without std::
    unit: str
    meaning: str
    since: str
    json: str


class Struct(NamedTuple):
    name: str
    meaning: str
    fields: list[Field]


def field_of(struct: str, name: str, kind: str, comment: str) -> Field:
    unit, meaning = re.match(r"(?:\[(\w+)\] ?)?(.*)", comment).groups()  # type: ignore[union-attr]
    since = re.search(r" ?\(since ([\d.]+)\)$", meaning)
    meaning = meaning[: since.start()] if since else meaning
    json = JSON.get((struct, name), f"{name}_{unit}" if unit else name)
    return Field(name, kind.replace("std::", ""), unit or "", meaning, since[1] if since else FIRST_VERSION, json)


def structs() -> list[Struct]:
    """All structs of results, in the order of the headers."""
    found = []
    for header in HEADERS:
        text = (ROOT / f"include/detent/{header}.h").read_text()
        for match in re.finditer(r"((?:^//[^\n]*\n)*)^struct (\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
            about, name, body = match.groups()
            if name.endswith("Options"):
                continue
            meaning = " ".join(line.lstrip("/ ") for line in about.splitlines())
            found.append(Struct(name, meaning, list(fields(name, body))))
    return found


def fields(struct: str, body: str) -> list[Field]:
    found: list[Field] = []
    above: list[str] = []
    for line in body.splitlines():
        if re.match(r"  //", line):
            above.append(line.lstrip(" /"))
        elif re.match(r"   +//", line) and found and not above:
            found[-1] = found[-1]._replace(meaning=f"{found[-1].meaning} {line.lstrip(' /')}")
        elif member := MEMBER.match(line):
            kind, names, beside = member.groups()
            comment = " ".join([*above, *([beside] if beside else [])])
            for name in re.sub(r" = [^,]*|\{[^}]*\}", "", names).split(", "):
                found.append(field_of(struct, name, kind, comment))
            above = []
        else:
            above = []
    return found


# --- C++ ----------------------------------------------------------------------------------------------------------------


def cpp() -> str:
    """The list of fields that config/results.h reads."""
    lines = ["// Written by scripts/generate_options.py from include/detent/; do not edit.", "#pragma once", ""]
    lines += ["// clang-format off", "namespace detent::config {", "", "#define M(member) field(#member, &S::member)"]
    lines += ["#define N(member, json) field(#member, &S::member, json)", ""]
    for struct in structs():
        rows = [f'N({f.name}, "{f.json}")' if f.json != f.name else f"M({f.name})" for f in struct.fields]
        all_rows = f"static constexpr std::tuple all{{{', '.join(rows)}}};"
        text = f"template <> struct Fields<{struct.name}> {{ using S = {struct.name}; {all_rows} }};"
        lines += textwrap.wrap(text, 120, subsequent_indent="  ", break_long_words=False)
    return "\n".join([*lines, "", "#undef M", "#undef N", "", "}  // namespace detent::config", "// clang-format on", ""])


# --- Python -------------------------------------------------------------------------------------------------------------

HEAD = '''"""Results of runs. Written by scripts/generate_options.py from the public headers; do not edit."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from . import _shown
from ._shown import Result
from ._tables import Table
'''


def python_name(struct: str) -> str:
    return PYTHON.get(struct, struct)


def python_type(kind: str, own: str) -> str:
    outer, _, inner = kind.partition("<")
    inner = inner.removesuffix(">")
    if outer == "optional":
        return f"{python_type(inner, own)} | None"
    if outer == "vector" and inner in ("FamilyMember", "Plan"):
        return f"dict[str, {own}]"
    if outer == "vector":
        return f"{'Table' if inner in TABLES else 'list'}[{python_type(inner, own)}]"
    if outer == "map":
        value = inner.split(", ")[1]
        return f"Table[{python_name(value)}]" if value in TABLES else f"dict[str, {python_type(value, own)}]"
    if outer == "pair":
        return f"tuple[{', '.join(python_type(part, own) for part in inner.split(', '))}]"
    if outer in ("string", "filesystem::path") or outer in ("Verdict", "Answer"):
        return "str"
    if outer in ("double", "float"):
        return "float"
    return "bool" if outer == "bool" else "int" if re.match(r"u?int|size_t", outer) else python_name(outer)


def python_class(struct: Struct) -> list[str]:
    printed = struct.name in PRINTED
    lines = ["", ""] + (["@dataclasses.dataclass(eq=False, repr=False)"] if printed else [])
    lines.append(f"class {python_name(struct.name)}({'Result' if printed else 'NamedTuple'}):")
    lines += textwrap.wrap(f'"""{struct.meaning}"""', LINE - 4, initial_indent="    ", subsequent_indent="    ") + [""]
    rows = [(f.name, python_type(f.type, struct.name), f.meaning) for f in struct.fields if f.name not in NOT_IN_PYTHON]
    rows = [row for row in rows if (struct.name, row[0]) != ("Plan", "name")]
    for name, kind, meaning in [*ADDED.get(struct.name, []), *rows]:
        line = f"    {name}: {kind}" + (f"  #: {meaning}" if meaning else "")
        if len(line) > LINE:
            lines += textwrap.wrap(meaning, LINE - 7, initial_indent="    #: ", subsequent_indent="    #: ")
            line = f"    {name}: {kind}"
        lines.append(line)
    if struct.name in WITH_TEXT:
        lines += ["", "    def __str__(self) -> str:", f'        return _shown.TEXTS["{struct.name}"](self)']
    return lines


def python() -> str:
    lines = HEAD.splitlines()
    for struct in structs():
        if struct.name not in CPP_ALONE:
            lines += python_class(struct)
    return "\n".join(lines) + "\n"


# --- Documentation ------------------------------------------------------------------------------------------------------

ABOUT = """# Results

What calls of the Python package and `--json` of the commands tell, written by `scripts/generate_options.py` from
`include/detent/`, where the C++ library has the same. JSON leaves out what was not done and lists without entries; a
number that is not finite, and a count that is not known, is null. Sizes are in bytes, times in seconds.
"""


def markdown() -> str:
    lines = ABOUT.splitlines()
    for struct in structs():
        named = [f for f in struct.fields if f.json or f.name not in NOT_IN_PYTHON]
        if not named or struct.name == "FamilyMember":
            continue
        lines += ["", f"## {python_name(struct.name)}", *textwrap.wrap(struct.meaning, 120)]
        lines += ["", "| field | JSON | type | meaning |", "|---|---|---|---|"]
        for f in named:
            kind = python_type(f.type, struct.name).replace("|", "\\|")
            since = f" (since {f.since})" if f.since != FIRST_VERSION else ""
            json = "–" if not f.json else f"`{f.json}`" if f.json != f.name else ""
            lines.append(f"| `{f.name}` | {json} | {kind} | {f.meaning.replace('|', chr(92) + '|')}{since} |")
    return "\n".join(lines) + "\n"
