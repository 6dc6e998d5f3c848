"""AMD Quark's operators on block floats, in numpy: what BFPQuantizeDequantize and MXQuantizeDequantize make of a tensor."""

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

ELEMENTS = {  # bits of exponent and mantissa, exponent of the largest number, the largest number
    "fp8_e5m2": (5, 2, 15, 57344.0),
    "fp8_e4m3": (4, 3, 8, 448.0),
    "fp6_e3m2": (3, 2, 4, 28.0),
    "fp6_e2m3": (2, 3, 2, 7.5),
    "fp4_e2m1": (2, 1, 2, 6.0),
    "int8": (0, 8, 0, 127.0),
}


def exponents(x: np.ndarray) -> np.ndarray:
    """The 8 bits of the exponent."""
    return (x.astype(np.float32).view(np.uint32) >> 23 & 0xFF).astype(int)


def in_blocks(x: np.ndarray, axis: int, size: int, fn) -> np.ndarray:
    if x.ndim == 0:
        return in_blocks(x.reshape(1), 0, size, fn).reshape(())
    rows = np.moveaxis(x, axis if x.ndim > 1 else 0, -1)
    length = rows.shape[-1]
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -length % size)])
    made = fn(padded.reshape(-1, size).astype(np.float32)).reshape(padded.shape)[..., :length]
    return np.ascontiguousarray(np.moveaxis(made, -1, axis if x.ndim > 1 else 0)).astype(np.float32)


def shared_exponents(blocks: np.ndarray, bit_width: int) -> np.ndarray:
    e, bits = exponents(blocks), bit_width - 9
    top = np.where(e == 255, 0, e).max(1, keepdims=True) - 127.0
    step = np.exp2(top - (bits - 1))
    limit = np.exp2(top + 1) - step
    with np.errstate(invalid="ignore"):
        return np.where(e == 255, blocks, np.clip(np.rint(blocks / step) * step, -limit, limit))


def microexponents(blocks: np.ndarray, bit_width: int, part: int, shift_bits: int) -> np.ndarray:
    e, bits = exponents(blocks), bit_width - 9
    shared = e.max(1, keepdims=True)
    own = np.repeat(e.reshape(len(e), -1, part).max(2), part, axis=1)
    top = shared - np.minimum(shared - own, 2**shift_bits - 1) - 127.0
    step = np.exp2(top + 1 - bits)
    with np.errstate(invalid="ignore", over="ignore"):
        made = np.clip(np.rint(np.where(e == 0, 0, blocks) / step), 1 - 2.0**bits, 2.0**bits - 1) * step
    return np.where(shared == 255, np.nan, made)


def microscaling(blocks: np.ndarray, element: str) -> np.ndarray:
    exponent_bits, mantissa_bits, largest_exponent, largest = ELEMENTS[element]
    e = exponents(blocks)
    scale = np.exp2(np.where(e == 255, 0, e).max(1, keepdims=True) - 127.0 - largest_exponent)
    with np.errstate(invalid="ignore", divide="ignore"):
        x = blocks.astype(float) / scale
        if exponent_bits:
            place = np.maximum(np.floor(np.log2(np.abs(np.where(x == 0, 1, x)))), 2 - 2.0 ** (exponent_bits - 1))
            step = np.exp2(place - mantissa_bits)
            x = np.clip(np.rint(x / step) * step, -largest, largest)
        else:
            x = np.clip(np.rint(x * 64), -128, 127) / 64
    return np.where(e == 255, blocks, x * scale)


class BFPQuantizeDequantize(OpRun):
    op_domain = "com.amd.quark"

    def _run(
        self, x, bfp_method=None, axis=None, bit_width=None, block_size=None, rounding_mode=None, sub_block_size=None,
        sub_block_shift_bits=None, convert_to_bfloat_before_bfp=None,
    ):  # fmt: skip
        assert rounding_mode == 2 and convert_to_bfloat_before_bfp == 0
        if bfp_method == "to_bfp":
            return (in_blocks(x, axis, block_size, lambda b: shared_exponents(b, bit_width)),)
        assert bfp_method == "to_bfp_prime"
        return (in_blocks(x, axis, block_size, lambda b: microexponents(b, bit_width, sub_block_size, sub_block_shift_bits)),)


class MXQuantizeDequantize(OpRun):
    op_domain = "com.amd.quark"

    def _run(self, x, element_dtype=None, axis=None, block_size=None, rounding_mode=None):
        assert rounding_mode == 2
        return (in_blocks(x, axis, block_size, lambda b: microscaling(b, element_dtype)),)


def evaluate(model: onnx.ModelProto, sample: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(model, new_ops=[BFPQuantizeDequantize, MXQuantizeDequantize]).run(None, sample)
