"""The documentation's commands and snippets do what they are shown for, page by page and in their order."""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import wave

import numpy as np
import onnx
import pytest
import support
from graphs import Builder
from onnx import TensorProto
from PIL import Image

PAGES = [support.ROOT / "README.md", *sorted((support.ROOT / "docs").rglob("*.md"))]
RECIPES = [page for page in PAGES if page.parent.name == "recipes"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(build/)?detent |python3 -m detent ")
# What stands for something else, in pages that show how a command is built up.
MEANT = {
    "…": ["model.onnx", "-o", "q.onnx", "--calibration-data", "samples"],
    "MODEL": ["model.onnx"],
    "FLOAT": ["model.onnx"],
    "QUANT": ["OUT"],
    "PATH": ["samples"],
    "HELD_BACK": ["held-back"],
    "/mnt/ssd": ["work"],
    "120MiB": ["400KiB"],  # of a smaller model
    "512": ["64"],
}
# Names of the snippets that their reader has.
GIVEN = """
import detent
import numpy as np
import onnxruntime

arrays = [np.load(path)["x"] for path in __import__("glob").glob("samples/*.npz")]
samples = [{"x": array} for array in arrays]
held_back = samples[:2]
validation_set = samples
image = arrays[0]
mask = arrays[1]
clips = [array.ravel() for array in arrays]


def score(path):
    return 0.9


def accuracy_of(session, samples):
    return 0.9


class MyRuntime:
    name = "mine"

    def load(self, path):
        session = onnxruntime.InferenceSession(path)
        names = [value.name for value in session.get_inputs()]
        return lambda arrays: session.run(None, dict(zip(names, arrays)))


class tokenizer:
    @staticmethod
    def encode(text):
        return [ord(letter) for letter in text]
"""
FOR_GPUS = "--device cuda"
SIDE, SOUND = 32, 64


def blocks(page: pathlib.Path, languages: set[str]) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text()) if language in languages]


def commands(page: pathlib.Path) -> list[list[str]]:
    found = []
    for text in blocks(page, {"", "sh"}):
        lines = re.sub(r"\\\n\s*", "", text).splitlines()
        found += [command for line in lines if COMMAND.match(line) and (command := words(line))]
    return found


def words(line: str) -> list[str]:
    """Without what is optional, and with what stands for something."""
    kept = re.sub(r"\[[^]]*\]", "", line)
    return [word for given in shlex.split(kept, comments=True) for word in MEANT.get(given, [given])] if kept else []


def picture_model() -> onnx.ModelProto:
    """With the names that the pages use."""
    b = Builder(1)
    value = b.add("Relu", b.add("Conv", "x", b.weight("stem", 64, 3, 3, 3, scale=0.3), name="stem"))
    value = b.add("Relu", b.add("Conv", value, b.weight("body", 64, 64, 3, 3, scale=0.05), strides=[2, 2], name="body"))
    value = b.add("Flatten", b.add("MaxPool", value, kernel_shape=[3, 3], strides=[3, 3]))
    value = b.add("MatMul", value, b.weight("up", 1024, 64, scale=0.05), name="/model/layers.0/mlp/up_proj/MatMul")
    value = b.add("MatMul", b.add("Relu", value), b.weight("head_w", 64, 32, scale=0.1), name="/lm_head/MatMul")
    return b.model({"x": (TensorProto.FLOAT, ["N", 3, SIDE, SIDE])}, [value])


def encoder() -> onnx.ModelProto:
    b = Builder(3)
    value = b.add("Gather", b.weight("embeddings", 256, 64), "input_ids")
    value = b.add("MatMul", value, b.weight("up", 64, 256))
    value = b.add("MatMul", b.add("Relu", value), b.weight("down", 256, 64))
    weights = b.add("Unsqueeze", b.add("Cast", "attention_mask", to=TensorProto.FLOAT), b.constant("last", [2], np.int64))
    inputs = {name: (TensorProto.INT64, ["N", "tokens"]) for name in ("input_ids", "attention_mask")}
    return b.model(inputs, [b.add("ReduceMean", b.add("Mul", value, weights), axes=[1])])


def spectra_model() -> onnx.ModelProto:
    b = Builder(4)
    return b.model({"x": (TensorProto.FLOAT, ["N", "frames", 65])}, [b.add("MatMul", "x", b.weight("w", 65, 8))])


def sound_model() -> onnx.ModelProto:
    b = Builder(2)
    return b.model({"x": (TensorProto.FLOAT, ["N", SOUND])}, [b.add("Gemm", "x", b.weight("w", SOUND, 8))])


def detector() -> onnx.ModelProto:
    """Of sound, with a rate and a state beside it."""
    b = Builder(5)
    value = b.add("Gemm", "x", b.weight("w", SOUND, 8))
    rate = b.add("Div", b.add("Cast", "sr", to=TensorProto.FLOAT), b.constant("usual", 16000.0))
    value = b.add("Add", b.add("Mul", value, rate), b.add("ReduceMean", "state", axes=[0], keepdims=0))
    inputs = {"x": (TensorProto.FLOAT, ["N", SOUND]), "sr": (TensorProto.INT64, []), "state": (TensorProto.FLOAT, [2, "N", 8])}
    return b.model(inputs, [b.add("MatMul", value, b.weight("head", 8, 4))])


def save_sound(folder: pathlib.Path, rng: np.random.Generator) -> None:
    folder.mkdir()
    with wave.open(str(folder / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(rng.normal(0, 4000, 8 * SOUND).astype("<i2").tobytes())


@pytest.fixture
def desk(tmp_path: pathlib.Path, letters_tokenizer: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The files that the pages take for granted, a tokenizer among them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("model.onnx", "large.onnx"):
        onnx.save(picture_model(), name)
    for name, made in (("voice", sound_model()), ("encoder", encoder()), ("spectra", spectra_model()), ("detector", detector())):
        onnx.save(made, f"{name}.onnx")
    for name, count in (("samples", 8), ("held-back", 4)):
        support.save_samples(tmp_path / name, [{"x": rng.normal(size=(1, 3, SIDE, SIDE)).astype(np.float32)} for _ in range(count)])
    for name in ("data", "pairs", "work"):
        pathlib.Path(name).mkdir()
    for before in ("", "held-back-"):
        pathlib.Path(f"{before}photos").mkdir()
        for n in range(2):
            Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(f"{before}photos/{n}.png")
        save_sound(tmp_path / f"{before}clips", rng)
    for name, data in (("a", "samples"), ("b", "held-back")):
        assert run(words(f"detent calibrate model.onnx -o {name}.stats --calibration-data {data}")).returncode == 0
    pathlib.Path("sentences.txt").write_text("the quick brown fox.\njumps over\n\nthe lazy dog.\n")
    pathlib.Path("score.py").write_text("print(0.9)\n")
    small = {"name": "small", "kernel-table": "small.json", "threads": 4, "memory": "8GiB", "price": 0.17}
    pathlib.Path("machines.json").write_text(json.dumps({"machines": [small]}))
    return tmp_path


@pytest.fixture
def language(desk: pathlib.Path, letters_decoder: pathlib.Path) -> None:
    """What the page on language models takes for granted besides."""
    letters_decoder.rename(desk / "Llama-3.2-1B")
    ids = np.random.default_rng(1).integers(1, 20, (4, 32))
    for name in ("ids.npy", "held-out-ids.npy"):
        np.save(desk / name, ids)
    for name in ("manual.txt", "held-out.txt", "letters.txt"):
        (desk / name).write_text("the quick brown fox jumps over the lazy dog. " * 40)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    output = pathlib.Path(command[command.index("-o") + 1]) if "-o" in command else None
    if output is not None and output.is_dir():
        shutil.rmtree(output)  # a page may show two ways to one folder
    program = [sys.executable] if command[0] == "python3" else [os.environ["DETENT"]]
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(support.LANGUAGE)])
    given, into = (command[:-2], command[-1]) if command[-2] == ">" else (command, None)
    done = subprocess.run(program + given[1:], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    if into is not None:
        pathlib.Path(into).write_text(done.stdout)
    return done


def snippets(page: pathlib.Path) -> str:
    text = "\n".join(blocks(page, {"python"}))
    return text if importlib.util.find_spec("openvino") else re.sub(r".*target=.openvino.*\n", "", text)


def of_sets() -> list[object]:
    """The pages with something to run; most of them belong to the full set."""
    first = {"README", "python", "dynamic", "float16", "small-floats"}
    shown = [page for page in PAGES if page not in RECIPES and (commands(page) or snippets(page))]
    return [pytest.param(page, marks=() if page.stem in first else pytest.mark.full, id=page.stem) for page in shown]


@pytest.mark.parametrize("page", of_sets())
def test_page(page: pathlib.Path, desk: pathlib.Path, request: pytest.FixtureRequest) -> None:
    for text in blocks(page, {"yaml"}):
        if name := re.match(r"# ([\w-]+\.yaml)\n", text):
            pathlib.Path(name[1]).write_text(text)
    if page.stem == "language-models":
        request.getfixturevalue("language")
    elif snippets(page):
        if page.stem == "targets":  # whose first commands come before its snippets
            run(commands(page)[0])
        pathlib.Path("page.py").write_text(GIVEN + snippets(page))
        result = run(["python3", "page.py"])
        assert result.returncode == 0, result.stderr
    for command in commands(page):
        result = run(command)
        if FOR_GPUS in shlex.join(command) and result.returncode != 0:
            assert re.search("cuda|GPU", result.stderr), result.stderr
            continue
        assert result.returncode == 0, f"{shlex.join(command)}: {result.stderr}"


@pytest.mark.full
@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_recipe(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Each block as it stands, in a folder like the repository's, with the models that were fetched before."""
    (tmp_path / "build").mkdir()
    given = {"models": os.environ["DETENT_MODELS"], "detent": os.environ["DETENT"]}
    for name, path in given.items():
        (tmp_path / "build" / name).symlink_to(path)
    for name in ("scripts", "tests"):
        (tmp_path / name).symlink_to(support.ROOT / name)
    for needed in set(re.findall(r"build/models/[\w./-]+\.onnx\b", page.read_text())):
        if not (tmp_path / needed).is_file():
            pytest.skip(f"{needed} was not fetched")
    if "--calibration-text" in page.read_text() and not support.LANGUAGE.is_dir():
        pytest.skip("tokenizers are missing; scripts/setup.sh runtimes fetches them")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(support.LANGUAGE)])
    for language, text in BLOCK.findall(page.read_text()):
        kept = re.sub(r"^(?:.*fetch_models.py .*|.* pip install .*|export PYTHONPATH=.*)\n", "", text, flags=re.MULTILINE)
        kept = kept.replace("build/venv/bin/python", sys.executable)
        command = ["bash", "-ec", kept] if language == "sh" else [sys.executable, "-c", kept]
        environment = os.environ | {"PYTHONPATH": path}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
