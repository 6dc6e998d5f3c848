"""What programs and libraries are linked and compiled with, against defects in reading files."""

import re
import subprocess

import pytest
from support import DETENT, Path

PLUGINS = (DETENT.parent / f"libdetent_{name}.so" for name in ("cpu", "mpi", "cuda"))
LIBRARIES = (DETENT.parent / "libdetent.so", *sorted(DETENT.parent.glob("python/detent/_core*.so")))
BUILT = [path for path in (DETENT, *PLUGINS, *LIBRARIES) if path.exists()]


def read(path: Path, *options: str) -> str:
    return subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", BUILT, ids=lambda path: path.name)
def test_nothing_that_is_called_can_be_changed_later(path: Path) -> None:
    headers, dynamic = read(path, "-l"), read(path, "-d")
    assert "GNU_RELRO" in headers
    assert re.search(r"BIND_NOW|\(FLAGS_1\).*NOW", dynamic)
    assert re.search(r"GNU_STACK.* RW ", headers), "the stack is executable"
    assert "TEXTREL" not in dynamic
    assert re.search(r"Type:\s+DYN", read(path, "-h")), "it lies at a fixed address"


@pytest.mark.parametrize("path", BUILT, ids=lambda path: path.name)
def test_overflows_are_seen(path: Path) -> None:
    symbols = read(path, "--dyn-syms")
    if "__asan_init" in symbols:
        pytest.skip("built with sanitizers")
    assert "__stack_chk_fail" in symbols
    if path in (DETENT, *LIBRARIES):
        assert re.search(r" __\w+_chk@", symbols.replace("__stack_chk", "")), "built without _FORTIFY_SOURCE"


@pytest.mark.parametrize("path", BUILT, ids=lambda path: path.name)
def test_no_library_comes_from_the_current_folder(path: Path) -> None:
    """Which an empty entry stands for, as any other that is not absolute."""
    for found in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", read(path, "-d")):
        assert all(entry.startswith(("/", "$ORIGIN")) for entry in found.split(":")), found
