"""Hugging Face folders, out and in: one total table of names, read in both directions.

    FOLDER/  config.json  model.safetensors  tokenizer.json  tokenizer_config.json  README.md  manifest.json

The discriminator opens as ElectraForPreTraining or AutoModel, the generator as ElectraForMaskedLM, fine-tuned networks
as the class of their task. The discriminator's folder also says how sentence-transformers is to pool it.
"""

from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elektron.data.files import genuine, new_folder, read_json, write_atomically, write_json, write_manifest
from elektron.data.tokenizer import Tokenizer
from elektron.data.tokenizer import save as save_tokenizer
from elektron.model.encoder import NORM_EPSILON, SEGMENTS, Embeddings, Encoder, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.model.initial import DEVIATION
from elektron.model.task_heads import Tuned
from elektron.model.weights import write_tensors

Network = Discriminator | Generator | Tuned
Loaded = TypeVar("Loaded", Discriminator, Generator)
Precision = Literal["float32", "float16"]
Role = Literal["discriminator", "generator", "classification", "regression", "tagging", "span"]

_ENCODER = {
    "embeddings.word": ["embeddings.word_embeddings"],
    "embeddings.position": ["embeddings.position_embeddings"],
    "embeddings.segment": ["embeddings.token_type_embeddings"],
    "embeddings.norm": ["embeddings.LayerNorm"],
    "project": ["embeddings_project"],
    "layers.*.qkv": [f"encoder.layer.*.attention.self.{part}" for part in ("query", "key", "value")],
    "layers.*.out": ["encoder.layer.*.attention.output.dense"],
    "layers.*.attention_norm": ["encoder.layer.*.attention.output.LayerNorm"],
    "layers.*.up": ["encoder.layer.*.intermediate.dense"],
    "layers.*.down": ["encoder.layer.*.output.dense"],
    "layers.*.feedforward_norm": ["encoder.layer.*.output.LayerNorm"],
}
NAMES = {
    **{f"encoder.{ours}": [f"electra.{name}" for name in theirs] for ours, theirs in _ENCODER.items()},
    "discriminator.head.dense": ["discriminator_predictions.dense"],
    "discriminator.head.score": ["discriminator_predictions.dense_prediction"],
    "generator.head.dense": ["generator_predictions.dense"],
    "generator.head.norm": ["generator_predictions.LayerNorm"],
    "generator.head": ["generator_lm_head"],
    **{
        f"{kind}.head.{ours}": [f"classifier.{theirs}"]
        for kind in ("classification", "regression")
        for ours, theirs in (("dense", "dense"), ("score", "out_proj"))
    },
    "tagging.head.score": ["classifier"],
    "span.head.score": ["qa_outputs"],
}
"""Our modules and theirs; '*' is a layer's number. Where theirs are several, ours is them one under the other."""

WEIGHTS, CARD = "model.safetensors", "README.md"
_TIED = "generator_lm_head.weight"
_IGNORED = {"electra.embeddings.position_ids", "electra.embeddings.token_type_ids"}
"""Buffers that old versions saved."""
_ARCHITECTURES: dict[Role, str] = {
    "discriminator": "ElectraForPreTraining",
    "generator": "ElectraForMaskedLM",
    "classification": "ElectraForSequenceClassification",
    "regression": "ElectraForSequenceClassification",
    "tagging": "ElectraForTokenClassification",
    "span": "ElectraForQuestionAnswering",
}
_SIZES = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "embedding_size",
    "max_position_embeddings", "vocab_size",
)  # fmt: skip
"""What config.json must tell."""
_ENCODERS = "electra."
"""What their names of an encoder's weights begin with, but in the folder of an encoder alone."""


def their_names(name: str, role: Role) -> list[str]:
    """The names that transformers gives to our parameter."""
    module, _, kind = name.rpartition(".")
    parts = module.split(".")
    number = next((part for part in parts if part.isdigit()), "")
    pattern = ".".join("*" if part.isdigit() else part for part in parts)
    for key in (pattern, f"{role}.{pattern}"):
        if key in NAMES:
            return [f"{theirs.replace('*', number)}.{kind}" for theirs in NAMES[key]]
    raise ValueError(f"no Hugging Face name for {name!r} of the {role}: the table in {__name__} is not total")


def role_of(network: Network) -> Role:
    if isinstance(network, Tuned):
        return network.kind
    return "generator" if isinstance(network, Generator) else "discriminator"


def to_tensors(network: Network) -> dict[str, Tensor]:
    """The network's weights under their names."""
    tensors = {}
    for name, parameter in network.named_parameters():
        theirs = their_names(name, role_of(network))
        for their, part in zip(theirs, parameter.detach().cpu().chunk(len(theirs)), strict=True):
            tensors[their] = part.contiguous()
    return tensors


@torch.no_grad()
def from_tensors(network: Network, tensors: dict[str, Tensor], source: str) -> None:
    """Put weights with their names into the network; a name left over on either side raises."""
    left = {name: tensor for name, tensor in tensors.items() if name not in _IGNORED}
    for name, parameter in network.named_parameters():
        theirs = their_names(name, role_of(network))
        missing = [their for their in theirs if their not in left]
        if missing:
            raise ValueError(f"{source}: no weights {missing[0]!r}; is it the folder of a {role_of(network)}?")
        values = torch.cat([left.pop(their) for their in theirs])
        if values.shape != parameter.shape:
            wanted = f"{list(parameter.shape)} by its config.json and tokenizer"
            raise ValueError(f"{source}: {theirs[0]} is {list(values.shape)}, and would be {wanted}")
        parameter.copy_(values)
    if _TIED in left and torch.equal(left[_TIED], tensors["electra.embeddings.word_embeddings.weight"]):
        del left[_TIED]
    if left:
        raise ValueError(f"{source}: weights that Elektron has no place for: {', '.join(sorted(left)[:4])}")


def their_config(
    shape: EncoderConfig, vocab_size: int, role: Role, pad: int, precision: Precision = "float32"
) -> dict[str, Any]:
    return {
        "architectures": [_ARCHITECTURES[role]],
        "model_type": "electra",
        "vocab_size": vocab_size,
        "embedding_size": shape.embedding_width,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward_width,
        "hidden_act": "gelu",
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.attention_dropout,
        "max_position_embeddings": shape.positions,
        "type_vocab_size": SEGMENTS,
        "initializer_range": DEVIATION,
        "layer_norm_eps": NORM_EPSILON,
        "pad_token_id": pad,
        "dtype": precision,
    }


def read_config(folder: Path) -> dict[str, Any]:
    path = genuine(folder / "config.json")
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: damaged (no JSON object)")
    return found


def our_config(folder: Path) -> tuple[EncoderConfig, int]:
    """The shape and the vocabulary's size that a folder's config.json tells."""
    theirs = read_config(folder)
    wanted = {
        "model_type": "electra",
        "hidden_act": "gelu",
        "type_vocab_size": SEGMENTS,
        "layer_norm_eps": NORM_EPSILON,
    }
    for key, value in wanted.items():
        if theirs.get(key, value) != value:
            raise ValueError(f"{folder}/config.json: {key} is {theirs[key]!r}; Elektron's encoder has {value!r}")
    absent = [name for name in _SIZES if type(theirs.get(name)) is not int or theirs[name] < 1]
    if absent:
        raise ValueError(f"{folder}/config.json: {absent[0]} is {theirs.get(absent[0])!r}, and not a size")
    shape = EncoderConfig(
        layers=theirs["num_hidden_layers"],
        width=theirs["hidden_size"],
        heads=theirs["num_attention_heads"],
        feedforward_width=theirs["intermediate_size"],
        embedding_width=theirs["embedding_size"],
        positions=theirs["max_position_embeddings"],
        dropout=theirs.get("hidden_dropout_prob", 0.1),
        attention_dropout=theirs.get("attention_probs_dropout_prob", 0.1),
    )
    return shape, theirs["vocab_size"]


def load_discriminator(folder: str | Path) -> Discriminator:
    """A discriminator from a Hugging Face folder, in evaluation mode."""
    return _load(Discriminator, Path(folder))


def load_generator(folder: str | Path) -> Generator:
    """A generator from a Hugging Face folder, in evaluation mode."""
    return _load(Generator, Path(folder))


def _load(kind: type[Loaded], folder: Path) -> Loaded:
    shape, vocab_size = our_config(folder)
    network = kind(shape, Embeddings(vocab_size, shape))
    from_tensors(network, read_tensors(folder), str(folder))
    return network.eval()


def load_tagger(folder: Path) -> Tuned:
    """What was fine-tuned to give each word a tag, in evaluation mode."""
    shape, vocab_size = our_config(folder)
    labels = read_config(folder).get("id2label")
    if not isinstance(labels, dict) or set(labels) != {str(number) for number in range(len(labels))}:
        raise ValueError(f"{folder}/config.json: id2label is {labels!r}, and not a label for each number from 0")
    names = tuple(labels[str(number)] for number in range(len(labels)))
    network = Tuned(Encoder(shape, Embeddings(vocab_size, shape)), "tagging", "transformers", names)
    from_tensors(network, read_tensors(folder), str(folder))
    return network.eval()


def load_encoder(folder: Path) -> Encoder:
    """The encoder of any ELECTRA in a Hugging Face folder, whatever head it has."""
    shape, vocab_size = our_config(folder)
    network = Discriminator(shape, Embeddings(vocab_size, shape))
    tensors = read_tensors(folder)
    if not any(name.startswith(_ENCODERS) for name in tensors):
        tensors = {_ENCODERS + name: tensor for name, tensor in tensors.items()}
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(_ENCODERS)}
    head = {name: tensor for name, tensor in to_tensors(network).items() if not name.startswith(_ENCODERS)}
    from_tensors(network, own | head, str(folder))
    return network.encoder


def read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.exists():
        pickled = (folder / "pytorch_model.bin").exists()
        hint = "; pytorch_model.bin is a pickle, which can run code: save it as safetensors" if pickled else ""
        raise ValueError(f"{path} is missing{hint}")
    try:
        return load_file(genuine(path))
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged ({error})") from error


def save(network: Network, tokenizer: Tokenizer, folder: Path, card: str, precision: Precision = "float32") -> None:
    """Write a network as a Hugging Face folder, whole or not at all; another of them that is there is replaced."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").exists():
        raise ValueError(f"{folder} holds something else than a model: remove it, or export to another folder")
    if isinstance(network, Tuned) and network.style == "original":
        raise ValueError("transformers has no class for the original's heads: train with --head transformers to export")
    role, shape = role_of(network), network.encoder.config
    with new_folder(folder) as unfinished:
        save_tokenizer(tokenizer, unfinished, shape.positions)
        tensors = {name: tensor.to(getattr(torch, precision)) for name, tensor in to_tensors(network).items()}
        write_tensors(unfinished / WEIGHTS, tensors)
        write_atomically(unfinished / CARD, card.encode())
        words = network.encoder.embeddings.word.num_embeddings  # some have more than their tokenizer
        config = their_config(shape, words, role, tokenizer.specials.pad, precision)
        write_json(unfinished / "config.json", config | (_of_task(network) if isinstance(network, Tuned) else {}))
        if role == "discriminator":
            _write_pooling(unfinished, shape)
        write_manifest(unfinished, but=CARD)


def _of_task(network: Tuned) -> dict[str, Any]:
    """What config.json says of a task's head."""
    names = {"id2label": dict(enumerate(network.labels)), "label2id": {n: i for i, n in enumerate(network.labels)}}
    if network.kind == "span":
        return {}
    kinds = {"regression": "regression", "classification": "single_label_classification"}
    return names | ({"problem_type": kinds[network.kind]} if network.kind in kinds else {})


def _write_pooling(folder: Path, shape: EncoderConfig) -> None:
    """What sentence-transformers reads: the transformer, then the mean over its tokens."""
    package = "sentence_transformers.models"
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    steps = [{"idx": i, "name": str(i), "path": p, "type": f"{package}.{t}"} for i, (p, t) in enumerate(modules)]
    pooling = {"word_embedding_dimension": shape.width, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling").mkdir()
    write_json(folder / "modules.json", steps)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": shape.positions, "do_lower_case": False})
