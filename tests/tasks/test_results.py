"""What several seeds come to."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elektron.tasks import glue
from elektron.tasks.results import PUBLISHED, markdown, middle, results_table, summary

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=9)


@given(SCORES)
def test_the_middle_one_is_a_median(scores):
    chosen = scores[middle(scores)]
    assert sum(score < chosen for score in scores) <= len(scores) // 2
    assert sum(score > chosen for score in scores) <= len(scores) // 2


@given(SCORES)
def test_summaries(scores):
    found = summary(scores)
    assert found.median == statistics.median(scores)
    assert found.mean == pytest.approx(sum(scores) / len(scores))
    assert found.deviation == (pytest.approx(statistics.stdev(scores)) if len(scores) > 1 else 0.0)
    assert found.seeds == len(scores)


def test_tables_stand_beside_what_was_published():
    found = {
        "cola": {"matthews": summary([0.5, 0.6, 0.55])},
        "mrpc": {"accuracy": summary([0.7]), "f1": summary([0.8])},
    }
    header, lines = results_table(found, glue.AVERAGED)
    assert header == ["task", "metric", "median", "mean", "sd", "seeds", "Small, OWT", "Small", "Base", "Large"]
    assert lines[0] == ["cola", "matthews", "55.0", "55.0", "5.0", "3", "56.8", "57.0", "67.7", "69.1"]
    assert lines[1][:3] == ["mrpc", "accuracy", "70.0"]
    assert lines[2] == ["", "f1", "80.0", "80.0", "0.0", "1", "", "", "", ""]
    assert len(lines) == 3
    assert markdown(header, lines).splitlines()[1] == "| --- " * 10 + "|"


def test_averages_are_of_the_paper_s_eight():
    """The README of the original has 80.36 for Small on OpenWebText; WNLI is left out."""
    found = {task: {"x": summary([n / 10]), "y": summary([0.0])} for n, task in enumerate(glue.TASKS)}
    header, lines = results_table(found, glue.AVERAGED)
    average = dict(zip(header, lines[-1], strict=True))
    assert average["median"] == f"{100 * statistics.fmean(n / 10 for n, t in enumerate(glue.TASKS) if t != 'wnli'):.1f}"
    assert average["Small, OWT"] == "80.4"
    assert statistics.fmean(PUBLISHED["Small, OWT"].values()) == pytest.approx(80.36, abs=0.01)


def test_columns_without_anything_are_left_out():
    header, _ = results_table({"chunk": {"f1": summary([0.9])}}, glue.AVERAGED)
    assert header[6:] == ["Small", "Base", "Large"]
    header, _ = results_table({"own": {"f1": summary([0.9])}}, glue.AVERAGED)
    assert header[6:] == []
