"""What the command line writes where: results, models, notes and errors."""

import json
import os
import pty
import re
import subprocess

import graphs
import onnx
import pytest
import support
from support import Path

USAGE = 2


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """`detent quantize` of a small model, without -o."""
    folder = tmp_path_factory.mktemp("model")
    onnx.save(graphs.small_cnn(), folder / "cnn.onnx")
    data = support.save_samples(folder / "data", graphs.cnn_samples())
    options = ["--preset", "plain", "--no-bench", "--optimize-for", "size"]
    return [str(word) for word in (support.DETENT, "quantize", folder / "cnn.onnx", "--calibration-data", data, *options)]


def run(command: list[str], *words: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*command, *map(str, words)], capture_output=True, check=False, **options)


def test_a_model_on_standard_output_is_the_one_in_a_file(command: list[str], tmp_path: Path) -> None:
    assert run(command, "-o", tmp_path / "q.onnx").returncode == 0
    result = run(command, "-o", "-", "--work-dir", tmp_path)
    assert result.returncode == 0
    assert result.stdout == (tmp_path / "q.onnx").read_bytes()
    assert b"-: " in result.stderr and b"nodes quantized" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]


def test_quiet_prints_nothing_and_verbose_more(command: list[str], tmp_path: Path) -> None:
    usual = run(command, "-o", tmp_path / "q.onnx").stdout.decode()
    quiet = run(command, "-o", tmp_path / "q.onnx", "-q")
    assert (quiet.stdout, quiet.stderr) == (b"", b"")
    verbose = run(command, "-o", tmp_path / "q.onnx", "--verbose").stdout.decode()
    assert "Calibration  " not in usual and "nodes quantized" in usual
    assert "Calibration  " in verbose and "nodes quantized" in verbose


@pytest.mark.parametrize("words", [["--resume"], ["--set", "external-data-threshold=1"]], ids=" ".join)
def test_no_model_on_standard_output_where_a_file_is_needed(command: list[str], words: list[str]) -> None:
    result = run(command, "-o", "-", *words)
    assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (USAGE, b"", 1)
    assert words[0].encode() in result.stderr and b"give a file name" in result.stderr


def on_terminal(words: list[str], **env: str) -> str:
    """What a program prints that has a terminal for standard output and standard error."""
    try:
        ours, theirs = pty.openpty()
    except OSError:
        pytest.skip("no pseudo-terminals here: /dev/pts is not mounted")
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env={**os.environ, **env}) as program:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the program has ended
            pass
        program.wait()
    os.close(ours)
    return said.decode()


def test_colours_are_for_terminals_that_want_them(command: list[str]) -> None:
    words = [*command, "-o", "-"]
    assert "\x1b[1;31merror:\x1b[0m -o -: a model would fill the terminal" in on_terminal(words, TERM="xterm")
    for env in ({"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}):
        assert "detent: error: -o -: a model would fill the terminal" in on_terminal(words, **env)
    help_text = on_terminal([str(support.DETENT), "help", "plan"], TERM="xterm", NO_COLOR="")
    assert "\x1b[1mOptions:\x1b[0m\r\n" in help_text
    plain = subprocess.run([support.DETENT, "help", "plan"], capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in plain and help_text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\r\n", "\n") == plain


def test_a_summary_in_markdown_and_results_side_by_side(command: list[str], tmp_path: Path) -> None:
    balanced = [word for word in command if word not in ("--preset", "plain", "--no-bench")]
    summary = run(balanced, "-o", tmp_path / "a.onnx", "--summary", "md").stdout.decode()
    assert summary.startswith("| | a.onnx |\n|---|---|\n| outcome | ")
    for row in ("worst output, SQNR", "latency", "size", "nodes", "samples measured"):
        assert f"\n| {row} | " in summary
    assert "\n**a.onnx**: " in summary
    for name, words in {"a": balanced, "b": command}.items():
        (tmp_path / f"{name}.json").write_bytes(run(words, "-o", tmp_path / f"{name}.onnx", "--json").stdout)
    table = support.detent("report", tmp_path / "a.json", tmp_path / "b.json").stdout
    assert table.startswith("| | a.onnx | b.onnx |\n|---|---|---|\n")
    assert table.count("**a.onnx**") == table.count("**b.onnx**") == 1
    assert "Accuracy was not measured" in table.split("**b.onnx**")[1]
    assert re.search(r"\n\| made \| \d{4}-\d\d-\d\d [\d:]{5} UTC \| ", table)
    assert re.search(r"\n\| options \| .*\| bench false, .*preset plain", table)
    page = tmp_path / "both.html"
    assert support.detent("report", tmp_path / "a.json", tmp_path / "b.json", "-o", page).returncode == 0
    shown = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    first = json.loads((tmp_path / "a.json").read_text())
    points = {point["name"]: point for point in shown["points"]}
    assert points.keys() == {"a.onnx", "b.onnx", "fp32"}
    assert points["a.onnx"]["bytes"] == first["model_bytes_after"] and points["fp32"]["bytes"] == first["model_bytes_before"]
    assert points["a.onnx"]["sqnr_db"] == first["accuracy"]["sqnr_db"]
    assert "seconds" not in points["b.onnx"] and "error" not in points["b.onnx"]
    (tmp_path / "c.json").write_text("[]")
    wrong = support.detent("report", tmp_path / "c.json")
    assert wrong.returncode == 3 and "is not a result of quantize" in wrong.stderr


HOSTILE_NAMES = [
    "<img src=x onerror=alert(1)>",
    "\\<img src=x>",
    "\\\\<img src=x>",
    "a|b",
    "a\\|b",
    "[x](http://evil)",
    "![x](http://evil)",
    "\\[x](javascript:alert(1))",
    "<http://evil>",
    "https://evil.example/x",
    "www.evil.example",
    "&lt;b&gt; &#60;b&#62;",
    "`code` $x$ **bold** _it_ ~~gone~~",
    "# heading",
    "- list",
    "> quote",
    "1. item",
    "23) item",
    "\ttab\r\n\n# heading",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_stay_words_in_markdown(name: str, tmp_path: Path) -> None:
    """Every character that begins something has an odd number of backslashes before it, so that it stands for itself."""
    outcome = {"answer": "look", "headline": name, "reasons": [name]}
    result = {"model_bytes_after": 1, "output": f"/x/{name}", "outcome": outcome, "kept": [{"node": name, "why": name}]}
    (tmp_path / "r.json").write_text(json.dumps(result))
    told = [line for line in support.detent("report", tmp_path / "r.json").stdout.splitlines() if line]
    row, rule, answer, headline, *items = told
    assert (rule, answer) == ("|---|---|", "| outcome | look first |")
    assert [item[:2] for item in items] == ["- ", "- "] and not any(re.match(r"[#>-]|\d+[.)] ", item[2:]) for item in items)
    assert len(unescaped("|", row)) == 3
    for line in (row.replace("|", ""), headline.replace("**", ""), *(item[2:] for item in items)):
        for special in ("<", "[", "]", "`", "*", "$", "~", "|", "&lt", "&#", "://", ".evil"):
            assert not unescaped(special, line) or special == ".evil" and "www" not in line, (special, line)


def unescaped(special: str, line: str) -> list[str]:
    return re.findall(r"(?<!\\)(?:\\\\)*" + re.escape(special), line)


def test_an_option_without_its_value_is_told_in_words() -> None:
    told = support.detent("bench", "m.onnx", "--threads")
    assert (told.returncode, told.stderr) == (2, "detent: error: --threads needs a value; see: detent help bench\n")


def test_notes_go_to_standard_error(command: list[str], tmp_path: Path) -> None:
    """Results alone are on standard output, so that a program can read them; --quiet leaves notes out, and JSON holds them.
    Notes on how the graph was rewritten are printed with --verbose only."""
    data, model = command[command.index("--calibration-data") + 1], command[2]
    note = "graph: folded into the convolutions before them: 1 BatchNormalization node"
    written = tmp_path / "q.onnx"
    quantized = [*command[1:], "-o", written]
    noted = [
        quantized,
        [*quantized, "--summary", "md"],
        ["quantize", model, "-o", tmp_path / "family", "--calibration-data", data, "--family", "int8,fp16", "--no-bench"],
        ["plan", model, "--calibration-data", data],
    ]
    for words in noted:
        ran = run([command[0]], *words, "-v")
        assert ran.returncode == 0 and f": {note}\n".encode() in ran.stderr, words
        assert b"note:" not in ran.stdout and ran.stdout.count(b"\n") > 1, words
        told = support.without_progress(ran.stderr.decode())
        assert all(line.startswith("detent: note: ") for line in told.splitlines()), words
    for words in (["check", written], ["verify", model, written, "--calibration-data", data]):
        ran = run([command[0]], *words, "--target", "auto")
        assert ran.returncode == 0
        assert support.without_progress(ran.stderr.decode()).startswith("detent: note: --target auto: "), words
        assert b"note:" not in ran.stdout and ran.stdout, words
    for words in noted[2:]:
        assert b" graph: " not in run([command[0]], *words).stderr, "how the graph was rewritten changes no decision"
    quiet = run([command[0]], *quantized, "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")
    told = run([command[0]], *quantized, "--json")
    assert told.stderr == b"" and note in json.loads(told.stdout)["notes"]
