"""What weights of small floats and powers of two as scales leave of MiniLM: SQNR of its output, and the file's size.

    small_floats.py

The model is that of `scripts/fetch_models.py minilm`. ONNX Runtime's CPU does not read all of these types, so
DequantizeLinear nodes are computed by onnx's reference and the model runs in float32."""

import pathlib
import subprocess
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
import tasks_sentences
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ROOT = pathlib.Path(__file__).resolve().parent.parent
SENTENCES = 64
FP8, FP4 = ["--weight-type", "float8e4m3fn"], ["--weight-type", "float4e2m1"]
POWERS = ["--set", "scale-type=float8e8m0"]
FORMATS = {
    "FP8 E4M3FN, blocks of 32": FP8,
    "FP8 E4M3FN, channels": [*FP8, "--block-size", "channel"],
    "FP8 E5M2, blocks of 32": ["--weight-type", "float8e5m2"],
    "MXFP8 E4M3FN": [*FP8, *POWERS],
    "MXINT8": ["--bits", "8", *POWERS],
    "integers of 8 bits, blocks of 32": ["--bits", "8", "--set", "weights-form=qdq"],
    "NVFP4": [*FP4, "--set", "scale-type=float8e4m3fn", "--block-size", "16"],
    "MXFP4": [*FP4, *POWERS],
    "FP4 with float32 scales, blocks of 32": FP4,
    "integers of 4 bits, blocks of 32": ["--bits", "4", "--set", "weights-form=qdq"],
}


def session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def in_float(path: pathlib.Path) -> bytes:
    """The model with what its DequantizeLinear nodes make of constants."""
    model = onnx.load(path)
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    others = []
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear":
            others.append(node)
            continue
        tensors = [numpy_helper.from_array(values[name], name) for name in node.input if name]
        graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name=node.output[0])], tensors)
        alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        values[node.output[0]] = ReferenceEvaluator(alone).run(None, {})[0]
    read = {name for node in others for name in node.input}
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(others)
    model.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in values if name in read)
    return model.SerializeToString()


def main() -> None:
    detent, models = ROOT / "build" / "detent", ROOT / "build" / "models"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tasks_sentences.prepare(models, folder)
        test = dict(np.load(folder / "test.npz"))
        samples = [{k: v[i : i + 1] for k, v in test.items()} for i in range(SENTENCES)]
        model = folder / "model.onnx"
        expected = [session(model.read_bytes()).run(None, sample)[0] for sample in samples]
        print("| | SQNR | file |\n|---|---|---|")
        for label, options in FORMATS.items():
            ratios = []
            for method in ("nearest", "search"):
                out = folder / "out.onnx"
                fixed = ["--weights-only", "--op-types", "MatMul", "--set", f"weights-method={method}", "--no-bench"]
                subprocess.run([detent, "quantize", model, "-o", out, *fixed, *options], check=True, capture_output=True)
                running = session(in_float(out))
                noise = sum(np.sum((running.run(None, s)[0] - e) ** 2) for s, e in zip(samples, expected, strict=True))
                ratios.append(10 * np.log10(sum(np.sum(e**2) for e in expected) / noise))
            print(f"| {label} | {ratios[0]:.1f} / {ratios[1]:.1f} dB | {out.stat().st_size / 2**20:.1f} MiB |", flush=True)


if __name__ == "__main__":
    main()
