"""A folder with a small model and samples to break, for the tests of errors."""

import graphs
import onnx
import pytest
import support
from failures import Place
from support import Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def model(place: Place) -> Path:
    onnx.save(graphs.small_cnn(), place.inputs / "model.onnx")
    return place.inputs / "model.onnx"


@pytest.fixture
def data(place: Place) -> Path:
    return support.save_samples(place.inputs / "data", graphs.cnn_samples())
