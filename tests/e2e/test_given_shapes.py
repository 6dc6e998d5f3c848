"""What --shape says holds for samples as for the model: samples of other sizes are told as such before anything is written, and
rows are put together where that is all that differs. In every form and for every target."""

import subprocess
from pathlib import Path

import graphs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import support
from failures import BAD_INPUT, USAGE, Place
from onnx import helper, numpy_helper
from support import DETENT, save_samples

FORMS: dict[str, list[object]] = {
    "default": [],
    "plain": ["--preset", "plain"],
    "16 bits": ["--activation-type", "int16", "--optimize-for", "size"],
    "float16": ["--float", 16],
    "bfloat16": ["--float", "bf16"],
    "int8 among float16": ["--float", 16, "--preset", "balanced", "--optimize-for", "size"],
    "dynamic": ["--activations", "dynamic"],
    "blocks": ["--weights-only", "--block-size", 32],
    "blocks in float16": ["--weights-only", "--block-size", 32, "--float", 16],
    "block floats": ["--set", "block-float=mxint8"],
    "tuned": ["--finetune", "adaround", "--optimize-for", "size"],
    **{
        name: ["--target", name, *(["--preset", "none"] if name in ("coreml", "amd-npu:bf16") else [])]
        for name in ("openvino", "qnn", "tensorrt", "coreml", "amd-npu:xint8", "amd-npu:a8w8", "amd-npu:bfp16", "amd-npu:bf16")
    },
}
WIDTH, LENGTH = 32, 8


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    b = graphs.Builder(3)
    h = b.add("Relu", b.add("MatMul", "x", b.weight("w", WIDTH, WIDTH)))
    onnx.save(
        b.model({"x": (graphs.FLOAT, ["n", "t", WIDTH])}, [b.add("MatMul", h, b.weight("v", WIDTH, WIDTH))]),
        place.inputs / "m.onnx",
    )
    rng = np.random.default_rng(0)
    samples = [{"x": rng.normal(size=(1, LENGTH, WIDTH)).astype(np.float32)} for _ in range(8)]
    support.save_samples(place.inputs / "data", samples)
    return place


@pytest.mark.parametrize("form", FORMS)
def test_samples_of_other_sizes_are_bad_input(place: Place, form: str) -> None:
    says = rf"000.npz' key 'x': input 'x' expects float32 \[1, 5, {WIDTH}\], found float32 \[1, {LENGTH}, {WIDTH}\]"
    given = [*FORMS[form], "--shape", f"x:1x5x{WIDTH}", "--no-bench"]
    place.refused(BAD_INPUT, says, place.inputs / "m.onnx", place.inputs / "data", *given)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_put_together(place: Place, form: str) -> None:
    """As many as --shape says; the first two are one sample of the written model."""
    data, output = place.inputs / "data", place.output
    command = ["quantize", place.inputs / "m.onnx", "-o", output, "--calibration-data", data, *FORMS[form], "--no-bench"]
    done = support.detent(*command, "--shape", f"x:2x{LENGTH}x{WIDTH}")
    assert done.returncode == 0, done.stderr
    made = onnx.load(output).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in made] == [2, LENGTH, WIDTH]
    if "amd" in form or "b" in form[:5]:
        return  # others than ONNX Runtime's CPU run it
    compared = support.detent("compare", place.inputs / "m.onnx", output, "--calibration-data", data, "--min-sqnr", 10)
    assert compared.returncode == 0, compared.stderr


@pytest.mark.parametrize("form", ["default", "float16", "dynamic", "blocks", "block floats", "amd-npu:bfp16"])
@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (f"x:1x{LENGTH}x16", f"axis 2 of input 'x' is {WIDTH}, not 16"),
        (f"x:1x{LENGTH}", "input 'x' has 3 dimensions, not 2"),
        (f"y:1x{LENGTH}x{WIDTH}", "has no input 'y'"),
    ],
)
def test_what_contradicts_the_model_is_told(place: Place, form: str, shape: str, says: str) -> None:
    place.refused(USAGE, says, place.inputs / "m.onnx", place.inputs / "data", *FORMS[form], "--shape", shape)


@pytest.mark.parametrize(
    "options", [["--shape", "x:4x8"], ["--format", "fp16", "--set", "no-keep-io-types"]], ids=["shape", "fp16"]
)
def test_what_a_model_says_of_its_inputs_and_outputs_stays(options: list[str], tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(0, 0.2, (8, 16)).astype(np.float32), "w")
    ports = [helper.make_tensor_value_info(name, 1, ["n", width], f"what {name} holds") for name, width in (("x", 8), ("y", 16))]
    for port in ports:
        port.type.denotation = "TENSOR"
        port.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "m")], "g", ports[:1], ports[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    samples = [{"x": np.ones((4, 8), np.float32)}] * 8
    data = save_samples(tmp_path / "data", samples)
    command = [
        DETENT,
        "quantize",
        tmp_path / "m.onnx",
        "-o",
        tmp_path / "q.onnx",
        "--calibration-data",
        data,
        "--no-bench",
        *options,
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    written = onnx.load(tmp_path / "q.onnx").graph
    for port in (*written.input, *written.output):
        assert port.doc_string == f"what {port.name} holds" and port.type.denotation == "TENSOR", port
        assert port.type.tensor_type.shape.dim[0].denotation == "DATA_BATCH", port


@pytest.mark.parametrize("options", [[], ["--shape", f"x:1x{LENGTH}x{WIDTH}"], ["--weights-only", "--float", 16]], ids=str)
def test_ranges_of_lists_of_one_number(tmp_path: Path, options: list[object]) -> None:
    """ONNX Runtime computes with such lists, but loads no model in which the limit follows from known shapes."""
    b = graphs.Builder(3)
    begin, one, axis = (b.constant(name, [n], np.int64) for name, n in (("begin", 0), ("one", 1), ("axis", 1)))
    place = b.add("Range", begin, b.add("Gather", b.add("Shape", "x"), axis), one)
    place = b.add("Unsqueeze", b.add("Cast", place, to=graphs.FLOAT), one)
    h = b.add("MatMul", b.add("Add", "x", place), b.weight("w", WIDTH, WIDTH))
    model, shape = tmp_path / "m.onnx", [1, "t", WIDTH]
    onnx.save(b.model({"x": (graphs.FLOAT, shape)}, [b.add("MatMul", h, b.weight("v", WIDTH, WIDTH))]), model)
    rng = np.random.default_rng(0)
    data = save_samples(tmp_path / "data", [{"x": rng.normal(size=(1, LENGTH, WIDTH)).astype(np.float32)} for _ in range(4)])
    support.quantize(model, tmp_path / "o.onnx", data, *options)
    expected, found = (
        ort.InferenceSession(path).run(None, support.load_samples(data)[0])[0] for path in (model, tmp_path / "o.onnx")
    )
    assert np.square(expected).sum() > 300 * np.square(expected - found).sum()
    assert support.detent("plan", model, "--calibration-data", data, *options).returncode == 0
