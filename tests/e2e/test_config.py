"""Options in a YAML file."""

import pytest
import support
from support import Path

USAGE = 2
OPTIONS = {
    "preset: plain\nmethod: mse\nper-tensor: true\nexclude_nodes: [conv_a, head]\nsamples: 3\nweight-range: full\n": [
        *("--preset", "plain", "--method", "mse", "--per-tensor", "--exclude-nodes", "conv_a,head", "--samples", "3")
    ],
    "preset: balanced\nfinetune: gptq\ndamping: 0.02\ntensor-method: x=minmax\n": [
        *("--preset", "balanced", "--finetune", "gptq", "--set", "damping=0.02", "--set", "tensor-method=x=minmax")
    ],
}


def quantized(model: Path, data: Path, output: Path, *options: object) -> str:
    result = support.detent("quantize", model, "-o", output, "--calibration-data", data, "--threads", 1, *options)
    assert result.returncode == 0, result.stderr
    return support.sha256(output)


@pytest.mark.parametrize("text", OPTIONS)
def test_a_file_says_what_options_say(model: Path, data: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    preset = text.split()[1]  # named on the command line too, which here adds one of its own otherwise
    by_file = quantized(model, data, tmp_path / "a.onnx", "--config", file, "--preset", preset)
    assert by_file == quantized(model, data, tmp_path / "b.onnx", *OPTIONS[text])


def test_the_command_line_counts(model: Path, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("method: entropy\nsamples: 1\n")
    options = ["--method", "minmax", "--samples=4"]
    by_both = quantized(model, data, tmp_path / "a.onnx", f"--config={file}", *options)
    assert by_both == quantized(model, data, tmp_path / "b.onnx", *options)


@pytest.mark.parametrize(
    ("says", "text"),
    [
        ("not a map of options", "- method\n"),
        ("line 2", "method: mse\n  bad: [\n"),
        ("neither a value nor a list", "method: {a: b}\n"),
        ("names another file", "config: other.yaml\n"),
        ("'best' is not one of its values", "method: best\n"),
        ("methd", "methd: mse\n"),
    ],
)
def test_errors(model: Path, data: Path, tmp_path: Path, says: str, text: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, "--config", file)
    assert (result.returncode, result.stderr.count("\n")) == (USAGE, 1)
    assert says in result.stderr


def test_a_missing_file(model: Path, data: Path, tmp_path: Path) -> None:
    result = support.detent("quantize", model, "-o", tmp_path / "q.onnx", "--calibration-data", data, "--config", "gone.yaml")
    assert (result.returncode, "cannot be read" in result.stderr) == (USAGE, True)
