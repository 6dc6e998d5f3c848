"""Failures become exceptions of their kind, with one line that says what and what to change."""

import dataclasses
import pickle
import subprocess
import sys

import detent
import numpy as np
import onnx
import pytest


def one_line(error: BaseException, *parts: str) -> None:
    assert "\n" not in str(error)
    for part in parts:
        assert part in str(error), f"'{part}' is not in: {error}"


@pytest.mark.parametrize(
    ("data", "kind", "parts"),
    [
        ([{"y": np.zeros((1, 3, 16, 16), np.float32)}], detent.BadInput, ["sample 1", "'y' is not an input", "'x' float32"]),
        ([{"x": np.zeros((1, 4, 16, 16), np.float32)}], detent.BadInput, ["expects float32 [?, 3, 16, 16]", "[1, 4, 16, 16]"]),
        ([{"x": np.zeros((1, 3, 16, 16))}], detent.BadInput, ["expects float32", "float64", "astype('float32')"]),
        ([{"x": np.full((1, 3, 16, 16), np.nan, np.float32)}], detent.BadInput, ["sample 1"]),
        ([{"x": "text"}], detent.BadInput, ["input 'x'", "elements of type str"]),
        (["text"], detent.BadInput, ["a str, not a dict"]),
        ([()], detent.BadInput, ["a tuple of 0, and the model has 1 inputs: x"]),
        ([], detent.BadInput, ["gives no sample"]),
        ({"x": np.zeros(3)}, detent.UsageError, ["one dict", "list of dicts"]),
        (7, detent.UsageError, ["data is a int"]),
        ("missing", detent.BadInput, ["missing"]),
        (None, detent.UsageError, ["nothing to calibrate with", "give data or statistics"]),
    ],
)
def test_wrong_data(model, data, kind, parts):
    with pytest.raises(kind) as caught:
        detent.quantize(model, data=data)
    one_line(caught.value, *parts)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"per_chanel": True}, ["no option 'per_chanel'", "per_channel"]),
        ({"activation_type": "int9"}, ["activation_type: 'int9'", "choose from: int8"]),
        ({"threads": -1}, ["threads must not be negative"]),
        ({"threads": "four"}, ["threads: 'four' is not a whole number"]),
        ({"per_channel": 1}, ["per_channel: 1 is not True or False"]),
        ({"max_samples": -2}, ["max_samples: -2 is not a whole number of 0 or more"]),
        ({"op_types": "Conv"}, ["op_types: 'Conv' is not a list"]),
        ({"resources": {"memory": 1}}, ["resources has no option 'memory'", "memory_budget"]),
        ({"resources": detent.Resources(memory_budget="much")}, ["much"]),
        ({"resources": "small"}, ["resources is 'small'", "a mapping"]),
        ({"resources": {1: 2}}, ["resources has no option '1'", "memory_budget"]),
        ({"resources": {"work_dir": 5}}, ["work_dir: 5 is no path"]),
        ({"overrides": 5}, ["overrides: 5 is not a list"]),
        ({1: 2}, ["Config has no option '1'"]),
        ({"method": "best"}, ["method: 'best'", "percentile"]),
        ({"exclude_nodes": ["nowhere"]}, ["nowhere"]),
        ({"device": "gpu"}, ["'gpu' is not a device", "cuda:0"]),
        ({"device": {"cuda": [0], "memory": 1}}, ["device has no option 'memory'", "memory_budget"]),
        ({"device": detent.Device(precision="int8")}, ["precision: 'int8'", "bfloat16"]),
        ({"device": detent.Device(cuda=[], memory_budget="1GiB")}, ["give device cuda:0"]),
    ],
)
def test_wrong_options(model, samples, config, parts):
    with pytest.raises(detent.Error) as caught:
        detent.quantize(model, data=samples, config=config)
    one_line(caught.value, *parts)


@pytest.mark.parametrize("formats", [5, "q4"])
def test_formats_of_a_search_are_a_list(model, samples, tmp_path, formats):
    with pytest.raises(detent.UsageError, match="formats: .* is not a list"):
        detent.search(model, tmp_path / "found", samples, formats=formats)


def test_a_report_of_nothing_is_wrong_usage():
    with pytest.raises(detent.UsageError, match="RESULTS is required"):
        detent.report()


@pytest.mark.parametrize("kind", [detent.Config, detent.Accuracy, detent.AdaRound, detent.Gptq, detent.MinMax, detent.Resources])
def test_an_unknown_name_says_what_was_meant(kind):
    name = next(iter(dataclasses.fields(kind))).name
    with pytest.raises(detent.UsageError, match="has no option") as caught:
        kind(**{name + "x": 1})
    assert caught.value.hint == f"did you mean {name}?" or name in caught.value.hint


def test_kinds_are_pythons_own_as_well(model, samples, tmp_path):
    with pytest.raises(ValueError, match="cannot|No such") as caught:
        detent.quantize(tmp_path / "none.onnx", data=samples)
    assert isinstance(caught.value, detent.BadInput | detent.UsageError)
    assert caught.value.kind in ("bad_input", "usage")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.hint) == (str(caught.value), caught.value.hint)
    with pytest.raises(detent.DeviceError, match="ONNX Runtime"):
        detent.quantize(model, data=samples, runtime=tmp_path / "no.so")
    with pytest.raises(detent.DeviceError, match="CUDA driver"):
        detent.quantize(model, data=samples, config={"device": "cuda:63"})
    with pytest.raises(detent.ResourceError, match="budget"):
        detent.quantize(model, data=samples, config={"resources": {"memory_budget": "1KiB"}})
    with pytest.raises(detent.UsageError, match="a list, not a path"):
        detent.quantize([], data=samples)


def test_an_exception_of_the_callers_comes_through(model, samples, tmp_path):
    def broken():
        yield samples[0]
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="the disk is on fire"):
        detent.quantize(model, tmp_path / "out.onnx", broken())
    with pytest.raises(KeyError, match="progress"):
        detent.quantize(model, tmp_path / "out.onnx", samples, progress=lambda *_: {}["progress"])
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("option", [{}, {"preset": "plain", "finetune": "gptq"}, {"resources": {"segments": 3}}])
def test_samples_that_pass_once_give_the_model_of_a_list(model, samples, tmp_path, option):
    for name, data in (("list", samples * 4), ("once", (s for s in samples * 4))):
        detent.quantize(model, tmp_path / f"{name}.onnx", data, config={"bench": False, **option})
    assert (tmp_path / "list.onnx").read_bytes() == (tmp_path / "once.onnx").read_bytes()


def test_nothing_is_left_behind(model, samples, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "work"))
    (tmp_path / "work").mkdir()
    code = """
import sys
import detent, numpy as np
try:
    detent.quantize(open(sys.argv[1], "rb").read(), data=[{"x": np.zeros(3)}])
except detent.BadInput:
    pass
"""
    subprocess.run([sys.executable, "-c", code, model], check=True)
    assert list((tmp_path / "work").iterdir()) == []


def test_names_cannot_move_a_terminals_cursor(model, samples, tmp_path):
    made = onnx.load(model)
    made.graph.node[0].input.append("\x1b[2J")
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(detent.BadInput) as caught:
        detent.quantize(tmp_path / "m.onnx", data=samples)
    one_line(caught.value, "\\x1b[2J")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model: detent.inspect(model, ["x"]), "input_shapes is a dict"),
        (lambda model: detent.check(model, input_shapes=3), "input_shapes is a dict"),
        (lambda model: detent.bench(model, input_shapes="x:1"), "input_shapes is a dict"),
        (lambda model: detent.verify(model, model, [], consumer=object()), "consumer has a name"),
        (lambda model: detent.data.Columns([], "x"), "keys is a dict"),
    ],
)
def test_arguments_of_another_type_are_type_errors(model, call, says):
    with pytest.raises(TypeError, match=says):
        call(model)
