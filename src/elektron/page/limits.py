"""How much, and how often: limits that hold before anything is parsed."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elektron.page.refusals import RefusedError, refusal

_ADDRESSES = 4096
"""That are remembered; the one that was silent the longest is forgotten first."""
_BODY_SECONDS = 20.0
"""A body that takes longer to arrive is not waited for."""


class Buckets:
    """A bucket of tokens for each address: full at first, one for each request, filled at a rate."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait_seconds(self, address: str) -> float:
        """0 if the address may go on, and a token is taken; else how long until it may."""
        now = self._clock()
        level, since = self._levels.pop(address, (float(self._burst), now))
        level = min(float(self._burst), level + self._rate * (now - since))
        may = level >= 1
        self._levels[address] = (level - may, now)
        if len(self._levels) > _ADDRESSES:
            self._levels.popitem(last=False)
        return 0.0 if may else (1 - level) / self._rate


class RateLimit:
    """Requests to the API, by the address they come from."""

    def __init__(self, app: ASGIApp, buckets: Buckets) -> None:
        self._app, self._buckets = app, buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/api/"):
            wait = self._buckets.wait_seconds((scope.get("client") or ("",))[0])
            if wait:
                said = "Too many requests from this address: wait a little."
                await refusal(429, "too_many_requests", said, max(1, math.ceil(wait)))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Bodies are read here, up to a limit and not for ever, and handed on whole."""

    def __init__(self, app: ASGIApp, most_bytes: int, seconds: float = _BODY_SECONDS) -> None:
        self._app, self._most, self._seconds = app, most_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._body(scope, receive), self._seconds)
        except RefusedError as refused:
            await refused.answer(scope, receive, send)
        except TimeoutError:
            await refusal(408, "too_slow", "The body took too long to arrive.")(scope, receive, send)
        else:
            await self._app(scope, _replayed(body, receive), send)

    async def _body(self, scope: Scope, receive: Receive) -> Message:
        self._check(int(dict(scope["headers"]).get(b"content-length", b"0")))
        body, goes_on = b"", True
        while goes_on:
            message = await receive()
            if message["type"] == "http.disconnect":
                return message
            body += message.get("body", b"")
            self._check(len(body))
            goes_on = message.get("more_body", False)
        return {"type": "http.request", "body": body, "more_body": False}

    def _check(self, size: int) -> None:
        if size > self._most:
            raise RefusedError(413, "body_too_large", f"The body is larger than {self._most:,} bytes.")


def _replayed(first: Message, receive: Receive) -> Receive:
    left = [first]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
