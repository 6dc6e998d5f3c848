"""A small model with samples for the tests of the Python package; the helpers of the end-to-end tests serve here too."""

import pathlib

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
