"""Google's own code (github.com/google-research/electra) in TensorFlow 2.15, as runs/original.py asks it.

Nothing of it is changed: TensorFlow still has all it asks for but a layer norm (tf.contrib's), which stands below.
"""

import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from elektron.data.tokenizer import ROLES, VOCABULARY, Specials
from elektron.interop.huggingface import their_names
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.model.task_heads import Tuned
from elektron.objectives.objective import Objective
from elektron.train.tune import RecipeConfig
from elektron.verbs.runs import RunConfig


class Subject(NamedTuple):
    """What is trained."""

    features: list[Any]
    """Placeholders of what a batch has."""
    losses: Callable[[bool], list[Any]]
    """The graph, in training or not: the losses to be told, and last the one that is differentiated."""
    optimizer: dict[str, Any]
    """What theirs is made with."""


class Original:
    """A model of theirs, its losses and its optimizer."""

    def __init__(self, checkout: str, subject: Callable[[Any], Subject], told: bool, seed: int = 0) -> None:
        """What it would draw it is told, or it draws from its own seed, and may be asked about held batches."""
        tf = self._tf = tensorflow(checkout)
        tf.reset_default_graph()
        tf.set_random_seed(seed)
        self._features, losses, settings = subject(tf)
        self._draws: list[Any] = []
        *self._losses, total = self._told(losses) if told else losses(True)
        if not told:
            with tf.variable_scope("", reuse=True):
                *self._held, _ = losses(False)
        self._step = import_module("model.optimization").create_optimizer(total, **settings)
        self._count = tf.train.get_global_step().value()
        self._session = tf.Session()
        self._session.run(tf.global_variables_initializer())

    def _told(self, losses: Callable[[bool], list[Any]]) -> list[Any]:
        """The losses, with a placeholder wherever the model draws."""
        tf = self._tf

        def given(kind: Any = tf.float32) -> Any:
            self._draws.append(tf.placeholder(kind))
            return self._draws[-1]

        def positions(logits: Any, count: int, **_: Any) -> Any:
            return tf.reshape(given(tf.int32), [logits.shape[0], count])

        def numbers(shape: list[int], **_: float) -> Any:
            return tf.reshape(given(), shape)

        def dropout(values: Any, keep_prob: float) -> Any:
            return values * tf.reshape(given(), tf.shape(values)) / keep_prob

        own = tf.random.categorical, tf.random.uniform, tf.nn.dropout
        tf.random.categorical, tf.random.uniform, tf.nn.dropout = positions, numbers, dropout
        try:
            return losses(True)
        finally:
            tf.random.categorical, tf.random.uniform, tf.nn.dropout = own

    def update(self, batch: list[np.ndarray], step: int, draws: list[np.ndarray]) -> list[float]:
        """The losses before it. `draws` are in the order in which they are drawn. The number of the update is fed, too:
        left alone, theirs counts before or after the learning rate is read, as it comes."""
        fed = self._fed(batch) | dict(zip(self._draws, draws, strict=True)) | {self._count: step}
        losses, _ = self._session.run([self._losses, self._step], fed)
        return [float(loss) for loss in losses]

    def held(self, batches: list[list[np.ndarray]]) -> list[float]:
        """The same of batches that are not learned, without dropout."""
        return np.mean([self._session.run(self._held, self._fed(batch)) for batch in batches], axis=0).tolist()

    def _fed(self, batch: list[np.ndarray]) -> dict[Any, np.ndarray]:
        return dict(zip(self._features, batch, strict=True))

    def weights(self) -> dict[str, np.ndarray]:
        return {variable.op.name: self._session.run(variable) for variable in self._tf.trainable_variables()}

    def load(self, weights: dict[str, np.ndarray]) -> None:
        """All of them."""
        variables = {variable.op.name: variable for variable in self._tf.trainable_variables()}
        assert set(variables) == set(weights), sorted(set(variables) ^ set(weights))
        for name, variable in variables.items():
            variable.load(weights[name], self._session)


def tensorflow(checkout: str) -> Any:
    """As it was in 2020, with their modules to be imported."""
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
    if checkout not in sys.path:
        sys.path.insert(0, checkout)
    return tf


def pretraining(config: RunConfig, specials: Specials, words: int) -> Callable[[Any], Subject]:
    """Generator and discriminator, or a masked LM. Batches are tokens, ones and segments."""

    def subject(tf: Any) -> Subject:
        settings = import_module("configure_pretraining").PretrainingConfig("", "", **hparams(config, words))
        settings.vocab_file = _vocabulary(specials, words)
        (_, length, rows), *_ = config.train.phases
        names = "input_ids", "input_mask", "segment_ids"
        features = {name: tf.placeholder(tf.int32, [rows, length]) for name in names}

        def losses(is_training: bool) -> list[Any]:
            model = import_module("run_pretraining").PretrainingModel(settings, features, is_training)
            named, total = model.mlm_output.loss, model.total_loss
            if not settings.electra_objective:
                return [named, total]
            return [named, (total - settings.gen_weight * named) / settings.disc_weight, total]

        optimizer = {
            "learning_rate": settings.learning_rate,
            "num_train_steps": settings.num_train_steps,
            "weight_decay_rate": settings.weight_decay_rate,
            "warmup_steps": settings.num_warmup_steps,
        }
        return Subject(list(features.values()), losses, optimizer)

    return subject


def hparams(config: RunConfig, words: int) -> dict[str, Any]:
    """Our settings as theirs. Whatever they have no name for must be as it is there."""
    objective, optimizer, schedule = config.objective, config.optimizer, config.schedule
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
        **_shape(config.model, words),
    }


def finetuning(
    shape: EncoderConfig, words: int, task: str, recipe: RecipeConfig, steps: int
) -> Callable[[Any], Subject]:
    """An encoder that learns `task`: cola, or sts. Batches are tokens, whether they are any, segments, and targets."""
    ours = recipe.loss, recipe.schedule, recipe.bias_correction, recipe.decay_from_top
    assert ours == ("sum", "product", False, True), f"not the original's recipe: {ours}"

    def subject(tf: Any) -> Subject:
        tasks = import_module("finetune.classification.classification_tasks")
        settings = import_module("configure_finetuning").FinetuningConfig(
            *("", ""),
            task_names=[task],
            max_seq_length=shape.positions,
            use_tpu=True,  # where they sum a word's gradients before they take their norm
            **_shape(shape, words),
        )
        made = {"cola": tasks.CoLA, "sts": tasks.STS}[task](settings, None)
        kinds = [tf.int32, tf.int32, tf.int32, tf.float32 if task == "sts" else tf.int32]
        sizes = [[recipe.batch, None]] * 3 + [[recipe.batch]]
        given = [tf.placeholder(*pair) for pair in zip(kinds, sizes, strict=True)]
        nothing = tf.zeros([recipe.batch], tf.int32)
        target = f"{task}_targets" if task == "sts" else f"{task}_label_ids"
        names = "input_ids", "input_mask", "segment_ids", target
        features = dict(zip(names, given, strict=True)) | {"task_id": nothing, f"{task}_eid": nothing}

        def losses(is_training: bool) -> list[Any]:
            made_of = settings, [made], is_training, features, steps
            loss = import_module("run_finetuning").FinetuningModel(*made_of).loss
            return [loss, loss]

        optimizer = {
            "learning_rate": recipe.learning_rate,
            "num_train_steps": steps,
            "weight_decay_rate": recipe.weight_decay,
            "warmup_proportion": recipe.warmup,
            "layerwise_lr_decay_power": recipe.layer_decay,
            "n_transformer_layers": shape.layers,
        }
        return Subject(given, losses, optimizer)

    return subject


def _shape(shape: EncoderConfig, words: int) -> dict[str, Any]:
    overrides = {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward_width,
        "max_position_embeddings": shape.positions,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.attention_dropout,
    }
    return {"vocab_size": words, "embedding_size": shape.embedding_width, "model_hparam_overrides": overrides}


def _vocabulary(specials: Specials, words: int) -> str:
    """A file of it; words are nothing to them, but for the special ones."""
    names = dict(zip(specials, ROLES.values(), strict=True))
    path = Path(tempfile.mkdtemp(), VOCABULARY)
    path.write_text("\n".join(names.get(number, f"word-{number}") for number in range(words)) + "\n")
    return str(path)


def named_as_theirs(model: Objective | Tuned, task: str = "") -> dict[str, np.ndarray]:
    """Our weights by the names and in the shapes that they have there. They are the model's own, not copies."""
    networks = [model] if isinstance(model, Tuned) else list(model.networks().values())
    return {
        name: value.numpy()
        for network in networks
        for name, value in _variables(network, network.encoder is model.encoder, task)
    }


def _variables(network: Discriminator | Generator | Tuned, is_main: bool, task: str) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in network.named_parameters():
        if isinstance(network, Tuned) and name.startswith("head."):
            yield _variable(name.replace("head.score", f"task_specific.{task}.dense"), parameter.detach(), "")
            continue
        scope = "electra" if is_main or "embeddings." in name else "generator"
        theirs = their_names(name, "generator" if isinstance(network, Generator) else "discriminator")
        for their, part in zip(theirs, parameter.detach().chunk(len(theirs)), strict=True):
            yield _variable(their, part, scope)


def _variable(name: str, value: Tensor, scope: str) -> tuple[str, Tensor]:
    """transformers' name of a weight as TensorFlow's."""
    module, _, kind = name.rpartition(".")
    path = module.replace("electra.", f"{scope}/", 1).replace("encoder.layer.", "encoder/layer_").replace(".", "/")
    if path == "generator_lm_head":
        return "generator_predictions/output_bias", value
    if path.endswith("_embeddings"):
        return path, value
    if path.endswith("LayerNorm"):
        return f"{path}/{'gamma' if kind == 'weight' else 'beta'}", value
    path = path.replace("discriminator_predictions/dense_prediction", "discriminator_predictions/dense_1")
    return (f"{path}/kernel", value.t()) if kind == "weight" else (f"{path}/bias", value)
