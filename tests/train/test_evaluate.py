import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from elektron.train.evaluate import area_under_curve
from reference import electra

scored = st.lists(st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 0.1, 3.0]), st.booleans()), min_size=1, max_size=40)


@given(scored)
def test_auc_is_the_share_of_pairs(pairs):
    scores, labels = (list(column) for column in zip(*pairs, strict=True))
    found = area_under_curve(torch.tensor(scores), torch.tensor(labels))
    if len(set(labels)) < 2:
        assert found is None
    else:
        assert found == pytest.approx(electra.area_under_curve(scores, labels))
        assert found == pytest.approx(roc_auc_score(labels, scores))


def test_auc_of_many_scores():
    torch.manual_seed(0)
    scores, labels = torch.randn(50000), torch.rand(50000) < 0.1
    found = area_under_curve(scores + labels * 0.7, labels)
    assert found == pytest.approx(roc_auc_score(labels.numpy(), (scores + labels * 0.7).numpy()), abs=1e-9)
