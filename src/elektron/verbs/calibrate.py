"""elektron calibrate MODEL --dev FILE: how far a discriminator's probabilities can be trusted on your errors, and two
numbers that mend them, kept beside the model for `detect`. Tries whether texts are better read as they are or led in by
others (--lead), which `score` goes by as well. FILE has words with c (correct) or i (incorrect) in columns or JSON
lines, or is M2."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console

from elektron.config import parse
from elektron.data.files import write_atomically, write_json
from elektron.score import calibration
from elektron.score.calibration import Calibration, brier, calibration_error, fit, log_loss, reliability
from elektron.score.reader import LEAD, Reader
from elektron.score.sentences import Way
from elektron.score.words import logits_of
from elektron.tasks import tagging
from elektron.tasks.metrics import average_precision, best_detection_threshold, detection, resampled
from elektron.tasks.results import markdown
from elektron.tasks.words import CORRECT, INCORRECT
from elektron.train.charts import COLOURS, Curve, chart, page
from elektron.verbs.judges import AUTO, Judges, Reading, Who, open_judges


@dataclass(frozen=True, kw_only=True)
class Config(Reading):
    """elektron calibrate"""

    dev: str = ""
    """Labelled text to fit on: temperature, shift, and the threshold with the highest F0.5."""
    test: str = ""
    """Other labelled text to be judged by."""
    by: Literal["auto", "detection", "energy", "masked"] = "auto"
    """detection: the logits of "replaced"; energy: Electric's energies; masked: how surprised a masked LM is, which
    takes a pass for each token; auto: what the model was trained for, and nothing else is kept."""
    save: bool = True
    """Keep what was found beside the model, where `detect` finds it."""
    html: str = ""
    """Draw the reliability of the probabilities to this file."""
    out: str = ""
    """Write all numbers to this file, as JSON."""


class Labelled(NamedTuple):
    """Words of a file."""

    logits: np.ndarray  # [n] the higher, the likelier an error
    true: np.ndarray  # [n] whether they are errors
    ends: np.ndarray  # [s] where sentences end


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron calibrate", __doc__ or "", first="model")
    if not config.dev:
        raise ValueError("--dev FILE: text with its errors marked, to fit on")
    console = Console(highlight=False, soft_wrap=True)
    judges = open_judges(
        Who(**{field.name: getattr(config, field.name) for field in fields(Reading)}, calibrated=False)
    )
    files = {"dev": config.dev} | ({"test": config.test} if config.test else {})
    sentences = {split: _sentences(Path(path)) for split, path in files.items()}
    leads = ("", LEAD) if config.lead == AUTO else (config.lead,)
    by: Way = judges.way if config.by == "auto" else config.by
    fitted, words = _best(judges, by, leads, sentences, console)
    plain, fitted = (_with_threshold(found, words["dev"]) for found in (Calibration(), fitted))
    console.print(f"temperature {fitted.temperature:.3f}, shift {fitted.shift:+.3f}, threshold {fitted.threshold:.3f}")
    ways = {"as it is": plain, "calibrated": fitted}
    found = {split: {way: _judged(words[split], how) for way, how in ways.items()} for split in words}
    names = list(next(iter(found["dev"].values())))
    rows = [
        [split, way, *(f"{100 * values[name]:.1f}" for name in names)]
        for split, of_split in found.items()
        for way, values in of_split.items()
    ]
    console.print(markdown(["words", "probabilities", *names], rows), end="")
    console.print(f"{', '.join(f'{len(part.true):,} {split}' for split, part in words.items())} words")
    intervals = _intervals(words[next(reversed(files))], fitted)
    told = ", ".join(f"{name} {100 * low:.1f} to {100 * high:.1f}" for name, (low, high) in intervals.items())
    console.print(f"{next(reversed(files))}, 95% over sentences: {told}")
    if config.save and not config.model:
        console.print("not kept: the model that comes with Elektron stays as it is; export a copy, or name its folder")
    elif config.save and by == judges.way:
        console.print(f"kept: {calibration.save(fitted, judges.home, config.dev)}", markup=False)
    if config.out:
        write_json(Path(config.out), {"by": by, "calibration": fitted.__dict__, "found": found, "intervals": intervals})
    if config.html:
        write_atomically(Path(config.html), _page(judges.home.name, words, ways).encode())
        console.print(f"page: {config.html}", markup=False)


def _best(
    judges: Judges, by: Way, leads: Sequence[str], sentences: dict[str, list[tagging.Sentence]], console: Console
) -> tuple[Calibration, dict[str, Labelled]]:
    """The lead that fits the first of the files best, what is fitted with it, and what is said of all words."""
    found, failed = [], []
    for lead in leads:
        reader = judges._replace(lead=lead).reader(by)
        words = {split: _read(some, reader, by == "masked") for split, some in sentences.items()}
        try:
            fitted = replace(fit(words["dev"].logits, words["dev"].true), lead=lead)
        except ValueError as error:
            failed.append(error)
            continue
        loss = log_loss(fitted.probabilities(words["dev"].logits), words["dev"].true)
        console.print(f"{'led in' if lead else 'as they are'}: log loss {loss:.4f} on dev", markup=False)
        found.append((loss, fitted, words))
    if not found:
        raise failed[-1]
    _, fitted, words = min(found, key=lambda one: one[0])
    return fitted, words


def _read(sentences: list[tagging.Sentence], reader: Reader, is_likelihood: bool) -> Labelled:
    """What is said of words, the higher the worse: a likelihood is turned round."""
    logits = []
    for sentence, reading in zip(sentences, reader.read(" ".join(s.words) for s in sentences), strict=True):
        reading = reading._replace(said=-reading.said) if is_likelihood else reading
        ends = np.cumsum([len(word) + 1 for word in sentence.words])
        spans = [(int(end) - len(word) - 1, int(end) - 1) for word, end in zip(sentence.words, ends, strict=True)]
        logits.append(logits_of(reading, spans))
    true = np.array([tag == INCORRECT for sentence in sentences for tag in sentence.tags])
    return Labelled(np.concatenate([np.empty(0), *logits]), true, np.cumsum([len(s.words) for s in sentences]))


def _sentences(path: Path) -> list[tagging.Sentence]:
    if path.suffix == ".m2":
        return tagging.read_m2(path, CORRECT, INCORRECT)
    sentences = tagging.read_jsonl(path) if path.suffix == ".jsonl" else tagging.read_columns(path)
    strange = {tag for sentence in sentences for tag in sentence.tags} - {CORRECT, INCORRECT}
    if strange:
        raise ValueError(f"{path}: words are to be {CORRECT} or {INCORRECT}, not {', '.join(sorted(strange))}")
    return sentences


def _with_threshold(found: Calibration, words: Labelled) -> Calibration:
    return replace(found, threshold=best_detection_threshold(found.probabilities(words.logits), words.true))


def _judged(words: Labelled, how: Calibration) -> dict[str, float]:
    probabilities = how.probabilities(words.logits)
    scores = detection(probabilities >= how.threshold, words.true)
    return {
        "precision": scores.precision,
        "recall": scores.recall,
        "F0.5": scores.f05,
        "average precision": average_precision(words.logits, words.true),
        "calibration error": calibration_error(reliability(probabilities, words.true)),
        "Brier": brier(probabilities, words.true),
    }


def _intervals(words: Labelled, how: Calibration) -> dict[str, tuple[float, float]]:
    marked = how.probabilities(words.logits) >= how.threshold
    return {
        "F0.5": resampled(words.ends, lambda some: detection(marked[some], words.true[some]).f05),
        "average precision": resampled(
            words.ends, lambda some: average_precision(words.logits[some], words.true[some])
        ),
    }


def _page(name: str, words: dict[str, Labelled], ways: dict[str, Calibration]) -> str:
    figures = []
    for split, part in words.items():
        curves = [Curve("equal", "mark", [(0.0, 0.0), (1.0, 1.0)])]
        for number, (way, how) in enumerate(ways.items()):
            bins = reliability(how.probabilities(part.logits), part.true)
            curves.append(Curve(way, COLOURS[number], [(found.predicted, found.true) for found in bins]))
        figures.append(chart(f"{split}: share of errors by probability", curves, from_zero=True, along="probability"))
    said = "Where a curve lies on the line, words that are called errors with 30% are errors in 30 of 100 cases."
    return page(f"{name}: calibration", f"<p class=quiet>{said}</p>\n<div class=charts>{''.join(figures)}</div>")
