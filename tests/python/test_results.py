"""What runs give back, and how it prints."""

import dataclasses
import inspect
import json

import detent
import pytest
from detent import _config, _core

SCHEMA = json.loads(_core.schema())["options"]
# Arguments of the calls rather than fields of Config.
CALLS = {"model", "output", "calibration_data", "statistics", "external_data_threshold", "prepared_output"}
CALLS |= {"profile", "report", "trace", "runtime"}
METHODS = (_config.MinMax, _config.Percentile, _config.LayerwisePercentile, _config.Mse, _config.Entropy)
TUNINGS = (_config.AdaRound, _config.AdaQuant, _config.Gptq)
GROUPS = {"method": METHODS, "finetune": TUNINGS, "accuracy": (_config.Accuracy,)}
GROUPS |= {"resources": (_config.Resources,), "device": (_config.Device,), "weights_only": (_config.WeightsOnly,)}
GROUPS |= {"kv_cache": (_config.KvCache,)}


def classes_of(option):
    """The classes that have a field for the option, and its name there."""
    group, _, name = option["path"].removeprefix("config.").rpartition(".")
    if not group:
        return (_config.Config,), name
    words = option["only"].split(", ") if option["only"] else None
    return [cls for cls in GROUPS[group] if words is None or cls._chosen.get("method", cls._chosen.get("rounding")) in words], name


@pytest.mark.parametrize("option", [o for o in SCHEMA if "quantize" in o["commands"] and o["of_library"]], ids=lambda o: o["name"])
def test_every_option_is_in_python_with_its_default_and_help(option):
    if option["path"] in CALLS:
        assert option["path"] in inspect.signature(detent.quantize).parameters or option["path"] == "calibration_data"
        return
    if option["path"] in ("method.method", "finetune.rounding"):  # by the choice of the class, or by name
        chosen = [cls._chosen[option["path"].split(".")[1]] for cls in GROUPS[option["path"].split(".")[0]]]
        assert set(chosen) <= set(option["words"])
        return
    if option["path"] == "weights_only.enabled":  # by giving the class
        assert _config.WeightsOnly._chosen == {"enabled": True}
        return
    classes, name = classes_of(option)
    assert classes
    for cls in classes:
        field = {field.name: field for field in dataclasses.fields(cls)}[name]
        if cls not in (_config.Config, _config.Accuracy) and name != "cuda":
            value = list(field.default) if isinstance(field.default, tuple) else field.default
            assert value == (int(option["value"]) if option["words"] and option["value"].isdigit() else option["value"])
        if option["path"] != "overrides":
            assert option["help"] in " ".join(cls.__doc__.split())


def test_python_has_no_option_that_the_library_lacks():
    for group, classes in {"": (_config.Config,), **GROUPS}.items():
        known = {o["path"].removeprefix("config.").rpartition(".")[::2] for o in SCHEMA}
        for cls in classes:
            for field in dataclasses.fields(cls):
                nested = not group and field.name in GROUPS
                assert nested or (group, field.name) in {(g, n) for g, _, n in [(k[0], "", k[1]) for k in known]}, (cls, field.name)


def test_a_reduced_range_that_is_turned_off_changes_nothing(model, samples):
    """It once made int8 weights of the preset's."""
    assert detent.quantize(model, data=samples, config=detent.Config(weight_range="pairs")) == detent.quantize(model, data=samples)


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
    assert not found.products
    quantized = tmp_path / "quantized.onnx"
    detent.quantize(model, quantized, samples, detent.Config(preset="plain"))
    products = detent.inspect(quantized).products
    assert {product.runs_as for product in products} == {"QLinearConv", "QGemm"}
    assert not any(product.in_float for product in products)
    assert "QGemm" in str(detent.inspect(quantized))
    plan = detent.plan(model, samples, {"finetune": "gptq", "optimize_for": "size"})
    assert plan.samples == 9
    assert plan.peak_memory > 0
    assert plan.finetune.layers == 3
    assert plan.device.devices == 0
    on_gpus = detent.plan(
        model, samples, {"finetune": "gptq", "optimize_for": "size", "device": {"cuda": [0, 1], "memory_budget": "1GiB"}}
    )
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


def test_bench_and_latency(model, samples, tmp_path):
    result = detent.quantize(model, tmp_path / "q.onnx", samples, {"bench": True, "threads": 1})
    assert (result.latency.threads, result.latency.synthetic) == (1, False)
    assert result.latency.before.median > 0 and result.latency.after.ratio > 0
    assert "latency" in str(result)
    benched = detent.bench(model, tmp_path / "q.onnx", data=(s for s in samples), threads=1, seconds=0.1, by_operator=True)
    assert (len(benched.models), benched.synthetic, benched.samples) == (2, False, 9)
    first, second = benched.models
    assert first.latency.ratio == 1 and second.latency.runs == first.latency.runs > 0
    assert (first.model, second.bytes) == (str(model), (tmp_path / "q.onnx").stat().st_size)
    assert sum(operator.share for operator in second.operators) == pytest.approx(1)
    assert first.peak_memory is None or first.peak_memory > 1 << 20
    assert "CPU ms" in str(benched) and "QLinearConv" in str(benched)
    shapes = {"x": samples[0]["x"].shape}
    assert detent.bench(model.read_bytes(), input_shapes=shapes, runs=3, memory=False).models[0].latency.runs == 3
    with pytest.raises(detent.UsageError):
        detent.bench()


def test_reports_work_with_samples_in_memory(model, samples, tmp_path):
    detent.quantize(model, tmp_path / "out.onnx", samples, report=tmp_path / "r.html", trace=tmp_path / "t.json")
    assert (tmp_path / "r.html").read_text().lower().startswith("<!doctype html>")
    assert (tmp_path / "t.json").stat().st_size > 0
    once = (sample for sample in samples)  # of which the first few are kept, for the comparison in the report
    detent.quantize(model, tmp_path / "again.onnx", once, report=tmp_path / "again.html")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()


def test_tables_are_cut_short_in_print_only():
    rows = [detent._results.Stage(f"stage {i}", i, i) for i in range(30)]
    table = detent._tables.Table(rows, detent._shown.COLUMNS["Stage"])
    assert len(table) == 30
    assert str(table).endswith("… and 10 more")
    assert "stage 29" in table.to_text(limit=0)
    assert "more" not in str(table[:5])
    assert "and 10 more" in table._repr_html_()


@pytest.mark.parametrize("cls", [detent.AdaRound, detent.Config, detent.Device, detent.Resources])
def test_configurations_are_values(cls):
    assert cls() == cls()
    with pytest.raises(detent.UsageError):
        cls(unknown=1)
