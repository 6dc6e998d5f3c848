"""What a hostile file can ask for, for every reader of files from outside: a new reader is one row of READERS."""

import io
import json
import os
import wave
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import decoders
import graphs
import numpy as np
import onnx
import support
from failures import Place
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from support import Path

DEEP, WIDE = 200_000, 200_000
FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class Reader:
    """A file's kind, a good one, and the command that reads it: a function of the place and the file's path."""

    kind: str
    name: str  # in the folder of inputs
    good: Callable[[], bytes]
    command: Callable[[Place, Path], list[object]]


def cnn() -> bytes:
    return graphs.small_cnn().SerializeToString()


def beside_model(place: Place, name: str = "model.onnx") -> Path:
    path = place.inputs / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cnn())
    return path


def quantizing(place: Place, *options: object, preset: str = "plain") -> list[object]:
    model = beside_model(place)
    data = place.inputs / "good"
    if not data.exists():
        support.save_samples(data, graphs.cnn_samples(2))
    samples = [] if "--calibration-data" in options or "--statistics" in options else ["--calibration-data", data]
    return ["quantize", model, "-o", place.output, *samples, "--preset", preset, "--no-bench", *options]


def external_model(place: Place, file: Path) -> list[object]:
    model = graphs.small_cnn()
    tensor = TensorProto(name="outside", data_type=FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=file.name)
    model.graph.initializer.append(tensor)
    model.graph.node.append(helper.make_node("Neg", ["outside"], ["negated"]))
    model.graph.output.append(helper.make_tensor_value_info("negated", FLOAT, None))
    path = place.inputs / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return ["inspect", path]


def genai(place: Place, file: Path) -> list[object]:
    beside_model(place, "folder/model.onnx")
    return ["inspect", file.parent]


def transformers(place: Place, file: Path) -> list[object]:
    beside_model(place, "folder/onnx/model.onnx")
    return ["quantize", file.parent, "-o", place.out / "folder", "--weights-only", "--no-bench"]


def run_folder(place: Place, file: Path) -> list[object]:
    file.parent.chmod(0o700)
    if file.is_file() and not file.is_symlink():
        file.chmod(0o600)
    return quantizing(place, "--resume", "--work-dir", file.parent.parent)


def samples_of(place: Place, file: Path) -> list[object]:
    return quantizing(place, "--calibration-data", file.parent)


def cache_scales(place: Place, file: Path) -> list[object]:
    """A file of an earlier run, which the new one takes the place of."""
    model, data = place.inputs / "decoder", place.inputs / "ids"
    if not model.exists():
        decoders.genai_folder(model)
        support.save_samples(data, [{"input_ids": np.ones((1, 8), np.int64), **decoders.empty_cache()}])
    options = ["--preset", "none", "--kv-cache", "int8", "--set", f"kv-cache-scales={file}", "--no-bench"]
    return ["quantize", model / "model.onnx", "-o", place.output, "--calibration-data", data, *options]


def npy() -> bytes:
    out = io.BytesIO()
    np.save(out, graphs.cnn_samples(1)[0]["x"])
    return out.getvalue()


def npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, **graphs.cnn_samples(1)[0])
    return out.getvalue()


def pb() -> bytes:
    return numpy_helper.from_array(graphs.cnn_samples(1)[0]["x"]).SerializeToString()


def png() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(out, "png")
    return out.getvalue()


def wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", ""))
        sound.writeframes(bytes(3200))
    return out.getvalue()


def images(place: Place, file: Path) -> list[object]:
    return ["quantize", beside_model(place), "-o", place.output, "--images", file.parent, "--preset", "plain", "--no-bench"]


def jpg() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(out, "jpeg")
    return out.getvalue()


def of_model(*options: object) -> Callable[[Place, Path], list[object]]:
    """Quantizes the hostile file itself, with good samples."""

    def command(place: Place, file: Path) -> list[object]:
        data = support.save_samples(place.inputs / "good", graphs.cnn_samples(2))
        return ["quantize", file, "-o", place.output, "--calibration-data", data, "--no-bench", *options]

    return command


def searching(place: Place, file: Path) -> list[object]:
    data = support.save_samples(place.inputs / "good", graphs.cnn_samples(2))
    return ["search", file, "-o", place.out / "found", "--calibration-data", data, "--points", 1, "--formats", "int8"]


READERS = {
    "model": Reader("model", "m.onnx", cnn, lambda _, f: ["inspect", f]),
    "model to quantize": Reader("model", "m.onnx", cnn, of_model("--preset", "plain")),
    "model of mixed formats": Reader("model", "m.onnx", cnn, of_model("--node-formats", "^.*=int8,head=int8-dynamic")),
    "model of dynamic scales": Reader("model", "m.onnx", cnn, of_model("--activations", "dynamic", "--op-types", "Gemm")),
    "model to plan": Reader("model", "m.onnx", cnn, lambda _, f: ["plan", f]),
    "model to search": Reader("model", "m.onnx", cnn, searching),
    "external data": Reader("bytes", "outside.bin", lambda: bytes(64), external_model),
    "settings": Reader("yaml", "c.yaml", lambda: b"threads: 1\n", lambda p, f: quantizing(p, "--config", f)),
    "genai_config.json": Reader(
        "json", "folder/genai_config.json", lambda: b'{"model":{"decoder":{"filename":"model.onnx"}}}', genai
    ),
    "config.json": Reader("json", "folder/config.json", lambda: b'{"transformers.js_config":{}}', transformers),
    "kernel table": Reader(
        "json",
        "t.json",
        lambda: b'{"format":"detent kernel times 1","kernels":{}}',
        lambda p, f: quantizing(p, "--optimize-for", "latency", "--set", f"kernel-table={f}", preset="balanced"),
    ),
    "front": Reader("json", "front.json", lambda: b'{"points":[{"name":"fp32","seconds":1}]}', lambda _, f: ["report", f]),
    "result": Reader("json", "r.json", lambda: b'{"model_bytes_after":1}', lambda _, f: ["report", f]),
    "scales of a cache": Reader("json", "scales.json", lambda: b'{"scales":{}}', cache_scales),
    "run.json": Reader("json", "work/detent-a/run.json", lambda: b"{}", run_folder),
    "npy": Reader("npy", "data/a.npy", npy, samples_of),
    "npz": Reader("npz", "data/a.npz", npz, samples_of),
    "pb": Reader("bytes", "data/test_data_set_0/input_0.pb", pb, lambda p, f: samples_of(p, f.parent)),
    "png": Reader("bytes", "photos/a.png", png, images),
    "jpg": Reader("bytes", "photos/a.jpg", jpg, images),
    "wav": Reader("bytes", "data/a.wav", wav, samples_of),
    "statistics": Reader("bytes", "s.stats", lambda: bytes(64), lambda p, f: quantizing(p, "--statistics", f)),
}


# Kinds of file.


def fifo(path: Path, _: bytes) -> None:
    os.mkfifo(path)


def directory(path: Path, _: bytes) -> None:
    path.mkdir()


def endless_device(path: Path, _: bytes) -> None:
    path.symlink_to("/dev/zero")


def dangling_link(path: Path, _: bytes) -> None:
    path.symlink_to("nowhere")


def link_to_itself(path: Path, _: bytes) -> None:
    path.symlink_to(path.name)


# Sizes, and what damage and copying make.


def empty(path: Path, _: bytes) -> None:
    path.write_bytes(b"")


def cut(path: Path, good: bytes) -> None:
    path.write_bytes(good[: max(1, 2 * len(good) // 3)])


def twice(path: Path, good: bytes) -> None:
    path.write_bytes(good + good)


def of_zeros(path: Path, _: bytes) -> None:
    path.write_bytes(bytes(4096))


def of_noise(path: Path, _: bytes) -> None:
    path.write_bytes(np.random.default_rng(3).bytes(4096))


def sparse_terabyte(path: Path, good: bytes) -> None:
    path.write_bytes(good)
    os.truncate(path, 1 << 40)


def with_trailing_zeros(path: Path, good: bytes) -> None:
    path.write_bytes(good)
    os.truncate(path, 100 << 20)


ALL_KINDS = [
    *[fifo, directory, endless_device, dangling_link, link_to_itself],
    *[empty, cut, twice, of_zeros, of_noise, sparse_terabyte, with_trailing_zeros],
]


# Texts: depth, width, repetition, names.


def values(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Each member of a JSON object, at each level, as something else."""
    strange = {"deep": "[" * DEEP + "]" * DEEP, "number": "1e308", "text": '"\\u0000"', "null": "null", "list": "[[]]"}

    def replaced(value: object, at: list[str]) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict):
            for key in value:
                yield "/".join([*at, key]), {**value, key: "STRANGE"}
                for name, inner in replaced(value[key], [*at, key]):
                    yield name, {**value, key: inner}

    for name, changed in replaced(json.loads(good), []):
        for what, text in strange.items():
            yield f"{name} is {what}", json.dumps(changed).replace('"STRANGE"', text).encode()


def json_texts(good: bytes) -> Iterator[tuple[str, bytes]]:
    inner = good.decode().removesuffix("}")
    comma = "" if inner == "{" else ","
    member = f'{inner}{comma}"x":'
    yield "deep lists", f"{member}{'[' * DEEP}{']' * DEEP}}}".encode()
    yield "deep objects", (member + '{"a":' * DEEP + "0" + "}" * DEEP + "}").encode()
    yield "deep and never closed", (member + "[" * DEEP).encode()
    yield "deep alone", b"[" * DEEP + b"]" * DEEP
    yield "many keys", (member + "{" + ",".join(f'"{i}":0' for i in range(WIDE)) + "}}").encode()
    yield "one key many times", (member + "{" + ",".join(['"k":{}'] * WIDE) + "}}").encode()
    yield "many values", (member + "[" + "0," * 3_000_000 + "0]}").encode()
    yield "many objects", (member + "[" + "{}," * 3_000_000 + "{}]}").encode()
    yield "a long name", (member + '0,"' + "n" * 10_000_000 + '":0}').encode()
    yield "a name that is no UTF-8", member.encode() + b'0,"\xff\xfe":0}'
    yield "half a surrogate", (member + '"\\ud800"}').encode()
    yield "a number beyond all", (member + "1" * 100_000 + "}").encode()
    yield from values(good)


def yaml_texts(_: bytes) -> Iterator[tuple[str, bytes]]:
    yield "deep lists", b"a: " + b"[" * DEEP + b"]" * DEEP
    yield "deep objects", b"a: " + b"{a: " * DEEP + b"}" * DEEP
    yield "deep by indentation", "".join(f"{' ' * i}a:\n" for i in range(2000)).encode()
    names = "abcdefghi"
    lines = [f"{names[0]}: &{names[0]} [x,x,x,x,x,x,x,x,x]"]
    lines += [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip(names, names[1:], strict=False)]
    yield "aliases of aliases", "\n".join(lines).encode()
    yield "an alias of itself", b"a: &a [*a]"
    yield "many keys", "".join(f"k{i}: 0\n" for i in range(20_000)).encode()
    yield "one key many times", b"threads: 1\n" * 20_000
    yield "a long value", b"threads: " + b"1" * 10_000_000
    yield "no UTF-8", b"threads: \xff\xfe\n\xff: 1\n"


def npy_of(header: bytes, version: int = 1) -> bytes:
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header


def npy_files(_: bytes) -> Iterator[tuple[str, bytes]]:
    def shaped(shape: str, kind: str = "<f4") -> bytes:
        return npy_of(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()) + bytes(64)

    yield "wide", shaped(f"({1 << 62}, 3, 16, 16)")
    yield "wider than a number", shaped("(" + "9" * 200 + ",)")
    yield "an overflow", shaped(f"({1 << 32}, {1 << 32}, 16, 16)")
    yield "negative", shaped("(-1, 3, 16, 16)")
    yield "many axes", shaped("(" + "1," * 60_00 + ")")
    yield "deep", npy_of(b"(" * 60_000)
    yield "a header beyond the file", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"
    yield "objects", shaped("(1,)", "|O")
    yield "deep types", npy_of(b"{'descr': " + b"[" * 20_000 + b"]" * 20_000 + b", 'shape': ()}")


def npz_files(good: bytes) -> Iterator[tuple[str, bytes]]:
    def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", compression) as made:
            for name, content in members.items():
                made.writestr(name, content)
        return out.getvalue()

    yield "many members", archive({f"{i}.npy": b"" for i in range(20_000)}, zipfile.ZIP_STORED)
    yield "a member many times larger", archive({"x.npy": npy() + bytes(100 << 20)})
    yield "an archive in it", archive({"x.npy": good})
    yield "names that lead out", archive({"../../x.npy": npy(), "/x.npy": npy()})
    yield "a long name", archive({"x" * 60_000 + ".npy": npy()})
    for name, content in npy_files(b""):
        yield name, archive({"x.npy": content})


def nested_ifs(depth: int, name: str) -> bytes:
    def branch(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("y", FLOAT, None)])

    node = helper.make_node("Neg", ["x"], ["y"], name)
    for _ in range(depth):
        other = branch([helper.make_node("Abs", ["x"], ["y"], name)])
        node = helper.make_node("If", ["c"], ["y"], name, then_branch=branch([node]), else_branch=other)
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["N"]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, ["N"])]
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), ir_version=8, opset_imports=opsets
    ).SerializeToString()


def chained_functions(depth: int, calls: int, name: str, inputs: int = 1) -> bytes:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "f0", ["p"], ["q"], [helper.make_node("Sum", ["p"] * inputs, ["q"], name)], opsets)]
    for i in range(1, depth):
        values = ["p", *(f"t{c}" for c in range(calls - 1)), "q"]
        nodes = [helper.make_node(f"f{i - 1}", [values[c]], [values[c + 1]], name, domain="own") for c in range(calls)]
        functions.append(helper.make_function("own", f"f{i}", ["p"], ["q"], nodes, opsets))
    x, y = (helper.make_tensor_value_info(n, FLOAT, ["N"]) for n in "xy")
    graph = helper.make_graph([helper.make_node(f"f{depth - 1}", ["x"], ["y"], name, domain="own")], "g", [x], [y])
    return helper.make_model(graph, ir_version=8, functions=functions, opset_imports=opsets).SerializeToString()


def scoped(reads: str) -> bytes:
    """A Loop and a node behind it, of which one reads a name that its body makes."""
    infos = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "h": FLOAT, "going": TensorProto.BOOL, "step": FLOAT}
    made = {n: helper.make_tensor_value_info(n, t, [] if t != FLOAT else None) for n, t in infos.items()}
    nodes = [helper.make_node("Identity", ["go"], ["going"]), helper.make_node("Tanh", ["h"], ["step"])]
    body = helper.make_graph(nodes, "body", [made[n] for n in ("i", "go", "h")], [made["going"], made["step"]])
    loop = {"trip": ["i", "", "x"], "condition": ["", "going", "x"], "state": ["", "", "step"], "input": ["", "", "h"]}
    behind = "step" if reads == "behind" else "looped"
    graph = [
        helper.make_node("Loop", loop.get(reads, ["", "", "y" if reads == "itself" else "x"]), ["looped"], "loop", body=body),
        helper.make_node("Relu", [behind], ["y"], "last"),
    ]
    x, y = (helper.make_tensor_value_info(n, FLOAT, ["N"]) for n in "xy")
    outputs = [y, made["step"]] if reads == "output" else [y]
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(helper.make_graph(graph, "g", [x], outputs), ir_version=8, opset_imports=opsets).SerializeToString()


def model_files(_: bytes) -> Iterator[tuple[str, bytes]]:
    yield "deep bodies of one name", nested_ifs(31, "same")
    yield "deep bodies of a long name", nested_ifs(20, "n" * 5000)
    yield "deep functions of one name", chained_functions(60, 1, "same")
    yield "functions that double", chained_functions(40, 2, "same")
    yield "functions of many long names", chained_functions(13, 2, "n" * 100_000)
    yield "functions of many inputs", chained_functions(15, 2, "same", 2000)
    for reads in ("trip", "condition", "state", "input", "behind", "itself", "output"):
        yield f"scope: {reads}", scoped(reads)
    model = graphs.small_cnn()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 62
    yield "a wide input", model.SerializeToString()
    yield "groups without an end", b"\x0b" * 1_000_000
    yield "a message twice", graphs.small_cnn().SerializeToString() + b"\x3a\x00"


TEXTS = {"json": json_texts, "yaml": yaml_texts, "npy": npy_files, "npz": npz_files, "model": model_files}


def cases() -> Iterator[tuple[str, Reader, str, Callable[[Path, bytes], object]]]:
    """All of them: the reader's name, the reader, what the file is, and a function that makes it."""
    for name, reader in READERS.items():
        for make in ALL_KINDS:
            yield name, reader, make.__name__.replace("_", " "), make
        for what, content in TEXTS[reader.kind](reader.good()) if reader.kind in TEXTS else ():
            yield name, reader, what, lambda path, _, content=content: path.write_bytes(content)
