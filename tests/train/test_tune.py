"""Fine-tuning: the recipe, what is learned, and that it can be repeated."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elektron.data.examples import Examples, Row
from elektron.data.tokenizer import Specials
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.initial import initialise
from elektron.model.task_heads import Kind, Tuned, begin_head
from elektron.train.tune import RecipeConfig, layer_scale, predict
from elektron.train.tune import tune as tune_by_score

SHAPE = EncoderConfig(layers=2, width=32, heads=2, feedforward_width=64, embedding_width=32, positions=40)
SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
RECIPE = RecipeConfig(learning_rate=3e-3, layer_decay=0.9, epochs=8, batch=8)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def network(kind: Kind = "classification", classes: int = 2) -> Tuned:
    tuned = Tuned(Encoder(SHAPE, Embeddings(30, SHAPE)), kind, "transformers", tuple("abcdef"[:classes]))
    initialise(tuned.encoder, 0)
    begin_head(tuned.head, "transformers", 0)
    return tuned.to(DEVICE)


def tune(networks, examples, recipe, seeds):
    return tune_by_score(networks, examples, recipe, seeds, _nobody_asks)


def _nobody_asks(network: Tuned) -> float:
    raise AssertionError("a score is asked for")


def scores_of(network: Tuned) -> torch.Tensor:
    return dict(network.named_parameters())["head.score.weight"].detach().float().clone()


def questions(count: int, seed: int) -> Examples:
    """Whether token 7 is somewhere in the row."""
    draw = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        tokens = np.concatenate([[2], draw.integers(8, 30, draw.integers(2, 12)), [3]])
        if number % 2:
            tokens[draw.integers(1, len(tokens) - 1)] = 7
        rows.append(Row(tokens, len(tokens), np.array(number % 2)))
    return Examples(rows, SPECIALS, DEVICE)


@given(st.integers(1, 30), st.floats(0.5, 1.0), st.booleans())
def test_learning_rates_fall_from_layer_to_layer(layers, decay, from_top):
    """The head has the whole rate, the top layer a step less (the original: two), and each below it one more."""
    names = ["head.score.weight", *(f"encoder.layers.{n}.up.bias" for n in reversed(range(layers)))]
    names += ["encoder.embeddings.word.weight"]
    scale = 1.0
    for place, name in enumerate(names):
        assert layer_scale(name, layers, decay, from_top) == pytest.approx(scale)
        scale *= decay * (decay if from_top and place == 0 else 1.0)
    embeddings = layer_scale("encoder.embeddings.word.weight", layers, decay, from_top)
    assert layer_scale("encoder.project.weight", layers, decay, from_top) == embeddings


@pytest.mark.parametrize(
    ("width", "rate", "decay"), [(256, 3e-4, 0.8), (128, 3e-4, 0.8), (768, 1e-4, 0.8), (1024, 5e-5, 0.9)]
)
def test_the_paper_s_values_by_size(width, rate, decay):
    shape = replace(SHAPE, width=width, heads=4)
    papers = RecipeConfig(learning_rate=rate, layer_decay=decay, epochs=10, dropout=0.1)
    assert RecipeConfig().resolved(replace(shape, dropout=0.1), 10) == papers
    assert RecipeConfig().resolved(replace(shape, dropout=0.0), 10) == replace(papers, dropout=0.0)
    own = RecipeConfig(learning_rate=1e-3, layer_decay=1.0, epochs=2, dropout=0.0)
    assert own.resolved(shape, 10) == own


def test_bad_recipes():
    for name, value in (
        ("learning_rate", -1.0),
        ("batch", 0),
        ("warmup", 1.0),
        ("layer_decay", -0.1),
        ("dropout", 1.0),
    ):
        with pytest.raises(ValueError, match="--recipe"):
            replace(RECIPE, **{name: value})


def test_it_learns_and_can_be_repeated():
    train, dev = questions(200, 0), questions(60, 1)
    first, cost = tune([network()], train, RECIPE, [3])
    again, _ = tune([network()], train, RECIPE, [3])
    other, _ = tune([network()], train, RECIPE, [4])
    assert cost.steps == len(first[0].losses) == 200
    assert 0 <= cost.padding < 0.1
    assert first[0].losses == again[0].losses
    assert first[0].losses != other[0].losses
    assert np.mean(first[0].losses[-20:]) < 0.2 < np.mean(first[0].losses[:5])
    said = np.stack(predict(first[0].network, dev)).argmax(1)
    assert (said == np.arange(60) % 2).mean() > 0.9


def test_side_by_side_is_as_alone():
    train = questions(60, 0)
    together, _ = tune([network(), network()], train, replace(RECIPE, epochs=2), [3, 4])
    for seed, found in zip([3, 4], together, strict=True):
        (alone,), _ = tune([network()], train, replace(RECIPE, epochs=2), [seed])
        assert alone.losses == found.losses
        for name, weight in alone.weights.items():
            assert torch.equal(weight, found.weights[name]), name


def test_scales_reach_the_parameters():
    """With a decay of nothing only the head learns."""
    before = network()
    (found,), _ = tune([deepcopy(before)], questions(40, 0), replace(RECIPE, layer_decay=1e-30, epochs=1), [0])
    old = {name: parameter.detach() for name, parameter in before.named_parameters()}
    changed = {name for name, weight in found.weights.items() if (weight - old[name]).abs().max() > 1e-20}
    assert changed
    assert all(name.startswith("head.") for name in changed)


@pytest.mark.parametrize("kind", ["tagging", "span"])
def test_scores_of_tokens_come_back_in_order_and_without_padding(kind):
    lengths = [4, 9, 6]
    rows = [Row(np.full(n, 5 + i), n, np.zeros(n if kind == "tagging" else 2, int)) for i, n in enumerate(lengths)]
    tuned = network(kind, 3 if kind == "tagging" else 2)
    found = predict(tuned, Examples(rows, SPECIALS, DEVICE, kind == "tagging"))
    assert [scores.shape[0] for scores in found] == lengths
    for row, scores in zip(rows, found, strict=True):
        alone = predict(tuned, Examples([row], SPECIALS, DEVICE, kind == "tagging"))[0]
        np.testing.assert_allclose(scores, alone, atol=1e-5 if DEVICE.type == "cpu" else 3e-2)


def test_a_run_that_loses_its_way_says_so():
    with pytest.raises(ValueError, match="not finite"):
        tune([network("regression", 1)], _enormous(), replace(RECIPE, epochs=1), [0])


def _enormous() -> Examples:
    rows = [Row(np.array([2, 9, 3]), 3, np.array(1e38)) for _ in range(8)]
    return Examples(rows, SPECIALS, DEVICE)


def test_the_best_epoch_is_taken_if_asked():
    """Scores are made up: the second of four epochs is the best."""
    train, seen = questions(64, 0), []

    def score(network: Tuned) -> float:
        seen.append(scores_of(network))
        return [0.1, 0.9, 0.5, 0.9][len(seen) - 1]

    recipe = replace(RECIPE, epochs=4, choose="best")
    (found,), _ = tune_by_score([network()], train, recipe, [0], score)
    assert len(seen) == 4
    assert torch.equal(scores_of(found.network), seen[1])
    (last,), _ = tune([network()], train, replace(RECIPE, epochs=4), [0])
    assert torch.equal(scores_of(last.network), seen[3])
    assert last.losses == found.losses
