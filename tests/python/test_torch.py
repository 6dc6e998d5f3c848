"""Modules of PyTorch as models. A stand-in for the package torch exports a model of ours, since the real one is large."""

import pathlib
import shutil
import sys
import types
from typing import Any

import detent
import numpy as np
import pytest
import support


class Module:
    training = True

    def __init__(self, file: pathlib.Path):
        self.file = file

    def forward(self, image: Any, scale: Any = None) -> Any:
        raise NotImplementedError

    def eval(self) -> None:
        self.training = False

    def train(self, mode: bool = True) -> None:
        self.training = mode


class Exporter:
    asked: Any = None

    def export(self, module: Module, args: Any, path: str, input_names: list[str], dynamo: bool = True) -> None:
        assert not module.training
        assert not dynamo, "needs onnxscript"
        self.asked = args, input_names
        if args == ("bad",):
            raise RuntimeError("Expected a tensor\nat line 3")
        shutil.copy(module.file, path)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporter:
    exporter = Exporter()
    torch = types.ModuleType("torch")
    torch.nn = types.SimpleNamespace(Module=Module)
    torch.onnx = exporter
    monkeypatch.setitem(sys.modules, "torch", torch)
    return exporter


def test_a_module_is_exported_and_quantized(
    exporter: Exporter, model: pathlib.Path, samples: list[dict[str, np.ndarray]], tmp_path: pathlib.Path
) -> None:
    config = {"preset": "plain"}
    module = Module(model)
    detent.quantize(module, tmp_path / "q.onnx", samples, config, example_inputs="image", progress=False)
    assert exporter.asked == (("image",), ["image"])
    assert module.training, "it is left as it was"
    detent.quantize(str(model), tmp_path / "wanted.onnx", samples, config, progress=False)
    assert support.sha256(tmp_path / "q.onnx") == support.sha256(tmp_path / "wanted.onnx")
    detent.quantize(module, tmp_path / "q.onnx", samples, config, example_inputs={"scale": 2, "image": 1}, progress=False)
    assert exporter.asked == (({"scale": 2, "image": 1},), ["image", "scale"])


@pytest.mark.usefixtures("exporter")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give example_inputs"),
        ({"example_inputs": {"x": 1}}, "forward() has no 'x'; it has image, scale"),
        ({"example_inputs": "bad"}, "torch.onnx cannot export the Module: Expected a tensor; "),
    ],
    ids=["none", "unknown", "refused"],
)
def test_what_cannot_be_exported_is_told(model: pathlib.Path, tmp_path: pathlib.Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(detent.Error) as refused:
        detent.quantize(Module(model), tmp_path / "q.onnx", [], **given)
    assert said in str(refused.value)
    assert not list(tmp_path.glob("q.onnx*"))


def test_example_inputs_are_for_modules_alone(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(detent.UsageError, match="no torch.nn.Module"):
        detent.quantize(model, tmp_path / "q.onnx", example_inputs=1)
