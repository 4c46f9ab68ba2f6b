"""A run's folder, as the verbs see it: its config, its data, its model."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from elektron.config import differences, overlay, read_toml, to_toml
from elektron.data import tokenizer
from elektron.data.batches import SHORTEST, SPECIALS
from elektron.data.files import write_atomically
from elektron.data.shards import Data, is_prepared, open_data
from elektron.data.tokenizer import Tokenizer, TokenizerConfig
from elektron.interop.huggingface import from_tensors, load_encoder, our_config, read_tensors
from elektron.kernels.masking import masked_count
from elektron.model.encoder import Encoder, EncoderConfig
from elektron.model.initial import Start
from elektron.objectives import choices, table
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import lexicon_of
from elektron.objectives.objective import Objective, ObjectiveConfig, generator_shape
from elektron.presets import PRESETS
from elektron.train.checkpoint import FOLDER, all_steps, load, load_newest, restore
from elektron.train.device import DeviceName
from elektron.train.loop import TrainConfig, WatchConfig
from elektron.train.optimizer import OptimizerConfig
from elektron.train.schedule import Phase, ScheduleConfig, with_short
from elektron.train.stages import stage_at
from elektron.verbs.prepare import PrepareConfig

CONFIG = "config.toml"
TOKENIZER, DISCRIMINATOR, ENCODER, GENERATOR = "tokenizer", "discriminator", "encoder", "generator"
_SEALED = b"# sha256 of what follows: "
USUAL_LENGTH = 128
"""Tokens of a row to evaluate on, where nothing says how long rows were in training."""
_MAY_CHANGE = ("watch.", "device", "data", "train.shard")
"""What a run may be resumed with other values of: the same data may lie elsewhere now, and there may be other ranks,
which need fewer parts of a batch; a corrective objective compares the rows of a part."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What decides the values that a run begins with."""

    preset: tuple[Literal["tiny", "small", "base", "large", "paper"], ...] = ("tiny",)
    """Values to begin with, one preset on top of the other; 'paper' adds the quirks of the original code."""
    run: Path = Path("runs/tiny")
    """Folder of the run, runs/PRESET if not given. One that exists is resumed."""
    init_from: str = ""
    """Begin with the weights of a run, of an exported folder or of a Hugging Face ELECTRA discriminator."""
    init_generator: str = ""
    """A Hugging Face ELECTRA generator to go with --init-from, where that does not bring one; or alone, to stay as it
    is (--objective.generator frozen)."""
    branch: str = ""
    """Leave another run where it stood (RUN/checkpoints/step-00050000) and end in another way: with other
    --train.phases and --schedule, which must agree with the other's up to there."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(Choice):
    """All of a run. RUN/config.toml repeats it."""

    corpus: tuple[str, ...] = ()
    """Text to prepare first (see `elektron prepare --help`)."""
    data: str = ""
    """A prepared folder or its URL (s3://BUCKET/FOLDER); with --corpus, where to prepare it (RUN/data if empty)."""
    start: Start = "original"
    """How weights begin: as the original's, or with attention heads that look at their neighbours."""
    seed: int = 0
    """Decides initial weights, the order of rows, masks, samples and dropout."""
    device: DeviceName = "auto"
    """auto: a GPU if there is one."""
    model: EncoderConfig = EncoderConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    train: TrainConfig = TrainConfig()
    watch: WatchConfig = WatchConfig()
    prepare: PrepareConfig = PrepareConfig()

    @property
    def data_folder(self) -> str:
        """Its path, or its URL."""
        return self.data or str(self.run / "data")


def check(config: RunConfig) -> RunConfig:
    """The config itself, if its sections fit one another; only one that is complete can be asked to."""
    is_frozen = config.objective.generator == "frozen"
    if config.init_generator and not config.init_from and not is_frozen:
        raise ValueError(f"--init-generator {config.init_generator} needs --init-from: a discriminator to go with it")
    if is_frozen and not (config.init_generator or config.init_from):
        raise ValueError("--objective.generator frozen needs --init-generator FOLDER: one that was trained before")
    choices.check(config.objective)
    longest, positions = max(length for _, length, _ in config.train.phases), config.model.positions
    if longest > positions:
        raise ValueError(
            f"rows of {longest} tokens are longer than the model's {positions} positions (--model.positions)"
        )
    for _, length, _ in with_short(tuple(Phase(*phase) for phase in config.train.phases), config.train.short):
        if length < SHORTEST:
            cut = " (--train.short cuts them)" if config.train.short else ""
            raise ValueError(f"rows of {length} tokens are too short{cut}: the least is {SHORTEST}")
        if masked_count(length, config.objective.mask_rate) > length - SPECIALS:
            raise ValueError(f"--objective.mask-rate {config.objective.mask_rate} leaves nothing of rows of {length}")
    try:
        generator_shape(config.model, config.objective)
    except ValueError as error:
        raise ValueError(f"the generator's shape is impossible: {error}") from error
    return config


def begins_with_weights(choice: Choice) -> bool:
    return bool(choice.init_from or choice.init_generator)


def with_presets(config: RunConfig, presets: tuple[str, ...]) -> RunConfig:
    for name in presets:
        config = overlay(config, PRESETS[name], f"preset {name}")
    return config


def read_config(run: Path) -> RunConfig:
    """The config of a run; its folder is where it is found, not where it once was."""
    if not (run / CONFIG).exists():
        raise ValueError(f"{run} is no run: it has no {CONFIG}")
    _refuse_damaged(run)
    values = read_toml(run / CONFIG)
    return overlay(RunConfig(), values | {"run": str(run)}, str(run / CONFIG))


def _refuse_damaged(run: Path) -> None:
    """The first line is a checksum of the others: a digit that has changed would train another network."""
    first, _, rest = (run / CONFIG).read_bytes().partition(b"\n")
    if first != _seal(rest) and (has_begun(run) or first.startswith(_SEALED)):
        raise ValueError(
            f"{run / CONFIG}: damaged, or changed by hand (its first line is not the checksum of the others): "
            "put it back as it was, or begin another run from it"
        )


def _seal(config: bytes) -> bytes:
    return _SEALED + hashlib.sha256(config).hexdigest().encode()


def glance_at_data(config: RunConfig) -> Data | None:
    """The run's data, unverified; None where it is still to be prepared from a corpus."""
    expected = bool(config.data and not config.corpus) or is_prepared(config.data_folder)
    return open_data(config.data_folder, verify=False) if expected else None


def has_begun(run: Path) -> bool:
    """Whether there is anything to lose: a run without a checkpoint may still become another."""
    return (run / CONFIG).exists() and bool(all_steps(run))


def refuse_other(config: RunConfig) -> None:
    """A run that has begun goes on as it began."""
    if not has_begun(config.run):
        return
    changed = differences(read_config(config.run), config)
    may_change = _MAY_CHANGE if config.objective.kind == "corrective" else (*_MAY_CHANGE, "train.accumulate")
    refused = {name: values for name, values in changed.items() if not name.startswith(may_change)}
    if refused:
        raise ValueError(f"{config.run} is a run with another config: {told(refused)}. Choose another --run")


def refuse_other_shapes(config: RunConfig) -> None:
    """Weights have the shapes they have: --init-from decides them, whatever else is said."""
    contrary = differences(overlay(config, settings_of(config, config.model), ""), config)
    shapes = {
        name: values
        for name, values in contrary.items()
        if name.startswith(("model.", "objective.")) and not name.endswith("dropout")
    }
    if shapes:
        source = f"--init-from {config.init_from}" if config.init_from else f"--init-generator {config.init_generator}"
        raise ValueError(f"{source} has other shapes: {told(shapes)}. Leave them to it")


def told(differences: dict[str, tuple[Any, Any]]) -> str:
    return "; ".join(f"{name} is {old!r} there, {new!r} now" for name, (old, new) in differences.items())


def write_config(config: RunConfig) -> None:
    content = to_toml(config).encode()
    write_atomically(config.run / CONFIG, _seal(content), b"\n", content)


def build(config: RunConfig, tokens: Tokenizer, counts: np.ndarray | None = None) -> Objective:
    """`counts` is how often each token occurs, for those who train on it."""
    return table.build(config.model, config.objective, lexicon_of(tokens, counts))


class Opened(NamedTuple):
    """Trained networks."""

    model: Objective
    tokenizer: Tokenizer
    step: int
    """Updates it has seen; 0 where nobody knows."""
    config: RunConfig
    """A run's own, or the defaults with the shapes of a folder."""


def open_model(path: Path) -> Opened:
    """The networks of a run's newest checkpoint, or of a folder with discriminator/ and generator/ inside."""
    if (path / CONFIG).exists():
        return open_run(path)
    if not (path / DISCRIMINATOR).is_dir() or not (path / GENERATOR).is_dir():
        beside = (path.parent / DISCRIMINATOR).is_dir() and (path.parent / GENERATOR).is_dir()
        hint = f"; {path.parent} is one" if beside else ""
        raise ValueError(f"{path} is neither a run nor a folder with {DISCRIMINATOR}/ and {GENERATOR}/ inside{hint}")
    config = overlay(RunConfig(), settings_of(Choice(init_from=str(path)), EncoderConfig()), str(path))
    tokens = tokenizer.load(path / DISCRIMINATOR, TokenizerConfig())
    model = build(config, tokens)
    load_weights(model, str(path), "")
    return Opened(model, tokens, 0, config)


def open_run(run: Path, checkpoint: Path | None = None) -> Opened:
    """The networks of a run's newest checkpoint, or of another."""
    config = read_config(run)
    saved = load(checkpoint) if checkpoint else load_newest(run)
    if saved is None:
        raise ValueError(f"{run} has no checkpoint yet")
    tokens = tokenizer.load(run / TOKENIZER, TokenizerConfig())
    model = build(config, tokens)
    restore(model, saved.model)
    steps = sum(steps for steps, _, _ in config.train.phases)
    model.stage = stage_at(model.stages, saved.step - 1, steps)  # that of its last update
    return Opened(model, tokens, saved.step, config)


def open_with_data(path: Path, folder: str, length: int) -> tuple[Opened, Data, int]:
    """Networks, the data to be evaluated on (a run's own if no `folder` is named), and the tokens of a row (0: as in
    the run's last phase, or 128 for a folder, or its positions, if fewer)."""
    opened, is_run = open_model(path), (path / CONFIG).exists()
    if not folder and not is_run:
        raise ValueError(f"{path} is an exported folder: say which text to evaluate on with --data")
    data = open_data(folder or opened.config.data_folder)
    if data.tokenizer.hash != opened.tokenizer.hash:
        raise ValueError(f"the data was prepared with another tokenizer than {path} was trained with")
    opened.model.lexicon = lexicon_of(data.tokenizer, data.train.counts(data.index.vocab_size))
    usual = opened.config.train.phases[-1][1] if is_run else min(USUAL_LENGTH, opened.config.model.positions)
    return opened, data, length or usual


class Pretrained(NamedTuple):
    """An encoder to be fine-tuned."""

    encoder: Encoder
    tokenizer: Tokenizer
    step: int
    """Updates it has seen; 0 where nobody knows."""


def open_encoder(path: Path) -> Pretrained:
    """The encoder of a run's newest checkpoint or of the one that is named, or that of any ELECTRA in a Hugging Face
    folder."""
    run = path.parent.parent if path.parent.name == FOLDER else path
    if (run / CONFIG).exists():
        opened = open_run(run, path if run != path else None)
        return Pretrained(opened.model.encoder, opened.tokenizer, opened.step)
    folder = next((path / name for name in (DISCRIMINATOR, ENCODER) if (path / name).is_dir()), path)
    if not (folder / "config.json").exists():
        raise ValueError(f"{path} is neither a run, nor a checkpoint of one, nor a Hugging Face folder")
    found = Pretrained(load_encoder(folder), tokenizer.load(folder, TokenizerConfig()), 0)
    words = found.encoder.embeddings.word.num_embeddings
    if found.tokenizer.vocab_size > words:
        raise ValueError(f"{folder}: its tokenizer has {found.tokenizer.vocab_size} tokens, its embeddings {words}")
    return found


def settings_of(choice: Choice, shape: EncoderConfig) -> dict[str, Any]:
    """What --init-from decides of the config: the networks' shapes and the tokenizer. A generator alone decides its own
    shape, beside an encoder of `shape`."""
    path, generator = Path(choice.init_from), choice.init_generator
    if not choice.init_from:
        small = _generator_folder(generator)
        settings = _settings(shape, our_config(small)[0])
        return {"objective": settings["objective"], "prepare": {"tokenizer": str(small)}}
    if (path / CONFIG).exists():
        config = read_config(path)
        settings = _settings(config.model, generator_shape(config.model, config.objective))
        return settings | {"prepare": {"tokenizer": str(path / TOKENIZER)}}
    large, small = _folders(path, generator)
    shape, _ = our_config(large)
    settings = _settings(shape, our_config(small)[0]) if small else {"model": asdict(shape)}
    return settings | {"prepare": {"tokenizer": str(large)}}


def _settings(large: EncoderConfig, small: EncoderConfig) -> dict[str, Any]:
    width, layers = small.width / large.width, small.layers / large.layers
    scaled = generator_shape(large, ObjectiveConfig(generator_width=width, generator_layers=layers))
    if (scaled.heads, scaled.feedforward_width) != (small.heads, small.feedforward_width):
        raise ValueError(f"the generator is not the discriminator scaled down: {small}, expected {scaled}")
    return {"model": asdict(large), "objective": {"generator_width": width, "generator_layers": layers}}


def _generator_folder(path: str) -> Path:
    folder = Path(path, GENERATOR) if Path(path, GENERATOR).is_dir() else Path(path)
    if not (folder / "config.json").exists():
        raise ValueError(f"--init-generator {path}: not a Hugging Face folder")
    return folder


def _folders(path: Path, generator: str) -> tuple[Path, Path | None]:
    """The discriminator's folder and the generator's, if there is one."""
    if (path / DISCRIMINATOR).is_dir():
        inside = path / GENERATOR
        return path / DISCRIMINATOR, Path(generator) if generator else inside if inside.is_dir() else None
    if not (path / "config.json").exists():
        raise ValueError(f"--init-from {path}: neither a run nor a Hugging Face folder")
    return path, Path(generator) if generator else None


def load_weights(model: Objective, source: str, generator: str) -> str:
    """Put the weights of --init-from into the model. Returns what was loaded, in words.

    The two networks share the discriminator's embeddings: a generator that was trained with others loses its own.
    """
    if not source:
        folder, network = _generator_folder(generator), model.networks()[GENERATOR]
        from_tensors(network, read_tensors(folder), str(folder))
        return f"the generator of {folder}, which stays as it is"
    path = Path(source)
    if (path / CONFIG).exists():
        saved = load_newest(path)
        if saved is None:
            raise ValueError(f"--init-from {path}: the run has no checkpoint yet")
        restore(model, saved.model)
        return f"the networks of {path}, step {saved.step}"
    if not isinstance(model, Electra):
        raise ValueError(f"--init-from {path}: only ELECTRA begins with exported networks; others with a run's")
    large, small = _folders(path, generator)
    if small is None:
        from_tensors(model.discriminator, read_tensors(large), str(large))
        return f"the discriminator of {large}; the generator begins anew, with the discriminator's embeddings"
    tensors = read_tensors(small)
    from_tensors(model.networks()[GENERATOR], tensors, str(small))
    from_tensors(model.discriminator, read_tensors(large), str(large))
    return f"the discriminator of {large} and the generator of {small}, with the discriminator's embeddings"
