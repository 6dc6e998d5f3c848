#!/usr/bin/env python3
"""Makes the tables and pictures of measured figures in docs/ and README.md.

  publish.py [--only NAME]...       run the commands of these tables (default: all that can run here), write data and pages
  publish.py --pages                write the pages again from bench/published.json
  publish.py --check                list what pages show that no run made, or that is not as it was made
  publish.py --list                 names, dates and commands

Figures stand between '<!-- figures NAME -->' and '<!-- end -->' in a page. The tables in README.md are views: they take
cells of other tables. A page may show no other table of measured figures. Commands with other tools name them by environment
variables (NEEDS)."""

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


def made(model, samples):
    """The commands that make a model of bench/models.py and its samples."""
    return f"bench/models.py {model} build/{model}.onnx && bench/make_samples.py build/{model}.onnx build/{model} -n {samples} && "


# The command that prints a table in Markdown, as the last one of its output, or as the first where MORE has the second.
COMMANDS = {
    "peaks": "bench/headline.py --json build/peaks.json",
    "peaks-32": "bench/headline.py --only-default --samples 32",
    "peak-and-time": "bench/run.py resnet50 bert build/models/ppocr_det.onnx,x:1x3x640x640 build/models/opennsfw.onnx rrdb "
    "--samples 8 --threads 2 --rounds 1 --peers minmax",
    "calibration-methods": "bench/calibration.py resnet50 --samples 4 --rounds 1 --quark-python $QUARK_PYTHON",
    "latency": "bench/latency.py lines detector direction digits minilm files speech --threads 1 2 --seconds 1",
    "networks-24": "$TORCH_PYTHON bench/architectures.py build/networks && bench/latency.py build/networks --threads 1 --seconds 1",
    "scores": "bench/scores.py",
    "scores-quark": "bench/scores.py --rows Quark --quark-python $QUARK_PYTHON",
    "formats": "bench/formats.py",
    "finetune-quark": "bench/finetune.py resnet18 --samples 32 --num-iterations 1000 --detent-settings nearest gptq adaround "
    "--quark-settings 'adaround 1' 'adaround 2' --quark-python $QUARK_PYTHON",
    "finetune-scores": "bench/finetune_scores.py direction digits detector --weight-types int8 int4 --rows nearest gptq",
    "decoder-4-bits": "bench/language.py --peer-python $PEER_PYTHON --hqq-python $PEER_PYTHON",
    "decoder-mixed": "bench/language.py --mixed",
    "rotation": "bench/rotation.py",
    "kv-caches": "bench/kv_caches.py",
    "families": "bench/family.py --rounds 1",
    "large-decoder": "bench/large_decoder.py build/large --shape 8b --samples 16 --length 128 --resume "
    "--options '--memory-budget 4GiB'",
    "encoder": "bench/encoder.py --peer-python $PEER_PYTHON",
    "small-floats": "bench/small_floats.py",
    "search-fronts": "bench/search.py direction digits detector minilm lines files speech --points 12",
    "networks-exporters": "scripts/sweep_networks.py --first 20001 --count 150 --each 3",
    "openvino": "bench/targets.py direction detector digits files lines minilm --openvino-python $OPENVINO_PYTHON",
    "htp": "bench/targets.py direction --samples 40 --qnn-python $QNN_PYTHON",
    "check-ort": "bench/targets.py direction detector digits files lines minilm --ort --preset plain",
    "gpu-adaround": made("resnet18", 16) + "bench/cuda_finetune.py build/resnet18.onnx build/resnet18/npz",
    "gpu-quark": "bench/finetune.py resnet18 --samples 16 --device cuda:0 --threads 16 --quark-settings 'adaround 1' "
    "--quark-python $CUDA_QUARK_PYTHON",
    "ranks": made("resnet50", 64)
    + "bench/network.py build/resnet50.onnx build/resnet50/npz --rate 1Gbit --preset plain --finetune gptq",
    "coverage": "tests/python/backend_models.py",
    "npu-targets": "bench/npu.py",
    "language-models-peers": "bench/language_models.py $SMOLLM2/smollm2.onnx $SMOLLM2/tokenizer.json $SMOLLM2/windows.npy "
    "--samples $SMOLLM2/ids.npy --peers default,k_quant,rtn,hqq,quark,olive-rtn,olive-k_quant --peer-python $QUARK_PYTHON "
    "--gguf $SMOLLM2/smollm2.gguf --requantize Q8_0,Q5_K_M,Q4_K_M --speed",
} | {f"recipe-{name}": f"bench/recipes.py {name}" for name in ("classifier", "detector", "encoder", "language-model", "voice")}
MORE = {"bits-by-size": "encoder", "coverage-reasons": "coverage"}
# What the variables name that commands read.
NEEDS = {
    "QUARK_PYTHON": "an interpreter with amd-quark, torch and onnxruntime",
    "CUDA_QUARK_PYTHON": "the same with torch for CUDA, on a machine with a GPU",
    "PEER_PYTHON": "an interpreter with onnxruntime, onnx, onnx_ir and torch",
    "TORCH_PYTHON": "an interpreter with torch, timm and onnxscript",
    "OPENVINO_PYTHON": "an interpreter with openvino, onnx and numpy",
    "QNN_PYTHON": "an interpreter with onnxruntime-qnn, onnxruntime, onnx and numpy",
    "SMOLLM2": "a folder with smollm2.onnx (from a GGUF file of 4 bits), smollm2.gguf, tokenizer.json, ids.npy and windows.npy",
}
PICTURES = {"peaks": "bench/headline_picture.py build/peaks.json docs/peaks.svg"}
# Tables that take their cells from others: the head, and of each row its name and (table, row, column) of each cell.
PEAKS = [("peaks", "plain inference"), ("peaks", "minmax"), ("peaks", "default preset"), ("peaks-32", "default preset"),
         ("peaks", "quantize_static, minmax"), ("peaks", "AMD Quark, published")]  # fmt: skip
PEAKED = ("ConvNeXt-T", "DETR-R50", "ESRGAN", "SAM 2 image encoder", "SAM 2 mask decoder", "BLIP image encoder",
          "BLIP text decoder", "ResNet-50", "YOLOv8n")  # fmt: skip
# The model's name in README, its column among the scores, and its row among the latencies.
SCORED = [
    ("PP-OCR text direction", "PP-OCR direction, accuracy", "direction"),
    ("PP-OCR text detector", "PP-OCR detector, F1", "detector"),
    ("PP-OCR recognizer", "PP-OCR recogniser, lines", "lines"),
    ("open_nsfw, digits", "open_nsfw digits, accuracy", "digits"),
    ("MiniLM sentence encoder", "MiniLM topics, accuracy", "minilm"),
    ("Magika file types", "Magika, as float", "files"),
    ("Silero speech detector", "Silero VAD, steps", "speech"),
]
VIEWS = {
    "readme-peaks": (
        "| peak memory, MB | plain inference | detent, minmax | detent, default | default, 32 samples | quantize_static, minmax | "
        "AMD Quark, published |",
        [(name, [(table, name, column) for table, column in PEAKS]) for name in PEAKED],
    ),
    "readme-scores": (
        "| model | score, %: float | detent | quantize_static | AMD Quark | latency: detent | quantize_static |",
        [
            (
                name,
                [
                    *(("scores", tool, column) for tool in ("float", "detent", "quantize_static")),
                    ("scores-quark", "Quark", column),
                    *(("latency", row, tool) for tool in ("default", "quantize_static")),
                ],
            )
            for name, column, row in SCORED
        ],
    ),
}


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def cell(data, table, row, column):
    """What stands there, without emphasis, of wall and processor time the former; for want of a row "not run"."""
    head, _, *rows = map(cells_of, data[table]["table"])
    found = next((cells for cells in rows if cells[0] == row), None)
    return "not run" if found is None else re.sub(r"\*\*| / .*", "", found[head.index(column)]) or "-"


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
    yield from (f"{DATA}: '{name}' has no command in bench/publish.py" for name in data if MORE.get(name, name) not in COMMANDS)


def machine():
    info = pathlib.Path("/proc/cpuinfo")
    vnni = ", VNNI" if info.is_file() and "_vnni" in info.read_text() else ""
    return f"{os.cpu_count()} cores, {platform.machine()}{vnni}"


def commit():
    return subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def lacking(name):
    """Variables and GPUs that a table needs and this machine lacks."""
    command = COMMANDS[MORE.get(name, name)]
    found = [f"{variable}: {NEEDS[variable]}" for variable in re.findall(r"\$(\w+)", command) if variable not in os.environ]
    return found + ["a GPU"] * (name.startswith("gpu-") and not pathlib.Path("/dev/nvidia0").exists())


def run(command):
    """What the last of the commands prints; scripts run in this interpreter."""
    paths = [ROOT / "build" / "python", ROOT / "build" / "deps" / "language"]
    environment = {"DETENT_MODELS": str(ROOT / "build" / "models"), "PYTHONPATH": os.pathsep.join(map(str, paths)), **os.environ}
    for part in command.split(" && "):
        words = [os.path.expandvars(word) for word in shlex.split(part)]
        words = [sys.executable, *words] if words[0].endswith(".py") else words
        result = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        if result.returncode != 0:
            sys.exit(f"publish: exit status {result.returncode} from: {part}\n{result.stdout}")
    return result.stdout


def measure(name):
    """Entries, made now, of a table and of those that the same command prints."""
    if missing := lacking(name):
        sys.exit(f"publish: '{name}' needs {'; '.join(missing)}")
    command = COMMANDS[name]
    tables = re.findall(r"(?:^\|.*\n?)+", run(command), re.MULTILINE)
    others = [other for other, first in MORE.items() if first == name]
    if len(tables) <= len(others):
        sys.exit(f"publish: no table in what this prints: {command}")
    if name in PICTURES:
        run(PICTURES[name])
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    origin = {"date": today, "commit": commit(), "machine": machine(), "command": command}
    return {
        made: {**origin, "table": table.splitlines()}
        for made, table in zip([name, *others], tables if others else tables[-1:], strict=False)
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.check:
        sys.exit("\n".join(violations(ROOT)))
    data = json.loads((ROOT / DATA).read_text())
    if options.list:
        for name, entry in data.items():
            print(f"{name:24} {entry['date']}  {COMMANDS[MORE.get(name, name)]}")
        print(*(f"{variable}: {what}" for variable, what in NEEDS.items()), sep="\n")
        return
    chosen = list(dict.fromkeys(MORE.get(name, name) for name in options.only or COMMANDS))
    for name in [] if options.pages else chosen:
        if not options.only and (missing := lacking(name)):
            print(f"{name} is left out, which needs {'; '.join(missing)}")
            continue
        data |= measure(name)
        (ROOT / DATA).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    for path in pages(ROOT):
        text = path.read_text()
        if filled(text, data) != text:
            path.write_text(filled(text, data))


if __name__ == "__main__":
    main()
