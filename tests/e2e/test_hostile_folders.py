"""Model folders that try to carry a file out: what is copied beside the result is the folder's own, or the run refuses."""

import os
from pathlib import Path

import graphs
import onnx
import pytest
import support
from failures import BAD_INPUT

SECRET = b"PRIVATE KEY"
WAYS = {"one": ["--weights-only"], "family": ["--family", "q4,fp16"]}
LINKS = {
    "absolute": lambda link, secret: link.symlink_to(secret),
    "relative": lambda link, secret: link.symlink_to(os.path.relpath(secret, link.parent)),
    "by a link in the folder": lambda link, secret: (
        link.with_name("middle.txt").symlink_to(secret),
        link.symlink_to("middle.txt"),
    ),
    "hard": lambda link, secret: os.link(secret, link),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as in a hub's cache: links into blobs/ beside snapshots/."""
    blobs, root = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "1"
    (root / "sub").mkdir(parents=True)
    blobs.mkdir()
    onnx.save(graphs.transformer(), blobs / "model")
    for name in ("tokenizer.json", "sub/vocab.txt"):
        (blobs / Path(name).name).write_text("{}")
        (root / name).symlink_to(os.path.relpath(blobs / Path(name).name, (root / name).parent))
    (root / "model.onnx").symlink_to("../../blobs/model")
    (root / "model_q4.onnx").write_bytes(b"another precision")
    (root / "model_q4.onnx_data").write_bytes(b"its data")
    (root / "model_q4.onnx_README.md").write_text("a file of its own")
    return root


@pytest.mark.parametrize("way", WAYS)
def test_links_within_a_cache_pass(folder: Path, tmp_path: Path, way: str) -> None:
    result = support.detent("quantize", folder, "-o", tmp_path / "result", *WAYS[way], "--no-bench")
    assert result.returncode == 0, result.stderr
    files = [f for f in (tmp_path / "result").rglob("*") if f.suffix in (".json", ".txt", ".md")]
    copied = {str(f.relative_to(tmp_path / "result")) for f in files}
    assert copied == {"tokenizer.json", "sub/vocab.txt", "model_q4.onnx_README.md"}
    assert not any(f.is_symlink() for f in (tmp_path / "result").rglob("*"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["README.md", "sub/README.md", "other.onnx"])
@pytest.mark.parametrize("link", LINKS)
def test_nothing_from_elsewhere_is_copied(folder: Path, tmp_path: Path, link: str, place: str, way: str) -> None:
    secret = tmp_path / "home" / "id_rsa"
    secret.parent.mkdir()
    secret.write_bytes(SECRET)
    LINKS[link](folder / place, secret)
    result = support.detent("quantize", folder, "-o", tmp_path / "result", *WAYS[way], "--no-bench")
    assert result.returncode == BAD_INPUT
    assert "file of the model's folder" in result.stderr
    assert not (tmp_path / "result").exists()
    assert {f.name for f in tmp_path.iterdir()} == {"cache", "home"}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_file_is_left_out_by_name(folder: Path, tmp_path: Path, way: str) -> None:
    (folder / "vocabularies").symlink_to("sub")
    (folder / "nowhere.txt").symlink_to("missing")
    os.mkfifo(folder / "sub" / "pipe")
    result = support.detent("quantize", folder, "-v", "-o", tmp_path / "out", *WAYS[way])
    assert result.returncode == 0, result.stderr
    for name in ("vocabularies", "nowhere.txt", "sub/pipe"):
        assert f"'{name}' was left out: it is neither a file nor a link to one" in result.notes
        assert not os.path.lexists(tmp_path / "out" / name)
