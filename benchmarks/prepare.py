"""How fast `elektron prepare` is beside the bare tokenizer, and whether its memory grows with the corpus.

    python benchmarks/prepare.py [--text FILE.txt] [--megabytes 40] [--rounds 3] [--small 20] [--large 500]

The same text, tokenizer and cores: `Tokenizer.encode_batch` on documents that are in memory already, against the whole
command: read, split, tokenise, write, checksum. The rounds alternate, so that a noisy machine is noisy for both. Memory
is the sum over the command's processes of what is theirs alone and a share of what they share (PSS), sampled.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer as RawTokenizer

from elektron.data import tokenizer
from elektron.data.builtin import python_docs
from elektron.data.tokenizer import TokenizerConfig

VOCABULARY = 30522


def documents_of(text: Path | None) -> list[str]:
    return text.read_text(encoding="utf-8").split("\n\n") if text else list(python_docs())


def enough(documents: list[str], size: int) -> Iterator[str]:
    """Documents, again and again, until there are `size` bytes of them."""
    for document in itertools.cycle(documents):
        if size <= 0:
            return
        yield document
        size -= len(document.encode()) + 2


def write_corpus(path: Path, documents: list[str], megabytes: float) -> int:
    with open(path, "w", encoding="utf-8") as file:
        for document in enough(documents, int(megabytes * 1e6)):
            file.write(document + "\n\n")
    return path.stat().st_size


def bare_seconds(raw: RawTokenizer, documents: list[str]) -> float:
    start = time.perf_counter()
    for i in range(0, len(documents), 500):
        raw.encode_batch(documents[i : i + 500], add_special_tokens=False)
    return time.perf_counter() - start


def prepare(text: Path, chosen: Path, out: Path) -> tuple[float, float]:
    """Seconds of the whole command, and the largest memory of its processes in MB."""
    flags = ["--corpus", str(text), "--out", str(out), "--tokenizer", str(chosen)]
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "elektron", "prepare", *flags], stdout=subprocess.DEVNULL)
    largest = 0.0
    while process.poll() is None:
        largest = max(largest, memory_of(process.pid))
        time.sleep(0.05)
    assert process.returncode == 0
    return time.perf_counter() - start, largest


def memory_of(root: int) -> float:
    """MB of a process and all below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError):
                continue
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(map(_own_memory, family)) / 1024


def _own_memory(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a .txt file; the built-in corpus if not given")
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", type=float, default=20)
    parser.add_argument("--large", type=float, default=500)
    options = parser.parse_args()
    documents = documents_of(options.text)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        trained = tokenizer.train(lambda: iter(documents), TokenizerConfig(vocab_size=VOCABULARY))
        (root / "tokenizer.json").write_text(trained.json, encoding="utf-8")
        raw = RawTokenizer.from_str(trained.json)
        size = write_corpus(root / "corpus.txt", documents, options.megabytes)
        texts = list(enough(documents, size))
        print(f"{size / 1e6:.1f} MB, vocabulary {trained.vocab_size:,}, {os.cpu_count()} cores")
        rates = {"bare": [], "prepare": []}
        for number in range(options.rounds):
            rates["bare"].append(size / 1e6 / bare_seconds(raw, texts))
            seconds, _ = prepare(root / "corpus.txt", root / "tokenizer.json", root / f"out{number}")
            rates["prepare"].append(size / 1e6 / seconds)
            print(f"round {number + 1}: bare {rates['bare'][-1]:.2f} MB/s, prepare {rates['prepare'][-1]:.2f} MB/s")
        ratio = statistics.median(rates["prepare"]) / statistics.median(rates["bare"])
        print(f"prepare is {ratio:.2f} of the bare tokenizer (goal: at least 0.8)")
        peaks = {}
        for megabytes in (options.small, options.large):
            write_corpus(root / "corpus.txt", documents, megabytes)
            seconds, peaks[megabytes] = prepare(root / "corpus.txt", root / "tokenizer.json", root / f"m{megabytes}")
            print(f"{megabytes:g} MB: {seconds:.1f} s, {peaks[megabytes]:.0f} MB of memory at the most")
        growth = peaks[options.large] - peaks[options.small]
        print(f"memory grows by {growth:.0f} MB from {options.small:g} to {options.large:g} MB (goal: within 200)")


if __name__ == "__main__":
    main()
