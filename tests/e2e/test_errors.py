"""Every bad input: the right exit code, one line that names the culprit and says what to change, nothing left behind."""

import subprocess
from collections.abc import Callable

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, DEVICE, USAGE, Place
from onnx import TensorProto, helper, numpy_helper
from support import Path

# The model.


def missing(_path: Path) -> str:
    return "No such file"


def directory(path: Path) -> str:
    path.mkdir()
    return "is a directory that holds no ONNX model; give a model's file"


def empty(path: Path) -> str:
    path.touch()
    return "empty"


def text(path: Path) -> str:
    path.write_text("# A model\n\nThis is the description of a model, not a model.\n")
    return "not an ONNX model|ONNX"


def random_bytes(path: Path) -> str:
    path.write_bytes(np.random.default_rng(13).bytes(5000))
    return "ONNX"


def other_protobuf(path: Path) -> str:
    path.write_bytes(numpy_helper.from_array(np.zeros((3, 4), np.float32), "a tensor").SerializeToString())
    return "ONNX|graph"


@pytest.mark.parametrize("make", [missing, directory, empty, text, random_bytes, other_protobuf])
def test_file_that_is_no_model(make: Callable[[Path], str], place: Place, data: Path) -> None:
    path = place.inputs / "broken.onnx"
    says = make(path)
    assert "broken.onnx" in place.refused(BAD_INPUT, says, path, data)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999])
def test_truncated_model(share: float, place: Place, model: Path, data: Path) -> None:
    whole = model.read_bytes()
    model.write_bytes(whole[: max(1, int(share * len(whole)))])
    assert "model.onnx" in place.refused(BAD_INPUT, "truncated|damaged|cut|ends|incomplete|ONNX", model, data)


def save(path: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    made = graphs.small_cnn()
    change(made)
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(value: float, place: Place, data: Path) -> None:
    def spoil(made: onnx.ModelProto) -> None:
        tensor = next(t for t in made.graph.initializer if t.name == "w2")
        array = numpy_helper.to_array(tensor).copy()
        array[3, 2, 1, 0] = value
        tensor.CopyFrom(numpy_helper.from_array(array, "w2"))

    path = save(place.inputs / "bad.onnx", spoil)
    place.refused(BAD_INPUT, r"'w2'.*conv_b.*--exclude-nodes", path, data)
    report = support.quantize(path, place.output, data, "--set", "allow-nonfinite", "--exclude-nodes", "conv_b")
    assert report["nodes_quantized"] > 0


def test_quantized_already(place: Place, model: Path, data: Path) -> None:
    done = place.inputs / "done.onnx"
    support.quantize(model, done, data)
    place.refused(BAD_INPUT, "done.onnx.*quantized already.*float model", done, data)


def test_nothing_to_quantize(place: Place, data: Path) -> None:
    b = graphs.Builder()
    path = place.inputs / "plain.onnx"
    onnx.save(b.model({"x": (TensorProto.FLOAT, ["N", 3, 16, 16])}, [b.add("Neg", "x")]), path)
    place.refused(BAD_INPUT, "plain.onnx.*Neg", path, data)


def test_operator_that_the_runtime_does_not_know(place: Place, data: Path) -> None:
    def add(made: onnx.ModelProto) -> None:
        made.graph.node.append(helper.make_node("Frobnicate", ["x"], ["y"], name="strange", domain="my.company"))
        made.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
        made.opset_import.append(helper.make_opsetid("my.company", 1))

    place.refused(BAD_INPUT, "odd.onnx.*Frobnicate", save(place.inputs / "odd.onnx", add), data)


def test_value_that_nothing_makes(place: Place, data: Path) -> None:
    def cut(made: onnx.ModelProto) -> None:
        made.graph.node[3].input[0] = "nobody"

    place.refused(BAD_INPUT, "loose.onnx.*nobody", save(place.inputs / "loose.onnx", cut), data)


@pytest.mark.parametrize("location", ["../secret.bin", "{inputs}/../secret.bin", "link.bin", "folder/weights.bin", "missing.bin"])
def test_external_data_outside(location: str, place: Place, data: Path) -> None:
    """Weights may only come from below the model's own folder."""
    secret = place.inputs.parent / "secret.bin"
    secret.write_bytes(bytes(8 * 3 * 3 * 3 * 4))
    (place.inputs / "link.bin").symlink_to(secret)
    (place.inputs / "folder").symlink_to(place.inputs.parent)
    location = location.format(inputs=place.inputs)

    def point_outside(made: onnx.ModelProto) -> None:
        tensor = next(t for t in made.graph.initializer if t.name == "w1")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    place.refused(BAD_INPUT, "'w1'|bin", save(place.inputs / "model.onnx", point_outside), data)


# The samples.


def write(folder: Path, **arrays: np.ndarray) -> Path:
    folder.mkdir()
    np.savez(folder / "one.npz", **arrays)
    return folder


GOOD = np.zeros((1, 3, 16, 16), np.float32)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"image": GOOD}, "one.npz.*'x'"),
        ({"x": GOOD, "y": GOOD}, "one.npz.*'y' is not an input"),
        ({"x": np.zeros((1, 16, 16, 3), np.float32)}, r"one.npz.*'x' expects.*transpose\(0, 3, 1, 2\)"),
        ({"x": np.zeros((1, 3, 16, 17), np.float32)}, "one.npz.*'x' expects.*17"),
        ({"x": np.zeros((1, 3, 16), np.float32)}, "one.npz.*'x' expects"),
        ({"x": GOOD.astype(np.float64)}, r"one.npz.*float64.*astype\('float32'\)"),
        ({"x": GOOD.astype(np.uint8)}, "one.npz.*uint8"),
    ],
)
def test_sample_that_does_not_fit(arrays: dict[str, np.ndarray], says: str, place: Place, model: Path) -> None:
    place.refused(BAD_INPUT, says, model, write(place.inputs / "bad", **arrays))


def test_missing_input(place: Place) -> None:
    path = place.inputs / "transformer.onnx"
    onnx.save(graphs.transformer(), path)
    place.refused(BAD_INPUT, "one.npz.*'mask'", path, write(place.inputs / "half", ids=np.zeros((1, 4), np.int64)))


def test_index_out_of_range(place: Place) -> None:
    """What only shows when the model runs: the sample is named."""
    path = place.inputs / "transformer.onnx"
    onnx.save(graphs.transformer(), path)
    wrong = write(place.inputs / "wrong", ids=np.full((1, 4), 99, np.int64), mask=np.ones((1, 1, 1, 4), np.int64))
    place.refused(BAD_INPUT, "one.npz.*99", path, wrong)


def test_no_samples(place: Place, model: Path) -> None:
    place.refused(BAD_INPUT, "nowhere", model, place.inputs / "nowhere")
    (place.inputs / "void").mkdir()
    place.refused(BAD_INPUT, "void.*is empty", model, place.inputs / "void")
    (place.inputs / "void" / "photo.jpg").write_bytes(b"\xff\xd8")
    place.refused(BAD_INPUT, "void.*jpg", model, place.inputs / "void")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sample_that_is_not_finite(value: float, place: Place, model: Path) -> None:
    samples = graphs.cnn_samples(5)
    samples[3]["x"][0, 1, 2, 3] = value
    data = support.save_samples(place.inputs / "spoilt", samples)
    place.refused(BAD_INPUT, "(?=.*'x')(?=.*003.npz).*--set allow-nonfinite", model, data)
    support.quantize(model, place.output, data, "--set", "allow-nonfinite")


@pytest.mark.parametrize("name", ["000.npz", "000.npy"])
def test_damaged_sample(name: str, place: Place, model: Path) -> None:
    folder = place.inputs / "damaged"
    folder.mkdir()
    (np.savez if name.endswith("z") else np.save)(folder / name, GOOD)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    place.refused(BAD_INPUT, "000.np.*(truncated|damaged)", model, folder)


# The command line.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--frobnicate"], "frobnicate"),
        (["--nodes", "^conv_(a"], r"\^conv_\(a.*regular expression"),
        (["--nodes", "nobody"], "--nodes.*'nobody'"),
        (["--exclude-nodes", "^nobody.*"], r"--exclude-nodes.*\^nobody"),
        (["--exclude-nodes", "conv"], "--exclude-nodes.*'conv'"),
        (["--op-types", "Convolution"], "--op-types.*'Convolution'"),
        (["--exclude-op-types", "conv"], "--exclude-op-types.*'conv'"),
        (["--activation-type", "int7"], "--activation-type.*int7"),
        (["--method", "guess"], "guess.*minmax"),
        (["--threads", "-1"], "--threads"),
        (["--threads", "many"], "--threads"),
        (["--samples", "-3"], "--samples"),
        (["--batch-size", "-1"], "--batch-size"),
        (["--set", "external-data-threshold=much"], "much"),
        (["--work-dir", "/nonexistent/work"], "/nonexistent/work.*--work-dir"),
        (["--profile", "/nonexistent/p.yaml"], "/nonexistent/p.yaml"),
        (["--set", "prepared-output=/nonexistent/p.onnx"], "/nonexistent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options(options: list[str], says: str, place: Place, model: Path, data: Path) -> None:
    place.refused(USAGE, says, model, data, *options)


def test_no_arguments() -> None:
    for arguments in ([], ["quantize"], ["frobnicate"]):
        result = support.detent(*arguments)
        assert (result.returncode, len(result.stderr.splitlines())) == (USAGE, 1), result.stderr


@pytest.mark.parametrize("library", ["/nonexistent", "{model}", "libc.so.6"])
def test_runtime_library(library: str, place: Place, model: Path, data: Path) -> None:
    library = library.format(model=model)
    place.environment["DETENT_ONNXRUNTIME"] = library
    place.refused(DEVICE, library.replace(".", r"\."), model, data)
    del place.environment["DETENT_ONNXRUNTIME"]
    place.refused(DEVICE, library.replace(".", r"\."), model, data, "--runtime", library)


@pytest.mark.parametrize("option", ["--samples", "--batch-size", "--threads", "--layers"])
def test_compare_refuses_negative_counts(option: str, model: Path, data: Path) -> None:
    command = [str(support.DETENT), "compare", str(model), str(model), "--calibration-data", str(data), option, "-3"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == USAGE
    assert run.stderr.startswith(f"detent: error: {option} must not be negative")


def test_a_mistyped_model_is_what_is_told_first(tmp_path: Path) -> None:
    told = support.detent("quantize", tmp_path / "nowhere.onnx", "-o", tmp_path / "q.onnx")
    assert told.returncode == 3 and "cannot open model" in told.stderr and "nowhere.onnx" in told.stderr
