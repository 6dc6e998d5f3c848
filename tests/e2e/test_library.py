"""The installed library, as other projects use it."""

import hashlib
import os
import pathlib
import re
import subprocess

import onnx
import pytest
import support

BUILD = support.DETENT.parent


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if not (BUILD / "libdetent.so").exists():
        pytest.skip("this build has no libdetent.so")
    prefix = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", prefix, "--component", "library")
    return prefix


def library(prefix: pathlib.Path) -> pathlib.Path:
    (found,) = prefix.glob("lib*/**/libdetent.so")
    return found


@pytest.mark.full
def test_another_project_quantizes_a_model(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run("cmake", "-S", support.ROOT / "examples" / "library", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", tmp_path)
    told = run(tmp_path / "quantize_random", support.MODELS / "ppocr_cls.onnx", tmp_path / "int8.onnx")
    made = onnx.load(tmp_path / "int8.onnx")
    quantizers = [node for node in made.graph.node if node.op_type == "QuantizeLinear"]
    assert f"{int(told.split()[0])} activations quantized\n" == told
    assert len(quantizers) > 10
    wrong = subprocess.run([tmp_path / "quantize_random", "absent.onnx", "x.onnx"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 3 and "absent.onnx" in wrong.stderr


def test_only_its_interface_shows(installed: pathlib.Path) -> None:
    shown = run("nm", "-DC", "--defined-only", library(installed)).splitlines()
    names = [line.split(" ", 2)[2] for line in shown]
    public = [name for name in names if name.endswith("@@DETENT_0")]
    assert any(name.startswith("detent::quantize(") for name in public)
    own = r"(typeinfo (name )?for |vtable for |std::span<detent::config::EnumName const, \d+ul> )?detent::|DETENT_(0|PRIVATE)"
    foreign = [name for name in names if not re.match(own, name)]
    assert foreign == []


def test_headers_bring_nothing_private_along(installed: pathlib.Path) -> None:
    headers = list((installed / "include" / "detent").glob("*.h"))
    assert installed / "include" / "detent" / "version.h" in headers
    for header in headers:
        for included in re.findall(r'^#include [<"](.*)[>"]', header.read_text(), re.MULTILINE):
            assert "/" not in included or included.startswith("detent/"), f"{header.name} includes {included}"


def test_its_version_is_that_of_the_command(installed: pathlib.Path) -> None:
    version = run(support.DETENT, "--version").split()[1]
    assert f'DETENT_VERSION_STRING "{version}"' in (installed / "include" / "detent" / "version.h").read_text()
    assert os.readlink(library(installed)) == "libdetent.so." + ".".join(version.split(".")[:2])
    (described,) = installed.glob("lib*/**/detent.pc")
    assert f"Version: {version}\n" in described.read_text()
    assert version in (support.ROOT / "CHANGELOG.md").read_text()


def download(folder: pathlib.Path, mirrors: str, sha256: str) -> subprocess.CompletedProcess[str]:
    """What cmake/download.cmake makes of the archive libs/small.tar.gz."""
    script = folder / "script.cmake"
    script.write_text(
        f"cmake_minimum_required(VERSION 3.25)\nset(PROJECT_SOURCE_DIR {folder})\n"
        f'set(DETENT_MIRRORS "{mirrors}")\nset(DETENT_DOWNLOADS {folder}/kept)\n'
        f"include({support.ROOT}/cmake/download.cmake)\n"
        f"detent_download(small libs/small.tar.gz {sha256} found)\nmessage(STATUS ${{found}})\n"
    )
    return subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=False, timeout=60)


def test_downloads_are_checked(tmp_path: pathlib.Path) -> None:
    tmp_path = tmp_path.resolve()
    (tmp_path / "mirror" / "libs").mkdir(parents=True)
    (tmp_path / "other" / "libs").mkdir(parents=True)
    (tmp_path / "small-1.0").mkdir()
    (tmp_path / "small-1.0" / "small.h").write_text("// small\n")
    archive = tmp_path / "mirror" / "libs" / "small.tar.gz"
    run("tar", "czf", archive, "-C", tmp_path, "small-1.0")
    (tmp_path / "other" / "libs" / "small.tar.gz").write_bytes(b"another")
    good = hashlib.sha256(archive.read_bytes()).hexdigest()

    only_other = download(tmp_path, f"file://{tmp_path}/other", good)
    assert only_other.returncode != 0
    told = " ".join(only_other.stderr.split())
    assert "detent needs small, which is not installed and could not be downloaded." in told
    assert "the file there is another one" in told
    assert list((tmp_path / "kept").iterdir()) == []

    both = download(tmp_path, f"file://{tmp_path}/other;file://{tmp_path}/absent;file://{tmp_path}/mirror", good)
    assert both.returncode == 0, both.stderr
    (kept,) = (tmp_path / "kept").iterdir()
    assert (kept / "small.h").read_text() == "// small\n"
    archive.unlink()
    assert download(tmp_path, f"file://{tmp_path}/mirror", good).returncode == 0  # it is there already
