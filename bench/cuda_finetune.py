#!/usr/bin/env python3
"""Fine-tuning on a GPU beside the CPU: time, memory of the device, and each layer's error, on the same samples.

  cuda_finetune.py MODEL DATA [--device cuda:0] [--finetune adaround ...] [--finetune-form gram ...]
                   [--precision float32 tf32 bfloat16] [--num-iterations 1000] [--no-cpu] [--json FILE]
                   [-- OPTIONS of detent quantize]

Exit status 1 when, on the GPU, the mean over layers of tuned ÷ nearest error is above the CPU's by more than --bound (0.01), or
the error of the model's outputs on the same samples by more than --whole (0.1); 5 when there is no GPU. Single layers are shown,
not judged: on the CPU, ResNet-18's change by -12 to +6 % where the samples change by 1e-6 of their values."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

DETENT = pathlib.Path(__file__).resolve().parents[1] / "build" / "detent"


def quantize(args: argparse.Namespace, folder: str, options: list[str]) -> dict:
    command = [DETENT, "quantize", "--no-bench", args.model, "-o", f"{folder}/out.onnx"]
    command += ["--calibration-data", args.data, "--preset", "plain"]
    command += ["--set", f"num-iterations={args.num_iterations}", "--json", *options, *args.rest]
    start = time.monotonic()
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.stderr.write(run.stderr)
        sys.exit(run.returncode)
    result = json.loads(run.stdout)
    result["wall"] = time.monotonic() - start
    compare = [DETENT, "compare", args.model, f"{folder}/out.onnx", "--calibration-data", args.data, "--json"]
    compared = subprocess.run([str(word) for word in compare], capture_output=True, text=True, check=True)
    # Of each output the error's energy as a share of the signal's; null: none.
    found = [output["sqnr_db"] for output in json.loads(compared.stdout)["outputs"]]
    result["whole"] = sum(10 ** (-decibels / 10) for decibels in found if decibels is not None)
    return result


def mean_ratio(result: dict) -> float:
    ratios = [layer["error_after"] / layer["error_before"] for layer in result["layers"] if layer["error_before"] > 0]
    return sum(ratios) / max(len(ratios), 1)


def row(name: str, result: dict, reference: dict | None) -> tuple[str, float, float]:
    """A line of the table; by how much the layers' mean ratio, and the model's error, are above the reference's."""
    solving = sum(layer["seconds"] for layer in result["layers"])
    mean, worst, above_mean, whole = mean_ratio(result), 0.0, 0.0, 0.0
    if reference is not None:
        above_mean = mean / mean_ratio(reference) - 1
        whole = result["whole"] / reference["whole"] - 1 if reference["whole"] > 0 else 0.0
        pairs = zip(result["layers"], reference["layers"], strict=True)
        above = (ours["error_after"] / theirs["error_after"] - 1 for ours, theirs in pairs if theirs["error_after"] > 0)
        worst = max(above, default=0.0)
    took = next((note.rsplit("used at most ", 1)[1] for note in result["notes"] if "used at most" in note), "-")
    start = f"| {name} | {result['wall']:.1f} | {solving:.1f} | {took} | {mean:.3f}"
    return f"{start} | {100 * worst:+.1f} % | {100 * whole:+.1f} % |", above_mean, whole


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("data")
    p.add_argument("--device", default="cuda:0")
    p.add_argument("--finetune", nargs="+", default=["adaround"])
    p.add_argument("--finetune-form", nargs="+", default=["gram", "streamed"])
    p.add_argument("--precision", nargs="+", default=["float32", "tf32", "bfloat16"])
    p.add_argument("--num-iterations", type=int, default=1000)
    p.add_argument("--no-cpu", action="store_true", help="do not run on the CPU for comparison")
    p.add_argument("--bound", type=float, default=0.01)
    p.add_argument("--whole", type=float, default=0.1)
    p.add_argument("--json")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = p.parse_args(words[:cut])
    args.rest = words[cut + 1 :]
    head = ["setting", "wall s", "solving s", "device memory", "error ÷ nearest, mean", "worst layer beside the CPU"]
    print("| " + " | ".join([*head, "whole model beside the CPU"]) + " |")
    print("|---|---|---|---|---|---|---|")
    results, failed = {}, False
    with tempfile.TemporaryDirectory() as folder:
        for rounding in args.finetune:
            for form in args.finetune_form:
                options = ["--finetune", rounding, "--set", f"finetune-form={form}"]
                reference = None
                if not args.no_cpu:
                    reference = results[f"{rounding} {form} cpu"] = quantize(args, folder, options)
                    print(row(f"{rounding} {form} cpu", reference, None)[0], flush=True)
                for precision in args.precision:
                    name = f"{rounding} {form} {args.device} {precision}"
                    on = ["--device", args.device, "--set", f"device-precision={precision}"]
                    found = results[name] = quantize(args, folder, options + on)
                    text, mean, whole = row(name, found, reference)
                    missed = mean > args.bound or whole > args.whole
                    print(text, flush=True)
                    if missed:
                        print(f"MISSED: {name}", file=sys.stderr)
                    failed = failed or missed
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
