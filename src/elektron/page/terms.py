"""On which terms the page answers: plain values, so that the command line knows them without the web's libraries."""

import ipaddress
from dataclasses import dataclass

_BYTES_OF_A_CHARACTER = 12
"""In JSON at the most: two escapes."""
_BYTES_AROUND = 4096


@dataclass(frozen=True)
class Limits:
    """What one may ask for."""

    characters: int = 20_000
    """Of a text."""
    rate: float = 20.0
    """Requests a second of one address, over some time."""
    burst: int = 60
    """Requests of one address that may come at once."""
    waiting: int = 256
    """Requests that may wait for the network."""

    def __post_init__(self) -> None:
        for name in ("characters", "rate", "burst", "waiting"):
            if getattr(self, name) <= 0:
                raise ValueError(f"--limits.{name} is more than 0, not {getattr(self, name)}")

    @property
    def body_bytes(self) -> int:
        return self.characters * _BYTES_OF_A_CHARACTER + _BYTES_AROUND


def is_loopback(host: str) -> bool:
    """Whether a host is reached by this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
