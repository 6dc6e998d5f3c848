"""What Quark's extra_options mean."""

from __future__ import annotations

from typing import Any

from ._options import Chosen, Taker, default_only, into, not_needed, refuse, take_overrides


def _work_dir(chosen: Chosen, value: Any) -> None:
    chosen.setdefault("resources", {})["work_dir"] = value


def _most_common(chosen: Chosen, value: Any) -> None:
    if value not in ("All", "MostCommon"):
        raise refuse(f"MinMSEModePof2Scale='{value}'", "choose from: All, MostCommon")
    chosen["_most_common"] = value == "MostCommon"


def _only(option: str, *defaults: Any, hint: str = "") -> tuple[str, Taker]:
    return option, default_only(option, *defaults, hint=hint)


EXTRA_OPTIONS: dict[str, Taker] = {
    "ActivationSymmetric": into("activation_symmetric"),
    "WeightSymmetric": into("weight_symmetric"),
    "OpTypesToQuantize": into("op_types"),
    "NodesToQuantize": into("nodes"),
    "CalibDataSize": into("max_samples"),
    "CalibMovingAverage": into("_average"),
    "CalibPassthroughOpTypes": into("passthrough_op_types"),
    "Percentile": into("_percentile"),
    "PercentileCandidates": into("_candidates"),
    "LWPMetric": into("_metric"),
    "NumQuantizedBins": into("_entropy_levels"),
    "MinMSEModePof2Scale": _most_common,
    "TensorQuantOverrides": take_overrides,
    "TmpDir": _work_dir,
    **{
        option: not_needed
        for option in (
            "CalibOptimizeMem CalibOptimizeDisk CalibWorkerNum LWPUseHistogram PrintSummary IgnoreWarnings DebugMode "
            "OptimizeModel SimplifyModel".split()
        )
    },
    **dict(
        (
            _only("AddQDQPairToWeight", False),
            _only("AlignConcat", False),
            _only("AlignSlice", False),
            _only("BiasCorrection", False, hint="update_bias of an algorithm solves for the bias"),
            _only("DedicatedQDQPair", False),
            _only("EnableNPUCnn", False),
            _only("EnableSubgraph", False),
            _only("FoldBatchNorm", True),
            _only("FoldRelu", False),
            _only("ForceQuantizeNoInputCheck", False),
            _only("Int16Bias", False),
            _only("Int32Bias", True),
            _only("MatMulConstBOnly", False),
            _only("QuantizeBias", True),
            _only("RemoveInputInit", True),
            _only("SkipPreprocess", False),
            _only("UseRandomData", False, hint="give samples"),
            _only("WeightsOnly", False),
            _only("UseMatMulNBits", False),
            _only("UseGPTQ", False, hint="give algo_config a GPTQConfig"),
        )
    ),
}
