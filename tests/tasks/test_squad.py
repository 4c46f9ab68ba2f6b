import gzip
import json
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elektron.tasks.squad import Question, Window, answers_of, predictions, read_mrqa, read_squad, trainable, windows_of

CONTEXT = "The old king sees a river.  The young queen, on a mountain, hears the\tking (1895-1943)."
PIECES = [
    *("cat", "the river", " mountain", "Queen's", "x", ".", ",", "(1895-1943)", " ", "  ", "\t", "\n", "\u202f"),
    *("é", "e\u0301", "Ā\u0301", "中", "文字", "👍🏽", "한국", "हैं", "\u200b", "\x00", "ﬁ", "İ", "☃\ufe0f", "[MASK]"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
HARD = settings(max_examples=60, deadline=None)


def asked(
    context: str, answer: str = "", start: int = -1, question: str = "who sees a cat?", id: str = "q"
) -> Question:
    return Question(id, question, context, (answer,) if answer else (), answer, start)


def slow_windows(tokens: int, room: int, stride: int) -> list[range]:
    """The tokens of the context that each window shows."""
    found = [range(min(room, tokens))]
    while found[-1].stop < tokens:
        start = found[-1].start + min(stride, room)
        found.append(range(start, min(start + room, tokens)))
    return found


def slow_owner(token: int, windows: list[range]) -> int:
    def context(window: range) -> int:
        return 100 * min(token - window[0], window[-1] - token) + len(window)

    showing = [n for n, window in enumerate(windows) if token in window]
    return max(showing, key=lambda n: (context(windows[n]), -n))


def slow_texts(logits: list[np.ndarray], windows: list[Window], context: str, longest: int) -> dict[str, float]:
    """The score of every text that can be an answer."""
    found: dict[str, float] = {}
    for scores, window in zip(logits, windows, strict=True):
        second, offsets = window.row.second, window.offsets
        for a in range(len(offsets)):
            for b in range(a, min(a + longest, len(offsets))):
                text = context[offsets[a, 0] : offsets[b, 1]].strip()
                if window.is_central[a] and text:
                    score = float(scores[second + a, 0]) + float(scores[second + b, 1])
                    found[text] = max(found.get(text, score), score)
    return found


def one_hot(windows: list[Window]) -> list[np.ndarray]:
    found = [np.zeros((len(window.row.tokens), 2), dtype=np.float32) for window in windows]
    for logits, window in zip(found, windows, strict=True):
        logits[window.row.target, [0, 1]] = 1
    return found


def noise(windows: list[Window], seed: int, padding: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.normal(size=(len(window.row.tokens) + padding, 2)).astype(np.float32) for window in windows]


@HARD
@given(context=TEXTS, question=TEXTS, longest=st.integers(12, 40), stride=st.integers(1, 40))
def test_windows_show_every_token_and_one_of_them_best(small_tokenizer, context, question, longest, stride):
    tokens, (kept, *_) = (small_tokenizer.split([text])[0] for text in (context, question))
    kept, count = kept.tolist()[:8], len(tokens.ids)
    shown = slow_windows(count, longest - 3 - len(kept), stride)
    found = windows_of([asked(context, question=question)], small_tokenizer, longest, stride, longest_question=8)
    assert not found.lost
    assert {token for window in shown for token in window} == set(range(count))
    cls, sep = small_tokenizer.specials.cls, small_tokenizer.specials.sep
    for n, (window, numbers) in enumerate(zip(found.windows, shown, strict=True)):
        row = window.row
        assert row.tokens.tolist() == [cls, *kept, sep, *tokens.ids[numbers].tolist(), sep]
        assert len(row.tokens) <= longest
        assert row.second == len(kept) + 2
        assert row.target.dtype == np.int64
        assert row.target.tolist() == [0, 0]
        assert window.offsets.tolist() == tokens.offsets[numbers].tolist()
        assert window.is_central.tolist() == [slow_owner(i, shown) == n for i in numbers]
    assert sum(int(window.is_central.sum()) for window in found.windows) == count


def test_of_equal_windows_the_first_is_central(small_tokenizer):
    """Five tokens a window, two further on each time: the fourth token has one beside it in either of two windows."""
    windows = windows_of([asked("cat " * 9, question="dog")], small_tokenizer, 9, 2, longest_question=1).windows
    shown = [window.is_central.astype(int).tolist() for window in windows]
    assert shown == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]


@HARD
@given(context=TEXTS, ends=st.tuples(st.integers(0, 200), st.integers(1, 40)), stride=st.integers(1, 20))
def test_targets_are_the_tokens_of_the_answer(small_tokenizer, context, ends, stride):
    start = ends[0] % (len(context) + 1)
    answer = context[start : start + ends[1]]
    assume(answer.strip())
    found = windows_of([asked(context, answer, start)], small_tokenizer, 24, stride, longest_question=4)
    stop = start + len(answer)
    whole = windows_of([asked(context)], small_tokenizer, 10_000).windows[0].offsets.tolist()
    inside = [(a, b) for a, b in whole if a < stop and b > start]
    assert (found.lost == [0]) == (not inside)
    assert bool(trainable(found)) == bool(inside)
    for window in found.windows:
        first, last = window.row.target
        if not first:
            assert last == 0
            assert not inside or not {inside[0], inside[-1]} <= {(a, b) for a, b in window.offsets.tolist()}
            continue
        second, offsets = window.row.second, window.offsets
        assert [(a, b) for a, b in offsets[first - second : last - second + 1].tolist()] == inside
        outside = answer[: max(0, inside[0][0] - start)] + answer[len(answer) - max(0, stop - inside[-1][1]) :]
        assert all(c.isspace() or unicodedata.category(c)[0] in "CM" for c in outside), repr(outside)


@HARD
@given(context=TEXTS, ends=st.tuples(st.integers(0, 200), st.integers(1, 40)), stride=st.integers(1, 20))
def test_one_hot_logits_give_the_answer_back(small_tokenizer, context, ends, stride):
    start = ends[0] % (len(context) + 1)
    question = asked(context, context[start : start + ends[1]], start)
    windows = windows_of([question], small_tokenizer, 24, stride, longest_question=4).windows
    holding = [w for w in windows if w.row.target[0]]
    assume(any(w.is_central[w.row.target[0] - w.row.second] for w in holding))
    first, last = holding[0].row.target - holding[0].row.second
    text = context[holding[0].offsets[first, 0] : holding[0].offsets[last, 1]].strip()
    [answer] = answers_of(one_hot(windows), windows, [question])
    assert answer.text == text
    assert answer.score == 2
    assert answer.no_answer == -2


@HARD
@given(context=TEXTS, seed=st.integers(0, 1000), longest_answer=st.integers(1, 12), stride=st.integers(1, 20))
def test_decoding_is_a_search_of_all_spans(small_tokenizer, context, seed, longest_answer, stride):
    other = asked("The small dog finds a house.", id="other")
    questions = [asked(context), other, asked(context, question="where", id="again")]
    windows = windows_of(questions, small_tokenizer, 24, stride, longest_question=4).windows
    logits = noise(windows, seed, padding=3)
    found = answers_of(logits, windows, questions, n_best=24, longest_answer=longest_answer)
    assert [answer.id for answer in found] == [question.id for question in questions]
    for number, (question, answer) in enumerate(zip(questions, found, strict=True)):
        pairs = [(s, w) for s, w in zip(logits, windows, strict=True) if w.question == number]
        mine, seen = [s for s, _ in pairs], [w for _, w in pairs]
        nothing = min(float(scores[0, 0]) + float(scores[0, 1]) for scores in mine)
        scores = slow_texts(mine, seen, question.context, longest_answer) or {"": nothing}
        best = sorted(scores, key=lambda text: -scores[text])[:24]
        assert [candidate.text for candidate in answer.best] == best
        assert [candidate.score for candidate in answer.best] == pytest.approx([scores[text] for text in best])
        assert (answer.text, answer.score) == answer.best[0][:2]
        assert answer.no_answer == pytest.approx(nothing - scores[best[0]])
        weights = np.exp([scores[text] for text in best])
        assert [candidate.probability for candidate in answer.best] == pytest.approx(weights / weights.sum())


@HARD
@given(context=TEXTS, seed=st.integers(0, 99), longest_answer=st.integers(1, 12), stride=st.integers(1, 20))
def test_spans_that_were_found_jointly_compete(small_tokenizer, context, seed, longest_answer, stride):
    """Of all pairs of places of a row, those that can be an answer; the doubt is the least of all windows."""
    question = asked(context)
    windows = windows_of([question], small_tokenizer, 24, stride, 8).windows
    draw, given_spans, expected = np.random.default_rng(seed), [], {}
    for window in windows:
        length, second = len(window.row.tokens), window.row.second
        pairs = draw.permutation([(a, b) for a in range(length) for b in range(length)])
        scores = draw.normal(size=len(pairs))
        given_spans.append(np.vstack([[0, 0, draw.normal()], np.column_stack([pairs, scores])]))
        for (a, b), score in zip(pairs - second, scores, strict=True):
            if 0 <= a <= b < min(a + longest_answer, len(window.offsets)) and window.is_central[a]:
                text = context[window.offsets[a, 0] : window.offsets[b, 1]].strip()
                if text:
                    expected[text] = max(expected.get(text, score), score)
    (found,) = answers_of(given_spans, windows, [question], longest_answer=longest_answer)
    assert found.no_answer == pytest.approx(min(spans[0, 2] for spans in given_spans))
    best = max(expected, key=lambda text: expected[text], default="")
    assert found.text == best
    if best:
        assert found.score == pytest.approx(expected[best])


def test_few_starts_and_ends_compete(small_tokenizer):
    """The best start stands after the best end: with one of each there is no span, with two there is."""
    question = asked("cat dog")
    windows = windows_of([question], small_tokenizer, 80).windows
    logits = one_hot(windows)
    cat, dog = windows[0].row.second, windows[0].row.second + 1
    logits[0][[dog, cat], [0, 1]] = 5
    logits[0][cat, 0] = 2
    assert answers_of(logits, windows, [question], n_best=1)[0].text == ""
    [answer] = answers_of(logits, windows, [question], n_best=2)
    assert [(c.text, c.score) for c in answer.best] == [("cat", 7), ("dog", 5)]


def test_long_answers_are_not_given(small_tokenizer):
    question = asked(CONTEXT, CONTEXT, 0)
    windows = windows_of([question], small_tokenizer, 128).windows
    tokens = len(windows[0].offsets)
    assert answers_of(one_hot(windows), windows, [question], longest_answer=tokens)[0].text == CONTEXT
    assert answers_of(one_hot(windows), windows, [question], longest_answer=tokens - 1)[0].score == 1


@pytest.mark.parametrize(
    ("context", "answer", "text"),
    [
        ("The king  sees\ta  cat.", "sees\ta  cat", "sees\ta  cat"),
        ("a cafe\u0301 and a cat", "cafe\u0301", "cafe\u0301"),
        ("a café and a cat", "café", "café"),
        ("a cafe\u0301 and a cat", "cafe", "cafe\u0301"),
        ("道可道，非常道", "非常", "非常"),
        ("a cat 👍🏽 sees ☃\ufe0f here", "☃\ufe0f", "☃\ufe0f"),
        ("the kings (1895-1943)", "1895", "1895"),
        ("the \u200bcat", "\u200bcat", "cat"),
        ("ordinary [MASK] text", "[MASK]", "[MASK]"),
        ("हैं मनुष्य", "हैं", "हैं"),
    ],
)
def test_answers_in_every_script(small_tokenizer, context, answer, text):
    question = asked(context, answer, context.index(answer))
    windows = windows_of([question], small_tokenizer, 100).windows
    assert answers_of(one_hot(windows), windows, [question])[0].text == text


def test_an_empty_context_has_no_answer(small_tokenizer):
    for context in ("", " \t"):
        questions = [asked(context)]
        found = windows_of(questions, small_tokenizer, 80)
        [window] = found.windows
        assert window.offsets.shape == (0, 2)
        assert window.row.tokens[-2:].tolist() == [small_tokenizer.specials.sep] * 2
        [answer] = answers_of(noise(found.windows, 0), found.windows, questions)
        assert (answer.text, answer.no_answer, len(answer.best)) == ("", 0, 1)


def test_no_questions(small_tokenizer):
    found = windows_of([], small_tokenizer, 80)
    assert found == ([], [])
    assert answers_of([], [], []) == []


def test_long_questions_lose_their_end(small_tokenizer):
    question = asked(CONTEXT, question="cat dog " * 50)
    [window] = windows_of([question], small_tokenizer, 128).windows
    assert window.row.second == 64 + 2
    assert window.row.tokens[1:65].tolist() == small_tokenizer.encode([question.question])[0][:64].tolist()


@pytest.mark.parametrize(("longest", "stride"), [(67, 128), (128, 0)])
def test_rows_too_short_are_refused(small_tokenizer, longest, stride):
    with pytest.raises(ValueError, match=f"rows of {longest} tokens, {stride} apart"):
        windows_of([asked(CONTEXT)], small_tokenizer, longest, stride)


@pytest.mark.parametrize(
    ("answer", "start", "text"),
    [
        ("king", 8, "king"),
        ("king", 60, "king"),
        ("king", -1, "king"),
        ("king", 10_000, "king"),
        ("The", 30, "The"),
        ("a River. the", 0, "a river.  The"),  # the original, too, looks away from case and white space
        ("cat", 8, None),
        (" ", 3, None),
    ],
)
def test_misplaced_answers_are_looked_for(small_tokenizer, answer, start, text):
    questions = [asked(CONTEXT), asked(CONTEXT, answer, start, id="misplaced")]
    found = windows_of(questions, small_tokenizer, 128)
    assert found.lost == ([] if text else [1])
    assert [window.question for window in found.windows] == [0, 1]
    assert [window.question for window in trainable(found)] == ([0, 1] if text else [0])
    window = found.windows[1]
    first, last = window.row.target - window.row.second
    if text is None:
        assert window.row.target.tolist() == [0, 0]
        return
    begin = window.offsets[first, 0]
    assert CONTEXT[begin : window.offsets[last, 1]] == text
    if text == answer:
        others = [i for i in range(len(CONTEXT)) if CONTEXT.startswith(text, i)]
        assert abs(begin - start) == min(abs(i - start) for i in others)


def test_predictions_are_empty_above_the_threshold(small_tokenizer):
    questions = [asked(CONTEXT, "king", 8, id=name) for name in ("sure", "unsure")]
    windows = windows_of(questions, small_tokenizer, 128).windows
    logits = one_hot(windows)
    logits[1][0] = 1.5
    answers = answers_of(logits, windows, questions)
    assert [answer.no_answer for answer in answers] == [-2, 1]
    assert predictions(answers, None) == {"sure": "king", "unsure": "king"}
    assert predictions(answers, 1) == {"sure": "king", "unsure": "king"}
    assert predictions(answers, 0) == {"sure": "king", "unsure": ""}
    assert predictions(answers, -3) == {"sure": "", "unsure": ""}


def test_the_window_least_sure_of_nothing_decides(small_tokenizer):
    questions = [asked("cat " * 30, "cat", 0)]
    windows = windows_of(questions, small_tokenizer, 20, 8, longest_question=4).windows
    logits = [np.zeros((20, 2), dtype=np.float32) for _ in windows]
    for n, scores in enumerate(logits):
        scores[0] = [3 + n, 1]
    assert answers_of(logits, windows, questions)[0].no_answer == 4


def squad_file(tmp_path, *qas: Any, context: Any = CONTEXT):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"version": "2.0", "data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))
    return path


def test_squad_files(tmp_path):
    path = squad_file(
        tmp_path,
        {"id": "a", "question": "who?", "answers": [{"text": "king", "answer_start": 8}, {"text": "The old king"}]},
        {"id": "b", "question": "when?", "is_impossible": True, "answers": [], "plausible_answers": [{"text": "x"}]},
        {"id": 3, "question": "where?"},
    )
    assert read_squad(path) == [
        Question("a", "who?", CONTEXT, ("king", "The old king"), "king", 8),
        Question("b", "when?", CONTEXT, (), "", -1),
        Question("3", "where?", CONTEXT, (), "", -1),
    ]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"question": "who?"}, r"data\[0\].paragraphs\[0\], qas\[0\]: no 'id' \(there is: question\)"),
        ({"id": "a"}, "question a: no 'question'"),
        ({"id": "a", "question": 5}, "question a: 'question' is int, not str"),
        ({"id": "a", "question": "x", "answers": "king"}, "question a: 'answers' is str, not list"),
        ({"id": "a", "question": "x", "answers": ["king"]}, "question a: str where an object with 'text' should be"),
        ({"id": "a", "question": "x", "answers": [{"text": "king"}]}, "question a: no 'answer_start'"),
        ({"id": None, "question": "x"}, "'id' is NoneType, not str or int"),
        ({"id": "a", "question": "\ud83d"}, "question a: 'question' has half a character"),
    ],
)
def test_malformed_questions_are_named(tmp_path, record, said):
    path = squad_file(tmp_path, record)
    with pytest.raises(ValueError, match=f"^{path}.*{said}"):
        read_squad(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"data": [', "damaged"),
        ("[]", "list where an object with 'data' should be"),
        ('{"data": {}}', "'data' is dict, not list"),
        ('{"data": [{}]}', r"data\[0\]: no 'paragraphs' \(there is: nothing\)"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"data\[0\].paragraphs\[0\]: no 'context'"),
        ('{"data": [{"paragraphs": [{"context": ""}]}]}', r"data\[0\].paragraphs\[0\]: no 'qas'"),
    ],
)
def test_malformed_files_are_named(tmp_path, content, said):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"^{path}.*{said}"):
        read_squad(path)
    with pytest.raises(ValueError, match="nowhere.json is missing"):
        read_squad(tmp_path / "nowhere.json")


def test_an_id_is_one_question_s(tmp_path):
    path = squad_file(tmp_path, {"id": "a", "question": "x"}, {"id": "a", "question": "y"})
    with pytest.raises(ValueError, match="question a is there twice"):
        read_squad(path)


def mrqa_lines(**changes: Any) -> str:
    record: dict[str, Any] = {
        "qid": "a",
        "question": "who?",
        "answers": ["King", "the king"],
        "detected_answers": [{"text": "king", "char_spans": [[8, 11], [75, 78]]}],
    }
    record = {key: value for key, value in (record | changes).items() if value is not None}
    lines = [{"header": {"dataset": "tales"}}, {"context": CONTEXT, "qas": [record]}]
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize("name", ["dev.jsonl", "dev.jsonl.gz"])
def test_mrqa_files(tmp_path, small_tokenizer, name):
    path = tmp_path / name
    content = mrqa_lines().encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    questions = read_mrqa(path)
    assert questions == [Question("a", "who?", CONTEXT, ("King", "the king"), "king", 8)]
    windows = windows_of(questions, small_tokenizer, 128).windows
    assert answers_of(one_hot(windows), windows, questions)[0].text == "king"


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"answers": None}, (("king",), "king", 8)),
        ({"detected_answers": None}, (("King", "the king"), "King", -1)),
        ({"detected_answers": [], "answers": None}, ((), "", -1)),
    ],
)
def test_mrqa_answers_may_be_missing(tmp_path, changes, fields):
    path = tmp_path / "dev.jsonl"
    path.write_text(mrqa_lines(**changes))
    assert read_mrqa(path) == [Question("a", "who?", CONTEXT, *fields)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (mrqa_lines(question=None), "line 2, question a: no 'question'"),
        (mrqa_lines(qid=None), r"line 2, qas\[0\]: no 'qid'"),
        (mrqa_lines(answers=[1]), "line 2, question a: 'answers' are not all text"),
        (mrqa_lines(detected_answers=[{"text": "king"}]), "line 2, question a: no 'char_spans'"),
        (mrqa_lines(detected_answers=[{"text": "king", "char_spans": []}]), "'char_spans' begins with"),
        (mrqa_lines().split("\n", 1)[1], "line 1: no 'header'"),
        (mrqa_lines() + "{", "line 3: not JSON"),
        (mrqa_lines() + "3", "line 3: int, not an object"),
        ("\n", "no header"),
    ],
)
def test_malformed_lines_are_named(tmp_path, content, said):
    path = tmp_path / "dev.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"^{path}.*{said}"):
        read_mrqa(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(mrqa_lines().encode())[:-20], ": damaged"),
        (b"no gzip", ": damaged"),
        (gzip.compress(b"\xff"), ", line 1: not UTF-8"),
    ],
    ids=["cut off", "no gzip", "not UTF-8"],  # not by their bytes, which tell when they were packed
)
def test_damaged_archives_are_named(tmp_path, content, said):
    path = tmp_path / "dev.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}{said}"):
        read_mrqa(path)
