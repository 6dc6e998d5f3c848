"""The package of wheels for Windows, whose calls run the command: it does what the package with an extension does."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import detent
import pytest
import support

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALLS = """
import json, pathlib, sys
import numpy as np
import detent
folder, model, data = sys.argv[1:]
samples = [dict(np.load(file)) for file in sorted(pathlib.Path(data).iterdir())]
told = {}
plain = {"preset": "plain", "bench": False}
def bytes_of(data, config, **more): return bytes(detent.quantize(model, None, data, config, **more)).hex()
made = detent.quantize(model, f"{folder}/list.onnx", samples, plain)
activations = sorted(activation.name for activation in made.activations)
told["list"] = [pathlib.Path(folder, "list.onnx").read_bytes().hex(), made.nodes_quantized, made.notes, made.outcome.headline]
given = detent.Config(bench=False, format="int8", exclude_op_types=["Gemm"], resources={"memory_budget": "1GiB"})
made = detent.quantize(model, f"{folder}/generator.onnx", (s for s in samples), given)
told["generator"] = [made.accuracy.sqnr_db, made.accuracy.samples, made.outcome.answer, activations]
told["limited"] = bytes_of(data, {**plain, "max_samples": 2})
told["overrides"] = bytes_of(data, {**plain, "overrides": [{"tensor": activations[-1], "range": (-1.5, 2)}]})
told["calibrate"] = detent.calibrate(model, f"{folder}/s", samples, {"preset": "plain"}).tensors
told["statistics"] = bytes_of(None, plain, statistics=f"{folder}/s")
told["merge"] = detent.merge_statistics([f"{folder}/s"], f"{folder}/merged").samples
told["compare"] = [(o.name, o.sqnr_db, o.cosine) for o in detent.compare(model, f"{folder}/list.onnx", samples).outputs]
told["same"] = detent.compare(model, model, samples).outputs[0].sqnr_db
told["plan"] = detent.plan(model, data, plain).nodes_quantized
told["inspect"] = [layer.name for layer in detent.inspect(model).layers]
told["check"] = [(node.name, node.verdict) for node in detent.check(model, target="openvino").nodes]
told["verify"] = detent.verify(model, f"{folder}/list.onnx", samples).max_steps
told["bench"] = [m.latency.median > 0 for m in detent.bench(model, f"{folder}/list.onnx", data=samples).models]
for name, call in {
    "no model": lambda: detent.quantize("none.onnx", f"{folder}/x.onnx"),
    "preset": lambda: bytes_of(samples, {"preset": "nope"}),
    "budget": lambda: bytes_of(data, {**plain, "resources": {"memory_budget": "1MiB"}}),
}.items():
    try:
        told[name] = call()
    except detent.errors.Error as error:
        told[name] = [type(error).__name__, str(error)]
print(json.dumps(told))
"""
REFUSED = """
import sys
import detent
try:
    {}
except detent.UsageError as error:
    print(error)
"""
#: A command that tells of progress and goes on, and what is heard of it; then a function that fails.
PROGRESS = """
import pathlib, sys
from detent import _core
_core._COMMAND = pathlib.Path(sys.argv[1])
_core._rows = list
heard = []
_core._call("plan", {}, None, lambda *told: heard.append(told))
print(heard)
def fail(*told): raise RuntimeError("enough")
try:
    _core._call("plan", {}, None, fail)
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """As in a wheel: Python files, and the command beside them."""
    place = tmp_path_factory.mktemp("over_command")
    shutil.copytree(ROOT / "python/detent", place / "detent", ignore=shutil.ignore_patterns("_core*", "__pycache__"))
    shutil.copy(ROOT / "python/over_command/_core.py", place / "detent")
    (place / "detent/detent").symlink_to(support.DETENT)
    return place


def run(code: str, package: pathlib.Path, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_calls_give_the_same(package: pathlib.Path, model: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    told = []
    for place in (pathlib.Path(detent.__file__).parents[1], package):
        results = tmp_path / f"results{len(told)}"
        results.mkdir()
        told.append(json.loads(run(CALLS, place, results, model, folder)))
    for name, expected in told[0].items():
        assert told[1][name] == expected, name


def test_what_the_command_cannot_do_is_refused(package: pathlib.Path, model: pathlib.Path) -> None:
    for call, says in {
        "detent.Profiler()": "profile= the path of a file",
        f"detent.quantize({str(model)!r}, 'x.onnx', score=lambda file: 1.0, format='q4')": "function",
        f"detent.compare({str(model)!r}, {str(model)!r}, [], device='cuda:0')": "CPU alone",
    }.items():
        assert says in run(REFUSED.format(call), package)


def test_progress_is_heard_and_may_fail(package: pathlib.Path, tmp_path: pathlib.Path) -> None:
    command = tmp_path / "command"
    command.write_text('#!/bin/sh\necho "calibrate: 3 of 8  5 % of the run" >&2\necho "{}"\n')
    command.chmod(0o755)
    assert run(PROGRESS, package, command).splitlines() == ["[('calibrate', 3, 8)]", "enough"]
