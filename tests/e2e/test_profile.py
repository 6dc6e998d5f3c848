"""What a profile says, beside what the kernel counted of the same process."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
import support
from support import Path

MIB = 1 << 20
ROUNDING = 0.000501 * MIB  # of the file's three decimals
KEYS = ["timestamp", "relative_time_secs", "cpu_memory_mb", "gpu_memory_mb", "disk_read_mb", "disk_write_mb"]
RECORD = r'^- step: ".*"\n' + "".join(rf"  {key}: [0-9.]+\n" for key in KEYS)
MEMORY = pathlib.Path("/dev/shm")


@pytest.fixture
def off_disk() -> Iterator[Path]:
    """A folder in memory: what is written or removed there after the profile's end counts as no disk traffic."""
    if not os.access(MEMORY, os.W_OK):
        pytest.skip("no /dev/shm")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


def run_measured(counts: Path, *arguments: object) -> dict:
    """Runs detent; what the kernel counted."""
    wrapper = pathlib.Path(__file__).with_name("measured.py")
    command = [sys.executable, "-I", "-S", wrapper, counts, support.DETENT, *arguments]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, support.without_notes(done.stderr)) == (0, ""), done.stderr
    return json.loads(counts.read_text())


def figure(profile: Path, key: str) -> float:
    return float(re.search(rf"^{key}: (.*)$", profile.read_text(), re.MULTILINE)[1])


def stage_peaks(profile: Path) -> dict[str, float]:
    found = re.findall(r'^- name: "(.*)"\n  seconds: .*\n  peak_memory_mb: (.*)$', profile.read_text(), re.MULTILINE)
    return {name: float(peak) for name, peak in found}


@pytest.fixture(scope="module")
def ocr(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and samples that keep it busy for a while."""
    folder = tmp_path_factory.mktemp("ocr")
    rng = np.random.default_rng(0)
    samples = [{"x": rng.standard_normal((64, 3, 48, 192), dtype=np.float32)} for _ in range(8)]
    model = folder / "model.onnx"
    model.write_bytes((support.MODELS / "ppocr_cls.onnx").read_bytes())
    return model, support.save_samples(folder / "data", samples)


@pytest.mark.full
def test_peaks_are_those_of_the_kernel(ocr: tuple[Path, Path], tmp_path: Path) -> None:
    profile = tmp_path / "p.yaml"
    options = ["--calibration-data", ocr[1], "--profile", profile, "--set", f"trace={tmp_path / 't.json'}"]
    counted = run_measured(tmp_path / "counts", "calibrate", ocr[0], "-o", tmp_path / "s.stats", *options)
    # Making the trace comes after the profile's end, and measures the machine in a buffer of its own. The kernel counts pages for
    # each processor, and its two sums differ by some percent where processes share few processors.
    plain = tmp_path / "plain.yaml"
    bare = run_measured(tmp_path / "bare", "calibrate", ocr[0], "-o", tmp_path / "t.stats", *options[:2], "--profile", plain)
    assert figure(plain, "peak_memory_mb") == pytest.approx(bare["peak_bytes"] / MIB, rel=0.1)
    assert max(stage_peaks(plain).values()) == pytest.approx(bare["peak_bytes"] / MIB, rel=0.1)
    assert figure(profile, "peak_memory_mb") <= counted["peak_bytes"] / MIB * 1.1
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    sampled = MIB * max(sum(event["args"].values()) for event in events if event["name"] == "memory (MB)")
    # It samples each 20 ms where the machine lets it, and may come between two moments of most memory.
    assert 0.8 < sampled / MIB / figure(profile, "peak_memory_mb") < 1.02


def evict(path: Path) -> None:
    """Takes a file out of the page cache, so that it is read from the disk again."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_disk_traffic_is_that_of_the_kernel(ocr: tuple[Path, Path], tmp_path: Path, off_disk: Path) -> None:
    def run(name: str) -> tuple[dict, Path]:
        profile = off_disk / f"{name}.yaml"
        options = ["--calibration-data", ocr[1], "--profile", profile, "--work-dir", off_disk, "--samples", 2, *support.PLAIN]
        return run_measured(off_disk / "counts", "quantize", ocr[0], "-o", tmp_path / f"{name}.onnx", *options), profile

    def off(figure_mb: str, counted: int, profile: Path) -> float:
        return abs(figure(profile, figure_mb) * MIB - counted)

    run("warm")
    # The program's own pages are in memory now. On a machine with little of it they may go again, and are then read before
    # anything is measured: so several tries, as for pages of a folder's that the file system writes meanwhile.
    for attempt in range(8):
        for path in (ocr[0], *ocr[1].iterdir()):
            evict(path)
        counted, profile = run(f"cold{attempt}")
        kinds = ("read", "write")
        if all(off(f"total_disk_{kind}_mb", counted[f"{kind}_bytes"], profile) <= ROUNDING for kind in kinds):
            break
    assert counted["write_bytes"] > (tmp_path / f"cold{attempt}.onnx").stat().st_size
    assert off("total_disk_write_mb", counted["write_bytes"], profile) <= ROUNDING
    assert off("total_disk_read_mb", counted["read_bytes"], profile) <= ROUNDING
    assert counted["read_bytes"] > 0 or on_memory(ocr[0])


def on_memory(path: Path) -> bool:
    """Whether the file lies on a file system that reads no disk."""
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip() == "tmpfs"


def test_a_killed_run_leaves_a_readable_file(ocr: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed in the middle of calibration: the checkpoints so far are there whole, the summary is not."""
    profile = tmp_path / "p.yaml"
    options = ["--calibration-data", ocr[1], "--profile", profile, "--threads", 1, *support.PLAIN]
    environment = {**os.environ, "DETENT_FAILPOINT": "calibrate.sample=kill@2"}
    run = support.detent("calibrate", ocr[0], "-o", tmp_path / "s.stats", *options, env=environment)
    assert run.returncode == -signal.SIGKILL
    text = profile.read_text()
    steps = re.findall(r'^- step: "(.*)"$', text, re.MULTILINE)
    assert (steps[0], steps[-1]) == ("Start", "Calibration Start")
    assert len(re.findall(RECORD, text, re.MULTILINE)) == len(steps)
    assert re.sub(RECORD, "", text, flags=re.MULTILINE) == "# detent profile\n\nmemory_usage:\n"
