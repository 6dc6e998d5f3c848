"""The model in segments: the same bytes however it is cut, wherever tensors wait, and whenever the run is killed."""

import dataclasses
import os
import re
import signal
import subprocess

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, INTERRUPTED, RESOURCE, USAGE, check, stopped
from support import Path

MIB = 1 << 20
FINETUNE = {"gptq": ["--finetune", "gptq"], "adaround": ["--finetune", "adaround", "--set", "num-iterations=5"]}
CUT = ["--set", "segments=4", "--set", "memory-level=2"]
SAVED = ["--resume", "--set", "checkpoint-seconds=0"]


@dataclasses.dataclass
class Case:
    """A model and its samples, with places for the output and for working files."""

    model: Path
    data: Path
    folder: Path

    def __post_init__(self) -> None:
        self.work = self.folder / "work"
        self.work.mkdir(parents=True)
        self.output = self.folder / "out.onnx"

    def command(self, *options: object) -> list[str]:
        common = ["quantize", self.model, "-o", self.output, "--calibration-data", self.data, "--work-dir", self.work]
        preset = [] if "--preset" in options else support.PLAIN
        return [str(part) for part in [*common, "--threads", 2, *preset, *options]]

    def run(self, *options: object, failpoint: str = "") -> support.Ran:
        return support.detent(*self.command(*options), env={**os.environ, "DETENT_FAILPOINT": failpoint})

    def digest(self, *options: object) -> str:
        """Of the output of a run that must succeed and leave nothing else."""
        result = self.run(*options)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        assert not list(self.work.iterdir())
        return support.sha256(self.output)

    def refused(self, code: int, says: str, *options: object, failpoint: str = "") -> str:
        """The line of a run that must fail and touch no output."""
        before = self.outputs()
        result = self.run(*options, failpoint=failpoint)
        assert self.outputs() == before
        return check(code, says, result.returncode, result.stderr, result.stdout)

    def outputs(self) -> dict[str, str]:
        return {path.name: support.sha256(path) for path in self.folder.iterdir() if path.is_file()}

    def kill(self, failpoint: str, *options: object) -> None:
        assert self.run(*options, *SAVED, failpoint=failpoint).returncode == -signal.SIGKILL, f"{failpoint} was not reached"

    def beside(self, folder: Path) -> "Case":
        """The same model and samples, and another place for the rest."""
        return Case(self.model, self.data, folder)


def images(folder: Path, count: int, *shape: int) -> Path:
    rng = np.random.default_rng(1)
    return support.save_samples(folder, [{"x": rng.normal(size=(1, *shape)).astype(np.float32)} for _ in range(count)])


# --- The same bytes -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Trained:
    case: Case
    expected: str  # statistics of a plain run


def statistics(case: Case, output: Path, *options: object) -> str:
    support.calibrate(case.model, output, case.data, "--threads", 2, "--work-dir", case.work, *options)
    assert not list(case.work.iterdir())
    return support.sha256(output)


@pytest.fixture(scope="module", params=["ppocr_cls", "ppocr_det"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp(request.param)
    shape = (3, 48, 192) if request.param == "ppocr_cls" else (3, 64, 96)
    case = Case(support.MODELS / f"{request.param}.onnx", images(folder / "data", 4, *shape), folder)
    return Trained(case, statistics(case, folder / "plain.stats"))


WAYS = [
    *(f"--set segments={n}" for n in (1, 2, 7, 40)),
    *(f"--set segments=3 --set memory-level={level}" for level in (0, 1, 2)),
    *(f"--set segments=3 --set memory-level=2 --set spool-access={access}" for access in ("buffered", "direct", "uring")),
    "--set segments=3 --set memory-level=2 --workers 3",
    "--set segments=40 --set memory-level=2 --workers 3",
    "--memory-budget 4GiB",
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("way", WAYS)
def test_statistics_are_the_same(trained: Trained, way: str, tmp_path: Path) -> None:
    case = trained.case.beside(tmp_path)
    assert statistics(case, tmp_path / "s.stats", *way.split()) == trained.expected


def smallest_budget(line: str) -> int:
    """In MiB."""
    return int(re.search(r"--memory-budget that works is (\d+)MiB", line).group(1))


def test_statistics_under_the_smallest_budget_are_the_same(trained: Trained, tmp_path: Path) -> None:
    case = trained.case.beside(tmp_path)
    options = ["-o", tmp_path / "s.stats", "--calibration-data", case.data, "--threads", 2, "--memory-budget", "8MiB"]
    result = support.detent("calibrate", case.model, *options)
    line = check(RESOURCE, r"cannot keep to 8\.0 MiB", result.returncode, result.stderr)
    assert statistics(case, tmp_path / "s.stats", "--memory-budget", f"{smallest_budget(line)}MiB") == trained.expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rounding", FINETUNE)
def test_tuned_models_are_the_same(small: Case, rounding: str, tmp_path: Path) -> None:
    case, options = small.beside(tmp_path), FINETUNE[rounding]
    ways = ["", "--set memory-level=0", "--set memory-level=2", "--set segments=3", "--memory-budget 300MiB"]
    assert len({case.digest(*options, *way.split()) for way in ways}) == 1


def test_samples_read_ahead_change_nothing(small: Case, tmp_path: Path) -> None:
    case = small.beside(tmp_path)
    for extra in ([], ["--set", "drop-ratio=0.5", "--set", "finetune-batch-size=3"]):
        options = ["--finetune", "adaround", "--set", "finetune-form=streamed", "--set", "num-iterations=9", *extra]
        ways = [
            "",
            "--set finetune-prefetch=1",
            "--set memory-level=2 --set finetune-prefetch=3",
            "--set memory-level=2 --set finetune-prefetch=100",
        ]
        assert len({case.digest(*options, *way.split()) for way in ways}) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rounding", FINETUNE)
def test_a_tuned_trained_model_is_the_same(rounding: str, tmp_path: Path) -> None:
    case = Case(support.MODELS / "ppocr_cls.onnx", images(tmp_path / "data", 2, 3, 48, 96), tmp_path)
    ways = [["--set", "memory-level=1"], ["--set", "memory-level=2"]]
    if rounding == "gptq":
        ways.append(["--memory-budget", "120MiB"])  # so that fewer layers share a pass
    assert len({case.digest(*FINETUNE[rounding], *way) for way in ways}) == 1


# --- Killed and resumed -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("small")
    onnx.save(graphs.small_cnn(), folder / "model.onnx")
    return Case(folder / "model.onnx", support.save_samples(folder / "data", graphs.cnn_samples(6)), folder)


@pytest.fixture(scope="module")
def expected(small: Case, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of runs that nothing disturbs, by the way of rounding."""
    case = small.beside(tmp_path_factory.mktemp("undisturbed"))
    return {name: case.digest(*options) for name, options in {"nearest": [], **FINETUNE}.items()}


KILLS = [
    *(f"calibrate.sample=kill@{n}" for n in (1, 6, 7, 20)),
    *(f"calibrate.segment=kill@{n}" for n in (1, 2, 4)),
    *(f"checkpoint.{place}=kill@{n}" for place in ("begin", "statistics", "saved") for n in (1, 2, 9)),
    *(f"file.{place}=kill@{n}" for place in ("commit", "committed") for n in (1, 4, 11)),
    *(f"spool.write=kill@{n}" for n in (1, 8)),
    *(f"spool.{place}=kill@1" for place in ("read", "fsync", "open", "punch")),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("failpoint", KILLS)
def test_killed_and_resumed(small: Case, expected: dict[str, str], failpoint: str, tmp_path: Path) -> None:
    case = small.beside(tmp_path)
    case.kill(failpoint, *CUT)
    assert case.digest(*CUT, *SAVED) == expected["nearest"]


@pytest.mark.parametrize("failpoint", ["calibrate.sample=kill@8", "calibrate.segment=kill@2", "checkpoint.saved=kill@9"])
def test_records_lost_with_the_process(small: Case, expected: dict[str, str], failpoint: str, tmp_path: Path) -> None:
    case, options = small.beside(tmp_path), ["--set", "segments=4", "--set", "memory-level=1"]
    case.kill(failpoint, *options)
    assert case.digest(*options, *SAVED) == expected["nearest"]


@pytest.mark.parametrize("rounding", FINETUNE)
@pytest.mark.parametrize("failpoint", ["finetune.sample=kill@1", "finetune.sample=kill@8", "finetune.solved=kill@2"])
def test_tuning_killed_and_resumed(small: Case, expected: dict[str, str], rounding: str, failpoint: str, tmp_path: Path) -> None:
    case, options = small.beside(tmp_path), FINETUNE[rounding]
    case.kill(failpoint, *options)
    assert case.digest(*options, *SAVED) == expected[rounding]


SOLVING = {
    "adaround": ["--finetune", "adaround", "--set", "num-iterations=20", "--set", "finetune-form=gram"],
    "adaround-streamed": ["--finetune", "adaround", "--set", "num-iterations=20", "--set", "finetune-form=streamed"],
    "adaquant": ["--finetune", "adaquant", "--set", "num-iterations=20", "--set", "finetune-form=gram", "--set", "update-bias"],
    "adaquant-streamed": [
        "--finetune",
        "adaquant",
        "--set",
        "num-iterations=20",
        "--set",
        "finetune-form=streamed",
        "--set",
        "update-bias",
    ],
    "adaquant-scale": [
        "--finetune",
        "adaquant",
        "--set",
        "num-iterations=20",
        "--set",
        "finetune-form=gram",
        "--set",
        "update-bias",
    ],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rounding", SOLVING)
def test_killed_within_a_layer(small: Case, rounding: str, tmp_path: Path) -> None:
    """A layer's state is saved ten times; the run goes on from there, more than once."""
    case, options = small.beside(tmp_path), SOLVING[rounding]
    expected = case.digest(*options)
    for failpoint in ("finetune.state=kill@1", "finetune.state=kill@7", "finetune.state=kill@14"):
        case.kill(failpoint, *options)
        assert list(case.work.glob("*/solving-*"))
    assert case.digest(*options, *SAVED) == expected


def test_killed_time_and_again(small: Case, expected: dict[str, str], tmp_path: Path) -> None:
    case, options = small.beside(tmp_path), [*FINETUNE["gptq"], *CUT]
    for failpoint in ("calibrate.sample=kill@9", "checkpoint.saved=kill@2", "finetune.sample=kill@7", "finetune.solved=kill"):
        case.kill(failpoint, *options)
    assert case.digest(*options, *SAVED) == expected["gptq"]


def test_resumed_with_other_resources(small: Case, expected: dict[str, str], tmp_path: Path) -> None:
    """They do not change the result, so they may change in between."""
    case = small.beside(tmp_path)
    case.kill("calibrate.sample=kill@9", *CUT)
    assert case.digest("--set", "memory-level=0", "--workers", 2, *SAVED) == expected["nearest"]


# --- What must not change in between ------------------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path) -> Case:
    """With a model and samples of its own, killed in calibration."""
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    case = Case(tmp_path / "model.onnx", support.save_samples(tmp_path / "data", graphs.cnn_samples(6)), tmp_path / "run")
    case.kill("calibrate.sample=kill@9", *CUT)
    return case


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--samples", 3], "--samples"),
        (["--op-types", "Conv"], "--op-types"),
        (["--batch-size", 2], "--batch-size"),
        (FINETUNE["gptq"], "--finetune"),
        (["--method", "entropy"], "histograms"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_changed_option_is_refused(killed: Case, options: list, named: str) -> None:
    killed.refused(USAGE, f"cannot resume .* its {re.escape(named)}", *CUT, *SAVED, *options)
    assert list(killed.work.iterdir()), "the run can still be resumed as it was"


def test_a_changed_number_of_iterations_is_refused(small: Case, tmp_path: Path) -> None:
    case, options = small.beside(tmp_path), FINETUNE["adaround"]
    case.kill("finetune.sample=kill@2", *options)
    case.refused(USAGE, "cannot resume .* its --set num-iterations was 5", *options[:2], "--set", "num-iterations=6", *SAVED)


def test_a_changed_model_is_refused(killed: Case) -> None:
    onnx.save(graphs.small_cnn(batch=1), killed.model)
    killed.refused(USAGE, "cannot resume .* its model", *CUT, *SAVED)


def test_another_sample_directory_is_refused(killed: Case) -> None:
    killed.data = killed.data.rename(killed.data.with_name("other"))
    killed.refused(USAGE, "cannot resume .* its calibration data", *CUT, *SAVED)


def test_changed_samples_are_refused(killed: Case) -> None:
    np.savez(killed.data / "002.npz", x=np.zeros((1, 3, 16, 16), np.float32))
    killed.refused(BAD_INPUT, "calibration data are not those of the interrupted run", *CUT, *SAVED)


def test_an_interrupted_run_is_told_of(killed: Case) -> None:
    result = killed.run(*CUT)
    assert result.returncode == 0
    assert "there is an interrupted run for this output in" in result.notes
    assert len(list(killed.work.iterdir())) == 1


# --- Signals, and two at once -------------------------------------------------------------------------------------------


@pytest.fixture
def slow(tmp_path: Path) -> Case:
    """Long enough to be interrupted."""
    onnx.save(graphs.small_cnn(), tmp_path / "model.onnx")
    np.save(tmp_path / "data.npy", graphs.cnn_samples(1, rows=400)[0]["x"])
    return Case(tmp_path / "model.onnx", tmp_path / "data.npy", tmp_path / "run")


def start(case: Case, pattern: str, *options: object) -> subprocess.Popen:
    """A run that stands still in its second segment, with a file of this pattern in the work dir."""
    command = [str(support.DETENT), *case.command("--batch-size", 1, *CUT, *options)]
    environment = {**os.environ, "DETENT_FAILPOINT": "calibrate.sample=stop@500"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    stopped(process)
    assert list(case.work.glob(pattern))
    return process


def interrupt(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=300)


def test_interrupted_without_resume_leaves_nothing(slow: Case) -> None:
    process = start(slow, "detent-*/spool/*")
    interrupt(process)
    assert process.returncode == INTERRUPTED
    assert not list(slow.work.iterdir())
    assert not slow.output.exists()


def test_interrupted_with_resume_goes_on_later(slow: Case, tmp_path: Path) -> None:
    process = start(slow, "detent-*/progress.json", *SAVED)
    interrupt(process)
    assert process.returncode == INTERRUPTED
    assert len(list(slow.work.iterdir())) == 1
    result = slow.run("--batch-size", 1, *CUT, "--resume")
    assert (result.returncode, result.stderr) == (0, "")
    assert "resumed in segment" in result.notes
    assert not list(slow.work.iterdir())
    assert support.sha256(slow.output) == slow.beside(tmp_path / "again").digest("--batch-size", 1)


def test_two_at_once(slow: Case) -> None:
    process = start(slow, "detent-*/progress.json", *SAVED)
    try:
        slow.refused(USAGE, "is still going on", "--batch-size", 1, *CUT, *SAVED)
    finally:
        interrupt(process)


# --- Budgets ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Its activations are larger than all else, and most of them wait."""
    folder = tmp_path_factory.mktemp("wide")
    onnx.save(graphs.skips(), folder / "model.onnx")
    return Case(folder / "model.onnx", support.save_samples(folder / "data", graphs.skip_samples()), folder)


def peak(case: Case, *options: object, failpoint: str = "") -> int:
    environment = {**os.environ, "DETENT_FAILPOINT": failpoint}
    return support.peak_memory(case.folder, support.DETENT, *case.command(*options), env=environment)


def test_the_smallest_memory_budget_is_named_and_kept(wide: Case, tmp_path: Path) -> None:
    case = wide.beside(tmp_path)
    plain = peak(case)
    digest = support.sha256(case.output)
    line = case.refused(RESOURCE, r"cannot keep to 20\.0 MiB", "--memory-budget", "20MiB")
    smallest = smallest_budget(line)
    assert smallest * MIB < plain * 0.8, "cuts help"
    assert peak(case, "--memory-budget", f"{smallest}MiB") <= 1.05 * smallest * MIB
    assert support.sha256(case.output) == digest
    case.refused(RESOURCE, "cannot keep to", "--memory-budget", f"{smallest - 1}MiB")


@pytest.mark.full
@pytest.mark.parametrize("rounding", FINETUNE)
def test_the_smallest_memory_budget_of_tuning_is_named_and_kept(rounding: str, tmp_path: Path) -> None:
    case = Case(support.MODELS / "ppocr_cls.onnx", images(tmp_path / "data", 6, 3, 48, 192), tmp_path)
    options = FINETUNE[rounding]
    digest = case.digest(*options)
    smallest = smallest_budget(case.refused(RESOURCE, "fine-tuning needs", *options, "--memory-budget", "60MiB"))
    for failpoint in ("", "spool.write=slow"):  # records wait for a slow disk within the same budget
        assert peak(case, *options, "--memory-budget", f"{smallest}MiB", failpoint=failpoint) <= smallest * MIB
        assert support.sha256(case.output) == digest
    case.refused(RESOURCE, "fine-tuning needs", *options, "--memory-budget", f"{smallest - 1}MiB")


def test_the_smallest_disk_budget_is_named_and_kept(wide: Case, tmp_path: Path) -> None:
    case = wide.beside(tmp_path)
    smallest = smallest_budget(case.refused(RESOURCE, "", "--memory-budget", "20MiB"))
    memory = ["--memory-budget", f"{smallest}MiB"]
    line = case.refused(RESOURCE, r"of disk, but only 1\.0 MiB are allowed", *memory, "--disk-budget", "1MiB")
    disk = re.search(r"--disk-budget (\d+)MiB", line).group(1)
    case.digest(*memory, "--disk-budget", f"{disk}MiB")


def test_all_in_memory_needs_memory(wide: Case, tmp_path: Path) -> None:
    case = wide.beside(tmp_path)
    smallest = smallest_budget(case.refused(RESOURCE, "", "--memory-budget", "20MiB"))
    case.refused(RESOURCE, "cannot keep to", "--memory-budget", f"{smallest}MiB", "--set", "memory-level=0")


# --- Failing reads, writes and allocations ------------------------------------------------------------------------------


ERRORS = [(place, error) for place in ("write", "open", "fsync") for error in ("ENOSPC", "EIO", "ENOMEM")]
ERRORS += [("read", "EIO"), ("read", "ENOMEM"), ("allocate", "ENOMEM")]
UNPROBED = ["--set", "spool-access=buffered"]  # whose errors would only choose another way


@pytest.mark.parametrize(("place", "error"), ERRORS)
def test_an_error_of_the_spool(small: Case, place: str, error: str, tmp_path: Path) -> None:
    case = small.beside(tmp_path)
    case.output.write_text("an earlier output")
    case.refused(RESOURCE, "lane|memory", *CUT, *UNPROBED, "--set", "checkpoint-seconds=0", failpoint=f"spool.{place}={error}")
    assert not list(case.work.iterdir())


# What is still in memory on its way to the disk is not read from there: AdaRound reads again long after it was written.
STREAMED = ["--finetune", "adaround", "--set", "finetune-form=streamed", "--set", "num-iterations=300"]


@pytest.mark.parametrize(
    ("place", "tuning"), [*((place, FINETUNE["gptq"]) for place in ("write", "open", "allocate")), ("read", STREAMED)]
)
def test_an_error_of_the_spool_in_tuning(small: Case, place: str, tuning: list[object], tmp_path: Path) -> None:
    case, options = small.beside(tmp_path), [*tuning, "--set", "memory-level=2", *UNPROBED]
    case.output.write_text("an earlier output")
    case.refused(RESOURCE, "lane|memory", *options, failpoint=f"spool.{place}=EIO")
    assert not list(case.work.iterdir())


# --- By default ---------------------------------------------------------------------------------------------------------


def test_a_default_run_is_not_cut(small: Case, tmp_path: Path) -> None:
    case = small.beside(tmp_path)
    result = case.run()
    assert (result.returncode, result.stderr) == (0, "")
    assert "segment" not in result.stdout + result.notes
    assert not list(case.work.iterdir())


def test_shapes_that_depend_on_values(tmp_path: Path) -> None:
    """The first sample tells them, for which it runs in one piece: a smaller budget is refused, and this one is kept."""
    onnx.save(graphs.picked_rows(), tmp_path / "model.onnx")
    case = Case(tmp_path / "model.onnx", support.save_samples(tmp_path / "data", graphs.picked_samples(20_000)), tmp_path)
    digest = case.digest()
    line = case.refused(RESOURCE, "shapes depend on values", "--memory-budget", "36MiB")
    assert line.endswith("MiB or more"), "what is known takes that much, before the sample has run"
    smallest = smallest_budget(case.refused(RESOURCE, "shapes depend on values", "--memory-budget", "50MiB"))
    case.refused(RESOURCE, "shapes depend on values", "--memory-budget", f"{smallest - 1}MiB")
    assert peak(case, "--memory-budget", f"{smallest}MiB") <= 1.05 * smallest * MIB
    assert support.sha256(case.output) == digest
    assert case.digest("--set", "segments=3", "--set", "memory-level=2") == digest
    said = support.quantize(case.model, case.output, case.data, *support.PLAIN, "--set", "segments=3", "--set", "memory-level=2")
    assert any("shapes depend on values" in note for note in said["notes"])
    assert any("3 segments" in note for note in said["notes"])


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (3, 2)])
def test_a_run_that_was_killed_goes_on_in_other_segments(tmp_path: Path, before: int, after: int) -> None:
    """Without progress that was saved, where other records of the same lanes stand."""
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(8))
    support.quantize(tmp_path / "m.onnx", tmp_path / "reference.onnx", data)
    (tmp_path / "work").mkdir()
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--calibration-data", data, "--set", "memory-level=2"]
    command += ["--work-dir", tmp_path / "work", "--resume", "--set", "checkpoint-seconds=1000"]
    killed = support.detent(
        *command, "--set", f"segments={before}", env={**os.environ, "DETENT_FAILPOINT": "calibrate.sample=kill@5"}
    )
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("work/*/spool/*"))
    resumed = support.detent(*command, "--set", f"segments={after}")
    assert resumed.returncode == 0, resumed.stderr
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "reference.onnx").read_bytes()
    assert not list((tmp_path / "work").iterdir())
