"""One number for a text: how well all of it goes together, by what is said of each of its tokens.

    detection   log p(original), by a discriminator: -softplus(logit), one pass
    energy      -E, by Electric's, whose logits are energies: an unnormalised pseudo-log-likelihood, one pass
    masked      log p(token | the others), by a masked LM: a pass for each token

The sum over tokens ranks texts of about one length; the mean does not mind how long they are.
"""

from typing import Literal

import numpy as np

from elektron.score.reader import Reading
from elektron.score.words import firsts_of

Way = Literal["detection", "energy", "masked"]
Total = Literal["sum", "mean"]


def score_of(reading: Reading, way: Way, total: Total) -> float:
    """Of a text without tokens: 0."""
    said = (reading.said[firsts_of(reading)] if reading.of_firsts else reading.said).astype(np.float64)
    tokens = {"detection": -np.logaddexp(0, said), "energy": -said, "masked": said}[way]
    return float(tokens.sum() if total == "sum" or not len(tokens) else tokens.mean())
