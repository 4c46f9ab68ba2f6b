"""Text whose words have tags, such as parts of speech, as a stream of tokens beside a stream of their tags.

Both are cut into the same rows, so that what is found of a token is found of its word's tag.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from elektron.data.shards import Stream
from elektron.data.tokenizer import Tokenizer
from elektron.tasks.tagging import Sentence

_LONGEST = 1 << 12
"""Tokens of a document that spaCy reads at a time: it takes no text of any length."""


class Text(NamedTuple):
    """A text and its words, from left to right."""

    text: str
    starts: list[int]
    """Where each word begins."""
    tags: list[str]


class Tagged(NamedTuple):
    """Tokens and the numbers of their tags."""

    tokens: Stream
    tags: Stream
    names: list[str]


def of_sentences(sentences: Iterable[Sentence]) -> Iterator[Text]:
    """Words with a space between them."""
    for words, tags in sentences:
        starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
        yield Text(" ".join(words), starts.tolist(), tags)


def by_spacy(pipeline: str, texts: Iterable[str]) -> Iterator[Text]:
    """Universal parts of speech from a spaCy pipeline, by its name or its folder."""
    try:
        load = import_module("spacy").load
    except ImportError as error:
        raise ValueError("--spacy needs `pip install 'elektron[spacy]'`") from error
    try:
        reads = load(pipeline)
    except OSError as error:
        raise ValueError(f"--spacy {pipeline}: no pipeline that is installed, and no folder of one") from error
    for read in reads.pipe(texts):
        yield Text(read.text, [word.idx for word in read], [word.pos_ for word in read])


def documents(stream: Stream, tokenizer: Tokenizer, tokens: int) -> Iterator[str]:
    """The first `tokens` of a stream as text again, document by document."""
    reach = min(tokens, stream.tokens)
    ends = np.unique([*stream.ends(reach), *range(0, reach, _LONGEST), reach])
    for start, end in pairwise(ends.tolist()):
        yield tokenizer.text(stream.read(np.array([start]), end - start)[0].tolist())


def tagged(texts: Iterable[Text], tokenizer: Tokenizer, source: str) -> Tagged:
    """A token has the tag of the word in which it begins. `source` is where texts are from, for complaints."""
    some = [text for text in texts if text.tags]
    names = sorted({tag for text in some for tag in text.tags})
    numbers = {name: number for number, name in enumerate(names)}
    pieces = tokenizer.split([text.text for text in some])
    ids = [part.ids.astype(np.int64) for part in pieces]
    if not any(names) or not any(map(len, ids)):
        raise ValueError(f"{source}: no word has a tag")
    tags = [_tags(text, part.offsets, numbers) for text, part in zip(some, pieces, strict=True)]
    ends = np.unique(np.cumsum([len(part) for part in ids]))
    streams = (Stream([np.concatenate(parts)], ends) for parts in (ids, tags))
    return Tagged(*streams, names=[name or "none" for name in names])


def _tags(text: Text, offsets: np.ndarray, numbers: dict[str, int]) -> np.ndarray:
    """Of tokens with these characters; some tokenizers count the space before a word as of it."""
    begins = [start + (stop > start and text.text[start].isspace()) for start, stop in offsets.tolist()]
    words = np.searchsorted(text.starts, begins, side="right") - 1
    return np.array([numbers[tag] for tag in text.tags], dtype=np.int64)[np.maximum(words, 0)]
