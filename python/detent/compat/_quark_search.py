"""Quark's AutoSearchPro, by detent's search: one search over formats instead of many quantization runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _api
from .._config import Accuracy
from .._config import Config as _Config
from .._search import SearchResult
from ..errors import UsageError
from ._options import Chosen, Taker, default_only, differs, into, not_needed, refuse, take_all

_FORMATS = {
    **dict.fromkeys(("XInt8Spec", "Int8Spec", "UInt8Spec"), "int8"),
    **dict.fromkeys(("Int16Spec", "UInt16Spec"), "a16w8"),
}


def _take_activations(chosen: Chosen, value: list[str]) -> None:
    for name in value:
        if name not in _FORMATS:
            raise refuse(f"search_space['activation'] {name!r}", f"choose from: {', '.join(_FORMATS)}")
    chosen["formats"] = list(dict.fromkeys(_FORMATS[name] for name in value))


def _take_weights(chosen: Chosen, value: list[str]) -> None:
    for name in value:
        if _FORMATS.get(name) != "int8":
            raise refuse(f"search_space['weight'] {name!r}", "give 'Int8Spec'")


def _chosen_by_measuring(option: str) -> Taker:
    def take(chosen: Chosen, value: Any) -> None:
        if value not in ([None], ["MinMax"], {}):
            differs(f"search_space['{option}']", "detent chooses ranges, equalization and tuning itself, by measuring")

    return take


_MEASURED = "activation_params weight_params algorithms cle_algo cle_params adaround_params adaquant_params".split()
_SPACE: dict[str, Taker] = {
    "activation": _take_activations,
    "weight": _take_weights,
    **{name: _chosen_by_measuring(name) for name in _MEASURED},
    **{name: default_only(f"search_space['{name}']", [None]) for name in ("specific_layer_config", "layer_type_config", "exclude")},
    **dict.fromkeys(("use_external_data_format", "OptimizeModel"), not_needed),
}


def _take_space(chosen: Chosen, value: Mapping[str, Any]) -> None:
    take_all("search_space", value, _SPACE, chosen)


def _take_metric(chosen: Chosen, value: str | None) -> None:
    if value not in (None, "L2"):
        differs(f"search_metric={value!r}", "models are compared by squared errors, as 'L2' does")


def _take_evaluator(chosen: Chosen, value: Any) -> None:
    if value is not None:
        chosen["accuracy"] = Accuracy(metric=value)


OPTIONS: dict[str, Taker] = {
    "model_input": into("model"),
    "calib_data_reader": into("data"),
    "eval_data_reader": into("eval_data"),
    "output_dir": into("output"),
    "n_trials": into("points"),
    "search_space": _take_space,
    "search_metric": _take_metric,
    "search_evaluator": _take_evaluator,
    "direction": default_only("direction", "minimize"),
    "base_framework": default_only("base_framework", "onnx"),
    # Of the studies of Optuna, which runs none here.
    **dict.fromkeys(
        "search_algo n_jobs temp_dir two_stage_search study_name study_storage_db load_study_if_exists".split(), not_needed
    ),
    "plot_results": not_needed,
}


class AutoSearchPro:
    """run() searches with Quark's configuration, as far as it means the same."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._chosen: Chosen = {"points": 20, "output": "./output", "formats": None}
        take_all("AutoSearchPro", config, OPTIONS, self._chosen)
        for name, of in (("model_input", "model"), ("calib_data_reader", "data")):
            if self._chosen.get(of) is None:
                raise UsageError(f"AutoSearchPro has no {name}", "give it in the configuration")
        if self._chosen.get("eval_data") not in (None, self._chosen["data"]):
            raise refuse(
                "eval_data_reader beside calib_data_reader", "leave it out: models are judged on samples of the calibration"
            )

    def run(self) -> SearchResult:
        """The front of all measured models; output_dir, a new folder, gets front.html, front.json and the chosen ones."""
        chosen = self._chosen
        config = _Config(accuracy=chosen["accuracy"]) if "accuracy" in chosen else None
        return _api.search(
            chosen["model"], chosen["output"], chosen["data"], config, formats=chosen["formats"], points=chosen["points"]
        )
