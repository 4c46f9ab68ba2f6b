"""The page and its JSON API: what is asked, what is answered, and where."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Security
from fastapi.responses import FileResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from elektron import __version__
from elektron.page.answers import Answer, Detect, Question, Suggest, answers, size_of
from elektron.page.batching import Batcher, Busy
from elektron.page.doors import Careful, Doors, Guard
from elektron.page.facts import Facts
from elektron.page.limits import BodyLimit, Buckets, RateLimit
from elektron.page.refusals import Catch, Problem, Refused, refuse_kindly
from elektron.page.terms import Limits
from elektron.score.detector import Detector

STATIC = Path(__file__).parent / "static"
MOST_WORDS, MOST_SUGGESTIONS = 64, 20
_TOGETHER = 1 << 16
"""Characters that are read in one call."""
_DIGITS = 6
_DESCRIPTION = """How likely each word of a text was replaced, as an ELECTRA discriminator sees it, and what its generator
would rather have read. Offsets count Unicode code points, as Python does; JavaScript's strings count UTF-16 units, in which
some characters are two. What is sent is neither kept nor logged."""
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in {
        400: "The body is no JSON.",
        401: "The server was started with a token, and this is not it.",
        403: "Another host or origin than this machine.",
        413: "The text or the body is too long.",
        415: "The body is not said to be JSON.",
        422: "The body is JSON of another shape.",
        429: "Too many requests; Retry-After tells how many seconds to wait.",
        503: "Too many requests are waiting already.",
    }.items()
}
T = TypeVar("T")


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


class Suggested(BaseModel):
    words: list[SuggestedWord] = Field(description="In the order in which they were asked for.")


class Health(BaseModel):
    status: str = "ok"


def create_app(detector: Detector, facts: Facts, limits: Limits, doors: Doors) -> FastAPI:
    desk: Batcher[Question, Answer] = Batcher(partial(answers, detector), size_of, limits.waiting, _TOGETHER)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(desk.close)

    app = FastAPI(
        title="Elektron",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
    )
    refuse_kindly(app)
    for kind, settings in (  # the innermost first
        (BodyLimit, {"most_bytes": limits.body_bytes}),
        (Guard, {"doors": doors}),
        (RateLimit, {"buckets": Buckets(limits.rate, limits.burst)}),
        (Catch, {}),
        (Careful, {}),
    ):
        app.add_middleware(kind, **settings)
    _add_routes(app, desk, facts, limits)
    _add_files(app)
    return app


def _add_files(app: FastAPI) -> None:
    """A path for each file: there is nothing to climb out of."""
    for path in sorted(STATIC.iterdir()):
        names = ("/", f"/{path.name}") if path.name == "index.html" else (f"/{path.name}",)
        for name in names:
            app.add_route(name, partial(_file, path), include_in_schema=False)


async def _file(path: Path, _: Request) -> FileResponse:
    return FileResponse(path)


def _add_routes(app: FastAPI, desk: Batcher[Question, Answer], facts: Facts, limits: Limits) -> None:
    bearer = HTTPBearer(auto_error=False, description="Only where the server was started with a token.")
    told = {"responses": _REFUSALS, "dependencies": [Security(bearer)]}  # for /openapi.json: doors.py is who checks

    @app.post("/api/detect", summary="How likely each word was replaced", **told)
    async def detect(asked: DetectRequest, request: Request) -> Detected:
        _check_length(asked.text, limits)
        words: Any = await _while_wanted(request, lambda: desk.ask(Detect(asked.text)))
        found = [DetectedWord(start=w.start, stop=w.stop, replaced=round(w.replaced, _DIGITS)) for w in words]
        return Detected(words=found, threshold=facts.threshold)

    @app.post("/api/suggest", summary="What would be better in the place of some words", **told)
    async def suggest(asked: SuggestRequest, request: Request) -> Suggested:
        _check_length(asked.text, limits)
        question = Suggest(asked.text, tuple(asked.words), asked.count)
        found: Any = await _while_wanted(request, lambda: desk.ask(question))
        if isinstance(found, KeyError):
            raise Refused(422, "no_such_word", f"No word of this text starts at {found.args[0]}.")
        return Suggested(words=[_suggested(*better) for better in found])

    @app.get("/api/model", summary="Facts about the model", **told)
    async def model() -> Facts:
        return facts

    @app.get("/health", summary="Whether the server is there")
    async def health() -> Health:
        return Health()


def _suggested(word: Any, others: Any) -> SuggestedWord:  # noqa: ANN401
    told = [OtherWord(text=other.text, probability=round(other.probability, _DIGITS)) for other in others]
    return SuggestedWord(start=word.start, stop=word.stop, suggestions=told)


def _check_length(text: str, limits: Limits) -> None:
    if len(text) > limits.characters:
        said = f"The text has {len(text):,} characters; this server reads up to {limits.characters:,}."
        raise Refused(413, "text_too_long", said)


async def _while_wanted(request: Request, ask: Callable[[], Awaitable[T]]) -> T:
    """An answer, unless whoever asked has hung up before it was begun: people type faster than networks read."""
    asking, gone = asyncio.ensure_future(ask()), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        raise Refused(400, "gone", "Nobody waits for this any more.")
    except Busy:
        raise Refused(503, "busy", "Too many requests are waiting: try again in a moment.", 1) from None
    finally:
        asking.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
