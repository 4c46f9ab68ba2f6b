"""The corpus every installation carries: the English of Python's own documentation and of the libraries beside us.

Docstrings are read out of source files with `ast`, nothing is imported; markup, code and tables are left out, and so is
any paragraph seen before. One file of source is one document.
"""

import ast
import multiprocessing
import re
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

PACKAGES = ("torch", "numpy", "networkx", "sympy", "pyarrow", "rich", "fsspec", "jinja2", "tyro", "tokenizers")
"""Libraries whose documentation is read: our own requirements and what they bring."""
TOPICS = "pydoc_data/topics.py"
"""The language reference as pydoc keeps it: string constants, not docstrings."""

MIN_WORDS = 8
_ROLE = re.compile(r":[\w:.+-]+:`~?([^`<]*?)(?:\s*<[^>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^>]*>`_+")
_MARKS = re.compile(r"``|`_*|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|\|")
_LIST_ITEM = re.compile(r"^(?:[-*+]|\d+[.)])\s+")
_CODE = re.compile(r">>>|::\s|\.\. |[{}\\=]|--|\w\(\w*\)|__")


def python_docs() -> Iterator[str]:
    """The documents, in a stable order."""
    yield from _documents()


@cache
def _documents() -> tuple[str, ...]:
    seen: set[str] = set()
    documents = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for paragraphs in pool.map(_paragraphs, _sources(), chunksize=32):
            new = [paragraph for paragraph in dict.fromkeys(paragraphs) if paragraph not in seen]
            seen.update(new)
            documents.append("\n".join(new))
    return tuple(document for document in documents if document)


def _sources() -> Iterator[Path]:
    standard, site = (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib"))
    yield standard / TOPICS
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data"}
    yield from (p for p in sorted(standard.rglob("*.py")) if not skipped & set(p.relative_to(standard).parts))
    for package in PACKAGES:
        yield from sorted((site / package).rglob("*.py"))


def _paragraphs(path: Path) -> list[str]:
    """The prose of one file of source."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []  # files that only other Python versions read, and files of other encodings
    strings = _constants(tree) if path.match(TOPICS) else _docstrings(tree)
    return [paragraph for string in strings for paragraph in _prose(string)]


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if docstring := ast.get_docstring(node):
        yield docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child)


def _constants(tree: ast.Module) -> Iterator[str]:
    yield from (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def _prose(string: str) -> Iterator[str]:
    """The paragraphs of a docstring that are sentences, on one line each and without their markup."""
    for block in re.split(r"\n\s*\n", string):
        text = " ".join(block.split())
        text = _LIST_ITEM.sub("", _MARKS.sub("", _LINK.sub(r"\1", _ROLE.sub(r"\1", text))))
        if _is_prose(text):
            yield text


def _is_prose(text: str) -> bool:
    letters = sum(c.isalpha() or c.isspace() for c in text)
    has_shape = len(text.split()) >= MIN_WORDS and text[0].isalpha() and text[-1] in ".:!?)"
    return has_shape and letters > 0.92 * len(text) and not _CODE.search(text)
