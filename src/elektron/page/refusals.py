"""How the server says no: one shape of JSON for every error, and nothing of what was asked in it or in a log."""

import logging
import traceback

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CODES = {400: "malformed", 404: "unknown_path", 405: "wrong_method"}
_SENTENCES = {
    400: "The body is no JSON.",
    404: "There is nothing under this path; /openapi.json tells what there is.",
    405: "This path does not take this method; /openapi.json tells which.",
}
_FIELDS = ("text", "words", "count")
_NO_OBJECT = {"missing", "json_invalid", "model_attributes_type", "model_type", "dict_type"}
_LOG = logging.getLogger("elektron.page")


class Error(BaseModel):
    code: str = Field(description="A name that stays: body_too_large, text_too_long, malformed, invalid, busy, ...")
    message: str = Field(description="A sentence for people.")


class Problem(BaseModel):
    """What every answer from 400 on looks like."""

    error: Error


class RefusedError(Exception):
    """Raised where a request cannot be answered."""

    def __init__(self, status: int, code: str, message: str, wait_seconds: int = 0) -> None:
        super().__init__(code)
        self.answer = refusal(status, code, message, wait_seconds)


def refusal(status: int, code: str, message: str, wait_seconds: int = 0) -> JSONResponse:
    headers = {"Retry-After": str(wait_seconds)} if wait_seconds else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


def refuse_kindly(app: FastAPI) -> None:
    """Let the app's own errors, and those of the libraries under it, have our shape."""

    async def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RefusedError)
        return error.answer

    async def of_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        status = error.status_code
        answer = refusal(status, _CODES.get(status, "refused"), _SENTENCES.get(status, "That cannot be answered."))
        answer.headers.update(error.headers or {})
        return answer

    async def of_shape(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return _misshapen(error)

    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_shape)


def _misshapen(error: RequestValidationError) -> JSONResponse:
    """The library's own account repeats what was sent; ours names the field only."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return refusal(400, "malformed", _SENTENCES[400])
    names = [place for place in first["loc"] if place in _FIELDS]
    if names and first["type"] != "extra_forbidden":
        said = "it is missing" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
        return refusal(422, "invalid", f'"{names[0]}": {said}.')
    if first["type"] in _NO_OBJECT:
        return refusal(422, "invalid", 'The body is to be a JSON object with a "text".')
    return refusal(422, "invalid", "The body has a field that is not known here; /openapi.json tells which are.")


class Catch:
    """Around the whole app: what nobody has foreseen is told as such, and logged by its kind and place alone, since the
    words of an exception may be those of a text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            places = "".join(traceback.format_tb(error.__traceback__))
            _LOG.error("%s while answering\n%s", type(error).__name__, places)
            if scope["type"] == "http" and not has_begun:
                await refusal(500, "failed", "Something broke here; it was not your text.")(scope, receive, send)
