"""What the tasks of scores.py share, but for those of tasks_small.py. Their scripts are started as tasks_small.py is:

SCRIPT prepare TASK MODELS DIR         writes DIR/model.onnx, DIR/calibration/*.npz and DIR/test.npy or .npz
SCRIPT accuracy TASK DIR FLOAT OUTPUT  prints the score of OUTPUT (.npy, a model's results on the test samples);
                                       FLOAT (.npy) are the float model's
SCRIPT mean TASK DIR FLOAT OUTPUT      the same over SHUFFLES divisions of the samples, for tasks that divide them: one division
                                       alone says less about small differences"""

import pathlib
import sys
from collections.abc import Callable, Iterable

import numpy as np
from PIL import ImageFont

FOLDS, SHUFFLES = 5, 20


def font_of(path: pathlib.Path, size: int) -> ImageFont.FreeTypeFont:
    """The same letters everywhere: Pillow's other layout needs a library that not every machine has, and spaces otherwise."""
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def save_calibration(out: pathlib.Path, samples: Iterable[dict[str, np.ndarray]]) -> None:
    (out / "calibration").mkdir()
    for i, sample in enumerate(samples):
        np.savez(out / "calibration" / f"{i:03}.npz", **sample)


def cross_fitted(known: np.ndarray, asked: np.ndarray, labels: np.ndarray, ridge: float, seed: int | None = None) -> float:
    """The share of right answers of a linear layer that is fitted on the features `known` of four fifths of the samples and
    then given the features `asked` of the rest, in turn, so that every sample is judged once. `seed` shuffles the fifths."""
    classes = labels.max() + 1
    targets, fold, right = np.eye(classes)[labels] - 1 / classes, np.arange(len(labels)) % FOLDS, 0
    if seed is not None:
        np.random.default_rng(seed).shuffle(fold)
    for number in range(FOLDS):
        test = fold == number
        centre = known[~test].mean(0)
        x = known[~test] - centre
        weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ targets[~test])
        right += (((asked[test] - centre) @ weights).argmax(1) == labels[test]).sum()
    return right / len(labels)


def main(
    prepare: Callable[[pathlib.Path, pathlib.Path], None],
    accuracy: Callable[..., float],
) -> None:
    """`accuracy` takes the folder, the float model's results and those that are judged; and a seed, where it divides them."""
    verb, _task, *rest = sys.argv[1:]
    paths = [pathlib.Path(path) for path in rest]
    if verb == "prepare":
        prepare(*paths)
    else:
        results = paths[0], np.load(paths[1]), np.load(paths[2])
        shuffled = [accuracy(*results, seed) for seed in range(SHUFFLES)] if verb == "mean" else [accuracy(*results)]
        print(np.mean(shuffled))
