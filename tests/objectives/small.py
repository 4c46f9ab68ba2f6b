"""What tests of objectives have in common: a small model, a batch, corrupted rows by the definitions, and what may be
asked of any objective, its metrics, who hears of a loss, whether it learns."""

from typing import Any

import torch

from elektron.data.batches import Batch
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import row_keys
from elektron.kernels.masking import masked_count
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Generator
from elektron.model.initial import initialise
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective, ObjectiveConfig, Outcome
from elektron.objectives.table import build
from elektron.tasks.metrics import area_under_curve
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.step import update
from reference import electra as reference
from reference import hashing
from reference.proposals import CALL

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
SHAPE = EncoderConfig(
    layers=2,
    width=32,
    heads=4,
    feedforward_width=64,
    embedding_width=16,
    positions=24,
    dropout=0.0,
    attention_dropout=0.0,
)
VOCABULARY = 40
ROWS, LENGTH = 4, 20


def make_model(
    config: ObjectiveConfig, shape: EncoderConfig = SHAPE, lexicon: Lexicon | None = None, spread: float = 0.2
) -> Any:  # one test or another looks into any of them
    model = build(shape, config, lexicon or Lexicon(SPECIALS, VOCABULARY))
    initialise(model, 0)
    with torch.no_grad():  # away from the beginning, where all logits are nearly zero
        for number, parameter in enumerate(model.parameters()):
            parameter += spread * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model.eval()


def batch(seed: int = 0, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    original = torch.randint(5, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    original[:, 0], original[:, 9], original[:, -1] = SPECIALS.cls, SPECIALS.sep, SPECIALS.sep
    segments = (torch.arange(LENGTH) > 9).long().repeat(rows, 1)
    return original, segments


def keys_of(seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    """`hashing.row_key(seed, CALL, row)` of every row."""
    return row_keys(seed, CALL, torch.arange(rows, dtype=torch.int32))


class Row:
    """One row of a batch, masked and filled in by a masked LM, token by token."""

    def __init__(
        self, config: ObjectiveConfig, generator: Generator, original: torch.Tensor, segments: torch.Tensor, key: int
    ) -> None:
        self.original, self.segments, self.key = original.tolist(), segments[None], key
        candidates = [i for i, token in enumerate(self.original) if token not in (SPECIALS.cls, SPECIALS.sep)]
        count = masked_count(len(self.original), config.mask_rate)
        choose = reference.distinct_positions if config.draws == "without-replacement" else reference.repeated_positions
        self.positions = choose(candidates, count, hashing.fold(key, reference.POSITIONS))
        keeps = hashing.fold(key, reference.KEEP)
        self.masked = reference.masked_row(self.original, self.positions, config.keep_rate, SPECIALS.mask, keeps)
        logits = generator(torch.tensor([self.masked]), self.segments)[0].tolist()
        self.generator_losses = [reference.cross_entropy(logits[i], self.original[i]) for i in self.positions]
        self.samples = [
            reference.sampled_token(
                logits[position],
                config.temperature,
                self.original[position] if config.disallow_correct else None,
                hashing.fold(hashing.fold(key, reference.SAMPLE), number),
            )
            for number, position in enumerate(self.positions)
        ]
        self.corrupted = reference.corrupted_row(self.original, self.positions, self.samples)
        self.replaced = [a != b for a, b in zip(self.corrupted, self.original, strict=True)]


def rows_of(config: ObjectiveConfig, generator: Generator, seed: int) -> list[Row]:
    """The rows of `batch(seed)` with the noise of `keys_of(seed)`."""
    original, segments = batch(seed)
    keys = [hashing.row_key(seed, CALL, row) for row in range(ROWS)]
    return [Row(config, generator, *given) for given in zip(original, segments, keys, strict=True)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def metrics_of(model: Objective, *outcomes: Outcome) -> dict[str, float]:
    sums = torch.stack([outcome.tallies for outcome in outcomes]).sum(0).tolist()
    return model.summary(dict(zip(model.tallies, sums, strict=True)))


def gradients_of(model: Objective) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def assert_silent(model: Objective, part: str) -> None:
    """This part, but for the embeddings that all share, learns nothing of a pass, and all others do."""
    model(*batch(), keys_of()).loss.backward()
    found = {name for name, gradient in gradients_of(model).items() if gradient.any()}
    names = {name for name, _ in model.named_parameters()}
    silent = {name for name in names if name.startswith(part) and ".embeddings." not in name}
    assert silent
    assert found == names - silent


@torch.no_grad()
def measured(model: Objective, rows: Batch) -> dict[str, float]:
    """Metrics of a few passes, and the area under the curve if there are scores."""
    outcomes = [model(rows.original, rows.segments, keys_of(seed, len(rows.rows))) for seed in range(100, 108)]
    metrics = metrics_of(model, *outcomes)
    if outcomes[0].scores is None:
        return metrics
    said, truth = (torch.cat([getattr(o, name) for o in outcomes]) for name in ("scores", "replaced"))
    auc = area_under_curve(said.flatten(), truth.flatten())
    assert auc is not None
    return metrics | {"auc": auc}


def learn(
    model: Objective, learns: tuple[str, ...], updates: int, rate: float, begin: float = 0.0
) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics before and after so many updates on a few rows, with progress from `begin` to 1."""
    optimizer = Optimizer(model.train(), OptimizerConfig(), scale=lambda name: float(name.startswith(learns)))
    rows = Batch(*batch(rows=8), torch.arange(8, dtype=torch.int32))

    def forward(original: torch.Tensor, segments: torch.Tensor, keys: torch.Tensor, step: torch.Tensor) -> Outcome:
        return model(original, segments, keys, begin + (1 - begin) * step / updates)

    before = measured(model, rows)
    for step in range(updates):
        warm = rate * min(1, (step + 1) / 40)
        update(forward, optimizer, 0, 1, rows, torch.tensor(step, dtype=torch.int32), warm)
    return before, measured(model, rows)
