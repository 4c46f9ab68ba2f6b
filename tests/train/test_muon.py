"""Muon against slow references: singular value decompositions in float64, one parameter after the other."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elektron.data.tokenizer import Specials
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.train import checkpoint, optimizer
from elektron.train.checkpoint import load_newest
from elektron.train.distributed import ALONE
from elektron.train.metrics import read
from elektron.train.muon import matrices_of_layers, orthogonalised
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.sharded import ShardedOptimizer
from train.ranks import PLAIN, WATCH, run, run_ranks

SHAPE = EncoderConfig(layers=2, width=12, heads=2, feedforward_width=20, embedding_width=8, positions=9)
"""Whose matrices fill no block of the buffer."""
MUON = OptimizerConfig(kind="muon")
MATRIX = re.compile(r".*\.layers\.\d+\.(qkv|out|up|down)\.weight")
SIZES = st.integers(1, 24)


def make(shape: EncoderConfig = SHAPE) -> Electra:
    model = Electra(shape, ObjectiveConfig(generator_width=0.5), Lexicon(Specials(0, 1, 2, 3, 4), 30))
    initialise(model, 0)
    return model


def spread_out(count: int, rows: int, columns: int) -> Tensor:
    """Matrices with singular values between 0.1 and 1."""
    left, _, right = torch.linalg.svd(torch.randn(count, rows, columns, dtype=torch.float64), full_matrices=False)
    return left * torch.empty(count, 1, min(rows, columns), dtype=torch.float64).uniform_(0.1, 1) @ right


def directions(matrix: Tensor) -> Tensor:
    """What five steps make of a matrix: of its singular values, each for itself."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / (values.square().sum().sqrt() + 1e-7)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


@given(st.integers(1, 3), SIZES, SIZES, st.sampled_from([1e-4, 1.0, 1e4]))
@settings(max_examples=60, deadline=None)
def test_singular_values_come_to_about_1(count, rows, columns, size):
    torch.manual_seed(rows * 25 + columns)
    matrices = size * spread_out(count, rows, columns)
    found = orthogonalised(matrices.float())
    assert (found.shape, found.dtype) == (matrices.shape, torch.float32)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    turned = left.mT @ found.double() @ right.mT
    values = turned.diagonal(dim1=1, dim2=2)
    assert ((values > 0.6) & (values < 1.3)).all()
    torch.testing.assert_close(turned, torch.diag_embed(values), rtol=0, atol=1e-3)
    torch.testing.assert_close(left @ turned @ right, found.double(), rtol=0, atol=1e-3)


@given(SIZES, SIZES, st.floats(0.1, 5))
@settings(max_examples=30, deadline=None)
def test_the_steps_are_jordan_s(rows, columns, size):
    torch.manual_seed(rows * 25 + columns)
    matrices = torch.randn(3, rows, columns, dtype=torch.float64) * torch.tensor([1e-5, 1.0, 1e5])[:, None, None]
    expected = size * torch.stack([directions(m) for m in matrices])
    torch.testing.assert_close(orthogonalised(matrices, size), expected, rtol=1e-8, atol=1e-8)


def test_half_precision_does():
    matrices = spread_out(3, 48, 16)
    found = orthogonalised(matrices.bfloat16())
    assert found.dtype == torch.bfloat16
    expected = torch.stack([directions(m) for m in matrices])
    assert (found.double() - expected).norm() < 0.05 * expected.norm()


def test_zeros_have_no_direction():
    assert not orthogonalised(torch.zeros(2, 4, 3)).any()


def test_the_matrices_of_all_layers_are_meant():
    model = make()
    counts = matrices_of_layers(model)
    assert set(counts) == {name for name, _ in model.named_parameters() if MATRIX.fullmatch(name)}
    assert {name.split(".")[0] for name in counts} == {"generator", "discriminator"}
    assert len(counts) == 2 * 4 * SHAPE.layers
    assert all(count == (3 if "qkv" in name else 1) for name, count in counts.items())


class Reference:
    """The update, one parameter after the other, in float64."""

    def __init__(self, model: Electra, config: OptimizerConfig, scales: dict[str, float]) -> None:
        self.config, self.scales, self.updates = config, scales, 0
        self.values = {name: p.detach().double().clone() for name, p in model.named_parameters()}
        self.first = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.second = {name: torch.zeros_like(value) for name, value in self.values.items()}

    def scale(self, name: str) -> float:
        return next((scale for beginning, scale in self.scales.items() if name.startswith(beginning)), 1.0)

    def update(self, gradients: dict[str, Tensor], rate: float) -> None:
        self.updates += 1
        moving = {name: gradient.double() for name, gradient in gradients.items() if self.scale(name)}
        norm = sum(float(gradient.square().sum()) for gradient in moving.values()) ** 0.5
        clipping = min(1.0, self.config.clip_norm / norm) if self.config.clip_norm else 1.0
        for name, gradient in moving.items():
            self._step(name, gradient * clipping, rate * self.scale(name))

    def _step(self, name: str, gradient: Tensor, rate: float) -> None:
        config, t = self.config, self.updates
        first = self.first[name] = config.beta1 * self.first[name] + (1 - config.beta1) * gradient
        second = self.second[name] = config.beta2 * self.second[name] + (1 - config.beta2) * gradient**2
        if MATRIX.fullmatch(name):
            momentum = config.beta1 * first + (1 - config.beta1) * gradient
            parts = momentum.chunk(3 if "qkv" in name else 1)
            change = torch.cat([0.2 * max(part.shape) ** 0.5 * directions(part) for part in parts])
        else:
            corrected = (second / (1 - config.beta2**t)).sqrt() + config.epsilon
            change = first / (1 - config.beta1**t) / corrected
        if not (name.endswith("bias") or "norm" in name):
            change = change + config.weight_decay * self.values[name]
        self.values[name] = self.values[name] - rate * change


def add_gradients(model: Electra, size: float) -> dict[str, Tensor]:
    """Random ones; what they are."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad += size * torch.randn(parameter.shape)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(params=["torch", "kernel"])
def rate_of(request, monkeypatch):
    """Makes of a learning rate what has the update go by torch, or by our kernel."""
    if request.param == "torch":
        return float
    if torch.cuda.is_available():
        pytest.skip("tensors of the host are for Triton's interpreter; on a GPU, test_step.py replays Muon")
    monkeypatch.setattr(optimizer, "runs_on", lambda tensor: True)
    return torch.tensor


@pytest.mark.parametrize(("decay", "clip"), [(0.0, 0.0), (0.3, 1.0)])
@pytest.mark.parametrize("scales", [{}, {"generator.encoder.layers.0": 0.5, "discriminator.head": 0.25}])
def test_updates_are_the_reference_s(rate_of, decay, clip, scales):
    torch.manual_seed(0)
    model, config = make(), replace(MUON, weight_decay=decay, clip_norm=clip)
    reference = Reference(model, config, scales)
    ours = Optimizer(model, config, scale=reference.scale)
    for rate, size in ((0.02, 1.0), (0.03, 50.0), (0.01, 0.002), (0.02, 0.1), (0.02, 1e-4)):
        ours.zero()
        reference.update(add_gradients(model, size), rate)
        ours.update(rate_of(rate))
        for name, found in ours.weights().items():
            torch.testing.assert_close(found.double(), reference.values[name], rtol=0, atol=3e-5, msg=name)
    for name, found in ours.state().items():
        expected = (reference.first if name.startswith("first.") else reference.second)[name.split(".", 1)[1]]
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-7, msg=name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("rate_of", [float, lambda rate: torch.tensor(rate, device="cuda")], ids=["torch", "kernel"])
def test_in_half_precision_a_gpu_goes_nearly_the_same_way(rate_of):
    torch.manual_seed(0)
    model, config = make(), replace(MUON, weight_decay=0.3)
    reference = Reference(model, config, {})
    before = dict(reference.values)
    ours = Optimizer(model.cuda(), config, torch.bfloat16)
    for size in (1.0, 50.0, 0.002):
        ours.zero()
        gradients = {}
        for name, parameter in model.named_parameters():
            gradients[name] = size * torch.randn(parameter.shape)
            assert parameter.grad is not None
            parameter.grad += gradients[name].cuda()
        reference.update(gradients, 0.02)
        ours.update(rate_of(0.02))
    for name, found in ours.weights().items():
        way = reference.values[name] - before[name]
        assert (found.cpu().double() - reference.values[name]).norm() < 0.05 * way.norm(), name


def test_copies_are_written_again(rate_of):
    model = make()
    ours = Optimizer(model, MUON, torch.float16)
    for _ in range(2):
        ours.zero()
        add_gradients(model, 1.0)
        ours.update(rate_of(0.1))
        weights = ours.weights()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, weights[name].to(parameter.dtype)), name


def test_what_stands_still_stands_still(rate_of):
    model = make()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ours = Optimizer(model, MUON, scale=lambda name: float(not name.startswith("generator.")))
    for _ in range(2):
        ours.zero()
        add_gradients(model, 1.0)
        ours.update(rate_of(0.1))
    for name, found in ours.weights().items():
        assert torch.equal(found, before[name]) == name.startswith("generator."), name
    assert not any(moment.any() for name, moment in ours.state().items() if ".generator." in name)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_skipped_step_changes_nothing(rate_of, bad):
    """And the next one is what it would have been."""
    found = []
    for is_poisoned in (False, True):
        torch.manual_seed(0)
        model = make()
        ours = Optimizer(model, replace(MUON, not_finite="skip"), torch.float16)
        for is_bad in (False, True, False) if is_poisoned else (False, False):
            before = [tensor.clone() for tensor in (ours.values, ours._copies, *ours._moments.values())]
            ours.zero()
            if is_bad:
                ours.gradients.fill_(bad)
            else:
                add_gradients(model, 1.0)
            _, is_skipped = ours.update(rate_of(0.1))
            assert is_skipped is not None
            assert bool(is_skipped) == is_bad
            after = (ours.values, ours._copies, *ours._moments.values())
            assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [is_bad] * 4
        found.append(ours.values)
    assert torch.equal(*found)


def test_shards_are_refused():
    with pytest.raises(ValueError, match=r"muon needs whole matrices.*leave --train.shard at 1"):
        ShardedOptimizer(make(), MUON, lambda name: 1.0, ALONE)


class Stop(Exception):
    pass


FEW = replace(PLAIN, phases=((9, 24, 12),))
SOON = replace(WATCH, log_every=3, evaluate_every=9, checkpoint_every=4)


def outcome(folder):
    saved = load_newest(folder)
    assert saved is not None
    return saved, [{k: v for k, v in record.items() if k != "clock"} for record in read(folder)]


def test_stopped_and_resumed_is_the_same_run(tmp_path, data_folder, monkeypatch):
    """Bit for bit: weights, moments, records. And it is not AdamW's run."""
    real = checkpoint.save

    def save_and_die(folder, saved, keep):
        real(folder, saved, keep)
        if saved.step == 4:
            raise Stop

    for name, config in (("whole", MUON), ("adamw", OptimizerConfig())):
        assert run(ALONE, tmp_path / name, data_folder, FEW, SOON, optimizer=config) == 0
    monkeypatch.setattr(checkpoint, "save", save_and_die)
    with pytest.raises(Stop):
        run(ALONE, tmp_path / "parts", data_folder, FEW, SOON, optimizer=MUON)
    monkeypatch.undo()
    assert run(ALONE, tmp_path / "parts", data_folder, FEW, SOON, optimizer=MUON) == 0
    (whole, records), (parts, others) = outcome(tmp_path / "whole"), outcome(tmp_path / "parts")
    assert records == others
    assert whole.state == parts.state
    for tensors, found in ((whole.model, parts.model), (whole.optimizer, parts.optimizer)):
        assert all(torch.equal(tensor, found[name]) for name, tensor in tensors.items())
    adamw, _ = outcome(tmp_path / "adamw")
    assert set(adamw.optimizer) == set(whole.optimizer)
    assert not any(torch.equal(whole.model[name], adamw.model[name]) for name in adamw.model if MATRIX.fullmatch(name))


@pytest.mark.distributed
def test_two_ranks_follow_the_curve_of_one(tmp_path, data_folder):
    assert run(ALONE, tmp_path / "one", data_folder, FEW, SOON, optimizer=MUON) == 0
    assert run_ranks(2, run, tmp_path / "two", data_folder, FEW, SOON, "cpu", MUON) == [0, 0]
    one, two = (outcome(tmp_path / name)[1] for name in ("one", "two"))
    one, two = ([record["loss"] for record in records if record["kind"] == "train"] for records in (one, two))
    assert len(one) == 3
    assert one == pytest.approx(two, rel=1e-4)
