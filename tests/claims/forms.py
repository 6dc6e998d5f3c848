"""The forms that a model is written in, as options of detent: every pair of types, every preset, bits, tuning and target."""

from collections.abc import Iterator

SIZE = ["--optimize-for", "size"]
INTEGERS = [*SIZE, "--format", "int8"]
ACTIVATIONS = ("int8", "uint8", "int16", "uint16")
WEIGHTS = ("int8", "uint8", "int16", "uint16", "int4", "uint4")
TARGETS = (
    "ort-cpu:vnni", "ort-cpu:avx2", "ort-cpu:arm", "ort-web", "openvino", "qnn", "qnn:a16", "tensorrt", "amd-npu:xint8",
    "amd-npu:a8w8", "amd-npu:a16w8", "amd-npu:bf16", "amd-npu:bfp16", "xnnpack", "tflite-like", "coreml",
)  # fmt: skip
BLOCK_FLOATS = ("bfp16", "mx4", "mx6", "mx9", "mxfp8e5m2", "mxfp8e4m3", "mxfp6e3m2", "mxfp6e2m3", "mxfp4e2m1", "mxint8")
#: What is tried of every graph.
ALWAYS = (
    "default",
    "integers",
    "plain",
    "dynamic",
    "blocks of 4 bits",
    "float16",
    "int8 among float16",
    "qoperator",
    "int16 x int8",
)


def _static() -> Iterator[tuple[str, list[str]]]:
    yield "default", []
    yield "size", SIZE
    yield "integers", INTEGERS
    yield "accuracy", ["--optimize-for", "accuracy"]
    yield "plain", ["--preset", "plain"]
    yield "plain, one scale", ["--preset", "plain", "--per-tensor"]
    yield "one scale", [*INTEGERS, "--per-tensor"]
    yield "powers of two", [*SIZE, "--set", "power-of-two-scale", "--set", "activation-symmetric"]
    yield "int16 falls back", [*SIZE, "--accuracy-fallback", "int16"]
    yield "no measuring", [*SIZE, "--set", "sensitivity=off"]
    yield "reduced range", [*INTEGERS, "--set", "weight-range=reduced"]
    yield "products alone", ["--preset", "plain", "--activation-type", "int8", "--op-types", "Conv,Gemm,MatMul"]
    yield "qoperator", [*SIZE, "--quant-format", "qoperator"]
    yield "qoperator, plain", ["--preset", "plain", "--quant-format", "qoperator"]
    for activation in ACTIVATIONS:
        for weight in WEIGHTS:
            types = ["--activation-type", activation, "--weight-type", weight]
            both = {activation, weight} <= {"int8", "uint8"}
            yield f"{activation} x {weight}", [*(INTEGERS if both else SIZE), *types]
            yield f"{activation} x {weight}, plain", ["--preset", "plain", *types]
    for kind in ("float8e4m3fn", "float8e5m2"):
        yield f"{kind} x {kind}", [*SIZE, "--activation-type", kind, "--weight-type", kind]
    for method in ("nearest", "adaround", "adaquant", "gptq"):
        few = ["--set", "num-iterations=30"] if method.startswith("ada") else []
        yield method, [*INTEGERS, "--finetune", method, *few]
        yield f"{method} of int4", [*SIZE, "--weight-type", "int4", "--finetune", method, *few]
    for metric, value in (("cosine", "0.9995"), ("sqnr", "35")):
        yield f"{metric} target", [*SIZE, "--accuracy-target", value, "--accuracy-metric", metric]


def _others() -> Iterator[tuple[str, list[str]]]:
    for weight in WEIGHTS[:2]:
        yield f"dynamic x {weight}", ["--activations", "dynamic", "--weight-type", weight]
    yield "dynamic", ["--activations", "dynamic"]
    yield "dynamic, one scale", ["--activations", "dynamic", "--per-tensor"]
    for bits in ("8", "4", "2"):
        for form in ("matmul-nbits", "qdq"):
            blocks = ["--weights-only", "--bits", bits, "--weights-form", form]
            yield f"blocks of {bits} bits" + (", qdq" if form == "qdq" else ""), [*blocks, "--block-size", "16"]
            yield f"channels of {bits} bits, {form}", [*blocks, "--block-size", "channel"]
            yield f"symmetric blocks of {bits} bits, {form}", [*blocks, "--set", "weight-symmetric"]
    for kind in ("float8e4m3fn", "float8e5m2", "float4e2m1"):
        yield f"blocks of {kind}", ["--weights-only", "--weight-type", kind, "--weights-form", "qdq", "--block-size", "16"]
    for method in ("nearest", "search", "awq", "gptq"):
        yield f"blocks by {method}", ["--weights-only", "--set", f"weights-method={method}", "--block-size", "16"]
    yield "sparse blocks", ["--weights-only", "--set", "sparsity=2:4", "--block-size", "16"]
    yield "rotated blocks", ["--weights-only", "--set", "rotation=auto", "--block-size", "16"]
    yield "blocks to a target", ["--weights-only", "--accuracy-target", "25", "--accuracy-metric", "sqnr", "--block-size", "16"]
    yield "blocks among float16", ["--weights-only", "--float", "16", "--block-size", "16"]
    yield "float16", ["--float", "16"]
    yield "float16 throughout", ["--float", "16", "--set", "no-keep-io-types"]
    yield "bfloat16", ["--float", "bf16"]
    yield "int8 among float16", [*SIZE, "--float", "16", "--preset", "balanced"]
    yield "plain among float16", ["--float", "16", "--preset", "plain"]
    yield "half the size", ["--weights-only", "--max-size", "HALF"]
    yield "family", ["--family", "fp16,int8,q4"]
    for kind in BLOCK_FLOATS:
        yield f"block floats {kind}", ["--set", f"block-float={kind}"]
    for kind in ("int8", "int4", "fp8"):
        yield f"cache of {kind}", ["--preset", "none", "--kv-cache", kind]
        yield f"cache of {kind}, blocks", ["--weights-only", "--kv-cache", kind]


def _targets() -> Iterator[tuple[str, list[str]]]:
    for target in TARGETS:
        yield f"for {target}", ["--target", target]
        if target not in ("amd-npu:bf16", "amd-npu:bfp16", "coreml"):
            yield f"for {target}, plain", ["--target", target, "--preset", "plain"]


FORMS: dict[str, list[str]] = dict([*_static(), *_others(), *_targets()])
#: They are not computed by ONNX Runtime's own kernels: what is told is measured by AMD's rounding, or not at all.
ELSEWHERE = {name for name in FORMS if name.startswith("block floats")} | {"bfloat16", "for amd-npu:bf16", "for amd-npu:bfp16"}
