"""Quantize under mpirun: the same bytes for any number of processes, and nothing left where one of them fails."""

import json
import os
import random
import re
import shutil
import time

import decoders
import graphs
import numpy as np
import onnx
import pytest
import support
from decoders import build_decoder
from failures import USAGE
from launcher import by_rank, mpirun, refused
from onnx import TensorProto, helper, numpy_helper
from support import Path, sha256

RNG = np.random.default_rng(7)
RANKS = [2, 4]
BALANCED = ["--preset", "balanced"]


def layers(path: Path, sizes: tuple[int, ...] = (96, 200, 64, 130, 40)) -> Path:
    """Products of unequal weights, one after another."""
    nodes, tensors = [], []
    for i, (rows, columns) in enumerate(zip(sizes, sizes[1:], strict=False)):
        tensors.append(numpy_helper.from_array(RNG.standard_normal((rows, columns)).astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"p{i}"], f"product{i}"))
        nodes.append(helper.make_node("Tanh", [f"p{i}"], [f"x{i + 1}"], f"tanh{i}"))
    last = len(sizes) - 1
    x = helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", "t", sizes[0]])
    y = helper.make_tensor_value_info(f"x{last}", TensorProto.FLOAT, ["n", "t", sizes[-1]])
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layers(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mix = RNG.standard_normal((20, 96))
    samples = [{"x0": (RNG.standard_normal((1, 30, 20)) @ mix).astype(np.float32)} for _ in range(9)]
    return support.save_samples(tmp_path_factory.mktemp("samples") / "data", samples)


def quantized(ranks: int, model: Path, folder: Path, *options: object, expects: list[str] | None = None) -> tuple[str, dict]:
    """The hash of what several processes write, and what they print; working directories must be empty afterwards."""
    work = folder / f"work{ranks}"
    work.mkdir()
    output = folder / f"{ranks}.onnx"
    command = ["quantize", model, "-o", output, "--json", "--no-bench", "--work-dir", work, *options]
    result = mpirun(ranks, *command) if ranks > 1 else support.detent(*command)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    assert not list(work.iterdir())
    assert sorted(p.name for p in folder.iterdir()) == sorted([output.name, work.name, *(expects or [])])
    found = sha256(output)
    output.unlink()
    work.rmdir()
    return found, json.loads(result.stdout)


def same_bytes(model: Path, folder: Path, *options: object) -> dict:
    folder.mkdir(exist_ok=True)
    expected, told = quantized(1, model, folder, *options)
    for ranks in RANKS:
        found, by_ranks = quantized(ranks, model, folder, *options)
        assert found == expected, ranks
        for key in "weights", "accuracy", "nodes_quantized", "notes":
            assert by_ranks.get(key) == told.get(key), key
    return told


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--bits", 8, "--block-size", 16, "--set", "weight-asymmetric"],
        ["--set", "weights-method=nearest"],
        ["--weights-form", "qdq"],
        ["--weight-type", "float4e2m1"],
        ["--float", 16],
        ["--max-size", "30KiB"],
    ],
    ids=lambda options: " ".join(map(str, options)) or "default",
)
def test_weights_without_samples(model: Path, tmp_path: Path, options: list[object]) -> None:
    same_bytes(model, tmp_path / "out", "--weights-only", *options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--set", "weights-method=awq"],
        ["--set", "weights-method=search", "--bits", 2],
        ["--set", "sparsity=2:4"],
        ["--float", 16],
        ["--max-size", "30KiB"],
        ["--accuracy-target", "20", "--accuracy-metric", "sqnr"],
    ],
    ids=lambda options: " ".join(map(str, options)) or "default",
)
def test_weights_with_samples(model: Path, data: Path, tmp_path: Path, options: list[object]) -> None:
    same_bytes(model, tmp_path / "out", "--weights-only", "--calibration-data", data, *options)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rotation", ["on", "auto"])
def test_rotated_weights(tmp_path: Path, rotation: str) -> None:
    source = build_decoder.build(tmp_path / "decoder")
    np.save(tmp_path / "ids.npy", RNG.integers(1, 512, (9, 24)))
    samples = ["--calibration-data", tmp_path / "ids.npy", "--batch-size", 1]
    out = tmp_path / "out"
    out.mkdir()
    found = {}
    for ranks in (1, *RANKS):
        work = tmp_path / f"work{ranks}"
        work.mkdir()
        command = ["quantize", source, "-o", out / "q", "--no-bench", "--work-dir", work, "--weights-only", *samples]
        command += ["--set", f"rotation={rotation}"]
        result = mpirun(ranks, *command) if ranks > 1 else support.detent(*command)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        assert not list(work.iterdir())
        found[ranks] = {p.name: sha256(p) for p in (out / "q").iterdir() if p.name.startswith("model")}
        shutil.rmtree(out / "q")
        assert not list(out.iterdir())
    assert found[2] == found[4] == found[1]


NETWORKS = {
    "cnn": (graphs.small_cnn, lambda: graphs.cnn_samples(9)),
    "transformer": (graphs.transformer, lambda: graphs.transformer_samples(9)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "options",
    [
        [*support.PLAIN],
        [*support.PLAIN, "--method", "entropy"],
        [*BALANCED, "--optimize-for", "size"],
        [*BALANCED, "--optimize-for", "size", "--accuracy-target", "25", "--accuracy-metric", "sqnr"],
        [*support.PLAIN, "--finetune", "gptq"],
        [*support.PLAIN, "--finetune", "adaquant", "--set", "num-iterations=40"],
        [*support.PLAIN, "--finetune", "adaround", "--set", "num-iterations=40"],
        [*support.PLAIN, "--activations", "dynamic"],
        ["--float", 16, *support.PLAIN],
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_integers(tmp_path: Path, network: str, options: list[object]) -> None:
    make, samples = NETWORKS[network]
    onnx.save(make(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", samples())
    same_bytes(tmp_path / "m.onnx", tmp_path / "out", "--calibration-data", data, *options)


def decoder_samples(count: int = 7) -> list[dict[str, np.ndarray]]:
    """Of different lengths, with as many tokens in the cache as came before, or none."""
    samples = []
    for i in range(count):
        length, past = 5 + i, 3 * (i % 3)
        shape = (1, decoders.SHAPE.kv_heads, past, decoders.SHAPE.head)
        cache = {name: RNG.standard_normal(shape).astype(np.float32) for name in decoders.empty_cache()}
        ids = RNG.integers(1, decoders.VOCABULARY, (1, length))
        samples.append({"input_ids": ids, "attention_mask": np.ones((1, past + length), np.int64), **cache})
    return samples


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        [*support.PLAIN],
        [*BALANCED, "--optimize-for", "size"],
        [*support.PLAIN, "--finetune", "gptq"],
        [*support.PLAIN, "--finetune", "adaround", "--set", "num-iterations=20"],
        ["--weights-only"],
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_a_decoder_with_a_cache(tmp_path: Path, options: list[object]) -> None:
    onnx.save(decoders.decoder(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", decoder_samples())
    told = same_bytes(tmp_path / "m.onnx", tmp_path / "out", "--calibration-data", data, *options)
    assert told["samples"] == 7


def test_statistics_of_a_decoder(tmp_path: Path) -> None:
    onnx.save(decoders.decoder(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", decoder_samples())
    found = set()
    for ranks in (1, *RANKS):
        command = ["calibrate", tmp_path / "m.onnx", "-o", tmp_path / "stats", "--calibration-data", data, *support.PLAIN]
        result = mpirun(ranks, *command) if ranks > 1 else support.detent(*command)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        found.add(sha256(tmp_path / "stats"))
    assert len(found) == 1


def test_all_decide_as_rank_0_measures(tmp_path: Path) -> None:
    """What each measures of speed itself may differ."""
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(9))
    table = ["--optimize-for", "latency", "--set", f"kernel-table={tmp_path / 'kernels.json'}"]
    same_bytes(tmp_path / "m.onnx", tmp_path / "out", "--calibration-data", data, *BALANCED, *table)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [2, 3])
def test_statistics_are_resumed_by_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(9))
    options = ["--calibration-data", data, *support.PLAIN, "--set", "checkpoint-seconds=0"]
    expected, _ = quantized(1, tmp_path / "m.onnx", tmp_path, *options, expects=["m.onnx", "data"])
    work = tmp_path / "work"
    work.mkdir()
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--no-bench", "--work-dir", work, *options, "--resume"]
    assert mpirun(2, *command, DETENT_FAILPOINT="calibrate.sample=kill@3").returncode != 0
    result = mpirun(ranks, *command)
    assert (result.returncode, result.stderr) == (0, "")
    assert sha256(tmp_path / "q.onnx") == expected
    assert not list(work.iterdir())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("point", "options"),
    [
        ("finetune.sample=kill@4", [*support.PLAIN, "--finetune", "gptq"]),
        ("finetune.solved=kill@2", [*support.PLAIN, "--finetune", "gptq"]),
        ("checkpoint.saved=kill@2", [*support.PLAIN, "--finetune", "gptq"]),
        ("checkpoint.saved=kill@2", BALANCED),
        ("accuracy.trial=kill@2", [*BALANCED, "--optimize-for", "size"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_runs_are_resumed_by_any_number_of_ranks(tmp_path: Path, point: str, options: list[str]) -> None:
    onnx.save(graphs.transformer(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.transformer_samples(9))
    table = ["--optimize-for", "latency", "--set", f"kernel-table={tmp_path / 'kernels'}"]
    options = ["--calibration-data", data, *options, "--set", "checkpoint-seconds=0", *(table if options == BALANCED else [])]
    files = ["m.onnx", "data", *(["kernels"] if options[-1] == table[-1] else [])]
    expected, _ = quantized(1, tmp_path / "m.onnx", tmp_path, *options, expects=files)
    work = tmp_path / "work"
    work.mkdir()
    command = ["quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "--no-bench", "--work-dir", work, *options, "--resume"]
    # As many as before, more, and one.
    number = {"finetune.sample": 2, "finetune.solved": 3, "checkpoint.saved": 3}.get(point.split("=")[0], 1)
    assert mpirun(2, *command, DETENT_FAILPOINT=point).returncode != 0
    result = mpirun(number, *command) if number > 1 else support.detent(*command)
    assert (result.returncode, result.stderr) == (0, "")
    assert sha256(tmp_path / "q.onnx") == expected
    assert not list(work.iterdir())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("first", [2, 3])
def test_resumed_by_another_number_of_ranks(model: Path, data: Path, tmp_path: Path, first: int, ranks: int) -> None:
    options = ["--weights-only", "--calibration-data", data]
    expected, _ = quantized(1, model, tmp_path, *options)
    work = tmp_path / "work"
    work.mkdir()
    command = ["quantize", model, "-o", tmp_path / "q.onnx", "--no-bench", "--work-dir", work, *options, "--resume"]
    killed = mpirun(first, *command, DETENT_FAILPOINT="weights.solved=kill@1")
    assert killed.returncode != 0
    assert not (tmp_path / "q.onnx").exists()
    result = mpirun(ranks, *command)
    assert (result.returncode, result.stderr) == (0, "")
    assert sha256(tmp_path / "q.onnx") == expected
    assert not list(work.iterdir())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["blocks", "gptq"])
def test_a_random_rank_dies_at_a_random_moment(tmp_path: Path, model: Path, data: Path, kind: str) -> None:
    """And another number of ranks goes on, which may meet the same: at last the bytes are those of one process."""
    options = ["--weights-only"] if kind == "blocks" else [*support.PLAIN, "--finetune", "gptq", "--set", "checkpoint-seconds=0"]
    options += ["--calibration-data", data, "--no-bench"]
    work, output = tmp_path / "work", tmp_path / "q.onnx"
    work.mkdir()
    start = time.monotonic()
    whole = support.detent("quantize", model, "-o", output, *options)
    assert (whole.returncode, whole.stderr) == (0, "")
    seconds = time.monotonic() - start
    expected = sha256(output)
    command = ["quantize", model, "-o", output, "--work-dir", work, *options, "--resume"]
    chance = random.Random(kind)
    died = tries = 0
    while tries < (10 if kind == "blocks" else 5) or not died:
        tries += 1
        ranks, moment = chance.choice([2, 3, 4]), chance.uniform(0.2, 1.5) * seconds
        output.unlink(missing_ok=True)
        killed = f'exec timeout -s KILL {moment:.3f} {support.DETENT} "$@"'
        program = by_rank(tmp_path / "run.sh", chance.randrange(ranks), killed)
        result = mpirun(ranks, *command, program=program)
        if result.returncode != 0:
            died += 1
        else:  # it came too late: a busy while may have made the whole run seem longer than those are that follow
            seconds /= 2
        # A rank that dies after the file was written fails the job, and the file is whole.
        assert output.exists() or result.returncode != 0, result.stderr
        assert not output.exists() or sha256(output) == expected
    output.unlink(missing_ok=True)
    last = mpirun(3, *command)
    assert (last.returncode, last.stderr) == (0, "")
    assert sha256(output) == expected
    assert not list(work.iterdir())


def test_a_plan_tells_what_ranks_bring(tmp_path: Path) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(9))
    command = ["plan", tmp_path / "m.onnx", "--calibration-data", data, "--finetune", "gptq", *support.PLAIN, "--json"]
    told = support.detent(*command, "--ranks", 3, "--network", "10Gbit")
    assert (told.returncode, told.stderr) == (0, "")
    times = json.loads(told.stdout)["ranks"]
    assert [t["ranks"] for t in times] == [1, 2, 3, 8, 64, 512]
    assert times[0]["efficiency"] == 1
    assert times[0]["seconds"] > 0
    for t in times:
        assert t["seconds"] == pytest.approx(sum(s["seconds"] for s in t["stages"]))
        assert t["efficiency"] == pytest.approx(times[0]["seconds"] / t["seconds"] / t["ranks"])
    slow = json.loads(support.detent(*command, "--ranks", 3, "--network", "1Kbit").stdout)["ranks"]
    assert slow[1]["seconds"] > times[0]["seconds"]  # what travels takes longer than the work
    assert "ranks" not in json.loads(support.detent(*command).stdout)
    wrong = support.detent(*command, "--ranks", 3, "--network", "fast")
    assert wrong.returncode == USAGE
    assert "--network 'fast' is no rate" in wrong.stderr
    unknown = support.detent("plan", tmp_path / "m.onnx", "--ranks", 2, "--weights-only")
    assert unknown.returncode == USAGE
    assert "the times of this run are not known" in unknown.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("method", ["gptq", "adaround", "nearest"])
def test_a_plan_knows_what_travels(tmp_path: Path, method: str, ranks: int) -> None:
    onnx.save(graphs.small_cnn(), tmp_path / "m.onnx")
    data = support.save_samples(tmp_path / "data", graphs.cnn_samples(40))
    words = [tmp_path / "m.onnx", "--calibration-data", data, *support.PLAIN, "--json", "--threads", 1]
    words += ["--finetune", method, "--set", "num-iterations=5"] if method != "nearest" else []
    made = mpirun(ranks, "quantize", *words, "-o", tmp_path / "q.onnx", "--no-bench")
    assert (made.returncode, made.stderr) == (0, "")
    planned = support.detent("plan", *words, "--ranks", ranks, "--network", "1Gbit")
    assert (planned.returncode, planned.stderr) == (0, "")
    stages = next(t for t in json.loads(planned.stdout)["ranks"] if t["ranks"] == ranks)["stages"]
    received = json.loads(made.stdout)["received_bytes"]
    assert sum(s["received_bytes"] for s in stages) == pytest.approx(received, rel=0.25)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_other_models_are_refused(model: Path, tmp_path: Path, failing: int) -> None:
    """Each rank reads its own copy, and one of them is another."""
    folders = [tmp_path / "usual", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    shutil.copy(model, folders[0] / "m.onnx")
    layers(folders[1] / "m.onnx")
    program = by_rank(tmp_path / "run.sh", failing, f"cd {folders[1]}")
    command = ["quantize", "m.onnx", "-o", tmp_path / "q.onnx", "--weights-only"]
    says = r"rank [0-2] on \S+: the model differs from that of rank 0; give all"
    refused(says, 3, *command, program=program, cwd=folders[0])
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("point", ["weights.sample=kill@3", "weights.solved=kill@1", "blocks.shared=kill@1"])
def test_a_rank_that_dies_ends_all(model: Path, data: Path, tmp_path: Path, point: str, failing: int) -> None:
    samples = [] if "shared" in point else ["--calibration-data", data]
    work = tmp_path / "work"
    work.mkdir()
    command = ["quantize", model, "-o", tmp_path / "q.onnx", "--weights-only", *samples, "--no-bench", "--work-dir", work]
    program = by_rank(tmp_path / "run.sh", failing, f"export DETENT_FAILPOINT={point}")
    result = mpirun(3, *command, program=program)
    assert result.returncode != 0
    assert re.search(rf"rank {failing} .*on node \S+ exited on signal 9", result.stderr) or "MPIEXEC" in os.environ
    assert not (tmp_path / "q.onnx").exists()
    # What helpers left is gone after the next run, whenever the launcher killed them.
    result = mpirun(2, *command, "--quiet")
    assert (result.returncode, result.stderr) == (0, "")
    assert [p for p in work.iterdir() if "helps" in (p / "run.json").read_text()] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failing", [0, 2])
def test_an_error_names_the_rank(model: Path, data: Path, tmp_path: Path, failing: int) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(data, broken)
    (sorted(broken.iterdir())[0]).write_bytes(b"no sample")
    usual = tmp_path / "usual"
    usual.mkdir()
    for folder, samples in ((usual, data), (tmp_path, broken)):
        (folder / "data").symlink_to(samples)
    program = by_rank(tmp_path / "run.sh", failing, f"cd {tmp_path}")
    work = tmp_path / "work"
    command = ["quantize", model, "-o", tmp_path / "q.onnx", "--weights-only", "--calibration-data", "data"]
    # The launcher kills the others after these seconds, one unless told, which may be too few for a busy machine: it always
    # waits for all of them, and what it kills leaves its directory.
    for seconds in (2, 10, 40):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        patience = {"OMPI_MCA_odls_base_sigkill_timeout": str(seconds)}
        # Which rank speaks depends on whose samples are compared with those of the first.
        said = f"(.*{sorted(broken.iterdir())[0].name}|the samples, .* differ from)"
        says = rf"detent: error: rank {failing or '[12]'} on \S+: {said}"
        refused(says, 3, *command, "--work-dir", work, program=program, cwd=usual, **patience)
        assert not (tmp_path / "q.onnx").exists()
        if not list(work.iterdir()):
            break
    assert not list(work.iterdir())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("option", ["--bits=8", "--set=weight-asymmetric", "--block-size=16"])
def test_other_options_are_refused(model: Path, tmp_path: Path, option: str, failing: int) -> None:
    """Launchers take another line for each rank; what the ranks make would go into one result."""
    script = tmp_path / "run.sh"
    script.write_text(f"""#!/bin/sh
[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = {failing} ] && exec {support.DETENT} "$@" {option}
exec {support.DETENT} "$@"
""")
    script.chmod(0o755)
    says = r"rank [1-2] on \S+: the options, or the version of detent, differ from those of rank 0; start all"
    refused(says, 3, "quantize", model, "-o", tmp_path / "q.onnx", "--weights-only", "--no-bench", program=script)
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("kind", ["calibrate", "quantize"])
def test_a_full_disk_of_one_rank_is_one_line(model: Path, data: Path, tmp_path: Path, kind: str, failing: int) -> None:
    program = by_rank(tmp_path / "run.sh", failing, "ulimit -f 8")
    (work := tmp_path / "work").mkdir()
    options = ["--set", "memory-level=2", "--set", "segments=3", "--preset", "plain"]
    options += ["--no-bench"] if kind == "quantize" else []
    command = [kind, model, "-o", tmp_path / "out", "--calibration-data", data, "--work-dir", work, *options]
    for seconds in (2, 10, 40):  # as in test_an_error_names_the_rank
        patience = {"OMPI_MCA_odls_base_sigkill_timeout": str(seconds)}
        refused(rf"detent: error: rank {failing}.*: .*cannot write .*--work-dir", 2, *command, program=program, **patience)
        assert not (tmp_path / "out").exists()
        if not list(work.iterdir()):
            break
        shutil.rmtree(work)
        work.mkdir()
    assert not list(work.iterdir())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("other", ["data", "--samples"])
@pytest.mark.parametrize("kind", ["calibrate", "blocks", "gptq"])
def test_other_samples_are_refused(model: Path, data: Path, tmp_path: Path, kind: str, other: str) -> None:
    """Each rank takes its share of what must be the same samples, or counted otherwise they would be others."""
    folders = [tmp_path / "usual", tmp_path / "other"]
    for folder in folders:
        shutil.copytree(data, folder / "data")
    if other == "data":
        sample = sorted((folders[1] / "data").iterdir())[4]
        np.savez(sample, x0=np.zeros((1, 30, 96), np.float32))
    script = tmp_path / "run.sh"
    script.write_text(f"""#!/bin/sh
[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 1 ] || exec {support.DETENT} "$@" --samples 8
cd {folders[1]}
exec {support.DETENT} "$@" --samples {8 if other == "data" else 7}
""")
    script.chmod(0o755)
    options = {"calibrate": [], "blocks": ["--weights-only"], "gptq": [*BALANCED, "--finetune", "gptq", "--optimize-for", "size"]}
    quantizes = [] if kind == "calibrate" else ["--no-bench"]
    command = ["calibrate" if kind == "calibrate" else "quantize", model, "-o", tmp_path / "out", "--calibration-data", "data"]
    says = r"rank [1-2] on \S+: the (samples|options, or the version of detent),.* differ from"
    refused(says, 3, *command, *options[kind], *quantizes, program=script, cwd=folders[0])
    assert not (tmp_path / "out").exists()
