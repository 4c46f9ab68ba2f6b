"""The discriminator as an ONNX graph, checked in onnxruntime before anyone relies on it."""

import logging
import os
import warnings
from pathlib import Path

import torch
from torch import Tensor

from elektron.model.heads import Discriminator

FILE = "model.onnx"
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
TOLERANCE = 1e-4


def export_onnx(network: Discriminator, path: Path) -> float:
    """Write the graph, with any number of rows and tokens, once onnxruntime has been seen to give our logits with it.
    Returns how far they are from ours."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  what torch's exporter is written in
    except ImportError as error:
        raise ValueError("--onnx needs `pip install 'elektron[onnx]'`") from error
    unchecked = path.with_name(f".{path.name}")
    axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens", max=network.encoder.config.positions)}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            _example(network, rows=2, tokens=5),
            unchecked,
            input_names=INPUTS,
            output_names=["logits"],
            dynamic_shapes=dict.fromkeys(INPUTS, axes),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(unchecked)
    difference = 0.0
    for rows, tokens in ((1, 3), (3, network.encoder.config.positions)):
        example = _example(network, rows, tokens)
        theirs = session.run(None, {name: tensor.numpy() for name, tensor in zip(INPUTS, example, strict=True)})[0]
        difference = max(difference, float((torch.from_numpy(theirs) - _logits(network, example)).abs().max()))
    if not difference < TOLERANCE:
        raise ValueError(f"{unchecked}: onnxruntime's logits are {difference:.1e} from ours, which is too far")
    os.replace(unchecked, path)
    return difference


@torch.no_grad()
def _logits(network: Discriminator, example: tuple[Tensor, ...]) -> Tensor:
    return network(*example)


def _example(network: Discriminator, rows: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of random tokens in two segments, the first row padded."""
    ids = torch.randint(network.encoder.embeddings.word.num_embeddings, (rows, tokens))
    segments = (torch.arange(tokens) > tokens // 2).long().repeat(rows, 1)
    mask = torch.ones_like(ids)
    mask[0, tokens - 1 :] = 0
    return ids, segments, mask
