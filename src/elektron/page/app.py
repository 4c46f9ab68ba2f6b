"""The page and its JSON API: what is asked, what is answered, and where."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Security
from fastapi.responses import FileResponse
from fastapi.security import HTTPBearer

from elektron import __version__
from elektron.page.answers import Detect, Question, Suggest, Told, answers, size_of
from elektron.page.batching import Batcher, BusyError
from elektron.page.doors import Careful, Doors, Guard
from elektron.page.facts import Facts
from elektron.page.limits import BodyLimit, Buckets, RateLimit
from elektron.page.refusals import Catch, Problem, RefusedError, refuse_kindly
from elektron.page.shapes import Detected, DetectedWord, DetectRequest, Health, Suggested, SuggestedWord, SuggestRequest
from elektron.page.terms import Limits
from elektron.score.detector import Detector

STATIC = Path(__file__).parent / "static"
_TOGETHER = 1 << 16
"""Characters that are read in one call."""
_DESCRIPTION = """How likely each word of a text was replaced, as an ELECTRA discriminator sees it, and what its
generator would rather have read. Offsets count Unicode code points, as Python does; JavaScript's strings count UTF-16
units, in which some characters are two. What is sent is neither kept nor logged."""
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in {
        400: "The body is no JSON.",
        401: "The server was started with a token, and this is not it.",
        403: "Another host or origin than this machine.",
        408: "The body took too long to arrive.",
        413: "The text or the body is too long.",
        415: "The body is not said to be JSON.",
        422: "The body is JSON of another shape.",
        429: "Too many requests; Retry-After tells how many seconds to wait.",
        503: "Too many requests are waiting already.",
    }.items()
}
Desk = Batcher[Question, list[Told]]
T = TypeVar("T")


def create_app(detector: Detector, facts: Facts, limits: Limits, doors: Doors) -> FastAPI:
    desk: Desk = Batcher(partial(answers, detector), size_of, limits.waiting, _TOGETHER)

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
    app.add_middleware(BodyLimit, most_bytes=limits.body_bytes)  # the innermost
    app.add_middleware(Guard, check=doors.unfit)
    app.add_middleware(RateLimit, buckets=Buckets(limits.rate, limits.burst))
    app.add_middleware(Guard, check=doors.from_elsewhere)
    app.add_middleware(Catch)
    app.add_middleware(Careful)
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


def _add_routes(app: FastAPI, desk: Desk, facts: Facts, limits: Limits) -> None:
    bearer = HTTPBearer(auto_error=False, description="Only where the server was started with a token.")
    told = {"responses": _REFUSALS, "dependencies": [Security(bearer)]}  # for /openapi.json: doors.py is who checks

    @app.post("/api/detect", summary="How likely each word was replaced", **told)
    async def detect(asked: DetectRequest, request: Request) -> Detected:
        _check_length(asked.text, limits)
        words = await _while_wanted(request, desk.ask(Detect(asked.text)))
        return Detected(words=[DetectedWord.of(*each) for each in words], threshold=facts.threshold)

    @app.post("/api/suggest", summary="What would be better in the place of some words", **told)
    async def suggest(asked: SuggestRequest, request: Request) -> Suggested:
        _check_length(asked.text, limits)
        words = await _while_wanted(request, desk.ask(Suggest(asked.text, tuple(asked.words), asked.count)))
        missing = set(asked.words) - {word.start for word, _ in words}
        if missing:
            raise RefusedError(422, "no_such_word", f"No word of this text starts at {min(missing)}.")
        return Suggested(words=[SuggestedWord.of(*each) for each in words])

    @app.get("/api/model", summary="Facts about the model", **told)
    async def model() -> Facts:
        return facts

    @app.get("/health", summary="Whether the server is there")
    async def health() -> Health:
        return Health()


def _check_length(text: str, limits: Limits) -> None:
    if len(text) > limits.characters:
        said = f"The text has {len(text):,} characters; this server reads up to {limits.characters:,}."
        raise RefusedError(413, "text_too_long", said)


async def _while_wanted(request: Request, answer: Awaitable[T]) -> T:
    """An answer, unless whoever asked has hung up before it was begun: people type faster than networks read."""
    asking, gone = asyncio.ensure_future(answer), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        raise RefusedError(400, "gone", "Nobody waits for this any more.")
    except BusyError:
        raise RefusedError(503, "busy", "Too many requests are waiting: try again in a moment.", 1) from None
    finally:
        asking.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
