"""PP-OCR's text detector on pages drawn here, whose lines of text stand at known places: the score is the F1 of its boxes.
The command line is tasks_common.py's. Calibration pages and test pages share neither photos nor texts."""

import json
import pathlib
import re
import shutil

import numpy as np
import tasks_common
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from scipy import ndimage

CALIBRATION, TEST = 32, 48
SIZE = 480
CALIBRATION_TEXTS = {"lfw", "kddcup99", "olivetti_faces"}
# How PP-OCR makes boxes of its map of probabilities: two thresholds, and how far a box grows.
PIXEL_THRESHOLD, BOX_THRESHOLD, GROWTH, SMALLEST = 0.3, 0.5, 1.6, 3
MATCH = 0.5  # intersection over union

Box = tuple[float, float, float, float]  # left, top, right, bottom


class Pages:
    """Draws pages out of some of the photos and texts; with one seed always the same ones."""

    def __init__(self, models: pathlib.Path, calibration: bool):
        photos = sorted((models / "photos").iterdir())[not calibration :: 2]
        self.photos = [Image.open(path).convert("RGB") for path in photos]
        texts = [path for path in sorted((models / "text").glob("*.rst")) if (path.stem in CALIBRATION_TEXTS) == calibration]
        self.words = re.findall(r"[A-Za-z][A-Za-z,.;:()-]+", " ".join(path.read_text() for path in texts))
        self.fonts = sorted((models / "fonts").glob("*.ttf"))
        self.rng = np.random.default_rng(5 if calibration else 6)

    def draw(self, count: int) -> tuple[np.ndarray, list[list[Box]]]:
        pages, boxes = zip(*(self.page() for _ in range(count)))
        return np.stack(pages), list(boxes)

    def page(self) -> tuple[np.ndarray, list[Box]]:
        """Lines of text from top to bottom over a pale photo, a little blurred and noisy, as the model wants it."""
        rng = self.rng
        ground = self.ground()
        image = Image.fromarray(ground)
        pen, boxes = ImageDraw.Draw(image), []
        top = int(rng.integers(10, 40))
        while top < SIZE - 50:
            text, font, extent = self.line()
            width, height = extent[2] - extent[0], extent[3] - extent[1]
            left = int(rng.integers(8, SIZE - width - 8))
            under = ground[top : top + height, left : left + width].mean()
            ink = rng.integers(0, 80, 3) if under > 120 else rng.integers(180, 256, 3)
            pen.text((left - extent[0], top - extent[1]), text, font=font, fill=tuple(int(v) for v in ink))
            boxes.append((left, top, left + width, top + height))
            top += height + int(rng.integers(12, 45))
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.1)))
        pixels = np.asarray(image, np.float32) + rng.normal(0, rng.uniform(2, 18), (SIZE, SIZE, 3))
        return (pixels.clip(0, 255)[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1).astype(np.float32), boxes

    def ground(self) -> np.ndarray:
        """A part of some photo, mixed with a plain pale colour."""
        photo = self.photos[self.rng.integers(len(self.photos))]
        side = int(min(photo.size) * self.rng.uniform(0.5, 0.95))
        x, y = (int(self.rng.integers(edge - side)) for edge in photo.size)
        part = np.asarray(photo.resize((SIZE, SIZE), Image.BILINEAR, (x, y, x + side, y + side)), np.float32)
        share = self.rng.uniform(0.1, 0.7)
        return (share * part + (1 - share) * self.rng.integers(140, 250, 3)).astype(np.uint8)

    def line(self) -> tuple[str, ImageFont.FreeTypeFont, tuple[int, int, int, int]]:
        """One to four words in some font, and their extent; fewer words where the page is not wide enough."""
        font = tasks_common.font_of(self.fonts[self.rng.integers(len(self.fonts))], int(self.rng.integers(13, 34)))
        start, count = int(self.rng.integers(len(self.words) - 4)), int(self.rng.integers(1, 5))
        while True:
            text = " ".join(self.words[start : start + count])
            left, top, right, bottom = (int(v) for v in font.getbbox(text))
            if right - left < SIZE - 20:
                return text, font, (left, top, right, bottom)
            start, count = start + (count == 1), max(1, count - 1)


def boxes_of(probabilities: np.ndarray) -> list[Box]:
    labels, _ = ndimage.label(probabilities > PIXEL_THRESHOLD)
    boxes = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        inside = probabilities[rows, columns][labels[rows, columns] == number]
        if min(width, height) < SMALLEST or inside.mean() < BOX_THRESHOLD:
            continue
        grow = GROWTH * width * height / (2 * (width + height))
        boxes.append((columns.start - grow, rows.start - grow, columns.stop + grow, rows.stop + grow))
    return boxes


def overlap(a: Box, b: Box) -> float:
    """Intersection over union."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])
    return width * height / (area(a) + area(b) - width * height)


def matches(found: list[Box], known: list[Box]) -> int:
    """Boxes that were found; no box counts twice."""
    left, count = list(found), 0
    for box in known:
        best = max(left, key=lambda other: overlap(box, other), default=None)
        if best is not None and overlap(box, best) >= MATCH:
            left.remove(best)
            count += 1
    return count


def prepare(models: pathlib.Path, out: pathlib.Path) -> None:
    shutil.copyfile(models / "ppocr_det.onnx", out / "model.onnx")
    pages, _ = Pages(models, calibration=True).draw(CALIBRATION)
    tasks_common.save_calibration(out, ({"x": page[None]} for page in pages))
    pages, boxes = Pages(models, calibration=False).draw(TEST)
    np.save(out / "test.npy", pages)
    (out / "labels.json").write_text(json.dumps(boxes))


def f1(folder: pathlib.Path, _float: np.ndarray, outputs: np.ndarray) -> float:
    known = [[tuple(box) for box in page] for page in json.loads((folder / "labels.json").read_text())]
    found = [boxes_of(page[0]) for page in outputs]
    right = sum(matches(*pair) for pair in zip(found, known))
    return 2 * right / (sum(map(len, found)) + sum(map(len, known)))


if __name__ == "__main__":
    tasks_common.main(prepare, f1)
