"""Folders of pictures as samples: what a model is fed is what Pillow and numpy make of the same files."""

import io
import json
import struct
import zlib
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import support
from graphs import Builder
from onnx import TensorProto
from PIL import Image
from support import Path

BILINEAR = Image.Resampling.BILINEAR
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SIDE = 28
USAGE, BAD_INPUT = 2, 3


def centre(image: Image.Image) -> np.ndarray:
    """torchvision: Resize(32), CenterCrop(28), ToTensor(), Normalize()."""
    short = round(SIDE / 224 * 256)
    width, height = image.size
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    image = image.resize(size, BILINEAR)
    left, top = round((size[0] - SIDE) / 2), round((size[1] - SIDE) / 2)
    return (np.asarray(image.crop((left, top, left + SIDE, top + SIDE))) / 255 - MEAN) / DEVIATION


def border(image: Image.Image) -> np.ndarray:
    scale = SIDE / max(image.size)
    small = image.resize((round(image.width * scale), round(image.height * scale)), BILINEAR)
    whole = Image.new("RGB", (SIDE, SIDE), (114, 114, 114))
    whole.paste(small, ((SIDE - small.width) // 2, (SIDE - small.height) // 2))
    return np.asarray(whole) / 255


def whole(image: Image.Image) -> np.ndarray:
    return np.asarray(image.resize((SIDE, SIDE), BILINEAR)).astype(np.float64)


PRESETS = {
    "imagenet": centre,
    "yolo": border,
    "01": lambda image: whole(image) / 255,
    "11": lambda image: whole(image) / 127.5 - 1,
    "255": whole,
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smooth pictures of several sizes in folders, as PNG with transparency, in grey, and as JPEG."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for n, (size, mode) in enumerate([((60, 40), "RGB"), ((33, 70), "RGBA"), ((50, 50), "L"), ((28, 28), "RGB")]):
        noise = Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
        path = folder / f"class{n % 2}" / f"{n}.{'jpg' if n == 0 else 'PNG'}"
        path.parent.mkdir(exist_ok=True)
        noise.convert(mode).save(path, **({"quality": 95} if n == 0 else {"format": "PNG"}))
    return folder


def model_of(path: Path, shape: list[object], channels_last: bool = False) -> Path:
    """Its output is the mean of each channel of the input."""
    b = Builder()
    value = b.add("Transpose", "x", perm=[0, 3, 1, 2]) if channels_last else "x"
    value = b.add("Conv", value, b.constant("one", np.eye(3)[:, :, None, None]))
    output = b.add("GlobalAveragePool", value)
    onnx.save(b.model({"x": (TensorProto.FLOAT, shape)}, [output]), path)
    return path


def samples_of(pictures: Path, make: object) -> list[np.ndarray]:
    paths = sorted(pictures.rglob("*.*"))
    return [make(Image.open(path).convert("RGB")).astype(np.float32) for path in paths]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_model_is_fed_what_pillow_makes(pictures: Path, tmp_path: Path, preset: str, layout: str) -> None:
    shape = ["n", 3, SIDE, SIDE] if layout == "nchw" else ["n", SIDE, SIDE, 3]
    model = model_of(tmp_path / "m.onnx", shape, layout == "nhwc")
    command = ["quantize", model, "-o", tmp_path / "q.onnx", "--images", pictures, "--image-preset", preset, "--json"]
    result = support.detent(*command, "--method", "minmax")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    expected = samples_of(pictures, PRESETS[preset])
    one = {"imagenet": 1 / 255 / 0.224, "01": 1 / 255, "11": 2 / 255, "255": 1, "yolo": 1 / 255}[preset]  # a step of a byte
    seen = next(iter(report["activations"].values()))
    assert report["samples"] == len(expected) == 4
    assert abs(seen["min"] - min(0, min(e.min() for e in expected))) <= 1.1 * one
    assert abs(seen["max"] - max(0, max(e.max() for e in expected))) <= 1.1 * one


def test_compare_and_bench_take_pictures_too(pictures: Path, tmp_path: Path) -> None:
    model = model_of(tmp_path / "m.onnx", [1, 3, "h", "w"])
    words = ["--images", pictures, "--image-preset", "imagenet", "--set", "image-size=24", "--json"]
    assert support.detent("quantize", model, "-o", tmp_path / "q.onnx", *words).returncode == 0
    assert json.loads(support.detent("compare", model, tmp_path / "q.onnx", *words).stdout)["samples"] == 4
    assert json.loads(support.detent("calibrate", model, "-o", tmp_path / "s.stats", *words).stdout)["samples"] == 4
    assert json.loads(support.detent("bench", model, *words, "--runs", 1, "--no-memory").stdout)["samples"] == 4
    assert json.loads(support.detent("plan", model, *words).stdout)["samples"] == 4


def test_other_inputs_are_numbers_and_shapes_that_are_given_count(pictures: Path, tmp_path: Path) -> None:
    """As detectors have them: a factor beside the picture, whose sides are free."""
    b = Builder()
    value = b.add("Conv", b.add("Mul", "x", "factor"), b.weight("w", 4, 3, 3, 3))
    inputs = {"x": (TensorProto.FLOAT, ["n", 3, "h", "w"]), "factor": (TensorProto.FLOAT, ["n", 1, 1, 1])}
    onnx.save(b.model(inputs, [b.add("GlobalAveragePool", value)]), tmp_path / "m.onnx")
    model, fixed = tmp_path / "m.onnx", ["--shape", "x:1x3x20x28", "--no-bench"]
    words = ["--images", pictures, "--image-preset", "01", "--input", "factor=0.5"]
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *words, *fixed, *support.PLAIN, "--json")
    assert result.returncode == 0, result.stderr
    arrays = [np.asarray(Image.open(path).convert("RGB").resize((28, 20), BILINEAR)) for path in sorted(pictures.rglob("*.*"))]
    samples = [
        {"x": (a.transpose(2, 0, 1)[None] / 255).astype(np.float32), "factor": np.full((1, 1, 1, 1), 0.5, np.float32)}
        for a in arrays
    ]
    data = support.save_samples(tmp_path / "arrays", samples)
    told = support.quantize(model, tmp_path / "a.onnx", data, *fixed, *support.PLAIN)["activations"]
    seen = json.loads(result.stdout)["activations"]
    assert seen.keys() == told.keys() != set()
    for name, shown in seen.items():
        np.testing.assert_allclose(shown["scale"], told[name]["scale"], rtol=0.01)  # pixels differ by one of 255
    for more in ([], ["--input", "factor=0.5", "--input", "x=1"]):
        refused = support.detent("quantize", model, "-o", tmp_path / "r.onnx", *words[:4], *fixed, *more)
        assert refused.returncode == USAGE, refused.stderr


def many_scans(path: Path) -> None:
    """A progressive JPEG of 2 kB whose last scan stands there 600 times: time without end from a small file."""
    written = io.BytesIO()
    Image.fromarray(np.arange(64 * 64, dtype=np.uint8).reshape(64, 64)).save(written, format="JPEG", progressive=True)
    head, end = written.getvalue()[:-2], written.getvalue()[-2:]
    path.write_bytes(head + head[head.rindex(b"\xff\xda") :] * 600 + end)


def many_pixels(path: Path) -> None:
    """A PNG that says that it has 10^10 pixels."""
    Image.new("1", (8, 8)).save(path, format="PNG")
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 100_000, 100_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


def narrow(path: Path) -> None:
    """A few kB whose short side would grow from 1 to 32, and the other one with it."""
    Image.new("1", (1, 1_000_000)).save(path, format="PNG")


HOSTILE = [(many_scans, "more than 500 scans"), (many_pixels, "100000 x 100000 pixels is not read"), (narrow, "too narrow")]


@pytest.mark.parametrize("make, says", HOSTILE, ids=lambda value: getattr(value, "__name__", ""))
def test_pictures_that_would_take_all_time_or_memory(make: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    make(tmp_path / "pictures" / "a.png")
    model = model_of(tmp_path / "m.onnx", [1, 3, SIDE, SIDE])
    words = ["--images", tmp_path / "pictures", "--image-preset", "imagenet"]
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *words)
    assert (result.returncode, result.stderr.count("\n")) == (BAD_INPUT, 1)
    assert says in result.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_that_needs_more_than_the_budget_is_refused_by_its_header(kind: str, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8000, 8000)).save(tmp_path / "pictures" / f"a.{kind.lower()}", format=kind)
    model = model_of(tmp_path / "m.onnx", [1, 3, SIDE, SIDE])
    words = ["quantize", model, "-o", tmp_path / "q.onnx", "--images", tmp_path / "pictures", "--image-preset", "imagenet"]
    words += ["--preset", "plain", "--memory-budget", "256MiB"]
    result = support.detent(*words)
    assert (result.returncode, result.stderr.count("\n")) == (4, 1)
    assert "a picture of 8000 x 8000 pixels takes" in result.stderr and "--memory-budget" in result.stderr
    small = support.detent(*words[:-1], "2GiB")
    assert small.returncode == 0, small.stderr


WRONG = {
    "no preset": (["--images", "DIR"], USAGE, "give --image-preset: imagenet, 01"),
    "both": (["--images", "DIR", "--image-preset", "01", "--calibration-data", "DIR"], USAGE, "leave one of them out"),
    "alone": (["--image-preset", "01"], USAGE, "go with --images"),
    "as samples": (["--calibration-data", "DIR"], BAD_INPUT, "--image-preset imagenet, 01, 11, 255 or yolo"),
    "none of them": (["--images", "DIR", "--image-preset", "01", "--samples", "0"], USAGE, "leave it out to use all"),
    "no folder": (["--images", "nowhere", "--image-preset", "01"], BAD_INPUT, "cannot list 'nowhere'"),
}


@pytest.mark.parametrize("words, code, says", WRONG.values(), ids=WRONG)
def test_wrong_words_get_one_line(pictures: Path, tmp_path: Path, words: list[str], code: int, says: str) -> None:
    model = model_of(tmp_path / "m.onnx", [1, 3, SIDE, SIDE])
    words = [str(pictures) if word == "DIR" else word for word in words]
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", *words)
    assert (result.returncode, result.stderr.count("\n")) == (code, 1)
    assert says in result.stderr
