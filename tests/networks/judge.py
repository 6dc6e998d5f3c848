"""Whether what detent makes of a network for a target is right, refused clearly, or wrong."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from net import Network, Part, Sample

ROOT = Path(__file__).resolve().parents[2]
DETENT = Path(os.environ.get("DETENT", ROOT / "build" / "detent"))
TARGETS = (
    "ort-cpu", "openvino", "qnn", "qnn:a16", "tensorrt", "amd-npu:xint8", "amd-npu:a8w8", "amd-npu:a16w8", "amd-npu:bf16",
    "amd-npu:bfp16", "xnnpack", "tflite-like", "coreml",
)  # fmt: skip
STATIC = {t for t in TARGETS if t.startswith(("qnn", "amd")) or t in ("tflite-like", "coreml")}
# What they make no integers of, and what ONNX Runtime's CPU has no kernels of, but detent has the arithmetic of.
FLOATS = {"amd-npu:bf16", "amd-npu:bfp16", "coreml"}
COMPUTED_BY_DETENT = {"amd-npu:bf16", "amd-npu:bfp16"}
# On these no product may be computed in float, unless the summary names it.
INTEGERS = {"qnn", "qnn:a16", "amd-npu:xint8", "amd-npu:a8w8", "amd-npu:a16w8", "tflite-like"}
PRODUCTS = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "LSTM", "GRU", "RNN"}
MORE_IN_FLOAT = (" stay in float: ", ": in float, ", ": left to the CPU, ")
DECIDE_ALIKE = "both models decide as the float model does"
# A model or data that detent cannot make what was asked of, and options that contradict each other.
REFUSED, USAGE = 3, 2
# Told accuracy may differ from what is found here by so many dB; from so many on, nothing can be told apart.
NEAR, EXACT = 0.1, 90
# Whose results are of no use. The preset plain measures nothing, and writes the model as it is.
LOW = 6


def in_turns(seed: int, each: int) -> list[str]:
    """So many targets for a network, others for each round of the families, of which there are as many."""
    first = each * seed + seed // len(TARGETS)
    return [TARGETS[(first + i) % len(TARGETS)] for i in range(each)]


@dataclasses.dataclass
class Verdict:
    network: str
    target: str
    faults: list[str]
    refusal: str = ""
    sqnr_db: float | None = None
    floor_db: float = LOW

    @property
    def kind(self) -> str:
        return "wrong" if self.faults else "refused" if self.refusal else "right"


def detent(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(DETENT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def session(model: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def results(model: Path, samples: list[Sample]) -> list[list[np.ndarray]]:
    loaded = session(model)
    return [loaded.run(None, sample) for sample in samples]


def sqnr(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Of finite values; the signal of equal ones is 200 dB from its noise."""
    signal = noise = 0.0
    for expected, found in pairs:
        a, b = expected.astype(np.float64), found.astype(np.float64)
        finite = np.isfinite(a)
        signal += float(np.square(a[finite]).sum())
        noise += float(np.square(a[finite] - b[finite]).sum())
    return 200.0 if noise <= signal * 1e-20 else 10 * float(np.log10(max(signal, 1e-300) / noise))


def is_dead(part: Part, pairs: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    """All zero, where the float model has values."""
    return any(part.of(a).any() for a, _ in pairs) and not any(part.of(b).any() for _, b in pairs)


def wrong_result(network: Network, expected: list, found: list, claim: float | None) -> tuple[list[str], float]:
    """Faults of what the written file computes, and its worst output of those whose numbers mean something beside the float
    model's: which boxes are chosen may hang on the last digit."""
    faults, worst, of_parts = [], 200.0, 200.0
    for i, info in enumerate(network.model.graph.output):
        pairs = [(a[i], b[i]) for a, b in zip(expected, found, strict=True)]
        if any(a.shape != b.shape for a, b in pairs) or pairs[0][0].dtype.kind != "f":
            continue
        if any(not np.isfinite(b).all() for a, b in pairs if np.isfinite(a).all()):
            faults.append(f"output '{info.name}' is not finite")
        worst = min(worst, sqnr(pairs))
        if any(part.output == i for part in network.parts):
            of_parts = min(of_parts, sqnr(pairs))
        faults += [f"dead: {part}" for part in network.parts if part.output == i and is_dead(part, pairs)]
    if claim is not None and min(claim, worst) < EXACT and abs(claim - worst) > NEAR:
        faults.append(f"told {claim:.2f} dB, found {worst:.2f} dB")
    return faults, of_parts


def differing_layers(network: Path, quantized: Path, data: Path) -> list[str]:
    """Layers that ONNX Runtime computes otherwise than exact integers say."""
    done = detent("verify", network, quantized, "--calibration-data", data, "--samples", 1, "--threads", 1, "--json")
    if done.returncode:
        return [f"verify ends with {done.returncode}: {done.stderr.strip()[:200]}"]
    layers = json.loads(done.stdout)["layers"]
    # Reasons that are named are the runtime's own, such as tables in float32.
    far = [a for a in layers if a["max_steps"] is not None and a["max_steps"] > 1.01 and a["exact"] and a["quantized"]]
    return [f"{layer['max_steps']:.1f} steps off: {layer['made_by']} ({layer['reason'] or 'no reason'})" for layer in far[:2]]


def names(note: str, node: onnx.NodeProto) -> bool:
    """The node itself, or as one of several of its kind with the same reason."""
    kind = f"{node.op_type} '"
    return f"{kind}{node.name}'" in note or (kind in note and any(f" more{tells}" in note for tells in MORE_IN_FLOAT))


def products_in_float(quantized: Path, result: dict, checked: dict) -> list[str]:
    """Those that read floats, though the target has none: `check` has to tell, and the summary to name them."""
    graph = onnx.load(quantized, load_external_data=False).graph
    integers = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    accepted = {node["name"] for node in checked["nodes"] if node["verdict"] == "accepted"}
    faults = []
    for node in graph.node:
        if node.op_type not in PRODUCTS or set(node.input[:2]) <= integers:
            continue
        if node.name in accepted:
            faults.append(f"check accepts {node.op_type} '{node.name}', which reads floats")
        if not any(names(note, node) for note in result["notes"]):
            faults.append(f"the summary does not name {node.op_type} '{node.name}', which is left in float")
    return faults


def told_otherwise(result: dict, quantized: Path, target: str) -> list[str]:
    """Where `check` tells another thing of the file than the run did."""
    done = detent("check", quantized, "--target", target, "--json")
    if done.returncode:
        return [f"check ends with {done.returncode}: {done.stderr.strip()[:200]}"]
    checked = json.loads(done.stdout)
    faults = [f"check: {problem}" for problem in checked["problems"]]
    if target != "ort-cpu":
        nodes = "1 node" if checked["accepted"] == 1 else f"{checked['accepted']} nodes"
        counts = f"{target}: {nodes} accepted, {checked['falls_back']} fall back, {checked['refused']} refused"
        if not any(note.startswith(counts) for note in result["notes"]):
            faults.append(f"check says other counts than the summary: {counts}")
    if checked["refused"]:
        faults.append(f"{checked['refused']} nodes are refused by the target")
    return faults + (products_in_float(quantized, result, checked) if target in INTEGERS else [])


def refuses(done: subprocess.CompletedProcess[str], code: int, target: str) -> bool:
    """One error of detent's own, with the code of its kind: it names the target and says what to change."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("detent: error: ")]
    return done.returncode == code and len(lines) == 1 and f"--target {target} " in lines[0] and "; " in lines[0]


def judged(network: Network, target: str, preset: str, folder: Path, *, with_layers: bool = False) -> Verdict:
    """Quantizes the network for the target in an empty folder, and looks at what came of it."""
    verdict = Verdict(network.name, target, [], floor_db=-np.inf if preset == "plain" else LOW)
    model, quantized, data = folder / "model.onnx", folder / "quantized.onnx", folder / "data"
    if not model.exists():
        onnx.save(network.model, model)
        data.mkdir()
        for i, sample in enumerate(network.samples):
            np.savez(data / f"{i}.npz", **sample)
    quantized.unlink(missing_ok=True)
    before = set(folder.iterdir())
    command = ["quantize", model, "-o", quantized, "--calibration-data", data, "--target", target]
    command += ["--no-bench", "--threads", 1, "--json", *([] if target in FLOATS else ["--preset", preset])]
    if target in STATIC and network.shapes:
        without = detent(*command)
        if not refuses(without, USAGE, target) or "--shape" not in without.stderr:
            verdict.faults.append(f"dynamic shapes end with {without.returncode}: {without.stderr.strip()[:200]}")
    done = detent(*command, *(network.shapes if target in STATIC else []))
    if left := {path.name for path in set(folder.iterdir()) - before - {quantized}}:
        verdict.faults.append(f"left behind: {left}")
    if refuses(done, REFUSED, target):
        verdict.refusal = done.stderr.strip()
    elif done.returncode:
        verdict.faults.append(f"ends with {done.returncode}: {done.stderr.strip()[:400]}")
    if done.returncode:
        return verdict
    return looked_at(verdict, network, json.loads(done.stdout), folder, with_layers)


def compared(folder: Path, *options: str) -> float | None:
    """The worst output that `compare` finds, in dB; None where it does not run."""
    files = [folder / "model.onnx", folder / "quantized.onnx"]
    done = detent("compare", *files, "--calibration-data", folder / "data", "--threads", 1, "--json", *options)
    if done.returncode:
        return None
    return min((o["sqnr_db"] for o in json.loads(done.stdout)["outputs"] if o["sqnr_db"] is not None), default=200.0)


def told_beside_compared(told: float, folder: Path) -> list[str]:
    found = compared(folder)
    if found is None:
        return ["compare does not run"]
    is_near = min(told, found) >= EXACT or abs(told - found) <= NEAR
    return [] if is_near else [f"told {told:.2f} dB, compare finds {found:.2f} dB"]


def told_accuracy(result: dict) -> float | None:
    """Of the worst output; JSON has no number for one that is the float model's, such as that of a head of zeros."""
    accuracy = result.get("accuracy")
    return None if not accuracy else 200.0 if accuracy["sqnr_db"] is None else accuracy["sqnr_db"]


def as_detent_computes(verdict: Verdict, result: dict, folder: Path) -> Verdict:
    """What `compare` finds on the written file, which has to be what the run told."""
    verdict.sqnr_db = told_accuracy(result)
    if verdict.sqnr_db is not None:
        verdict.faults += told_beside_compared(verdict.sqnr_db, folder)
        if verdict.sqnr_db < verdict.floor_db:
            verdict.faults.append(f"only {verdict.sqnr_db:.1f} dB")
    elif not any("the outputs were not compared" in note for note in result["notes"]):
        verdict.faults.append("no accuracy is told")
    return verdict


def looked_at(verdict: Verdict, network: Network, result: dict, folder: Path, with_layers: bool) -> Verdict:
    model, quantized, data = folder / "model.onnx", folder / "quantized.onnx", folder / "data"
    verdict.faults += [note[:200] for note in result["notes"] if "no values of it were seen" in note]
    verdict.faults += told_otherwise(result, quantized, verdict.target)
    if verdict.target in COMPUTED_BY_DETENT:
        return as_detent_computes(verdict, result, folder)
    try:
        onnx.checker.check_model(quantized, full_check=True)
        found = results(quantized, network.samples)
    except Exception as error:  # noqa: BLE001
        verdict.faults.append(f"does not run: {str(error)[:300]}")
        return verdict
    claim = told_accuracy(result) if verdict.target not in FLOATS else None
    if claim is not None and any(DECIDE_ALIKE in note for note in result["notes"]):
        # Alone the file may choose other boxes, as many as the float model does.
        verdict.faults += told_beside_compared(claim, folder)
        claim = None
    expected = results(model, network.samples)
    faults, verdict.sqnr_db = wrong_result(network, expected, found, claim)
    verdict.faults += faults
    if verdict.sqnr_db < verdict.floor_db:
        verdict.faults.append(f"only {verdict.sqnr_db:.1f} dB")
    if with_layers and verdict.target not in FLOATS:
        verdict.faults += differing_layers(model, quantized, data)
    return verdict
