"""elektron export RUN: write a run's newest checkpoint as Hugging Face folders, discriminator/ and generator/."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from elektron.config import parse, to_toml
from elektron.data.files import locked, write_atomically
from elektron.interop import onnx
from elektron.interop.card import model_card
from elektron.interop.huggingface import Precision, role_of, save
from elektron.model.heads import Discriminator
from elektron.score import calibration
from elektron.train import metrics
from elektron.verbs.runs import CONFIG, DISCRIMINATOR, open_model


@dataclass(frozen=True, kw_only=True)
class Config:
    """elektron export"""

    run: Path = Path("runs/tiny")
    """The run: `elektron export RUN`."""
    to: str = ""
    """Folder to write discriminator/ and generator/ into; the run's own folder if empty."""
    weights: Precision = "float32"
    """In which numbers weights are written; float16 takes half the space."""
    licence: str = ""
    """The model's, for its card: a name that the Hub knows, such as apache-2.0."""
    text: str = ""
    """A sentence about the text it was trained on, for its card."""
    onnx: bool = False
    """Also write discriminator/model.onnx, and check it in onnxruntime."""


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron export", __doc__ or "", first="run")
    console = Console(highlight=False, soft_wrap=True)
    to = Path(config.to) if config.to else config.run
    with locked(to):
        _export(config, to, console)


def _export(config: Config, to: Path, console: Console) -> None:
    for folder in export(config.run, to, config.weights, config.licence, config.text):
        console.print(f"{folder.name}: {folder}")
    if config.onnx:
        path = to / DISCRIMINATOR / onnx.FILE
        network = open_model(config.run).model.eval().networks().get(DISCRIMINATOR)
        if not isinstance(network, Discriminator):
            raise ValueError(f"--onnx: {config.run} has no discriminator")
        difference = onnx.export_onnx(network, path)
        console.print(f"onnx: {path} (logits within {difference:.1e} of ours)")


def export(run: Path, to: Path, weights: Precision = "float32", licence: str = "", text: str = "") -> list[Path]:
    """Write the networks with their model cards, and what was calibrated; returns the folders."""
    if not (run / CONFIG).exists():
        raise ValueError(f"{run} is no run: it has no {CONFIG}")
    opened = open_model(run)
    records = {record["kind"]: record for record in metrics.read_begun(run) if record["step"] <= opened.step}
    config = to_toml(opened.config)
    folders = []
    for folder, network in opened.model.networks().items():
        about = folder, run.resolve().name, opened.config.objective.kind, opened.step
        card = model_card(role_of(network), *about, records["run"], records.get("held", {}), config, licence, text)
        save(network, opened.tokenizer, to / folder, card, weights)
        if (run / calibration.FILE).exists() and folder == DISCRIMINATOR:
            write_atomically(to / folder / calibration.FILE, (run / calibration.FILE).read_bytes())
        folders.append(to / folder)
    return folders
