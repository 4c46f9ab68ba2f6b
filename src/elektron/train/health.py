"""What is going wrong, in words: a pure function of a held-out record and of what chance would do."""

from elektron.train.metrics import Record

GRACE = 0.1
"""Share of a stage, which for most objectives is the run, in which nothing is wrong yet."""
STUCK_AUC = 0.55
BLIND_RECALL = 0.05
STRONG_SHARE = 0.2
"""A generator that leaves fewer of the masked tokens replaced than this is too strong."""


def troubles(record: Record, unigram_loss: float, mask_rate: float, progress: float) -> dict[str, str]:
    """Names and sentences about a held-out record; `progress` is the share of its stage that is over."""
    found = {}
    if "discriminator_recall" in record and (auc := record.get("detection_auc", 0.5)) < STUCK_AUC:
        recall = record["discriminator_recall"]
        how = "is stuck at the majority class" if recall < BLIND_RECALL else "does no better than chance"
        found["stuck"] = (
            f"the discriminator {how} (AUC {auc:.2f}, recall {recall:.2f}): it needs more tokens, a larger batch or "
            "learning rate, or a smaller generator"
        )
    # an encoder that may also copy its input has another loss
    for network in ("generator",) if "replaced_rate" in record else ("generator", "encoder"):
        loss = record.get(f"{network}_loss", 0.0)
        if loss > unigram_loss:
            found["ignorant"] = (
                f"the {network} knows less than word frequencies (loss {loss:.2f}, unigram {unigram_loss:.2f}): "
                "it needs more tokens or a larger learning rate"
            )
    replaced = record.get("replaced_rate", 1.0)
    if replaced < STRONG_SHARE * mask_rate:
        found["strong"] = (
            f"the generator is too strong (only {replaced:.1%} of the tokens are replaced): "
            "make it smaller (objective.generator_width) or mask more (objective.mask_rate)"
        )
    return found if progress >= GRACE else {}
