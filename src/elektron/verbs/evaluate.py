"""elektron evaluate MODEL: held-out metrics of a run's newest checkpoint, or of a folder with discriminator/ and
generator/ inside."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from elektron.config import parse
from elektron.model.weights import lower
from elektron.train.device import DeviceName, choose_device, precision
from elektron.train.evaluate import evaluate
from elektron.train.loop import held_batches
from elektron.verbs.runs import open_with_data


@dataclass(frozen=True, kw_only=True)
class Config:
    """elektron evaluate"""

    model: Path = Path("runs/tiny")
    """A run or an exported folder: `elektron evaluate MODEL`."""
    data: str = ""
    """The prepared folder with the held-out text; a run's own if empty."""
    length: int = 0
    """Tokens a row; 0: as in the run's last phase, or 128 for a folder (or its positions, if fewer)."""
    rows: int = 512
    """Rows to evaluate on, or all there are if fewer."""
    batch: int = 64
    """Rows at a time."""
    device: DeviceName = "auto"
    """auto: a GPU if there is one."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        if min(self.rows, self.batch) < 1 or self.length < 0:
            raise ValueError(f"--rows and --batch must be at least 1, --length at least 0: {self}")


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron evaluate", __doc__ or "", first="model")
    console = Console(highlight=False, soft_wrap=True)
    opened, data, length = open_with_data(config.model, config.data, config.length)
    device = choose_device(config.device)
    batches = held_batches(data, length, config.rows, config.batch)
    lower(opened.model.to(device), precision(device))
    metrics = evaluate(opened.model, batches, device)
    metrics["unigram_loss"] = data.unigram_loss()
    if config.json:
        print(json.dumps(metrics))
        return
    console.print(f"on {sum(len(batch.original) for batch in batches):,} held-out rows of {length} tokens")
    for name, value in metrics.items():
        console.print(f"{name.replace('_', ' '):<26}{value:.4f}")
