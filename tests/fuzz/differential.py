"""Mutated models, and valid ones at random, through detent, ONNX Runtime and onnx's checker: detent refuses, or agrees.

    differential.py DETENT [--count N | --minutes M] [--seed S] [--keep FOLDER] [--forms [--runtimes FOLDER]]

Of each model detent makes a quantized one, and the float one as it was calibrated (--set prepared-output). It has to end with
one of its exit codes; a model that the runtime does not run must be refused, the prepared one must compute what the
runtime computes of the given one, and what is written must load. Exit code 1 where any of this does not hold; --keep gets
the models. Of four models one is not mutated but made at random (random_graphs.py): what the runtime runs of these must
not be refused. With --forms all models are made at random, some of them strange, and each goes through a form that is
drawn for it: what is written has to load and to be within 6 dB of the float model at the runtime's default optimizations,
or detent says that it is not (100 runs are a test; by night --count 5000). --runtimes build/deps/runtimes asks the same of
other versions of ONNX Runtime (`make runtimes`), as far as they load both models.

Models that only the checker refuses are counted: the runtime is the one that deployed models meet.
"""

import argparse
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import Message
from make_seeds import MODELS
from random_graphs import random_model

INTERESTING = (0, 1, 2, 3, 4, -1, -2, 7, 16, 127, 255, 1 << 31, (1 << 63) - 1, -(1 << 63))
CODES = {0, 2, 3, 4, 5}
FORMS = [
    "--preset plain", "--optimize-for size", "--optimize-for size --finetune gptq", "--format int8-dynamic", "--format a16w8",
    "--format q8", "--format q4", "--format q4 --set weights-form=qdq", "--format q8 --block-size channel", "--format fp16",
    "--format q4f16", "--format q8 --set weights-form=qdq --float 16", "--preset balanced --float 16", "--quant-format qoperator",
]  # fmt: skip
FAR_DB = 6
WORDS = ("dB", "infinite", "Nothing was quantized", "optimizations")
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}


def messages(message: Message) -> list[Message]:
    """It and all messages in it."""
    found = [message]
    for descriptor, value in message.ListFields():
        if descriptor.type == descriptor.TYPE_MESSAGE:
            for inner in value if descriptor.is_repeated else [value]:
                found += messages(inner)
    return found


def mutate(model: onnx.ModelProto, rng: random.Random) -> None:
    """Changes one field of one message."""
    everything = messages(model)
    message = rng.choice(everything)
    fields = message.ListFields()
    if not fields:
        return
    descriptor, value = rng.choice(fields)
    if descriptor.is_repeated:
        change_list(message, descriptor, value, everything, rng)
    elif rng.random() < 0.2:
        message.ClearField(descriptor.name)
    elif descriptor.type != descriptor.TYPE_MESSAGE:
        setattr(message, descriptor.name, changed(descriptor, value, everything, rng))


def change_list(message: Message, descriptor: object, values: object, everything: list, rng: random.Random) -> None:
    at = rng.randrange(len(values))
    kind = rng.randrange(4)
    if kind == 0:
        del values[at]
    elif kind == 1:
        values.append(values[at])
    elif descriptor.type == descriptor.TYPE_MESSAGE:
        same = [m for m in everything if type(m) is type(values[at])]
        values[at].CopyFrom(rng.choice(same))
    else:
        values[at] = changed(descriptor, values[at], everything, rng)


def changed(descriptor: object, value: object, everything: list, rng: random.Random) -> object:
    if descriptor.type == descriptor.TYPE_STRING:
        names = [m.name for m in everything if isinstance(m, onnx.NodeProto | onnx.TensorProto | onnx.ValueInfoProto)]
        names += [name for m in everything if isinstance(m, onnx.NodeProto) for name in (*m.input, *m.output, m.op_type)]
        return rng.choice([*names, "", "Conv", "Relu", "MatMul", "Identity"])
    if descriptor.type == descriptor.TYPE_BYTES:
        cut = bytearray(value)
        if cut and rng.random() < 0.7:
            cut[rng.randrange(len(cut))] ^= 1 << rng.randrange(8)
            return bytes(cut)
        return bytes(cut[: rng.randrange(len(cut) + 1)])
    if descriptor.type in (descriptor.TYPE_FLOAT, descriptor.TYPE_DOUBLE):
        return rng.choice([0.0, -1.0, 1e30, value * 2])
    if descriptor.type == descriptor.TYPE_ENUM:
        return rng.choice(list(descriptor.enum_type.values_by_number))
    wide = descriptor.type in (descriptor.TYPE_INT64, descriptor.TYPE_UINT64)
    number = rng.choice([value + 1, value - 1, *(INTERESTING if wide else INTERESTING[:11])])
    return max(number, 0) if descriptor.type in (descriptor.TYPE_UINT64, descriptor.TYPE_UINT32) else number


def in_child(act: object) -> object:
    """What `act` returns, or None where it throws or its process dies: the runtime may."""
    into, out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(into)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(out, "wb") as pipe:
                pickle.dump(act(), pipe)
        finally:
            os._exit(0)
    os.close(out)
    with os.fdopen(into, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else None  # noqa: S301


def session(path: Path, optimized: bool = False) -> object:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def sample(inputs: list) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for value in inputs:
        shape = [d if isinstance(d, int) and d >= 0 else 1 for d in value.shape]
        if np.prod(shape, dtype=float) > 1e5:
            raise ValueError(f"{value.name} is large")
        made[value.name] = rng.normal(size=shape).astype(TYPES[value.type])
    return made


def outputs(path: Path, feed: dict[str, np.ndarray], optimized: bool = False) -> list[np.ndarray] | None:
    """None: the runtime refuses the model or the run, or takes more than a few seconds."""

    def run() -> list[np.ndarray]:
        os.nice(1)
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        return [np.asarray(o) for o in session(path, optimized).run(None, feed)]

    return in_child(run)


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    def close(x: np.ndarray, y: np.ndarray) -> bool:
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if x.dtype.kind != "f":
            return bool(np.array_equal(x, y))
        finite = np.abs(x[np.isfinite(x)])
        scale = float(finite.max()) if finite.size else 1.0
        return bool(np.allclose(x, y, rtol=1e-3, atol=1e-4 * max(scale, 1e-30), equal_nan=True))

    return len(a) == len(b) and all(map(close, a, b))


def accepted_by_checker(path: Path) -> bool:
    def check() -> bool:
        onnx.checker.check_model(str(path))
        return True

    return in_child(check) is True


def judge(detent: Path, model: Path, folder: Path, seen: Counter, is_valid: bool) -> str:
    """What does not hold; "": nothing."""
    feed = in_child(lambda: sample(session(model).get_inputs()))
    wanted = outputs(model, feed) if feed is not None else None
    data = folder / "data"
    data.mkdir(exist_ok=True)
    np.savez(data / "0.npz", **(feed if feed is not None else {"x": np.zeros(1, np.float32)}))
    out, prepared = folder / "out.onnx", folder / "prepared.onnx"
    out.unlink(missing_ok=True)
    prepared.unlink(missing_ok=True)
    options = ["--calibration-data", data, "--preset", "plain", "--set", f"prepared-output={prepared}", "--threads", 1]
    options += ["--time-limit", 20, "--memory-budget", "1GiB", "--no-bench"]
    command = [detent, "quantize", model, "-o", out, *options]
    ended = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode not in CODES:
        return f"detent ended with {ended.returncode}: {ended.stderr[-300:]}"
    if ended.returncode != 0 and is_valid and wanted is not None:
        return f"detent refuses a valid model: {ended.stderr[-300:]}"
    if ended.returncode != 0:
        seen["refused"] += 1
        lines = ended.stderr.strip().count("detent: error:")
        return "" if lines == 1 and not out.exists() else f"a refusal is one line and leaves nothing: {ended.stderr[-300:]}"
    seen["accepted"] += 1
    seen["accepted, refused by the checker"] += not accepted_by_checker(model)
    if wanted is None:
        return "detent accepts what the runtime does not run"
    found = outputs(prepared, feed)
    if found is None or not same(wanted, found):
        return "the prepared model computes something else than the given one"
    return "" if outputs(out, feed) is not None else "the runtime does not run the quantized model"


RUN = """
import sys
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
for model, results in ((sys.argv[2], sys.argv[3]), (sys.argv[4], sys.argv[5])):
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    np.savez(results, *session.run(None, dict(np.load(sys.argv[1]))))
"""


def far_elsewhere(runtimes: list[Path], model: Path, out: Path, folder: Path, seen: Counter) -> str:
    """Which other version of the runtime computes something else of the written model than of the given one."""
    results = [folder / "float.npz", folder / "found.npz"]
    for runtime in runtimes:
        given = [folder / "data" / "0.npz", model, results[0], out, results[1]]
        command = [sys.executable, "-c", RUN, *map(str, given)]
        env = {**os.environ, "PYTHONPATH": str(runtime)}
        if subprocess.run(command, env=env, capture_output=True, timeout=120, check=False).returncode != 0:
            seen[f"not run by {runtime.name}"] += 1
            continue
        wanted, found = ([arrays[name] for name in arrays.files] for arrays in map(np.load, results))
        if (db := worst_db(wanted, found)) < FAR_DB:
            return f"{db:.1f} dB in {runtime.name} without a word"
    return ""


def worst_db(wanted: list[np.ndarray], found: list[np.ndarray]) -> float:
    worst = np.inf
    for x, y in zip(wanted, found, strict=True):
        signal, noise = (np.square(a.astype(np.float64)).sum() for a in (x, x.astype(np.float64) - y))
        if signal > 0:
            worst = min(worst, 10 * np.log10(signal / max(noise, 1e-30)) if np.isfinite(noise) else -np.inf)
    return worst


def judge_form(detent: Path, model: Path, folder: Path, seen: Counter, rng: random.Random, runtimes: list[Path]) -> str:
    """What does not hold of one form; "": nothing."""
    feed = in_child(lambda: sample(session(model).get_inputs()))
    wanted = outputs(model, feed, optimized=True) if feed is not None else None
    if wanted is None:
        seen["not run by the runtime"] += 1
        return ""
    data, out, form = folder / "data", folder / "out.onnx", rng.choice(FORMS)
    data.mkdir(exist_ok=True)
    np.savez(data / "0.npz", **feed)
    out.unlink(missing_ok=True)
    command = [str(detent), "quantize", str(model), "-o", str(out), *form.split(), "--threads", "1", "--no-bench"]
    if rng.random() < 0.7 or not any(word in form for word in ("q4", "q8", "fp16", "dynamic")):  # noqa: PLR2004
        command += ["--calibration-data", str(data)]
    ended = subprocess.run([*command, "--time-limit", "60"], capture_output=True, text=True, timeout=120, check=False)
    told = ended.stdout + ended.stderr
    if ended.returncode not in CODES:
        return f"{form}: detent ended with {ended.returncode}: {told[-300:]}"
    if ended.returncode != 0:
        seen["refused"] += 1
        return "" if not out.exists() else f"{form}: a refusal leaves a file: {told[-300:]}"
    seen["written"] += 1
    found = outputs(out, feed, optimized=True)
    if found is None:
        return f"{form}: the runtime does not run the quantized model"
    if any(word in told for word in WORDS):
        return ""
    db = worst_db(wanted, found)
    wrong = f"{db:.1f} dB without a word" if db < FAR_DB else far_elsewhere(runtimes, model, out, folder, seen)
    return f"{form}: {wrong}" if wrong else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("detent", type=Path)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--runtimes", type=Path)
    given = parser.parse_args()
    runtimes = sorted(given.runtimes.glob("[0-9]*")) if given.runtimes else []
    rng, seen, findings, tried = random.Random(given.seed), Counter(), 0, 0
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory(prefix="differential-") as scratch:
        folder = Path(scratch)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        while tried < given.count or time.monotonic() < until:
            is_valid = given.forms or rng.randrange(4) == 0
            model = random_model(rng, given.forms) if is_valid else rng.choice(MODELS)()
            for _ in range(0 if is_valid else rng.choice([0, 1, 1, 2, 3])):
                mutate(model, rng)
            tried += 1
            seen["made at random"] += is_valid
            path = folder / "model.onnx"
            path.write_bytes(model.SerializeToString())
            detent = given.detent.resolve()
            if given.forms:
                wrong = judge_form(detent, path, folder, seen, rng, runtimes)
            else:
                wrong = judge(detent, path, folder, seen, is_valid)
            if wrong:
                findings += 1
                print(f"finding: model {tried} of seed {given.seed}: {wrong}")
                if given.keep:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (given.keep / f"{given.seed}-{tried}.onnx").write_bytes(path.read_bytes())
    counts = ", ".join(f"{seen[key]} {key}" for key in sorted(seen))
    print(f"{tried} models: {counts}; {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
