"""The discriminator's judgement of a text, word by word."""

from typing import NamedTuple

import torch

from elektron.data.tokenizer import Tokenizer
from elektron.model.heads import Discriminator


class Word(NamedTuple):
    """A word of the text and how likely it was replaced."""

    start: int
    stop: int
    replaced: float


@torch.no_grad()
def judge(discriminator: Discriminator, tokenizer: Tokenizer, text: str) -> list[Word]:
    """The words of a text that fits the model's positions; a word of several tokens is as suspicious as its worst."""
    tokens = tokenizer.split(text)
    room = discriminator.encoder.config.positions - 2
    if len(tokens) > room:
        raise ValueError(f"the text has {len(tokens)} tokens, the model reads {room} at a time")
    device = next(discriminator.parameters()).device
    ids = [tokenizer.specials.cls, *(token.id for token in tokens), tokenizer.specials.sep]
    row = torch.tensor([ids], device=device)
    probabilities = discriminator(row, torch.zeros_like(row)).sigmoid()[0, 1:-1].tolist()
    words: dict[int, Word] = {}
    for token, probability in zip(tokens, probabilities, strict=True):
        before = words.get(token.word, Word(token.start, token.stop, probability))
        words[token.word] = Word(before.start, token.stop, max(before.replaced, probability))
    return list(words.values())
