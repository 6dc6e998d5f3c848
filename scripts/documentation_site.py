"""What MkDocs does not do by itself for the documentation (mkdocs.yml): the README is the first page, what pages link to outside
docs/ becomes a page too, each version has a folder, and the Python API is listed."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIRST = {"README.md": "index.md"}
FRONT = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
LINK = re.compile(r"(?<!!)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
CODE = {".py": "python", ".h": "cpp", ".cpp": "cpp", ".txt": "cmake", ".sh": "sh", "": "sh"}
API = ["detent", "detent.data", "detent.errors", "detent.compat", "detent.compat.quark", "detent.compat.float16"]


def version() -> str:
    found = re.search(r"project\(detent VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found
    return found.group(1)


def page_of(source: str) -> str:
    """Where a file of the repository stands on the site; both relative to their roots."""
    if source in FIRST or source.startswith("docs/"):
        return FIRST.get(source, source.removeprefix("docs/"))
    return source if source.endswith(".md") else f"{source.replace('.', '_')}.md"


def source_of(page: str) -> str:
    for source, at in FIRST.items():
        if page == at:
            return source
    return f"docs/{page}" if (ROOT / "docs" / page).exists() else page


def linked(source: str, text: str) -> list[str]:
    """What a file links to, relative to the repository's root."""
    folder = os.path.dirname(source)
    return [os.path.normpath(os.path.join(folder, target)) for target, _ in LINK.findall(text)]


def with_links_of_the_site(source: str, text: str) -> str:
    page = os.path.dirname(page_of(source))

    def moved(link: re.Match[str]) -> str:
        target = page_of(os.path.normpath(os.path.join(os.path.dirname(source), link[1])))
        return f"]({os.path.relpath(target, page or '.')}{link[2] or ''})"

    return LINK.sub(moved, text)


def shown(path: pathlib.Path) -> str:
    """A file, or all files of a folder, as a page."""
    if path.suffix == ".md":
        return path.read_text()
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    parts = [f"```{CODE.get(file.suffix, '')}\n{file.read_text()}```\n" for file in files]
    titled = zip(files, parts, strict=True) if path.is_dir() else [(path, parts[0])]
    name = path.relative_to(ROOT).as_posix()
    return f"# {name}\n\n" + "\n".join(f"## {file.name}\n\n{part}" if path.is_dir() else part for file, part in titled)


def api() -> str:
    parts = [f"## {name}\n\n::: {name}\n    options:\n      show_root_heading: false\n      heading_level: 3\n" for name in API]
    return "# Python API\n\nFrom the package's docstrings; [Python](python.md) tells how it is used.\n\n" + "\n".join(parts)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.site_dir = str(pathlib.Path(config.site_dir) / version())
    decisions = sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs" / "decisions").glob("*.md"))
    for part in config.nav or []:
        for entry in part.get("Explanations", []) if isinstance(part, dict) else []:
            if "Decisions" in entry:
                entry["Decisions"] = decisions
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    waiting = [*FRONT, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen: set[str] = set()
    while waiting:
        source = waiting.pop()
        path = ROOT / source
        if source in seen or not path.exists():
            continue  # a link to what is missing is reported by MkDocs
        seen.add(source)
        text = shown(path)
        if path.suffix == ".md":
            waiting += linked(source, text)
        if not source.startswith("docs/"):
            files.append(File.generated(config, page_of(source), content=text))
    files.append(File.generated(config, "api.md", content=api()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    return with_links_of_the_site(source_of(page.file.src_uri), markdown)


def on_page_content(html: str, **_: object) -> str:
    """For those without a mouse: what is wider than the screen can be reached. The empty corner of a table is no heading."""
    html = re.sub(r"<th[^>]*></th>", "<td></td>", html)
    return re.sub(r"<table>|(?<=<pre><span></span>)<code>", lambda tag: tag[0].replace(">", ' tabindex="0">'), html)


def on_post_page(output: str, **_: object) -> str:
    """For those who hear the page: the theme's search has no name, and parts of the navigation have the same one twice."""
    seen: dict[str, int] = {}

    def told_apart(label: re.Match[str]) -> str:
        seen[label[1]] = seen.get(label[1], 0) + 1
        return f'<nav class="md-nav" aria-label="{label[1]}{f" ({seen[label[1]]})" if seen[label[1]] > 1 else ""}"'

    output = re.sub(r'<nav class="md-nav" aria-label="([^"]*)"', told_apart, output)
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_post_build(config: MkDocsConfig) -> None:
    """The folder of all versions: the list that the pages' switch reads, and a way to the newest."""
    root = pathlib.Path(config.site_dir).parent
    versions = sorted((p.name for p in root.iterdir() if p.is_dir()), key=lambda name: [int(n) for n in name.split(".")])
    listed = [{"version": name, "title": name, "aliases": []} for name in reversed(versions)]
    (root / "versions.json").write_text(json.dumps(listed))
    (root / "index.html").write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={versions[-1]}/index.html">\n')
