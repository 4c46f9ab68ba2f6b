"""Numbers for sentences, minimal pairs, and lists of hypotheses."""

import json
from functools import cache

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from elektron.interop.huggingface import load_discriminator, load_generator
from elektron.objectives.electric import pseudo_log_likelihood
from elektron.score.pairs import Accuracy, Pair, accuracies, overall, read_pairs
from elektron.score.reader import Reader
from elektron.score.rerank import Candidates, Errors, read_candidates, word_errors
from elektron.score.rows import masked_log_probabilities, replaced_logits
from elektron.score.sentences import score_of

TEXTS = ["The old cat sees a dog.", "", "unseenish bird", "the king and the queen of the river"]
WORDS = st.lists(st.sampled_from("abc"), max_size=6).map(" ".join)


def test_detection_is_the_log_probability_that_nothing_was_replaced(untaught, small_tokenizer):
    network = load_discriminator(untaught / "discriminator")
    theirs = transformers.ElectraForPreTraining.from_pretrained(untaught / "discriminator").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(untaught / "discriminator")
    reader = Reader(replaced_logits(network, small_tokenizer.specials), small_tokenizer, 32)
    for text, reading in zip(TEXTS, reader.read(TEXTS), strict=True):
        with torch.no_grad():
            logits = theirs(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1].double()
        expected = torch.log(1 - logits.sigmoid())
        assert score_of(reading, "detection", "sum") == pytest.approx(expected.sum().item(), abs=1e-4)
        mean = expected.mean().item() if len(expected) else 0.0
        assert score_of(reading, "detection", "mean") == pytest.approx(mean, abs=1e-5)


def test_energies_sum_up_to_electric_s_pseudo_log_likelihood(untaught, small_tokenizer):
    network, specials = load_discriminator(untaught / "discriminator"), small_tokenizer.specials
    reader = Reader(replaced_logits(network, specials), small_tokenizer, 32)
    for reading in reader.read(TEXTS):
        row = torch.tensor([[specials.cls, *reading.pieces.ids.tolist(), specials.sep]])
        with torch.no_grad():
            expected = pseudo_log_likelihood(network, row, torch.zeros_like(row), specials).item()
        assert score_of(reading, "energy", "sum") == pytest.approx(expected, abs=1e-4)


def test_a_masked_lm_names_each_token_from_the_others(untaught, small_tokenizer):
    network = load_generator(untaught / "generator")
    theirs = transformers.ElectraForMaskedLM.from_pretrained(untaught / "generator").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(untaught / "generator")
    reader = Reader(masked_log_probabilities(network, small_tokenizer.specials), small_tokenizer, 32)
    for text, reading in zip(TEXTS, reader.read(TEXTS), strict=True):
        row = tokenizer(text, return_tensors="pt").input_ids
        assert row.shape[1] == len(reading.said) + 2
        for place, value in enumerate(reading.said, 1):
            masked = row.clone()
            masked[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                expected = theirs(masked).logits[0, place].log_softmax(-1)[row[0, place]].item()
            assert value == pytest.approx(expected, abs=1e-4)


def test_accuracy_by_phenomenon():
    pairs = [Pair("good", "bad", phenomenon, f"{phenomenon}-{n % 2}") for phenomenon in "ab" for n in range(4)]
    goods, bads = [1, 2, 3, 0, 1, 1, 1, 1], [0, 2, 4, -1, 0, 0, 0, 0]
    by_phenomenon, by_set = accuracies(zip(pairs, map(float, goods), map(float, bads), strict=True))
    assert by_phenomenon == {"a": Accuracy(2.5, 4), "b": Accuracy(4.0, 4)}
    assert by_set == {
        "a-0": Accuracy(1.0, 2),
        "a-1": Accuracy(1.5, 2),
        "b-0": Accuracy(2.0, 2),
        "b-1": Accuracy(2.0, 2),
    }
    assert overall(by_set.values()) == Accuracy(6.5, 8)


@given(right=st.integers(0, 50), more=st.integers(0, 50))
def test_wilson_s_interval_solves_its_equation(right, more):
    """Its ends are the shares from which what was seen lies just 1.96 standard deviations away."""
    n = right + more
    if not n:
        return
    found = Accuracy(float(right), n)
    for end in found.interval:
        assert -1e-12 <= end <= 1 + 1e-12
        assert (found.value - end) ** 2 == pytest.approx(1.959963984540054**2 * end * (1 - end) / n, abs=1e-9)


def test_pairs_are_read_as_blimp_s(tmp_path):
    record = {"sentence_good": "a", "sentence_bad": "b", "linguistics_term": "islands", "UID": "adjunct"}
    (tmp_path / "one.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "two.jsonl").write_text(json.dumps({"sentence_good": "c", "sentence_bad": "d"}) + "\n")
    assert list(read_pairs([str(tmp_path)])) == [Pair("a", "b", "islands", "adjunct"), Pair("c", "d", "two", "two")]
    (tmp_path / "two.jsonl").write_text('{"sentence_good": "c"}\n')
    with pytest.raises(ValueError, match="two.jsonl, line 1: no pair"):
        list(read_pairs([str(tmp_path / "two.jsonl")]))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="has no .jsonl files"):
        list(read_pairs([str(tmp_path / "one.jsonl"), str(empty)]))


@settings(deadline=None)
@given(reference=WORDS, text=WORDS)
def test_word_errors_are_the_fewest_changes(reference, text):
    wanted, given = reference.split(), text.split()

    @cache
    def least(i: int, j: int) -> int:
        if i == len(wanted) or j == len(given):
            return len(wanted) - i + len(given) - j
        return min(least(i + 1, j) + 1, least(i, j + 1) + 1, least(i + 1, j + 1) + (wanted[i] != given[j]))

    assert word_errors(reference, text) == least(0, 0)


def test_the_weight_with_the_fewest_errors():
    lists = [
        Candidates("a b c", ["a b", "a b c", "x"], np.array([3.0, 2.0, 1.0])),
        Candidates("d", ["d", "e"], np.array([1.0, 0.0])),
    ]
    ours = [np.array([0.0, 2.0, 0.0]), np.array([0.0, 0.4])]
    errors = Errors(lists, ours)
    assert errors.words == 4
    assert [errors.at(weight) for weight in (0, 0.4, 0.6, 2, 3)] == [1, 1, 0, 0, 1]
    assert errors.least == 0
    assert errors.best_weight([0, 0.4, 0.6, 2, 3]) == 0.6


def test_lists_are_read_in_both_forms(tmp_path):
    hypotheses = [{"text": " a b", "score": -1}, {"text": "c", "score": -2.5}]
    (tmp_path / "lists.jsonl").write_text(json.dumps({"reference": "a b", "hypotheses": hypotheses}) + "\n")
    utterance = {"hyp_1": hypotheses[0], "hyp_2": hypotheses[1], "ref": "a b"}
    (tmp_path / "lists.json").write_text(json.dumps({"first": utterance}))
    for name in ("lists.jsonl", "lists.json"):
        (one,) = read_candidates(tmp_path / name)
        assert (one.reference, one.texts, one.first.tolist()) == ("a b", ["a b", "c"], [-1.0, -2.5])
    (tmp_path / "bad.jsonl").write_text('{"reference": "a", "hypotheses": []}\n')
    with pytest.raises(ValueError, match=r"bad.jsonl: no list of hypotheses"):
        read_candidates(tmp_path / "bad.jsonl")
