"""Which choices go with which objective. A pair that means nothing is refused with a sentence, rather than ignored."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, get_args

from elektron.objectives.objective import Kind, ObjectiveConfig

NEEDS: dict[Kind, dict[str, Any]] = {
    "electric": {"generator": "two-tower"},
    "two-stage": {"generator_width": 1.0, "generator_layers": 1.0, "sharing": "none"},
}
"""What an objective cannot do without."""

_DETECTING: tuple[Kind, ...] = ("electra", "electra-15")
_SAMPLING: tuple[Kind, ...] = (*_DETECTING, "replace-mlm", "all-tokens-mlm", "corrective")
"""Those whose input any generator may corrupt."""
_TEMPERED: tuple[Kind, ...] = (*_SAMPLING, "two-stage", "span")
_SHARING: tuple[Kind, ...] = (*_SAMPLING, "electric", "adversarial", "gumbel", "span")
_HIDING: tuple[Kind, ...] = (*_SAMPLING, "mlm", "electric", "two-stage", "adversarial", "gumbel")
_REPEATED: tuple[Kind, ...] = (*_SAMPLING, "mlm", "two-stage", "adversarial")

_DEFAULTS = ObjectiveConfig()
_FOR: dict[str, tuple[tuple[Kind, ...], str]] = {
    "keep_rate": (tuple(kind for kind in get_args(Kind) if kind != "span"), "it hides stretches whole"),
    "draws": (_REPEATED, "a position that is drawn twice has no sample of its own"),
    "masking": (_HIDING, "it chooses stretches by itself"),
    "temperature": (_TEMPERED, "what it learns from a sample supposes that the generator's own chances drew it"),
    "first_temperature": (_TEMPERED, "what it learns from a sample supposes that the generator's own chances drew it"),
    "disallow_correct": (_TEMPERED, "what it learns from a sample supposes that the generator's own chances drew it"),
    "generator": (_SAMPLING, "its own generator is part of it"),
    "sharing": (_SHARING, "its networks share what they can"),
    "equal": (_DETECTING, "only replaced token detection labels tokens so"),
    "sentence_weight": (_DETECTING, "only replaced token detection has such rows"),
}
"""Which objectives a choice is for, and why it is not for the others."""


class _Rule(NamedTuple):
    """A pair of choices that means nothing."""

    is_broken: Callable[[ObjectiveConfig], bool]
    sentence: str


_READS_NO_MASKS = ("two-tower", "uniform", "unigram")
_RULES = (
    _Rule(
        lambda c: c.generator == "tied" and c.sharing != "all-embeddings",
        "--objective.generator tied is one encoder with one set of embeddings: leave --objective.sharing alone",
    ),
    _Rule(
        lambda c: c.generator == "frozen" and c.sharing != "none",
        "--objective.generator frozen stays as it is, its embeddings too: add --objective.sharing none",
    ),
    _Rule(
        lambda c: c.generator in ("uniform", "unigram") and c.sharing != "all-embeddings",
        "--objective.generator uniform or unigram has no embeddings to share: leave --objective.sharing alone",
    ),
    _Rule(
        lambda c: c.generator in ("uniform", "unigram") and (c.temperature != 1 or c.first_temperature != 0),
        "--objective.generator uniform or unigram has no logits: leave --objective.temperature alone",
    ),
    _Rule(
        lambda c: c.generator in _READS_NO_MASKS and c.keep_rate != 0,
        "--objective.keep-rate is the share of [MASK] that shows the original: this --objective.generator reads none",
    ),
    _Rule(
        lambda c: c.masking != "uniform" and c.draws != "without-replacement",
        "--objective.draws with-replacement is for --objective.masking uniform",
    ),
    _Rule(
        lambda c: c.kind == "electric" and c.masking == "frequency",
        "--objective.masking frequency makes some tokens noise more often than others: electric counts on odds alike",
    ),
    _Rule(
        lambda c: c.kind == "gumbel" and not c.discriminator_weight > 0,
        "--objective.discriminator-weight must be positive: gumbel turns the discriminator's gradient round",
    ),
    _Rule(
        lambda c: c.equal == "replaced" and c.disallow_correct,
        "--objective.disallow-correct leaves no sample that --objective.equal could count as replaced",
    ),
)


def check(config: ObjectiveConfig) -> ObjectiveConfig:
    """The config itself, if its choices go together."""
    needs = NEEDS.get(config.kind, {})
    for name, value in needs.items():
        if getattr(config, name) != value:
            flags = " ".join(f"{_flag(field)} {wanted}" for field, wanted in needs.items())
            raise ValueError(f"the objective {config.kind} needs {flags}")
    for name, (kinds, reason) in _FOR.items():
        value = getattr(config, name)
        if value != getattr(_DEFAULTS, name) and config.kind not in kinds and name not in needs:
            raise ValueError(f"{_flag(name)} {value} is not for the objective {config.kind}: {reason}")
    for rule in _RULES:
        if rule.is_broken(config):
            raise ValueError(rule.sentence)
    return config


def as_needed(config: ObjectiveConfig, kind: Kind) -> ObjectiveConfig:
    """Another objective with the same choices, as far as they are for it."""
    needs = NEEDS.get(kind, {})
    foreign = {
        name: getattr(_DEFAULTS, name) for name, (kinds, _) in _FOR.items() if kind not in kinds and name not in needs
    }
    return replace(config, kind=kind, **(foreign | needs))


def _flag(field: str) -> str:
    return f"--objective.{field.replace('_', '-')}"
