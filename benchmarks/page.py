"""The page's API as people and programs meet it: how soon it answers 200 words, and fifty clients at once.

    python benchmarks/page.py [--model FOLDER] [--seconds 30] [--clients 50] [--words 200]

No two requests have the same text, and the server's rate limit is raised. Told are milliseconds from the sending of a
request to the last byte of its answer: first of one client alone, then of many that each ask again as soon as they are
answered. Clients and server share the machine's cores.
"""

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence

import httpx

from served import server

_ALONE = 50
_WARM = 5
_WORDS = """the of and a to in is was he for it with as his on be at by had not are but from or have an they which one
you were her all she there would their we him been has when who will more no if out so said what up its about into than
them can only other new some could time these two may then do first any my now such like our over man me even most made
after also did many before must through years where much your way well down should because each just those""".split()


def texts(words: int, seed: int = 0) -> Iterator[str]:
    """Endless, no two alike."""
    draw = random.Random(seed)
    for number in itertools.count():
        sentences = [draw.choices(_WORDS, k=words // 10) for _ in range(10)]
        yield " ".join(f"{' '.join(sentence).capitalize()}." for sentence in sentences) + f" {number}"


async def asked(client: httpx.AsyncClient, text: str) -> tuple[float, int]:
    """Milliseconds and the answer's status; 0 if there was none."""
    begin = time.perf_counter()
    try:
        status = (await client.post("/api/detect", json={"text": text})).status_code
    except httpx.HTTPError:
        status = 0
    return 1000 * (time.perf_counter() - begin), status


async def alone(client: httpx.AsyncClient, words: int) -> list[tuple[float, int]]:
    return [await asked(client, text) for text in itertools.islice(texts(words), _ALONE)]


async def together(client: httpx.AsyncClient, words: int, clients: int, seconds: float) -> list[tuple[float, int]]:
    until, source = time.perf_counter() + seconds, texts(words, seed=1)

    async def one() -> list[tuple[float, int]]:
        found = []
        while time.perf_counter() < until:
            found.append(await asked(client, next(source)))
        return found

    return [pair for found in await asyncio.gather(*(one() for _ in range(clients))) for pair in found]


def row(name: str, found: Sequence[tuple[float, int]], seconds: float) -> str:
    took = sorted(milliseconds for milliseconds, _ in found)
    shares = "".join(f"{took[min(len(took) - 1, int(share * len(took)))]:9.0f}" for share in (0.5, 0.95, 0.99))
    errors = sum(status != 200 for _, status in found)
    return f"{name:<12}{len(found):>9,}{errors:>8}{len(found) / seconds:>12.1f}{shares}"


async def measure(address: str, words: int, clients: int, seconds: float) -> None:
    limits = httpx.Limits(max_connections=clients + 1, max_keepalive_connections=clients + 1)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        facts = (await client.get("/api/model")).json()
        print(f"{facts['name']}: {facts['parameters']:,} parameters; texts of {words} words")
        print(f"{'clients':<12}{'requests':>9}{'errors':>8}{'requests/s':>12}{'median':>9}{'95%':>9}{'99%':>9} ms")
        for text in itertools.islice(texts(words, seed=2), _WARM):
            await asked(client, text)
        for name, work in (("1", alone(client, words)), (str(clients), together(client, words, clients, seconds))):
            begin = time.perf_counter()
            found = await work
            print(row(name, found, time.perf_counter() - begin), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="if not given, the one that comes with Elektron")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--words", type=int, default=200)
    options = parser.parse_args()
    with server(options.model) as address:
        asyncio.run(measure(address, options.words, options.clients, options.seconds))


if __name__ == "__main__":
    main()
