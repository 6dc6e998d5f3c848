"""What the tasks that scores.py adds to the demo's share. Their scripts are started as examples/demo/tasks.py is:

SCRIPT prepare TASK MODELS DIR         writes DIR/model.onnx, DIR/calibration/*.npz and DIR/test.npy or .npz
SCRIPT accuracy TASK DIR FLOAT OUTPUT  prints the score of OUTPUT (.npy, a model's results on the test samples);
                                       FLOAT (.npy) are the float model's"""

import pathlib
import sys
from collections.abc import Callable, Iterable

import numpy as np
from PIL import ImageFont

FOLDS = 5


def font_of(path: pathlib.Path, size: int) -> ImageFont.FreeTypeFont:
    """The same letters everywhere: Pillow's other layout needs a library that not every machine has, and spaces otherwise."""
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def save_calibration(out: pathlib.Path, samples: Iterable[dict[str, np.ndarray]]) -> None:
    (out / "calibration").mkdir()
    for i, sample in enumerate(samples):
        np.savez(out / "calibration" / f"{i:03}.npz", **sample)


def cross_fitted(known: np.ndarray, asked: np.ndarray, labels: np.ndarray, ridge: float) -> float:
    """The share of right answers of a linear layer that is fitted on the features `known` of four fifths of the samples and
    then given the features `asked` of the rest, in turn, so that every sample is judged once."""
    classes = labels.max() + 1
    targets, fold, right = np.eye(classes)[labels] - 1 / classes, np.arange(len(labels)) % FOLDS, 0
    for number in range(FOLDS):
        test = fold == number
        centre = known[~test].mean(0)
        x = known[~test] - centre
        weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ targets[~test])
        right += (((asked[test] - centre) @ weights).argmax(1) == labels[test]).sum()
    return right / len(labels)


def main(
    prepare: Callable[[pathlib.Path, pathlib.Path], None],
    accuracy: Callable[[pathlib.Path, np.ndarray, np.ndarray], float],
) -> None:
    verb, _task, *rest = sys.argv[1:]
    paths = [pathlib.Path(path) for path in rest]
    if verb == "prepare":
        prepare(*paths)
    else:
        folder, known, asked = paths
        print(accuracy(folder, np.load(known), np.load(asked)))
