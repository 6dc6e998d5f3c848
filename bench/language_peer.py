#!/usr/bin/env python3
"""Other quantizers of 4 bits: language_peer.py MODEL OUT METHOD BLOCK SYMMETRIC [IDS]

METHOD: default, rtn, k_quant, hqq or gptq of ONNX Runtime's MatMulNBitsQuantizer, quark or quark-hqq of AMD Quark (0.13),
olive-rtn or olive-k_quant of Olive (0.13). SYMMETRIC: 0 or 1; k_quant and hqq take no notice of it. IDS, a .npy of token ids,
are the samples of gptq. HQQ, Quark and Olive need torch."""

import logging
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import onnx


class Ids:
    """A window at a time, with an empty cache."""

    def __init__(self, model: str, ids: str) -> None:
        self.graph, self.ids = onnx.load(model, load_external_data=False).graph, np.load(ids)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for row in self.ids:
            feed = {"input_ids": row[None], "attention_mask": np.ones((1, len(row)), np.int64)}
            feed["position_ids"] = np.arange(len(row))[None]
            for given in self.graph.input:
                dims = [d.dim_value for d in given.type.tensor_type.shape.dim]
                if given.name.startswith("past_key_values."):
                    feed[given.name] = np.zeros((1, dims[1], 0, dims[3]), np.float32)
            yield {given.name: feed[given.name] for given in self.graph.input}


def by_onnxruntime(model: str, out: str, method: str, block: int, symmetric: bool, ids: str | None) -> None:
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    configs = {
        "default": lambda: nbits.DefaultWeightOnlyQuantConfig(block, symmetric, 1),
        "rtn": nbits.RTNWeightOnlyQuantConfig,
        "k_quant": nbits.KQuantWeightOnlyQuantConfig,
        "hqq": lambda: nbits.HQQWeightOnlyQuantConfig(block),
        "gptq": lambda: nbits.GPTQWeightOnlyQuantConfig(Ids(model, str(ids))),
    }
    quantizer = nbits.MatMulNBitsQuantizer(
        onnx.load(model), block_size=block, is_symmetric=symmetric, accuracy_level=1, algo_config=configs[method]()
    )
    quantizer.process()
    onnx.save(quantizer.model.model, out)


def by_quark(model: str, out: str, method: str, block: int, symmetric: bool) -> None:
    import copy

    from quark.onnx import Config, ModelQuantizer
    from quark.onnx.quantization.config import get_default_config

    config = copy.deepcopy(get_default_config("MATMUL_NBITS"))
    params = {"GroupSize": block, "Symmetric": symmetric, "Bits": 4, "AccuracyLevel": 1, "Algorithm": method}
    config.extra_options["MatMulNBitsParams"] = params
    config.extra_options["UseRandomData"] = True  # which it asks for, and does not read
    config.print_summary = False
    ModelQuantizer(Config(global_quant_config=config)).quantize_model(model, out, None)


def by_olive(model: str, out: str, method: str, block: int, symmetric: bool) -> None:
    from olive.model import ONNXModelHandler
    from olive.passes.olive_pass import create_pass_from_dict
    from olive.passes.onnx import kquant_quantization, rtn_quantization

    passes = {
        "rtn": (rtn_quantization.OnnxBlockWiseRtnQuantization, {"is_symmetric": symmetric}),
        "k_quant": (kquant_quantization.OnnxKQuantQuantization, {}),
    }
    kind, options = passes[method]
    with tempfile.TemporaryDirectory() as folder:
        options |= {"block_size": block, "accuracy_level": 1}
        made = create_pass_from_dict(kind, options, disable_search=True).run(ONNXModelHandler(model), folder)
        onnx.save(onnx.load(pathlib.Path(made.model_path)), out)


def main() -> None:
    model, out, method, block, symmetric, *ids = sys.argv[1:]
    logging.disable(logging.WARNING)
    tool, _, name = method.partition("-")
    if tool == "quark":
        by_quark(model, out, name.upper() or "DEFAULT", int(block), bool(int(symmetric)))
    elif tool == "olive":
        by_olive(model, out, name, int(block), bool(int(symmetric)))
    else:
        by_onnxruntime(model, out, method, int(block), bool(int(symmetric)), *(ids or [None]))


if __name__ == "__main__":
    main()
