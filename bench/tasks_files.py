"""Google's Magika names the type of a file by its first and last bytes: the score is the share of files that a model names as the
float model does. Files are what lies in the wheels that scripts/fetch_models.py fetched: sources, libraries, pictures, fonts.
The command line is tasks_common.py's."""

import collections
import pathlib
import shutil
import zipfile

import numpy as np
import tasks_common

CALIBRATION, TEST = 32, 400
ENDS, NOTHING = 1024, 256  # bytes of each end; what stands where there are none
LEAST = 600  # bytes of a file
LARGEST = 1 << 22
EACH = 60  # files of one extension


def ends_of(data: bytes) -> np.ndarray:
    found = np.full(2 * ENDS, NOTHING, np.int32)
    head, tail = data[: 4 * ENDS].lstrip()[:ENDS], data[-4 * ENDS :].rstrip()[-ENDS:]
    found[: len(head)] = np.frombuffer(head, np.uint8)
    found[2 * ENDS - len(tail) :] = np.frombuffer(tail, np.uint8)
    return found


def files(models: pathlib.Path) -> np.ndarray:
    """In an order that mixes types and wheels; no more than EACH of one extension."""
    found, counts = [], collections.Counter()
    for wheel in sorted((models / "wheels").glob("*.whl")):
        archive = zipfile.ZipFile(wheel)
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            kind = pathlib.Path(entry.filename).suffix
            if LEAST <= entry.file_size <= LARGEST and counts[kind] < EACH:
                counts[kind] += 1
                found.append(ends_of(archive.read(entry)))
    return np.stack(found)[np.random.default_rng(17).permutation(len(found))]


def prepare(models: pathlib.Path, out: pathlib.Path) -> None:
    shutil.copyfile(models / "magika.onnx", out / "model.onnx")
    rows = files(models)
    tasks_common.save_calibration(out, ({"bytes": row[None]} for row in rows[:CALIBRATION]))
    np.save(out / "test.npy", rows[CALIBRATION : CALIBRATION + TEST])


def agreement(_folder: pathlib.Path, known: np.ndarray, asked: np.ndarray) -> float:
    return float((known.argmax(1) == asked.argmax(1)).mean())


if __name__ == "__main__":
    tasks_common.main(prepare, agreement)
