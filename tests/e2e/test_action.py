"""What the GitHub action runs, and that action.yml gives the script the variables that it reads."""

import os
import re
import subprocess

import graphs
import onnx
import pytest
import support
from support import Path

SCRIPT = support.ROOT / "scripts" / "action.sh"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    support.save_samples(tmp_path / "samples", graphs.cnn_samples())
    return tmp_path


def run(place: Path, **more: str) -> subprocess.CompletedProcess:
    given = {"DETENT": str(support.DETENT), "MODEL": "model.onnx", "OUTPUT": "out.onnx", "CALIBRATION_DATA": "samples"}
    given |= {"GITHUB_STEP_SUMMARY": "summary.md", "OPTIONS": "--no-bench --threads 1", "MIN_SQNR": "10"}
    return subprocess.run([SCRIPT], cwd=place, env={**os.environ, **given, **more}, capture_output=True, text=True, check=False)


def test_quantizes_compares_and_writes_the_summary(place: Path) -> None:
    done = run(place, HELD_BACK="samples")
    assert done.returncode == 0, done.stderr
    assert (place / "out.onnx").exists()
    summary = (place / "summary.md").read_text()
    assert "|---|" in summary and "cosine" in summary


def test_ends_with_the_code_of_what_failed_and_still_shows_the_result(place: Path) -> None:
    assert run(place, HELD_BACK="samples", MIN_SQNR="200").returncode == 3
    assert "less than the 200 of --min-sqnr" in (place / "summary.md").read_text()
    assert run(place, CALIBRATION_DATA="nowhere", OUTPUT="other.onnx").returncode == 3
    assert not (place / "other.onnx").exists()


def test_formats_without_samples_need_none(place: Path) -> None:
    done = run(place, CALIBRATION_DATA="", OPTIONS="--format int8-dynamic --no-bench")
    assert done.returncode == 0, done.stderr


def test_comments_on_the_pull_request(place: Path) -> None:
    (place / "bin").mkdir()
    gh = place / "bin" / "gh"
    gh.write_text('#!/bin/sh\necho "$@" > told\ncp "$5" comment.md\n')
    gh.chmod(0o755)
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    assert run(place, COMMENT="true", PULL_REQUEST="https://host/pull/7", PATH=path).returncode == 0
    assert (place / "told").read_text().startswith("pr comment https://host/pull/7 --body-file ")
    assert "|---" in (place / "comment.md").read_text()


def test_the_action_gives_what_the_script_reads() -> None:
    action = (support.ROOT / "action.yml").read_text()
    given = set(re.findall(r"^        ([A-Z_]+): ", action, re.MULTILINE))
    read = set(re.findall(r"\$\{?([A-Z][A-Z_]+)", SCRIPT.read_text())) - {"GITHUB_STEP_SUMMARY", "DETENT"}
    assert given == read | {"GH_TOKEN"}
    named = set(re.findall(r"inputs\.([a-z-]+)", action))
    assert named == set(re.findall(r"^  ([a-z-]+): \{", action, re.MULTILINE)) - {"branding"}
