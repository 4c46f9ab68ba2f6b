"""Google's own code (github.com/google-research/electra) beside ours, with the same settings.

    pip install torch==2.13.0 tensorflow-cpu==2.15.1 'pyarrow<20' -e .   # Python 3.11, an environment of its own
    python runs/original.py follow CHECKOUT OUT.jsonl UPDATES FLAGS...   both, update by update, with our random numbers
    python runs/original.py learn CHECKOUT OUT.jsonl SEED FLAGS...       a run of theirs, with their own
    python runs/original.py record CHECKOUT tests/reference/original.json

CHECKOUT is a clone of theirs, of which nothing is changed: TensorFlow 2.15 still has all it asks for but a layer norm
(tf.contrib's), which stands below. FLAGS are those of `elektron pretrain`, with --data, and mean the same to both.

`follow` begins both from our initial weights and gives theirs our rows and, wherever it draws (positions, tokens that
are shown, samples, dropout), what ours has drawn. OUT gets both losses of each update, and last how far the weights
have come apart. `learn` gives theirs rows in our order and nothing else; OUT gets the losses of training and of text
that is held out, as `elektron pretrain` with the same flags has them in its metrics.jsonl. `record` follows for a few
updates of small networks with made-up rows, by each objective that both have: what tests compare ours with where there
is no TensorFlow.

The number of the update is fed to theirs, too: left alone, it counts before or after its learning rate is read, as it
comes.
"""

import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from elektron.data.batches import Batch, Rows
from elektron.data.shards import open_data
from elektron.data.tokenizer import ROLES, VOCABULARY, Specials
from elektron.interop.huggingface import their_names
from elektron.kernels.counters import elements, fold, kept, row_keys, seed_key, uniform, unsigned
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Generator
from elektron.model.initial import initialise
from elektron.objectives import table
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.masking import hide
from elektron.objectives.objective import Objective, noise_of
from elektron.objectives.proposing import propose
from elektron.train.loop import TrainConfig, held_batches
from elektron.train.optimizer import Optimizer
from elektron.train.schedule import ScheduleConfig, learning_rate
from elektron.train.step import Updates
from elektron.verbs.pretrain import configure
from elektron.verbs.runs import RunConfig, build, with_presets

FEATURES = ("input_ids", "input_mask", "segment_ids")
LOSSES = ("generator_loss", "encoder_loss", "discriminator_loss")
"""Ours, of which theirs knows the first two by one name."""


class Original:
    """Their model, its losses and its optimizer."""

    def __init__(self, checkout: str, config: RunConfig, lexicon: Lexicon, told: bool, seed: int = 0) -> None:
        """What it would draw it is told, or it draws from its own seed."""
        sys.path.insert(0, checkout)
        tf = self._tf = _tensorflow()
        tf.reset_default_graph()
        tf.set_random_seed(seed)
        settings = import_module("configure_pretraining").PretrainingConfig("", "", **hparams(config, lexicon.size))
        settings.vocab_file = _vocabulary(lexicon)
        (_, length, rows), *_ = config.train.phases
        self._features = [tf.placeholder(tf.int32, [rows, length]) for _ in FEATURES]
        self._draws: list[Any] = []
        model = self._told(settings) if told else self._model(settings, True)
        with tf.variable_scope("", reuse=True):
            held = self._model(settings, False)
        self._losses, self._held = ([m.mlm_output.loss, m.total_loss] for m in (model, held))
        self._weights = settings.gen_weight, settings.disc_weight if settings.electra_objective else None
        self._step = import_module("model.optimization").create_optimizer(
            *(model.total_loss, settings.learning_rate, settings.num_train_steps),
            weight_decay_rate=settings.weight_decay_rate,
            warmup_steps=settings.num_warmup_steps,
        )
        self._count = tf.train.get_global_step().value()
        self._session = tf.Session()
        self._session.run(tf.global_variables_initializer())

    def _model(self, settings: Any, is_training: bool) -> Any:
        features = dict(zip(FEATURES, self._features, strict=True))
        return import_module("run_pretraining").PretrainingModel(settings, features, is_training)

    def _told(self, settings: Any) -> Any:
        """The model, with a placeholder wherever it draws."""
        tf, modeling = self._tf, cast(Any, import_module("model.modeling"))

        def given(kind: Any = tf.float32) -> Any:
            self._draws.append(tf.placeholder(kind))
            return self._draws[-1]

        def positions(logits: Any, count: int, **_: Any) -> Any:
            return tf.reshape(given(tf.int32), [logits.shape[0], count])

        def numbers(shape: list[int], **_: float) -> Any:
            return tf.reshape(given(), shape)

        def dropout(values: Any, rate: float) -> Any:
            return values * tf.reshape(given(), tf.shape(values)) / (1.0 - rate) if rate else values

        own = tf.random.categorical, tf.random.uniform, modeling.dropout
        tf.random.categorical, tf.random.uniform, modeling.dropout = positions, numbers, dropout
        try:
            return self._model(settings, True)
        finally:
            tf.random.categorical, tf.random.uniform, modeling.dropout = own

    def update(self, batch: Batch, step: int, draws: list[np.ndarray]) -> list[float]:
        """The losses before it. `draws` are in the order in which they are drawn."""
        fed = self._fed(batch) | dict(zip(self._draws, draws, strict=True)) | {self._count: step}
        losses, _ = self._session.run([self._losses, self._step], fed)
        return self._apart(*losses)

    def held(self, batches: list[Batch]) -> list[float]:
        """The same of text that is not learned, without dropout."""
        return self._apart(*np.mean([self._session.run(self._held, self._fed(batch)) for batch in batches], axis=0))

    def _fed(self, batch: Batch) -> dict[Any, np.ndarray]:
        original, segments = batch.original.numpy(), batch.segments.numpy()
        return dict(zip(self._features, (original, np.ones_like(original), segments), strict=True))

    def _apart(self, named: float, total: float) -> list[float]:
        """Each network's own."""
        of_names, of_judged = self._weights
        return [float(named)] if of_judged is None else [float(named), float((total - of_names * named) / of_judged)]

    def weights(self) -> dict[str, np.ndarray]:
        return {variable.op.name: self._session.run(variable) for variable in self._tf.trainable_variables()}

    def load(self, weights: dict[str, np.ndarray]) -> None:
        """All of them."""
        variables = {variable.op.name: variable for variable in self._tf.trainable_variables()}
        assert set(variables) == set(weights), sorted(set(variables) ^ set(weights))
        for name, variable in variables.items():
            variable.load(weights[name], self._session)


def _tensorflow() -> Any:
    """As it was in 2020."""
    tf = import_module("tensorflow.compat.v1")
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)

    def layer_norm(inputs: Any, begin_norm_axis: int, begin_params_axis: int, scope: str | None) -> Any:
        with tf.variable_scope(scope, "LayerNorm"):
            beta = tf.get_variable("beta", inputs.shape[-1:], initializer=tf.zeros_initializer())
            gamma = tf.get_variable("gamma", inputs.shape[-1:], initializer=tf.ones_initializer())
            mean, variance = tf.nn.moments(inputs, [begin_norm_axis], keep_dims=True)
            return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)

    contrib = types.ModuleType("tensorflow.contrib")
    contrib.layers = types.SimpleNamespace(layer_norm=layer_norm)  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["tensorflow.contrib"] = contrib
    return tf


def _vocabulary(lexicon: Lexicon) -> str:
    """A file of it; words are nothing to them, but for the special ones."""
    names = dict(zip(lexicon.specials, ROLES.values(), strict=True))
    path = Path(tempfile.mkdtemp(), VOCABULARY)
    path.write_text("\n".join(names.get(number, f"word-{number}") for number in range(lexicon.size)) + "\n")
    return str(path)


def hparams(config: RunConfig, words: int) -> dict[str, Any]:
    """Our settings as theirs. Whatever they have no name for must be as it is there."""
    model, objective, optimizer, schedule = config.model, config.objective, config.optimizer, config.schedule
    ((steps, length, rows),) = config.train.phases
    shown = 0.0 if objective.generator == "uniform" else 0.15  # which reads nothing
    ours = objective.draws, objective.keep_rate, optimizer.bias_correction, schedule.kind, optimizer.beta2
    assert ours == ("with-replacement", shown, False, "product", 0.999), f"not --preset ... paper: {ours}"
    return {
        "num_train_steps": steps,
        "max_seq_length": length,
        "train_batch_size": rows,
        "learning_rate": schedule.learning_rate,
        "num_warmup_steps": schedule.warmup_steps,
        "weight_decay_rate": optimizer.weight_decay,
        "electra_objective": {"electra": True, "mlm": False}[objective.kind],
        "mask_prob": objective.mask_rate,
        "gen_weight": objective.generator_weight,
        "disc_weight": objective.discriminator_weight,
        "uniform_generator": objective.generator == "uniform",
        "untied_generator": objective.generator != "tied",
        "use_tpu": objective.generator == "uniform",  # where they sum a word's gradients before they take their norm
        "disallow_correct": objective.disallow_correct,
        "temperature": objective.temperature,
        "generator_hidden_size": objective.generator_width,
        "generator_layers": objective.generator_layers,
        "vocab_size": words,
        "embedding_size": model.embedding_width,
        "model_hparam_overrides": {
            "hidden_size": model.width,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "intermediate_size": model.feedforward_width,
            "max_position_embeddings": model.positions,
            "hidden_dropout_prob": model.dropout,
            "attention_probs_dropout_prob": model.attention_dropout,
        },
    }


def their_weights(model: Objective) -> dict[str, np.ndarray]:
    """Ours, by the names and in the shapes they have there."""
    found = {}
    for network in model.networks().values():
        role = "generator" if isinstance(network, Generator) else "discriminator"
        scope = "electra" if network.encoder is model.encoder else "generator"
        for name, parameter in network.named_parameters():
            theirs = their_names(name, role)
            for their, part in zip(theirs, parameter.detach().chunk(len(theirs)), strict=True):
                found |= dict([_variable(their, part, "electra" if "embeddings." in name else scope)])
    return found


def _variable(name: str, value: Tensor, scope: str) -> tuple[str, np.ndarray]:
    """transformers' name of a weight as TensorFlow's."""
    module, _, kind = name.rpartition(".")
    path = module.replace("electra.", f"{scope}/", 1).replace("encoder.layer.", "encoder/layer_").replace(".", "/")
    if path == "generator_lm_head":
        return "generator_predictions/output_bias", value.numpy()
    if path.endswith("_embeddings"):
        return path, value.numpy()
    if path.endswith("LayerNorm"):
        return f"{path}/{'gamma' if kind == 'weight' else 'beta'}", value.numpy()
    path = path.replace("discriminator_predictions/dense_prediction", "discriminator_predictions/dense_1")
    return (f"{path}/kernel", value.t().numpy()) if kind == "weight" else (f"{path}/bias", value.numpy())


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
    theirs = Original(checkout, config, model.lexicon, told=True)
    begin = {name: value.copy() for name, value in their_weights(model).items()}
    theirs.load(begin)
    of_ours = ours(config, model, rows)
    for step in range(updates):
        batch = rows(step)
        of_theirs = theirs.update(batch, step, drawn(model, batch, config, step))
        yield {"step": step + 1, "theirs": of_theirs, "ours": next(of_ours)}
    found, end = their_weights(model), theirs.weights()
    apart, way = (
        np.sqrt(sum(np.square(one[name] - end[name], dtype=np.float64).sum() for name in end)) for one in (found, begin)
    )
    yield {"apart": float(apart / way)}


def follow(checkout: str, out: str, updates: int, config: RunConfig) -> None:
    data, (_, _, size) = open_data(config.data), config.train.phases[0]
    model = build(config, data.tokenizer)
    initialise(model, config.seed, config.start)
    rows = _rows(config)
    with open(out, "w", encoding="utf-8") as file:
        for record in both(checkout, config, model, lambda step: rows.batch(step, size), updates):
            print(json.dumps(record), file=file, flush=True)


def learn(checkout: str, out: str, seed: int, config: RunConfig) -> None:
    data, (total, length, size) = open_data(config.data), config.train.phases[0]
    lexicon = Lexicon(data.tokenizer.specials, data.tokenizer.vocab_size)
    theirs, rows = Original(checkout, config, lexicon, told=False, seed=seed), _rows(config)
    held = [b for b in held_batches(data, length, config.watch.evaluate_rows, size) if len(b.rows) == size]
    with open(out, "w", encoding="utf-8") as file:
        found: list[list[float]] = []
        for step in range(1, total + 1):
            found.append(theirs.update(rows.batch(step - 1, size), step - 1, []))
            if step % config.watch.log_every == 0 or step == total:
                told = {"kind": "train", "step": step, "losses": np.mean(found, axis=0).tolist()}
                print(json.dumps(told), file=file, flush=True)
                found.clear()
            if step % config.watch.evaluate_every == 0 or step == total:
                told = {"kind": "held", "step": step, "losses": theirs.held(held)}
                print(json.dumps(told), file=file, flush=True)


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


def made_up(config: RunConfig) -> tuple[Objective, Callable[[int], Batch]]:
    """A model far from its beginning, and rows for it, that are the same wherever they are made."""
    (_, length, size), *_ = config.train.phases
    model = table.build(config.model, config.objective, Lexicon(SPECIALS, WORDS))
    with torch.no_grad():
        for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
            values = uniform(elements(fold(seed_key(_WEIGHTS), number), parameter.numel())).view_as(parameter)
            parameter.copy_(0.2 * (values - 0.5) + name.endswith("norm.weight"))

    def rows(step: int) -> Batch:
        bits = elements(fold(fold(seed_key(_ROWS), step), torch.arange(size, dtype=torch.int32)), length)
        original = len(SPECIALS) + unsigned(bits) % 16  # few words, for there to be something to learn
        original[:, 0], original[:, [length // 2, -1]] = SPECIALS.cls, SPECIALS.sep
        segments = (torch.arange(length) > length // 2).long().expand(size, length).contiguous()
        return Batch(original, segments, torch.arange(size, dtype=torch.int32))

    return model, rows


def record(checkout: str, out: str) -> None:
    found = {}
    for name, config in RECORDED.items():
        *updates, end = both(checkout, config, *made_up(config), config.train.phases[0][0])
        found[name] = [update["theirs"] for update in updates]
        print(name, end, json.dumps(updates[-1]))
    Path(out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main(mode: str, checkout: str, out: str, *words: str) -> None:
    if mode == "record":
        return record(checkout, out)
    number, *flags = words
    return {"follow": follow, "learn": learn}[mode](checkout, out, int(number), configure(flags, "original.py", ""))


if __name__ == "__main__":
    main(*sys.argv[1:])
