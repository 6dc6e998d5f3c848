"""Pages as axe-core judges them: contrast, names, order of headings, keyboard. Of the report and of the documentation's site."""

import html
import json
import os
import pathlib
import re
import subprocess

import pytest
import samples
from test_report import BROWSER, DARK, FLAGS, render  # noqa: F401

AXE = pathlib.Path(os.environ["DETENT_AXE"])
SITE = pathlib.Path(os.environ["DETENT_SITE"])
PAGES = ["index.html", "targets.html", "options.html", "api.html", "tutorials/vision.html"]
pytestmark = pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing; scripts/setup.sh runtimes fetches it")

CHECK = """
axe.run({resultTypes: ["violations"]}).then((found) => {
  const told = found.violations.map((v) => [v.id, v.nodes.length, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200))]);
  document.body.dataset.answer = JSON.stringify([told, found.testEngine.version]);
});"""


def violations(page: pathlib.Path, profile: pathlib.Path, *flags: str) -> list:
    """What axe-core finds in the page, read from a copy beside it."""
    copy = page.with_name(f"axe-{os.getpid()}-{page.name}")
    script = f"<script>{AXE.read_text()}</script><script>{CHECK}</script></body>"
    copy.write_text(page.read_text().replace("</body>", script))
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--allow-file-access-from-files", "--virtual-time-budget=60000"]
    try:
        done = subprocess.run([*command, *flags, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=300)
    finally:
        copy.unlink()
    answer = re.search(r'data-answer="([^"]*)"', done.stdout)
    assert answer, done.stderr
    found, version = json.loads(html.unescape(answer[1]))
    assert version
    return found


@pytest.mark.parametrize("flags", [("--window-size=1200,900",), ("--window-size=390,900", DARK)], ids=["wide", "narrow-dark"])
def test_the_report(render, tmp_path, flags):  # noqa: F811
    assert violations(render(samples.full()), tmp_path, *flags) == []


def test_what_is_wrong_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><html><body><img src='x'><p style='color:#ccc'>pale</p></body></html>")
    assert {"image-alt", "color-contrast"} <= {found[0] for found in violations(page, tmp_path)}


@pytest.mark.skipif(not SITE.exists(), reason="the site is not built")
@pytest.mark.parametrize("flags", [("--window-size=1200,900",), ("--window-size=390,900", DARK)], ids=["wide", "narrow-dark"])
@pytest.mark.parametrize("page", PAGES)
def test_the_site(page, tmp_path, flags):
    assert violations(next(SITE.glob("*/index.html")).parent / page, tmp_path, *flags) == []
