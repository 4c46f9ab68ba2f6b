import bz2
import gzip
import io
import json
import lzma
import random
import sys

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elektron.data import corpus
from elektron.data.corpus import Piece, ReadingConfig

DOCUMENTS = ["First document.\nIt has two lines.", "Zweites Dokument: über Bäume.", "第三篇文章。"]
COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard(data),
}


def zstandard(data: bytes) -> bytes:
    buffer = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(buffer, "zstd") as stream:
        stream.write(data)
    return buffer.getvalue().to_pybytes()


def encoded(format_: str) -> bytes:
    if format_ == ".txt":
        return "\n\n".join(DOCUMENTS).encode()
    if format_ == ".jsonl":
        return "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(DOCUMENTS)).encode()
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": DOCUMENTS}), buffer)
    return buffer.getvalue()


def read(*specs, **options) -> list[str]:
    """The documents that the specs name."""
    return whole(corpus.pieces(corpus.sources([str(spec) for spec in specs]), ReadingConfig(**options)))


def whole(pieces) -> list[str]:
    documents, parts = [], []
    for text, ends in pieces:
        parts.append(text)
        if ends:
            documents.append(" ".join(" ".join(parts).split()))
            parts = []
    assert not parts, "the last document does not end"
    return documents


def folded(documents) -> list[str]:
    return [" ".join(document.split()) for document in documents]


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("format_", corpus.FORMATS)
def test_every_format_plain_and_compressed(tmp_path, format_, compression):
    path = tmp_path / f"corpus{format_}{compression}"
    path.write_bytes(COMPRESS[compression](encoded(format_)))
    assert read(path) == folded(DOCUMENTS)


@pytest.mark.parametrize("compression", [c for c in COMPRESS if c])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "nonsense"])
def test_damaged_archives_are_named(tmp_path, compression, damage):
    words = random.Random(0).choices(
        ["some", "text", "of", "a", "few", "words", "that", "come", "in", "no", "order", "at", "all"], k=20000
    )
    data = bytearray(COMPRESS[compression](" ".join(words).encode()))
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        if compression == ".zst":
            pytest.skip("a zstandard frame without a checksum, as Arrow writes it, cannot tell")
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(b"this is no archive at all, not a single bit of it")
    path = tmp_path / f"bad.txt{compression}"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"bad.txt{compression}: damaged"):
        read(path)


@pytest.mark.parametrize("cut", [4, 60, -6])
def test_damaged_parquet_is_named(tmp_path, cut):
    path = tmp_path / "bad.parquet"
    path.write_bytes(encoded(".parquet")[:cut])
    with pytest.raises(ValueError, match="bad.parquet: damaged"):
        read(path)


def test_folders_and_globs_have_a_stable_order(tmp_path):
    for name in ("b/2.txt", "a/1.txt", "a/3.jsonl", "c.txt", "a/.hidden.txt", ".git/x.txt", "notes.pdf"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name if name.endswith("txt") else json.dumps({"text": name}))
    assert read(tmp_path) == ["a/1.txt", "a/3.jsonl", "b/2.txt", "c.txt"]
    assert read(tmp_path / "**" / "[12].txt") == ["a/1.txt", "b/2.txt"]
    assert read(tmp_path / "c.txt", tmp_path / "a") == ["c.txt", "a/1.txt", "a/3.jsonl"]


def test_a_file_named_outright_is_text_whatever_its_ending(tmp_path):
    (tmp_path / "wiki_00").write_text("one\n\ntwo")
    assert read(tmp_path / "wiki_00") == ["one", "two"]


def test_one_document_a_file(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.txt").write_text("three")
    assert read(tmp_path, documents="file") == ["one two", "three"]


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\nline\r\n\r\ntwo\r\n \t\r\n\r\nthree\r\n")
    assert read(tmp_path / "a.txt") == ["one line", "two", "three"]


@given(
    st.lists(st.text(st.sampled_from("ab \n\té語"), max_size=40), max_size=8),
    st.integers(1, 12),
    st.integers(3, 20),
)
@settings(max_examples=200)
def test_pieces_rebuild_the_documents(lines, chunk_bytes, piece_characters):
    """Whatever the size of chunks and pieces, the words and the documents are those of the whole text."""
    text = "\n".join(lines)
    before = corpus.CHUNK_BYTES, corpus.PIECE_CHARACTERS
    corpus.CHUNK_BYTES, corpus.PIECE_CHARACTERS = chunk_bytes, piece_characters
    try:
        pieces = list(corpus._text_pieces(corpus._chunks(io.BytesIO(text.encode())), "x", ReadingConfig()))
    finally:
        corpus.CHUNK_BYTES, corpus.PIECE_CHARACTERS = before
    expected, document = [], []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            document.append(line)
        elif document:
            expected.append("".join("\n".join(document).split()))
            document = []
    found, parts = [], []
    for piece in pieces:
        assert len(piece.text) <= piece_characters
        parts.append("".join(piece.text.split()))
        if piece.ends_document:
            found.append("".join(parts))
            parts = []
    assert not parts
    assert found == expected


def test_a_document_on_one_line_is_cut_at_whitespace(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "PIECE_CHARACTERS", 1000)
    words = " ".join(f"word{i}" for i in range(5000))
    (tmp_path / "long.txt").write_text(words)
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": words}))
    for name in ("long.txt", "long.jsonl"):
        pieces = list(corpus.pieces([str(tmp_path / name)], ReadingConfig()))
        assert len(pieces) > 40
        assert [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert " ".join(piece.text.strip() for piece in pieces) == words


def test_a_document_without_whitespace_is_cut_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "PIECE_CHARACTERS", 100)
    (tmp_path / "long.txt").write_text("x" * 1050)
    pieces = list(corpus.pieces([str(tmp_path / "long.txt")], ReadingConfig()))
    assert "".join(piece.text for piece in pieces) == "x" * 1050


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"fine\xff text", 4),
        ("\u00e9".encode() * 700000 + b"\x80", 1400000),
        (b"abc\xc3", 3),
        (b"ab\0c", 2),
        (b"\xc3\xa9\0", 2),
    ],
)
def test_bytes_that_are_no_text_are_named_with_their_offset(tmp_path, data, offset):
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"bad.txt: byte {offset} .*--errors replace"):
        read(path)
    assert read(path, errors="replace")


def test_jsonl_errors_name_the_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    for line, message in [
        (b"{", "not JSON"),
        (b'{"body": "x"}', "nothing under 'text'.*body"),
        (b'{"text": 5}', "'text' is int"),
        (b'{"text": "\\ud800"}', "half a character"),
        (b"[1]", "list, not an object"),
        (b"\xff", "UTF-8"),
    ]:
        path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
        with pytest.raises(ValueError, match=f"bad.jsonl, line 3: .*{message}|bad.jsonl, line 3: byte 0.*{message}"):
            read(path)


def test_text_field_and_column(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "x y"}\n')
    pyarrow.parquet.write_table(pyarrow.table({"body": ["z", None]}), tmp_path / "a.parquet")
    assert read(tmp_path, text_field="body") == ["x y", "z"]
    with pytest.raises(ValueError, match=r"no column 'text' \(there is: body\)"):
        read(tmp_path / "a.parquet")


def test_missing_and_empty_corpora(tmp_path):
    with pytest.raises(ValueError, match="no such corpus: .*nowhere"):
        corpus.sources([str(tmp_path / "nowhere.txt")])
    with pytest.raises(ValueError, match="no text in folder"):
        corpus.sources([str(tmp_path)])
    with pytest.raises(ValueError, match="no corpus given"):
        corpus.sources([])
    with pytest.raises(ValueError, match="builtin:python-docs"):
        corpus.sources(["builtin:nothing"])
    (tmp_path / "empty.txt").write_text("\n \n\n")
    assert read(tmp_path) == []


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\n")))
    assert read("-") == ["one", "two"]


def test_hub_datasets_through_the_real_library(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "test.jsonl").write_text('{"text": "three"}\n')
    assert read(f"hf:{tmp_path}") == ["one", "two"]
    assert read(f"hf:{tmp_path}:test") == ["three"]
    with pytest.raises(ValueError, match="row 1: nothing under 'body'"):
        read(f"hf:{tmp_path}", text_field="body")


def test_null_is_no_text_wherever_it_stands(tmp_path):
    lines = '\ufeff{"text": "one"}\n{"text": null}\n{"text": "two"}\n'
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text(lines.removeprefix("\ufeff"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", None, "two"]}), tmp_path / "a.parquet")
    for source in (tmp_path / "train.jsonl", tmp_path / "a.parquet", f"hf:{tmp_path / 'hub'}"):
        assert read(source) == ["one", "two"]


def test_bad_text_in_records_is_named_or_replaced(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')
    assert read(tmp_path / "a.jsonl", errors="replace") == ["a?b"]
    array = pyarrow.array([b"fine", b"gr\xfcn"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": array}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet, row 2: byte 2 .*not UTF-8"):
        read(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", errors="replace") == ["fine", "gr\ufffdn"]


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("hf:imdb", ("imdb", None, "train")),
        (
            "hf:Salesforce/wikitext/wikitext-2-raw-v1:validation",
            ("Salesforce/wikitext", "wikitext-2-raw-v1", "validation"),
        ),
        ("hf:wikimedia/wikipedia/20231101.de", ("wikimedia/wikipedia", "20231101.de", "train")),
        ("hf:./folder:test", ("./folder", None, "test")),
    ],
)
def test_hub_names(spec, parts):
    assert corpus._hub_parts(spec) == parts


def test_estimated_bytes_counts_files_alone(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 100)
    assert corpus.estimated_bytes(["-", corpus.PYTHON_DOCS, "hf:x", str(tmp_path / "a.txt")]) == 100


def test_piece_is_what_it_says():
    assert list(corpus.whole_documents(iter(["a", " ", "b"]))) == [Piece("a", True), Piece("b", True)]
