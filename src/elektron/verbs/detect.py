"""elektron detect [FILE ...] --model MODEL: how likely each word of a text was replaced, as the discriminator sees it.
Reads standard input if there is no file."""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from elektron.config import parse
from elektron.data.files import write_parts
from elektron.score.detector import Detector
from elektron.score.heatmap import heatmap
from elektron.score.lines import Line, keep_bytes
from elektron.score.suggest import Suggestion
from elektron.score.words import Word
from elektron.verbs.judges import Asked, gathered_for, lines_of, open_judges

_RED, _DIM, _PLAIN = "\x1b[48;2;{};0;0m", "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, kw_only=True)
class Config(Asked):
    """elektron detect"""

    suggest: int = 3
    """How many it suggests for a word; 0: none."""
    threshold: float = -1.0
    """How likely a word was replaced for it to be marked; if negative, as calibrated, or 0.5."""
    json: bool = False
    """Print a JSON object for each line, with all its words."""
    html: str = ""
    """Write a page to this file, in which all words are shaded."""
    color: Literal["auto", "always", "never"] = "auto"
    """auto: colours in a terminal, brackets elsewhere."""

    def __post_init__(self) -> None:
        if self.threshold > 1:
            raise ValueError(f"--threshold is a probability, not {self.threshold}")
        if self.suggest < 0:
            raise ValueError(f"--suggest is at least 0, not {self.suggest}")
        if self.json and self.html:
            raise ValueError("one of --json and --html")


class Marked(NamedTuple):
    """A line, its words, and what would be better in the place of those that are marked."""

    line: Line
    words: list[Word]
    suggestions: list[list[Suggestion]]


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron detect", __doc__ or "", first="files")
    detector = open_judges(config).detector(suggests=bool(config.suggest))
    if config.threshold < 0:
        config = replace(config, threshold=detector.calibration.threshold)
    words = marked = 0

    def counted() -> Iterator[Marked]:
        nonlocal words, marked
        for found in _marked(config, detector):
            words += len(found.words)
            marked += sum(word.replaced >= config.threshold for word in found.words)
            yield found

    if config.html:
        page = heatmap(Path(config.html).stem, config.threshold, ((found.line.text, *found[1:]) for found in counted()))
        write_parts(Path(config.html), (part.encode("utf-8", "replace") for part in page))
    else:
        _print(config, counted())
    print(f"{marked:,} of {words:,} words look replaced ({config.threshold:.3g} or more)", file=sys.stderr)
    if config.html:
        print(f"page: {config.html}", file=sys.stderr)


def _marked(config: Config, detector: Detector) -> Iterator[Marked]:
    """Line by line; from a keyboard, each as soon as it is there."""
    waiting: deque[Line] = deque()

    def texts() -> Iterator[str]:
        for line in lines_of(config, is_printing=not config.html):
            waiting.append(line)
            yield line.text

    for reading, words in detector.judge(texts(), gathered_for(config)):
        better: list[list[Suggestion]] = [[] for _ in words]
        marked = [n for n, word in enumerate(words) if word.replaced >= config.threshold]
        suggestions = detector.suggest([(reading, words[n]) for n in marked], config.suggest)
        for n, others in zip(marked, suggestions, strict=True):
            better[n] = others
        yield Marked(waiting.popleft(), words, better)


def _print(config: Config, judged: Iterator[Marked]) -> None:
    keep_bytes(sys.stdout)
    is_live = sys.stdout.isatty()
    in_colour = config.color == "always" or (config.color == "auto" and is_live)
    for found in judged:
        if config.json:
            print(_json(found), flush=is_live)
            continue
        marked = _coloured if in_colour else _bracketed
        print(marked(found, config.threshold), end=found.line.end, flush=is_live)


def _json(found: Marked) -> str:
    text, _, record = found.line
    words = [_described(text, *pair) for pair in zip(found.words, found.suggestions, strict=True)]
    content = {**record, **({} if record else {"text": text}), "words": words}
    try:
        return json.dumps(content, ensure_ascii=False).encode().decode()
    except UnicodeEncodeError:  # bytes that are no characters
        return json.dumps(content)


def _described(text: str, word: Word, better: list[Suggestion]) -> dict[str, Any]:
    told = {"start": word.start, "stop": word.stop, "text": text[word.start : word.stop]}
    told["replaced"] = round(word.replaced, 6)
    return told | ({"suggestions": [[other.text, round(other.probability, 6)] for other in better]} if better else {})


def _coloured(found: Marked, threshold: float) -> str:
    """The text itself, with red behind the words that are marked; below it, what would be better."""

    def reddened(piece: str, word: Word, _: list[Suggestion]) -> str:
        return f"{_RED.format(int(80 + 140 * word.replaced))}{piece}{_PLAIN}"

    below = [
        f"\n{_DIM}  {found.line.text[word.start : word.stop]} {_told(word, better)}{_PLAIN}"
        for word, better in zip(found.words, found.suggestions, strict=True)
        if better
    ]
    return _woven(found, threshold, reddened) + "".join(below)


def _bracketed(found: Marked, threshold: float) -> str:
    return _woven(found, threshold, lambda piece, word, better: f"[{piece} {_told(word, better)}]")


def _told(word: Word, better: list[Suggestion]) -> str:
    others = f": {', '.join(other.text for other in better)}" if better else ""
    return f"{100 * word.replaced:.0f}%{others}"


def _woven(found: Marked, threshold: float, marked: Callable[[str, Word, list[Suggestion]], str]) -> str:
    """The text with its marked words otherwise."""
    text, parts, end = found.line.text, [], 0
    for word, better in zip(found.words, found.suggestions, strict=True):
        if word.replaced >= threshold:
            parts += [text[end : word.start], marked(text[word.start : word.stop], word, better)]
            end = word.stop
    return "".join(parts) + text[end:]
