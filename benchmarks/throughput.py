"""Training steps on one GPU, ours beside transformers' two ELECTRA classes wired by hand (peer.py), in one run.

    python benchmarks/throughput.py [--only small-128 base-512 ...] [--quick] [--no-peers] [--json FILE]

All make the whole step: rows from the host, masking, generator, sampling, discriminator, both losses, backward pass,
clipping and AdamW, in bfloat16 on a GPU. The peer has no dropout, which is kind to it; ours is measured without and
with, and once keeping only the inputs of layers. FLOPs are counted alike for all: the matrix products of ELECTRA, the
vocabulary's scores at masked tokens only. MFU is their share of the matrix product that is measured first.

Small has the paper's batch and one of 1024 rows, base the paper's, also in short rows, large an eighth of the paper's;
the last two are cut into parts that fit. Peers run where an uncut batch may fit them. On a CPU only `tiny` is measured,
unless others are asked for, and the peer is not compiled.
"""

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from elektron.data.tokenizer import Specials
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.presets import PRESETS
from elektron.train.device import choose_device, copy_peak, describe, keep_freed_memory, matrix_peak
from elektron.train.optimizer import OptimizerConfig
from elektron.train.speed import Speed, Update, made_up_rows, measure, updates

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
COMPILED = "transformers, compiled"
DROPOUT = 0.1


class Size(NamedTuple):
    """What is trained, in which batches."""

    preset: str
    rows: int
    length: int
    accumulate: int
    peers: bool

    @property
    def vocabulary(self) -> int:
        return PRESETS[self.preset].get("prepare", {}).get("vocab_size", 30522)

    def shape(self, dropout: float) -> EncoderConfig:
        rates = {"dropout": dropout, "attention_dropout": dropout}
        return EncoderConfig(**PRESETS[self.preset]["model"] | rates)

    @property
    def objective(self) -> ObjectiveConfig:
        return ObjectiveConfig(**PRESETS[self.preset]["objective"])

    def model(self, dropout: float) -> Electra:
        return Electra(self.shape(dropout), self.objective, Lexicon(SPECIALS, self.vocabulary))


SIZES = {
    "tiny": Size("tiny", 32, 64, 1, True),
    "small-128": Size("small", 128, 128, 1, True),
    "small-1024": Size("small", 1024, 128, 1, True),
    "base-128": Size("base", 256, 128, 1, True),
    "base-512": Size("base", 256, 512, 4, False),
    "large-512": Size("large", 256, 512, 4, False),
}


def contenders(size: Size, device: torch.device, peers: bool) -> Iterator[tuple[str, Callable[[], Update]]]:
    """Who takes part: a name, and what makes its update."""
    if peers and size.peers:
        from peer import peer  # here, since transformers takes its time to import

        parts = size.shape(0.0), size.objective, size.vocabulary, device
        if device.type == "cuda":
            yield COMPILED, lambda: peer(*parts, compiled=True)
        yield "transformers, eager", lambda: peer(*parts)
    yield "ours", lambda: ours(size, 0.0, device)
    yield f"ours, dropout {DROPOUT}", lambda: ours(size, DROPOUT, device)
    if size.peers:  # whose memory ours is held against
        yield "ours, recompute", lambda: ours(size, 0.0, device, recompute=True)


def ours(size: Size, dropout: float, device: torch.device, recompute: bool = False) -> Update:
    model = size.model(dropout)
    initialise(model, 0)
    return updates(model, OptimizerConfig(), 0, size.accumulate, recompute, device)


def compete(
    size: Size, device: torch.device, peers: bool, repeats: int, seconds: float
) -> Iterator[tuple[str, Speed | str]]:
    """The speed of each contender, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        rows = made_up_rows(Path(folder), size.vocabulary, size.length, size.rows)
        for who, begin in contenders(size, device, peers):
            try:
                yield who, measure(begin, rows, size.rows, device, repeats, seconds)
            except torch.OutOfMemoryError:
                yield who, "does not fit"
            except Exception as error:  # one that fails must not cost the numbers of the others
                traceback.print_exc()
                yield who, f"failed: {type(error).__name__}"


class Entry(NamedTuple):
    """One line of the table."""

    size: str
    batch: str
    who: str
    milliseconds: float
    spread: float
    """Between the fastest and the slowest run, as a share of the median."""
    tokens_per_second: float
    mfu: float
    memory_gib: float
    first_step_seconds: float
    stall: float


def entry(name: str, who: str, speed: Speed, peak: float) -> Entry:
    size = SIZES[name]
    with torch.device("meta"):
        flops_per_token = size.model(0.0).flops_per_token(size.length)
    rate = size.rows * size.length / speed.seconds
    return Entry(
        name,
        batch(size),
        who,
        speed.seconds * 1e3,
        (max(speed.runs) - min(speed.runs)) / speed.seconds,
        rate,
        flops_per_token * rate / peak,
        speed.memory / 2**30,
        speed.first,
        speed.stall,
    )


def batch(size: Size) -> str:
    return f"{size.rows} x {size.length}" + (f" in {size.accumulate}" if size.accumulate > 1 else "")


HEADER = (
    f"{'size':11}{'batch':16}{'who':24}{'ms/step':>10}{'spread':>8}{'Mtok/s':>9}{'MFU':>7}{'GiB':>8}{'first s':>9}"
    f"{'stall':>8}{'faster':>9}{'memory':>8}"
)
"""The last two: times as fast as the compiled peer, and the share of its memory."""


def line(found: Entry, theirs: Entry | None) -> str:
    text = (
        f"{found.size:11}{found.batch:16}{found.who:24}{found.milliseconds:10.2f}{found.spread:8.1%}"
        f"{found.tokens_per_second / 1e6:9.3f}{found.mfu:7.1%}{found.memory_gib:8.2f}{found.first_step_seconds:9.1f}"
        f"{found.stall:8.2%}"
    )
    if theirs is None:
        return text
    return f"{text}{theirs.milliseconds / found.milliseconds:8.2f}x{found.memory_gib / theirs.memory_gib:8.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SIZES, help="these sizes")
    parser.add_argument("--quick", action="store_true", help="two runs of each instead of five, and shorter ones")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    options = parser.parse_args()
    device = choose_device("auto")
    if device.type == "cpu":
        keep_freed_memory()
    names = options.only or (["tiny"] if device.type == "cpu" else [name for name in SIZES if name != "tiny"])
    repeats, seconds = (2, 0.1) if options.quick else (5, 0.5)
    start = time.perf_counter()
    facts: dict[str, Any] = {"device": describe(device), "torch": torch.__version__}
    facts |= {"matrix_peak": matrix_peak(device), "copy_peak": copy_peak(device)}
    print(
        f"{facts['device']}, torch {facts['torch']}; matrix product {facts['matrix_peak'] / 1e12:,.3g} TFLOP/s, copy "
        f"{facts['copy_peak'] / 1e9:,.0f} GB/s; {repeats} runs of {seconds:g} s\n\n{HEADER}"
    )
    found: list[Entry] = []
    for name in names:
        theirs = None
        for who, speed in compete(SIZES[name], device, not options.no_peers, repeats, seconds):
            if isinstance(speed, str):
                print(f"{name:11}{batch(SIZES[name]):16}{who:24}{speed}", flush=True)
                continue
            found.append(entry(name, who, speed, facts["matrix_peak"]))
            theirs = found[-1] if who == COMPILED else theirs
            print(line(found[-1], theirs), flush=True)
            if options.json:
                entries = [one._asdict() for one in found]
                options.json.write_text(json.dumps(facts | {"entries": entries}, indent=2) + "\n")
    print(f"\n{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
