"""Charts and tables for HTML pages that need nothing else: lines over steps or over FLOPs, and marks side by side, as
SVG."""

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 26
ROW = 24
"""Height of a row of marks."""
FEW = 12
"""Points of a curve that are marked each."""


class Curve(NamedTuple):
    """A line of a chart: name, style ("train", "held", "mark" or one of `COLOURS`) and points."""

    name: str
    style: str
    points: list[tuple[float, float]]
    spreads: tuple[float, ...] = ()
    """How far the values of each point lie from it, if there are several."""


class Marks(NamedTuple):
    """Values of things that stand one below the other, and their intervals: (value, low, high), or None for nothing."""

    name: str
    style: str
    values: Sequence[tuple[float, float, float] | None]


COLOURS = tuple(f"colour-{number}" for number in range(8))
"""Styles of curves that stand side by side."""


def chart(title: str, curves: list[Curve], from_zero: bool = False, along: str = "step") -> str:
    """A figure, or nothing where there is nothing to show. `from_zero` makes its lower edge zero, so that noise does
    not look like news; `along` is what its points are told by."""
    curves = [curve for curve in curves if curve.points]
    if not any(curve.style != "mark" for curve in curves):
        return ""
    ends = [(x, y + side * spread) for curve in curves for x, y, spread in _spread(curve) for side in (-1, 1)]
    xs, ys = zip(*ends, strict=True)
    x_range, y_range = (0, max(xs)), (0 if from_zero else min(ys), max(ys))
    x_ticks, y_ticks = _ticks(*x_range), _ticks(*y_range)
    if all(x == round(x) for x in xs):
        x_ticks = [tick for tick in x_ticks if tick == round(tick)]  # there is no half of a step or layer

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_range[0]) / ((x_range[1] - x_range[0]) or 1)
        up = (y - y_range[0]) / ((y_range[1] - y_range[0]) or 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in y_ticks:
        _, y = place(x_range[0], tick)
        parts.append(f"<line class=grid x1={LEFT} x2={WIDTH - RIGHT} y1={y:.1f} y2={y:.1f} />")
        parts.append(f"<text x={LEFT - 6} y={y + 3.5:.1f} text-anchor=end>{_number(tick)}</text>")
    for tick in x_ticks:
        x, _ = place(tick, y_range[0])
        parts.append(f"<text x={x:.1f} y={HEIGHT - 8} text-anchor=middle>{_number(tick)}</text>")
    for curve in curves:
        points = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in curve.points)
        data = ";".join(f"{x:g},{y:.5g}" for x, y in curve.points)
        for x, y, spread in _spread(curve):
            if spread:
                (across, low), (_, high) = place(x, y - spread), place(x, y + spread)
                parts.append(f"<line class={curve.style} x1={across:.1f} x2={across:.1f} y1={low:.1f} y2={high:.1f} />")
        for point in curve.points if len(curve.points) <= FEW and curve.style != "mark" else ():
            across, up = place(*point)
            parts.append(f"<circle class={curve.style} cx={across:.1f} cy={up:.1f} r=3 />")
        parts.append(
            f'<polyline class={curve.style} points="{points}" data-name="{html.escape(curve.name)}" '
            f'data-points="{data}" />'
        )
    return _figure(title, curves, HEIGHT, parts, f' data-along="{along}"')


def _figure(title: str, shown: Sequence[Curve | Marks], height: float, parts: list[str], data: str = "") -> str:
    names = "".join(f"<span class={part.style}>{html.escape(part.name)}</span>" for part in shown)
    label = f'role=img aria-label="{html.escape(title)}"{data}'
    drawing = f'<svg viewBox="0 0 {WIDTH} {height}" {label}>{"".join(parts)}</svg>'
    return f"<figure><figcaption>{html.escape(title)}</figcaption><p class=names>{names}</p>{drawing}</figure>"


def side_by_side(
    title: str, names: Sequence[str], marks: Sequence[Marks], line: tuple[str, float] | None = None
) -> str:
    """A figure with a row for each name: its marks and the bars of their intervals; and a `line` to hold them against,
    by its own name. It is nothing where fewer than two rows have marks, for then there is nothing to compare."""
    rows = [row for row in range(len(names)) if any(of.values[row] for of in marks)]
    if len(rows) < 2:
        return ""
    ends = [end for of in marks for value in of.values if value for end in value] + ([line[1]] if line else [])
    low, high = min(ends), max(ends)
    left, height = LEFT + 6 * min(18, max(len(names[row]) for row in rows)) - 30, TOP + ROW * len(rows) + BOTTOM

    def across(value: float) -> float:
        return left + RIGHT + (value - low) / ((high - low) or 1) * (WIDTH - left - 3 * RIGHT)

    parts = []
    for tick in _ticks(low, high):
        parts.append(f"<line class=grid x1={across(tick):.1f} x2={across(tick):.1f} y1={TOP} y2={height - BOTTOM} />")
        parts.append(f"<text x={across(tick):.1f} y={height - 8} text-anchor=middle>{_number(tick)}</text>")
    if line:
        x = f"{across(line[1]):.1f}"
        parts.append(f"<line class=mark x1={x} x2={x} y1={TOP} y2={height - BOTTOM} />")
    for place, row in enumerate(rows):
        middle = TOP + ROW * (place + 0.5)
        parts.append(f"<text x={left - 10} y={middle + 3.5:.1f} text-anchor=end>{html.escape(names[row])}</text>")
        for number, of in enumerate(marks):
            up = middle + 7 * (number - (len(marks) - 1) / 2)
            parts += _mark(of, row, names[row], up, across)
    return _figure(title, [*marks, *([Marks(line[0], "mark", ())] if line else [])], height, parts)


def _mark(of: Marks, row: int, name: str, up: float, across: Callable[[float], float]) -> list[str]:
    found = of.values[row]
    if found is None:
        return []
    value, low, high = found
    said = html.escape(f"{name}: {of.name} {value:.4g}" + (f" ({low:.4g} to {high:.4g})" if low < high else ""))
    return [
        f"<g><title>{said}</title>"
        f"<line class={of.style} x1={across(low):.1f} x2={across(high):.1f} y1={up:.1f} y2={up:.1f} />"
        f"<circle class={of.style} cx={across(value):.1f} cy={up:.1f} r=3.5 /></g>"
    ]


def tile(value: str, label: str, note: str) -> str:
    return f"<div class=tile><b>{value}</b><span>{label}</span><small>{note}</small></div>"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Of plain text."""
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in line) for line in lines)
    heads = "".join(f"<th>{html.escape(cell)}" for cell in header)
    return f"<div class=wide><table><tr>{heads}{rows}</table></div>"


def _spread(curve: Curve) -> list[tuple[float, float, float]]:
    spreads = curve.spreads or (0.0,) * len(curve.points)
    return [(x, y, spread) for (x, y), spread in zip(curve.points, spreads, strict=True)]


def _ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers inside [low, high], few enough to read."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)] or [low]


def _number(value: float) -> str:
    if abs(value) >= 1e10:
        return f"{value:.2g}".replace("e+", "e")
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.4g}"


_HUES = ("#b45309", "#2563eb", "#15803d", "#be185d", "#7c3aed", "#0e7490", "#a16207", "#64748b")
_COLOURED = "".join(
    f"polyline.{style}, line.{style} {{ stroke: {hue}; }}\ncircle.{style} {{ fill: {hue}; }}\n"
    f".names .{style}::before {{ border-color: {hue}; }}\n"
    for style, hue in zip(COLOURS, _HUES, strict=True)
)
_STYLE = (
    """
:root {
  --ink: #1d2127; --quiet: #6b7280; --paper: #fbfaf7; --card: #ffffff; --line: #e4e2dc;
  --held: #b45309; --train: #64748b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e8e6e1; --quiet: #9aa0a8; --paper: #16181c; --card: #1f2227; --line: #33373e;
    --held: #f0a63c; --train: #8fa3bb;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1360px; padding: 24px;
  color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif;
}
h1 { font-size: 26px; margin: 0 0 16px; }
h2 { font-size: 17px; margin: 28px 0 8px; }
.tiles, .charts { display: grid; gap: 14px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); }
.charts { grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); }
.tile, figure, pre {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; margin: 0;
}
.tile b { display: block; font-size: 26px; font-variant-numeric: tabular-nums; }
.tile span { display: block; }
.tile small, .quiet, .names { color: var(--quiet); }
figcaption { font-weight: 600; }
.names { margin: 0 0 4px; font-size: 12.5px; }
.names span { margin-right: 14px; }
.names span::before {
  content: ""; display: inline-block; width: 14px; margin-right: 5px; vertical-align: middle;
  border-top: 2px solid var(--train);
}
.names .held::before { border-color: var(--held); }
.names .mark::before { border-top-style: dashed; border-color: var(--quiet); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 11px; fill: var(--quiet); }
.grid { stroke: var(--line); }
polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
polyline.train { stroke: var(--train); }
polyline.held { stroke: var(--held); stroke-width: 2.2; }
polyline.mark, line.mark { stroke: var(--quiet); stroke-dasharray: 4 4; stroke-width: 1.2; }
line.train { stroke: var(--train); stroke-width: 1.6; }
line.held { stroke: var(--held); stroke-width: 1.6; }
.cursor { stroke: var(--quiet); }
.troubles { color: var(--held); padding-left: 20px; }
circle.train { fill: var(--train); }
circle.held { fill: var(--held); }
.wide { overflow-x: auto; }
.charts + .wide { margin-top: 12px; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 2px 18px 2px 0; font-variant-numeric: tabular-nums; }
th { font-weight: 500; color: var(--quiet); }
pre { overflow: auto; font-size: 13px; }
del { color: var(--quiet); }
ins, mark { color: var(--held); background: none; text-decoration: none; font-weight: 600; }
#tip {
  position: fixed; display: none; pointer-events: none; padding: 5px 9px; border-radius: 6px;
  background: var(--ink); color: var(--paper); font-size: 12.5px; font-variant-numeric: tabular-nums;
}
"""
    + _COLOURED
)


_SCRIPT = """
const tip = document.getElementById("tip");
const nearest = (places, x) => places.reduce((best, place, i) =>
  Math.abs(place - x) < Math.abs(places[best] - x) ? i : best, 0);
for (const svg of document.querySelectorAll("svg[data-along]")) {
  const lines = [...svg.querySelectorAll("polyline")].map(line => ({
    name: line.dataset.name,
    values: line.dataset.points.split(";").map(point => point.split(",").map(Number)),
    places: line.getAttribute("points").split(" ").map(place => Number(place.split(",")[0])),
  }));
  const longest = lines.reduce((a, b) => b.places.length > a.places.length ? b : a);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", TOP);
  cursor.setAttribute("y2", FLOOR);
  cursor.style.display = "none";
  svg.appendChild(cursor);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const here = nearest(longest.places, x);
    cursor.setAttribute("x1", longest.places[here]);
    cursor.setAttribute("x2", longest.places[here]);
    const rows = lines.map(line => `${line.name} ${line.values[nearest(line.places, x)][1]}`);
    tip.textContent = [`${svg.dataset.along} ${longest.values[here][0]}`, ...rows].join("  |  ");
    cursor.style.display = tip.style.display = "block";
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 16 + "px";
  });
  svg.addEventListener("pointerleave", () => { cursor.style.display = tip.style.display = "none"; });
}
""".replace("TOP", str(TOP)).replace("FLOOR", str(HEIGHT - BOTTOM))
"""Shows the values under the pointer."""

_PAGE = """<!doctype html>
<html lang=en>
<meta charset=utf-8>
<meta name=viewport content="width=device-width, initial-scale=1">
<title>{name} - Elektron</title>
<style>{style}</style>
<h1>{name}</h1>
{body}
<div id=tip></div>
<script>{script}</script>
"""


def page(name: str, body: str) -> str:
    """A whole page of HTML under the title `name`."""
    return _PAGE.format(name=html.escape(name), style=_STYLE, body=body, script=_SCRIPT)
