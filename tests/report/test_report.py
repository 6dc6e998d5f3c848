"""Reads reports in a real browser, as their readers do: on large and small screens, light and dark, and on paper.

What the page has come to is asked by a script that is added to a copy of it; the answers come back in the dumped document.
"""

import json
import os
import re
import subprocess

import pytest
import samples
from PIL import Image

BROWSER = os.environ["DETENT_BROWSER"]
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
]
DARK = "--blink-settings=preferredColorScheme=0"
OF_RESULT = ["Can I ship this?", "Layers, worst first", "How it was made"]
SECTIONS = [*OF_RESULT, "Activations and their ranges", "Notes", "How the run went", "Stages of the run"]
SECTIONS += ["Time of each layer", "Plan and measurement"]


@pytest.fixture
def render(tmp_path):
    """render(report, script): the path of the page, with `script` run at its end; its result comes back from ask()."""

    def make(report, script=None):
        source, page = tmp_path / "report.json", tmp_path / "report.html"
        source.write_text(report if isinstance(report, str) else json.dumps(report), encoding="utf-8")
        subprocess.run([os.environ["RENDER_REPORT"], source, page], check=True)
        if script:
            asking = f"<script>document.body.dataset.answer = JSON.stringify((() => {{ {script} }})());</script>"
            page.write_text(page.read_text(encoding="utf-8").replace("</body>", asking + "</body>"), encoding="utf-8")
        return page

    return make


def browse(page, *flags):
    """Opens the page and returns what the browser printed; anything on its console is a failure."""
    log = page.parent / "net.json"
    command = [BROWSER, *FLAGS, f"--user-data-dir={page.parent / 'profile'}", f"--log-net-log={log}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(page.parent)})
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not said, said
    requests = set(re.findall(r'"url":"((?:https?|wss?|ftp):[^"]*)"', log.read_text(errors="replace")))
    assert not requests, requests
    return done.stdout


def ask(page, *flags):
    """The answer of the page's added script."""
    found = re.search(r'data-answer="([^"]*)"', browse(page, "--dump-dom", *flags))
    assert found, "the page's script gave no answer"
    return json.loads(found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


BROKEN = ["fetch('http://192.0.2.1/x')", "console.error('x')", "throw Error('x')", "new Image().src = 'https://a.example/'"]


@pytest.mark.parametrize("broken", BROKEN)
def test_the_checks_see(render, broken):
    """What browse() has to catch, it catches."""
    page = render({})
    page.write_text(page.read_text().replace("</body>", f"<script>{broken}</script></body>"))
    with pytest.raises(AssertionError):
        browse(page, "--dump-dom")


def screenshot(page, width, height, *flags):
    path = page.parent / "shot.png"
    browse(page, "--hide-scrollbars", f"--window-size={width},{height}", f"--screenshot={path}", *flags)
    with Image.open(path) as image:
        return image.convert("RGB")


HEADINGS = "return [...document.querySelectorAll('h2')].map((h) => h.textContent);"


def test_shows_every_section(render):
    assert ask(render(samples.full(), HEADINGS)) == SECTIONS


@pytest.mark.parametrize("key, section", [("plan", SECTIONS[8]), ("notes", SECTIONS[4]), ("tensors", SECTIONS[3])])
def test_leaves_out_what_is_missing(render, key, section):
    report = samples.full()
    del report[key]
    assert ask(render(report, HEADINGS)) == [name for name in SECTIONS if name != section]


def test_devices_have_a_section_of_their_own(render):
    names = SECTIONS.copy()
    names.insert(7, "Devices")
    assert ask(render(samples.on_devices(), HEADINGS)) == names
    script = """const part = document.querySelector('#devices');
      const wrong = part.innerHTML.match(/NaN|undefined|Infinity/g);
      return [part.textContent, wrong];"""
    text, wrong = ask(render(samples.on_devices(), script))
    assert wrong is None
    for words in (
        "Made-up GPU 80GB",
        "read spooled samples by GPUDirect Storage",
        "mini-batches",
        "of a budget of 1\u202fGiB",
        "No lane was busy for half of the time",
        "device: waiting",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    ("lane", "says"), [("gather", "--set finetune-prefetch"), ("read", "storage"), ("copy", "pinned"), ("compute", "tf32")]
)
def test_what_bounds_a_device_is_told(render, lane, says):
    report = samples.on_devices()
    report["device"]["work"].append(samples.work(0, lane, "most of it", 10, 11.0, 1 << 30))
    hints = "return [...document.querySelectorAll('#devices .hint')].map((p) => p.textContent);"
    verdict = ask(render(report, hints))[0]
    assert verdict.startswith("Bound by ") and says in verdict


@pytest.mark.parametrize("key", ["work", "devices", "flops_per_second", "memory_bytes_per_second"])
def test_devices_without_some_figures(render, key):
    report = samples.on_devices()
    del report["device"][key]
    script = "return document.getElementById('report').innerHTML.match(/NaN|undefined|Infinity|could not be shown/g);"
    assert ask(render(report, script)) is None


WRONG_TYPES = {"stages": None, "layers": 3, "summary": []}


@pytest.mark.parametrize("report", [{}, "", {"title": "only a title"}, samples.odd(), WRONG_TYPES])
def test_odd_reports_bring_no_errors(render, report):
    script = """for (const b of document.querySelectorAll('.open')) b.click();
      return document.getElementById('report').innerHTML.match(/NaN|undefined|Infinity|could not be shown/g);"""
    assert ask(render(report, script)) is None


def test_names_stay_text(render):
    script = "document.querySelector('.open').click(); return [document.images.length, document.scripts.length, document.title];"
    images, scripts, title = ask(render(samples.hostile(), script))
    assert images == 0
    assert scripts == ask(render({}, "return document.scripts.length;"))
    assert title.startswith("</script><img src=x onerror=alert(1)>")


def test_many_tensors_draw_nothing_unseen(render):
    report = samples.full(layer_count=500, tensor_count=1000, bins=256)
    script = "return [document.querySelectorAll('figure').length, document.querySelectorAll('tbody tr').length];"
    figures, rows = ask(render(report, script))
    assert figures == 1
    assert rows < 120


def test_table_sorts_filters_and_opens(render):
    script = """
      const table = document.querySelector('#activations-and-their-ranges .table');
      const names = () => [...table.querySelectorAll('tbody th')].map((th) => th.textContent);
      const out = {first: names().length};
      table.querySelector('thead button').click();
      out.sorted = names()[0];
      table.querySelector('.more').click();
      out.all = names().length;
      const box = table.querySelector('input');
      box.value = 'ACT_17/';
      box.dispatchEvent(new Event('input'));
      out.found = names();
      out.bins = table.querySelectorAll('.detail .bin').length;
      out.ends = table.querySelectorAll('.detail .range-end').length;
      return out;"""
    out = ask(render(samples.full(), script))
    assert (out["first"], out["all"]) == (25, 40)
    assert out["sorted"].endswith("act_0/output_0")
    assert out["found"] == ["/model/backbone/block4/act_17/output_0"]
    assert out["bins"] > 50 and out["ends"] == 2


def test_statistics_alone(render):
    script = """
      const table = document.querySelector('#activations-and-their-ranges .table');
      table.querySelector('.open').click();
      return {heads: [...table.querySelectorAll('thead th')].map((th) => th.textContent),
        first: table.querySelector('tbody td:nth-of-type(2)').textContent,
        ends: table.querySelectorAll('.range-end').length, bins: table.querySelectorAll('.bin').length,
        label: table.querySelector('.detail figure svg').getAttribute('aria-label'),
        sections: [...document.querySelectorAll('h2')].map((h) => h.textContent)};"""
    out = ask(render(samples.calibration(), script))
    assert out["heads"] == ["Tensor", "Made by", "Observed"]
    assert out["first"].startswith("[")
    assert out["ends"] == 0 and out["bins"] > 50
    assert "range" not in out["label"]
    assert out["sections"] == [name for name in SECTIONS if name not in OF_RESULT]


def test_charts_can_be_read_with_the_keyboard(render):
    script = """
      return [...document.querySelectorAll('figure')].map((figure) => {
        const cursor = figure.querySelector('.cursor');
        cursor.value = 5;
        cursor.dispatchEvent(new Event('input'));
        return [figure.querySelector('svg[role=img]').getAttribute('aria-label'), figure.querySelector('output').textContent];
      });"""
    for alternative, text in ask(render(samples.full(), script)):
        assert len(alternative) > 60
        assert "·" in text


def test_headings_tables_and_fields_are_named(render):
    script = """
      const all = (css) => [...document.querySelectorAll(css)];
      const named = (node) => node.textContent.trim() || node.getAttribute('aria-label');
      return {
        h1: all('h1').length,
        captions: all('table').every((t) => t.caption),
        scopes: all('th').every((th) => th.scope),
        buttons: all('button').every(named),
        boxes: all('input').every((i) => i.getAttribute('aria-label')),
        charts: all('.plot svg').every((s) => s.getAttribute('aria-label')),
        ids: new Set(all('[id]').map((n) => n.id)).size === all('[id]').length,
      };"""
    answers = ask(render(samples.full(), script))
    assert answers.pop("h1") == 1
    assert all(answers.values()), answers


def test_says_first_whether_the_result_can_be_used(render):
    script = """const part = document.querySelector('section');
      const facts = {};
      for (const dt of part.querySelectorAll('dt')) facts[dt.textContent] = dt.nextSibling.textContent;
      const text = (css) => part.querySelector(css).textContent;
      return [text('.answer'), text('li'), facts, text('table')];"""
    answer, reason, facts, kept = ask(render(samples.full(), script))
    assert answer.startswith("!Look at it before you use it")
    assert reason.startswith("Accuracy was measured on 4 samples only")
    assert facts["Worst output, SQNR"].replace("\u202f", " ") == "27.4 dBthe error is 4.3 % of the signal. 4 samples."
    assert facts["Latency as deployed"].replace("\u202f", " ").startswith("50.1 ms → 31.3 ms1.6 times as fast")
    assert facts["Size"].replace("\u202f", " ") == "97.7 MiB → 24.7 MiB4 times smaller"
    assert "/model/stem/conv" in kept and "for accuracy" in kept


def test_bars_are_long_for_what_is_bad(render):
    script = """const rows = [...document.querySelectorAll('#layers-worst-first .table:last-of-type tbody tr')];
      return rows.map((row) => [row.cells[3].textContent, row.querySelector('.bar > span').style.width]);"""
    rows = ask(render(samples.full(), script))
    widths = [float(width.rstrip("%")) for _, width in rows]
    assert widths[0] == 100 and widths == sorted(widths, reverse=True) and widths[-1] < 50


NARROW = """document.querySelector('#activations-and-their-ranges .open').click();
  const wide = [...document.querySelectorAll('.scroll')].filter((s) => s.scrollWidth > s.clientWidth).length;
  const cell = document.querySelector('#layers-worst-first tbody td');
  return [wide, getComputedStyle(cell, '::before').content];"""


def test_tables_fit_a_phone(render):
    assert ask(render(samples.full(), NARROW), "--window-size=360,800") == [0, '"SQNR "']
    assert ask(render(samples.full(), NARROW), "--window-size=1100,800")[1] == "none"


OVERFLOW = """document.querySelector('.open').click();
  const plots = [...document.querySelectorAll('.plot')].map((p) => p.scrollWidth);
  return [document.documentElement.scrollWidth, window.innerWidth, Math.max(...plots)];"""


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_fits_the_window(render, width):
    page, window, plot = ask(render(samples.full(), OVERFLOW), f"--window-size={width},800")
    assert window == width
    assert page <= window
    assert plot <= window


@pytest.mark.parametrize("width, height", [(360, 800), (1440, 1200)])
def test_paints_light_and_dark(render, width, height):
    page = render(samples.full())
    light, dark = screenshot(page, width, height), screenshot(page, width, height, DARK)
    assert light.size == (width, height)
    assert light.getpixel((2, 2)) == (255, 255, 255)
    assert sum(dark.getpixel((2, 2))) < 100
    for image in (light, dark):
        assert len(image.getcolors(1 << 24)) > 50


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("flags", [[], [DARK]])
def test_contrast_is_enough(render, flags):
    names = "page ink soft shade lane accent warm bad compute memory disk transfer waiting".split()
    script = f"""const style = getComputedStyle(document.documentElement);
      return {names}.map((name) => style.getPropertyValue('--' + name).trim());"""
    colours = dict(zip(names, ask(render({}, script), *flags), strict=True))
    for text in ("ink", "soft", "accent"):
        for ground in ("page", "shade"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["ink"], colours["lane"]) >= 4.5
    for mark in names[5:]:
        assert contrast(colours[mark], colours["page"]) >= 3, mark


@pytest.mark.parametrize("flags", [[], [DARK]])
def test_prints(render, flags):
    page = render(samples.full(), "document.querySelector('.open').click();")
    path = page.parent / "report.pdf"
    browse(page, "--no-pdf-header-footer", f"--print-to-pdf={path}", *flags)
    paper = path.read_bytes()
    assert paper.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 20
