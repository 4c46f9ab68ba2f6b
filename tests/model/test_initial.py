from dataclasses import replace
from typing import Any

import pytest
import torch

from elektron.data.tokenizer import Specials
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig, Layer
from elektron.model.heads import Discriminator
from elektron.model.initial import initialise
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig

SHAPE = EncoderConfig(layers=2, width=32, heads=4, feedforward_width=64, embedding_width=16, positions=24)


def test_initialisation_is_the_original_s():
    shape = replace(SHAPE, width=128, feedforward_width=256, embedding_width=64)
    embeddings = Embeddings(2000, shape)
    network = Discriminator(shape, embeddings)
    initialise(network, 3)
    for name, parameter in ((name, parameter.detach()) for name, parameter in network.named_parameters()):
        if name.endswith("norm.weight"):
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()
        elif name.endswith(("project.weight", "score.weight")):
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert parameter.abs().max() <= bound
            assert parameter.std() == pytest.approx(bound / 3**0.5, rel=0.2)
        else:
            assert parameter.abs().max() <= 0.04
            assert parameter.std() == pytest.approx(0.02 * 0.88, rel=0.1)  # what truncation at two deviations leaves
    again = Discriminator(shape, Embeddings(2000, shape))
    initialise(again, 3)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    initialise(again, 4)
    assert not torch.equal(network.encoder.embeddings.word.weight, again.encoder.embeddings.word.weight)


def attentions(encoder: Encoder) -> list[torch.Tensor]:
    """[H, T, T] of every layer, in the mean over some rows."""
    length = encoder.config.positions
    tokens = torch.randint(50, (8, length))
    x = encoder.project(encoder.embeddings(tokens, torch.zeros_like(tokens)))
    found = []
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        heads, width = encoder.config.heads, encoder.config.width
        q, k, _ = layer.qkv(x).view(8, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        found.append((q @ k.transpose(-1, -2) / (width // heads) ** 0.5).softmax(-1).mean(0))
        x = layer(x, None, None)
    return found


def looks_at(encoder: Encoder) -> list[list[tuple[int, float]]]:
    """Of every head of every layer: the offset it looks at most often, and how much it looks there."""
    length, offsets, found = encoder.config.positions, list(range(-6, 7)), []
    for attention in attentions(encoder):
        shares = torch.stack([attention.diagonal(offset, 1, 2)[:, 4 : length - 8].mean(1) for offset in offsets])
        best = shares.max(0)
        found.append(
            [(offsets[i], share) for i, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        )
    return found


@pytest.mark.parametrize(
    ("shape", "generator_width"),
    [
        (EncoderConfig(layers=2, width=128, heads=4, feedforward_width=256, embedding_width=64, positions=64), 0.5),
        (EncoderConfig(layers=2, width=128, heads=4, feedforward_width=256, embedding_width=128, positions=64), 0.5),
        (EncoderConfig(layers=2, width=256, heads=4, feedforward_width=256, embedding_width=128, positions=64), 0.25),
    ],
    ids=["wider than the embeddings", "as wide", "generator narrower"],
)
@torch.no_grad()
def test_half_of_the_heads_look_at_their_neighbours(shape, generator_width):
    model: Any = Electra(shape, ObjectiveConfig(generator_width=generator_width), Lexicon(Specials(0, 1, 2, 3, 4), 50))
    initialise(model, 0, "local")
    for encoder in (model.discriminator.encoder, model.generator.encoder):
        for number, heads in enumerate(looks_at(encoder)):
            told = min(len(heads), max(2, len(heads) // 2))  # one for each side
            for head, (offset, share) in enumerate(heads[:told]):
                assert offset == (head // 2 + 1) * (1 if (head + number) % 2 else -1)
                assert share > 0.5
            assert all(share < 0.1 for _, share in heads[told:]), "the other half looks everywhere"
        for attention in attentions(encoder):
            assert attention[:, 0].max() < 0.3, "[CLS] looks everywhere"


@torch.no_grad()
def test_original_heads_look_everywhere():
    encoder = Encoder(replace(SHAPE, positions=64), Embeddings(50, replace(SHAPE, positions=64)))
    initialise(encoder, 0)
    assert all(share < 0.05 for heads in looks_at(encoder) for _, share in heads)


def test_local_needs_heads_wide_enough():
    narrow = replace(SHAPE, width=12, heads=6)
    with pytest.raises(ValueError, match="heads 2 wide are too narrow.*--start original"):
        initialise(Encoder(narrow, Embeddings(50, narrow)), 0, "local")


def test_local_is_a_function_of_the_seed_and_keeps_the_rest():
    networks = []
    for start in ("local", "local", "original"):
        network = Discriminator(SHAPE, Embeddings(50, SHAPE))
        initialise(network, 3, start)
        networks.append(dict(network.named_parameters()))
    first, second, original = networks
    assert all(torch.equal(first[name], second[name]) for name in first)
    changed = {name.split(".")[-2] for name in first if not torch.equal(first[name], original[name])}
    assert changed == {"position", "project", "qkv"}
