"""What many tests need: a small language, a tokenizer for it, prepared data, networks in folders."""

import os
import random
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import settings
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ["TERM"] = "dumb"
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from elektron.data import corpus, tokenizer
from elektron.data.prepare import ShardsConfig, write_shards
from elektron.data.shards import Data, open_data
from elektron.data.tokenizer import ROLES, Tokenizer, TokenizerConfig
from elektron.interop.huggingface import save
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.model.initial import initialise

pytest_plugins = ["faults.counting"]

settings.register_profile("elektron", deadline=None, print_blob=True)  # a busy machine is no fault
if not os.environ.get("CI"):  # there hypothesis has a profile of its own, which draws the same each time
    settings.load_profile("elektron")

NOUNS = ["cat", "dog", "bird", "fish", "king", "queen", "child", "river", "mountain", "house"]
VERBS = ["sees", "likes", "follows", "finds", "hears", "remembers"]
ADJECTIVES = ["old", "young", "small", "red", "quiet", "happy"]


def sentences(count: int, seed: int = 0) -> list[str]:
    """A language of few words and fixed order."""
    draw = random.Random(seed)
    return [
        f"The {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.choice(VERBS)} a {draw.choice(NOUNS)}."
        for _ in range(count)
    ]


def documents(count: int, seed: int = 0) -> list[str]:
    lines = iter(sentences(count * 8, seed))
    return ["\n".join(next(lines) for _ in range(8)) for _ in range(count)]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """What a test draws without saying from where does not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels are tested: a GPU if there is one, else Triton's interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 documents with a blank line between them."""
    path = tmp_path_factory.mktemp("corpus") / "tales.txt"
    path.write_text("\n\n".join(documents(200)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def small_tokenizer(text_file: Path) -> Tokenizer:
    return tokenizer.train(lambda: iter([text_file.read_text()]), TokenizerConfig(vocab_size=128))


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE: pieces of characters, and words with the space before them."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    raw.decoder = decoders.ByteLevel()
    raw.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(ROLES.values()), initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(documents(20), trainer)
    return Tokenizer(raw.to_str())


@pytest.fixture(scope="session")
def untaught(tmp_path_factory: pytest.TempPathFactory, small_tokenizer: Tokenizer) -> Path:
    """discriminator/ and generator/ that have learned nothing, but have opinions."""
    folder = tmp_path_factory.mktemp("untaught")
    shape = EncoderConfig(layers=2, width=32, heads=2, feedforward_width=64, embedding_width=16, positions=32)
    noise = torch.Generator().manual_seed(1)
    for kind, name in ((Discriminator, "discriminator"), (Generator, "generator")):
        network = kind(shape, Embeddings(small_tokenizer.vocab_size, shape))
        initialise(network, 0)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.2 * torch.randn(parameter.shape, generator=noise)
        save(network, small_tokenizer, folder / name, "")
    return folder


@pytest.fixture(scope="session")
def data_folder(text_file: Path, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "tales"
    pieces = corpus.pieces(corpus.sources([str(text_file)]), corpus.ReadingConfig())
    write_shards(pieces, small_tokenizer, folder, ShardsConfig(held_out=0.05, processes=1))
    return folder


@pytest.fixture(scope="session")
def data(data_folder: Path) -> Data:
    return open_data(data_folder)
