"""windows.py DETENT MODELS FOLDER: what detent for Windows, in Wine, does beside writing models (same_bytes.py): it tells of
models, takes names that are not ASCII, writes to standard output byte for byte, replaces files that are open, says what is not
available, ends with the documented codes, and leaves nothing."""

import json
import pathlib
import shutil
import subprocess
import sys
import unittest

import numpy as np

PROGRAM, MODELS, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]).resolve()
MODEL = MODELS / "ppocr_cls.onnx"


def detent(*words: object, **more: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, cwd=FOLDER, **more)


def write_sample() -> None:
    rng = np.random.default_rng(0)
    np.savez(FOLDER / "0.npz", x=rng.standard_normal((1, 3, 48, 192)).astype(np.float32))


class Windows(unittest.TestCase):
    def setUp(self) -> None:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)

    def run_well(self, *words: object) -> bytes:
        done = detent(*words)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout

    def refused(self, code: int, text: str, *words: object) -> None:
        done = detent(*words)
        errors = [line for line in done.stderr.decode().splitlines() if line.startswith("detent: error: ")]
        self.assertEqual((done.returncode, len(errors)), (code, 1), done.stderr.decode())
        self.assertIn(text, errors[0])
        self.assertEqual([path.name for path in FOLDER.iterdir() if path.name.startswith(".")], [])

    def test_tells_of_models(self) -> None:
        self.assertRegex(self.run_well("--version").decode(), r"^detent \d+\.\d+\.\d+\n$")
        told = json.loads(self.run_well("inspect", MODEL, "--json"))
        self.assertGreater(told["nodes"] if isinstance(told.get("nodes"), int) else len(told), 0)

    def test_takes_names_that_are_not_ascii(self) -> None:
        model = FOLDER / "модель ü.onnx"
        shutil.copy(MODEL, model)
        self.run_well("quantize", model, "-o", "écrit.onnx", "--format", "fp16", "--no-bench")
        self.run_well("quantize", MODEL, "-o", "plain.onnx", "--format", "fp16", "--no-bench")
        self.assertEqual((FOLDER / "écrit.onnx").read_bytes(), (FOLDER / "plain.onnx").read_bytes())
        self.refused(3, "нет.onnx", "inspect", "нет.onnx")

    def test_writes_models_to_standard_output(self) -> None:
        self.run_well("quantize", MODEL, "-o", "plain.onnx", "--format", "fp16", "--no-bench")
        piped = self.run_well("quantize", MODEL, "-o", "-", "--format", "fp16", "--no-bench")
        self.assertEqual(piped, (FOLDER / "plain.onnx").read_bytes())

    def test_replaces_files(self) -> None:
        for _ in range(2):
            self.run_well("quantize", MODEL, "-o", "out.onnx", "--format", "fp16", "--no-bench")
        self.assertEqual([path.name for path in FOLDER.iterdir()], ["out.onnx"])

    def test_leaves_no_working_files(self) -> None:
        write_sample()
        (FOLDER / "work").mkdir()
        words = ("quantize", MODEL, "--calibration-data", "0.npz", "--preset", "plain", "--work-dir", "work", "--no-bench")
        self.run_well(*words, "-o", "whole.onnx")
        self.run_well(*words, "-o", "cut.onnx", "--memory-budget", "120MiB")
        self.assertEqual(list((FOLDER / "work").iterdir()), [])
        self.assertEqual((FOLDER / "whole.onnx").read_bytes(), (FOLDER / "cut.onnx").read_bytes())

    def test_keeps_to_the_exit_codes(self) -> None:
        (FOLDER / "broken.onnx").write_bytes(b"no model")
        self.refused(3, "broken.onnx", "inspect", "broken.onnx")
        self.refused(2, "does not exist", "quantize", MODEL, "-o", "nowhere/out.onnx", "--format", "fp16")
        self.refused(2, "directory", "quantize", MODEL, "-o", FOLDER, "--format", "fp16")

    def test_says_what_is_not_available(self) -> None:
        write_sample()
        samples = ("--calibration-data", "0.npz")
        command = (
            "--accuracy-metric",
            "command",
            "--accuracy-command",
            "true {model}",
            "--accuracy-target",
            "0.9",
            "--preset",
            "balanced",
        )
        for words in (
            ("quantize", MODEL, "-o", "o.onnx", *samples, "--isolate"),
            ("quantize", MODEL, "-o", "o.onnx", *samples, *command),
            ("quantize", MODEL, "-o", "folder", "--family", "q8,fp16"),
            ("bench", MODEL),
        ):
            with self.subTest(words):
                self.refused(2, "is not available on Windows", *words)
        self.refused(5, "no CUDA driver", "quantize", MODEL, "-o", "o.onnx", "--calibration-data", "0.npz", "--device", "cuda:0")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
