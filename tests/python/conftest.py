"""A small model with samples for the tests of the Python package; the helpers of the end-to-end tests serve here too."""

import pathlib

import detent
import graphs
import onnx
import pytest
import support


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "model.onnx"
    onnx.save(graphs.small_cnn(), path)
    return path


@pytest.fixture
def samples() -> list[support.Sample]:
    return graphs.cnn_samples(9)


@pytest.fixture
def folder(tmp_path: pathlib.Path, samples: list[support.Sample]) -> pathlib.Path:
    return support.save_samples(tmp_path / "samples", samples)


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs time nothing unless the configuration asks for it: it takes half a second each time, and what the machine is
    fast at is of no concern here."""
    quantize = detent._core.quantize

    def run(options: dict, *rest: object) -> object:
        defaults = {
            "bench": False,
            **({} if {"float_type", "weights_only", "activations"} & set(options) else {"optimize_for": "size"}),
        }
        return quantize({**defaults, **options}, *rest)

    monkeypatch.setattr(detent._core, "quantize", run)
