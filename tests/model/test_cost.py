from dataclasses import replace

import pytest
import torch

from elektron.kernels.counters import row_keys
from elektron.model.cost import encoder_activations
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.initial import initialise

SHAPE = EncoderConfig(layers=3, width=128, heads=4, feedforward_width=512, embedding_width=128, positions=128)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
@pytest.mark.parametrize("length", [32, 128])
def test_activations_are_about_what_autograd_keeps(dropout, attention_dropout, length):
    shape = replace(SHAPE, dropout=dropout, attention_dropout=attention_dropout)
    encoder = Encoder(shape, Embeddings(50, shape))
    initialise(encoder, 0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.randint(50, (8, length))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        encoder(tokens, torch.zeros_like(tokens), keys=row_keys(0, 0, torch.arange(8, dtype=torch.int32)))
    expected = tokens.numel() * encoder_activations(shape, length, 4)
    assert sum(kept.values()) == pytest.approx(expected, rel=0.2)
