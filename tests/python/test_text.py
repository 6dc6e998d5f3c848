"""Text as calibration data."""

import fcntl
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import detent
import graphs
import hostile as hostile_files
import numpy as np
import onnx
import pytest
import support
from conftest import LETTERS
from detent import _command_text, _runtime
from onnx import TensorProto

sys.path.append(str(support.LANGUAGE))
pytest.importorskip("tokenizers", reason="tokenizers are missing; scripts/setup.sh runtimes fetches them")

TEXT = "the quick brown fox jumps over the lazy dog. " * 30


@pytest.fixture
def folder(letters_decoder: pathlib.Path) -> pathlib.Path:
    return letters_decoder


@pytest.fixture
def text(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def command(*words: object, **environment: str) -> support.Ran:
    ran = subprocess.run(
        [sys.executable, "-m", "detent", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(support.LANGUAGE)]), **environment},
        check=False,
    )
    return support.notes_apart(ran)


def test_text_becomes_windows(folder, text):
    windows = [sample["input_ids"] for sample in detent.data.text(text, folder, 11)]
    assert len(windows) == len(TEXT) // 10
    assert {window.shape for window in windows} == {(1, 11)}
    assert {int(window[0, 0]) for window in windows} == {0}
    ids = np.concatenate([window[0, 1:] for window in windows])
    assert "".join(LETTERS[i - 1] for i in ids) == TEXT[: len(ids)]
    spread = list(detent.data.text(text, folder, 11, count=3))
    assert [sample["input_ids"].tolist() for sample in spread] == [windows[i].tolist() for i in (0, 67, 134)]


def test_the_command_takes_text(folder, text, tmp_path):
    cache = tmp_path / "cache"
    options = ["--weights-only", "--no-bench", "--samples", 5]
    result = command(
        *("quantize", folder, "-o", tmp_path / "by-command", "--calibration-text", text, "--text-length=33", *options),
        XDG_CACHE_HOME=str(cache),
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert not list((cache / "detent").glob("text-*"))
    config = {"weights_only": detent.WeightsOnly(), "batch_size": 1, "bench": False}
    detent.quantize(folder, tmp_path / "by-call", detent.data.text(text, folder, 33, count=5), config)
    for name in ("model.onnx", "model.onnx.data"):
        assert (tmp_path / "by-command" / name).read_bytes() == (tmp_path / "by-call" / name).read_bytes()
    compared = command("compare", folder, tmp_path / "by-call", f"--calibration-text={text}", "--text-length", 33)
    assert compared.stdout.startswith("perplexity ")
    held_out = detent.data.text(text, folder, 33)
    told = detent.compare(folder, tmp_path / "by-call", held_out, outputs_only=True)
    assert told.next_tokens.positions == 32 * len(held_out)
    assert (
        f"perplexity {told.next_tokens.perplexity:.4f}, of the float model {told.next_tokens.float_perplexity:.4f}"
        in compared.stdout
    )
    assert "perplexity" in str(told)


def test_lines_become_samples_of_an_encoder(tmp_path, letters_tokenizer):
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("the quick brown fox\n\n  \njumps over\nthe lazy dog.\n")
    rows = [sample["input_ids"] for sample in detent.data.lines(sentences, letters_tokenizer, 12)]
    assert [row.shape for row in rows] == [(1, 12), (1, 11), (1, 12)]
    assert "".join(LETTERS[i - 1] for i in rows[1][0, 1:]) == "jumps over"
    assert len(detent.data.lines(sentences, letters_tokenizer, count=2)) == 2

    onnx.save(encoder(), tmp_path / "encoder.onnx")
    words = ["--tokenizer", letters_tokenizer, "--text-length", 12, "--no-bench", "--preset", "plain"]
    result = command(
        *("quantize", tmp_path / "encoder.onnx", "-o", tmp_path / "a.onnx", "--calibration-text", sentences, *words),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert not list((tmp_path / "cache" / "detent").glob("text-*"))
    full = [{"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)} for row in rows]
    detent.quantize(tmp_path / "encoder.onnx", tmp_path / "b.onnx", full, {"preset": "plain"})
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def encoder() -> onnx.ModelProto:
    b = graphs.Builder(3)
    value = b.add("Gather", b.weight("embeddings", 30, 16), "input_ids")
    value = b.add("Add", value, b.add("Gather", b.weight("types", 2, 16), "token_type_ids"))
    mask = b.add("Unsqueeze", b.add("Cast", "attention_mask", to=TensorProto.FLOAT), b.constant("last", [2], np.int64))
    value = b.add("Mul", b.add("MatMul", value, b.weight("up", 16, 32)), mask)
    inputs = {name: (TensorProto.INT64, ["N", "tokens"]) for name in ("input_ids", "attention_mask", "token_type_ids")}
    return b.model(inputs, [b.add("MatMul", value, b.weight("down", 32, 8))])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--calibration-text", "no.txt"], 3, "'no.txt' cannot be read as text"),
        (["--calibration-text", "text.txt", "--text-length", "x"], 2, "'x' is not a whole number"),
        (["--calibration-text", "text.txt", "--text-length", "5000"], 3, "less than one window"),
        (["--calibration-text", "text.txt", "--calibration-data", "x.npy"], 2, "were both given"),
        (["--calibration-text", "text.txt", "--runtime", "no.so"], 5, "no.so"),
        (["--calibration-text", "text.txt", "--set", "weights-method=worst"], 2, "worst"),  # the native command's own word
    ],
)
def test_what_is_wrong_is_said(folder, text, tmp_path, monkeypatch, words, code, says):
    monkeypatch.chdir(tmp_path)
    result = command("quantize", "source", "-o", "out", "--weights-only", "--no-bench", *words)
    assert result.returncode == code
    assert result.stderr.startswith("detent: error: ") and says in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_runtime_that_is_asked_for_tells_encoders_apart(tmp_path, letters_tokenizer):
    onnx.save(encoder(), tmp_path / "encoder.onnx")
    (tmp_path / "lines.txt").write_text("the quick brown fox\njumps over\n")
    runtime = os.environ.get("DETENT_ONNXRUNTIME") or _runtime.installed()
    words = ["--tokenizer", letters_tokenizer, "--calibration-text", tmp_path / "lines.txt", "--preset", "plain", "--json"]
    words += ["--no-bench", f"--runtime={runtime}"]
    command_line = ["quantize", tmp_path / "encoder.onnx", "-o", tmp_path / "q.onnx", *words]
    result = command(*command_line, XDG_CACHE_HOME=str(tmp_path), DETENT_ONNXRUNTIME="no.so")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["samples"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_it_before_the_binary_runs_leaves_nothing(folder, tmp_path, number):
    with (tmp_path / "long.txt").open("wb") as text:
        text.truncate(200 << 20)
    words = ["quantize", folder, "-o", tmp_path / "out", "--weights-only", "--calibration-text", tmp_path / "long.txt"]
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(support.LANGUAGE)])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "detent", *map(str, words)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    while not list(tmp_path.glob("cache/detent/text-*")):
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)
    child.send_signal(number)
    _, said = child.communicate(timeout=100)
    assert (child.returncode, said) == (130, "detent: error: interrupted\n")
    assert not list(tmp_path.glob("cache/detent/*"))


def test_a_model_without_tokenizer_is_refused(folder, text, tmp_path):
    (folder / "tokenizer.json").unlink()
    result = command("quantize", folder, "-o", tmp_path / "out", "--weights-only", "--calibration-text", text)
    assert (result.returncode, result.stderr.count("\n")) == (3, 1)
    assert "tokenizer.json' does not exist; give the folder of a model with its tokenizer" in result.stderr


def test_the_native_command_says_who_reads_text(folder, text, tmp_path):
    result = support.detent("quantize", folder, "-o", tmp_path / "out", "--weights-only", "--calibration-text", text)
    assert result.returncode == 2
    assert "run python3 -m detent" in result.stderr


@pytest.mark.parametrize("options", [["--tokenizer", "tokenizer.json"], ["--text-length", 33]], ids=lambda options: options[0])
def test_options_of_a_text_need_one(folder, tmp_path, options):
    for run in (support.detent, command):
        result = run("quantize", folder, "-o", tmp_path / "out", "--weights-only", *options)
        assert result.returncode == 2
        assert f"{options[0]} is for --calibration-text" in result.stderr


def hostile(tokenizer: pathlib.Path, path: pathlib.Path, **parts: object) -> pathlib.Path:
    content = json.loads((tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer).read_text())
    path.write_text(json.dumps({**content, **parts}))
    return path


LACKS_TOKEN = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "zz", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}
GROWS = {"type": "Replace", "pattern": {"String": "o"}, "content": "o" * (50 << 20)}


def quantizing(folder: pathlib.Path, text: object, output: pathlib.Path, *words: object) -> list[object]:
    options = ["--weights-only", "--no-bench", "--samples", 5, "--text-length", 33]
    return ["quantize", folder, "-o", output, "--calibration-text", text, *options, *words]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("panic", 3, "t.json' cannot be used as a tokenizer"),
        ("abort", 3, "the process that read the text"),
        ("nesting", 3, "cannot be read as a tokenizer"),
        ("tokenizer is a FIFO", 3, "not a regular file"),
        ("tokenizer is a folder", 3, "does not exist"),
        ("text is a FIFO", 3, "cannot be read as text: it is not a regular file"),
        ("text is a device", 3, "cannot be read as text: it is not a regular file"),
        ("text is a folder", 3, "cannot be read as text"),
        ("text has no end", 3, "more than 256 MiB"),
        ("text is no UTF-8", 3, "cannot be read as text"),
        ("digits", 2, "a number of 5000 digits is too large"),
        ("length", 3, "less than one window"),
        ("a long name of the tokenizer", 3, "does not exist"),
        ("a long name of the text", 3, "File name too long"),
        ("a long name of the model", 3, "File name too long"),
        ("the current folder is gone", 4, "cannot find the current folder"),
        ("cache is a file", 4, "cannot keep token ids in"),
        ("cache is a loop", 4, "set XDG_CACHE_HOME"),
    ],
)
def test_hostile_texts_and_tokenizers_end_in_one_line(what, code, says, folder, text, tmp_path):
    cache, words, given = tmp_path / "cache", [], text
    if what in ("panic", "abort"):
        parts = {"post_processor": LACKS_TOKEN} if what == "panic" else {"normalizer": GROWS}
        words = ["--tokenizer", hostile(folder, tmp_path / "t.json", **parts), "--isolate"]
    elif what == "nesting":
        (tmp_path / "t.json").write_text("[" * 200_000)
        words = ["--tokenizer", tmp_path / "t.json"]
    elif what == "tokenizer is a folder":
        (tmp_path / "t.json").mkdir()
        words = ["--tokenizer", tmp_path / "t.json"]
    elif what.endswith("FIFO"):
        os.mkfifo(tmp_path / "fifo")
        given, words = (tmp_path / "fifo", []) if what.startswith("text") else (text, ["--tokenizer", tmp_path / "fifo"])
    elif what == "text has no end":
        with text.open("wb") as file:
            file.truncate(1 << 40)
    elif what == "text is no UTF-8":
        text.write_bytes(b"\xff\xfe")
    elif what in ("text is a device", "text is a folder"):
        given = "/dev/zero" if what.endswith("device") else tmp_path
    elif what in ("digits", "length"):
        words = ["--samples", "9" * 5000] if what == "digits" else ["--text-length", "9" * 17]
    elif what == "a long name of the tokenizer":
        words = ["--tokenizer", tmp_path / ("n" * 300)]
    elif what == "a long name of the text":
        given = tmp_path / ("n" * 300)
    elif what == "a long name of the model":
        folder = tmp_path / ("n" * 300)
    elif what == "cache is a file":
        cache.touch()
    elif what == "cache is a loop":
        cache.symlink_to(cache)
    current = tmp_path / "current"
    current.mkdir()

    def begin() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        if what == "the current folder is gone":
            current.rmdir()

    result = subprocess.run(
        [sys.executable, "-m", "detent", *map(str, quantizing(folder, given, tmp_path / "q", *words))],
        cwd=current,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(cache)},
        preexec_fn=begin,
    )
    assert result.returncode == code, result.stderr
    assert says in result.stderr
    assert result.stderr.startswith("detent: error: ") and result.stderr.count("\n") == 1
    assert not (tmp_path / "q").exists()
    assert cache.is_symlink() or not list(cache.glob("detent/*"))


READ = [
    *((make.__name__, make) for make in hostile_files.ALL_KINDS),
    *(
        (name, lambda path, _, content=content: path.write_bytes(content))
        for name, content in hostile_files.json_texts(b'{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}')
        if not name.startswith("many ") and " is " not in name  # the package tokenizers takes its time
    ),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "make"), [pytest.param(*each, id=each[0]) for each in READ])
def test_what_a_tokenizer_can_be(name, make, folder, text, tmp_path):
    make(tmp_path / "t.json", (folder / "tokenizer.json").read_bytes())
    words = quantizing(folder, text, tmp_path / "q", "--tokenizer", tmp_path / "t.json")
    result = command(*words, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert result.returncode in (0, 3, 4), result.stderr[-500:]
    assert result.stderr.count("\n") == (result.returncode != 0), result.stderr[-500:]
    assert (tmp_path / "q").exists() == (result.returncode == 0)
    assert not list((tmp_path / "cache").glob("detent/*"))


def test_two_equal_commands_have_their_own_ids(folder, text, tmp_path):
    cache = tmp_path / "cache"
    words = [str(word) for word in quantizing(folder, text, tmp_path / "q")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        held = _command_text._ids_path(words)
    held.mkdir(parents=True)
    (held / "ids.npy").write_text("of the other")
    descriptor = os.open(held, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert command(*words, "--resume", XDG_CACHE_HOME=str(cache)).returncode == 2
        result = command(*words, XDG_CACHE_HOME=str(cache))
    finally:
        os.close(descriptor)
    assert (result.returncode, result.stderr) == (0, "")
    assert [path.name for path in (cache / "detent").glob("text-*")] == [held.name]
    assert (held / "ids.npy").read_text() == "of the other"


def test_panics_of_tokenizers_are_errors(folder, text, tmp_path):
    with pytest.raises(detent.BadInput, match="cannot be used as a tokenizer"):
        detent.data.text(text, hostile(folder, tmp_path / "t.json", post_processor=LACKS_TOKEN), 11)
    os.mkfifo(tmp_path / "fifo")
    for files, model in ((tmp_path / "fifo", folder), (text, tmp_path / "fifo"), ("/dev/zero", folder)):
        with pytest.raises(detent.BadInput, match="not a regular file"):
            detent.data.text(files, model, 11)
