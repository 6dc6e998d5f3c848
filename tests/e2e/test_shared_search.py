"""Searches and families under mpirun: the same models as one process makes, whichever rank made them."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable

import decoders
import graphs
import numpy as np
import onnx
import pytest
import support
from launcher import by_rank, mpirun, refused
from support import Path, sha256

NETWORKS = {
    "cnn": (graphs.small_cnn, lambda: graphs.cnn_samples(9)),
    "transformer": (graphs.transformer, lambda: graphs.transformer_samples(9)),
}
FORMATS = ["--formats", "int8,int8-dynamic,q4"]


@pytest.fixture(scope="module", params=NETWORKS)
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    make, samples = NETWORKS[request.param]
    onnx.save(make(), folder / "m.onnx")
    support.save_samples(folder / "data", samples())
    return folder


def run(ranks: int, *command: object, **variables: str) -> support.Ran:
    return mpirun(ranks, *command, **variables) if ranks > 1 else support.detent(*command)


def searched(net: Path, folder: Path, ranks: int, *options: object) -> dict[tuple[str, ...], dict]:
    """The points of a search with more of them than its front has, by their formats."""
    work = folder / f"work{ranks}"
    work.mkdir()
    output = folder / f"out{ranks}"
    command = ["search", net / "m.onnx", "-o", output, "--calibration-data", net / "data", "--points", 24, *FORMATS]
    command += ["--set", f"kernel-table={net / 'kernels.json'}", "--work-dir", work, "--json", *options]
    result = run(ranks, *command)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    assert not list(work.iterdir())
    front = json.loads((output / "front.json").read_text())
    assert json.loads(result.stdout) == front
    points = {tuple(p.get("node_formats", [p["name"]])): p for p in front["points"]}
    assert len(points) == len(front["points"])
    return points


@pytest.mark.sampled(1)
@pytest.mark.parametrize("limited", [False, True])
def test_a_search_measures_and_writes_what_one_process_does(net: Path, tmp_path: Path, limited: bool) -> None:
    size = f"{(net / 'm.onnx').stat().st_size * 2 // 3}B"
    options = ["--max-size", size, "--accuracy-target", "15", "--accuracy-metric", "sqnr"] if limited else []
    expected = searched(net, tmp_path, 1, *options)
    assert any(p["name"].startswith("mixed") for p in expected.values())
    several = [3] if limited else [2, 3]
    for ranks in several:
        found = searched(net, tmp_path, ranks, *options)
        assert found.keys() == expected.keys()
        for formats, point in found.items():
            for figure in "sqnr_db", "error", "bytes", "single", "value":
                assert point.get(figure) == expected[formats].get(figure), (ranks, formats, figure)
            assert point["expected_seconds"] >= 0  # a busy machine times kernels anew
            # Of several choices with the same formats, times decide which is expected.
            assert point.get("expected_error") == pytest.approx(expected[formats].get("expected_error"), rel=0.1)
    compared = 0
    for folder in (tmp_path / f"out{ranks}" for ranks in (1, *several)):
        for point in json.loads((folder / "front.json").read_text())["points"]:
            if "written" not in point or not point["command"]:
                continue
            # Each was made somewhere; a process that is alone makes the same.
            words = shlex.split(point["command"])
            words[words.index("-o") + 1] = str(tmp_path / "single.onnx")
            made = subprocess.run([support.DETENT, *words[1:], "--no-bench"], capture_output=True, text=True, check=False)
            assert made.returncode == 0, made.stderr
            assert sha256(tmp_path / "single.onnx") == sha256(Path(point["written"])), (folder, point["name"])
            compared += 1
    assert compared >= len(several)


@pytest.mark.full
def test_quantize_within_limits(tmp_path: Path) -> None:
    """The model that the search of all ranks finds is made by all."""
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(9))
    limits = ["--accuracy-target", "15", "--accuracy-metric", "sqnr"]
    command = ["quantize", tmp_path / "m.onnx", "--calibration-data", data, *limits, "--no-bench", "--json"]
    result = mpirun(3, *command, "-o", tmp_path / "q.onnx", "--max-size", "7KiB")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    told = json.loads(result.stdout)
    assert any("meets the limits best" in note for note in told["notes"])
    assert (tmp_path / "q.onnx").stat().st_size == told["model_bytes_after"] <= 7 << 10
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "m.onnx", "q.onnx"]
    says = r"detent: error: rank 0 on \S+: none of \d+ measured models meets"
    refused(says, 2, *command, "-o", tmp_path / "q.onnx", "--max-size", "1KiB")


@pytest.mark.sampled(1)
def test_node_formats_are_shared(net: Path, tmp_path: Path) -> None:
    found = set()
    for ranks in (1, 2, 3):
        output = tmp_path / f"{ranks}.onnx"
        command = ["quantize", net / "m.onnx", "-o", output, "--calibration-data", net / "data", "--no-bench"]
        result = run(ranks, *command, "--node-formats", "^.*=int8,^.*(head|matmul1).*=q4", "--quiet")
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        found.add(sha256(output))
    assert len(found) == 1


MEMBERS = "fp32,fp16,q8,int8,uint8,q4,q4f16"


@pytest.mark.full
@pytest.mark.parametrize("samples", [True, False], ids=["samples", "no-samples"])
@pytest.mark.parametrize("members", [MEMBERS, "q4f16,fp16", "fp16"])
def test_a_family(tmp_path: Path, members: str, samples: bool) -> None:
    onnx.save(decoders.decoder(), tmp_path / "m.onnx")
    np.save(tmp_path / "ids.npy", np.random.default_rng(1).integers(0, decoders.VOCABULARY, (7, 24)))
    same_family(tmp_path / "m.onnx", tmp_path, members, samples)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("folder", [decoders.transformers_folder, decoders.genai_folder])
def test_a_family_of_a_folder(tmp_path: Path, folder: Callable[[Path], Path]) -> None:
    source = folder(tmp_path / "source")
    np.save(tmp_path / "ids.npy", np.random.default_rng(1).integers(0, decoders.VOCABULARY, (7, 24)))
    same_family(source, tmp_path, "fp32,q4,q8", True)


def same_family(source: Path, folder: Path, members: str, samples: bool) -> None:
    data = ["--calibration-data", folder / "ids.npy", "--batch-size", 1] if samples else []
    found = {}
    for ranks in (1, 2, 3):
        work = folder / f"work{ranks}"
        work.mkdir()
        output = folder / "out"
        command = ["quantize", source, "-o", output, "--family", members, "--work-dir", work, "--json", "--no-bench", *data]
        result = run(ranks, *command)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        assert not list(work.iterdir())
        told = json.loads(result.stdout)
        members_told = [(m["member"], m["output"], m["samples"], m["notes"], m.get("weights")) for m in told["family"]]
        files = {str(p.relative_to(output)): sha256(p) for p in output.rglob("*") if p.is_file()}
        found[ranks] = files, told["notes"], told["samples"], members_told
        shutil.rmtree(output)
        work.rmdir()
        assert not [p for p in folder.iterdir() if p.name.startswith((".out", "out"))]
    assert found[2] == found[1]
    assert found[3] == found[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("point", ["accuracy.trial=kill@2", "search.point=kill@1"])
def test_a_rank_that_dies_ends_a_search(tmp_path: Path, point: str, failing: int) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(9))
    work = tmp_path / "work"
    work.mkdir()
    command = ["search", tmp_path / "m.onnx", "-o", tmp_path / "out", "--calibration-data", data, *FORMATS, "--work-dir", work]
    program = by_rank(tmp_path / "run.sh", failing, f"export DETENT_FAILPOINT={point}")
    result = mpirun(3, *command, program=program)
    assert result.returncode != 0
    assert re.search(rf"rank {failing} .*on node \S+ exited on signal 9", result.stderr) or "MPIEXEC" in os.environ
    assert not (tmp_path / "out").exists()
    # The launcher kills those that do not end within a second: what helpers left is gone after the next run.
    result = mpirun(2, *command, "--quiet")
    assert (result.returncode, result.stderr) == (0, "")
    assert [p for p in work.iterdir() if "helps" in (p / "run.json").read_text()] == []


@pytest.mark.full
@pytest.mark.parametrize(("first", "ranks"), [(2, 3), (3, 1), (1, 2)])
def test_a_search_is_resumed_by_any_number_of_ranks(tmp_path: Path, first: int, ranks: int) -> None:
    """Of the models that were measured when rank 0 was killed."""
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(9))
    work = tmp_path / "work"
    work.mkdir()
    command = ["search", tmp_path / "m.onnx", "-o", tmp_path / "out", "--calibration-data", data, *FORMATS]
    command += ["--points", 1, "--set", f"kernel-table={tmp_path / 'kernels.json'}", "--work-dir", work, "--resume", "--json"]
    program = by_rank(tmp_path / "run.sh", 0, "export DETENT_FAILPOINT=search.point=kill@3")
    killed = mpirun(first, *command, program=program)
    assert killed.returncode != 0
    assert not (tmp_path / "out").exists()
    made = len(list(work.glob("*/points/*.json")))
    assert made >= 2
    result = run(ranks, *command, "--time-limit", "300s")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    assert not json.loads(result.stdout)["out_of_time"]
    points = {p["name"]: p for p in json.loads(result.stdout)["points"]}
    assert {"fp32", "int8-for-size", "int8-dynamic", "q4"} <= set(points)
    assert not list(work.iterdir())


@pytest.mark.full
def test_all_ranks_end_when_time_is_up(tmp_path: Path) -> None:
    """What rank 0 has timed by then is the result."""
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.transformer_samples(9))
    work = tmp_path / "work"
    work.mkdir()
    command = ["search", tmp_path / "m.onnx", "-o", tmp_path / "out", "--calibration-data", data, "--work-dir", work, "--json"]
    for seconds in (12, 40, 120):  # a busy machine times nothing in the first of these
        found = mpirun(3, *command, "--points", 60, "--time-limit", seconds, DETENT_FAILPOINT="search.point=wait@5")
        assert found.returncode == 0 or f"the time limit of {seconds} s has passed" in found.stderr, found.stderr
        front = json.loads(found.stdout) if found.returncode == 0 else {"points": []}
        if len(front["points"]) >= 2:
            break
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert (found.returncode, found.stderr) == (0, ""), found.stderr
    assert front["out_of_time"]
    assert len(front["points"]) >= 2
    assert all(p["seconds"] > 0 for p in front["points"])
    assert not list(work.iterdir())
