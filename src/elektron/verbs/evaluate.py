"""elektron evaluate MODEL: held-out metrics of a run's newest checkpoint, or of a folder with discriminator/ and
generator/ inside."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from elektron.config import parse
from elektron.data.shards import open_data
from elektron.model.weights import lower
from elektron.objectives.lexicon import lexicon_of
from elektron.train.device import DeviceName, choose_device, precision
from elektron.train.evaluate import evaluate
from elektron.train.loop import held_batches
from elektron.verbs.runs import CONFIG, open_model


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
    opened = open_model(config.model)
    is_run = (config.model / CONFIG).exists()
    if not config.data and not is_run:
        raise ValueError(f"{config.model} is an exported folder: say which text to evaluate on with --data")
    data = open_data(Path(config.data) if config.data else opened.config.data_folder)
    if data.tokenizer.hash != opened.tokenizer.hash:
        raise ValueError(f"the data was prepared with another tokenizer than {config.model} was trained with")
    opened.model.lexicon = lexicon_of(data.tokenizer, data.train.counts(data.index.vocab_size))
    length = config.length or (opened.config.train.phases[-1][1] if is_run else min(128, opened.config.model.positions))
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
