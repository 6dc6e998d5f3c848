"""What --shape says holds for samples as for the model: samples of other sizes are told as such before anything is written, and
rows are put together where that is all that differs. In every form and for every target."""

from pathlib import Path

import graphs
import numpy as np
import onnx
import pytest
import support
from failures import BAD_INPUT, USAGE, Place

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
