"""Several results of one model from one run: each is what a single run writes, in folders that programs read."""

import json
import subprocess

import decoders
import numpy as np
import onnx
import pytest
import support
from support import Path

SINGLE = {
    "fp16": ["--float", 16],
    "q8": ["--activations", "dynamic"],
    "int8": ["--activations", "dynamic"],
    "uint8": ["--activations", "dynamic", "--weight-type", "uint8"],
    "q4": ["--format", "q4"],
    "q4f16": ["--format", "q4f16"],
}
FILES = {name: f"model_{'quantized' if name == 'q8' else name}.onnx" for name in SINGLE}


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    np.save(tmp_path / "ids.npy", np.random.default_rng(1).integers(0, decoders.VOCABULARY, (12, 32)))
    return tmp_path / "ids.npy"


def family(source: Path, output: Path, members: str, *options: object) -> dict:
    result = support.detent("quantize", source, "-o", output, "--family", members, "--json", *options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def single(source: Path, output: Path, name: str, *options: object) -> None:
    """What makes a member by itself, with the preset that users get."""
    words = [*SINGLE[name], *options, *(["--no-bench"] if name != "fp16" else [])]
    command = [support.DETENT, "quantize", source, "-o", output, *words]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr


def refusal(*words: object) -> str:
    result = support.detent("quantize", *words)
    assert result.returncode == 2, result.stderr
    return result.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("samples", [True, False], ids=["samples", "no-samples"])
def test_members_are_what_single_runs_write(tmp_path: Path, ids: Path, samples: bool) -> None:
    onnx.save(decoders.decoder(), tmp_path / "model.onnx")
    data = ["--calibration-data", ids, "--batch-size", 1] if samples else []
    result = family(tmp_path / "model.onnx", tmp_path / "family", ",".join(SINGLE), *data, "--bench")
    assert [member["member"] for member in result["family"]] == list(SINGLE)
    assert sorted(path.name for path in (tmp_path / "family").iterdir()) == sorted(FILES.values())
    for member in result["family"]:
        name = member["member"]
        assert Path(member["output"]) == tmp_path / "family" / FILES[name]
        assert ("latency" in member) == (name in ("q8", "int8", "uint8", "q4"))
        single(tmp_path / "model.onnx", tmp_path / f"{name}.onnx", name, *data)
        assert (tmp_path / f"{name}.onnx").read_bytes() == Path(member["output"]).read_bytes(), name
    alone = family(tmp_path / "model.onnx", tmp_path / "alone", "q4f16,fp16", *data)
    assert alone["samples"] == (12 if samples else 0)
    for name in ("q4f16", "fp16"):
        assert (tmp_path / "alone" / FILES[name]).read_bytes() == (tmp_path / "family" / FILES[name]).read_bytes()


def test_options_go_to_the_members_that_know_them(tmp_path: Path, ids: Path) -> None:
    onnx.save(decoders.decoder(), tmp_path / "model.onnx")
    options = ["--block-size", 64, "--set", "weight-symmetric", "--set", "no-keep-io-types"]
    family(tmp_path / "model.onnx", tmp_path / "family", "fp16,q4", *options)
    for name, more in (("fp16", options[-2:]), ("q4", options[:-2])):
        single(tmp_path / "model.onnx", tmp_path / f"{name}.onnx", name, *more)
        assert (tmp_path / f"{name}.onnx").read_bytes() == (tmp_path / "family" / FILES[name]).read_bytes()


def test_folder_of_transformers_js(tmp_path: Path) -> None:
    """As transformers.js reads it: a file for each dtype, and for each file whether it has data."""
    source, output = decoders.transformers_folder(tmp_path / "source"), tmp_path / "result"
    result = family(source, output, "fp32,fp16,q8,q4")
    assert result["notes"] == []  # the q4 that was there is made anew
    names = ["model.onnx", *(FILES[name] for name in ("fp16", "q8", "q4"))]
    assert sorted(contents(output)) == sorted(["config.json", *(f"onnx/{n}{d}" for n in names for d in ("", "_data"))])
    settings = json.loads((output / "config.json").read_text())["transformers.js_config"]
    assert settings == {"use_external_data_format": dict.fromkeys(names, True)}
    sample = {"input_ids": np.array([[5, 17, 99]]), "attention_mask": np.ones((1, 3), np.int64), **decoders.empty_cache()}
    found = [support.outputs(support.load(output / "onnx" / name), [sample]) for name in names]
    (given,) = support.outputs(support.load(source / "onnx" / "model.onnx"), [sample])
    for one, other in zip(found[0][0], given, strict=True):
        np.testing.assert_array_equal(one, other)
    for name, least, outputs in zip(names[1:], (50, 15, 5), found[1:], strict=True):
        assert support.sqnr(found[0], outputs) > least, name


def test_configuration_tells_of_flags_and_caches(tmp_path: Path) -> None:
    source, output = decoders.transformers_folder(tmp_path / "source"), tmp_path / "result"
    cache = {"q4f16": "float16", "fp16": "float16"}
    config = {"transformers.js_config": {"use_external_data_format": True, "kv_cache_dtype": cache}}
    (source / "config.json").write_text(json.dumps(config))
    onnx.save(decoders.decoder(), source / "onnx" / "embed_tokens.onnx")
    family(source, output, "fp16,q8")
    settings = json.loads((output / "config.json").read_text())["transformers.js_config"]
    data = {name: True for name in ("embed_tokens.onnx", FILES["fp16"], FILES["q8"])}
    assert settings["use_external_data_format"] == data
    assert settings["kv_cache_dtype"] == {"q4f16": "float16", "fp16": "float32", "q8": "float32"}
    family(source, tmp_path / "half", "fp16,q8", "--set", "no-keep-io-types")
    settings = json.loads((tmp_path / "half" / "config.json").read_text())["transformers.js_config"]
    assert settings["kv_cache_dtype"] == cache


def test_folder_of_onnxruntime_genai(tmp_path: Path, ids: Path) -> None:
    """Its configuration names one model, so each member is a folder: the one that a single run writes."""
    source, output = decoders.genai_folder(tmp_path / "source"), tmp_path / "result"
    data = ["--calibration-data", ids, "--batch-size", 1]
    members = ("fp32", "fp16", "q8", "q4", "q4f16")
    family(source, output, ",".join(members), *data)
    assert sorted(path.name for path in output.iterdir()) == sorted(members)
    for name in members[1:]:
        single(source, tmp_path / name, name, *data)
        assert contents(output / name) == contents(tmp_path / name), name
    assert contents(output / "fp32").keys() == contents(source).keys()
    family(source, tmp_path / "one", "q4", *data)
    assert contents(tmp_path / "one" / "q4") == contents(tmp_path / "q4")


def test_refusals(tmp_path: Path) -> None:
    onnx.save(decoders.decoder(), tmp_path / "m.onnx")
    model, out = tmp_path / "m.onnx", tmp_path / "out"
    assert "no MatMulBnb4" in refusal(model, "-o", out, "--family", "q4,bnb4")
    assert "did you mean q8" in refusal(model, "-o", out, "--family", "q9")
    assert "'q4' twice" in refusal(model, "-o", out, "--family", "q4,q4")
    assert "is a folder" in refusal(model, "-o", tmp_path / "out.onnx", "--family", "q4,q8")
    said = (["--bits", 8], ["--float", 16], ["--preset", "plain"], ["--max-size", "1MiB"], ["--weight-type", "uint8"])
    for option in (*said, ["--set", "block-float=bfp16"]):
        name = "--set block-float" if option[0] == "--set" else option[0]
        assert f"{name} does not go with --family" in refusal(model, "-o", out, "--family", "q4,fp16", *option)
    assert "--method means nothing to any member" in refusal(model, "-o", out, "--family", "q4,fp16", "--method", "mse")
    assert "needs samples" in refusal(model, "-o", out, "--family", "q4,fp16", "--set", "weights-method=gptq")
    assert "-o -" in refusal(model, "-o", "-", "--family", "q4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_nothing_is_left_where_a_member_fails(tmp_path: Path) -> None:
    """The last of them: a weight that is not finite stops blocks, and what was written before goes."""
    model = decoders.decoder()
    product = next(n.input[1] for n in model.graph.node if n.op_type == "MatMul")
    table = next(t for t in model.graph.initializer if t.name == product)
    values = onnx.numpy_helper.to_array(table).copy()
    values[0, 0] = np.nan
    table.CopyFrom(onnx.numpy_helper.from_array(values, table.name))
    onnx.save(model, tmp_path / "m.onnx")
    result = support.detent("quantize", tmp_path / "m.onnx", "-o", tmp_path / "out", "--family", "fp16,q4")
    assert result.returncode == 3 and "NaN" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]
