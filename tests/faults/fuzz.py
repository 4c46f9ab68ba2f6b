"""Things that are nearly, or not at all, what a reader expects."""

import bz2
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable
from typing import Any

import pyarrow
from pyarrow import parquet

from conftest import documents

_PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: bytes(pyarrow.compress(content, "zstd", asbytes=True)),
}
_TEXTS = documents(40)


def _table(draw: random.Random) -> bytes:
    """A parquet file, of text or of something else."""
    columns: list[dict[str, Any]] = [
        {"text": _TEXTS[: draw.randrange(1, 40)]},
        {"text": [None, "", "the cat"]},
        {"text": []},
        {"text": [b"\xff\xfe", b"the dog"]},
        {"text": [["nested"], []]},
        {"text": [{"inside": 1}]},
        {"text": [1.5, float("nan")]},
        {"other": ["a"]},
        {},
    ]
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(draw.choice(columns)), file, compression=draw.choice(["zstd", "none", "snappy"]))
    return file.getvalue()


def _lines(draw: random.Random) -> bytes:
    """JSON lines, one of them perhaps of a kind that nobody writes."""
    lines = [json.dumps({"text": text}) for text in _TEXTS[: draw.randrange(1, 20)]]
    odd = [
        "{}", "[]", "null", '""', '{"text": null}', '{"text": []}', '{"text": {}}', '{"text": [[[[]]]]}', '{"text": 1}',
        '{"text": "\\ud800"}', '{"text": "\\udc00\\ud800"}', '{"text": "a\\u0000b"}', '{"text": "\x00"}', "{" * 5000,
        "[" * 200_000, '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"text": ' + "9" * 10_000 + "}",
        '{"text": 1e999, "text": "twice"}', '{"text": NaN}', '{"text": "cut', '{"text": "' + "a" * 400_000 + '"}',
        '{"text": "' + " " * 200_000 + '"}', '{"texts": "a"}', '{"text": "a"} {"text": "b"}', "\ufeff{}", "\u2028",
    ]  # fmt: skip
    if draw.random() < 0.8:
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(odd))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _text(draw: random.Random) -> bytes:
    odd = [
        b"", b"\n" * 5000, b" \t\r\n" * 500, b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"a" * 400_000, b"\xf0\x9f\x98",
        b"a \n" * 100_000, "\u0301".encode() * 70_000, b"\xef\xbb\xbf" * 3, b"[MASK] [SEP] [CLS] [PAD]",
    ]  # fmt: skip
    parts = [text.encode() for text in _TEXTS[: draw.randrange(20)]]
    parts.insert(draw.randrange(len(parts) + 1), draw.choice(odd))
    return b"\n\n".join(parts)


_FORMS: dict[str, Callable[[random.Random], bytes]] = {".txt": _text, ".jsonl": _lines, ".parquet": _table}


def corpus_file(draw: random.Random) -> tuple[str, bytes]:
    """The ending of a file's name, and what is in it."""
    form, packing = draw.choice(list(_FORMS)), draw.choice(list(_PACKED))
    content, how = _PACKED[packing](_FORMS[form](draw)), draw.random()
    if how < 0.1:
        content = draw.randbytes(draw.randrange(5000))
    elif how < 0.2:
        content = content[: draw.randrange(len(content) + 1)]
    elif how < 0.5:
        content = mutated(content, draw)
    return form + packing, content


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Some bytes of it flipped, doubled, dropped or made up."""
    found = bytearray(content)
    for _ in range(draw.randrange(1, 8)):
        at = draw.randrange(len(found) + 1)
        how = draw.randrange(4)
        if how == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            found[at:at] = found[at : at + draw.randrange(50)]
        elif how == 2:
            del found[at : at + draw.randrange(50)]
        else:
            found[at:at] = draw.randbytes(draw.randrange(20))
    return bytes(found)


def body(draw: random.Random) -> bytes:
    """What a client may post to the page's API."""
    good: list[Any] = [
        {"text": draw.choice(_TEXTS)},
        {"text": draw.choice(_TEXTS), "words": [4], "count": draw.randrange(-2, 70)},
        {"text": draw.choice(_TEXTS), "words": [draw.randrange(-5, 300) for _ in range(draw.randrange(5))]},
    ]
    odd: list[Any] = [
        "", "\0", "\ud800", "\udfff a cat", "a" * 3000, " " * 3000, "\u202e\u200b\ufeff", "\u0301" * 500, "[MASK]" * 50,
        "\U0010ffff" * 20, None, True, 0, -1, 1e308, float("nan"), float("inf"), 10**400, [], {}, [[[]]], [None],
    ]  # fmt: skip
    how = draw.random()
    if how < 0.1:
        return draw.randbytes(draw.randrange(2000))
    if how < 0.15:
        return draw.choice([b"[" * 50_000, b'{"text":' * 10_000, b'{"a":' * 500 + b"1" + b"}" * 500, b"9" * 20_000])
    content = draw.choice(good)
    if how < 0.7:
        content[draw.choice(["text", "words", "count", "other"])] = draw.choice(odd)
    said = json.dumps(content, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    return mutated(said, draw) if how > 0.85 else said
