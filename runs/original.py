"""Google's own code (github.com/google-research/electra) beside ours, with the same settings.

    pip install torch==2.13.0 tensorflow-cpu==2.15.1 'pyarrow<20' 'scipy<1.13' 'scikit-learn<1.5' -e .
    python runs/original.py follow CHECKOUT OUT.jsonl UPDATES FLAGS...   both, update by update, with our random numbers
    python runs/original.py learn CHECKOUT OUT.jsonl SEED FLAGS...       a run of theirs, with their own
    python runs/original.py record CHECKOUT tests/reference/original.json

Python 3.11, an environment of its own. CHECKOUT is a clone of theirs; runs/theirs.py runs it. FLAGS are those of
`elektron pretrain`, with --data, and mean the same to both.

`follow` begins both from our initial weights and gives theirs our rows and, wherever it draws (positions, tokens that
are shown, samples, dropout), what ours has drawn. OUT gets both losses of each update, and last how far the weights
have come apart. `learn` gives theirs rows in our order and nothing else; OUT gets the losses of training and of text
that is held out, as `elektron pretrain` with the same flags has them in its metrics.jsonl. `record` follows for a few
updates of small networks with made-up rows, by each objective that both have, and learns two tasks: what tests compare
ours with where there is no TensorFlow.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elektron.data.batches import Batch, Rows
from elektron.data.examples import Examples, Row, batches
from elektron.data.shards import open_data
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import elements, fold, kept, row_keys, seed_key, uniform, unsigned
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.initial import initialise
from elektron.model.task_heads import SITE, Tuned
from elektron.objectives import table
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.masking import hide
from elektron.objectives.objective import Objective, noise_of
from elektron.objectives.proposing import propose
from elektron.train.loop import TrainConfig, held_batches
from elektron.train.optimizer import Optimizer
from elektron.train.schedule import ScheduleConfig, learning_rate
from elektron.train.step import Updates
from elektron.train.tune import ORDER, RecipeConfig, tune
from elektron.verbs.pretrain import configure
from elektron.verbs.runs import RunConfig, build, with_presets
from theirs import Original, finetuning, named_as_theirs, pretraining

LOSSES = ("generator_loss", "encoder_loss", "discriminator_loss")
"""Ours, of which theirs knows the first two by one name."""


def ours(config: RunConfig, model: Objective, rows: Callable[[int], Batch]) -> Iterator[list[float]]:
    """Our losses before each update, which is made as they are asked for. The model learns where it is."""
    (total, _, _), *_ = config.train.phases
    optimizer = Optimizer(model.train(), config.optimizer)
    update = Updates(model, optimizer, config.seed, 1, torch.device("cpu"))
    for step in range(total):
        tallies = update(tuple(rows(step)), step, learning_rate(config.schedule, step, total)).tolist()
        found = model.summary(dict(zip(model.tallies, tallies, strict=False)))
        yield [found[name] for name in LOSSES if name in found]


def both(
    checkout: str, config: RunConfig, model: Objective, rows: Callable[[int], Batch], updates: int
) -> Iterator[dict[str, Any]]:
    """Losses of both before each update; at the end how far they are from each other, as a share of how far theirs is
    from the beginning."""
    theirs = Original(checkout, pretraining(config, model.lexicon.specials, model.lexicon.size), told=True)
    begin = {name: value.copy() for name, value in named_as_theirs(model).items()}
    theirs.load(begin)
    of_ours = ours(config, model, rows)
    for step in range(updates):
        batch = rows(step)
        of_theirs = theirs.update(_given(batch), step, drawn(model, batch, config, step))
        yield {"step": step + 1, "theirs": of_theirs, "ours": next(of_ours)}
    yield {"apart": _apart(begin, theirs.weights(), named_as_theirs(model))}


def _given(batch: Batch) -> list[np.ndarray]:
    original, segments = batch.original.numpy(), batch.segments.numpy()
    return [original, np.ones_like(original), segments]


def _apart(begin: dict[str, np.ndarray], theirs: dict[str, np.ndarray], ours: dict[str, np.ndarray]) -> float:
    """The distance of both as a share of theirs from the beginning."""
    apart, way = (
        sum(np.square(other[name] - theirs[name], dtype=np.float64).sum() for name in theirs) for other in (ours, begin)
    )
    return float(np.sqrt(apart / way))


@torch.no_grad()
def drawn(model: Any, batch: Batch, config: RunConfig, step: int) -> list[np.ndarray]:
    """Our draws, as numbers that have theirs come out alike, in the order in which theirs draws."""
    noise = noise_of(row_keys(config.seed, step, batch.rows), True)
    positions = hide(config.objective, model.lexicon, batch.original, noise).positions
    shown = (uniform(elements(noise.keeps, positions.shape[1])) < config.objective.keep_rate).float()
    encoder = _left(model.encoder.config, noise.encoder, batch.original.shape)
    samples, generator = torch.zeros(*positions.shape, model.lexicon.size), []
    if config.objective.kind == "mlm":  # which they sample from all the same
        return [values.numpy() for values in (positions, shown, *encoder, samples)]
    proposed = propose(model.generator, config.objective, model.lexicon, batch.original, batch.segments, noise)
    samples.scatter_(2, proposed.sampled[..., None], 1.0)
    if model.generator is not None:
        generator = _left(model.generator.encoder.config, noise.generator, batch.original.shape)
    return [values.numpy() for values in (positions, shown, *generator, samples, *encoder)]


def _left(shape: EncoderConfig, keys: Tensor | None, size: torch.Size) -> list[Tensor]:
    """1 where dropout leaves an encoder's values alone."""
    if keys is None or not (shape.dropout and shape.attention_dropout):
        return []
    *layers, embeddings = fold(keys, torch.arange(3 * shape.layers + 1, dtype=torch.int32)[:, None])
    states, squares = (*size, shape.width), (size[0], shape.heads, size[1], size[1])
    found = [kept(torch.Size((*size, shape.embedding_width)), shape.dropout, embeddings, torch.float32)]
    for number, site in enumerate(layers):
        rate, values = (shape.dropout, states) if number % 3 else (shape.attention_dropout, squares)
        found.append(kept(torch.Size(values), rate, site, torch.float32))
    return found


def follow(checkout: str, out: str, updates: int, config: RunConfig) -> None:
    data, (_, _, size) = open_data(config.data), config.train.phases[0]
    model = build(config, data.tokenizer)
    initialise(model, config.seed, config.start)
    rows = _rows(config)
    with open(out, "w", encoding="utf-8") as file:
        for record in both(checkout, config, model, lambda step: rows.batch(step, size), updates):
            print(json.dumps(record), file=file, flush=True)


def learn(checkout: str, out: str, seed: int, config: RunConfig) -> None:
    data, (total, length, size), watch = open_data(config.data), config.train.phases[0], config.watch
    subject = pretraining(config, data.tokenizer.specials, data.tokenizer.vocab_size)
    theirs, rows = Original(checkout, subject, told=False, seed=seed), _rows(config)
    held = [_given(b) for b in held_batches(data, length, watch.evaluate_rows, size) if len(b.rows) == size]
    with open(out, "w", encoding="utf-8") as file:

        def tell(kind: str, step: int, losses: list[float]) -> None:
            print(json.dumps({"kind": kind, "step": step, "losses": losses}), file=file, flush=True)

        found: list[list[float]] = []
        for step in range(1, total + 1):
            found.append(theirs.update(_given(rows.batch(step - 1, size)), step - 1, []))
            if step % watch.log_every == 0 or step == total:
                tell("train", step, np.mean(found, axis=0).tolist())
                found.clear()
            if step % watch.evaluate_every == 0 or step == total:
                tell("held", step, theirs.held(held))


def _rows(config: RunConfig) -> Rows:
    """In the order of a run."""
    data, (_, length, _) = open_data(config.data), config.train.phases[0]
    return Rows(data.train, data.tokenizer.specials, length, fold(fold(seed_key(config.seed), 1), 0))


SPECIALS, WORDS = Specials(0, 1, 2, 3, 4), 96
_WEIGHTS, _ROWS = 11, 12
PAPER = with_presets(RunConfig(), ("small", "paper"))
SMALLER = replace(
    PAPER,
    model=EncoderConfig(layers=2, width=128, heads=2, feedforward_width=512, embedding_width=32, positions=40),
    objective=replace(PAPER.objective, generator_width=0.5),
    schedule=ScheduleConfig(kind="product", learning_rate=1e-3, warmup_steps=3),
    train=TrainConfig(phases=((12, 40, 8),)),
)
RECORDED = {
    name: replace(SMALLER, objective=replace(SMALLER.objective, **choices))
    for name, choices in {
        "electra": {},
        "mlm": {"kind": "mlm"},
        "tied": {"generator": "tied"},
        "uniform": {"generator": "uniform", "keep_rate": 0.0},
        "disallowed": {"disallow_correct": True, "temperature": 2.0},
    }.items()
}
TASKS = {"cola": "classification", "sts": "regression"}
RECIPE = RecipeConfig(
    learning_rate=1e-3,
    layer_decay=0.8,
    decay_from_top=True,
    epochs=4,
    batch=8,
    window=2,
    weight_decay=0.01,
    loss="sum",
    schedule="product",
    bias_correction=False,
)


def made_up(config: RunConfig) -> tuple[Objective, Callable[[int], Batch]]:
    """A model far from its beginning, and rows for it, that are the same wherever they are made."""
    (_, length, size), *_ = config.train.phases
    model = table.build(config.model, config.objective, Lexicon(SPECIALS, WORDS))
    _make_up(model)

    def rows(step: int) -> Batch:
        bits = elements(fold(fold(seed_key(_ROWS), step), torch.arange(size, dtype=torch.int32)), length)
        original = len(SPECIALS) + unsigned(bits) % 16  # few words, for there to be something to learn
        original[:, 0], original[:, [length // 2, -1]] = SPECIALS.cls, SPECIALS.sep
        segments = (torch.arange(length) > length // 2).long().expand(size, length).contiguous()
        return Batch(original, segments, torch.arange(size, dtype=torch.int32))

    return model, rows


@torch.no_grad()
def _make_up(model: torch.nn.Module) -> None:
    for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
        values = uniform(elements(fold(seed_key(_WEIGHTS), number), parameter.numel())).view_as(parameter)
        parameter.copy_(0.2 * (values - 0.5) + name.endswith("norm.weight"))


class Lesson(NamedTuple):
    """A task, made up."""

    network: Tuned
    rows: list[Row]
    examples: Examples


def lesson(task: str) -> Lesson:
    """Rows of several lengths, with one segment or two: is there a certain word among them, or how many others."""
    shape = SMALLER.model
    labels = ("0", "1") if task == "cola" else ("score",)
    network = Tuned(Encoder(shape, Embeddings(WORDS, shape)), TASKS[task], "original", labels)  # pyright: ignore[reportArgumentType]
    _make_up(network)
    rows = []
    for number in range(40):
        bits = unsigned(elements(fold(seed_key(_ROWS), number), 34)).numpy()
        tokens = len(SPECIALS) + bits[2 : 8 + bits[0] % 26] % 8
        second = len(tokens) if bits[1] % 2 else len(tokens) // 2
        tokens[0], tokens[[second - 1, -1]] = SPECIALS.cls, SPECIALS.sep
        target = np.array(int(5 in tokens)) if task == "cola" else np.array(np.mean(tokens < 8), dtype=np.float32)
        rows.append(Row(tokens, second, target))
    return Lesson(network, rows, Examples(rows, SPECIALS, torch.device("cpu")))


def our_lesson(task: str, recipe: RecipeConfig = RECIPE) -> list[float]:
    """The losses of its updates; the network learns where it is."""
    made = lesson(task)
    (found,), _ = tune([made.network], made.examples, recipe, [0], lambda network: 0.0)
    return found.losses


def their_lesson(checkout: str, task: str) -> list[float]:
    made, steps = lesson(task), round(40 * RECIPE.epochs / RECIPE.batch)
    theirs = Original(checkout, finetuning(SMALLER.model, WORDS, task, RECIPE, steps), told=True)
    theirs.load(named_as_theirs(made.network, task))
    order = batches(made.examples.lengths, RECIPE.batch, steps, RECIPE.window, fold(seed_key(0), ORDER))
    found = []
    for step, numbers in enumerate(order):
        inputs = made.examples.inputs(torch.from_numpy(numbers), int(made.examples.lengths[numbers].max()))
        keys = row_keys(0, step, torch.arange(RECIPE.batch, dtype=torch.int32))
        draws = _left(SMALLER.model, keys, inputs.tokens.shape)
        draws.append(kept(torch.Size((RECIPE.batch, SMALLER.model.width)), 0.1, fold(keys, SITE), torch.float32))
        batch = inputs.tokens, inputs.mask.int(), inputs.segments, inputs.targets
        found += theirs.update([part.numpy() for part in batch], step, [values.numpy() for values in draws])
    return found


def record(checkout: str, out: str) -> None:
    found: dict[str, Any] = {}
    for name, config in RECORDED.items():
        *updates, end = both(checkout, config, *made_up(config), config.train.phases[0][0])
        found[name] = [update["theirs"] for update in updates]
        _tell(name, [update["ours"] for update in updates], found[name])
        print(f"  weights {end['apart']:.1e} of their way apart")
    for task in TASKS:
        found[task] = their_lesson(checkout, task)
        _tell(task, our_lesson(task), found[task])
    Path(out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _tell(name: str, ours: list[Any], theirs: list[Any]) -> None:
    print(f"{name}: losses at most {np.abs(np.array(ours) / np.array(theirs) - 1).max():.1e} apart")


def main(mode: str, checkout: str, out: str, *words: str) -> None:
    if mode == "record":
        return record(checkout, out)
    number, *flags = words
    return {"follow": follow, "learn": learn}[mode](checkout, out, int(number), configure(flags, "original.py", ""))


if __name__ == "__main__":
    main(*sys.argv[1:])
