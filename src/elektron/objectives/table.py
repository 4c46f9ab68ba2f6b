"""Every objective by its name."""

from elektron.model.encoder import EncoderConfig
from elektron.objectives.adversarial import Adversarial
from elektron.objectives.all_tokens_mlm import AllTokensMLM
from elektron.objectives.choices import check
from elektron.objectives.corrective import Corrective
from elektron.objectives.electra import Electra
from elektron.objectives.electric import Electric
from elektron.objectives.gumbel import Gumbel
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.mlm import MaskedLM
from elektron.objectives.objective import Kind, Objective, ObjectiveConfig
from elektron.objectives.replace_mlm import ReplaceMLM
from elektron.objectives.span import Span
from elektron.objectives.two_stage import TwoStage

OBJECTIVES: dict[Kind, type[Objective]] = {
    "electra": Electra,
    "electra-15": Electra,
    "mlm": MaskedLM,
    "replace-mlm": ReplaceMLM,
    "all-tokens-mlm": AllTokensMLM,
    "electric": Electric,
    "two-stage": TwoStage,
    "adversarial": Adversarial,
    "gumbel": Gumbel,
    "span": Span,
    "corrective": Corrective,
}


def build(shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> Objective:
    """The objective of a config whose choices go together."""
    return OBJECTIVES[config.kind](shape, check(config), lexicon)
