"""Losses of several runs over the tokens they have read, drawn as an SVG that stands by itself."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

PANELS = {
    "generator_loss": "generator, nats a masked token",
    "encoder_loss": "encoder, nats a token it names",
    "discriminator_loss": "discriminator, nats a token",
}
"""Metrics of training that are drawn, each if a run has it."""
BEGINNING = 0.05
"""This share of the longest run is left out: there losses fall so far that nothing else would be seen."""
WIDTH, HEIGHT, GAP, LINE = 400, 230, 50, 17
HUES = ("#b45309", "#2563eb", "#15803d", "#be185d", "#7c3aed", "#0e7490", "#111827", "#94a3b8")
STYLE = "svg{background:#fff}text{font:12px sans-serif;fill:#444}.t{font-size:13px;fill:#111}.g{stroke:#ddd}"
DASHES = ("", "6 3", "2 3")
"""Of the first eight names, and the next."""

Curve = list[tuple[float, float]]


def drawing(title: str, named: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> str:
    """Of the records of metrics.jsonl of the runs under each name. Runs of one name have one colour."""
    runs = [records for of in named.values() for records in of]
    longest = max(_facts(records)["tokens"] for records in runs)
    curves = {
        metric: {name: [_curve(records, metric, BEGINNING * longest) for records in of] for name, of in named.items()}
        for metric in PANELS
    }
    shown = {metric: of for metric, of in curves.items() if any(map(any, of.values()))}
    styles = {name: _style(number) for number, name in enumerate(named)}
    width, height = len(shown) * (WIDTH + GAP), HEIGHT + 60 + LINE * len(named)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(title)}">',
        f"<style>{STYLE}polyline{{fill:none;stroke-width:1.8;stroke-linejoin:round}}</style>",
    ]
    for number, (metric, of) in enumerate(shown.items()):
        parts += _panel(PANELS[metric], of, styles, longest, number * (WIDTH + GAP) + GAP - 10)
    for number, (name, style) in enumerate(styles.items()):
        y = HEIGHT + 56 + LINE * number
        parts.append(f'<polyline {style} points="{GAP - 10},{y - 4} {GAP + 18},{y - 4}"/>')
        parts.append(f'<text x="{GAP + 26}" y="{y}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _facts(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next(record for record in records if record["kind"] == "run")


def _curve(records: Sequence[Mapping[str, Any]], metric: str, after: float) -> Curve:
    """(tokens, value), where the step after the first tokens is."""
    facts = _facts(records)
    of_training = [record for record in records if record["kind"] == "train" and metric in record]
    points = [(record["step"] / facts["steps"] * facts["tokens"], record[metric]) for record in of_training]
    return [(tokens, value) for tokens, value in points if tokens >= after]


def _style(number: int) -> str:
    dash = DASHES[number // len(HUES) % len(DASHES)]
    return f'stroke="{HUES[number % len(HUES)]}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _panel(title: str, named: Mapping[str, list[Curve]], styles: Mapping[str, str], end: float, left: int) -> list[str]:
    values = [value for curves in named.values() for curve in curves for _, value in curve]
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def place(tokens: float, value: float) -> tuple[float, float]:
        return left + (WIDTH - 10) * tokens / end, 26 + (HEIGHT - 26) * (high - value) / span

    parts = [f'<text x="{left}" y="16" class="t">{title}</text>']
    for value in _round_numbers(low, high):
        _, y = place(0, value)
        parts.append(f'<line x1="{left}" x2="{left + WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" class="g"/>')
        parts.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for tokens in _round_numbers(0, end / 1e6):
        x, _ = place(1e6 * tokens, low)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT + 16}" text-anchor="middle">{tokens:g}</text>')
    parts.append(f'<text x="{left + WIDTH // 2}" y="{HEIGHT + 32}" text-anchor="middle">million tokens</text>')
    for name, curves in named.items():
        for curve in filter(None, curves):
            points = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in curve)
            parts.append(f'<polyline {styles[name]} points="{points}"/>')
    return parts


def _round_numbers(low: float, high: float, about: int = 5) -> list[float]:
    """Of them as many as there is room for, from low to high."""
    rough = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [round(step * number, 10) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
