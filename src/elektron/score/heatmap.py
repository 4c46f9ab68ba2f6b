"""A page of text whose words are the redder the likelier they were replaced."""

import html
from collections.abc import Iterable, Iterator, Sequence

from elektron.score.suggest import Suggestion
from elektron.score.words import Word

_HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --red: 214, 40, 40; }}
body {{ margin: 0 auto; max-width: 46rem; padding: 1.5rem; font: 17px/1.7 system-ui, sans-serif; }}
header {{ margin-bottom: 1.5rem; font-size: 14px; opacity: .75; }}
p {{ margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; min-height: 1.7em; }}
span {{ border-radius: 3px; background: rgba(var(--red), var(--p)); }}
span.flagged {{ text-decoration: underline wavy rgb(var(--red)) 1.5px; text-underline-offset: 4px; }}
</style>
<header>{said}</header>
"""


def heatmap(
    title: str,
    threshold: float,
    lines: Iterable[tuple[str, Sequence[Word], Sequence[Sequence[Suggestion]]]],
) -> Iterator[str]:
    """The page in parts: of each line its text, its words and what is suggested for them."""
    said = f"The redder a word, the likelier it was replaced; underlined from {100 * threshold:.0f}%."
    yield _HEAD.format(title=html.escape(title), said=said)
    for text, words, suggestions in lines:
        parts, end = [], 0
        for word, better in zip(words, suggestions, strict=True):
            parts += [html.escape(text[end : word.start]), _span(text, word, better, threshold)]
            end = word.stop
        yield f"<p dir=auto>{''.join(parts)}{html.escape(text[end:])}</p>\n"
    yield "</html>\n"


def _span(text: str, word: Word, better: Sequence[Suggestion], threshold: float) -> str:
    told = f"{100 * word.replaced:.0f}%"
    if better:
        told += ": " + ", ".join(suggestion.text for suggestion in better)
    flagged = " class=flagged" if word.replaced >= threshold else ""
    piece = html.escape(text[word.start : word.stop])
    return f'<span{flagged} style="--p:{0.6 * word.replaced:.2f}" title="{html.escape(told)}">{piece}</span>'
