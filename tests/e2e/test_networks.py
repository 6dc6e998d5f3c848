"""Networks in the idioms of exporters (tests/networks/), each for some of the targets; scripts/sweep_networks.py has more."""

import sys

import numpy as np
import pytest
from onnx import numpy_helper
from support import ROOT, Path

sys.path.insert(0, str(ROOT / "tests" / "networks"))

from judge import detent, in_turns, judged  # noqa: E402
from networks import network  # noqa: E402

# Of all kinds of rounds (tests/networks/networks.py).
SEEDS, EACH = (*range(27), *range(39, 52)), 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_networks_of_exporters(seed: int, tmp_path: Path) -> None:
    made, preset = network(seed), ("plain", "balanced")[seed % 2]
    targets = in_turns(seed, EACH)
    verdicts = [judged(made, target, preset, tmp_path, with_layers=seed % 8 == 0 and i == 0) for i, target in enumerate(targets)]
    assert not [verdict for verdict in verdicts if verdict.faults], verdicts
    # With values of 16 bits there is always a way.
    assert not [verdict for verdict in verdicts if verdict.refusal and ":a16" in verdict.target], verdicts


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["amd-npu:xint8", "tflite-like"])
def test_scores_beside_boxes_live_in_models_of_16_bit_floats(target: str, tmp_path: Path) -> None:
    """A Cast stands between their Concat and the output."""
    verdict = judged(network(65), target, "balanced", tmp_path)
    assert not verdict.faults, verdict


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["amd-npu:bfp16", "amd-npu:bf16", "openvino", "qnn"])
def test_a_head_of_zeros_is_exact(target: str, tmp_path: Path) -> None:
    """As timm leaves a mixer's before training: the results are the float model's, and JSON has no number for that."""
    made = network(7)  # patches
    head = made.model.graph.node[-1]
    for tensor in made.model.graph.initializer:
        if tensor.name in head.input:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    verdict = judged(made, target, "plain", tmp_path)
    assert verdict.kind == "right" and verdict.sqnr_db == 200, verdict


def test_errors_of_integers_are_not_told_of_16_bit_floats(tmp_path: Path) -> None:
    verdict = judged(network(74), "tensorrt", "plain", tmp_path)
    assert verdict.kind == "right", verdict


@pytest.mark.parametrize("target", ["coreml", "amd-npu:bf16"])
def test_targets_without_integers_refuse_them(target: str, tmp_path: Path) -> None:
    made = network(0)
    assert judged(made, target, "", tmp_path).kind == "right"
    given = ["--calibration-data", tmp_path / "data", *made.shapes, "--target", target, "--preset", "plain"]
    refused = detent("quantize", tmp_path / "model.onnx", "-o", tmp_path / "q.onnx", *given)
    assert refused.returncode == 2 and f"--preset plain contradicts --target {target}" in refused.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_a_product_that_takes_all_results_with_it_is_left_in_float(tmp_path: Path) -> None:
    """A small front end: what a logarithm reads is an eighth of all multiplications, more than are left in float as a rule."""
    verdict = judged(network(30013), "openvino", "balanced", tmp_path)
    assert verdict.kind == "right" and verdict.sqnr_db > 20, verdict
