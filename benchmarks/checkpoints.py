"""What a checkpoint costs training that goes on beside it, in one run.

    python benchmarks/checkpoints.py [--preset small] [--rows 128] [--length 128] [--every 1000] [--repeats 5]

Steps are made without pause; before some of them a checkpoint is begun as a run begins it. Its cost is the time in
which the loop stands still for it, and what the steps take longer while it is being written. `--every` is how many
steps lie between two of them in the run that the cost is a share of.
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

        def steps(count: int) -> list[float]:
            """Seconds of so many steps, and of more until the checkpoint is there."""
            taken: list[float] = []
            while len(taken) < count or not writer.is_idle:
                begin = time.perf_counter()
                updates(batch, next(numbers), RATE)
                wait(device)
                taken.append(time.perf_counter() - begin)
            return taken

        steps(3)
        alone, held, costs, written = [], [], [], []
        for number in range(asked.repeats):
            alone += steps(5)
            begin = time.perf_counter()
            weights, state, count = optimizer.snapshot()
            writer.write(Checkpoint(number, weights, state, {"updates": count}))
            held.append(time.perf_counter() - begin)
            beside = steps(1)
            written.append(time.perf_counter() - begin)
            costs.append(held[-1] + sum(beside) - len(beside) * statistics.median(alone))
        size = sum(f.stat().st_size for f in Path(folder).rglob("*.safetensors")) / 1e6
    step = statistics.median(alone)
    cost, between = max(0.0, statistics.median(costs)), asked.every * step
    print(f"{asked.preset}, {asked.rows} rows of {asked.length}, {describe(device)}; a checkpoint of {size:,.0f} MB")
    print("| a step | the loop stands still | written after | all a checkpoint costs | of the time between two |")
    print("|---|---|---|---|---|")
    print(
        f"| {1e3 * step:.1f} ms | {1e3 * statistics.median(held):.1f} ms | {statistics.median(written):.2f} s | "
        f"{1e3 * cost:.0f} ms | {cost / between:.2%} of {between:.1f} s |"
    )


if __name__ == "__main__":
    main()
