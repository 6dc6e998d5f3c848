"""A small model with samples for the tests of the Python package; the helpers of the end-to-end tests serve here too."""

import pathlib
import shutil
import sys

import decoders
import detent
import failures
import graphs
import onnx
import pytest
import support

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
failures.take_signals()


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


@pytest.fixture
def letters_tokenizer(tmp_path: pathlib.Path) -> pathlib.Path:
    """A tokenizer whose tokens are letters, with one more before each text."""
    sys.path.append(str(support.LANGUAGE))
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers are missing; scripts/setup.sh runtimes fetches them")
    vocabulary = {"<s>": 0, **{letter: i for i, letter in enumerate(LETTERS, 1)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="."))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def letters_decoder(tmp_path: pathlib.Path, letters_tokenizer: pathlib.Path) -> pathlib.Path:
    """A folder with a decoder of these tokens."""
    made = decoders.genai_folder(tmp_path / "source")
    shutil.copy(letters_tokenizer, made / "tokenizer.json")
    return made


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs time nothing unless the configuration asks for it: it takes half a second each time, and what the machine is
    fast at is of no concern here."""
    quantize = detent._core.quantize

    def run(options: dict, *rest: object) -> object:
        defaults: dict[str, object] = {"bench": False}
        if not {"format", "float_type", "weights_only", "activations", "family", "block_float", "node_formats"} & set(options):
            defaults["optimize_for"] = "size"
            types = {options.get(name, "int8") for name in ("activation_type", "weight_type")}
            if types <= {"int8", "uint8"} and not {"target", "quant_format"} & set(options):
                defaults["format"] = "int8"  # not weights alone
        return quantize({**defaults, **options}, *rest)

    monkeypatch.setattr(detent._core, "quantize", run)
