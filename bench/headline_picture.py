#!/usr/bin/env python3
"""headline_picture.py FIGURES.json OUT.svg: what headline.py --json wrote, as bars on a logarithmic axis."""

import json
import math
import sys

from headline import METHODS, published

LEFT, RIGHT, ROW, TOP = 160, 700, 46, 70
LOW, HIGH = 50, 50_000  # MB at the ends of the axis
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px; fill: #57606a }
  .grid { stroke: #d0d7de } .detent { fill: #3949ab } .plain { fill: #8c959f } .amd { fill: #d4793b }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #3d444d } .detent { fill: #7986cb }
  }
"""


def at(megabytes: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(megabytes / LOW) / math.log(HIGH / LOW)


def size(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


def bar(kind: str, y: float, megabytes: float) -> list[str]:
    x = at(megabytes)
    return [
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{x - LEFT:.1f}" height="11" rx="2"/>',
        f'<text class="small" x="{x + 5:.1f}" y="{y + 10}">{size(megabytes)}</text>',
    ]


def legend() -> list[str]:
    kinds = (
        ("detent", "detent, highest of four methods"),
        ("plain", "plain inference"),
        ("amd", "AMD Quark, published, lowest of four"),
    )
    lines, x = [], LEFT
    for kind, text in kinds:
        lines += [
            f'<rect class="{kind}" x="{x}" y="32" width="11" height="11" rx="2"/>',
            f'<text class="small" x="{x + 16}" y="42">{text}</text>',
        ]
        x += 36 + 6 * len(text)
    return lines


def picture(figures: dict[str, dict[str, float]], amd: dict[str, list[float]]) -> str:
    height = TOP + ROW * len(figures) + 10
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 {height}" role="img">']
    lines += ["<title>Peak memory of quantizing nine models</title>", f"<style>{STYLE}</style>"]
    lines += ['<text x="0" y="18">Peak memory while a model is quantized</text>', *legend()]
    for tick in (100, 1000, 10_000):
        x = f"{at(tick):.1f}"
        lines.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 4}" y2="{height - 8}"/>')
        lines.append(f'<text class="small" x="{x}" y="{TOP - 8}" text-anchor="middle">{size(tick)}</text>')
    for i, (name, found) in enumerate(figures.items()):
        y = TOP + ROW * i
        lines.append(f'<text x="{LEFT - 10}" y="{y + 24}" text-anchor="end">{name}</text>')
        lines += bar("detent", y + 2, max(found[m] for m in METHODS))
        lines += bar("plain", y + 15, found["plain inference"])
        lines += bar("amd", y + 28, 1000 * min(amd[name]))
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    source, target = sys.argv[1:]
    with open(source) as f:
        figures = json.load(f)
    with open(target, "w") as f:
        f.write(picture(figures, published(list(figures))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
