"""Metrics against the libraries that define them; those of SQuAD against a slow and obvious version, below."""

import string
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities
from sklearn import metrics as sklearn

from elektron.tasks.metrics import (
    DetectionScores,
    EntityScores,
    Thresholds,
    accuracy,
    area_interval,
    area_under_curve,
    average_precision,
    best_detection_threshold,
    best_threshold,
    detection,
    entity_f1,
    exact,
    f1,
    matthews,
    normalised,
    overlap_f1,
    pearson,
    resampled,
    spans,
    spearman,
    squad_scores,
    token_accuracy,
)
from reference import electra

scored = st.lists(st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 0.1, 3.0]), st.booleans()), min_size=1, max_size=40)
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries warn of every tag and ratio that is out of the way


def columns(values, least: int = 1, most: int = 40):
    """Two lists of one length, drawn together."""
    return st.lists(st.tuples(values, values), min_size=least, max_size=most).map(
        lambda rows: [*zip(*rows, strict=True)]
    )


classes = columns(st.integers(0, 3))
flags = columns(st.booleans())


@given(classes)
@settings(deadline=None)
@example([(1,), (1,)])
@example([(2, 2), (2, 2)])
@example([(0, 0), (0, 1)])
@example([(0, 1), (0, 0)])
def test_classes_score_as_scikit_learn_has_it(pair):
    predicted, true = map(np.array, pair)
    assert accuracy(predicted, true) == pytest.approx(sklearn.accuracy_score(true, predicted))
    assert matthews(predicted, true) == pytest.approx(sklearn.matthews_corrcoef(true, predicted), abs=1e-12)


@given(columns(st.integers(0, 1)))
@settings(deadline=None)
@example([(0, 0), (0, 0)])
@example([(1, 1), (0, 0)])
@example([(0, 0), (1, 1)])
def test_f1_is_of_class_one(pair):
    predicted, true = map(np.array, pair)
    assert f1(predicted, true) == pytest.approx(sklearn.f1_score(true, predicted))


def test_f1_takes_no_other_class_for_a_positive():
    assert f1([2, 1, 0, 3], [2, 1, 1, 2]) == pytest.approx(2 / 3)


def test_matthews_counts_do_not_overflow():
    """The product of the variances is beyond 64 bits from some 50 thousand examples on."""
    draw = np.random.default_rng(0)
    true = draw.integers(0, 3, 200_000)
    predicted = np.where(draw.random(true.size) < 0.7, true, draw.integers(0, 3, true.size))
    assert matthews(predicted, true) == pytest.approx(sklearn.matthews_corrcoef(true, predicted))
    assert matthews(true, true) == 1.0
    assert matthews(-true, true) == pytest.approx(sklearn.matthews_corrcoef(true, -true))


@given(flags)
@settings(deadline=None)
@example([(False,), (False,)])
@example([(True,), (False,)])
@example([(False,), (True,)])
def test_detection_scores_as_scikit_learn_has_it(pair):
    predicted, true = map(np.array, pair)
    scores = sklearn.precision_recall_fscore_support(true, predicted, beta=0.5, average="binary")
    assert detection(predicted, true) == pytest.approx(scores[:3])
    assert detection(predicted, true).f05 == pytest.approx(sklearn.fbeta_score(true, predicted, beta=0.5))


def test_detection_favours_precision():
    true = [True, True, False, False]
    assert detection([True, False, False, False], true) == pytest.approx((1.0, 0.5, 5 / 6))
    assert detection([True, True, True, True], true) == pytest.approx((0.5, 1.0, 5 / 9))


scored = st.lists(st.tuples(st.sampled_from([-2.0, 0.0, 0.5, 1.0, 3.0]), st.booleans()), min_size=1, max_size=30)


@given(scored)
@settings(deadline=None)
def test_average_precision_is_scikit_learn_s(pairs):
    scores, true = map(np.array, zip(*pairs, strict=True))
    expected = sklearn.average_precision_score(true, scores) if true.any() else 0.0
    assert average_precision(scores, true) == pytest.approx(expected)


@given(scored)
def test_no_threshold_is_better_than_the_best(pairs):
    scores, true = map(np.array, zip(*pairs, strict=True))
    best = best_detection_threshold(scores, true)
    values = {float(value): detection(scores >= value, true).f05 for value in scores}
    assert best == max(value for value in values if values[value] == max(values.values()))


@pytest.mark.parametrize("metric", [accuracy, f1, matthews, pearson, spearman, average_precision])
def test_nothing_scores_nothing(metric):
    assert metric([], []) == 0.0
    assert detection([], []) == DetectionScores(0.0, 0.0, 0.0)


@pytest.mark.parametrize("metric", [accuracy, f1, matthews, pearson, spearman, detection])
def test_lengths_must_agree(metric):
    """One prediction for many would be broadcast."""
    with pytest.raises(AssertionError, match="3"):
        metric(np.array([1]), np.array([1, 0, 1]))


numbers = columns(st.integers(-1000, 1000).map(lambda n: n / 8), least=2)
tied = columns(st.sampled_from([0.0, 1.0, 1.5, float("inf")]), least=2)


@given(numbers)
@settings(deadline=None)
def test_pearson_is_scipy_s(pair):
    predicted, true = map(np.array, pair)
    assume(len(set(predicted)) > 1 and len(set(true)) > 1)
    assert pearson(predicted, true) == pytest.approx(stats.pearsonr(predicted, true)[0], abs=1e-9)


@given(st.one_of(numbers, tied))
@settings(deadline=None)
def test_spearman_is_scipy_s(pair):
    predicted, true = map(np.array, pair)
    assume(len(set(predicted)) > 1 and len(set(true)) > 1)
    assert spearman(predicted, true) == pytest.approx(stats.spearmanr(predicted, true)[0], abs=1e-9)


@pytest.mark.parametrize("correlation", [pearson, spearman])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e-300, -7.3e15])
def test_a_constant_correlates_with_nothing(correlation, constant):
    """0.1 is the treacherous one: the mean of many is not 0.1."""
    ramp = np.arange(1001) / 7
    same = np.full(1001, constant)
    assert correlation(same, ramp) == correlation(ramp, same) == correlation(same, same) == 0.0
    assert correlation([constant], [2.0]) == 0.0


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1e200])
def test_pearson_has_no_scale(scale):
    predicted, true = np.array([1.0, 2.0, 4.0, 3.0]), np.array([0.5, 0.1, 2.0, 1.0])
    assert pearson(scale * predicted, true) == pytest.approx(pearson(predicted, true))
    assert pearson(true, -scale * predicted) == pytest.approx(-pearson(predicted, true))


@given(numbers)
@settings(deadline=None)
def test_correlations_stay_within_one(pair):
    side = np.array(pair[0])
    for correlation in (pearson, spearman):
        assert -1.0 <= correlation(side, -side) <= correlation(side, side) <= 1.0


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_what_is_no_number_shows(correlation):
    assert np.isnan(correlation([0.0, float("nan"), 2.0], [1.0, 2.0, 3.0]))


def test_integers_correlate_too():
    assert pearson([1, 2, 3], [2, 4, 7]) == pytest.approx(stats.pearsonr([1, 2, 3], [2, 4, 7])[0])
    assert spearman([1, 2, 2, 3], [0, 0, 1, 1]) == pytest.approx(stats.spearmanr([1, 2, 2, 3], [0, 0, 1, 1])[0])


likely = st.sampled_from("O B-A I-A B-B I-B".split())
odd = (
    "E-A S-A E-B S-B L-A U-A L-B U-B B I E S L U . .-A B- O-A O-B BA IA B-A-C I-A-C I--A I-_ B-\u00c9 I-\u00e9".split()
)
any_tag = st.one_of(likely, st.sampled_from(odd))
sentence = st.one_of(st.lists(likely, max_size=12), st.lists(any_tag, max_size=12))
BROKEN = [
    "",
    "O O O",
    "I-A",
    "I-A I-B I-A",
    "B-A I-B I-B O I-A",
    "B-A B-A I-A I-A",
    "I-A B-A O",
    "O E-A",
    "B-A E-A E-A I-A",
    "S-A S-A I-A",
    "S-A E-A",
    "B-A S-A",
    "I-A S-A B-A",
    "B-A I-A L-A U-A B-A L-A O U-A U-B",
    "S-A L-A",
    "U B-A",
    "O U B-A",
    "O-A L-A O",
    "B-A O-A I-A",
    "B-A . I-A",
    ". I-A .",
    "O .-A I-A O",
    "B I O E S",
    "B- I-A",
    "BA IA",
    "B-A-C I-A-D",
    "I-PER I-PER B-PER O I-LOC",
]


@given(sentence)
@settings(max_examples=400, deadline=None)
def test_spans_are_seqeval_s(tags):
    assert spans(tags) == set(get_entities(tags))


@pytest.mark.parametrize("tags", BROKEN)
def test_spans_of_broken_tags_are_seqeval_s(tags):
    assert spans(tags.split()) == set(get_entities(tags.split()))


def test_spans_hold_their_first_and_last_token():
    assert spans(("O", "B-PER", "I-PER", "O", "B-LOC")) == {("PER", 1, 2), ("LOC", 4, 4)}
    assert spans("B-A I-A E-A S-A".split()) == {("A", 0, 2), ("A", 3, 3)}
    assert spans("I-A I-A B-A I-A".split()) == {("A", 0, 1), ("A", 2, 3)}
    assert spans([]) == set()


def both(tags):
    """Two sentences of as many tags."""
    return st.integers(0, 8).flatmap(lambda n: st.tuples(*[st.lists(tags, min_size=n, max_size=n)] * 2))


sides = st.one_of(*(st.lists(both(tags), min_size=1, max_size=4) for tags in (likely, any_tag)))


def hold_to_seqeval(predicted, true):
    scores = entity_f1(predicted, true)
    assert scores.precision == pytest.approx(seqeval.precision_score(true, predicted))
    assert scores.recall == pytest.approx(seqeval.recall_score(true, predicted))
    assert scores.f1 == pytest.approx(seqeval.f1_score(true, predicted))


@given(sides)
@settings(max_examples=300, deadline=None)
def test_entities_score_as_seqeval_has_it(pairs):
    hold_to_seqeval(*map(list, zip(*pairs, strict=True)))


@given(sides)
@settings(deadline=None)
def test_token_accuracy_is_seqeval_s(pairs):
    predicted, true = map(list, zip(*pairs, strict=True))
    assume(any(true))
    assert token_accuracy(predicted, true) == pytest.approx(seqeval.accuracy_score(true, predicted))


@pytest.mark.parametrize("tags", BROKEN)
def test_broken_tags_score_as_seqeval_has_it(tags):
    """Also in the second sentence, to which some broken tags drag what was open in the first."""
    broken = tags.split()
    fine = ["B-A", *["I-A"] * 20][: len(broken)]
    hold_to_seqeval([broken, fine], [fine, broken])
    hold_to_seqeval([["O", "B-A"], broken], [["O", "O"], broken])
    hold_to_seqeval([["O", "O"], broken], [["O", "B-A"], broken])


def test_no_entities_score_nothing():
    for tags in ([], [[]], [["O", "O"], ["O"]]):
        assert entity_f1(tags, tags) == EntityScores(0.0, 0.0, 0.0)
    assert entity_f1([["O"]], [["B-A"]]) == entity_f1([["B-A"]], [["O"]]) == EntityScores(0.0, 0.0, 0.0)
    assert token_accuracy([], []) == token_accuracy([[]], [[]]) == 0.0
    assert token_accuracy([["O"], ["O", "O"]], [["O"], ["B-A", "B-A"]]) == pytest.approx(1 / 3)


def test_entities_are_counted_over_all_sentences():
    """Not averaged over sentences, nor over types; the same place in another sentence is another place."""
    predicted = [["B-A", "O"], ["B-B", "B-B"]]
    true = [["B-A", "O"], ["O", "B-B"]]
    assert entity_f1(predicted, true) == pytest.approx((2 / 3, 1.0, 0.8))
    assert entity_f1([["B-A"], ["O"]], [["O"], ["B-A"]]).f1 == 0.0


@pytest.mark.parametrize("predicted", [[["O"]], [["O", "O"], ["O"]], [["O"], ["O", "O"], []]])
def test_sentences_must_agree(predicted):
    true = [["O"], ["B-A", "O"]]
    with pytest.raises(AssertionError, match="sentences"):
        entity_f1(predicted, true)
    with pytest.raises(ValueError, match="zip"):
        token_accuracy(predicted, true)


def plain(answer: str) -> list[str]:
    """The words of an answer, character by character: what is no letter or digit parts articles from the rest, white
    space parts words."""
    kept = [c for c in answer.lower() if c not in string.punctuation]
    runs: list[str] = []
    for c in kept:
        if runs and runs[-1][-1].isalnum() and c.isalnum():
            runs[-1] += c
        else:
            runs.append(c)
    bare = [" " if run in ("a", "an", "the") else run for run in runs]
    return "".join(" " if c.isspace() else c for run in bare for c in run).split()


def plain_f1(prediction: str, answer: str) -> Fraction:
    """Strikes each word of the prediction off the answer."""
    said, left = plain(prediction), plain(answer)
    size = len(said) + len(left)
    if not said or not left:
        return Fraction(size == 0)
    struck = 0
    for word in said:
        if word in left:
            left.remove(word)
            struck += 1
    return Fraction(2 * struck, size)


def plain_scores(prediction: str | None, answers: list[str]) -> tuple[Fraction, Fraction]:
    if prediction is None:
        return Fraction(0), Fraction(0)
    meant = [answer for answer in answers if plain(answer)]
    if not meant:
        meant = [""]
    matches = max(Fraction(plain(prediction) == plain(answer)) for answer in meant)
    return matches, max(plain_f1(prediction, answer) for answer in meant)


def plain_group(predictions, answers, prefix="") -> dict[str, Fraction]:
    rows = [plain_scores(predictions.get(key), golds) for key, golds in answers.items()]
    count = max(1, len(rows))
    means = {name: sum(row[i] for row in rows) / Fraction(count) for i, name in enumerate(("exact", "f1"))}
    return {prefix + name: value for name, value in (means | {"total": Fraction(len(rows))}).items()}


def plain_squad(predictions, answers) -> dict[str, Fraction]:
    scores = plain_group(predictions, answers)
    with_none = {key: golds for key, golds in answers.items() if golds == []}
    with_some = {key: golds for key, golds in answers.items() if golds != []}
    if with_none:
        scores |= plain_group(predictions, with_none, "NoAns_")
    if with_none and with_some:
        scores |= plain_group(predictions, with_some, "HasAns_")
    return scores


def plain_totals(predictions, answers, no_answer, metric) -> list[tuple[Fraction, float]]:
    """For each number of questions answered, scored anew: the mean score, and the threshold that answers them."""
    places = {key: (score, place) for place, (key, score) in enumerate(no_answer.items()) if key in answers}
    totals = []
    for count in range(len(places) + 1):
        answered = sorted(places, key=lambda key: places[key])[:count]
        total = Fraction(0)
        for key, golds in answers.items():
            if key in answered and golds:
                total += plain_scores(predictions.get(key), golds)[metric]
            elif not golds:
                total += not (key in answered and predictions.get(key))
        totals.append((total / len(answers), places[answered[-1]][0] if answered else 0.0))
    return totals


words = (
    "a an the The A cat Cats theory banana x 1990 the_ an-a . ! - 's _ $ \u00e9 \u00c9 \u00df \u0130 a\u0301".split()
)
wide = "\u201cthe\u201d \u2014 \u3002 \uff01 \uff21 \uff41 \u4e2d\u56fd \u00bd".split()
spaces = ["", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2009", "\u200b", "\x1c", "\x85"]
piece = st.sampled_from([*words, *wide, *spaces])
answer = st.one_of(
    st.lists(piece, max_size=8).map("".join),
    st.lists(piece, max_size=5).map(" ".join),
    st.text(max_size=12),
    st.sampled_from(["the cat", "cat", "a cat sat", "sat cat cat", ""]),
)
ODD = [
    ("The Cat", "cat"),
    ("theory", "theory"),
    ("banana", "banana"),
    ("a the an", ""),
    ("...!?", ""),
    ("a.n", ""),
    ("co-op's", "coops"),
    ("an_apple", "anapple"),
    ("  two \u3000\u00a0 words\t\n", "two words"),
    ("a\u2014b", "\u2014b"),
    ("\u201cthe\u201d end", "\u201c \u201d end"),
    ("\uff21 \uff41\uff01", "\uff41 \uff41\uff01"),
    ("a\u0301", "\u0301"),
    ("\u2018tis the \u00c9COLE", "\u2018tis \u00e9cole"),
    ("A1 a", "a1"),
    ("zero\u200bwidth", "zero\u200bwidth"),
    ("$1,000.50", "100050"),
    ("the  a  cat", "cat"),
]


@pytest.mark.parametrize(("written", "left"), ODD)
def test_answers_are_normalised(written, left):
    assert normalised(written) == left
    assert " ".join(plain(written)) == left


@given(answer, st.lists(answer, max_size=3))
@settings(max_examples=400, deadline=None)
def test_an_answer_scores_as_the_plain_version_has_it(prediction, answers):
    assert normalised(prediction) == " ".join(plain(prediction))
    expected = plain_scores(prediction, answers)
    assert exact(prediction, answers) == expected[0]
    assert overlap_f1(prediction, answers) == pytest.approx(float(expected[1]))


@pytest.mark.parametrize(
    ("prediction", "answers", "match", "overlap"),
    [
        ("the Cat!", ["dog", "cat"], 1, 1),
        ("cat", ["cats", "dog"], 0, 0),
        ("big cat", ["cat", "a big black cat"], 0, 4 / 5),
        ("cat cat cat", ["cat"], 0, 1 / 2),
        ("cat cat dog", ["cat cat cat dog"], 0, 6 / 7),
        ("dog cat", ["cat dog"], 0, 1),
        ("", [], 1, 1),
        ("the.", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", ["the", "cat"], 0, 0),
        ("", ["?!", "an"], 1, 1),
        ("cat", ["?!"], 0, 0),
    ],
)
def test_an_answer_s_scores(prediction, answers, match, overlap):
    assert exact(prediction, answers) == match
    assert overlap_f1(prediction, answers) == pytest.approx(overlap)
    assert tuple(map(float, plain_scores(prediction, answers))) == pytest.approx((match, overlap))


keys = st.sampled_from("qrstuvwx")
predicted_answers = st.dictionaries(keys, answer)
true_answers = st.dictionaries(keys, st.lists(answer, max_size=2))


@given(predicted_answers, true_answers)
@settings(max_examples=200, deadline=None)
@example({}, {})
@example({"q": "cat"}, {"q": []})
@example({}, {"q": [], "r": ["cat"]})
@example({"x": "cat"}, {"q": ["cat"]})
@example({"q": ""}, {"q": ["the"], "r": []})
def test_squad_scores_as_the_plain_version_has_it(predictions, answers):
    expected = {name: float(value) for name, value in plain_squad(predictions, answers).items()}
    assert squad_scores(predictions, answers) == pytest.approx(expected)


def test_squad_1_has_no_groups_and_counts_what_is_missing():
    scores = squad_scores({"q": "a big cat", "gone": "x"}, {"q": ["cat"], "r": ["dog"]})
    assert scores == {"exact": 0.0, "f1": pytest.approx(1 / 3), "total": 2}


def test_squad_2_groups_by_what_has_an_answer():
    answers = {"q": ["cat"], "r": [], "s": [], "t": []}
    scores = squad_scores({"q": "cat", "r": "", "s": "dog"}, answers)
    of_all = {"exact": 0.5, "f1": 0.5, "total": 4}
    of_some = {"HasAns_exact": 1.0, "HasAns_f1": 1.0, "HasAns_total": 1}
    of_none = {"NoAns_exact": 1 / 3, "NoAns_f1": 1 / 3, "NoAns_total": 3}
    assert scores == pytest.approx(of_all | of_some | of_none)


short = st.sampled_from(["", "cat", "the", "big cat", "cat sat", "dog"])


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_the_best_threshold_is_the_plain_version_s(data):
    """With ties, scores for what was not asked, questions without a score, and questions without a prediction."""
    answers = data.draw(st.dictionaries(keys, st.lists(short, max_size=2), min_size=1))
    predictions = data.draw(st.dictionaries(keys, short))
    order = data.draw(st.permutations("qrstuvwxyz"))
    said = data.draw(st.lists(st.sampled_from([-3.5, 0.0, 0.25, 0.5, 0.75, 2.0]), min_size=6, max_size=10))
    no_answer = dict(zip(order, said, strict=False))
    found = best_threshold(predictions, answers, no_answer)
    totals = plain_totals(predictions, answers, no_answer, 0)
    first = max(totals, key=lambda row: row[0])
    assert (found.best_exact, found.best_exact_thresh) == (pytest.approx(float(first[0])), first[1])
    totals = plain_totals(predictions, answers, no_answer, 1)
    best = max(row[0] for row in totals)
    assert found.best_f1 == pytest.approx(float(best))
    # Sums of floats that should be equal need not be: any threshold that reaches the best is as good.
    assert found.best_f1_thresh in [threshold for total, threshold in totals if total == best]


def test_thresholds_by_hand():
    answers = {"q": ["big cat"], "r": [], "s": ["dog"], "t": []}
    predictions = {"q": "cat", "r": "x", "s": "dog", "t": ""}
    surest_last = {"q": 0.9, "r": 0.5, "s": 0.1, "t": 0.2}
    assert best_threshold(predictions, answers, surest_last) == Thresholds(0.75, 0.1, 0.75, 0.1)
    surest_first = {"q": 0.1, "r": 0.5, "s": 0.4, "t": 0.2}
    found = best_threshold(predictions, answers, surest_first)
    assert found == pytest.approx((0.75, 0.4, (2 + 5 / 3) / 4, 0.4))


def test_answering_nothing_can_be_best():
    assert best_threshold({"q": "x", "r": "y"}, {"q": [], "r": ["cat"]}, {"q": -5.0, "r": -4.0}) == (0.5, 0.0, 0.5, 0.0)
    assert best_threshold({}, {}, {}) == Thresholds(0.0, 0.0, 0.0, 0.0)


def test_questions_of_one_score_come_in_the_order_given():
    """The official evaluation stops between them, though no threshold does."""
    answers, predictions = {"q": ["cat"], "r": []}, {"q": "cat", "r": "dog"}
    assert best_threshold(predictions, answers, {"q": 0.5, "r": 0.5}) == Thresholds(1.0, 0.5, 1.0, 0.5)
    assert best_threshold(predictions, answers, {"r": 0.5, "q": 0.5}) == Thresholds(0.5, 0.0, 0.5, 0.0)


def test_an_answer_of_articles_alone_is_still_an_answer_where_there_is_none():
    """The threshold asks whether anything was said, not whether anything is left of it."""
    answers = {"q": [], "r": ["cat"]}
    no_answer = {"q": 0.1, "r": 0.2}
    assert best_threshold({"q": "the", "r": "cat"}, answers, no_answer) == Thresholds(0.5, 0.0, 0.5, 0.0)
    assert best_threshold({"q": "", "r": "cat"}, answers, no_answer) == Thresholds(1.0, 0.2, 1.0, 0.2)


@given(scored)
def test_auc_is_the_share_of_pairs(pairs):
    scores, labels = (list(column) for column in zip(*pairs, strict=True))
    found = area_under_curve(scores, labels)
    if len(set(labels)) < 2:
        assert found is None
    else:
        assert found == pytest.approx(electra.area_under_curve(scores, labels))
        assert found == pytest.approx(sklearn.roc_auc_score(labels, scores))


def test_auc_of_many_scores():
    draw = np.random.default_rng(0)
    labels = draw.random(50000) < 0.1
    scores = draw.normal(size=50000) + labels * 0.7
    assert area_under_curve(scores, labels) == pytest.approx(sklearn.roc_auc_score(labels, scores), abs=1e-9)


@given(scored)
def test_the_interval_of_an_auc_is_delong_s(pairs):
    """By the definition: how far the wins of each positive over all negatives vary, and those of each negative."""
    ones, zeros = ([score for score, label in pairs if label is kind] for kind in (True, False))
    low, high = area_interval(*zip(*pairs, strict=True))
    if min(len(ones), len(zeros)) < 2:
        assert (low, high) == (0.0, 1.0)
        return
    wins = np.array([[(a > b) + (a == b) / 2 for b in zeros] for a in ones])
    variance = np.var(wins.mean(1), ddof=1) / len(ones) + np.var(wins.mean(0), ddof=1) / len(zeros)
    spread = 1.959963984540054 * np.sqrt(variance)
    assert (low, high) == pytest.approx((max(0, wins.mean() - spread), min(1, wins.mean() + spread)), abs=1e-9)


def test_the_interval_of_an_auc_holds_it_19_times_in_20():
    draw, truth = np.random.default_rng(1), stats.norm.cdf(1 / np.sqrt(2))
    held = 0
    for _ in range(400):
        labels = np.arange(120) < 40
        low, high = area_interval(draw.normal(size=120) + labels, labels)
        held += low <= truth <= high
    assert 0.91 <= held / 400 <= 0.98


def test_resampled_sentences():
    """Of a mean, about as far as its standard error; wider where the words of a sentence go together."""
    draw = np.random.default_rng(0)
    apart = draw.normal(size=4000)
    together = np.repeat(draw.normal(size=400), 10)
    ends = np.arange(10, 4001, 10)
    for values, error in ((apart, 1 / np.sqrt(4000)), (together, 1 / np.sqrt(400))):
        low, high = resampled(ends, lambda some, values=values: float(values[some].mean()))
        assert low < values.mean() < high
        assert high - low == pytest.approx(2 * 1.96 * error, rel=0.25)
    uneven = resampled([1, 4000], lambda some: float(len(some)))
    assert uneven == (2.0, 2 * 3999.0), "sentences are drawn, not words"
