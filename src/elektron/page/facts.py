"""What there is to know of a model, for whoever looks at the page."""

import re
from pathlib import Path

from pydantic import BaseModel, Field

from elektron.model.heads import Discriminator
from elektron.model.task_heads import Tuned
from elektron.score.detector import Detector

_CARD = "README.md"


class Mended(BaseModel):
    """p = sigmoid(logit / temperature + shift)"""

    temperature: float
    shift: float
    threshold: float
    lead: str = Field(description="What is read before short texts, as context.")


class Facts(BaseModel):
    """Of the model that answers."""

    name: str
    about: str = Field(description="The first paragraph of its model card; empty if there is none.")
    licence: str = Field(description="As its model card says; empty if it does not.")
    objective: str = Field(description="What it was trained by.")
    parameters: int
    layers: int
    width: int
    vocabulary: int = Field(description="Tokens.")
    positions: int = Field(description="Tokens that it reads together; longer texts go through windows.")
    threshold: float = Field(description="From which probability on words are marked, if nobody says otherwise.")
    calibration: Mended | None = Field(description="What `elektron calibrate` found; null if it was not run.")
    suggests: bool = Field(description="Whether there is a generator that knows better words.")
    characters: int = Field(description="Of a text at the most.")


def facts_of(
    name: str, home: Path, discriminator: Discriminator | Tuned, detector: Detector, threshold: float, characters: int
) -> Facts:
    """`home` is a run's folder or the discriminator's; neither is told, only what the model is called."""
    shape, about = discriminator.encoder.config, _card(home)
    if isinstance(discriminator, Tuned):
        about |= {"objective": "fine-tuning"}
    mended, plain = detector.calibration, type(detector.calibration)()
    return Facts(
        name=name,
        **about,
        parameters=sum(parameter.numel() for parameter in discriminator.parameters()),
        layers=shape.layers,
        width=shape.width,
        vocabulary=discriminator.encoder.embeddings.table.shape[0],
        positions=shape.positions,
        threshold=threshold,
        calibration=None if mended == plain else Mended(**vars(mended)),
        suggests=detector.suggests,
        characters=characters,
    )


def _card(home: Path) -> dict[str, str]:
    """What the model card says, in plain words."""
    path = next((path for path in (home / _CARD, home / "discriminator" / _CARD) if path.exists()), None)
    text = path.read_text(encoding="utf-8", errors="replace") if path else ""
    head, body = re.match(r"(?s)(?:---\n(.*?)\n---\n)?(.*)", text).groups(default="")  # pyright: ignore[reportOptionalMemberAccess]
    licence = re.search(r"(?m)^license: *(.+)$", head)
    paragraph = next((part for part in body.split("\n\n") if part.strip() and not part.strip().startswith("#")), "")
    objective = re.search(r"objective\s+`([\w-]+)`", paragraph)
    return {
        "about": re.sub(r"\s+", " ", re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraph)).replace("`", "").strip(),
        "licence": licence[1].strip() if licence else "",
        "objective": objective[1] if objective else "replaced token detection",
    }
