"""Writes the first inputs of all targets into a folder: `make_seeds.py FOLDER`. Tiny models of each construct that detent
reads, samples for them in each layout, and the files that runs leave. The corpora were grown from these and minimized."""

import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from seed_models import (
    FLOAT,
    INT64,
    MISREAD,
    MODELS,
    QUANTIZED,
    calls,
    doubling,
    endless,
    external,
    misread,
    numbers_in_functions,
    outside,
    own_operators,
    rng,
    shadows,
    value,
    weight,
)


def tensors() -> dict[str, TensorProto]:
    made = {}
    for name, kind in TensorProto.DataType.items():
        if kind in (TensorProto.UNDEFINED, TensorProto.STRING):
            continue
        made[f"raw-{name.lower()}"] = TensorProto(name="t", data_type=kind, dims=[2, 2], raw_data=bytes(range(64)))
        size = {"DOUBLE": 32, "INT64": 32, "UINT64": 32, "COMPLEX64": 32, "COMPLEX128": 64}.get(name)
        size = size or (16 if "32" in name or name == "FLOAT" else 8 if "16" in name else 2 if "4" in name[:5] else 4)
        made[f"raw-{name.lower()}"].raw_data = bytes(range(size))
    made["floats"] = helper.make_tensor("t", FLOAT, [3], [1.0, -2.0, float("nan")])
    made["doubles"] = helper.make_tensor("t", TensorProto.DOUBLE, [2], [1.0, 2.0])
    made["ints"] = helper.make_tensor("t", TensorProto.INT8, [2], [1, -2])
    made["int64s"] = helper.make_tensor("t", INT64, [2], [1, -2])
    made["uint64s"] = helper.make_tensor("t", TensorProto.UINT64, [2], [1, 2])
    made["halves"] = helper.make_tensor("t", TensorProto.FLOAT16, [2], [1.0, 2.0])
    made["int4s"] = helper.make_tensor("t", TensorProto.INT4, [3], [1, -2, 3])
    made["strings"] = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"b"])
    made["empty"] = helper.make_tensor("t", FLOAT, [0, 4], [])
    for place in ("data.bin", "sub/data.bin", "link.bin", "up/secret.bin", "../outside/secret.bin", "hard.bin", "pipe"):
        made[f"external-{place.replace('/', '-')}"] = external(weight("w", 2, 2), place, offset=16, length=16)
    made["external-whole"] = external(weight("w", 8, 8), "data.bin")
    made["external-checksum"] = external(weight("w", 2), "./data.bin", offset="0", length="8", checksum="0" * 40)
    made["external-short"] = external(weight("w", 8), "data.bin", length=16)
    made["external-beyond"] = external(weight("w", 8), "data.bin", offset=240)
    made["external-number"] = external(weight("w", 8), "data.bin", offset="1x")
    made["external-folder"] = external(weight("w", 8), "sub")
    made["external-sub-byte"] = external(helper.make_tensor("t", TensorProto.INT4, [3], [1, 2, 3]), "data.bin", length=2)
    return made


def npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=False)
    return file.getvalue()


def npz(compressed: bool, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def piece(part: bytes) -> bytes:
    return struct.pack("<H", len(part)) + part


def npy_header(kind: str) -> bytes:
    text = f"{{'descr': '|{kind}', 'fortran_order': False, 'shape': (2,), }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


def arrays() -> dict[str, bytes]:
    kinds = ["f4", "f8", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", ">f4"]
    made = {f"type-{i}": npy(np.arange(4).reshape(2, 2).astype(kind)) for i, kind in enumerate(kinds)}
    for kind in ("O", "U2", "S2", "V3", "c16", "c8", "M8[s]"):
        made[f"type-{kind[:2]}"] = npy_header(kind) + bytes(64)
    for kind in ("u1", "u2", "f8"):
        made[f"columns-{kind}"] = npy(np.asfortranarray(np.ones((2, 3), kind)))
    made["columns"] = npy(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    made["scalar"] = npy(np.float32(1))
    made["empty"] = npy(np.zeros((0, 3), np.float32))
    made["version-2"] = npy(np.zeros(2, np.float32), (2, 0))
    made["version-3"] = npy(np.zeros(2, np.float32), (3, 0))
    return made


def sounds() -> dict[str, bytes]:
    def chunk(name: bytes, data: bytes) -> bytes:
        return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)

    def sound(kind: int, channels: int, bits: int, data: bytes, more: bytes = b"") -> bytes:
        frame = channels * bits // 8
        form = struct.pack("<HHIIHH", kind, channels, 16000, 16000 * frame, frame, bits) + more
        parts = b"WAVE" + chunk(b"fmt ", form) + chunk(b"LIST", b"odd") + chunk(b"data", data)
        return b"RIFF" + struct.pack("<I", len(parts)) + parts

    made = {f"pcm-{bits}": sound(1, 1, bits, bytes(range(24))) for bits in (8, 12, 16, 24, 32)}
    made["float"] = sound(3, 2, 32, np.ones(6, np.float32).tobytes())
    made["extensible"] = sound(0xFFFE, 1, 16, bytes(8), struct.pack("<HHIH", 22, 16, 4, 1) + bytes(14))
    made["no-channel"] = sound(1, 0, 16, bytes(8))
    made["empty"] = sound(1, 2, 16, b"12")
    made["truncated"] = made["pcm-16"][:-3]
    made["short-format"] = b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", bytes(8))
    made["no-format"] = b"RIFF\0\0\0\0WAVE" + chunk(b"data", bytes(8))
    made["no-data"] = b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", made["pcm-16"][20:36])
    return made


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(bits: int, color: int, rows: bytes, *more: bytes, width: int = 4, height: int = 2, interlaced: int = 0) -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlaced))
    body = b"".join([head, *more, png_chunk(b"IDAT", zlib.compress(rows)), png_chunk(b"IEND", b"")])
    return b"\x89PNG\r\n\x1a\n" + body


def pictures() -> dict[str, bytes]:
    def rows(size: int) -> bytes:  # each with the filter that it was written with
        return b"".join(bytes([row % 5]) + rng.bytes(size) for row in range(2))

    palette, alpha = png_chunk(b"PLTE", rng.bytes(48)), png_chunk(b"tRNS", bytes([0, 9, 200]))
    made = {f"png-gray-{bits}": png(bits, 0, rows(max(1, bits // 2))) for bits in (1, 2, 4, 8, 16)}
    made |= {f"png-rgb-{bits}": png(bits, 2, rows(bits * 3 // 2)) for bits in (8, 16)}
    made |= {f"png-palette-{bits}": png(bits, 3, rows(max(1, bits // 2)), palette, alpha) for bits in (1, 4, 8)}
    made["png-gray-alpha"], made["png-rgb-alpha"] = png(8, 4, rows(8)), png(16, 6, rows(32))
    made["png-gamma"] = png(8, 2, rows(12), png_chunk(b"gAMA", struct.pack(">I", 100000)))
    made["png-interlaced"] = png(8, 0, b"".join(bytes([0]) + bytes(n) for n in (1, 1, 2, 4)), interlaced=1)
    made["png-empty"] = png(8, 0, rows(4), width=0)
    made["png-huge"] = png(8, 0, rows(4), width=999_999, height=999_999)
    made["png-short"] = png(8, 0, rows(1))
    made["png-damaged"] = made["png-rgb-8"][:-20] + bytes(20)

    image = Image.fromarray(rng.integers(0, 256, (17, 11, 3)).astype(np.uint8))
    forms = {
        "gray": (image.convert("L"), {}),
        "halved": (image, {"subsampling": 2}),
        "whole": (image, {"subsampling": 0, "optimize": True}),
        "cmyk": (image.convert("CMYK"), {}),
        "progressive": (image, {"progressive": True}),
        "restarts": (image, {"restart_marker_blocks": 1}),
        "comment": (image, {"comment": b"c", "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}),
    }
    for name, (what, options) in forms.items():
        file = io.BytesIO()
        what.save(file, "JPEG", quality=30, **options)
        made[f"jpeg-{name}"] = file.getvalue()
    made["jpeg-truncated"] = made["jpeg-gray"][:-30]
    made["jpeg-no-tables"] = made["jpeg-gray"].replace(b"\xff\xc4", b"\xff\xfe")
    at = made["jpeg-gray"].index(b"\xff\xc0") + 5
    made["jpeg-huge"] = made["jpeg-gray"][:at] + b"\xfd" * 4 + made["jpeg-gray"][at + 4 :]
    made["gif"] = b"GIF89a" + bytes(20)
    return made


def archives() -> dict[str, bytes]:
    x, y = np.zeros((2, 2), np.float32), np.arange(2, dtype=np.int64)
    member = lambda name, array, packed: bytes([packed]) + piece(name) + piece(npy(array))  # noqa: E731
    return {
        "stored": npz(False, x=x, y=y),
        "deflated": npz(True, x=np.zeros((20, 20), np.float32)),
        "twice": member(b"x.npy", x, 0) + member(b"x", x, 0),
        "made": member(b"x.npy", x, 0) + member(b"y.npy", y, 1),
        "made-columns": member(b"x.npy", np.asfortranarray(np.ones((2, 3))), 1) + member(b"read.me", x, 0),
    }


def samples() -> dict[str, bytes]:
    x, y = np.zeros((2, 2), np.float32), np.arange(2, dtype=np.int64)
    ids = np.ones((1, 3), np.int64)
    pb = lambda array, name="": numpy_helper.from_array(array, name).SerializeToString()  # noqa: E731

    def files(inputs: int, batch: int, *given: tuple[int, bytes]) -> bytes:
        return bytes([inputs, 0, batch]) + b"".join(bytes([name]) + piece(part) for name, part in given)

    return {
        "npz": files(1, 0, (0, npz(False, x=x, y=y)), (1, npz(True, x=x, y=y))),
        "npy": files(0, 0, (2, npy(x)), (3, npy(x))),
        "npy-rows": files(0, 1, (2, npy(np.zeros((5, 2), np.float32)))),
        "npy-join": files(0, 3, (2, npy(x)), (3, npy(np.zeros((5, 2), np.float32)))),
        "per-input": files(1, 0, (4, npy(x)), (6, npy(y))),
        "test-sets": files(1, 0, (7, pb(x)), (8, pb(y))),
        "named-test-sets": files(1, 0, (7, pb(x, "x")), (8, pb(y, "y"))),
        "any-shape": files(2, 0, (2, npy(np.float32(1)))),
        "scalars": files(3, 0, (0, npz(False, x=np.uint8(3), y=np.zeros((1, 0), np.float32)))),
        "no-files": files(1, 0, (4, npy(x)), (12, b"")),
        "other-names": files(1, 0, (7, pb(x, "y")), (8, pb(y, "x"))),
        "one-name": files(1, 0, (7, pb(x, "y")), (8, pb(y))),
        "halves": files(0, 0, (2, npy(x.astype(np.float64)))),
        "ids": files(4, 0, (2, npy(ids))),
        "ids-and-mask": files(4, 0, (0, npz(False, input_ids=ids, attention_mask=ids))),
        "ids-per-input": files(4, 0, (10, npy(ids)), (11, npy(ids))),
        "other": files(0, 0, (12, b"hello")),
        "sound": files(240, 0, (240, sounds()["pcm-16"]), (241, sounds()["pcm-8"])),
        "sound-rows": files(0, 0, (240, sounds()["float"])),
        "sound-channels": files(241, 0, (240, sounds()["float"])),
        "sound-in-other-channels": files(241, 0, (240, sounds()["pcm-24"])),
        "sound-alone": files(242, 3, (240, sounds()["pcm-32"])),
        "sound-empty": files(240, 0, (240, sounds()["empty"])),
        "sound-as-integers": files(4, 0, (240, sounds()["pcm-16"])),
        "bytes-of-pictures": files(0, 0, (2, npy(x.astype(np.uint8)))),
        "channels-last": files(
            4, 0, (0, npz(False, **{"input_ids": ids, "past_key_values.0.key": np.zeros((1, 3, 2, 1), np.float32)}))
        ),
        "picture-channels-last": files(238, 0, (2, npy(np.zeros((2, 2, 3), np.float32)))),
        "picture-without-batch": files(238, 0, (2, npy(np.zeros((3, 2, 2), np.float32)))),
        "no-type-of-arrays": files(239, 0, (2, npy(x))),
        "one-input-more": files(0, 0, (7, pb(x)), (8, pb(x))),
        "large-when-unpacked": files(0, 0, (0, npz(True, x=np.zeros((200_000, 2), np.float32)))),
        "key-twice": files(0, 0, (0, npz(False, x=x, y=x).replace(b"y.npy", b"x.npy"))),
        "sound-in-folders": files(1, 0, (242, sounds()["pcm-16"])),
    }


def streams() -> dict[str, bytes]:
    def array(name: bytes, kind: int, shape: list[int], data: bytes) -> bytes:
        dims = b"".join(bytes([0, d]) for d in shape)
        return piece(name) + bytes([kind, len(shape)]) + dims + piece(data)

    def sample(*given: bytes) -> bytes:
        return bytes([len(given)]) + b"".join(given)

    x, y = array(b"x", 1, [2, 2], bytes(16)), array(b"y", 7, [2], bytes(16))
    ids = array(b"input_ids", 7, [1, 3], bytes(24))
    return {
        "one": bytes([0, 0, 0]) + sample(x) + sample(array(b"", 1, [2, 2], bytes(16))),
        "two": bytes([1, 0, 0]) + sample(x, y) + sample(y, x),
        "rows": bytes([0, 0, 1]) + sample(array(b"x", 1, [5, 2], bytes(40))) * 2,
        "join": bytes([0, 0, 3]) + sample(array(b"x", 1, [2, 2], bytes(16))) * 4,
        "any": bytes([2, 1, 0]) + sample(array(b"x", 1, [1, 1, 1, 1], bytes(4))),
        "ids": bytes([4, 0, 0]) + sample(ids),
    }


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def statistics() -> dict[str, bytes]:
    """Of one value, as docs/statistics.md has it: 3 samples of 4 values, sums of 9 limbs."""
    limbs = bytes(9)
    head = field(1, b"m") + field(2, bytes(32)) + field(3, 3)
    bounds = varint(2 << 3 | 5) + struct.pack("<f", -1) + varint(3 << 3 | 5) + struct.pack("<f", 1)
    plain = field(1, b"x") + bounds + field(4, 12) + field(7, 3) + field(8, limbs) + field(9, limbs)
    row = field(10, field(1, 127) + field(2, bytes([6]) + bytes(255)))
    negative = field(11, field(1, 127) + field(2, bytes([6]) + bytes(255)))
    votes = field(12, field(1, 3) + field(2, 3)) + field(13, field(1, 3) + field(2, 3))
    return {
        "extremes": head + field(4, 0) + field(5, 0) + field(6, plain),
        "histogram": head + field(4, 1) + field(5, 0) + field(6, plain + row + negative),
        "votes": head + field(4, 1) + field(5, 1) + field(6, plain + row + negative + votes),
        "foreign": b"detent\x1as" + bytes(40),
        "newer": b"detent\x1as" + struct.pack("<IIQQ", 2, 0, 0, 0),
        "damaged": b"detent\x1as" + struct.pack("<IIQQ", 1, 0, 1, 0) + b"\1",
        "limbs": head + field(4, 0) + field(6, plain + field(8, b"\xfe\xff\xff\xff\x7f" + bytes(8))),
        "none": head + field(4, 0) + field(5, 0) + field(6, field(1, b"x") + field(4, 2) + field(5, 2)),
    }


def spools() -> dict[str, bytes]:
    def record(form: int, arrays: list[tuple[int, int, int, list[int]]], payload: bytes) -> bytes:
        body = b"".join(bytes([len(dims), kind, 0, begin, size, *dims]) for kind, begin, size, dims in arrays)
        return bytes([form, len(arrays)]) + body + piece(payload)

    one = record(0, [(1, 0, 16, [2, 2])], bytes(range(64)))
    return {
        "one": b"\1" + one,
        "three": b"\1" + one + record(16, [(7, 0, 8, [1]), (2, 64, 3, [3])], bytes(128)) + record(1, [], b""),
        "torn": b"\0" + b"d1spool"[::-1] + bytes(4096),
        "raw": b"\0" + struct.pack("<Q", 0x1A6C6F6F70733164) + bytes(8300),
    }


def states() -> dict[str, bytes]:
    run = {"output": "out.onnx", "rank": 0, "model": "m", "histograms": True}
    progress = {"cuts": [1, 2], "segment": 1, "done": 2, "samples": 3, "save": 1}
    layer = dict(name="n", op_type="Conv", streamed=False, tuned=True, before=1.0, after=0.5, seconds=0.1)
    layer.update(integers=4, bias=0)
    solved = json.dumps(
        {
            "layers": [layer],
        }
    ).encode()
    times = dict.fromkeys(["float", "integers", "quantize", "dequantize", "into_blocks", "out_of_blocks"], 1.5)
    kernels = {"format": "detent kernel times 1", "kernels": {"Conv": times}}
    data_told = {"use_external_data_format": {"a": 1}, "kv_cache_dtype": {"q4": "float32"}}
    genai = {"model": {"decoder": {"filename": "onnx/decoder.onnx"}}}
    return {
        "run": b"\0" + json.dumps(run).encode(),
        "run-differs": b"\0" + json.dumps({**run, "model": "other"}).encode(),
        "progress": b"\1" + piece(b"") + json.dumps(progress).encode(),
        "progress-whole": b"\1" + piece(statistics()["votes"]) + json.dumps({**progress, "save": 2}).encode(),
        "solved": b"\2" + piece(solved) + bytes(128),
        "blocks": b"\3" + bytes([16, 1, 0]) + bytes(16 + 5 + 24),
        "layer": b"\4\1" + bytes(16),
        "kernels": b"\5" + json.dumps(kernels).encode(),
        "saved": b"\6" + b"\1" + 4 * (piece(bytes(70)) + b"\3") + bytes([16, 2]) + bytes(9),
        "genai": b"\7\0" + json.dumps(genai).encode(),
        "transformers": b"\7\1" + b"{}",
        **{f"folder-{form}": bytes([7, form]) + json.dumps({}).encode() for form in (3, 7, 15, 17)},
        **{
            f"transformers-two-{i}": bytes([7, 33]) + json.dumps({"transformers.js_config": told}).encode()
            for i, told in enumerate([{"use_external_data_format": 1}, {"kv_cache_dtype": {"q4": "float16"}}, {}])
        },
        "transformers-true": b"\7\1" + json.dumps({"transformers.js_config": {"use_external_data_format": True}}).encode(),
        "transformers-none": b"\7\1" + json.dumps({"transformers.js_config": [1]}).encode(),
        "transformers-cache": b"\7\1" + json.dumps({"transformers.js_config": {"kv_cache_dtype": "float16"}}).encode(),
        "genai-absent": b"\7\0" + json.dumps({"model": {"decoder": {"filename": "absent.onnx"}}}).encode(),
        "genai-none": b"\7\0" + json.dumps({"model": {"decoder": {"pipeline": []}}}).encode(),
        "kernels-empty": b"\5",
        "kernels-wrong": b"\5" + json.dumps({"format": "detent kernel times 1", "kernels": {"Conv": 1}}).encode(),
        **{f"transformers-cache-{form}": bytes([7, form]) + b"{}" for form in (65, 97, 81, 64)},
        "transformers-damaged": bytes([7, 65]) + b"{",
        "transformers-data": b"\7\1" + json.dumps({"transformers.js_config": data_told}).encode(),
        "solved-hex": b"\2" + piece(solved.replace(b'"n"', b'{"hex":"ff"}')) + bytes(128),
    }


def ranks() -> dict[str, bytes]:
    def said(form: int, rank: int, *messages: bytes) -> bytes:
        return bytes([form, rank]) + b"".join(map(piece, messages))

    def solved(rank: int, layers: int, form: int, *messages: bytes | int) -> bytes:
        layer = dict(name="n", op_type="Conv", streamed=False, tuned=True, before=1.0, after=0.5, seconds=0.1)
        layer.update(integers=4, bias=0)
        # A number: a file of so many layers.
        told = [
            b"\0" + piece(m)
            if isinstance(m, bytes)
            else b"\1" + piece(json.dumps({"layers": m * [layer]}).encode()) + piece(bytes(m * 128))
            for m in messages
        ]
        return bytes([2, rank, layers, form]) + b"".join(told)

    no, yes, files = b"\0", b"\1", json.dumps([["a", 3], ["b", 0]]).encode()
    told = statistics()["votes"]
    return {
        "values-of-first": said(0, 1, yes, b"a\0\0b\0", bytes(8), b"other"),
        "values-of-other": said(0, 0, no, b"abc"),
        "values-empty": said(0, 1, b"", b""),
        "values-short": said(0, 1, no, b"", bytes(7)),
        "names-without-end": said(0, 1, no, b"a\0b"),
        "files": said(1, 0, files, b"abc", b""),
        "files-in-pieces": said(1, 0, files, b"ab", b"c", b""),
        "files-too-many": said(1, 0, files, b"abc", b"d", b""),
        "files-too-few": said(1, 0, files, b"ab", b""),
        "files-elsewhere": said(1, 0, json.dumps([["../a", 1]]).encode(), b"a", b""),
        "files-without-names": said(1, 0, json.dumps([["..", 1], ["", 1], [3]]).encode(), b"a", b""),
        "files-no-list": said(1, 0, b"{", b""),
        "files-not-pairs": said(1, 0, json.dumps([["a", 1], [3]]).encode(), b"a", b""),
        "files-with-no-sizes": said(1, 0, json.dumps([["a", -1]]).encode(), b"a", b""),
        "files-given": said(1, 1),
        "solved": solved(0, 3, 0, no),
        "solved-of-none": solved(0, 0, 0, no),
        "solved-damaged": solved(0, 2, 1),
        "solved-not-there": solved(0, 2, 2),
        "solved-by-first": solved(1, 2, 0, yes, no, 2),
        "solved-by-first-damaged": solved(1, 1, 0, yes, no, b"damaged"),
        "solved-by-first-of-others": solved(1, 2, 0, yes, no, 1),
        "solved-nothing": solved(1, 1, 2, no),
        "trials": said(3, 0, bytes(32)),
        "trials-of-other": said(3, 1, bytes(32), bytes(32)),
        "trials-too-few": said(3, 0, b""),
        "trials-short": said(3, 0, bytes(20)),
        "trials-without-end": said(3, 0, b"\xff" * 32),
        "statistics": said(4, 0, told),
        "statistics-of-first": said(4, 1, told),
        "statistics-of-others": said(4, 0, statistics()["extremes"], told),
        "statistics-none": said(4, 0, b"\xff"),
    }


def jsons() -> dict[str, bytes]:
    return {
        "kinds": b'{"b":1,"a":[true,null,-2,3.5e9,"x",{"c":{}}],"":"\\u00e9\\n","b":18446744073709551615}',
        "hex": b'{"hex":"00ff"}',
        "deepest": b"[" * 64 + b"]" * 64,
        "too-deep": b'{"a":' * 65 + b"0" + b"}" * 65,
        "never-closed": b"[" * 2000,
        "no-utf-8": b'{"a":"\xff\xc3("}',
        "half-a-surrogate": b'["\\ud800"]',
        "beyond-all": b"[1e999]",
        "one-name": b'{"k":1,"k":{},"k":[2]}',
        "config": json.dumps({"model_type": "gpt2", "transformers.js_config": {"use_external_data_format": True}}).encode(),
    }


def options() -> dict[str, bytes]:
    lines = [
        "quantize model.onnx -o out.onnx --calibration-data d --method percentile --set percentile=99.9",
        "quantize model.onnx -o out.onnx --weights-only --weight-bits 4 --block-size 32 --set node-bits=a=8",
        "quantize m --output=o --activation-type int16 --per-channel --no-bench --exclude-nodes ^a.*,b --set tensor-range=x=0,1",
        "quantize m -o o --rounding adaround --set num-iterations=10 --set beta-range=20,2 --device cuda:0,cuda:1 --threads 2",
        "calibrate m -o s --calibration-data d --set most-common --memory-budget 1GiB --batch-size 2",
        "calibrate --merge a b -o c",
        "plan m --shape x:1x3x4 --json",
        "inspect m --layers 3 --json",
        "compare a b --calibration-data d",
        "bench a b --runs 3",
        "help quantize",
        "quantise m",
        "--version",
    ]
    return {f"line-{i}": line.replace(" ", "\n").encode() for i, line in enumerate(lines)}


def configurations() -> dict[str, bytes]:
    texts = [
        "method: mse\nper-channel: true\nnodes: [a, '^b{1,2}']\n",
        "percentile: 99.9\ntensor_range: ['x=-1,2', 'y=0,1']\nmemory-budget: 1GiB\n",
        "a: &x 1\nb: *x\n",
        "preset: plain\nbeta-range: [20, 2]\nthreads: 2 # c\nreport: |\n  r.html\n",
        "{method: minmax, samples: 3}\n",
        "--- \n? [a]\n: b\n",
    ]
    return {f"text-{i}": bytes([i % 6]) + text.encode() for i, text in enumerate(texts)}


def pages() -> dict[str, bytes]:
    return {
        "script": b'{"title": "</script><script>alert(1)</script>", "notes": ["<!--", "a"]}',
        "lines": '{"title": "\u2028\u2029", "layers": [{"name": "\u00e9"}]}'.encode(),
        "bytes": b'{"title": "\xff\xfe"}',
        "none": b"",
    }


def traces() -> dict[str, bytes]:
    return {
        "bars": bytes([0, 4, 8]) + piece(b"layer") + piece(b"lane") + bytes([1, 0, 9]) + piece(b"stage\xff"),
        "curve": bytes([2, 1, 1]) + bytes(8) + bytes([3]) + bytes([2, 8, 1]) + bytes([9] * 8) + bytes([3]),
        "numbers": bytes([0x80]) + struct.pack("<dd", float("nan"), float("inf")) + piece(b"<") + piece(b""),
    }


def texts() -> dict[str, bytes]:
    return {"plain": b"\x10img_10", "terminal": b"\x05a\x1b[31mred\n\x07\xc2\x9b", "utf8": "\x03\u00e9\u2028\U0001f600".encode()}


def results() -> dict[str, bytes]:
    """What quantize --json prints."""
    accuracy = dict(sqnr_db=31.5, worst_sample_db=20.25, score=0.99, samples=16, integer_macs=0.9)
    latency = dict(threads=2, before={"median_seconds": 0.01}, after={"median_seconds": 0.004, "ratio": 2.5})
    outcome = dict(answer="look", headline="Look first: 3 | <b>`layers`", reasons=["worst *layer*", {"text": "t"}])
    whole = dict(output="a/b.onnx", accuracy=accuracy, latency=latency, outcome=outcome)
    whole.update(model_bytes_before=4096, model_bytes_after=1024, nodes_quantized=3, nodes_in_float=1, peak_memory_bytes=1 << 20)
    whole["kept"] = [{"node": f"n{i}", "why": "w"} for i in range(12)] + [1]
    line = json.dumps(whole).encode()
    others = {"output": "c\x1b[31m.onnx", "outcome": {"answer": "no", "headline": ""}, "accuracy": {"sqnr_db": None}}
    return {
        "one": line,
        "two": line + b"\n" + json.dumps(others).encode(),
        "marks": json.dumps(
            {
                "output": "_a_ b_c &amp; &#9; &",
                "outcome": {"headline": "1. www.a http://b ![c](d) - =", "reasons": ["12) x", "-_-"]},
                "rotated": {"kept": True, "error_before": 0.5, "error_after": 0.25},
                "latency": {
                    **latency,
                    "before": {"median_seconds": 0.01, "waiting_share": 0.5},
                    "after": {**latency["after"], "waiting_share": 0.5},
                },
            }
        ).encode(),
        "few": b'{"outcome": {"answer": "yes"}}\n{}\n[]\n{"latency": {"threads": 1}}',
        "wrong": b'{"output": 1, "model_bytes_before": -1, "outcome": {"headline": 2, "reasons": 3}, "kept": "n"}',
    }


def patterns() -> dict[str, bytes]:
    return {
        "plain": piece(b"^conv.*_[0-9]{1,3}$") + piece(b"\\0x") + b"conv_12",
        "nested": piece(b"^((a|b)*c+?)+$") + piece(b"") + b"ababcc",
    }


def seeds() -> dict[str, dict[str, bytes]]:
    models = {make.__name__: make().SerializeToString() for make in MODELS}
    runs = {f"{name}-{i}": bytes([i]) + data for name, data in models.items() for i in (1, 2)}
    foreign = {f"{make.__name__}-{i}": bytes([i]) + make().SerializeToString() for make in QUANTIZED for i in range(16)}
    nodes = {}
    for make in MODELS:
        for node in make().graph.node:
            if node.attribute:
                nodes[node.op_type.lower()] = node.SerializeToString()
    refused = {make.__name__: make().SerializeToString() for make in (endless, doubling, own_operators)}
    bound = {make.__name__: make().SerializeToString() for make in (calls, shadows)}
    bound["numbers-in-functions"] = numbers_in_functions()
    bound |= {f"reads-{kind.replace('_', '-')}": misread(kind).SerializeToString() for kind in MISREAD}
    made = {
        "model": {**models, "outside": outside().SerializeToString(), **refused, **bound},
        "tensor": {name: tensor.SerializeToString() for name, tensor in tensors().items()},
        "pb": {name: tensor.SerializeToString() for name, tensor in tensors().items()},
        "attribute": nodes,
        "external": externals(),
        "npy": arrays(),
        "npz": archives(),
        "wav": sounds(),
        "picture": pictures(),
        "samples": samples(),
        "stream": streams(),
        "spool": spools(),
        "json": jsons(),
        "text": texts(),
        "pattern": patterns(),
        "statistics": statistics(),
        "state": states(),
        "ranks": ranks(),
        "command_line": options(),
        "yaml": configurations(),
        "page": pages(),
        "trace": traces(),
        "result": results(),
        "inspect": models,
        "plan": runs,
        "quantize": runs,
        "weights": runs,
        "quantized": foreign,
    }
    return made


def externals() -> dict[str, bytes]:
    tensor = external(weight("w", 2, 2), "data.bin", offset=16, length=16)
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    values = helper.make_sparse_tensor(external(weight("w", 2), "sub/data.bin"), helper.make_tensor("", INT64, [2], [0, 1]), [4])
    values.values.external_data.add(key="length", value="8")
    body = helper.make_graph([constant], "g", [], [value("w", [2, 2])], [tensor])
    body.sparse_initializer.append(values)
    branch = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    function = helper.make_function("own", "F", ["a"], ["w"], [constant], [helper.make_opsetid("", 17)])
    function.attribute_proto.append(helper.make_attribute("d", tensor))
    training = onnx.TrainingInfoProto(initialization=body, algorithm=body)
    messages = [body, branch, branch.attribute[0], tensor, values, function, training]
    made = {f"kind-{i}": bytes([i]) + message.SerializeToString() for i, message in enumerate(messages)}
    large = external(weight("w", 64), "data.bin")
    for _ in range(3):
        body.initializer.append(large)
    made["large"] = b"\0" + body.SerializeToString()
    deep = b""
    for _ in range(70):
        deep = field(1, field(5, field(1, b"b") + field(20, 5) + field(6, deep)))
    made["deep"] = b"\0" + deep
    made["constant"] = bytes([1]) + constant.SerializeToString()
    return made


def main() -> None:
    for target, inputs in seeds().items():
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
