"""What a discriminator says of each token, against the networks asked one token at a time; and tokens in bands, against
scikit-learn, scipy and loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn import metrics as sklearn

from elektron.data.tokenizer import Specials
from elektron.objectives.lexicon import Lexicon, lexicon_of
from elektron.objectives.objective import ObjectiveConfig
from elektron.score.bands import band_of, bands_of, by_chance, by_count, by_deed, by_form, by_place, by_tag, cuts_of
from elektron.score.errors import FIRST, LATER, WHOLE, Seen, Tokens, alarms, forms, is_text, joined, missed, seen
from elektron.train.evaluate import evaluate, passes
from elektron.train.loop import held_batches
from objectives.small import LENGTH, ROWS, SPECIALS, VOCABULARY, batch, keys_of, make_model

CPU = torch.device("cpu")
TWO_STAGE = {"kind": "two-stage", "generator_width": 1.0, "generator_layers": 1.0, "sharing": "none"}


def looked_at(model, rows: int = ROWS) -> Seen | None:
    original, segments = batch(rows=rows)
    keys = keys_of(rows=rows)
    with torch.no_grad():
        return seen(model, original, segments, keys, model(original, segments, keys))


@pytest.mark.parametrize(
    "flags",
    [
        {"kind": "electra"},
        {"kind": "electra", "draws": "with-replacement", "keep_rate": 0.5},
        {"kind": "electra", "masking": "whole-word", "temperature": 0.5, "disallow_correct": True},
        {"kind": "electra", "generator": "unigram"},
        {"kind": "electra", "sharing": "gdes"},
        {"kind": "electra-15"},
        {"kind": "adversarial"},
        {"kind": "gumbel"},
        TWO_STAGE,
    ],
)
def test_each_token_is_what_the_networks_say_of_it(flags):
    """Everything again, a token at a time: the label, the logit, and how sure the generator was."""
    config = ObjectiveConfig(mask_rate=0.3, **flags)
    counts = np.arange(VOCABULARY)
    model = make_model(config, lexicon=Lexicon(SPECIALS, VOCABULARY, torch.arange(VOCABULARY) % 3 == 0, counts))
    model.stage = len(model.stages) - 1
    original, segments = batch()
    found = looked_at(model)
    assert found is not None
    rows, tokens = torch.from_numpy(found.rows), found.tokens
    with torch.no_grad():
        logits = model.discriminator(rows, segments)
        outcome = model(original, segments, keys_of())
    assert len(tokens.row) == (outcome.positions.numel() if config.kind == "electra-15" else original.numel())
    for row, position, was, read, replaced, logit, asked, chance, _ in zip(*tokens, strict=True):
        assert was == original[row, position]
        assert read == rows[row, position]
        assert replaced == (was != read)
        assert logit == pytest.approx(float(logits[row, position]), abs=1e-5)
        assert asked == (position in outcome.positions[row])
        assert np.isnan(chance) == (not asked)
        if asked and config.generator == "unigram":
            assert chance == pytest.approx(math.log((read + 1) / (counts + 1).sum()), abs=1e-4)
        elif asked and not config.keep_rate:
            gaps = original[row].scatter(0, outcome.positions[row], SPECIALS.mask)
            with torch.no_grad():
                expected = model.generator(gaps[None], segments[row][None])[0, position].log_softmax(-1)[read]
            assert chance == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("kind", ["span", "corrective", "all-tokens-mlm"])
def test_others_who_tell_what_was_replaced(kind):
    model = make_model(ObjectiveConfig(kind=kind, mask_rate=0.3))
    found = looked_at(model)
    assert found is not None
    assert np.array_equal(found.tokens.replaced, found.tokens.original != found.tokens.corrupted)
    assert found.tokens.asked.sum() == ROWS * round(0.3 * LENGTH)
    is_known = np.isfinite(found.tokens.chance)
    assert not is_known.any() if kind == "span" else np.array_equal(is_known, found.tokens.asked)


@pytest.mark.parametrize(
    "flags", [{"kind": "mlm"}, {"kind": "replace-mlm"}, {"kind": "electric", "generator": "two-tower"}, TWO_STAGE]
)
def test_others_have_nobody_who_tells(flags):
    """Nor has two-stage in its first."""
    assert looked_at(make_model(ObjectiveConfig(**flags))) is None


def test_rows_that_were_left_alone_were_asked_for_nothing():
    """With a loss of whole sentences a fifth of the rows keeps its tokens, whatever the generator says."""
    found = looked_at(make_model(ObjectiveConfig(sentence_weight=1.0)), rows=40)
    assert found is not None
    touched = {row for row, replaced in zip(found.tokens.row, found.tokens.replaced, strict=True) if replaced}
    assert 20 < len(touched) < 40
    assert set(found.tokens.row[found.tokens.asked]) == touched
    assert np.array_equal(np.isfinite(found.tokens.chance), found.tokens.asked)


@pytest.mark.parametrize("equal", ["original", "replaced"])
def test_totals_are_those_of_evaluation_however_rows_are_batched(data, equal):
    model = make_model(ObjectiveConfig(mask_rate=0.3, equal=equal), lexicon=lexicon_of(data.tokenizer))
    whole, parts = (
        joined([part for one in passes(model, held_batches(data, 20, 10, size), CPU) if (part := seen(model, *one))])
        for size in (10, 3)
    )
    for one, other in zip([*whole.tokens, whole.rows], [*parts.tokens, parts.rows], strict=True):
        assert np.allclose(one, other, atol=1e-5, equal_nan=True)
    band, expected = band_of("all", parts.tokens), evaluate(model, held_batches(data, 20, 10, 5), CPU)
    assert band.auc is not None
    assert band.recall is not None
    assert band.precision is not None
    assert band.loss == pytest.approx(expected["discriminator_loss"], abs=1e-5)
    assert band.auc.value == pytest.approx(expected["detection_auc"], abs=1e-5)
    assert band.recall.value == pytest.approx(expected["discriminator_recall"], abs=1e-5)
    assert band.precision.value == pytest.approx(expected["discriminator_precision"], abs=1e-5)
    assert band.replaced / band.tokens == pytest.approx(expected["replaced_rate"], abs=1e-5)


@pytest.mark.parametrize("which", ["small_tokenizer", "byte_tokenizer"])
def test_forms_of_tokens(which, request):
    """A word that is cut has a first piece and later ones; [SEP] is no piece of anything."""
    tokenizer = request.getfixturevalue(which)
    words = ["The", "remembers", "cat", "catfishes", "mountain"]
    parts = [[int(i) for i in tokenizer.encode([f" {word}"])[0]] for word in words]
    assert {len(part) > 1 for part in parts} == {True, False}
    expected = [form for part in parts for form in ([WHOLE] if len(part) == 1 else [FIRST] + [LATER] * (len(part) - 1))]
    row = [tokenizer.specials.cls, *(i for part in parts for i in part), tokenizer.specials.sep]
    found = forms(torch.tensor([row]), lexicon_of(tokenizer))
    assert found[0].tolist() == [WHOLE, *expected, WHOLE]


LIMIT = 1000


@st.composite
def some_tokens(draw) -> Tokens:
    """Of rows of 20, with ties among the logits."""
    count = draw(st.integers(1, 60))
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    original, corrupted = noise.integers(0, 6, (2, count))
    asked = (corrupted != original) | (noise.random(count) < 0.3)
    return Tokens(
        noise.integers(0, 3, count),
        noise.integers(0, 20, count),
        original,
        corrupted,
        corrupted != original,
        noise.normal(size=count).round(draw(st.integers(0, 3))).astype(np.float32),
        asked,
        np.where(asked, np.log(noise.random(count)), np.nan).astype(np.float32),
        noise.integers(0, 3, count),
    )


@given(some_tokens())
@settings(deadline=None, max_examples=60)
def test_bands_part_all_tokens(tokens):
    """What is counted in bands adds up, and what is summed in them does too; but for the generator's confidence, which
    is of those tokens alone that it was asked for."""
    counts = np.array([0, 1, 9, 10, 99, LIMIT])
    *cuts, last = cuts_of(tokens, 20, counts)
    if last.title != "Confidence of the generator":
        assert not tokens.asked.any()
        cuts.append(last)
    else:
        assert sum(band.tokens for band in last.bands) == tokens.asked.sum()
    whole = band_of("all", tokens)
    for cut in cuts:
        assert sum(band.tokens for band in cut.bands) == whole.tokens
        assert sum(band.replaced for band in cut.bands) == whole.replaced
        for name in ("loss", "predicted"):
            total = sum(getattr(band, name) * band.tokens for band in cut.bands)
            assert total == pytest.approx(getattr(whole, name) * whole.tokens)
        assert len({band.name for band in cut.bands}) == len(cut.bands)


@given(some_tokens())
@settings(deadline=None, max_examples=60)
def test_what_is_told_of_a_band(tokens):
    for band in bands_of(tokens, by_form(tokens.form)):
        here = tokens.form == ["whole word", "first piece", "later piece"].index(band.name)
        true, logits = tokens.replaced[here], tokens.logit[here].astype(np.float64)
        chance = 1 / (1 + np.exp(-logits))
        flagged = chance > 0.5
        assert (band.tokens, band.replaced) == (here.sum(), true.sum())
        assert band.predicted == pytest.approx(chance.mean())
        assert band.loss == pytest.approx(sklearn.log_loss(true, chance, labels=[False, True]))
        if len(set(true)) < 2:
            assert band.auc is band.average_precision is band.precision is None
            continue
        assert band.auc is not None
        assert band.auc.value == pytest.approx(sklearn.roc_auc_score(true, logits))
        assert band.auc.low <= band.auc.value <= band.auc.high
        assert band.average_precision == pytest.approx(sklearn.average_precision_score(true, logits))
        for share, of in ((band.recall, true), (band.precision, flagged)):
            if not of.any():
                assert share is None
                continue
            seen = binomtest(int((true & flagged).sum()), int(of.sum()))
            expected = seen.proportion_ci(method="wilson")
            assert share == pytest.approx((seen.statistic, expected.low, expected.high))


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=20))
def test_frequencies_in_powers_of_ten(counts):
    names, numbers = by_count(np.array(counts))
    for count, number in zip(counts, numbers.tolist(), strict=True):
        if not count:
            assert names[number] == "never"
        else:
            low, high = (int(end.replace(",", "")) for end in names[number].split(" to "))
            assert low <= count <= high
            assert high == 10 * low - 1


@given(st.integers(5, 600))
def test_places_in_eighths(length):
    names, numbers = by_place(np.arange(length), length)
    assert len(names) == 8
    for position, number in enumerate(numbers.tolist()):
        low, high = map(int, names[number].split(" to "))
        assert low <= position <= high
    sizes = np.bincount(numbers, minlength=8)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("chance", "name"),
    [
        (1e-9, "below 0.1%"),
        (0.0009, "below 0.1%"),
        (0.0011, "0.1% to 1%"),
        (0.09, "1% to 10%"),
        (0.49, "10% to 50%"),
        (0.51, "50% and more"),
        (1.0, "50% and more"),
    ],
)
def test_confidence_in_bands(chance, name):
    names, numbers = by_chance(np.array([math.log(chance), math.nan, math.log(chance)]))
    assert numbers[1] == -1
    assert names[numbers[0]] == names[numbers[2]] == name


def test_what_the_generator_did_and_tags():
    tokens = Tokens(*(np.array([0, 0, 0]) for _ in range(9)))._replace(
        original=np.array([5, 5, 5]), corrupted=np.array([5, 5, 6]), asked=np.array([False, True, True])
    )
    names, numbers = by_deed(tokens)
    assert [names[number] for number in numbers] == ["left alone", "sampled as it was", "replaced"]
    names, numbers = by_tag(np.array([2, 0, 2, 2, 0]), ["ADJ", "NOUN", "VERB"])
    assert names[:2] == ["VERB", "ADJ"]
    assert [names[number] for number in numbers] == ["VERB", "ADJ", "VERB", "VERB", "ADJ"]


def test_examples_are_the_surest_errors(small_tokenizer):
    """Of each pair of tokens one, with what stood around it as it was read."""
    draw = np.random.default_rng(0)
    cls, sep = small_tokenizer.specials.cls, small_tokenizer.specials.sep
    rows = draw.integers(5, 12, (6, 15))
    rows[:, 0], rows[:, -1] = cls, sep
    original = np.where(draw.random(rows.shape) < 0.3, draw.integers(5, 12, rows.shape), rows)
    original[:, 0], original[:, -1] = cls, sep
    places = np.indices(rows.shape).reshape(2, -1)
    flat, read = original.flatten(), rows.flatten()
    logits = draw.normal(size=rows.size).astype(np.float32)
    unknown = np.full(rows.size, np.nan)
    changed, whole = flat != read, np.zeros(rows.size, np.int64)
    tokens = Tokens(places[0], places[1], flat, read, changed, logits, changed, unknown, whole)
    assert (~is_text(tokens, small_tokenizer.specials)).sum() == 12
    for found, kind, sign in ((missed, True, 1), (alarms, False, -1)):
        wanted = [
            (sign * logit, int(row), int(place))
            for row, place, was, now, logit in zip(*places, flat, read, logits, strict=True)
            if (was != now) == kind and was not in (cls, sep)
        ]
        expected, pairs = [], set()
        for _, row, place in sorted(wanted):
            pair = original[row, place], rows[row, place]
            if pair not in pairs:
                pairs.add(pair)
                expected.append((row, place))
        examples = found(Seen(tokens, rows), small_tokenizer, 5)
        assert len(examples) == 5
        for example, (row, place) in zip(examples, expected, strict=False):
            names = small_tokenizer.spelled([original[row, place], rows[row, place]])
            assert [example.original, example.corrupted] == names
            assert example.left == small_tokenizer.text(rows[row, max(1, place - 10) : place].tolist())
            assert example.right == small_tokenizer.text(rows[row, place + 1 : place + 11].tolist())
            logit = tokens.logit[row * 15 + place]
            assert example.probability == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-6)
            assert example.chance is None


def test_specials_of_others_are_no_text():
    tokens = Tokens(*(np.array([2, 3, 4, 9]) for _ in range(9)))
    assert is_text(tokens, Specials(pad=0, unk=1, cls=2, sep=3, mask=4)).tolist() == [False, False, True, True]
