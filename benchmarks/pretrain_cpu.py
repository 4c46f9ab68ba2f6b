"""Our training step on a CPU beside the same sizes wired from transformers' two ELECTRA classes, in one run.

    python benchmarks/pretrain_cpu.py [--rounds 5] [--steps 4]

Both take a batch of token rows, mask 15%, run the generator, sample, run the discriminator, add the two losses, go back
and update with AdamW, in float32 on all cores. The peer is what people write by hand (see peer.py); a second one is
trimmed: it takes the generator's loss at the masked tokens only. Each lives in a process of its own, ours set up as
`elektron pretrain` sets itself up; rounds alternate, and the ratios are of their medians.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import torch

from elektron.data.batches import Batch
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.presets import PRESETS
from elektron.train.device import keep_freed_memory
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.step import update
from peer import SPECIALS, peer

SIZES = {"tiny": (4096, 32, 64), "small": (30522, 32, 128)}
"""Preset: vocabulary, rows, tokens a row."""


def make_batch(vocabulary: int, rows: int, length: int) -> Batch:
    original = torch.randint(5, vocabulary, (rows, length))
    original[:, 0], original[:, length // 2], original[:, -1] = SPECIALS.cls, SPECIALS.sep, SPECIALS.sep
    segments = (torch.arange(length) > length // 2).long().repeat(rows, 1)
    return Batch(original, segments, torch.arange(rows, dtype=torch.int32))


def our_step(shape: EncoderConfig, config: ObjectiveConfig, vocabulary: int, batch: Batch) -> Callable[[int], None]:
    model = Electra(shape, config, Lexicon(SPECIALS, vocabulary))
    initialise(model, 0)
    optimizer = Optimizer(model.train(), OptimizerConfig())

    def step(number: int) -> None:
        update(model, optimizer, 0, 1, batch, torch.tensor(number, dtype=torch.int32), 1e-4)

    return step


def their_step(
    shape: EncoderConfig, config: ObjectiveConfig, vocabulary: int, batch: Batch, trimmed: bool
) -> Callable[[int], None]:
    update = peer(shape, config, vocabulary, torch.device("cpu"), trimmed=trimmed)
    return lambda number: update(batch, number, 1e-4)


CONTENDERS = {
    "ours": our_step,
    "transformers": partial(their_step, trimmed=False),
    "transformers, trimmed": partial(their_step, trimmed=True),
}


def contend(name: str, preset: str, pipe: Connection) -> None:
    """Run as many steps as asked and answer with tokens a second, until asked for none."""
    if name == "ours":
        keep_freed_memory()
    vocabulary, rows, length = SIZES[preset]
    shape, config = EncoderConfig(**PRESETS[preset]["model"]), ObjectiveConfig(**PRESETS[preset]["objective"])
    step = CONTENDERS[name](shape, config, vocabulary, make_batch(vocabulary, rows, length))
    while steps := pipe.recv():
        start = time.perf_counter()
        for number in range(steps):
            step(number)
        pipe.send(steps * rows * length / (time.perf_counter() - start))


def race(preset: str, rounds: int, steps: int) -> dict[str, float]:
    """The median rate of each contender."""
    context = multiprocessing.get_context("spawn")
    ends = {name: context.Pipe() for name in CONTENDERS}
    for name, (_, theirs) in ends.items():
        context.Process(target=contend, args=(name, preset, theirs), daemon=True).start()
    pipes = {name: ours for name, (ours, _) in ends.items()}
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds + 1):
        for name, pipe in pipes.items():
            pipe.send(steps)
            rate = pipe.recv()
            if number:  # the first round warms up
                rates[name].append(rate)
    for pipe in pipes.values():
        pipe.send(0)
    return {name: statistics.median(found) for name, found in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; tokens/s, median of {options.rounds} rounds")
    for preset, (vocabulary, rows, length) in SIZES.items():
        rates = race(preset, options.rounds, options.steps)
        print(f"{preset}: {rows} x {length}, vocabulary {vocabulary:,}")
        for name, rate in rates.items():
            print(f"  {name:22} {rate:8,.0f} tokens/s   ours is {rates['ours'] / rate:.2f} times as fast")


if __name__ == "__main__":
    main()
