"""What runs give back, and how it prints."""

import dataclasses
import pathlib

import detent
import pytest
from detent import _config, _core


def test_python_and_the_library_have_the_same_options():
    """Every option of the native library has a place in Python, and the other way round."""
    names = _core.option_names()
    fields = {
        cls: {field.name for field in dataclasses.fields(cls)} for cls in vars(_config).values() if dataclasses.is_dataclass(cls)
    }
    calls = {"model", "output", "calibration_data", "statistics", "external_data_threshold", "prepared_output", "profile"}
    calls |= {"report", "trace", "command", "runtime"}
    assert set(names["quantize"]) - calls == fields[_config.Config]
    assert set(names["calibrate"]) - calls <= fields[_config.Config] | {"histograms", "most_common"}
    methods = (_config.MinMax, _config.Percentile, _config.LayerwisePercentile, _config.Mse, _config.Entropy)
    assert set(names["method"]) == {"method"}.union(*(fields[cls] for cls in methods))
    tunings = (_config.AdaRound, _config.AdaQuant, _config.Gptq)
    assert set(names["finetune"]) == {"rounding"}.union(*(fields[cls] for cls in tunings))
    assert set(names["resources"]) == fields[_config.Resources]
    assert set(names["device"]) == fields[_config.Device]


def test_defaults_are_those_of_the_headers():
    """What include/detent/config.h says beside each name."""
    header = (pathlib.Path(__file__).parents[2] / "include/detent/config.h").read_text()
    for cls in (_config.AdaRound, _config.Percentile, _config.Entropy, _config.Gptq):
        for field in dataclasses.fields(cls):
            if isinstance(field.default, bool):
                assert f"bool {field.name} = {str(field.default).lower()};" in header
            elif isinstance(field.default, int | float):
                assert f" {field.name} = {field.default};" in header


def test_quantize_tells_what_it_did(model, samples, tmp_path):
    result = detent.quantize(model, tmp_path / "out.onnx", samples, {"finetune": detent.Gptq()})
    assert (result.samples, result.output) == (9, str(tmp_path / "out.onnx"))
    assert {row.name for row in result.layers} == {"conv_a", "conv_b", "head"}
    assert "x" in {row.name for row in result.activations}
    assert result.activations[0].scale > 0
    assert result.activations.to_dicts()[0].keys() >= {"name", "scale", "zero_point"}
    for text in (str(result), result._repr_html_()):
        assert "conv_b" in text
        assert "nodes quantized" in text
    assert "<table>" in result._repr_html_()
    model_bytes = detent.quantize(model, data=samples)
    assert "ONNX model of" in repr(model_bytes)
    assert model_bytes.result.samples == 9


def test_inspect_plan_compare(model, samples, tmp_path):
    found = detent.inspect(model, {"x": [1, 3, 16, 16]})
    assert found.op_types["Conv"] == 2
    assert found.layers[found.heaviest].macs > 0
    assert "conv_a" in str(found)
    assert detent.inspect(model).macs is None
    plan = detent.plan(model, samples, {"finetune": "gptq"})
    assert plan.samples == 9
    assert plan.peak_memory > 0
    assert plan.finetune.layers == 3
    assert plan.device.devices == 0
    on_gpus = detent.plan(model, samples, {"finetune": "gptq", "device": {"cuda": [0, 1], "memory_budget": "1GiB"}})
    assert (on_gpus.device.devices, on_gpus.device.budget, len(on_gpus.device.layers)) == (2, 1 << 30, 3)
    assert all(0 < layer.bytes < on_gpus.device.budget for layer in on_gpus.device.layers)
    assert "predicted peak" in str(plan)
    assert detent.plan(model).samples == 0
    quantized = detent.quantize(model, data=samples)
    comparison = detent.compare(model, quantized, samples, max_samples=4)
    assert comparison.samples == 4
    assert comparison.outputs[0].sqnr_db > 15
    assert comparison.layers[0].sqnr_db <= comparison.layers[-1].sqnr_db
    assert len(detent.compare(model, quantized, samples, outputs_only=True).layers) == 0


def test_reports_work_with_samples_in_memory(model, samples, tmp_path):
    detent.quantize(model, tmp_path / "out.onnx", samples, report=tmp_path / "r.html", trace=tmp_path / "t.json")
    assert (tmp_path / "r.html").read_text().lower().startswith("<!doctype html>")
    assert (tmp_path / "t.json").stat().st_size > 0
    once = (sample for sample in samples)  # of which the first few are kept, for the comparison in the report
    detent.quantize(model, tmp_path / "again.onnx", once, report=tmp_path / "again.html")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()


def test_tables_are_cut_short_in_print_only():
    rows = [detent._results.Stage(f"stage {i}", i, i) for i in range(30)]
    table = detent._tables.Table(rows, detent._results._STAGES)
    assert len(table) == 30
    assert str(table).endswith("… and 10 more")
    assert "stage 29" in table.to_text(limit=0)
    assert "more" not in str(table[:5])
    assert "and 10 more" in table._repr_html_()


@pytest.mark.parametrize("cls", [detent.AdaRound, detent.Config, detent.Device, detent.Resources])
def test_configurations_are_values(cls):
    assert cls() == cls()
    with pytest.raises(TypeError):
        cls(unknown=1)
