"""What detent says of a file that it wrote, against what the file does: claims.judged(…) for one graph in one form."""

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from case import ROOT, Case, Sample
from forms import ELSEWHERE, FORMS
from integer_share import integer_share

DETENT = Path(os.environ.get("DETENT", ROOT / "build" / "detent"))
RUNTIMES = Path(os.environ.get("DETENT_MODELS", ROOT / "build" / "models")).parent / "deps" / "runtimes"
#: The version that detent runs with comes first.
VERSIONS = ("1.31.1", "1.21.1", "1.32.0")
NEAR, EXACT, LOW, SHARE = 0.1, 90.0, 6.0, 0.005
CODES = {2, 3, 4, 5}
#: In lines that a long run writes every few seconds.
PROGRESS = re.compile(r"  memory \d.*, peak \d")
#: What a run says of older versions, of formats for other devices, and of what has to be set.
NEEDS, NOT_RUN, PAIRS_OFF = (
    re.compile(r"the file needs ONNX Runtime 1\.(\d+) or later"),
    "the written file was not run",
    "session.disable_quant_qdq",
)


class Worker:
    """One version of ONNX Runtime."""

    def __init__(self, version: str) -> None:
        path = RUNTIMES / version
        environment = {**os.environ, **({"PYTHONPATH": str(path)} if path.is_dir() else {}), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, Path(__file__).with_name("worker.py"), version]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def run(self, model: Path, samples: list[Sample], folder: Path, setting: str = "") -> list[list[np.ndarray]] | str:
        """Results of each sample, or what the runtime says; `setting`: the name of one to set to 1."""
        given, results = folder / "given.pickle", folder / "results.pickle"
        given.write_bytes(pickle.dumps(samples))
        request = {"model": str(model), "samples": str(given), "results": str(results), "setting": setting}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        said = json.loads(self.process.stdout.readline())
        return said if said is not None else pickle.loads(results.read_bytes())  # noqa: S301


@dataclasses.dataclass
class Verdict:
    kind: str  # right, refused, wrong
    text: str = ""
    told_db: float | None = None


def sample_of(name: str, folder: Path) -> Sample:
    """A judged one, by the name that JSON gives: a file, with rows where these are samples of their own."""
    found = re.fullmatch(r"(.*\.npz)(?:\[(\d+):(\d+)\])?", name)
    sample = dict(np.load(folder / found[1]))
    return sample if found[2] is None else {k: v[int(found[2]) : int(found[3])] for k, v in sample.items()}


def decibels(expected: list[list[np.ndarray]], found: list[list[np.ndarray]], names: list[str]) -> dict[str, float]:
    """Of each output that both have in floating point: 10 log10 of the signal's energy over the error's, over all samples."""
    all_of = {}
    for i, name in enumerate(names):
        both = [(a[i], b[i]) for a, b in zip(expected, found, strict=True) if a[i].dtype.kind == "f"]
        pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in both]
        if not pairs or any(a.shape != b.shape for a, b in pairs):
            continue
        signal = noise = 0.0
        for a, b in pairs:
            finite = np.isfinite(a) & np.isfinite(b)
            if not ((a == b) | (np.isnan(a) & np.isnan(b)) | finite).all():
                noise = np.inf
            signal += float(np.square(a[finite]).sum())
            noise += float(np.square(a[finite] - b[finite]).sum())
        if signal or noise:
            all_of[name] = 10 * float(np.log10(max(signal, 1e-300) / noise)) if noise else np.inf
    without = {name: value for name, value in all_of.items() if not name.startswith("present")}
    return without or all_of


def size_of(file: Path) -> int:
    """Of a file with its data, or of all that is in a folder."""
    if file.is_dir():
        return sum(part.stat().st_size for part in file.rglob("*") if part.is_file())
    beside = [part for part in file.parent.iterdir() if part.name.startswith(file.name)]
    return sum(part.stat().st_size for part in beside)


class Judge:
    """Of one graph, in a folder of its own."""

    def __init__(self, case: Case, folder: Path, workers: dict[str, Worker]) -> None:
        self.case, self.folder, self.workers = case, folder, workers
        self.model, self.data = folder / "model.onnx", folder / "data"
        self.data.mkdir()
        onnx.save(case.model, self.model)
        for i, sample in enumerate(case.samples):
            np.savez(self.data / f"{i:03}.npz", **sample)
        self.names = [value.name for value in case.model.graph.output]
        self.expected = {v: w.run(self.model, case.samples[:1], folder) for v, w in workers.items()}

    def command(self, form: str, output: Path) -> list[str]:
        options = [str(max(1, self.model.stat().st_size // 2)) if o == "HALF" else o for o in FORMS[form]]
        shapes = []
        if "--target" in options:
            for value in self.case.model.graph.input:
                if any(d.dim_param for d in value.type.tensor_type.shape.dim):
                    shape = "x".join(map(str, self.case.samples[0][value.name].shape))
                    shapes += ["--shape", f"{value.name}:{shape}"]
        given = (
            []
            if form in ("bfloat16",) or any(str(o).startswith("block-float=") for o in options)
            else ["--calibration-data", str(self.data)]
        )
        return ["quantize", str(self.model), "-o", str(output), *given, *options, *shapes, "--no-bench", "--json", "--threads", "1"]

    def judged(self, form: str) -> Verdict:
        for left in self.folder.glob("q.onnx*"):
            left.unlink()
        output = self.folder / ("family" if form == "family" else "q.onnx")
        if output.is_dir():
            subprocess.run(["rm", "-r", output], check=True)
        done = subprocess.run([str(DETENT), *self.command(form, output)], capture_output=True, text=True, check=False, timeout=280)
        if done.returncode:
            return self.refusal(done, output)
        told = json.loads(done.stdout)
        if form == "family":
            files = [(Path(member["output"]), member) for member in told["family"]]
        else:
            files = [(output, told)]
        faults, db = [], None
        for file, said in files:
            found, db = self.faults(form, file, said)
            faults += found
        return Verdict("wrong", "; ".join(faults), db) if faults else Verdict("right", told_db=db)

    def refusal(self, done: subprocess.CompletedProcess[str], output: Path) -> Verdict:
        lines = [line for line in done.stderr.strip().splitlines() if line and not PROGRESS.search(line)]
        if done.returncode not in CODES or len(lines) != 1 or not lines[0].startswith("detent: error: "):
            return Verdict("wrong", f"ends with {done.returncode}: {done.stderr.strip()[-400:]}")
        if output.exists():
            return Verdict("wrong", "refused, but something was written")
        if done.returncode in (4, 5):
            return Verdict("wrong", f"code {done.returncode}: {lines[0][:400]}")
        return Verdict("refused", lines[0].removeprefix("detent: error: "))

    def faults(self, form: str, file: Path, told: dict) -> tuple[list[str], float | None]:
        accuracy, faults = told.get("accuracy"), []
        if (size := size_of(file)) != told["model_bytes_after"]:
            faults.append(f"size {told['model_bytes_after']} told, {size} found")
        words = " ".join([*told["notes"], *told.get("outcome", {}).get("reasons", [])])
        if form in ELSEWHERE or NOT_RUN in words:
            return faults, None
        faults += self.other_versions(file, words)
        names = accuracy.get("sample_names") if accuracy else None
        samples = [sample_of(name, self.data) for name in names] if names else self.case.samples
        samples = [self.as_the_file_takes(file, sample) for sample in samples]
        first = self.workers[VERSIONS[0]]
        plain = [sample_of(name, self.data) for name in names] if names else self.case.samples
        setting = PAIRS_OFF if PAIRS_OFF in words else ""
        expected, found = first.run(self.model, plain, self.folder), first.run(file, samples, self.folder, setting)
        if isinstance(expected, str) or isinstance(found, str):
            return [*faults, f"does not run in {VERSIONS[0]}: {found}"], None
        each = decibels(expected, found, self.names)
        worst = min(each.values(), default=np.inf)
        claim = accuracy["sqnr_db"] if accuracy else None
        if not self.case.varies:
            faults += self.about_accuracy(worst, told, expected, found)
        if accuracy and accuracy.get("integer_macs") is not None and not form.startswith("for "):  # targets count their own way
            counted = integer_share(file, samples[0])
            if counted is not None and abs(counted - accuracy["integer_macs"]) > SHARE:
                faults.append(f"{accuracy['integer_macs']:.3f} of the multiplications in integers told, {counted:.3f} counted")
        return faults, claim

    def about_accuracy(self, worst: float, told: dict, expected: list, found: list) -> list[str]:
        faults, accuracy = [], told.get("accuracy")
        claim = accuracy["sqnr_db"] if accuracy else None
        answer = told.get("outcome", {}).get("answer")
        is_lost = accuracy and claim is None and worst == -np.inf and accuracy["cosine"] < 1 and answer == "no"
        if accuracy and claim is None and worst < EXACT and not is_lost:
            faults.append(f"null dB told, {worst:.2f} found")
        if claim is not None and min(claim, worst) < EXACT and not abs(claim - worst) <= NEAR:
            faults.append(f"{claim:.2f} dB told, {worst:.2f} found")
        if worst < LOW and answer == "yes":
            faults.append(f"{worst:.1f} dB, and 'yes'")
        if accuracy is None and worst < EXACT and answer == "yes":
            faults.append(f"no accuracy told, {worst:.1f} dB found, and 'yes'")
        for i, name in enumerate(self.names):
            pairs = [(a[i], b[i]) for a, b in zip(expected, found, strict=True) if a[i].dtype.kind == "f"]
            if answer != "no" and any(not np.isfinite(b).all() for a, b in pairs if np.isfinite(a).all()):
                faults.append(f"output '{name}' is not finite")
            channels = [c for c in range(pairs[0][0].shape[1] if pairs and pairs[0][0].ndim == 3 else 0)]
            dead = [c for c in channels if any(a[:, c].any() for a, _ in pairs) and not any(b[:, c].any() for _, b in pairs)]
            if answer == "yes" and (dead or (pairs and any(a.any() for a, _ in pairs) and not any(b.any() for _, b in pairs))):
                faults.append(f"output '{name}' is 0{f' in {len(dead)} channels' if dead else ''}, and 'yes'")
        return faults

    def other_versions(self, file: Path, words: str) -> list[str]:
        faults = []
        needs = NEEDS.search(words)
        for version in VERSIONS[1:]:
            if isinstance(self.expected[version], str):
                continue  # nor does the float model
            if needs and int(version.split(".")[1]) < int(needs[1]):
                continue
            sample = self.as_the_file_takes(file, self.case.samples[0])
            old = int(version.split(".")[1]) < 32
            found = self.workers[version].run(file, [sample], self.folder, PAIRS_OFF if PAIRS_OFF in words and old else "")
            if isinstance(found, str):
                faults.append(f"does not run in {version}: {found[:250]}")
        return faults

    def as_the_file_takes(self, file: Path, sample: Sample) -> Sample:
        """Inputs in the types of the written model's, where --set no-keep-io-types or a cache's form changed them."""
        taken = {}
        for value in onnx.load(file, load_external_data=False).graph.input:
            kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            given = sample[value.name]
            if given.dtype != kind and given.size == 0:  # an empty cache of another type
                last = value.type.tensor_type.shape.dim[-1].dim_value or given.shape[-1]
                given = np.zeros((*given.shape[:-1], last), kind)
            taken[value.name] = given.astype(kind)
        return taken
