"""Every reader of files from outside, given whatever a hostile file can ask for: one line and a documented exit code, in
seconds and with bounded memory, or the file is taken."""

import os
import resource
import signal
import subprocess

import hostile
import pytest
import support
from failures import Place
from support import Path

CODES = {0, 2, 3, 4}
MEMORY = 3 << 30
SECONDS = 60
# Of each kind of text, those that CI tries with one reader; `make faults` and `HOSTILE=all` try all with all.
EVERYTHING = os.environ.get("HOSTILE") == "all"


def chosen() -> list[tuple[str, hostile.Reader, str, object]]:
    all_cases = list(hostile.cases())
    if EVERYTHING:
        return all_cases
    tried: dict[tuple[str, str], int] = {}
    picked = []
    for case in all_cases:
        name, reader, what, _ = case
        # Texts of one kind meet its readers in turn, and kinds of file meet them all in turn: each meets one, and all meet some.
        key = ("", what) if what in {make.__name__.replace("_", " ") for make in hostile.ALL_KINDS} else (reader.kind, what)
        tried[key] = tried.get(key, 0) + 1
        same = [n for n, r in hostile.READERS.items() if not key[0] or r.kind == key[0]]
        turn = sum(map(ord, what)) % len(same)
        if " is " in what or same[turn] == name or (not key[0] and same[(turn + 5) % len(same)] == name):
            picked.append(case)
    return picked


def run(place: Place, command: list[object]) -> tuple[int, str]:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.setpgid(0, 0)

    environment = {**place.environment, "XDG_CACHE_HOME": str(place.temporary.parent / "cache")}
    words = [str(word) for word in (support.DETENT, *command)]
    with subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=limited
    ) as process:
        try:
            stderr = process.communicate(timeout=SECONDS)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"it takes more than {SECONDS} s")
    return process.returncode, stderr.decode(errors="replace")


def assert_sound(place: Place, command: list[object], before: list[Path]) -> None:
    code, stderr = run(place, command)
    assert code in CODES, (code, stderr[-500:])
    lines = [line for line in support.without_notes(stderr).splitlines() if line.startswith("detent: error:")]
    assert len(lines) == (code != 0), stderr[-500:]
    assert "report it" not in stderr, stderr[-500:]
    assert len(stderr) < 20_000
    if code != 0:
        assert sorted(place.out.rglob("*")) == before, "nothing partial is left"
        place.assert_no_temporary_files()


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("name", "reader", "what", "make"), [pytest.param(*case, id=f"{case[0]}: {case[2]}") for case in chosen()])
def test_what_a_file_can_ask_for(name: str, reader: hostile.Reader, what: str, make: object, place: Place) -> None:
    path = place.inputs / reader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path, reader.good())
    assert_sound(place, reader.command(place, path), sorted(place.out.rglob("*")))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", hostile.READERS)
def test_the_good_file_is_read(name: str, place: Place) -> None:
    """Else the others would show nothing: where the reader refuses it, the word is about what is in it."""
    reader = hostile.READERS[name]
    path = place.inputs / reader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(reader.good())
    code, stderr = run(place, reader.command(place, path))
    refused = name in ("wav", "png", "jpg", "statistics", "front")  # the model takes no sound, and pictures need words
    assert (code == 0) != refused, stderr
