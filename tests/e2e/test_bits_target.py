"""As few bits as an accuracy target leaves, with --weights-only --accuracy-target."""

import sys

import pytest
import support
from failures import BAD_INPUT, USAGE, Place
from support import Path
from test_mixed_bits import bytes_of, unequal
from test_weights_only import correlated, twice_a_product


def test_reaches_the_target_with_less_than_eight_bits(tmp_path: Path) -> None:
    model = unequal(tmp_path / "m.onnx")
    data, samples = correlated(tmp_path / "data")
    sizes = {}
    for bits in (2, 8):
        support.weights_only(model, tmp_path / f"{bits}.onnx", "--bits", bits, "--set", "accuracy-level=1")
        sizes[bits] = bytes_of(tmp_path / f"{bits}.onnx")
    options = ["--calibration-data", data, "--set", "accuracy-level=1", "--accuracy-metric", "sqnr"]
    in_float = support.outputs(support.load(model), samples)
    found = []
    for target in (10, 25, 40):
        output = tmp_path / f"{target} dB.onnx"
        plan = support.weights_only(model, output, "--accuracy-target", target, *options)["bits_plan"]
        assert plan["reached"] >= target and plan["reached"] in [t["value"] for t in plan["tried"]]
        assert sizes[2] <= bytes_of(output) == plan["size"] <= sizes[8]
        assert plan["size"] == min(t["size"] for t in plan["tried"] if t["value"] >= target)
        assert support.sqnr(in_float, support.outputs(support.load(output), samples)) > target - 1
        found.append(plan["size"])
    assert found == sorted(found) and found[0] < found[-1]


def test_a_score_decides(tmp_path: Path) -> None:
    """A command's score: here of the file's size, so that the answer is known."""
    model = unequal(tmp_path / "m.onnx")
    data, _ = correlated(tmp_path / "data")
    support.weights_only(model, tmp_path / "4.onnx", "--bits", 4)
    enough = bytes_of(tmp_path / "4.onnx")
    script = tmp_path / "score.py"
    script.write_text(f"import os, sys\nprint(1.0 if os.path.getsize(sys.argv[1]) >= {enough} else 0.5)\n")
    command = f"{sys.executable} {script}"
    options = ["--accuracy-metric", "command", "--accuracy-command", command, "--accuracy-target", 0.9]
    result = support.weights_only(model, tmp_path / "q.onnx", "--calibration-data", data, *options)
    assert enough <= bytes_of(tmp_path / "q.onnx") <= 1.03 * enough
    assert result["bits_plan"]["reached"] == 1


def test_same_bytes(tmp_path: Path) -> None:
    """Whatever the threads and the order of samples, and after an interruption."""
    model = twice_a_product(tmp_path / "m.onnx")
    data, samples = correlated(tmp_path / "data")
    options = ["--accuracy-target", 30, "--accuracy-metric", "sqnr"]
    support.weights_only(model, tmp_path / "q.onnx", "--calibration-data", data, *options)
    shuffled = support.save_samples(tmp_path / "shuffled", samples[::-1])
    support.weights_only(model, tmp_path / "s.onnx", "--calibration-data", shuffled, "--threads", 1, *options)
    assert support.sha256(tmp_path / "s.onnx") == support.sha256(tmp_path / "q.onnx")
    place = tmp_path / "killed"
    place.mkdir()
    found = support.resumed_after_kill("weights.solved=kill@3", model, data, place, "--weights-only", *options)
    assert support.sha256(found) == support.sha256(tmp_path / "q.onnx")


REFUSED = {
    "no samples": (USAGE, ["--accuracy-target", 0.9], "needs samples"),
    "a size too": (USAGE, ["--accuracy-target", 0.9, "--max-size", "1MiB", "--calibration-data", "data"], "both choose"),
    "no decoder": (
        BAD_INPUT,
        ["--accuracy-target", 0.9, "--accuracy-metric", "perplexity", "--calibration-data", "data"],
        "no decoder",
    ),
    "no such thing": (
        BAD_INPUT,
        ["--accuracy-target", 400, "--accuracy-metric", "sqnr", "--calibration-data", "data"],
        "no choice of bits",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    status, options, says = REFUSED[case]
    place = Place(tmp_path)
    model = twice_a_product(place.inputs / "m.onnx")
    data, _ = correlated(place.inputs / "data")
    options = [data if option == "data" else option for option in options]
    place.refuses(status, says, "quantize", model, "-o", place.output, "--weights-only", *options)
