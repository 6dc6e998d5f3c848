"""Two tasks of few samples, for tests: which way up a line of text is, and handwritten digits.

    tasks_small.py prepare TASK MODELS DIR         writes DIR/model.onnx, DIR/calibration/*.npz, DIR/test.npy and, for a task
                                                   whose last layer is fitted here, DIR/train.npy
    tasks_small.py accuracy TASK DIR FLOAT OUTPUT  prints the share of correct answers in OUTPUT (.npy, results on test.npy);
                                                   FLOAT are the float model's results on train.npy

Calibration samples, training samples and held-back samples never overlap."""

import pathlib
import re
import shutil
import sys

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFilter, ImageFont

CALIBRATION = 64


def font_of(path, size):
    """The same letters everywhere: Pillow's other layout needs a library that not every machine has, and spaces otherwise."""
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


class TextDirection:
    """PP-OCR's classifier of text lines: upright or turned by 180 degrees."""

    CALIBRATION_TEXTS = ("lfw", "kddcup99", "olivetti_faces")
    HELD_BACK = 500

    def prepare(self, models, out):
        shutil.copyfile(models / "ppocr_cls.onnx", out / "model.onnx")
        self.fonts = sorted((models / "fonts").glob("*.ttf"))
        self.photos = [Image.open(path).convert("RGB") for path in sorted((models / "photos").iterdir())]
        texts = {path.stem: self.cut(path.read_text()) for path in sorted((models / "text").glob("*.rst"))}
        calibration = set().union(*(texts[name] for name in self.CALIBRATION_TEXTS))
        held_back = set().union(*texts.values()) - calibration
        samples, _ = self.render(calibration, CALIBRATION, seed=1)
        save_calibration(out, "x", samples)
        samples, labels = self.render(held_back, self.HELD_BACK, seed=2)
        np.save(out / "test.npy", samples)
        np.save(out / "labels.npy", labels)

    def accuracy(self, folder, _train, outputs):
        return (outputs.argmax(1) == np.load(folder / "labels.npy")).mean()

    @staticmethod
    def cut(text):
        """The set of short lines in `text`, cut at word limits."""
        lines, line = set(), ""
        for word in re.findall(r"[A-Za-z0-9][A-Za-z0-9,.;:'()-]*", text):
            if len(line) + len(word) < 14:
                line = f"{line} {word}".strip()
                continue
            if 5 <= len(line):
                lines.add(line)
            line = word if len(word) <= 14 else ""
        return lines

    def render(self, texts, count, seed):
        rng = np.random.default_rng(seed)
        texts = sorted(texts)
        chosen = [texts[i] for i in rng.permutation(len(texts))[:count]]
        if len(chosen) < count:
            raise SystemExit(f"{count} lines of text are needed, there are {len(chosen)}")
        turned = rng.permutation(np.arange(count) % 2)
        images = [self.line(rng, text) for text in chosen]
        images = [image.rotate(180) if turn else image for image, turn in zip(images, turned)]
        return np.stack([self.preprocess(image) for image in images]), turned

    def line(self, rng, text):
        """An image of `text` in some font and colours, a little tilted, blurred and noisy."""
        font = font_of(self.fonts[rng.integers(len(self.fonts))], int(rng.integers(26, 38)))
        left, top, right, bottom = font.getbbox(text)
        pad = int(rng.integers(3, 9))
        size = (right - left + 2 * pad, bottom - top + 2 * pad)
        image, colour = self.background(rng, size)
        dark = np.mean(colour) < 100
        ink = np.clip(colour + rng.uniform(80, 160) * (1 if dark else -1), 0, 255)
        ImageDraw.Draw(image).text((pad - left, pad - top), text, font=font, fill=tuple(int(v) for v in ink))
        image = image.rotate(rng.uniform(-1.5, 1.5), Image.BILINEAR, fillcolor=tuple(int(v) for v in colour))
        scale = rng.uniform(0.5, 0.9)
        image = image.resize([max(8, int(v * scale)) for v in size], Image.BILINEAR)
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.8)))
        pixels = np.asarray(image, np.float32)
        pixels = pixels + rng.normal(0, rng.uniform(1, 10), pixels.shape)
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

    def background(self, rng, size):
        """A plain, shaded or photographed ground, and its main colour."""
        colour = rng.integers(0, 90, 3) if rng.random() < 0.3 else rng.integers(120, 256, 3)
        plain = np.broadcast_to(colour, (size[1], size[0], 3)).astype(np.float32)
        kind = rng.integers(3)
        if kind == 1:
            plain = plain + np.linspace(-30, 30, size[0])[None, :, None] * rng.choice([-1, 1])
        elif kind == 2:
            photo = self.photos[rng.integers(len(self.photos))]
            x, y = (int(rng.integers(max(1, a - b))) for a, b in zip(photo.size, size))
            plain = 0.75 * plain + 0.25 * np.asarray(photo.crop((x, y, x + size[0], y + size[1])), np.float32)
        return Image.fromarray(plain.clip(0, 255).astype(np.uint8)), colour

    @staticmethod
    def preprocess(image, height=48, width=192):
        """As PP-OCR does: height 48, width in proportion and padded to 192, BGR in -1..1."""
        scaled = min(width, -(-height * image.width // image.height))
        pixels = np.asarray(image.resize((scaled, height), Image.BILINEAR), np.float32)
        out = np.zeros((3, height, width), np.float32)
        out[:, :, :scaled] = pixels[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1
        return out


class Digits:
    """The features of Yahoo's open_nsfw, a thin ResNet-50, put to another use: handwritten digits, told apart by a linear
    layer that is fitted on the float model's features and then kept for both models."""

    TRAINING, HELD_BACK = 150, 250

    def prepare(self, models, out):
        self.add_feature_output(models / "opennsfw.onnx", out / "model.onnx")
        table = np.loadtxt(models / "digits.csv.gz", delimiter=",")
        table = table[np.random.default_rng(3).permutation(len(table))]
        ends = np.cumsum([CALIBRATION, self.TRAINING, self.HELD_BACK])
        calibration, training, held_back, _ = np.split(table, ends)
        save_calibration(out, "input:0", self.images(calibration))
        np.save(out / "train.npy", self.images(training))
        np.save(out / "test.npy", self.images(held_back))
        np.save(out / "train_labels.npy", training[:, 64].astype(int))
        np.save(out / "labels.npy", held_back[:, 64].astype(int))

    def accuracy(self, folder, train, outputs):
        mean, deviation = train.mean(0), train.std(0) + 0.05
        known, asked = (train - mean) / deviation, (outputs - mean) / deviation
        targets = np.eye(10)[np.load(folder / "train_labels.npy")] - 0.1
        # Ridge regression in its dual form: fewer samples than features. The penalty is the one that tells most of the
        # training digits apart when each is left out in turn.
        weights = np.linalg.solve(known @ known.T + len(known) * np.eye(len(known)), targets)
        return ((asked @ known.T @ weights).argmax(1) == np.load(folder / "labels.npy")).mean()

    @staticmethod
    def add_feature_output(source, target):
        model = onnx.load(source)
        features = next(node for node in model.graph.node if node.op_type == "MatMul").input[0]
        model.graph.output.append(onnx.helper.make_tensor_value_info(features, onnx.TensorProto.FLOAT, ["N", 1024]))
        onnx.save(model, target)

    @staticmethod
    def images(rows):
        mean = np.array([104, 117, 123], np.float32)  # BGR, as the model was trained
        grey = [Image.fromarray((row[:64].reshape(8, 8) * 15.9).astype(np.uint8)) for row in rows]
        grey = [np.asarray(image.resize((224, 224), Image.BICUBIC), np.float32) for image in grey]
        return np.stack([image[:, :, None] - mean for image in grey])


TASKS = {"ppocr_cls": TextDirection(), "opennsfw": Digits()}


def save_calibration(out, name, samples):
    (out / "calibration").mkdir()
    for i, sample in enumerate(samples):
        np.savez(out / "calibration" / f"{i:03}.npz", **{name: sample[None]})


def main(verb, task, *paths):
    paths = [pathlib.Path(path) for path in paths]
    if verb == "prepare":
        TASKS[task].prepare(*paths)
    else:
        folder, train, outputs = paths
        print(TASKS[task].accuracy(folder, np.load(train) if train.is_file() else None, np.load(outputs)))


if {"-h", "--help"} & set(sys.argv[1:]):
    sys.exit(print(__doc__))
main(*sys.argv[1:])
