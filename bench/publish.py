#!/usr/bin/env python3
"""Makes the tables and pictures of measured figures in docs/ and README.md.

  publish.py [--only NAME]...       run the commands of these tables (default: all that have one), write data and pages
  publish.py --only NAME --table FILE --command TEXT    take a table that was made otherwise: "-" reads standard input
  publish.py --pages                write the pages again from bench/published.json
  publish.py --check                list what pages show that no run made, or that is not as it was made
  publish.py --list                 names, dates and commands

Figures stand between '<!-- figures NAME -->' and '<!-- end -->' in a page. The tables in README.md are views: they take
cells of other tables. A page may show no other table of measured figures."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = "bench/published.json"
BLOCK = re.compile(r"<!-- figures ([\w.-]+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
# The command that prints a table in Markdown, as the last one of its output.
COMMANDS = {
    "peaks": "bench/headline.py --json build/peaks.json",
    "peaks-32": "bench/headline.py --only-default --samples 32",
    "npu-targets": "bench/npu.py",
    "rotation": "bench/rotation.py",
    "families": "bench/family.py --rounds 1",
    "encoder": "bench/encoder.py",
}
PICTURES = {"peaks": "bench/headline_picture.py build/peaks.json docs/peaks.svg"}
# Tables that take their cells from others: the head, and of each row its name and (table, row, column) of each cell.
PEAKS = [("peaks", "plain inference"), ("peaks", "minmax"), ("peaks", "default preset"), ("peaks-32", "default preset"),
         ("peaks", "quantize_static, minmax"), ("peaks", "AMD Quark, published")]  # fmt: skip
PEAKED = ("ConvNeXt-T", "DETR-R50", "ESRGAN", "SAM 2 image encoder", "SAM 2 mask decoder", "BLIP image encoder",
          "BLIP text decoder", "ResNet-50", "YOLOv8n")  # fmt: skip
# The model's name in README, the table of its scores and the column there, and its row among the latencies.
SCORED = [
    ("PP-OCR text direction", "scores-default", "direction", "direction (PP-OCR)"),
    ("PP-OCR text detector", "scores-default", "detector", "detector (PP-OCR)"),
    ("PP-OCR recognizer", "scores-unseen", "lines", "lines (PP-OCR recognizer)"),
    ("open_nsfw, digits", "scores-default", "digits", "digits (open_nsfw)"),
    ("MiniLM sentence encoder", "scores-default", "MiniLM, all operators", "MiniLM"),
    ("Magika file types", "scores-unseen", "files", "files (Magika)"),
    ("Silero speech detector", "scores-unseen", "speech", "speech (Silero VAD)"),
]
VIEWS = {
    "readme-peaks": (
        "| peak memory, MB | plain inference | detent, minmax | detent, default | default, 32 samples | quantize_static, minmax | "
        "AMD Quark, published |",
        [(name, [(table, name, column) for table, column in PEAKS]) for name in PEAKED],
    ),
    "readme-scores": (
        "| model | score: float | detent | quantize_static | AMD Quark | latency: detent | quantize_static |",
        [
            (
                name,
                [
                    *((scores, tool, column) for tool in ("float", "detent", "quantize_static", "Quark")),
                    *(("latency", row, tool) for tool in ("default", "quantize_static")),
                ],
            )
            for name, scores, column, row in SCORED
        ],
    ),
}


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def cell(data, table, row, column):
    """What stands there, without emphasis, of wall and processor time the former; "-" where there is no such row."""
    head, _, *rows = map(cells_of, data[table]["table"])
    found = next((cells for cells in rows if cells[0] == row), None)
    return "-" if found is None else re.sub(r"\*\*| / .*", "", found[head.index(column)]) or "-"


def lines_of(data, name):
    """A table as its page shows it, with the line below it that says where it comes from."""
    if name not in VIEWS:
        entry = data[name]
        origin = [entry["date"], *(entry[key] for key in ("commit", "machine") if entry.get(key))]
        command = f": `{entry['command']}`" if entry.get("command") else ""
        caption = f"*{', '.join(origin)}{command}*"
        return [*entry["table"], "", *textwrap.wrap(caption, 120, break_long_words=False, break_on_hyphens=False)]
    head, rows = VIEWS[name]
    sources = sorted({data[table]["date"] for _, given in rows for table, _, _ in given})
    table = [head, "|---" * len(cells_of(head)) + "|"]
    table += [f"| {row} | {' | '.join(cell(data, *place) for place in given)} |" for row, given in rows]
    return [*table, "", f"*Measured {sources[0]} to {sources[-1]}*"]


def pages(root):
    return [*sorted((root / "docs").rglob("*.md")), *root.glob("README.md")]


def filled(text, data):
    def fill(match):
        name = match[1]
        if name not in data and name not in VIEWS:
            return match[0]  # which violations() tells of
        return f"<!-- figures {name} -->\n" + "\n".join(lines_of(data, name)) + "\n<!-- end -->\n"

    return BLOCK.sub(fill, text)


FIGURE = re.compile(r"^[*~<>÷×+−-]*\s*(?:\d[\d,]*\.\d+|\.\d+|\d[\d,.]*\s?(?:%|ms|s|dB|[KMG]i?B)(?= |/|,|$))")


def shows_figures(table):
    return sum(bool(FIGURE.match(cell)) for line in table[2:] for cell in cells_of(line)) >= 5


def violations(root):
    """What pages show that no run made, a line each."""
    if not (root / DATA).is_file():
        return
    data = json.loads((root / DATA).read_text())
    shown = []
    for path in pages(root):
        text = path.read_text()
        where = path.relative_to(root).as_posix()
        for match in BLOCK.finditer(text):
            shown.append(match[1])
            known = match[1] in data or match[1] in VIEWS
            if not known or match[2] != "\n".join(lines_of(data, match[1])) + "\n":
                yield f"{where}: the figures '{match[1]}' are not those of the last run: bench/publish.py --pages"
        if "decisions" in path.parts or "written by `scripts/" in text[:300]:
            continue
        for table in re.findall(r"(?:^\|.*\n)+", BLOCK.sub("", text), re.MULTILINE):
            if shows_figures(table.splitlines()):
                yield f"{where}: figures that bench/publish.py did not make: {table.splitlines()[0][:60]}"
    yield from (f"{DATA}: no page shows '{name}'" for name in data if name not in shown)


def machine():
    info = pathlib.Path("/proc/cpuinfo")
    vnni = ", VNNI" if info.is_file() and "_vnni" in info.read_text() else ""
    return f"{os.cpu_count()} cores, {platform.machine()}{vnni}"


def commit():
    return subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def run(command):
    result = subprocess.run([sys.executable, *shlex.split(command)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"publish: exit status {result.returncode} from: {command}")
    return result.stdout


def measure(name, options):
    """The entry of a table, made now."""
    if options.table:
        text = sys.stdin.read() if options.table == "-" else pathlib.Path(options.table).read_text()
        command = options.command
    elif name in COMMANDS:
        command = COMMANDS[name]
        text = run(command)
    else:
        sys.exit(f"publish: '{name}' has no command of its own: give --table FILE --command TEXT")
    tables = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    if not tables:
        sys.exit(f"publish: no table in what this prints: {command}")
    if name in PICTURES:
        run(PICTURES[name])
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "commit": commit(), "machine": machine(), "command": command, "table": tables[-1].splitlines()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--table", metavar="FILE")
    parser.add_argument("--command", metavar="TEXT")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.check:
        sys.exit("\n".join(violations(ROOT)))
    data = json.loads((ROOT / DATA).read_text())
    if options.list:
        for name, entry in data.items():
            print(f"{name:24} {entry['date']}  {entry.get('command') or COMMANDS.get(name, '')}")
        return
    for name in [] if options.pages else options.only or COMMANDS:
        data[name] = measure(name, options)
        (ROOT / DATA).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    for path in pages(ROOT):
        text = path.read_text()
        if filled(text, data) != text:
            path.write_text(filled(text, data))


if __name__ == "__main__":
    main()
