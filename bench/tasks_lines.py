"""PP-OCR's text recogniser on lines of text drawn here: the score is the share of lines that it reads without a mistake, blanks
aside. The command line is tasks_common.py's. Calibration lines and test lines share no text."""

import json
import pathlib
import re
import shutil

import numpy as np
import onnxruntime
import tasks_common
from PIL import Image, ImageDraw, ImageFilter

CALIBRATION, TEST = 32, 300
HEIGHT, WIDTH = 48, 320
CALIBRATION_TEXTS = {"lfw", "kddcup99", "olivetti_faces"}


def lines(models: pathlib.Path, calibration: bool, count: int) -> tuple[np.ndarray, list[str]]:
    """Two to four words each, in some font and colour, blurred and noisy, as the model wants them."""
    texts = [path for path in sorted((models / "text").glob("*.rst")) if (path.stem in CALIBRATION_TEXTS) == calibration]
    words = re.findall(r"[A-Za-z0-9][A-Za-z0-9,.;:()-]+", " ".join(path.read_text() for path in texts))
    fonts, rng = sorted((models / "fonts").glob("*.ttf")), np.random.default_rng(15 if calibration else 16)
    images, known = [], []
    while len(images) < count:
        start = int(rng.integers(len(words) - 4))
        text = " ".join(words[start : start + int(rng.integers(2, 5))])
        font = tasks_common.font_of(fonts[rng.integers(len(fonts))], int(rng.integers(20, 34)))
        left, top, right, bottom = (int(v) for v in font.getbbox(text))
        margin = int(rng.integers(3, 9))
        size = (right - left + 2 * margin, bottom - top + 2 * margin)
        scaled = int(size[0] * HEIGHT / size[1])
        if scaled > WIDTH:
            continue
        ground = rng.integers(110, 256, 3)
        image = Image.new("RGB", size, tuple(int(v) for v in ground))
        ink = tuple(int(v) for v in (ground - rng.uniform(50, 110)).clip(0))
        ImageDraw.Draw(image).text((margin - left, margin - top), text, font=font, fill=ink)
        share = rng.uniform(0.4, 0.8)  # of the resolution
        image = image.resize((max(8, int(size[0] * share)), max(8, int(size[1] * share))), Image.BILINEAR)
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.7))).resize((scaled, HEIGHT), Image.BILINEAR)
        pixels = np.asarray(image, np.float32) + rng.normal(0, rng.uniform(2, 14), (HEIGHT, scaled, 3))
        whole = np.zeros((3, HEIGHT, WIDTH), np.float32)
        whole[:, :, :scaled] = pixels.clip(0, 255)[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1
        images.append(whole)
        known.append(text.replace(" ", ""))
    return np.stack(images), known


def prepare(models: pathlib.Path, out: pathlib.Path) -> None:
    shutil.copyfile(models / "ppocr_rec.onnx", out / "model.onnx")
    calibration, _ = lines(models, True, CALIBRATION)
    tasks_common.save_calibration(out, ({"x": image[None]} for image in calibration))
    images, known = lines(models, False, TEST)
    np.save(out / "test.npy", images)
    (out / "labels.json").write_text(json.dumps(known))


def read(probabilities: np.ndarray, characters: list[str]) -> str:
    """The best character of each step, without repeats and blanks (class 0)."""
    best = probabilities.argmax(-1)
    kept = [k for k, before in zip(best, [0, *best[:-1]]) if k not in (0, before)]
    return "".join(characters[k] for k in kept).replace(" ", "")


def accuracy(folder: pathlib.Path, _float: np.ndarray, outputs: np.ndarray) -> float:
    model = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    characters = ["", *model.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]
    known = json.loads((folder / "labels.json").read_text())
    return float(np.mean([read(line, characters) == text for line, text in zip(outputs, known)]))


if __name__ == "__main__":
    tasks_common.main(prepare, accuracy)
