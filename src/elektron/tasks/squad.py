"""Questions about a text, answered by a span of it: SQuAD 1.1 and 2.0, and the sets of MRQA.

A context that is too long for a row is read through windows that overlap: each is a row `[CLS] question [SEP] part of
the context [SEP]` whose target is the first and the last token of the answer, or [CLS] twice where the window does not
hold all of it. Decoding turns the two logits of each token into the characters of the original text.

Shapes in comments: T tokens of a row, C of them of the context.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elektron.data.examples import Row, laid_out
from elektron.data.files import read_json
from elektron.data.tokenizer import Pieces, Specials, Tokenizer
from elektron.data.windows import owners, windows
from elektron.tasks.tables import objects, whole

_NOWHERE = (-1, -1)


class Question(NamedTuple):
    """A question about a context."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]  # all that count as right; none if the context does not answer, or if nobody says
    answer: str  # the one to learn from; "" if there is none
    start: int  # its first character in the context; -1 if there is none, or if nobody says


class Window(NamedTuple):
    """A row and what turns its logits into text. The context's tokens stand in it from `row.second` on."""

    row: Row  # its target: [2] the first and the last token of the answer, or 0 and 0
    question: int  # number of the question
    offsets: np.ndarray  # [C, 2] where the token's characters begin and stop in the whole context
    is_central: np.ndarray  # [C] whether no other window shows more of what stands around the token


class Windows(NamedTuple):
    """The rows of questions, in the questions' order."""

    windows: list[Window]
    lost: list[int]  # numbers of the questions whose answer is not in their context


class Candidate(NamedTuple):
    """A text that may be the answer; probabilities are of the candidates listed."""

    text: str
    score: float
    probability: float


class Answer(NamedTuple):
    """What a model answers."""

    id: str
    text: str
    score: float  # start logit + end logit
    no_answer: float  # [CLS]'s score, least of all windows, minus the text's: the larger, the less there is an answer;
    # or the least of a `JointHead`'s doubts
    best: tuple[Candidate, ...]  # different texts, best first


_Answers = tuple[tuple[str, ...], str, int]  # the last three fields of a Question


def read_squad(path: Path) -> list[Question]:
    """A file of SQuAD 1.1 or 2.0; those to be tested on need no answers."""
    questions = [
        question
        for a, article in enumerate(_field(read_json(path), "data", list, str(path)))
        for p, paragraph in enumerate(_field(article, "paragraphs", list, f"{path}, data[{a}]"))
        for question in _questions(paragraph, "id", _squad_answers, f"{path}, data[{a}].paragraphs[{p}]")
    ]
    return _unique(questions, path)


def read_mrqa(path: Path) -> list[Question]:
    """A file of MRQA 2019 (Fisch et al., arXiv:1910.09753): JSON lines after a header, plain or compressed (.gz)."""
    read = list(objects(path))
    if not read:
        raise ValueError(f"{path}: no header, nor anything else")
    header, *paragraphs = read
    _field(header.fields, "header", dict, header.where)
    found = [question for line in paragraphs for question in _questions(line.fields, "qid", _mrqa_answers, line.where)]
    return _unique(found, path)


def _questions(paragraph: object, id_: str, answers: Callable[[Any, str], _Answers], where: str) -> Iterator[Question]:
    context = _text(paragraph, "context", where)
    for n, record in enumerate(_field(paragraph, "qas", list, where)):
        name = str(_field(record, id_, (str, int), f"{where}, qas[{n}]"))
        here = f"{where}, question {name}"
        yield Question(name, _text(record, "question", here), context, *answers(record, here))


def _squad_answers(record: dict[str, Any], where: str) -> _Answers:
    found = _field(record, "answers", list, where) if "answers" in record else []
    if not found or record.get("is_impossible", False):
        return (), "", -1
    texts = tuple(_text(answer, "text", where) for answer in found)
    return texts, texts[0], _field(found[0], "answer_start", int, where)


def _mrqa_answers(record: dict[str, Any], where: str) -> _Answers:
    found = _field(record, "detected_answers", list, where) if "detected_answers" in record else []
    texts = tuple(_text(answer, "text", where) for answer in found)
    answers = tuple(_field(record, "answers", list, where)) if "answers" in record else texts
    if not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"{where}: 'answers' are not all text")
    if not found:
        return answers, answers[0] if answers else "", -1
    match _field(found[0], "char_spans", list, where):
        case [[int(first), int()], *_]:
            return answers, texts[0], first
        case spans:
            raise ValueError(f"{where}: 'char_spans' begins with {spans[:1]}, not with [first, last]")


def _field(record: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:  # noqa: ANN401
    if not isinstance(record, dict):
        raise ValueError(f"{where}: {type(record).__name__} where an object with {name!r} should be")
    if name not in record:
        raise ValueError(f"{where}: no {name!r} (there is: {', '.join(record) or 'nothing'})")
    if not isinstance(record[name], kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(k.__name__ for k in kinds)
        raise ValueError(f"{where}: {name!r} is {type(record[name]).__name__}, not {wanted}")
    return record[name]


def _text(record: object, name: str, where: str) -> str:
    return whole(_field(record, name, str, where), f"{where}: {name!r}")


def _unique(questions: list[Question], path: Path) -> list[Question]:
    """Predictions are told apart by the id."""
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise ValueError(f"{path}: question {question.id} is there twice; every id must be its own")
        seen.add(question.id)
    return questions


def windows_of(
    questions: Sequence[Question], tokenizer: Tokenizer, longest: int, stride: int = 128, longest_question: int = 64
) -> Windows:
    """Every context through windows of `longest` tokens with the question, `stride` tokens from one to the next.

    Questions longer than `longest_question` tokens lose their end. Those of which the answer is not found are among the
    windows, to be evaluated with the others; see `trainable`.
    """
    if longest < longest_question + 4 or stride < 1:
        raise ValueError(
            f"rows of {longest} tokens, {stride} apart, cannot hold questions of {longest_question} tokens and some"
            f" context: at least {longest_question + 4}, 1 apart"
        )
    ids, lengths = tokenizer.encode([question.question for question in questions])
    ends = np.cumsum(lengths)
    contexts: dict[str, Pieces] = {}
    found: list[Window] = []
    lost: list[int] = []
    for number, question in enumerate(questions):
        if question.context not in contexts:
            (contexts[question.context],) = tokenizer.split([question.context])
        context = contexts[question.context]
        answer = _answer_tokens(question, context.offsets)
        if question.answers and answer == _NOWHERE:
            lost.append(number)
        asked = ids[ends[number] - lengths[number] : ends[number]][:longest_question]
        parts = windows(len(context.ids), longest - 3 - len(asked), stride)
        owner = owners(parts)
        for n, (start, stop) in enumerate(parts):
            row = _row(tokenizer.specials, asked, context.ids[start:stop], (answer[0] - start, answer[1] - start))
            found.append(Window(row, number, context.offsets[start:stop], owner[start:stop] == n))
    return Windows(found, lost)


def trainable(windows: Windows) -> list[Window]:
    """Without the questions whose answer is not in their context: there is nothing to point at."""
    lost = set(windows.lost)
    return [window for window in windows.windows if window.question not in lost]


def _answer_tokens(question: Question, offsets: np.ndarray) -> tuple[int, int]:
    """The first and the last token of the context that have characters of the answer."""
    start, stop = _located(question)
    inside = np.flatnonzero((offsets[:, 0] < stop) & (offsets[:, 1] > start))
    return (int(inside[0]), int(inside[-1])) if len(inside) else _NOWHERE


def _located(question: Question) -> tuple[int, int]:
    """The characters of the answer: where they should be, else where they are nearest, else the same but for case and
    white space."""
    text, context, start = question.answer, question.context, question.start
    if not text.strip():
        return _NOWHERE
    if start >= 0 and context.startswith(text, start):
        return start, start + len(text)
    loosely = r"\s+".join(re.escape(word) for word in text.split())
    for pattern in (re.escape(text), f"(?i:{loosely})"):
        found = [match.span() for match in re.finditer(pattern, context)]
        if found:
            return min(found, key=lambda span: abs(span[0] - start))
    return _NOWHERE


def _row(specials: Specials, asked: np.ndarray, part: np.ndarray, answer: tuple[int, int]) -> Row:
    """`answer` counts from the beginning of the part, and may lie outside."""
    tokens, second = laid_out(specials, asked, part, len(asked) + len(part) + 3)
    is_inside = answer[0] >= 0 and answer[1] < len(part)
    return Row(tokens, second, np.array(answer) + second if is_inside else np.zeros(2, dtype=np.int64))


def answers_of(
    logits: Sequence[np.ndarray],
    windows: Sequence[Window],
    questions: Sequence[Question],
    n_best: int = 20,
    longest_answer: int = 30,
) -> list[Answer]:
    """The answer to each question, from the start and end logits [T, 2] of all its windows; T may count padding.

    A span of at most `longest_answer` tokens has the score of its start plus that of its end. It starts where its
    window is the start's central one, and both its ends are among the window's `n_best`. Where the logits are [N, 3],
    they are the spans of a `JointHead`, and its doubt.
    """
    found: list[Answer] = []
    for number, group in groupby(zip(logits, windows, strict=True), key=lambda pair: pair[1].question):
        assert number == len(found), f"windows of question {number} where those of {len(found)} should be"
        pairs = list(group)
        are_joint = pairs[0][0].shape[1] == 3
        of_window = _joint_spans if are_joint else partial(_spans, n_best=n_best)
        spans = np.concatenate([of_window(scores, window, longest_answer=longest_answer) for scores, window in pairs])
        nothing = min(float(scores[0].astype(np.float64).sum()) for scores, _ in pairs)  # a doubt stands at 0 and 0
        answer = _answer(questions[number], spans, nothing, n_best)
        found.append(answer._replace(no_answer=nothing) if are_joint else answer)
    assert len(found) == len(questions), f"{len(questions)} questions and windows of {len(found)}"
    return found


def predictions(answers: Sequence[Answer], threshold: float | None) -> dict[str, str]:
    """What SQuAD's scorer reads: the text for each id, empty where `no_answer` exceeds the threshold. None: never."""
    return {a.id: "" if threshold is not None and a.no_answer > threshold else a.text for a in answers}


def _spans(logits: np.ndarray, window: Window, n_best: int, longest_answer: int) -> np.ndarray:
    """[N, 3] The score, first character and end of each candidate."""
    second, offsets = window.row.second, window.offsets
    first, last = logits[second : second + len(offsets)].astype(np.float64).T  # [C] each
    central = np.flatnonzero(window.is_central)
    starts = central[np.argsort(-first[central], kind="stable")[:n_best]]
    stops = np.argsort(-last, kind="stable")[:n_best]
    lengths = stops - starts[:, None] + 1
    a, b = np.nonzero((lengths >= 1) & (lengths <= longest_answer))
    a, b = starts[a], stops[b]
    return np.stack([first[a] + last[b], offsets[a, 0], offsets[b, 1]], axis=1)


def _joint_spans(spans: np.ndarray, window: Window, longest_answer: int) -> np.ndarray:
    """The same of those [N, 3] that a `JointHead` has found: their start, end and score."""
    second, count = window.row.second, len(window.offsets)
    start, end = (spans[1:, :2].astype(np.int64) - second).T
    inside = (start >= 0) & (end >= start) & (end < count) & (end - start < longest_answer)
    start, end, score = start[inside], end[inside], spans[1:, 2].astype(np.float64)[inside]
    central = window.is_central[start]
    start, end, score = start[central], end[central], score[central]
    return np.stack([score, window.offsets[start, 0], window.offsets[end, 1]], axis=1)


def _answer(question: Question, spans: np.ndarray, nothing: float, n_best: int) -> Answer:
    """The best of the spans [N, 3]; of equal scores the first and shortest. Without any, nothing is the only answer."""
    score, start, stop = spans.T
    best: dict[str, float] = {}
    for i in np.lexsort((stop, start, -score)):
        text = question.context[int(start[i]) : int(stop[i])].strip()
        if text:
            best.setdefault(text, float(score[i]))
        if len(best) == n_best:
            break
    best = best or {"": nothing}
    scores = np.array(list(best.values()))
    weights = np.exp(scores - scores[0])
    listed = zip(best, scores.tolist(), (weights / weights.sum()).tolist(), strict=True)
    candidates = tuple(Candidate(*candidate) for candidate in listed)
    return Answer(question.id, candidates[0].text, candidates[0].score, nothing - candidates[0].score, candidates)
