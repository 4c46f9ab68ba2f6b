"""A run's report: one HTML page with its curves and facts, drawn from its records, that needs nothing else."""

import html
from collections.abc import Mapping, Sequence

from elektron.train.charts import Curve, chart, page, tile
from elektron.train.metrics import Record

_FROM_ZERO = {"Learning rate", "Tokens a second"}


def report_page(name: str, records: Sequence[Record], config: str) -> str:
    """The whole page. `config` is the run's config.toml."""
    by_kind = {kind: [r for r in records if r["kind"] == kind] for kind in ("run", "train", "held", "health")}
    facts = by_kind["run"][0] if by_kind["run"] else {}
    tiles = "".join(tile(*said) for said in _tiles(facts, by_kind["train"], by_kind["held"]))
    charts = _charts(facts, by_kind["train"], by_kind["held"])
    troubles = "".join(f"<li>step {r['step']:,}: {html.escape(r['message'])}</li>" for r in by_kind["health"])
    body = _BODY.format(
        tiles=tiles,
        troubles=f"<ul class=troubles>{troubles}</ul>" if troubles else "<p class=quiet>No trouble was noticed.</p>",
        charts="".join(chart(title, curves, title in _FROM_ZERO) for title, curves in charts),
        facts="".join(f"<tr><th>{label}<td>{value}" for label, value in _facts(facts)),
        config=html.escape(config),
    )
    return page(name, body)


def quality_page(name: str, scores: Mapping[str, Sequence[tuple[int, float]]], known: Mapping[str, float]) -> str:
    """How well checkpoints do on each task, by the steps they have seen; `known` are scores to hold them against."""
    figures = []
    for task, points in scores.items():
        ends = [(min(step for step, _ in points), known[task]), (max(step for step, _ in points), known[task])]
        marks = [Curve("published, Small on OpenWebText", "mark", [*ends])] if task in known else []
        figures.append(chart(task, [*marks, Curve("median of the seeds", "held", sorted(points))]))
    said = "Scores on the development sets in percent, by steps of pre-training."
    return page(name, f"<p class=quiet>{said}</p>\n<div class=charts>{''.join(figures)}</div>")


def _tiles(facts: Record, train: list[Record], held: list[Record]) -> list[tuple[str, str, str]]:
    """(value, label, note)"""
    tiles = []
    if held:
        last = held[-1]
        if "detection_auc" in last:
            tiles.append((f"{last['detection_auc']:.3f}", "detection AUC, held out", "0.5 is chance"))
        notes = {
            "generator": f"word frequencies: {facts['unigram_loss']:.2f}",
            "encoder": f"word frequencies: {facts['unigram_loss']:.2f}",
            "discriminator": f"recall {last.get('discriminator_recall', 0):.2f}",
        }
        for name in (field.removesuffix("_loss") for field in last if field.endswith("_loss")):
            tiles.append((f"{last[f'{name}_loss']:.3f}", f"{name} loss, held out", notes.get(name, "")))
    if train:
        speed = sum(r["clock"]["tokens_per_second"] * r["clock"]["seconds"] for r in train)
        seconds = sum(r["clock"]["seconds"] for r in train)
        tiles.append((f"{speed / seconds:,.0f}", "tokens a second", f"{seconds / 60:,.1f} minutes of training"))
        tiles.append((f"{train[-1]['step']:,}", "steps", f"of {facts['steps']:,}"))
    return tiles


def _facts(facts: Record) -> list[tuple[str, str]]:
    if not facts:
        return []
    return [
        *((name, f"{count:,} parameters") for name, count in facts["networks"].items()),
        ("trained together", f"{facts['parameters']:,} parameters"),
        ("vocabulary", f"{facts['vocab_size']:,} tokens"),
        ("corpus", f"{facts['corpus_tokens']:,} tokens, and {facts['held_tokens']:,} held out"),
        ("budget", f"{facts['tokens']:,} tokens, {facts['epochs']:.2f} epochs, {facts['flops']:.2e} FLOPs"),
        ("device", html.escape(f"{facts['clock']['device']}, torch {facts['clock']['torch']}")),
        ("elektron", html.escape(facts["clock"]["elektron"])),
    ]


def _charts(facts: Record, train: list[Record], held: list[Record]) -> list[tuple[str, list[Curve]]]:
    def curve(name: str, style: str, records: list[Record], field: str) -> Curve:
        return Curve(name, style, [(r["step"], r[field]) for r in records if field in r])

    def mark(name: str, value: float) -> Curve:
        steps = [r["step"] for r in [*train, *held]] or [0]
        return Curve(name, "mark", [(min(steps), value), (max(steps), value)])

    speeds = [{"step": r["step"], **r["clock"]} for r in train]
    unigram = [mark("word frequencies", facts.get("unigram_loss", 0.0))]
    shown = [
        ("Generator loss (nats a masked token)", "generator_loss", unigram),
        ("Encoder loss (nats a token it names)", "encoder_loss", unigram),
        ("Discriminator loss (nats a token)", "discriminator_loss", []),
        ("Detection AUC", "detection_auc", [mark("chance", 0.5)]),
        ("Replaced tokens (share of all)", "replaced_rate", []),
        ("Generator accuracy (masked tokens)", "generator_accuracy", []),
        ("Encoder accuracy (tokens it names)", "encoder_accuracy", []),
    ]
    return [
        *(
            (title, [*marks, curve("train", "train", train, field), curve("held out", "held", held, field)])
            for title, field, marks in shown
            if any(field in record for record in [*train, *held])
        ),
        ("Learning rate", [curve("learning rate", "train", train, "learning_rate")]),
        ("Gradient norm", [curve("before clipping", "train", train, "gradient_norm")]),
        ("Tokens a second", [curve("tokens/s", "train", speeds, "tokens_per_second")]),
    ]


_BODY = """<div class=tiles>{tiles}</div>
<h2>Health</h2>
{troubles}
<h2>Curves</h2>
<div class=charts>{charts}</div>
<h2>The run</h2>
<table>{facts}</table>
<details><summary>config.toml: repeats this run</summary><pre>{config}</pre></details>"""
