"""Lines of the readers of files from outside that the corpora reach, as gcov counts them.

    lines.py BUILD WORK [--commands] [--least 95] [--show]   BUILD: of GCC, with `replay`; WORK: for objects

Only the readers, which CMakeLists.txt lists, are compiled once more, and linked before the library. Exit code 1 where one of them
is below the least share; --show prints the lines that nothing reaches.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent.parent / "src"
# What answers a failed call of the system, which `make faults` reaches.
OF_SYSTEM = re.compile(r"failed_call\(|resource_error\(|throw_read_error\(|\berrno\b|cannot_write\(")
NOT_CODE, NOT_RUN = "-", "#####"
COMMAND_TESTS = ("hostile_readers", "hostile_models", "hostile_folders", "tampered_runs")


def readers() -> list[str]:
    text = (HERE / "CMakeLists.txt").read_text()
    listed = re.search(r"set\(readers\n?(.*?)\)", text, re.DOTALL)
    assert listed is not None, "CMakeLists.txt lists no readers"
    return listed[1].split()


def compiled(build: Path, work: Path, name: str) -> Path:
    source, made = SOURCES / f"{name}.cpp", work / (name.replace("/", "+") + ".o")
    commands = json.loads((build / "compile_commands.json").read_text())
    words = shlex.split(next(c["command"] for c in commands if Path(c["file"]) == source))
    if "-include" in words:  # precompiled, with other options
        at = words.index("-include")
        del words[at : at + 2]
    words[words.index("-o") + 1] = str(made)
    words = [word for word in words if not word.startswith(("-O", "-D_FORTIFY_SOURCE"))]
    if not made.is_file() or made.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([*words, "-O0", "--coverage", "-w"], cwd=build, check=True)
    return made


def link(build: Path, target: str, program: Path, objects: dict[str, Path]) -> None:
    listed = subprocess.run(["ninja", "-t", "commands", target], cwd=build, capture_output=True, text=True, check=True)
    words = shlex.split(listed.stdout.strip().splitlines()[-1])
    words = words[words.index("&&") + 1 :]
    words = words[: words.index("&&")] if "&&" in words else words
    for name, made in objects.items():
        own = [i for i, word in enumerate(words) if word.endswith(f"/src/{name}.cpp.o")]
        words[own[0] if own else 1 : own[0] + 1 if own else 1] = [str(made)]
    words[words.index("-o") + 1] = str(program)
    subprocess.run([*words, "--coverage"], cwd=build, check=True)


def run_corpora(build: Path, work: Path, objects: dict[str, Path]) -> None:
    link(build, "tests/fuzz/replay", work / "replay", objects)
    runtime = os.environ.get("DETENT_ONNXRUNTIME", str(build / "libonnxruntime.so"))
    subprocess.run(
        [work / "replay", HERE / "corpus"],
        cwd=work,
        env={**os.environ, "TMPDIR": str(work), "DETENT_ONNXRUNTIME": runtime},
        stderr=subprocess.DEVNULL,
        check=True,
    )


def run_commands(build: Path, work: Path, objects: dict[str, Path]) -> None:
    """The tests of what a hostile file can ask for, with the command as well."""
    link(build, "detent", work / "detent", {name: made for name, made in objects.items() if not name.startswith("cli/")})
    tests = [HERE.parent / "e2e" / f"test_{name}.py" for name in COMMAND_TESTS]
    environment = {**os.environ, "DETENT": str(work / "detent")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", work / "pytest", *tests]
    subprocess.run(command, cwd=HERE.parent / "e2e", env=environment, check=False)


def lines_of(work: Path, name: str, made: Path) -> tuple[list[str], list[str]]:
    """Those that are code, and those of them that nothing reached."""
    listed = subprocess.run(["gcov", "-t", "-s", str(SOURCES), made], cwd=work, capture_output=True, text=True, check=True).stdout
    reached: dict[str, bool] = {}  # by any instance of a template
    texts, inside, of_system = {}, False, False
    for line in listed.splitlines():
        count, number, text = (part.strip() for part in line.split(":", 2)) if line.count(":") >= 2 else ("", "", "")
        if number == "0" and text.startswith("Source:"):
            inside = text.endswith(f"{name}.cpp")
        elif inside and number.isdigit() and number != "0" and count != NOT_CODE and text != "}":  # which exceptions pass
            of_system = of_system or (count.startswith((NOT_RUN, "=====")) and OF_SYSTEM.search(text) is not None)
            if of_system:
                of_system = not text.endswith((";", "{"))
                continue
            reached[number] = reached.get(number, False) or not count.startswith((NOT_RUN, "====="))
            texts[number] = f"{name}.cpp:{number}: {text}"
    return list(reached), [texts[number] for number, is_reached in reached.items() if not is_reached]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--least", type=float, default=95, help="per cent of the lines of each reader")
    parser.add_argument("--commands", action="store_true", help="run the end-to-end tests of hostile files as well")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    build, work = given.build.resolve(), given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    names = readers()
    with ThreadPoolExecutor(2) as pool:
        objects = dict(zip(names, pool.map(lambda name: compiled(build, work, name), names), strict=True))
    for file in work.glob("*.gcda"):
        file.unlink()
    run_corpora(build, work, objects)
    if given.commands:
        run_commands(build, work, objects)
    sums, low = [0, 0], False
    for name in names:
        code, missed = lines_of(work, name, objects[name])
        reached, share = len(code) - len(missed), 100 * (1 - len(missed) / max(1, len(code)))
        sums = [sums[0] + reached, sums[1] + len(code)]
        low = low or share < given.least
        print(f"{name:<32}{reached:>6} of {len(code):>5}{share:>8.1f} %{'  <' if share < given.least else ''}")
        if given.show:
            print(*missed, sep="\n")
    print(f"{'all':<32}{sums[0]:>6} of {sums[1]:>5}{100 * sums[0] / max(1, sums[1]):>8.1f} %")
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
