import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from elektron.train.optimizer import Optimizer, OptimizerConfig
from reference import training


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 2)
        self.norm = nn.LayerNorm(2)
        self.word = nn.Embedding(4, 2)
        self.tied = self.word


def copy_of(model: nn.Module) -> dict[str, list[float]]:
    return {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}


@given(
    st.booleans(),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.lists(st.floats(0, 0.1), min_size=1, max_size=6),
    st.sampled_from([{}, {"dense.weight": 0.5, "dense.bias": 0.5, "norm.bias": 0.25}]),
)
@settings(max_examples=50, deadline=None)
def test_updates_are_google_s(bias_correction, decay, clip, rates, scales):
    torch.manual_seed(len(rates))
    model = Model()
    config = OptimizerConfig(weight_decay=decay, clip_norm=clip, bias_correction=bias_correction)
    optimizer = Optimizer(model, config, scale=lambda name: scales.get(name, 1.0))
    values = copy_of(model)
    moments = {name: [(0.0, 0.0)] * len(value) for name, value in values.items()}
    for step, rate in enumerate(rates, 1):
        optimizer.zero()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad += torch.randn(parameter.shape)
        gradients = {name: p.grad.flatten().tolist() for name, p in model.named_parameters() if p.grad is not None}
        norm, _ = optimizer.update(rate)
        assert norm.item() == pytest.approx(sum(g * g for row in gradients.values() for g in row) ** 0.5, rel=1e-5)
        if clip:
            gradients = dict(zip(gradients, training.clipped(list(gradients.values()), clip), strict=True))
        for name in values:
            is_decayed = name in ("dense.weight", "word.weight")
            for i, gradient in enumerate(gradients[name]):
                values[name][i], *moments[name][i : i + 1] = _step(
                    values[name][i],
                    gradient,
                    moments[name][i],
                    step,
                    rate * scales.get(name, 1.0),
                    decay if is_decayed else 0.0,
                    bias_correction,
                )
    for name, found in copy_of(model).items():
        assert found == pytest.approx(values[name], rel=1e-4, abs=1e-6), name


def _step(value, gradient, moments, step, rate, decay, bias_correction):
    value, first, second = training.adam_step(
        value, gradient, *moments, step=step, rate=rate, decay=decay, bias_correction=bias_correction
    )
    return value, (first, second)


def test_parameters_live_in_one_buffer():
    model = Model()
    before = copy_of(model)
    optimizer = Optimizer(model, OptimizerConfig())
    assert copy_of(model) == before
    assert {name: values.flatten().tolist() for name, values in optimizer.weights().items()} == before
    optimizer.values.zero_()
    assert all((p == 0).all() for p in model.parameters())
    model.dense(torch.ones(3)).sum().backward()
    assert optimizer.gradients.abs().sum() > 0
    optimizer.zero()
    assert not optimizer.gradients.any()


def test_a_model_of_lower_precision_reads_copies():
    """Everything but norms, and again after each update; gradients are float32."""
    model = Model()
    optimizer = Optimizer(model, OptimizerConfig(), torch.bfloat16)
    for _ in range(2):
        weights = optimizer.weights()
        for name, parameter in model.named_parameters():
            assert parameter.dtype == (torch.float32 if "norm" in name else torch.bfloat16)
            assert torch.equal(parameter, weights[name].to(parameter.dtype))
            assert parameter.grad is not None
            assert parameter.grad.dtype == torch.float32
        optimizer.zero()
        model.norm(model.dense(torch.ones(3, dtype=torch.bfloat16)).float()).sum().backward()
        model.word(torch.tensor([1])).float().sum().backward()
        before = optimizer.values.clone()
        optimizer.update(0.1)
        assert not torch.equal(before, optimizer.values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_parameters_begin_where_descriptors_may(dtype):
    """At multiples of 16 bytes (`described` of kernels/gpu.py), however odd the shapes before them."""
    model = Model()
    Optimizer(model, OptimizerConfig(), dtype)
    assert [parameter.data_ptr() % 16 for parameter in model.parameters()] == [0] * 5


def test_state_goes_on_bit_for_bit():
    def run(steps: int, model: Model, optimizer: Optimizer) -> None:
        for _ in range(steps):
            optimizer.zero()
            model.norm(model.dense(torch.ones(3)) + model.word.weight.sum(0)).square().sum().backward()
            optimizer.update(0.01)

    torch.manual_seed(0)
    whole, parts = Model(), Model()
    parts.load_state_dict(whole.state_dict())
    run(6, whole, Optimizer(whole, OptimizerConfig()))
    first = Optimizer(parts, OptimizerConfig())
    run(3, parts, first)
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    second = Optimizer(parts, OptimizerConfig())
    second.load(state, 3)
    run(3, parts, second)
    assert copy_of(whole) == copy_of(parts)
    with pytest.raises(ValueError, match="of another model"):
        second.load({"first.dense.weight": torch.zeros(2, 3)}, 3)
