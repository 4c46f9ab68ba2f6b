"""elektron page --model MODEL: a web page on this machine. Type, and see which words look replaced and what would be
better; a JSON API is under it."""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elektron.config import parse
from elektron.page.terms import Limits, is_loopback
from elektron.verbs.judges import Who, open_judges
from elektron.verbs.runs import DISCRIMINATOR

TOKEN = "ELEKTRON_TOKEN"
_SHORTEST = 16
"""Characters of a token that is not soon guessed."""
_MEANT = (
    f"If they are to be let in, say --public and set {TOKEN}, for instance to what "
    '`python -c "import secrets; print(secrets.token_urlsafe())"` prints'
)
_PACKAGED = "Elektron's small English model"


@dataclass(frozen=True, kw_only=True)
class Config(Who):
    """elektron page"""

    host: str = "127.0.0.1"
    """The address to serve on; one that others than this machine reach only with --public and a token."""
    port: int = 8391
    """0: any that is free."""
    public: bool = False
    """Let others than this machine in, directly or through a proxy, if they know the token."""
    token: str = ""
    """What the API demands as a bearer token. Better given as the environment variable ELEKTRON_TOKEN: others can see
    what is on a command line."""
    threshold: float = -1.0
    """How likely a word was replaced for it to be marked at first; if negative, as calibrated, or 0.5."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.threshold > 1:
            raise ValueError(f"--threshold is a probability, not {self.threshold}")
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"--port {self.port}: there are ports from 0 to 65535")


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron page", __doc__ or "")
    token = _token(config)
    try:
        import uvicorn
    except ImportError as error:
        raise ValueError("elektron page needs `pip install 'elektron[page]'`") from error
    with _bound(config) as door, suppress(KeyboardInterrupt):
        app = _app(config, token)
        print(_greeting(config, door.getsockname()[1], token), flush=True)
        settings = uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            log_level="warning",
            proxy_headers=False,  # anybody could claim to be anybody, and have a rate of his own
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=5,
        )
        uvicorn.Server(settings).run(sockets=[door])


def _token(config: Config) -> str:
    """The token, if there is one; refuses to go beyond this machine without."""
    token = config.token or os.environ.get(TOKEN, "")
    if token and (len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError(f"a token has at least {_SHORTEST} characters, printable ASCII without spaces")
    if not is_loopback(config.host) and not config.public:
        raise ValueError(f"--host {config.host} is reached by others than this machine. {_MEANT}")
    if config.public and not token:
        raise ValueError(f"--public needs a token. {_MEANT}")
    return token


def _bound(config: Config) -> socket.socket:
    """Bound before the model is read, so that a port that is taken is told at once."""
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((config.host, config.port), family=family, backlog=1024)
    except OSError as error:
        why = (error.strerror or "").split(" (")[0]  # without the address, which Python repeats
        raise ValueError(
            f"cannot serve on {config.host}, port {config.port}: {why}; --port 0 takes one that is free"
        ) from error


def _app(config: Config, token: str) -> Any:  # noqa: ANN401
    from elektron.page.app import create_app
    from elektron.page.doors import Doors
    from elektron.page.facts import facts_of

    judges = open_judges(config)
    detector = judges.detector(suggests=True)
    assert judges.discriminator is not None
    threshold = detector.calibration.threshold if config.threshold < 0 else config.threshold
    facts = facts_of(_name(config), judges.home, judges.discriminator, detector, threshold, config.limits.characters)
    list(detector.judge(["The first text takes longer than the others."]))
    return create_app(detector, facts, config.limits, Doors(token, config.public))


def _name(config: Config) -> str:
    """What the model is called: its folder, or the one around it."""
    path = Path(config.model).resolve()
    return (path.parent.name if path.name == DISCRIMINATOR else path.name) if config.model else _PACKAGED


def _greeting(config: Config, port: int, token: str) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    where = f"http://{host}:{port}/"
    way_in = f"\nIt asks for the token: open {where}#token=TOKEN, with yours in its place." if token else ""
    return f"{_name(config)} reads what you type at {where}{way_in}\nCtrl-C ends it."
