from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elektron.train.schedule import (
    SHORTER,
    Phase,
    ScheduleConfig,
    cut_at,
    learning_rate,
    phase_at,
    total_steps,
    total_tokens,
    with_short,
)
from reference import training


@given(st.integers(1, 5000), st.integers(0, 600), st.data())
def test_product_is_google_s(total, warmup, data):
    step = data.draw(st.integers(0, total - 1))
    config = ScheduleConfig(kind="product", learning_rate=3e-4, warmup_steps=warmup)
    assert learning_rate(config, step, total) == pytest.approx(training.product_rate(3e-4, step, total, warmup))


def slow_rate(kind: str, peak: float, step: int, total: int, warmup: int, share: float) -> float:
    import math

    if step < warmup:
        return peak * (step + 1) / warmup
    if kind == "linear":
        return peak * (1 - (step - warmup) / (total - warmup))
    if kind == "cosine":
        return peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
    begins = total - share * total
    return peak if step <= begins else peak * (total - step) / (share * total)


@given(st.sampled_from(["linear", "cosine", "wsd"]), st.integers(2, 5000), st.data())
def test_the_others_are_what_they_say(kind, total, data):
    warmup = data.draw(st.integers(0, total - 1))
    step = data.draw(st.integers(0, total - 1))
    share = data.draw(st.sampled_from([0.1, 0.2, 0.5]))
    config = ScheduleConfig(kind=kind, learning_rate=1.0, warmup_steps=warmup, decay_share=share)
    rate = learning_rate(config, step, total)
    assert 0 < rate <= 1 + 1e-9
    if share * total >= 1:
        assert rate == pytest.approx(slow_rate(kind, 1.0, step, total, warmup, share))


def test_the_paper_s_rate_begins_at_zero_and_never_reaches_its_peak():
    config = ScheduleConfig(kind="product", learning_rate=5e-4, warmup_steps=10_000)
    assert learning_rate(config, 0, 1_000_000) == 0
    assert max(learning_rate(config, step, 1_000_000) for step in range(0, 1_000_000, 100)) == pytest.approx(
        5e-4 * 0.99
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(5, 20), st.integers(1, 4)), min_size=1, max_size=4))
def test_phases_follow_one_another(phases):
    phases = tuple(Phase(*phase) for phase in phases)
    expected = [(number, step) for number, phase in enumerate(phases) for step in range(phase.steps)]
    assert [phase_at(phases, step) for step in range(total_steps(phases))] == expected
    assert total_tokens(phases) == sum(phases[number].length * phases[number].rows for number, _ in expected)
    with pytest.raises(AssertionError):
        phase_at(phases, total_steps(phases))


@pytest.mark.parametrize("change", [{"learning_rate": 0.0}, {"warmup_steps": -1}, {"decay_share": 0.0}])
def test_impossible_schedules_are_refused(change):
    with pytest.raises(ValueError, match="--schedule"):
        ScheduleConfig(**change)


@given(st.floats(0, 0.9), st.integers(1, 400))
def test_short_steps_are_spread_and_each_comes_once(short, steps):
    """Of each length, batches 0, 1, 2, ... without a gap; as many as `with_short` counts, and never two in a row where
    they are less than half."""
    cuts = [cut_at(short, step) for step in range(steps)]
    for times in (1, *SHORTER):
        assert [cut.step for cut in cuts if cut.times == times] == list(range(sum(cut.times == times for cut in cuts)))
    if short < 0.5:
        assert not any(a.times > 1 and b.times > 1 for a, b in pairwise(cuts))
    parts = with_short((Phase(steps, 64, 3),), short)
    assert total_steps(parts) == steps
    assert total_tokens(parts) == steps * 64 * 3
    for part in parts:
        assert part.steps == sum(64 // cut.times == part.length for cut in cuts)
