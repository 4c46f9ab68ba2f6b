"""What goes over the wire, in and out, as /openapi.json describes it."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from elektron.score.suggest import Suggestion
from elektron.score.words import Word

MOST_WORDS, MOST_SUGGESTIONS = 64, 20
_DIGITS = 6


def _text(value: object) -> str:
    """As it is: unlike the library's own check, half a surrogate pair is let through."""
    if not isinstance(value, str):
        raise ValueError("a string is needed")
    return value


def _whole(value: object) -> object:
    if isinstance(value, bool | float | str):
        raise ValueError("a whole number is needed")
    return value


Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string"})]
Whole = Annotated[int, BeforeValidator(_whole)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: Text = Field(description="Any text, of several lines too. It is read as one.")


class DetectRequest(_Asked):
    """A text to judge."""


class SuggestRequest(_Asked):
    """Words of a text for which others are wanted."""

    words: list[Annotated[Whole, Field(ge=0)]] = Field(
        max_length=MOST_WORDS, description="Where the words start, as told by /api/detect for the same text."
    )
    count: Annotated[Whole, Field(ge=1, le=MOST_SUGGESTIONS)] = Field(default=5, description="How many for each.")


class DetectedWord(BaseModel):
    start: int = Field(description="Its first code point.")
    stop: int = Field(description="The code point after its last.")
    replaced: float = Field(description="How likely it was replaced.")

    @classmethod
    def of(cls, word: Word, _: Sequence[Suggestion]) -> Self:
        return cls(start=word.start, stop=word.stop, replaced=round(word.replaced, _DIGITS))


class Detected(BaseModel):
    words: list[DetectedWord] = Field(description="From left to right, without white space and without overlap.")
    threshold: float = Field(description="From which probability on the server would mark a word.")


class OtherWord(BaseModel):
    text: str
    probability: float = Field(description="How likely the generator finds it in this place.")


class SuggestedWord(BaseModel):
    start: int
    stop: int
    suggestions: list[OtherWord] = Field(description="Best first; empty if the model has no generator.")

    @classmethod
    def of(cls, word: Word, better: Sequence[Suggestion]) -> Self:
        others = [OtherWord(text=other.text, probability=round(other.probability, _DIGITS)) for other in better]
        return cls(start=word.start, stop=word.stop, suggestions=others)


class Suggested(BaseModel):
    words: list[SuggestedWord] = Field(description="In the order in which they were asked for.")


class Health(BaseModel):
    status: str = "ok"
