"""Trained models with their own samples, as the tasks of the benchmarks prepare them; and folders with a model and
samples in the same form: model.onnx and calibration/*.npz."""

import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from case import COUNT, ROOT, Case, Sample

BENCH = ROOT / "bench"
#: The file in build/models, and the script of its task.
TASKS = {
    "ppocr_cls": BENCH / "tasks_small.py",
    "ppocr_det": BENCH / "tasks_detector.py",
    "ppocr_rec": BENCH / "tasks_lines.py",
    "opennsfw": BENCH / "tasks_digits.py",
    "magika": BENCH / "tasks_files.py",
    "silero_vad": BENCH / "tasks_speech.py",
    "minilm": BENCH / "tasks_sentences.py",
}
#: A page of the detector's task takes a second of float work; a corner of it has text as well.
CORNER = 160


def of_folder(folder: Path, count: int = COUNT) -> Case:
    files = sorted((folder / "calibration").iterdir())[:count]
    return Case(onnx.load(folder / "model.onnx"), [dict(np.load(file)) for file in files])


def cornered(sample: Sample) -> Sample:
    return {name: np.ascontiguousarray(value[..., :CORNER, :CORNER]) for name, value in sample.items()}


def of_task(name: str, models: Path) -> Case:
    with tempfile.TemporaryDirectory(prefix="detent-trained-") as folder:
        subprocess.run([sys.executable, TASKS[name], "prepare", name, models, folder], check=True)
        made = of_folder(Path(folder))
    return Case(made.model, [cornered(s) for s in made.samples]) if name == "ppocr_det" else made


def fetched(models: Path) -> dict[str, Callable[[], Case]]:
    """Of the models that scripts/fetch_models.py has laid down there."""
    return {f"trained {name}": functools.partial(of_task, name, models) for name in TASKS if (models / f"{name}.onnx").is_file()}
