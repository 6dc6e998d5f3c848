"""MatMulNBitsQuantizer of onnxruntime.quantization, implemented by detent. docs/migration.md lists the differences."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _api
from .._config import Config, WeightsOnly
from .._models import Model
from .._results import QuantizeResult
from ..errors import UsageError
from ._options import Chosen, name_of, refuse
from .onnxruntime import QuantFormat


class WeightOnlyQuantConfig:
    """What all algorithms have in common."""

    #: detent's method in the algorithm's place.
    method = "search"

    def __init__(
        self,
        algorithm: str,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Iterable[tuple[str, int]] | None = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if dict(quant_axes or {}) not in ({}, {"MatMul": 0, "Gather": 1}):
            raise refuse(f"quant_axes={quant_axes!r}", "leave it out: MatMul 0, Gather 1")
        self.algorithm = algorithm
        self.quant_format = quant_format
        self.op_types_to_quantize = set(op_types_to_quantize or ("MatMul",))
        self.customized_weight_config = customized_weight_config or {}

    def options(self, quantizer: MatMulNBitsQuantizer) -> Chosen:
        """Of the algorithms that take them from the quantizer."""
        return {"bits": quantizer.bits, "block_size": quantizer.block_size, "symmetric": quantizer.is_symmetric}


class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounding to the nearest, with the same bytes."""

    method = "nearest"

    def __init__(
        self,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Iterable[tuple[str, int]] | None = None,
        bits: int = 4,
        channel_wised_quantize: bool = False,
    ) -> None:
        super().__init__("DEFAULT", quant_format, op_types_to_quantize, quant_axes)
        self.chosen: Chosen = {
            "bits": bits,
            "block_size": "channel" if channel_wised_quantize else block_size,
            "symmetric": is_symmetric,
        }
        if accuracy_level is not None:
            self.chosen["accuracy_level"] = accuracy_level

    def options(self, quantizer: MatMulNBitsQuantizer) -> Chosen:
        return self.chosen


class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Answered by the search of scales and zero points, which is better."""

    algorithm_name = "RTN"

    def __init__(
        self,
        ratios: Mapping[str, float] | None = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if ratios:
            raise refuse(f"ratios={ratios!r}", "leave it out: ranges are searched")
        super().__init__(self.algorithm_name, quant_format, op_types_to_quantize, customized_weight_config=customized_weight_config)


class KQuantWeightOnlyQuantConfig(RTNWeightOnlyQuantConfig):
    """As for RTN."""

    algorithm_name = "k_quant"


class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """As for RTN, with zero points that are integers, since ONNX Runtime is slow with others."""

    def __init__(
        self,
        block_size: int = 128,
        bits: int = 4,
        axis: int = 1,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Iterable[tuple[str, int]] | None = None,
    ) -> None:
        if axis != 1:
            raise refuse(f"axis={axis}", "leave it out: blocks lie along the inputs of a layer")
        super().__init__("HQQ", quant_format, op_types_to_quantize, quant_axes)
        self.chosen: Chosen = {"bits": bits, "block_size": block_size, "symmetric": False}

    def options(self, quantizer: MatMulNBitsQuantizer) -> Chosen:
        return self.chosen


class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """GPTQ; the other package's own is without effect, see docs/weights-only.md."""

    method = "gptq"

    def __init__(
        self,
        calibration_data_reader: Any = None,
        percdamp: float = 0.01,
        block_size: int = 128,
        actorder: bool = False,
        mse: bool = False,
        perchannel: bool = True,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
    ) -> None:
        if calibration_data_reader is None:
            raise UsageError("there is no calibration_data_reader", "give one with get_next()")
        if percdamp != 0.01:
            raise refuse(f"percdamp={percdamp}", "leave it out: damping follows from the samples")
        super().__init__("GPTQ", quant_format, op_types_to_quantize)
        # Of the rest detent always does what is better: columns by falling power of their inputs, scales by their error.
        self.calibration_data_reader = calibration_data_reader
        self.block_size = block_size

    def options(self, quantizer: MatMulNBitsQuantizer) -> Chosen:
        return {**super().options(quantizer), "block_size": self.block_size}


class QuantizedModel:
    """What process() made. It is written as a stream where a file is asked for."""

    def __init__(self, model: Model, data: Any, config: Config) -> None:
        self._model, self._data, self._config = model, data, config
        self.result: QuantizeResult | None = None

    @property
    def model(self) -> Any:
        """As an onnx.ModelProto; needs the package onnx."""
        import onnx

        written = _api.quantize(self._model, None, self._data, self._config)
        self.result = written.result
        return onnx.load_from_string(written)

    def save_model_to_file(self, output_path: str | os.PathLike[str], use_external_data_format: bool = False) -> None:
        threshold = 1024 if use_external_data_format else None
        self.result = _api.quantize(self._model, output_path, self._data, self._config, external_data_threshold=threshold)


class MatMulNBitsQuantizer:
    """Weights of products (and tables) in blocks, with the other package's arguments and defaults."""

    def __init__(
        self,
        model: Model,
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Iterable[str] | None = None,
        nodes_to_include: Iterable[str] | None = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Iterable[str] | None = None,
        quant_axes: Iterable[tuple[str, int]] | None = None,
        channel_wised_quantize: bool = False,
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        self.bits, self.block_size, self.is_symmetric = bits, block_size, is_symmetric
        self.accuracy_level = accuracy_level
        self.algo_config = algo_config or DefaultWeightOnlyQuantConfig(
            *(block_size, is_symmetric, accuracy_level, quant_format, op_types_to_quantize, quant_axes, bits),
            channel_wised_quantize,
        )
        self._nodes, self._excluded = list(nodes_to_include or ()), list(nodes_to_exclude or ())
        self._source = model
        self.model: Any = None

    def process(self) -> None:
        algorithm = self.algo_config
        blocks = {"accuracy_level": self.accuracy_level or 0, **algorithm.options(self)}
        config = Config(
            bench=False,
            op_types=sorted(algorithm.op_types_to_quantize),
            weight_symmetric=blocks.pop("symmetric"),
            weights_only=WeightsOnly(
                form="qdq" if name_of(algorithm.quant_format) == "QDQ" else "matmul-nbits",
                method=algorithm.method,  # type: ignore[arg-type]
                node_bits=[f"{node}={bits}" for node, bits in self._node_bits().items()],
                **blocks,
            ),
            nodes=self._nodes,
            exclude_nodes=self._excluded,
        )
        self.model = QuantizedModel(self._source, getattr(algorithm, "calibration_data_reader", None), config)

    def _node_bits(self) -> dict[str, int]:
        bits = {}
        for node, custom in self.algo_config.customized_weight_config.items():
            if set(custom) != {"bits"}:
                raise refuse(f"customized_weight_config['{node}'] with {', '.join(sorted(custom)) or 'nothing'}", "give bits")
            bits[node] = custom["bits"]
        return bits
