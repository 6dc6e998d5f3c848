"""The features of Yahoo's open_nsfw, a thin ResNet-50, tell handwritten digits apart; the command line is tasks_common.py's.

tasks_small.py does the same with 250 digits. Here are more of them: between models whose scales differ in the seventh place alone
(detent's and quantize_static's minmax) 250 gave 2 points of difference."""

import pathlib

import numpy as np
import onnx
import tasks_common
from PIL import Image

CALIBRATION, TEST = 32, 600
MEAN = np.array([104, 117, 123], np.float32)  # BGR, as the model was trained


def images(rows: np.ndarray) -> np.ndarray:
    """8x8 greys of 0 to 16, enlarged to what the model takes."""
    greys = [Image.fromarray((row.reshape(8, 8) * 15.9).astype(np.uint8)).resize((224, 224), Image.BICUBIC) for row in rows]
    return np.stack([np.asarray(grey, np.float32)[:, :, None] - MEAN for grey in greys])


def add_feature_output(source: pathlib.Path, target: pathlib.Path) -> None:
    """What the last layer reads becomes the last output."""
    model = onnx.load(source)
    features = next(node.input[0] for node in model.graph.node if node.op_type == "MatMul")
    model.graph.output.append(onnx.helper.make_tensor_value_info(features, onnx.TensorProto.FLOAT, ["N", 1024]))
    onnx.save(model, target)


def prepare(models: pathlib.Path, out: pathlib.Path) -> None:
    add_feature_output(models / "opennsfw.onnx", out / "model.onnx")
    table = np.loadtxt(models / "digits.csv.gz", delimiter=",")
    table = table[np.random.default_rng(8).permutation(len(table))]
    calibration, test = table[:CALIBRATION], table[CALIBRATION : CALIBRATION + TEST]
    tasks_common.save_calibration(out, ({"input:0": image[None]} for image in images(calibration[:, :64])))
    np.save(out / "test.npy", images(test[:, :64]))
    np.save(out / "labels.npy", test[:, 64].astype(int))


def accuracy(folder: pathlib.Path, known: np.ndarray, asked: np.ndarray, seed: int | None = None) -> float:
    scale, labels = known.std(0) + 0.05, np.load(folder / "labels.npy")
    return tasks_common.cross_fitted(known / scale, asked / scale, labels, 0.1 * len(labels), seed)


if __name__ == "__main__":
    tasks_common.main(prepare, accuracy)
