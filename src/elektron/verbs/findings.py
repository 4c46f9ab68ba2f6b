"""What an analysis found, as tables to print, as JSON and as one HTML page."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from elektron.score.bands import Band, Cut, Share
from elektron.score.errors import Example
from elektron.score.geometry import Layer
from elektron.tasks.metrics import wilson
from elektron.tasks.results import markdown
from elektron.train.charts import COLOURS, Curve, Marks, chart, page, side_by_side, table, tile

_FEW, _VAGUE = 20, 0.5
"""Tokens of a band and width of an interval: with fewer, or one that is wider, a share is not drawn nor compared."""
_HEADER = ("tokens", "replaced %", "predicted %", "AUC", "average precision", "recall %", "precision %", "loss")
_MISSED = (
    "Replaced, and taken for original, the surest first: the probability of being replaced, the one that the generator "
    "gave its sample, and what it put in the place of what."
)
_ALARMS = "Original, and taken for replaced, the surest first."
_GEOMETRY = ("encoder", "layer", "anisotropy", "within a row", "effective rank", "first component %", "mean norm")


class Findings(NamedTuple):
    """All that was asked."""

    name: str
    told: str
    """Of what, in words."""
    totals: Sequence[Band] = ()
    """Of all tokens first."""
    cuts: Sequence[Cut] = ()
    missed: Sequence[Example] = ()
    alarms: Sequence[Example] = ()
    geometry: Mapping[str, Sequence[Layer]] = {}
    """Of each encoder, its embeddings first."""


def content(found: Findings) -> dict[str, Any]:
    """For JSON."""
    return {
        "name": found.name,
        "told": found.told,
        "totals": [_fields(band) for band in found.totals],
        "cuts": {cut.title: [_fields(band) for band in cut.bands] for cut in found.cuts},
        "missed": [_fields(example) for example in found.missed],
        "alarms": [_fields(example) for example in found.alarms],
        "geometry": {name: [_fields(layer) for layer in layers] for name, layers in found.geometry.items()},
    }


def _fields(found: Band | Example | Layer) -> dict[str, Any]:
    return {name: value._asdict() if isinstance(value, Share) else value for name, value in found._asdict().items()}


def in_markdown(found: Findings) -> str:
    tables = [("", found.totals), *((cut.title, cut.bands) for cut in found.cuts)] if found.totals else []
    parts = [markdown([title, *_HEADER], [_line(band) for band in bands]) for title, bands in tables]
    return "\n".join([*parts, markdown(_GEOMETRY, _layer_lines(found.geometry)), ""])


def _line(band: Band, with_intervals: bool = False) -> list[str]:
    def told(share: Share | None, scale: float, digits: int) -> str:
        if share is None:
            return ""
        value, low, high = (f"{scale * number:.{digits}f}" for number in share)
        return f"{value} ({low} to {high})" if with_intervals else value

    return [
        band.name,
        f"{band.tokens:,}",
        f"{100 * band.replaced / band.tokens:.1f}",
        f"{100 * band.predicted:.1f}",
        told(band.auc, 1, 3),
        "" if band.average_precision is None else f"{band.average_precision:.3f}",
        told(band.recall, 100, 1),
        told(band.precision, 100, 1),
        f"{band.loss:.4f}",
    ]


def _layer_lines(geometry: Mapping[str, Sequence[Layer]]) -> list[list[str]]:
    return [
        [
            *(name, "embeddings" if not number else str(number), f"{layer.anisotropy:.3f}", f"{layer.within:.3f}"),
            *(f"{layer.rank:.1f} of {layer.width}", f"{100 * layer.first:.1f}", f"{layer.norm:.2f}"),
        ]
        for name, layers in geometry.items()
        for number, layer in enumerate(layers)
    ]


def in_html(found: Findings) -> str:
    parts = [f"<p class=quiet>{html.escape(found.told)}</p>"]
    if found.totals:
        parts += [_overview(found.totals), _glance(found.cuts), *(_section(cut) for cut in found.cuts)]
        parts += [
            _shown("Missed", _MISSED, found.missed),
            _shown("False alarms", _ALARMS, found.alarms),
        ]
    parts.append(_shape(found.geometry))
    return page(f"{found.name}: analysis", "\n".join(parts))


def _overview(totals: Sequence[Band]) -> str:
    whole = totals[0]
    tiles = [
        (f"{whole.auc.value:.3f}" if whole.auc else "none", "detection AUC", "0.5 is chance"),
        (_percent(whole.recall), "recall", "of replaced tokens, at a probability of 0.5"),
        (_percent(whole.precision), "precision", "of tokens that are called replaced"),
        (f"{100 * whole.replaced / whole.tokens:.1f}%", "replaced", f"predicted: {100 * whole.predicted:.1f}%"),
        (f"{whole.loss:.4f}", "loss", "nats a token"),
    ]
    lines = table(["", *_HEADER], [_line(band, with_intervals=True) for band in totals])
    return f"<div class=tiles>{''.join(tile(*said) for said in tiles)}</div>\n<h2>All in all</h2>\n{lines}"


def _percent(share: Share | None) -> str:
    return f"{100 * share.value:.1f}%" if share else "none"


def _glance(cuts: Iterable[Cut]) -> str:
    """Between which bands it is worst and best."""
    lines = [[cut.title, *_ends(cut, "auc", 1, 3), *_ends(cut, "recall", 100, 1)] for cut in cuts]
    header = ["by", "lowest AUC", "highest AUC", "lowest recall %", "highest recall %"]
    return f"<h2>At a glance</h2>\n{table(header, [line for line in lines if any(line[1:])])}"


def _ends(cut: Cut, what: str, scale: float, digits: int) -> list[str]:
    pairs = zip(_clear(cut, what), cut.bands, strict=True)
    rated = sorted((share.value, band.name) for share, band in pairs if share)
    if len(rated) < 2:
        return ["", ""]
    return [f"{scale * value:.{digits}f} ({band})" for value, band in (rated[0], rated[-1])]


def _clear(cut: Cut, what: str) -> list[Share | None]:
    """A share of each band, where it is known well enough."""
    shares = [(band.tokens, getattr(band, what)) for band in cut.bands]
    return [share if share and n >= _FEW and share.high - share.low <= _VAGUE else None for n, share in shares]


def _section(cut: Cut) -> str:
    names, bands = [band.name for band in cut.bands], cut.bands
    auc, recall, precision = (_clear(cut, what) for what in ("auc", "recall", "precision"))
    said = [Share(band.predicted, band.predicted, band.predicted) if band.tokens >= _FEW else None for band in bands]
    true = [
        Share(band.replaced / band.tokens, *wilson(band.replaced, band.tokens)) if band.tokens >= _FEW else None
        for band in bands
    ]
    shown = (
        ("AUC", [Marks("AUC", "held", auc)], ("chance", 0.5)),
        ("Recall and precision", [Marks("recall", "held", recall), Marks("precision", "train", precision)], None),
        ("Share of replaced tokens", [Marks("predicted", "held", said), Marks("true", "train", true)], None),
    )
    figures = [side_by_side(title, names, marks, line) for title, marks, line in shown]
    lines = table(["", *_HEADER], [_line(band, with_intervals=True) for band in bands])
    head = f"<h2>{html.escape(cut.title)}</h2>\n<p class=quiet>{html.escape(cut.told)}</p>"
    return f"{head}\n<div class=charts>{''.join(figures)}</div>\n{lines}"


def _shown(title: str, told: str, examples: Sequence[Example]) -> str:
    if not examples:
        return ""
    rows = "".join(
        f"<tr><td>{100 * one.probability:.1f}%<td>{'' if one.chance is None else f'{100 * one.chance:.1f}%'}"
        f"<td dir=auto>{_in_place(one)}"
        for one in examples
    )
    head = "<tr><th>probability<th>generator's<th>text as it was read"
    return f"<h2>{title}</h2>\n<p class=quiet>{told}</p>\n<div class=wide><table>{head}{rows}</table></div>"


def _in_place(one: Example) -> str:
    left, original, corrupted, right = (html.escape(part) for part in one[:4])
    here = f"<mark>{corrupted}</mark>" if original == corrupted else f"<del>{original}</del> <ins>{corrupted}</ins>"
    return f"{left} {here} {right}"


def _shape(geometry: Mapping[str, Sequence[Layer]]) -> str:
    shown = (
        ("Anisotropy (mean cosine between rows)", lambda layer: layer.anisotropy),
        ("Mean cosine within rows", lambda layer: layer.within),
        ("Effective rank (share of the width)", lambda layer: layer.rank / layer.width),
        ("First component (share of the variance)", lambda layer: layer.first),
    )
    figures = [chart(title, _curves(geometry, value), from_zero=True, along="layer") for title, value in shown]
    told = (
        "Hidden states of the text as it is, layer by layer; 0 are the embeddings, as the first layer reads them. An "
        "encoder with another tokenizer reads the same text in tokens of its own."
    )
    head = f"<h2>Geometry of the layers</h2>\n<p class=quiet>{told}</p>"
    return f"{head}\n<div class=charts>{''.join(figures)}</div>\n{table(_GEOMETRY, _layer_lines(geometry))}"


def _curves(geometry: Mapping[str, Sequence[Layer]], value: Callable[[Layer], float]) -> list[Curve]:
    return [
        Curve(name, COLOURS[number % len(COLOURS)], [(float(i), value(layer)) for i, layer in enumerate(layers)])
        for number, (name, layers) in enumerate(geometry.items())
    ]
