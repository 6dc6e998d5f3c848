"""detent demo: from a model to a table."""

import pathlib
import re
import shutil
import subprocess
import sys

import support


def demo(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "detent", "demo", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_table_compares_both_models(tmp_path: pathlib.Path) -> None:
    """The model lies there already, so that nothing is fetched."""
    shutil.copy(support.MODELS / "ppocr_cls.onnx", tmp_path / "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    ran = demo("direction", "-o", tmp_path)
    assert ran.returncode == 0, ran.stderr
    before, after = (float(figure) for figure in re.search(r"score +([\d.]+) % +([\d.]+) %", ran.stdout).groups())
    assert before > 70
    assert abs(before - after) < 4
    assert (tmp_path / "direction.int8.onnx").stat().st_size < 0.6 * (support.MODELS / "ppocr_cls.onnx").stat().st_size


def test_another_model_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ch_PP-OCRv4_rec_infer.onnx").write_bytes(b"no model")
    ran = demo("-o", tmp_path)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "remove it, and it is fetched again" in ran.stderr
