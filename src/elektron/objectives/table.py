"""Every objective by its name."""

from elektron.model.encoder import EncoderConfig
from elektron.objectives.all_tokens_mlm import AllTokensMLM
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.mlm import MaskedLM
from elektron.objectives.objective import Kind, Objective, ObjectiveConfig
from elektron.objectives.replace_mlm import ReplaceMLM

OBJECTIVES: dict[Kind, type[Objective]] = {
    "electra": Electra,
    "electra-15": Electra,
    "mlm": MaskedLM,
    "replace-mlm": ReplaceMLM,
    "all-tokens-mlm": AllTokensMLM,
}


def build(shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> Objective:
    return OBJECTIVES[config.kind](shape, config, lexicon)
