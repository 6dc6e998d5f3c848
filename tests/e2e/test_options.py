"""Follows the walk-through of an option in docs/extending.md: each row of the schema is in all places that it promises."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import support
from support import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(support.detent("options").stdout)
OPTIONS = SCHEMA["options"]
COMMANDS = ("quantize", "calibrate", "plan", "compare", "inspect", "bench")


def named(option: dict) -> bool:
    return not option["name"].isupper()


def listed(option: dict) -> bool:
    return named(option) and not option["detail"]


def words(text: str) -> str:
    return " ".join(text.split())


def test_generated_files_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/generate_options.py"), str(support.DETENT), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_every_option_with_its_default(command: str) -> None:
    text = words(support.detent(command, "--help-all").stdout)
    for option in (o for o in OPTIONS if command in o["commands"]):
        if option["detail"]:
            assert f" --{option['name']} " not in text, option["name"]
            continue
        for name in filter(None, (option["name"], option["off"])):
            assert (f"--{name} " if named(option) else f"{name} ") in text, name
        assert words(option["full_help"]) in text, option["name"]
        if option["default"] and option["type"] != "flag":
            assert words(f"(default: {option['default']})") in text, option["name"]


@pytest.mark.parametrize("command", [*COMMANDS, ""])
@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_help_fits_a_terminal(command: str, flag: str) -> None:
    lines = support.detent(*filter(None, (command, flag))).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith(" ") for line in lines)
    if flag == "--help":
        assert len(lines) <= 80


@pytest.mark.parametrize("command", ["quantize", "calibrate", "plan"])
def test_short_help_has_the_usual_options(command: str) -> None:
    text = support.detent(command, "--help").stdout
    for option in (o for o in OPTIONS if command in o["commands"] and named(o)):
        assert not (option["detail"] and option["usual"]), option["name"]
        listed = re.search(rf"^ {{2,6}}(-\w, )?--{option['name']}\b(?!-)", text, re.MULTILINE)
        assert bool(listed) == (command in option["usual"]), option["name"]
    assert len([o for o in OPTIONS if command in o["commands"] and command in o["usual"]]) <= 10
    assert f"detent {command} --help-all" in text


def test_usage_errors_name_the_help_of_the_command() -> None:
    assert support.detent("compare", "a").stderr.rstrip().endswith("see: detent help compare")
    assert support.detent("plan", "a", "--samples=").stderr.rstrip().endswith("see: detent help plan")
    assert support.detent().stderr.rstrip().endswith("see: detent --help")
    assert "excludes" in support.detent("quantize", "a", "-o", "b", "-q", "-v").stderr


def test_help_is_a_command_too() -> None:
    assert support.detent("help").stdout == support.detent("--help").stdout
    assert support.detent("help", "plan").stdout == support.detent("plan", "--help").stdout
    assert support.detent("help", "plan", "--help-all").stdout == support.detent("plan", "--help-all").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in support.detent("--help").stdout


MISTAKES = [
    (["quantise"], "there is no command 'quantise'; did you mean quantize?"),
    (["help", "benhc"], "there is no command 'benhc'; did you mean bench?"),
    (["frobnicate"], "there is no command 'frobnicate'; see: detent --help"),
    (["quantize", "m", "-o", "q", "--calibration-dta", "d"], "'--calibration-dta'; did you mean --calibration-data?"),
    (["quantize", "m", "-o", "q", "--data=d"], "'--data'; did you mean --calibration-data?"),
    (["quantize", "m", "-o", "q", "--no-benhc"], "'--no-benhc'; did you mean --no-bench?"),
    (["quantize", "m", "-o", "q", "--frobnicate"], "'--frobnicate'; see: detent help quantize"),
    (["inspect", "m", "--calibration-data", "d"], "detent inspect does not take --calibration-data; it is an option of quantize,"),
    (["quantize", "--methd", "mse"], "detent quantize has no option '--methd'; did you mean --method?"),
    (["inspect", "m", "n"], "unexpected word 'n'; see: detent help inspect"),
    (["--json", "inspect", "m"], "there is no option '--json' before the command; options follow the command"),
    (["quantize", "m", "-o", "q", "--method", "entropie"], "--method: 'entropie' is not one of its values; did you mean entropy?"),
    (["quantize", "m", "-o", "q", "--preset", "blanced"], "--preset: 'blanced' is not one of its values; did you mean balanced?"),
    (["quantize", "m", "-o", "q", "--weight-type", "float32"], "'float32' is not one of its values; choose from: int8,"),
]


@pytest.mark.parametrize(("words_given", "says"), MISTAKES, ids=[" ".join(slip[0]) for slip in MISTAKES])
def test_mistakes_get_an_answer(words_given: list[str], says: str) -> None:
    result = subprocess.run([support.DETENT, *words_given], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert says in result.stderr


@pytest.mark.parametrize("way", [["--preset", "plain"], ["--activations", "dynamic"], ["--weights-only"], ["--family", "q4,q8"]])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("no-keep-io-types", "needs --float 16, bf16 or 32"),
        ("no-pin-memory", "are for GPUs"),
        ("no-activation-order", ""),
    ],
)
def test_opposites_without_effect_are_refused(way: list[str], option: str, says: str) -> None:
    result = support.detent("quantize", "m.onnx", "-o", "q.onnx", *way, "--set", option)
    if says == "" and "plain" in way:
        assert result.returncode == 3 and "cannot open model 'm.onnx'" in result.stderr
    else:
        assert result.returncode == 2 and f"--set {option}" in result.stderr
        assert says in result.stderr or "means nothing" in result.stderr or "is for" in result.stderr


def test_mistakes_in_a_file_get_an_answer(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text("wieght_type: int8\n")
    result = support.detent("quantize", "m", "-o", "q", "--config", tmp_path / "options.yaml")
    assert result.returncode == 2
    assert "there is no option 'wieght-type'; did you mean weight-type?" in result.stderr


def test_documentation_has_every_option() -> None:
    page = (ROOT / "docs/options.md").read_text().replace("\\|", "|")
    for option in filter(named, OPTIONS):
        dashes = "--set " if option["detail"] else "--"
        assert f"{dashes}{option['name']}" in page
        assert option["full_help"] in page
        for command in option["commands"]:
            man = (ROOT / f"share/man/man1/detent-{command}.1").read_text().replace("\\-", "-")
            assert f".B {dashes}{option['name']}" in man or f", --{option['name']}" in man, command
    for preset in SCHEMA["presets"]:
        assert f"`{preset['name']}` | {preset['help']}" in page


EXAMPLES = {"choice": lambda o: o["words"][-1], "size": lambda o: "3GiB", "flag": lambda o: "true", "integer": lambda o: "3"}
EXAMPLES |= {"number": lambda o: "0.5", "numbers": lambda o: "[50, 60]", "pair": lambda o: "[4, 3]", "text": lambda o: "text"}
EXAMPLES |= {
    "texts": lambda o: "[a=q4, b=q8]" if o["name"] == "node-formats" else "[a, b]",
    "choices": lambda o: f"[{o['words'][0]}]",
}


CHOSEN_FROM = ("preset", "target", "format", "family", "config", "json")  # names of rows, and what a file may not say


def test_a_file_has_every_option(tmp_path: Path) -> None:
    """Every option of a run that needs no file is accepted from YAML, where only the missing model is complained of."""
    lines = []
    for option in filter(named, OPTIONS):
        if "quantize" in option["commands"] and option["type"] in EXAMPLES and option["name"] not in CHOSEN_FROM:
            lines.append(f"{option['name'].replace('-', '_')}: {EXAMPLES[option['type']](option)}")
    assert len(lines) > 40
    file = tmp_path / "options.yaml"
    for line in lines:
        file.write_text(line + "\n")
        result = support.detent("quantize", tmp_path / "none.onnx", "-o", tmp_path / "q.onnx", "--config", file)
        assert "there is no option" not in result.stderr and "is not " not in result.stderr, (line, result.stderr)


def complete(typed: str) -> set[str]:
    script = (
        f'source {ROOT / "share/bash-completion/completions/detent"}; read -ra COMP_WORDS <<< "{typed} "; '
        '[[ "$1" == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _detent; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return set(subprocess.run(["bash", "-c", script, "-", typed], capture_output=True, text=True, check=True).stdout.split())


def test_bash_completes_commands_options_and_words() -> None:
    assert {"quantize", "plan"} <= complete("detent ")
    assert complete("detent quantize --finet") == {"--finetune"}
    assert complete("detent quantize --preset ") == {preset["name"] for preset in SCHEMA["presets"]}
    assert complete("detent quantize --method e") == {"entropy"}
    for option in filter(listed, OPTIONS):
        for command in option["commands"]:
            assert f"--{option['name']}" in complete(f"detent {command} --{option['name']}")


@pytest.mark.parametrize(
    ("shell", "file"), [("zsh", "zsh/site-functions/_detent"), ("fish", "fish/vendor_completions.d/detent.fish")]
)
def test_other_completions_have_every_option(shell: str, file: str) -> None:
    path = ROOT / "share" / file
    text = path.read_text()
    for option in filter(listed, OPTIONS):
        assert f"-{option['name']}[" in text or f"-l {option['name']} " in text
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)


def test_the_walk_through_shows_a_row_as_it_is() -> None:
    """Its example is a row of src/config/, and its table names every file with rows."""
    page = (ROOT / "docs/extending.md").read_text()
    files = {path.name for path in (ROOT / "src/config").glob("*_options.cpp")}
    assert set(re.findall(r"`(\w+_options\.cpp)`", page)) == files
    row = next(o for o in OPTIONS if o["name"] == "damping")
    shown, of_table = (part.split("```")[0] for part in page.split("```cpp")[1:3])
    for text in (row["name"], row["path"], row["label"], row["only"]):
        assert text in shown
    assert f"Affects::{row['affects']}" in of_table
