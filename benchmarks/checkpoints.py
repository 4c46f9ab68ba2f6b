"""What a checkpoint costs training that goes on beside it, in one run.

    python benchmarks/checkpoints.py [--preset small] [--rows 128] [--length 128] [--every 1000] [--repeats 5]

Steps are made without pause, for twice as long as a checkpoint takes to be written; before every other stretch of them
one is begun as a run begins it. Its cost is how much longer that stretch takes than the one before: the loop stands
still, and steps lose something while it is being written. `--every` is how many steps lie between two of them in the
run that the cost is a share of.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

from elektron.data.tokenizer import Specials
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.presets import PRESETS
from elektron.train.checkpoint import Checkpoint, Writer
from elektron.train.device import choose_device, describe, keep_freed_memory, precision, wait
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.speed import RATE, made_up_rows
from elektron.train.step import Updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    device, preset = choose_device("auto"), PRESETS[asked.preset]
    keep_freed_memory()
    vocabulary = preset.get("prepare", {}).get("vocab_size", 30522)
    model = Electra(
        EncoderConfig(**preset["model"]),
        ObjectiveConfig(**preset.get("objective", {})),
        Lexicon(Specials(0, 1, 2, 3, 4), vocabulary),
    )
    initialise(model, 0)
    optimizer = Optimizer(model.to(device).train(), OptimizerConfig(), precision(device))

    def forward(original, segments, keys, step):  # noqa: ANN001, ANN202
        return model(original, segments, keys)

    updates, numbers = Updates(forward, optimizer, 0, 1, device), itertools.count()
    with tempfile.TemporaryDirectory() as folder, Writer(Path(folder), keep=1) as writer:
        rows = made_up_rows(Path(folder), vocabulary, asked.length, asked.rows)
        batch = rows.batch(0, asked.rows)

        def begin_checkpoint(number: int) -> None:
            weights, state, count = optimizer.snapshot()
            writer.write(Checkpoint(number, weights, state, {"updates": count}))

        def stretch(count: int, checkpoint: int | None = None) -> float:
            """Seconds of so many steps, and of a checkpoint that is begun before them."""
            begin = time.perf_counter()
            if checkpoint is not None:
                begin_checkpoint(checkpoint)
                held.append(time.perf_counter() - begin)
            for _ in range(count):
                updates(batch, next(numbers), RATE)
            wait(device)
            return time.perf_counter() - begin

        held: list[float] = []
        stretch(3)
        begin_checkpoint(0)  # the first one takes the memory that the others use again
        writer.wait()
        begin = time.perf_counter()
        begin_checkpoint(1)
        writer.wait()
        written, step = time.perf_counter() - begin, stretch(3) / 3
        count = 3 + int(2 * written / step)
        pairs = [(stretch(count), stretch(count, 2 + number)) for number in range(asked.repeats)]
        writer.wait()
        size = sum(f.stat().st_size for f in Path(folder).rglob("*.safetensors")) / 1e6
    step = statistics.median(alone for alone, _ in pairs) / count
    cost = max(0.0, statistics.median(beside - alone for alone, beside in pairs))
    between = asked.every * step
    print(f"{asked.preset}, {asked.rows} rows of {asked.length}, {describe(device)}; a checkpoint of {size:,.0f} MB")
    print("| a step | the loop stands still | written after | all a checkpoint costs | of the time between two |")
    print("|---|---|---|---|---|")
    print(
        f"| {1e3 * step:.1f} ms | {1e3 * statistics.median(held):.1f} ms | {written:.2f} s | "
        f"{1e3 * cost:.0f} ms | {cost / between:.2%} of {between:.1f} s |"
    )


if __name__ == "__main__":
    main()
