"""Directories of interrupted runs that somebody changed: the run that goes on writes the bytes of a whole one, or says in
one line that it does not."""

import os
import shutil
import signal
from collections.abc import Callable

import graphs
import numpy as np
import onnx
import pytest
import support
from support import Path

CODES = {2, 3, 4}
# How a run is killed, so that what the next one reads lies in its directory.
RUNS = {
    "sums of weights": (["--weights-only", "--float", "16"], "weights.stage=kill@1"),
    "solved weights": (["--weights-only"], "weights.solved=kill@2"),
    "bits of weights": (["--weights-only", "--max-size", "30KiB"], "weights.solved=kill@3"),
    "solved layers": (["--preset", "plain", "--finetune", "gptq"], "finetune.solved=kill@1"),
    "progress": (["--preset", "plain", "--set", "checkpoint-seconds=0"], "calibrate.sample=kill@3"),
    "progress on disk": (
        ["--preset", "plain", "--set", "checkpoint-seconds=0", "--set", "memory-level=2", "--set", "segments=3"],
        "calibrate.sample=kill@6",
    ),
    "kernels": (["--preset", "balanced", "--optimize-for", "latency"], "calibrate.sample=kill@2"),
}


def another_digit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in [i for i, byte in enumerate(content) if byte in b"0123456789"][:40:3]:
        content[at] ^= 1
    path.write_bytes(content)


def flipped(at: float) -> Callable[[Path], None]:
    def tamper(path: Path) -> None:
        content = bytearray(path.read_bytes())
        if content:
            content[int(at * (len(content) - 1))] ^= 0x11
        path.write_bytes(content)

    tamper.__name__ = f"flipped_{at}"
    return tamper


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(4096))


def of_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def of_deep_json(path: Path) -> None:
    path.write_bytes(b"[" * 100_000 + b"]" * 100_000)


def removed(path: Path) -> None:
    path.unlink()


def a_link_to_noise(path: Path) -> None:
    noise = path.parents[2] / f"noise-{path.name}"
    noise.write_bytes(np.random.default_rng(1).bytes(max(64, path.stat().st_size)))
    path.unlink()
    path.symlink_to(noise)


WAYS = [
    *[another_digit, flipped(0), flipped(0.3), flipped(0.9), flipped(1)],
    *[cut, emptied, longer, of_zeros, of_deep_json, removed, a_link_to_noise],
]


def command(folder: Path, work: Path, options: list[str]) -> list[object]:
    return [
        *["quantize", folder / "m.onnx", "-o", folder / "q.onnx", "--calibration-data", folder / "data", "--no-bench"],
        *["--work-dir", work, "--resume", *options],
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RUNS)
def test_tampered_runs_give_the_same_bytes_or_an_error(name: str, tmp_path: Path) -> None:
    options, point = RUNS[name]
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    support.save_samples(tmp_path / "data", graphs.transformer_samples(3))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    work, killed = tmp_path / "work", tmp_path / "killed"
    work.mkdir()
    whole = support.detent(*command(tmp_path, work, options), env=environment)
    assert whole.returncode == 0, whole.stderr
    expected = support.sha256(tmp_path / "q.onnx")
    (tmp_path / "q.onnx").unlink()
    stopped = support.detent(*command(tmp_path, work, options), env={**environment, "DETENT_FAILPOINT": point})
    assert stopped.returncode == -signal.SIGKILL, stopped.stderr
    work.rename(killed)
    files = sorted(f for f in killed.rglob("*") if f.is_file() and not f.is_symlink())
    assert any(f.name != "run.json" for f in files), files
    ends = set()
    for number, file in enumerate(files):
        # Each file in some of the ways, and all files in all.
        for tamper in WAYS[number % 3 :: 3] if len(files) > 3 else WAYS:
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(killed, work, symlinks=True)
            tamper(work / file.relative_to(killed))
            done = support.detent(*command(tmp_path, work, options), env=environment)
            told = (str(file.relative_to(killed)), tamper.__name__, done.returncode, done.stderr[-300:])
            ends.add(done.returncode)
            if done.returncode == 0:
                assert support.sha256(tmp_path / "q.onnx") == expected, told
                (tmp_path / "q.onnx").unlink()
            else:
                assert done.returncode in CODES, told
                assert support.without_notes(done.stderr).count("detent: error:") == 1, told
                assert not (tmp_path / "q.onnx").exists(), told
    assert 0 in ends
