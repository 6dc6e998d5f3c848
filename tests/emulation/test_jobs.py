"""Jobs of detent for another machine, in an emulator, beside those of detent for this one. $DETENT_EMULATED starts the former,
$DETENT the latter (build/detent). Every file that is written there is loaded and judged by this machine's ONNX Runtime. Where
the runtime's arithmetic takes no part, both have to write the same bytes; elsewhere the files have to be as near to the float
model, within a decibel. Each job prints what was found, as a line of JSON."""

import json
import os
import pathlib
import re
import signal
import subprocess
from collections.abc import Callable, Iterator

import graphs
import numpy as np
import onnx
import pytest
import support
from PIL import Image
from support import Path, Sample

BOTH = {"ours": support.DETENT.resolve(), "emulated": pathlib.Path(os.environ["DETENT_EMULATED"])}
DECIBEL = 1.0
NO_GRAPHICS = "Failed to create DXGI factory.\n"  # what ONNX Runtime says in Wine
MOST_SECONDS = 900

Job = tuple[Path, Path]  # a float model, and its samples
Told = Callable[..., None]
Ran = subprocess.CompletedProcess[str]


def photos(count: int) -> list[Sample]:
    """Pictures as PP-OCR's classifier of text directions takes them."""
    samples = []
    paths = [path for path in sorted((support.MODELS / "photos").iterdir()) if path.suffix in (".jpg", ".png")]
    for path in paths[:count]:
        pixels = np.asarray(Image.open(path).convert("RGB").resize((192, 48)), np.float32) / 127.5 - 1
        samples.append({"x": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})
    return samples


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    folder = tmp_path_factory.mktemp("jobs")
    made = {
        "cnn": (graphs.small_cnn(), graphs.cnn_samples(8, 8)),
        "transformer": (graphs.transformer(), graphs.transformer_samples(8)),
        "skips": (graphs.skips(384), graphs.skip_samples(384)),
    }
    found = {}
    for name, (model, samples) in made.items():
        onnx.save(model, folder / f"{name}.onnx")
        found[name] = (folder / f"{name}.onnx", support.save_samples(folder / name, samples))
    return {**found, "trained": (support.MODELS / "ppocr_cls.onnx", support.save_samples(folder / "trained", photos(8)))}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Each takes the runtime beside it; neither knows what an earlier run measured of the machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DETENT_")}
    return {**kept, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "ORT_DISABLE_TELEMETRY": "1"}


@pytest.fixture
def start(environment: dict[str, str]) -> Callable[..., Ran]:
    """Runs one of both, with settings for the environment."""

    def run(program: str, *words: object, **settings: str) -> Ran:
        command = [str(BOTH[program]), *map(str, words)]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=MOST_SECONDS, check=False, env={**environment, **settings}
        )
        ran.stderr = ran.stderr.replace(NO_GRAPHICS, "")
        return ran

    return run


@pytest.fixture
def run(start: Callable[..., Ran]) -> Callable[..., dict]:
    """The same for what has to succeed; what it prints as JSON."""

    def told(program: str, *words: object, **settings: str) -> dict:
        ran = start(program, *words, "--json", **settings)
        assert (ran.returncode, support.without_notes(ran.stderr)) == (0, ""), ran.stderr
        return json.loads(ran.stdout)

    return told


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Iterator[Told]:
    def line(**found: object) -> None:
        with capsys.disabled():
            print(json.dumps({"job": request.node.name, **found}), flush=True)

    yield line


def with_samples(job: Job) -> list[object]:
    return ["--calibration-data", job[1]]


def judged(job: Job, written: Path) -> float:
    """How near the file is to the float model, as this machine's runtime runs both, in dB."""
    samples = support.load_samples(job[1])
    return support.sqnr(support.outputs(support.load(job[0]), samples), support.outputs(support.check_model(written), samples))


def written_by_both(run: Callable[..., dict], job: Job, folder: Path, *words: object) -> dict[str, Path]:
    files = {program: folder / f"{program}.onnx" for program in BOTH}
    for program, file in files.items():
        run(program, "quantize", job[0], "-o", file, "--no-bench", *words)
    return files


EXACT = [
    ("transformer", "--weights-only"),
    ("transformer", "--format q8"),
    ("transformer", "--format q2"),
    ("transformer", "--format fp16"),
    ("transformer", "--format int8-dynamic"),
    ("trained", "--format fp16"),
    ("trained", "--format int8-dynamic"),
]


@pytest.mark.parametrize(("name", "words"), EXACT)
def test_what_needs_no_samples_has_the_same_bytes(
    jobs: dict[str, Job], run: Callable[..., dict], tell: Told, tmp_path: Path, name: str, words: str
) -> None:
    files = written_by_both(run, jobs[name], tmp_path, *words.split())
    same = files["ours"].read_bytes() == files["emulated"].read_bytes()
    tell(same_bytes=same, decibel=round(judged(jobs[name], files["emulated"]), 2))
    assert same


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "nvfp4", "bfp16", "bf16"])
def test_what_other_runtimes_run_has_the_same_bytes(
    jobs: dict[str, Job], run: Callable[..., dict], tmp_path: Path, name: str
) -> None:
    files = written_by_both(run, jobs["transformer"], tmp_path, "--format", name)
    onnx.load(files["emulated"])
    assert files["ours"].read_bytes() == files["emulated"].read_bytes()


# By size, since what the machine is fast at would decide otherwise.
TRIALS = "--preset balanced --optimize-for size"
NEAR = [
    ("trained", TRIALS),
    ("transformer", TRIALS),
    ("cnn", "--preset plain"),
    ("transformer", "--preset plain"),
    ("transformer", "--weights-only"),
    ("cnn", "--preset plain --finetune gptq"),
]


@pytest.mark.parametrize(("name", "words"), NEAR)
def test_what_comes_from_samples_is_as_near(
    jobs: dict[str, Job], run: Callable[..., dict], tell: Told, tmp_path: Path, name: str, words: str
) -> None:
    job = jobs[name]
    files = written_by_both(run, job, tmp_path, *with_samples(job), *words.split())
    found = {program: round(judged(job, file), 2) for program, file in files.items()}
    tell(same_bytes=files["ours"].read_bytes() == files["emulated"].read_bytes(), decibel=found)
    assert abs(found["emulated"] - found["ours"]) <= DECIBEL


def test_the_default_run_ends_in_a_file_that_it_has_tried(
    jobs: dict[str, Job], run: Callable[..., dict], tell: Told, tmp_path: Path
) -> None:
    """With the times of operators and models, which are the emulator's and decide what stays in float."""
    job, file = jobs["transformer"], tmp_path / "q.onnx"
    told = run("emulated", "quantize", job[0], "-o", file, *with_samples(job))
    decibel = judged(job, file)
    tell(decibel=round(decibel, 2), told=round(told["accuracy"]["sqnr_db"], 2), integers=told["nodes_quantized"])
    assert abs(decibel - told["accuracy"]["sqnr_db"]) <= DECIBEL


def test_segments_change_no_byte(
    jobs: dict[str, Job], start: Callable[..., Ran], run: Callable[..., dict], tell: Told, tmp_path: Path
) -> None:
    job, whole, cut = jobs["skips"], tmp_path / "whole.onnx", tmp_path / "cut.onnx"
    work = tmp_path / "work"
    work.mkdir()
    words = [job[0], *with_samples(job), "--preset", "plain"]
    refused = start("emulated", "plan", *words, "--memory-budget", "40MiB")
    found = re.search(r"the smallest --memory-budget that works is (\w+)", refused.stderr)
    assert (refused.returncode, bool(found)) == (4, True), refused.stderr
    budget = ["--memory-budget", found[1]]
    segments = len(run("emulated", "plan", *words, *budget)["segments"])
    run("emulated", "quantize", *words, "--no-bench", "-o", whole)
    run("emulated", "quantize", *words, "--no-bench", "-o", cut, "--work-dir", work, *budget)
    tell(budget=found[1], segments=segments, decibel=round(judged(job, cut), 2))
    assert segments > 1
    assert whole.read_bytes() == cut.read_bytes()
    assert not list(work.iterdir())


def test_a_killed_run_goes_on(
    jobs: dict[str, Job], start: Callable[..., Ran], run: Callable[..., dict], tell: Told, tmp_path: Path
) -> None:
    job, whole, resumed = jobs["cnn"], tmp_path / "whole.onnx", tmp_path / "resumed.onnx"
    work = tmp_path / "work"
    work.mkdir()
    words = [job[0], *with_samples(job), "--preset", "plain", "--finetune", "gptq", "--no-bench", "--work-dir", work]
    words += ["--set", "checkpoint-seconds=0"]
    killed = start("emulated", "quantize", *words, "-o", resumed, "--resume", DETENT_FAILPOINT="finetune.solved=kill@2")
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
    assert not resumed.exists() and len(list(work.iterdir())) == 1
    told = run("emulated", "quantize", *words, "-o", resumed, "--resume")
    assert not list(work.iterdir())
    run("emulated", "quantize", *words, "-o", whole)
    tell(decibel=round(judged(job, resumed), 2), notes=told["notes"])
    assert resumed.read_bytes() == whole.read_bytes()


def test_statistics_serve_on_either(jobs: dict[str, Job], run: Callable[..., dict], tell: Told, tmp_path: Path) -> None:
    job, plain = jobs["transformer"], ["--preset", "plain"]
    files = {}
    for taken in BOTH:
        statistics = tmp_path / f"{taken}.stats"
        run(taken, "calibrate", job[0], "-o", statistics, *with_samples(job), *plain)
        for program in BOTH:
            file = files[taken, program] = tmp_path / f"{taken}.{program}.onnx"
            run(program, "quantize", job[0], "-o", file, "--statistics", statistics, "--no-bench", *plain)
    found = {taken: round(judged(job, files[taken, "emulated"]), 2) for taken in BOTH}
    tell(decibel=found)
    for taken in BOTH:
        assert files[taken, "ours"].read_bytes() == files[taken, "emulated"].read_bytes(), taken
    assert abs(found["ours"] - found["emulated"]) <= DECIBEL


def test_comparisons_find_the_same(jobs: dict[str, Job], run: Callable[..., dict], tell: Told, tmp_path: Path) -> None:
    job, file = jobs["transformer"], tmp_path / "q.onnx"
    run("ours", "quantize", job[0], "-o", file, *with_samples(job), "--preset", "plain", "--no-bench")
    ours, emulated = (run(program, "compare", job[0], file, *with_samples(job)) for program in BOTH)
    # Where nothing was changed, there is no such figure.
    layers = [{layer["name"]: layer["sqnr_db"] or 0 for layer in told["layers"]} for told in (ours, emulated)]
    assert layers[0].keys() == layers[1].keys()
    apart = max(abs(layers[0][name] - layers[1][name]) for name in layers[0])
    tell(layers=len(layers[0]), apart=round(apart, 4), decibel=round(judged(job, file), 2))
    assert any(layers[0].values()) and apart <= DECIBEL


# What the machine is, and how fast. Convolutions run in blocks of channels on x86 alone: with copies of their weights.
BLOCKED = "convolution weights in blocked layout"
OF_THE_MACHINE = {
    "calibration_seconds",
    "disk_budget_bytes",
    "measuring_seconds",
    "memory_budget_bytes",
    "seconds",
    "work_dir_bytes",
}


@pytest.mark.parametrize("name", ["trained", "transformer"])
def test_plans_are_the_same(jobs: dict[str, Job], run: Callable[..., dict], tell: Told, name: str) -> None:
    job = jobs[name]
    words = ["plan", job[0], *with_samples(job), "--preset", "plain"]
    ours, emulated = (run(program, *words) for program in BOTH)
    parts = [{part["what"]: part["bytes"] for part in told["memory"]} for told in (ours, emulated)]
    copies = [of_one.pop(BLOCKED, 0) for of_one in parts]
    differ = {key for key in ours.keys() | emulated.keys() if ours.get(key) != emulated.get(key)}
    tell(differ=sorted(differ), copies=copies)
    assert parts[0] == parts[1] and copies[1] in (0, copies[0])
    assert differ <= OF_THE_MACHINE | ({"memory", "peak_memory_bytes", "stages"} if copies[0] != copies[1] else set())


@pytest.mark.parametrize("name", ["trained", "transformer"])
def test_models_are_told_of_in_the_same_words(jobs: dict[str, Job], start: Callable[..., Ran], name: str) -> None:
    for words in ([], ["--json"]):
        ours, emulated = (start(program, "inspect", jobs[name][0], *words) for program in BOTH)
        assert (emulated.returncode, emulated.stdout, emulated.stderr) == (0, ours.stdout, ours.stderr)
        assert ours.stdout
