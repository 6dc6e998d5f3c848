"""AMD Quark's ModelQuantizer for ONNX, implemented by detent. docs/migration.md lists the differences."""

from __future__ import annotations

import abc
import copy
import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _api, _samples
from .._config import (
    AdaQuant,
    AdaRound,
    Device,
    Entropy,
    Finetune,
    Gptq,
    LayerwisePercentile,
    Method,
    MinMax,
    Mse,
    Percentile,
    WeightsOnly,
)
from .._config import Config as _Config  # Quark has another one
from .._models import Model
from ..errors import UsageError
from . import _quark_nbits, _quark_presets
from ._options import Chosen, Taker, absent, default_only, differs, into, not_needed, refuse, take_all
from ._quark_absent import ABSENT

# Under their own names, which scripts import from here.
from ._quark_calls import quantize_dynamic as quantize_dynamic
from ._quark_calls import quantize_static as quantize_static
from ._quark_layers import data_type_name, take_specs
from ._quark_options import EXTRA_OPTIONS
from ._quark_profiler import GlobalProfiler as GlobalProfiler
from ._quark_profiler import ProfileStep as ProfileStep
from ._quark_profiler import active
from ._quark_profiler import profile_scope as profile_scope
from ._quark_search import AutoSearchPro as AutoSearchPro
from ._quark_specs import (
    BFP16Spec as BFP16Spec,
)
from ._quark_specs import (
    CalibMethod as CalibMethod,
)
from ._quark_specs import (
    Int8Spec as Int8Spec,
)
from ._quark_specs import (
    Int16Spec as Int16Spec,
)
from ._quark_specs import (
    Int32Spec as Int32Spec,
)
from ._quark_specs import (
    MX4Spec as MX4Spec,
)
from ._quark_specs import (
    MX6Spec as MX6Spec,
)
from ._quark_specs import (
    MX9Spec as MX9Spec,
)
from ._quark_specs import (
    MXFP4E2M1Spec as MXFP4E2M1Spec,
)
from ._quark_specs import (
    MXFP6E2M3Spec as MXFP6E2M3Spec,
)
from ._quark_specs import (
    MXFP6E3M2Spec as MXFP6E3M2Spec,
)
from ._quark_specs import (
    MXFP8E4M3Spec as MXFP8E4M3Spec,
)
from ._quark_specs import (
    MXFP8E5M2Spec as MXFP8E5M2Spec,
)
from ._quark_specs import (
    MXInt8Spec as MXInt8Spec,
)
from ._quark_specs import (
    QLayerConfig as QLayerConfig,
)
from ._quark_specs import (
    QTensorConfig as QTensorConfig,
)
from ._quark_specs import (
    QuantGranularity as QuantGranularity,
)
from ._quark_specs import (
    ScaleType as ScaleType,
)
from ._quark_specs import (
    UInt8Spec as UInt8Spec,
)
from ._quark_specs import (
    UInt16Spec as UInt16Spec,
)
from ._quark_specs import (
    XInt8Spec as XInt8Spec,
)
from .onnxruntime import (
    CalibrationDataReader as CalibrationDataReader,
)
from .onnxruntime import (
    CalibrationMethod as CalibrationMethod,
)
from .onnxruntime import (
    QuantFormat as QuantFormat,
)
from .onnxruntime import (
    QuantType as QuantType,
)


class AlgoConfig(abc.ABC):
    """An algorithm and its parameters, under Quark's names."""

    _name = ""
    _defaults: Mapping[str, Any] = {}
    _takers: Mapping[str, Taker] = {}

    def __init__(self, **parameters: Any) -> None:
        self.parameters = {**self._defaults, **parameters}

    def chosen(self) -> Chosen:
        found: Chosen = {}
        take_all(type(self).__name__, self.parameters, self._takers, found)
        return found

    @abc.abstractmethod
    def finetune(self, chosen: Chosen) -> Finetune: ...


_TUNED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def _target_op_type(chosen: Chosen, value: Sequence[str]) -> None:
    # Quark's default names two kinds of layers more, which have no weights to round.
    chosen["op_types"] = [op for op in value if op not in ("InstanceNormalization", "LayerNormalization")]


def _output_qdq(chosen: Chosen, value: Any) -> None:
    if value:
        differs("output_qdq=True", "detent compares a layer's outputs as they are before they are quantized")


def _tuning_takers(name: str) -> dict[str, Taker]:
    def only(option: str, *defaults: Any, hint: str = "") -> Taker:
        return default_only(f"{name}Config({option})", *defaults, hint=hint)

    return {
        "fixed_seed": into("seed"),
        "batch_size": into("batch_size"),
        "num_iterations": into("num_iterations"),
        "learning_rate": into("learning_rate"),
        "early_stop": into("early_stop"),
        "target_op_type": _target_op_type,
        "update_bias": into("update_bias"),
        "drop_ratio": into("drop_ratio"),
        "select_max_mem_layer": into("only_heaviest_layer"),
        "data_size": into("_data_size"),
        "mem_opt_level": into("_memory_level"),
        "cache_dir": into("_work_dir"),
        "log_period": not_needed,
        "num_workers": not_needed,
        "pin_memory": not_needed,
        "optim_device": into("_device"),
        "infer_device": only("infer_device", "cpu"),
        "num_batches": only("num_batches", 1, hint="batch_size is what one step takes"),
        "output_index": only("output_index", 0),
        "lr_adjust": only("lr_adjust", None),
        "selective_update": only("selective_update", False, hint="detent keeps nearest rounding where tuning does not help"),
        "output_qdq": _output_qdq,
        "ref_model_path": only("ref_model_path", None),
        "dynamic_batch": only("dynamic_batch", False),
        "parallel": only("parallel", False),
        "use_gds": into("_gds"),
    }


class AdaRoundConfig(AlgoConfig):
    """reg_param, beta_range, warm_start, num_iterations, learning_rate, … as Quark names them."""

    _defaults = {"num_iterations": 1000, "learning_rate": 0.1}
    _takers = {
        **_tuning_takers("AdaRound"),
        "reg_param": into("reg_param"),
        "beta_range": into("beta_range"),
        "warm_start": into("warm_start"),
    }

    def finetune(self, chosen: Chosen) -> Finetune:
        return AdaRound(**chosen)


class AdaQuantConfig(AlgoConfig):
    """num_iterations, learning_rate, … as Quark names them."""

    _defaults = {"num_iterations": 3000, "learning_rate": 1e-5}
    _takers = {
        **_tuning_takers("AdaQuant"),
        # Of a regularizer that AdaQuant does not have; Quark's class takes them as well.
        "reg_param": not_needed,
        "beta_range": not_needed,
        "warm_start": not_needed,
    }

    def finetune(self, chosen: Chosen) -> Finetune:
        return AdaQuant(**chosen)


class GPTQConfig(AlgoConfig):
    """bits, perc_damp, act_order, … as Quark names them."""

    _defaults = {"bits": 8, "act_order": False}
    _takers = {
        "bits": into("_bits"),
        "block_size": not_needed,
        "group_size": default_only("GPTQConfig(group_size)", -1),
        "perc_damp": into("damping"),
        "act_order": into("activation_order"),
        "per_channel": into("_per_channel"),
        "mse": default_only("GPTQConfig(mse)", False),
        "weight_symmetric": into("_weight_symmetric"),
    }

    def finetune(self, chosen: Chosen) -> Finetune:
        return Gptq(**chosen)


class QConfig:
    """Quark's configuration: specs of tensors, exclusions, algorithms and extra options."""

    def __init__(
        self,
        global_config: QLayerConfig | None = None,
        specific_layer_config: Mapping[Any, Any] | None = None,
        layer_type_config: Mapping[Any, Sequence[str]] | None = None,
        exclude: Sequence[Any] | None = None,
        algo_config: Sequence[AlgoConfig] | None = None,
        use_external_data_format: bool = False,
        **kwargs: Any,
    ) -> None:
        self.global_config = global_config
        self.specific_layer_config = specific_layer_config or {}
        self.layer_type_config = layer_type_config or {}
        self.exclude = list(exclude or [])
        self.algo_config = list(algo_config or [])
        self.use_external_data_format = use_external_data_format
        self.extra_options: dict[str, Any] = {**kwargs.pop("extra_options", {}), **kwargs}
        self._preset = ""

    @staticmethod
    def get_default_config(config_name: str) -> QConfig:
        if config_name == "MATMUL_NBITS":
            return QConfig(extra_options=copy.deepcopy(_quark_nbits.PRESET))
        _quark_presets.check(config_name)
        config = QConfig()
        base, variant = _quark_presets.split(config_name)
        config._preset = base
        preset = _quark_presets.PRESETS.get(base)
        variant = variant or (preset.algorithm if preset else "")
        if variant:
            algorithm = AdaRoundConfig if variant == "ADAROUND" else AdaQuantConfig
            config.algo_config = [algorithm(**_quark_presets.parameters(variant))]
        return config

    def to_detent(self, samples: int = 0) -> _Config:
        """Translates to a detent.Config; UsageError names what has no counterpart. samples: their number."""
        if self.in_blocks:
            return self._to_blocks()
        if self._preset in _quark_presets.FLOATS:
            return self._to_floats()
        if self._preset in _quark_presets.DYNAMIC:
            return self._to_dynamic()
        if block_float := self._block_float():
            return self._to_block_floats(block_float)
        chosen: Chosen = {"preset": "plain", "bench": False}
        if self._preset:
            chosen.update(_quark_presets.PRESETS[self._preset].options())
        elif self.global_config is None:
            raise UsageError("QConfig needs global_config", "give a QLayerConfig")
        if self.global_config is not None:
            take_specs(self.global_config, chosen)
        _take_exclusions(self, chosen)
        take_all("extra_options", self.extra_options, EXTRA_OPTIONS, chosen)
        _take_algorithms(self.algo_config, chosen, samples)
        chosen["method"] = _method(chosen)
        return _Config.of(chosen)

    @property
    def in_blocks(self) -> bool:
        """Whether weights alone are quantized; what global_config says means nothing then, in Quark as well."""
        return bool(self.extra_options.get("UseMatMulNBits"))

    def _to_floats(self) -> _Config:
        if self.extra_options or self.algo_config:
            raise refuse(f"extra_options and algo_config with {self._preset}", "leave them out")
        chosen: Chosen = {}
        _take_exclusions(self, chosen)
        return _Config.of({**chosen, "float_type": _quark_presets.FLOATS[self._preset], "bench": False})

    def _to_dynamic(self) -> _Config:
        if self.extra_options or self.algo_config:
            raise refuse(f"extra_options and algo_config with {self._preset}", "leave them out, or call quantize_dynamic")
        chosen: Chosen = {"preset": "plain", "bench": False, "activations": "dynamic", "per_channel": False}
        _take_exclusions(self, chosen)
        return _Config.of({**chosen, "weight_type": _quark_presets.DYNAMIC[self._preset], "weight_range": "full"})

    def _block_float(self) -> str:
        """detent's word for the block floats that are asked for; "": other formats are."""
        if self._preset or self.global_config is None:
            return _quark_presets.BLOCKS.get(self._preset, "")
        layer = self.global_config
        specs = [spec for spec in (layer.input_tensors or layer.activation, layer.weight, layer.output_tensors, layer.bias) if spec]
        names = {data_type_name(spec).upper() for spec in specs}
        if not names & set(_quark_presets.BLOCKS):
            return ""
        if len(names) > 1:
            raise refuse("block floats beside other types", "give all tensors the same spec")
        return _quark_presets.BLOCKS[names.pop()]

    def _to_block_floats(self, block_float: str) -> _Config:
        if self.extra_options or self.algo_config:
            raise refuse("extra_options and algo_config with block floats", "leave them out")
        chosen: Chosen = {"block_float": block_float, "target": "amd-npu:bfp16", "bench": False}
        _take_exclusions(self, chosen)
        return _Config.of(chosen)

    def _to_blocks(self) -> _Config:
        if self.algo_config:
            raise refuse("algo_config with UseMatMulNBits", "give MatMulNBitsParams an Algorithm")
        chosen: Chosen = {}
        _take_exclusions(self, chosen)
        return _quark_nbits.to_detent(self.extra_options, chosen)


def _take_exclusions(config: QConfig, chosen: Chosen) -> None:
    if config.specific_layer_config:
        raise refuse("specific_layer_config", "exclude keeps layers in float")
    for layer, op_types in config.layer_type_config.items():
        if layer is not None:
            raise refuse("layer_type_config with another config", "None as its key keeps types in float")
        chosen["exclude_op_types"] = list(op_types)
    for entry in config.exclude:
        if not isinstance(entry, str):
            raise refuse("the exclusion of a sub-graph", "name its nodes, or give a pattern that starts with '^'")
    chosen["exclude_nodes"] = config.exclude


def _take_algorithms(algorithms: Sequence[AlgoConfig], chosen: Chosen, samples: int) -> None:
    if len(algorithms) > 1:
        names = ", ".join(type(algorithm).__name__ for algorithm in algorithms)
        raise refuse(f"several algorithms at once ({names})", "give one")
    for algorithm in algorithms:
        if not isinstance(algorithm, AlgoConfig):
            raise refuse(type(algorithm).__name__, "choose from: AdaRoundConfig, AdaQuantConfig, GPTQConfig")
        found = algorithm.chosen()
        data_size = found.pop("_data_size", None)
        if data_size is not None and not 0 < samples <= data_size:
            raise refuse(
                f"{type(algorithm).__name__}(data_size={data_size}) with {samples or 'an unknown number of'} samples",
                "fine-tuning takes all samples: leave it out, and give as many samples as it shall take",
            )
        bits = found.pop("_bits", None)
        if bits is not None and not chosen["weight_type"].endswith(f"int{bits}"):
            raise UsageError(f"GPTQConfig(bits={bits}) cannot be combined with weights of {chosen['weight_type']}")
        for name in ("per_channel", "weight_symmetric"):
            if found.pop(f"_{name}", chosen[name]) != chosen[name]:
                raise UsageError(f"GPTQConfig({name}) contradicts the weight's spec", "leave it out")
        device, gds = found.pop("_device", "cpu"), found.pop("_gds", False)
        if gds and device == "cpu":
            raise UsageError("use_gds=True needs a GPU", "give optim_device='cuda:0', or leave use_gds out")
        if device != "cpu":
            chosen["device"] = dataclasses.replace(Device.named(device), gds="on") if gds else device
        resources = chosen.setdefault("resources", {})
        for name in ("memory_level", "work_dir"):
            value = found.pop(f"_{name}", None)
            if value is not None:
                resources[name] = value
        chosen["finetune"] = algorithm.finetune(found)


def _method(chosen: Chosen) -> Method:
    name = chosen.pop("_method")
    percentile, metric = chosen.pop("_percentile", 99.999), chosen.pop("_metric", "mae")
    candidates, levels = chosen.pop("_candidates", (99.99, 99.999, 99.99999)), chosen.pop("_entropy_levels", 128)
    average, most_common = bool(chosen.pop("_average", False)), chosen.pop("_most_common", False)
    if name == "MinMax":
        return MinMax(average=average)
    if name == "MinMSE":
        return Mse(most_common=most_common)
    if name == "Percentile":
        return Percentile(percentile=float(percentile))
    if name == "LayerwisePercentile":
        return LayerwisePercentile(candidates=candidates, metric=metric)
    if name == "Entropy":
        return Entropy(entropy_levels=levels)
    raise refuse(f"CalibMethod.{name}", "choose from: MinMax, MinMSE, Percentile, LayerwisePercentile, Entropy")


def __getattr__(name: str) -> Any:
    return absent("quark.onnx", name, ABSENT)


class ModelQuantizer:
    """quantize_model() with Quark's arguments."""

    def __init__(self, config: QConfig) -> None:
        if not isinstance(config, QConfig):
            raise refuse(f"a configuration of type {type(config).__name__}", "give a detent.compat.quark.QConfig")
        self.config = config

    def quantize_model(
        self,
        model_input: Model,
        model_output: str | os.PathLike[str] | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | None = None,
        algorithms: Sequence[AlgoConfig] | None = None,
    ) -> Any:
        """Quantize a model; without model_output it is returned as an onnx.ModelProto, else written there."""
        if algorithms:
            raise refuse("quantize_model(algorithms)", "give QConfig(algo_config)")
        data: Any = calibration_data_path if calibration_data_reader is None else calibration_data_reader
        if self.config.algo_config and not callable(getattr(data, "rewind", None)) and callable(getattr(data, "get_next", None)):
            data = list(iter(data.get_next, None))  # algorithms read them twice; Quark keeps them in memory as well
        config = self.config.to_detent(0 if data is None or isinstance(data, str) else _samples.length(data))
        blocks = config.weights_only
        solved = not (isinstance(blocks, WeightsOnly) and blocks.method == "nearest")
        if not solved or config.activations == "dynamic" or config.block_float not in (None, "none"):
            data = None  # it reads none
        elif data is None and not (isinstance(blocks, WeightsOnly) and blocks.method == "search"):
            raise UsageError("there is no calibration_data_reader", "give one with get_next()")
        if model_output is not None:
            threshold = 1024 if self.config.use_external_data_format else None
            _api.quantize(model_input, model_output, data, config, external_data_threshold=threshold, profile=active())
            return None
        if importlib.util.find_spec("onnx") is None:
            raise UsageError("an onnx.ModelProto is asked for, but onnx is not installed", "give model_output a path")
        import onnx

        return onnx.load_from_string(_api.quantize(model_input, None, data, config, profile=active()))
