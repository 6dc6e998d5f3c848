"""detent.search(): the same front as the command's, as a table that draws itself."""

import json
import pathlib

import detent
import onnx
import pytest
import support


@pytest.fixture
def found(model: pathlib.Path, samples: list[support.Sample], tmp_path: pathlib.Path) -> detent.SearchResult:
    return detent.search(model, tmp_path / "found", samples, formats=["int8", "a16w8"], points=2)


def test_front_and_chosen_models_are_there(found: detent.SearchResult, tmp_path: pathlib.Path) -> None:
    assert {point.name for point in found.points} >= {"fp32", "int8", "a16w8"}
    assert found.front
    assert [point.seconds for point in found.points] == sorted(point.seconds for point in found.points)
    for why, point in found.chosen.items():
        assert why in point.chosen
        assert pathlib.Path(point.written).stat().st_size == point.bytes
    assert (tmp_path / "found" / "front.json").is_file()


def test_prints_a_table_and_draws_itself(found: detent.SearchResult) -> None:
    assert "int8" in str(found)
    assert "on the front" in str(found)
    assert found._repr_html_().startswith("<iframe srcdoc=")


def test_limits_that_cannot_be_met_raise(model: pathlib.Path, samples: list[support.Sample], tmp_path: pathlib.Path) -> None:
    with pytest.raises(detent.ResourceError, match="the nearest is"):
        detent.search(model, tmp_path / "found", samples, formats=["int8"], points=1, max_size="1KiB")
    assert not (tmp_path / "found").exists()


def test_machines_are_a_table(model: pathlib.Path, samples: list[support.Sample], tmp_path: pathlib.Path) -> None:
    config = detent.Config(kernel_table=tmp_path / "here.json")
    words = {"config": config, "formats": ["q8"], "points": 1}
    detent.search(model, tmp_path / "first", samples, **words)
    here = {"name": "here", "kernel-table": "here.json", "threads": 2, "price": 0.5}
    (tmp_path / "machines.json").write_text(json.dumps({"machines": [here]}))
    found = detent.search(model, tmp_path / "found", samples, machines=tmp_path / "machines.json", requests=50, **words)
    (served,) = found.machines
    assert served.needed * served.requests >= 50
    assert found.chosen["on here"].name == served.model
    assert "here" in str(found)


def test_node_formats_are_those_of_the_command(model: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    name = next(node.name or node.output[0] for node in onnx.load(model).graph.node if node.op_type == "Conv")
    detent.quantize(model, tmp_path / "a.onnx", folder, detent.Config(node_formats=[f"{name}=int8"]))
    result = support.detent(
        "quantize", model, "-o", tmp_path / "b.onnx", "--node-formats", f"{name}=int8", "--calibration-data", folder
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
