"""Tasks that answer questions about a text: how SQuAD and MRQA are asked and counted."""

import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

from elektron.data.tokenizer import Tokenizer
from elektron.tasks import metrics, squad
from elektron.tasks.task import Files, Outputs, Split, Task

_JOINT_THRESHOLD = -2.75
_STRIDE = 128
"""Tokens from a window to the next; where rows are short, half of theirs, for an answer that is cut by the border of
one window to lie whole in another."""


class Reading(NamedTuple):
    """A task that answers questions about a text."""

    train: str
    dev: str
    can_be_unanswerable: bool
    length: int = 512
    epochs: int = 2


READING = {
    "squad": Reading("train-v1.1.json", "dev-v1.1.json", can_be_unanswerable=False),
    "squad2": Reading("train-v2.0.json", "dev-v2.0.json", can_be_unanswerable=True),
    "mrqa": Reading("train.jsonl.gz", "dev.jsonl.gz", can_be_unanswerable=False),
}


def reading_task(name: str, protocol: Reading, files: Files, tokenizer: Tokenizer, longest: int) -> Task:
    notes: list[str] = []

    def asked(path: Path) -> tuple[_Asked, squad.Windows]:
        questions = squad.read_squad(path) if path.suffix == ".json" else squad.read_mrqa(path)
        if not questions:
            raise ValueError(f"{path}: no questions in it")
        windows = squad.windows_of(questions, tokenizer, longest, min(_STRIDE, longest // 2))
        more, lost = len(windows.windows) - len(questions), len(windows.lost)
        if more:
            notes.append(f"{more:,} more rows than questions of {path.name}: long contexts are read through windows")
        if lost:
            done = "left out" if path == files.train else "asked all the same"
            notes.append(f"{lost:,} questions of {path.name} whose answer is not in their context are {done}")
        return _Asked(questions, windows.windows), windows

    def split(path: Path) -> Split:
        known, _ = asked(path)
        return Split([window.row for window in known.windows], known)

    train = squad.trainable(asked(files.train)[1])
    if not train:
        raise ValueError(f"{files.train}: not one of its questions can be learned from")
    return Task(
        name,
        "span",
        ("start", "end"),
        Split([window.row for window in train], None),
        {"dev": split(files.dev)},
        {} if files.test is None else {"test": split(files.test)},
        "exact",
        partial(_count_answers, protocol.can_be_unanswerable),
        partial(_answered, protocol.can_be_unanswerable),
        tuple(notes),
    )


class _Asked(NamedTuple):
    questions: list[squad.Question]
    windows: list[squad.Window]


def _threshold(can_be_unanswerable: bool, outputs: Outputs) -> float | None:
    """Beyond which there is no answer: even chances, or what the original has for its head's doubt."""
    if not can_be_unanswerable:
        return None
    return _JOINT_THRESHOLD if outputs[0].shape[1] == 3 else 0.0


def _count_answers(can_be_unanswerable: bool, known: _Asked, outputs: Outputs) -> dict[str, float]:
    answers = squad.answers_of(outputs, known.windows, known.questions)
    golds = {question.id: question.answers for question in known.questions}
    scores = metrics.squad_scores(squad.predictions(answers, _threshold(can_be_unanswerable, outputs)), golds)
    if can_be_unanswerable:
        doubts = {answer.id: answer.no_answer for answer in answers}
        scores |= metrics.best_threshold(squad.predictions(answers, None), golds, doubts)._asdict()
    return scores


def _answered(can_be_unanswerable: bool, known: _Asked, outputs: Outputs) -> dict[str, str]:
    """What SQuAD's server and its script take, and the best candidates of each question."""
    answers = squad.answers_of(outputs, known.windows, known.questions)
    said = {
        ".json": squad.predictions(answers, _threshold(can_be_unanswerable, outputs)),
        "-null-odds.json": {answer.id: answer.no_answer for answer in answers},
        "-nbest.json": {answer.id: [candidate._asdict() for candidate in answer.best] for answer in answers},
    }
    return {end: json.dumps(content, ensure_ascii=False, indent=0) + "\n" for end, content in said.items()}
