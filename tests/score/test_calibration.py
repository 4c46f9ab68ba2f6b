"""Probabilities that mean what they say."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from elektron.data.tokenizer import Pieces
from elektron.score.calibration import Bin, Calibration, brier, calibration_error, fit, load, reliability, save
from elektron.score.reader import Reading
from elektron.score.words import logits_of

PROBABILITIES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def drawn(temperature: float, shift: float, count: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    logits = draw.normal(-2, 3, count)
    return logits, draw.random(count) < 1 / (1 + np.exp(-(logits / temperature + shift)))


@pytest.mark.parametrize(("temperature", "shift"), [(1.0, 0.0), (4.0, -2.0), (0.5, 1.0)])
def test_what_was_there_is_found(temperature, shift):
    logits, true = drawn(temperature, shift)
    found = fit(logits, true)
    assert found.temperature == pytest.approx(temperature, rel=0.1)
    assert found.shift == pytest.approx(shift, abs=0.1)
    theirs = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(logits[:, None], true)
    assert 1 / found.temperature == pytest.approx(theirs.coef_[0, 0], rel=1e-3)
    assert found.shift == pytest.approx(theirs.intercept_[0], abs=1e-3)
    calibrated, plain = (
        calibration_error(reliability(how.probabilities(logits), true)) for how in (found, Calibration())
    )
    assert calibrated < 0.015
    assert calibrated <= plain + 0.01


def test_what_cannot_be_fitted():
    with pytest.raises(ValueError, match="0 of 3 words are errors"):
        fit(np.zeros(3), np.zeros(3, dtype=bool))
    with pytest.raises(ValueError, match="the fewer errors"):
        fit(np.array([-1.0, 1.0, -2.0, 2.0]), np.array([True, False, True, False]))
    found = fit(np.array([-np.inf, -1.0, 1.0, -2.0, 2.0]), np.array([False, False, True, False, True]))
    assert found.probabilities(np.array([-np.inf, -1.0, 1.0])).round(2).tolist() == [0.0, 0.0, 1.0]


@given(pairs=PROBABILITIES)
@settings(deadline=None)
def test_bins_and_brier_are_scikit_learn_s(pairs):
    said, true = (np.array(column) for column in zip(*pairs, strict=True))
    assume(0 < true.sum() < len(true))
    assume(not np.isin(said * 10, np.arange(1, 10)).any())  # they put those on an edge into the bin below
    found = reliability(said, true)
    shares, means = calibration_curve(true, said, n_bins=10)
    assert [part.true for part in found] == pytest.approx(shares.tolist())
    assert [part.predicted for part in found] == pytest.approx(means.tolist())
    assert sum(part.words for part in found) == len(said)
    assert brier(said, true) == pytest.approx(brier_score_loss(true, said))


def test_the_expected_error():
    assert calibration_error([Bin(0.1, 0.2, 30), Bin(0.8, 0.5, 10)]) == pytest.approx((3 + 3) / 40)


def test_it_is_kept_beside_the_model(tmp_path):
    assert load(tmp_path) is None
    kept = Calibration(2.0, -1.0, 0.3)
    save(kept, tmp_path, "fce.tsv")
    assert load(tmp_path) == kept
    (tmp_path / "calibration.json").write_text('{"temperature": 1}')
    with pytest.raises(ValueError, match="calibration.json: damaged"):
        load(tmp_path)


def test_words_of_others_get_the_worst_of_their_tokens():
    """Tokens at 0-2, 2-4, 5-8 and 8-9; spans as another tokenizer would cut."""
    offsets = np.array([[0, 2], [2, 4], [5, 8], [8, 9]])
    pieces = Pieces(np.arange(4), offsets, np.array([0, 0, 1, 2]))
    reading = Reading("abcd efghi", pieces, np.array([1.0, 3.0, -1.0, 2.0], dtype=np.float32))
    assert logits_of(reading, [(0, 4), (5, 9), (9, 10)]).tolist() == [3.0, 2.0, -np.inf]
    assert logits_of(reading, [(0, 1), (1, 3), (3, 6)]).tolist() == [1.0, 3.0, 3.0]
    assert logits_of(reading, []).tolist() == []
