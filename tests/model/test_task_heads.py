"""Heads and losses against those of transformers, with the same weights."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from elektron.data.examples import IGNORED, Examples, Row
from elektron.data.tokenizer import Tokenizer
from elektron.interop.huggingface import save
from elektron.kernels.counters import row_keys
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.initial import initialise
from elektron.model.task_heads import Head, JointHead, Kind, Style, Tuned, answerable, begin_head, depth_of
from elektron.objectives.supervised import joint_loss, learn

SHAPE = EncoderConfig(layers=2, width=32, heads=2, feedforward_width=64, embedding_width=16, positions=40)
CLASSES = {
    "classification": transformers.ElectraForSequenceClassification,
    "regression": transformers.ElectraForSequenceClassification,
    "tagging": transformers.ElectraForTokenClassification,
    "span": transformers.ElectraForQuestionAnswering,
}
LABELS = {"classification": ("no", "yes", "so"), "regression": ("score",), "tagging": ("a", "b"), "span": ("s", "e")}


def network(kind: Kind, vocab_size: int, style: Style = "transformers") -> Tuned:
    tuned = Tuned(Encoder(SHAPE, Embeddings(vocab_size, SHAPE)), kind, style, LABELS[kind])
    initialise(tuned.encoder, 0)
    begin_head(tuned.head, style, 1)
    for parameter in tuned.head.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)  # biases too
    return tuned.eval()


def targets(kind, lengths: list[int]) -> list[np.ndarray]:
    draw = np.random.default_rng(3)
    if kind == "tagging":
        return [np.where(draw.random(n) < 0.6, draw.integers(0, 2, n), IGNORED) for n in lengths]
    if kind == "span":
        return [np.sort(draw.integers(0, n, 2)) for n in lengths]
    return [np.array(draw.normal() if kind == "regression" else draw.integers(0, 3)) for _ in lengths]


@pytest.mark.parametrize("kind", CLASSES)
def test_scores_and_loss_are_those_of_transformers(kind, small_tokenizer: Tokenizer, tmp_path: Path):
    torch.manual_seed(0)
    ours = network(kind, small_tokenizer.vocab_size)
    save(ours, small_tokenizer, tmp_path / "model", "card")
    theirs = CLASSES[kind].from_pretrained(tmp_path / "model").eval()
    lengths = [9, 14, 5, 14]
    rows = [
        Row(np.random.default_rng(n).integers(5, 100, n), n // 2, target)
        for n, target in zip(lengths, targets(kind, lengths), strict=True)
    ]
    inputs = Examples(rows, small_tokenizer.specials, torch.device("cpu"), kind == "tagging").inputs(
        torch.arange(4), 14
    )
    said = {"start_positions": inputs.targets[:, 0], "end_positions": inputs.targets[:, 1]} if kind == "span" else {}
    if kind != "span":
        said = {"labels": inputs.targets.float() if kind == "regression" else inputs.targets}
    expected = theirs(inputs.tokens, inputs.mask.long(), inputs.segments, **said)
    found = learn(ours, inputs, None)
    assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
    scores = ours(inputs.tokens, inputs.segments, inputs.mask)
    if kind == "span":
        torch.testing.assert_close(scores[..., 0][inputs.mask], expected.start_logits[inputs.mask], rtol=0, atol=1e-5)
        torch.testing.assert_close(scores[..., 1][inputs.mask], expected.end_logits[inputs.mask], rtol=0, atol=1e-5)
    else:
        where = inputs.mask if kind == "tagging" else slice(None)
        torch.testing.assert_close(scores[where], expected.logits[where], rtol=0, atol=1e-5)
    if kind in ("classification", "tagging"):
        assert tuple(theirs.config.id2label.values()) == LABELS[kind]


@pytest.mark.parametrize(("kind", "style", "drops"), [
    ("classification", "transformers", True),
    ("classification", "original", True),
    ("tagging", "transformers", True),
    ("tagging", "original", False),
    ("span", "transformers", False),
])  # fmt: skip
def test_heads_drop_where_they_should(kind, style, drops):
    head = network(kind, 20, style).head
    assert isinstance(head, Head)
    hidden = torch.randn(64, 3, 32)
    keys = row_keys(0, 0, torch.arange(64, dtype=torch.int32))
    assert torch.equal(head(hidden, keys), head(hidden, keys))
    assert torch.equal(head(hidden, keys), head(hidden, None)) != drops
    if drops and style == "original" and kind == "classification":  # dropout alone, so its mean is the plain score
        many = torch.stack(
            [head(hidden, row_keys(0, step, torch.arange(64, dtype=torch.int32))) for step in range(300)]
        )
        assert (many.mean(0) - head(hidden, None)).abs().mean() < 0.1 * many.std(0).mean() + 0.05


def test_the_original_s_heads_are_linear_and_refused():
    ours = network("classification", 20, "original")
    assert [name for name, _ in ours.head.named_parameters()] == ["score.weight", "score.bias"]


def test_refused_in_words(small_tokenizer: Tokenizer, tmp_path: Path):
    with pytest.raises(ValueError, match="--head transformers"):
        save(network("tagging", small_tokenizer.vocab_size, "original"), small_tokenizer, tmp_path / "model", "card")
    assert not (tmp_path / "model").exists()


def test_first_values():
    head = network("classification", 20).head
    assert isinstance(head, Head)
    begin_head(head, "transformers", 5)
    assert head.dense is not None
    assert head.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not head.dense.bias.any()
    before = head.score.weight.clone()
    begin_head(head, "transformers", 5)
    assert torch.equal(head.score.weight, before)
    begin_head(head, "transformers", 6)
    assert not torch.equal(head.score.weight, before)
    begin_head(head, "original", 5)
    assert head.dense.weight.abs().max() <= (6 / 64) ** 0.5
    assert head.dense.weight.abs().max() > 0.9 * (6 / 64) ** 0.5


def chances(scores: list[float], allowed: list[bool]) -> list[float]:
    """The logarithms of the probabilities of places."""
    kept = [score if may else -1000.0 for score, may in zip(scores, allowed, strict=True)]
    total = math.log(sum(math.exp(score) for score in kept))
    return [score - total for score in kept]


@torch.no_grad()
def test_the_joint_head_by_hand():
    """Loss and spans, place by place in float64."""
    head = network("span", 20, "original").head.double()
    assert isinstance(head, JointHead)
    hidden = torch.randn(3, 7, 32, dtype=torch.float64)
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1]])
    mask = torch.tensor([[True] * 7, [True] * 5 + [False] * 2, [True] * 7])
    targets = torch.tensor([[3, 5], [0, 0], [4, 4]])
    allowed = answerable(segments, mask)
    assert allowed[1].tolist() == [True, False, True, True, True, False, False]

    def feed(dense, last, x):
        return last(torch.nn.functional.gelu(dense(x))).item()

    losses, spans = [], head(hidden, allowed)
    for b, (first, last) in enumerate(targets.tolist()):
        h, may = hidden[b], allowed[b].tolist()
        starts = chances([head.start(h[t]).item() for t in range(7)], may)

        def ends(start, h=h, may=may):
            pairs = [torch.cat([h[start], h[t]]) for t in range(7)]
            return chances([feed(head.end_dense, head.end, pair) for pair in pairs], may)

        meant = torch.stack([math.exp(starts[t]) * h[t] for t in range(7)]).sum(0)
        doubt = feed(head.doubt_dense, head.doubt, torch.cat([h[0], meant]))
        chance = 1 / (1 + math.exp(-doubt))
        of_doubt = -math.log(chance if first == 0 else 1 - chance)
        losses.append((-starts[first] - ends(first)[last] + of_doubt) / 2)
        assert spans[b, 0].tolist() == pytest.approx([0, 0, doubt], abs=1e-5)
        for start, end, score in spans[b, 1:].tolist():
            assert score == pytest.approx(starts[int(start)] + ends(int(start))[int(end)], rel=1e-6, abs=1e-4)
        assert {(s, e) for s, e, _ in spans[b, 1:].tolist()} == {(s, e) for s in range(7) for e in range(7)}
    assert joint_loss(head, hidden, allowed, targets).item() == pytest.approx(sum(losses) / 3, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "style"), [*((kind, "transformers") for kind in CLASSES), ("span", "original")])
def test_the_sum_of_losses_is_that_of_each_alone(kind, style, small_tokenizer: Tokenizer):
    """Of rows, or of the tokens that have a class."""
    ours, lengths = network(kind, small_tokenizer.vocab_size, style), [9, 14, 5, 14]
    rows = [
        Row(np.random.default_rng(n).integers(5, 100, n), n // 2, target)
        for n, target in zip(lengths, targets(kind, lengths), strict=True)
    ]
    examples = Examples(rows, small_tokenizer.specials, torch.device("cpu"), kind == "tagging")
    alone = [learn(ours, examples.inputs(torch.tensor([n]), 14), None) for n in range(4)]
    counts = [(row.target != IGNORED).sum() if kind == "tagging" else 1 for row in rows]
    together = learn(ours, examples.inputs(torch.arange(4), 14), None, "sum")
    expected = sum(count * one.loss.item() for count, one in zip(counts, alone, strict=True))
    assert together.loss.item() == pytest.approx(expected, rel=1e-5)
    assert together.tallies.item() == pytest.approx(expected, rel=1e-5)


def test_depths():
    ours = network("tagging", 20)
    depths = {name: depth_of(name, SHAPE.layers) for name, _ in ours.named_parameters()}
    assert {depth for name, depth in depths.items() if "embeddings" in name or "project" in name} == {0}
    assert {depth for name, depth in depths.items() if "layers.0." in name} == {1}
    assert {depth for name, depth in depths.items() if "layers.1." in name} == {2}
    assert {depth for name, depth in depths.items() if name.startswith("head.")} == {3}
