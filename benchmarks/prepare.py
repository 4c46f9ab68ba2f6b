"""How fast `elektron prepare` is beside the bare tokenizer, and how much memory it takes from its beginning to its end.

    python benchmarks/prepare.py [FILE.txt] [--processes 2] [--rounds 1] [--fast] [--megabytes 40]

The same text, tokenizer and number of cores: `encode_batch` of the tokenizers library on documents that are in memory
already (--fast: `encode_batch_fast`, which forgets where tokens came from), in as many threads as the command has
processes, against the whole command: read, split, tokenise, write, checksum. They take turns, so that a noisy machine
is noisy for both. The text is streamed: a file may be of any size. Without one it is the built-in corpus, again and
again up to --megabytes.

Memory is that of all the command's processes together, sampled: the sum of their resident sets, in which what they
share counts for each of them, and the sum of their proportional sets (PSS), in which it counts once.
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
from typing import NamedTuple

from elektron.data import corpus, tokenizer
from elektron.data.builtin import python_docs
from elektron.data.corpus import ReadingConfig
from elektron.data.prepare import ShardsConfig, dealt_blocks
from elektron.data.tokenizer import TokenizerConfig

VOCABULARY = 30522
LEARNT_FROM = 10_000_000
"""Characters that a tokenizer is trained on."""
BATCH_CHARACTERS = 4 << 20
SAMPLE_SECONDS = 0.2


class Memory(NamedTuple):
    """MB."""

    resident: float
    proportional: float


def texts_of(path: Path) -> Iterator[str]:
    return (piece.text for piece in corpus.pieces([str(path)], ReadingConfig()))


def beginning(path: Path) -> Iterator[str]:
    left = LEARNT_FROM
    for text in texts_of(path):
        yield text
        left -= len(text)
        if left < 0:
            return


def write_builtin(path: Path, megabytes: float) -> None:
    left = int(megabytes * 1e6)
    with open(path, "w", encoding="utf-8") as file:
        for document in itertools.cycle(python_docs()):
            left -= file.write(document + "\n\n")
            if left <= 0:
                return


def batches(path: Path) -> Iterator[list[str]]:
    batch, characters = [], 0
    for text in texts_of(path):
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


def bare_seconds(text: Path, chosen: Path, processes: int, fast: bool) -> float:
    """In a process of its own, which is told its number of threads before the library asks for it."""
    words = ["--bare", str(text), str(chosen), *(["--fast"] if fast else [])]
    environment = os.environ | {"RAYON_NUM_THREADS": str(processes), "TOKENIZERS_PARALLELISM": "true"}
    return float(subprocess.check_output([sys.executable, __file__, *words], env=environment))


def bare(text: Path, chosen: Path, fast: bool) -> float:
    from tokenizers import Tokenizer

    raw = Tokenizer.from_file(str(chosen))
    encode, seconds = raw.encode_batch_fast if fast else raw.encode_batch, 0.0
    for batch in batches(text):
        start = time.perf_counter()
        encode(batch, add_special_tokens=False)
        seconds += time.perf_counter() - start
    return seconds


def prepare(text: Path, chosen: Path, out: Path, processes: int) -> tuple[float, list[Memory]]:
    """Seconds of the whole command, and its memory all along."""
    flags = ["--corpus", str(text), "--out", str(out), "--tokenizer", str(chosen), "--processes", str(processes)]
    start, samples = time.perf_counter(), []
    process = subprocess.Popen([sys.executable, "-m", "elektron", "prepare", *flags], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        samples.append(memory_of(process.pid))
        time.sleep(SAMPLE_SECONDS)
    assert process.returncode == 0
    return time.perf_counter() - start, samples


def dealing_rate(text: Path, chosen: tokenizer.Tokenizer) -> float:
    """MB of text that a core reads and cuts into blocks in a second: what every worker does with all of a corpus."""
    start, text_bytes = time.process_time(), 0
    for block in dealt_blocks(corpus.pieces([str(text)], ReadingConfig()), chosen, ShardsConfig()):
        text_bytes += block.text_bytes
    return text_bytes / 1e6 / (time.process_time() - start)


def memory_of(root: int) -> Memory:
    """Of a process and all below it."""
    family = [root]
    for process in family:
        try:
            family += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        except OSError:
            continue  # it has ended
    found = [_memory(process) for process in family]
    return Memory(*(sum(kind) / 1024 for kind in zip(*found, strict=True)))


def _memory(process: int) -> tuple[int, int]:
    """Kilobytes of Rss and Pss."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return sizes.get("Rss", 0), sizes.get("Pss", 0)


def tell_memory(samples: list[Memory]) -> None:
    for number in range(4):
        quarter = samples[number * len(samples) // 4 : (number + 1) * len(samples) // 4]
        print(f"quarter {number + 1}: {_most(quarter)}")
    print(f"memory at the most: {_most(samples)} (goal: under 2,000 MB)")


def _most(samples: list[Memory]) -> str:
    resident, proportional = (max(kind) for kind in zip(*samples, strict=True))
    return f"{resident:,.0f} MB resident, {proportional:,.0f} MB proportional"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="a .txt file; the built-in corpus if not given")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--bare", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        text, chosen = options.bare
        print(bare(text, chosen, options.fast))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(options, Path(folder))


def compare(options: argparse.Namespace, root: Path) -> None:
    text, chosen = options.text or root / "corpus.txt", root / "tokenizer.json"
    if not options.text:
        write_builtin(text, options.megabytes)
    trained = tokenizer.train(lambda: beginning(text), TokenizerConfig(vocab_size=VOCABULARY))
    chosen.write_text(trained.json, encoding="utf-8")
    megabytes = text.stat().st_size / 1e6
    print(f"{megabytes:,.1f} MB, vocabulary {trained.vocab_size:,}, {options.processes} of {os.cpu_count()} cores")
    print(f"reading alone, which every worker does: {dealing_rate(text, trained):.0f} MB/s")
    rates, samples = {"bare": [], "prepare": []}, []
    for number in range(options.rounds):
        rates["bare"].append(megabytes / bare_seconds(text, chosen, options.processes, options.fast))
        seconds, samples = prepare(text, chosen, root / f"out{number}", options.processes)
        rates["prepare"].append(megabytes / seconds)
        print(f"round {number + 1}: bare {rates['bare'][-1]:.2f} MB/s, prepare {rates['prepare'][-1]:.2f} MB/s")
    ratio = statistics.median(rates["prepare"]) / statistics.median(rates["bare"])
    print(f"prepare is {ratio:.2f} of the bare tokenizer (goal: at least 0.8)")
    tell_memory(samples)


if __name__ == "__main__":
    main()
