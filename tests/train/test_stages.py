"""Runs of two stages: who learns when, what is handed over, and that a run may stop anywhere."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from elektron.data import tokenizer
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig, Stage
from elektron.objectives.two_stage import TwoStage
from elektron.train import checkpoint
from elektron.train.checkpoint import FOLDER, load, load_newest
from elektron.train.evaluate import evaluate
from elektron.train.loop import TrainConfig, WatchConfig, held_batches, train
from elektron.train.metrics import read
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.schedule import ScheduleConfig
from elektron.train.stages import begins, share_over, stage_at
from elektron.verbs import runs

SHAPE = EncoderConfig(
    layers=1,
    width=32,
    heads=2,
    feedforward_width=64,
    embedding_width=16,
    positions=32,
    dropout=0.1,
    attention_dropout=0.1,
)
OBJECTIVE = ObjectiveConfig(kind="two-stage", generator_width=1.0, sharing="none")
SCHEDULE = ScheduleConfig(learning_rate=1e-3, warmup_steps=2)
WATCH = WatchConfig(log_every=4, evaluate_every=3, evaluate_rows=8, checkpoint_every=1, keep_checkpoints=100)
CONFIG = TrainConfig(phases=((10, 16, 4),))
SWITCH = 5
HALVES = (Stage(0.5, ("generator.",)), Stage(0.5, ("discriminator.",)))


def make_model(data, config: ObjectiveConfig = OBJECTIVE) -> TwoStage:
    model = TwoStage(SHAPE, config, Lexicon(data.tokenizer.specials, data.index.vocab_size))
    initialise(model, 0)
    return model


def run_train(
    run,
    data,
    objective: ObjectiveConfig = OBJECTIVE,
    config: TrainConfig = CONFIG,
    schedule: ScheduleConfig = SCHEDULE,
    optimizer: OptimizerConfig = OptimizerConfig(),
    watch: WatchConfig = WATCH,
) -> TwoStage:
    run.mkdir(exist_ok=True)
    model = make_model(data, objective)
    train(run, model, data, 7, config, schedule, optimizer, watch)
    return model


def saved_at(run, step: int):
    return load(run / FOLDER / f"step-{step:08d}")


def part(tensors: dict[str, torch.Tensor], beginning: str) -> dict[str, torch.Tensor]:
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(beginning)}
    assert found
    return found


def are_equal(ours: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return set(ours) == set(others) and all(torch.equal(ours[name], others[name]) for name in ours)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """A run of ten steps that nobody stops; all its checkpoints are kept."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    run_train(run, data)
    return run


def test_where_stages_begin():
    assert begins(HALVES, 10) == [0, 5, 10]
    assert begins(HALVES, 7) == [0, 4, 7]
    assert begins((Stage(1, ()), Stage(2, ()), Stage(1, ())), 8) == [0, 2, 6, 8]
    assert [stage_at(HALVES, step, 10) for step in (0, 4, 5, 9, 10)] == [0, 0, 1, 1, 1]
    assert [share_over(HALVES, step, 10) for step in (1, 5, 6, 10)] == [0.2, 1.0, 0.2, 1.0]
    assert [share_over((Stage(),), step, 10) for step in (1, 10)] == [0.1, 1.0]


def test_one_learns_while_the_other_stands_still(whole, data):
    """Bit for bit, whatever the weight decay, and without moments that would move it later."""
    before = {name: parameter.detach() for name, parameter in make_model(data).named_parameters()}
    at = {step: saved_at(whole, step) for step in range(1, 11)}
    for step in range(1, 11):
        learner, other = ("generator.", "discriminator.") if step <= SWITCH else ("discriminator.", "generator.")
        moments = at[step].optimizer
        for moment in ("first.", "second."):
            assert not any(tensor.any() for tensor in part(moments, moment + other).values())
            assert any(tensor.any() for tensor in part(moments, moment + learner).values())
    for step in range(1, SWITCH + 1):
        assert are_equal(part(at[step].model, "discriminator."), part(before, "discriminator."))
    for step in range(SWITCH + 1, 11):
        assert are_equal(part(at[step].model, "generator."), part(at[SWITCH].model, "generator."))
    for step in range(1, 10):
        learner = "generator." if step < SWITCH else "discriminator."
        assert not are_equal(part(at[step].model, learner), part(at[step + 1].model, learner))


def test_no_decay_reaches_what_stands_still(tmp_path, data):
    run_train(tmp_path, data, optimizer=OptimizerConfig(weight_decay=10.0))
    first, second = saved_at(tmp_path, SWITCH).model, saved_at(tmp_path, 10).model
    assert are_equal(part(first, "generator."), part(second, "generator."))
    untouched = {name: parameter.detach() for name, parameter in make_model(data).named_parameters()}
    assert are_equal(part(first, "discriminator."), part(untouched, "discriminator."))


@pytest.mark.parametrize("inherits", [True, False])
def test_the_copy_is_made_at_the_switch(tmp_path, data, whole, inherits):
    """One small step after it, the discriminator's encoder is near the generator's, or near what it always was."""
    run = whole
    if not inherits:
        run = tmp_path / "other"
        run_train(run, data, replace(OBJECTIVE, inherits=False))
    before = {name: parameter.detach() for name, parameter in make_model(data).named_parameters()}
    last, now = saved_at(run, SWITCH).model, saved_at(run, SWITCH + 1).model
    rate = SCHEDULE.learning_rate / SCHEDULE.warmup_steps
    encoder, head = "discriminator.encoder.", "discriminator.head."
    for name, tensor in part(now, encoder).items():
        source = last["generator.encoder." + name.removeprefix(encoder)] if inherits else before[name]
        assert (tensor - source).abs().max() <= 1.1 * rate, name
    for name, tensor in part(now, head).items():
        assert (tensor - before[name]).abs().max() <= 1.1 * rate, name
    word = "encoder.embeddings.word.weight"
    assert (last[f"generator.{word}"] - before[f"discriminator.{word}"]).abs().max() > 10 * rate


class Stop(Exception):
    pass


def run_until(run, data, steps: int) -> None:
    """A run that dies just after its checkpoint at `steps` was written."""
    real = checkpoint.save

    def save_and_die(folder, saved, keep):
        real(folder, saved, keep)
        if saved.step == steps:
            raise Stop

    checkpoint.save = save_and_die
    try:
        with pytest.raises(Stop):
            run_train(run, data)
    finally:
        checkpoint.save = real


@pytest.mark.parametrize("stops", [(3,), (SWITCH,), (SWITCH + 1,), (3, SWITCH, 8)])
def test_stopped_and_resumed_is_the_same_run(tmp_path, data, whole, stops):
    """Bit for bit: weights, moments, records; stopped before the switch, at it, after it."""
    for steps in stops:
        run_until(tmp_path, data, steps)
    run_train(tmp_path, data)
    records, others = (
        [{k: v for k, v in record.items() if k != "clock"} for record in read(run)] for run in (whole, tmp_path)
    )
    assert records == others
    for step in range(1, 11):
        ours, theirs = saved_at(tmp_path, step), saved_at(whole, step)
        assert ours.state == theirs.state
        assert are_equal(ours.model, theirs.model)
        assert are_equal(ours.optimizer, theirs.optimizer)


def test_records_tell_of_what_there_is(whole):
    """Nothing of detection in the first stage, also where a record's steps lie on both sides of the switch."""
    trained, held = ({r["step"]: r for r in read(whole) if r["kind"] == kind} for kind in ("train", "held"))
    for record in (trained[4], held[3]):
        assert record["loss"] == record["generator_loss"]
        assert not any(name.startswith("discriminator") or name == "detection_auc" for name in record)
    for record in (trained[8], trained[10], held[6], held[9]):
        assert record["loss"] == pytest.approx(50 * record["discriminator_loss"])
        assert {"generator_loss", "discriminator_recall", "replaced_rate"} <= set(record)
    rates = [trained[step]["learning_rate"] for step in (4, 8, 10)]
    peak = SCHEDULE.learning_rate
    assert rates == pytest.approx([peak * 2 / 3, peak, peak / 3])  # each stage has a warm-up and a decay of its own


def test_a_stage_has_a_period_of_grace(tmp_path, data):
    """What is as it began is in no trouble yet; a tenth of its stage later it is."""
    nothing = ScheduleConfig(learning_rate=1e-12, warmup_steps=0)
    watch = replace(WATCH, evaluate_every=1, checkpoint_every=40)
    run_train(tmp_path, data, config=TrainConfig(phases=((40, 16, 4),)), schedule=nothing, watch=watch)
    told = [record for record in read(tmp_path) if record["kind"] == "health"]
    assert [record["step"] for record in told if "word frequencies" in record["message"]] == [2, 22]


def test_a_run_is_opened_in_the_stage_it_is_in(tmp_path, data):
    config = runs.RunConfig(run=tmp_path, model=SHAPE, objective=OBJECTIVE, train=CONFIG)
    runs.write_config(config)
    tokenizer.save(data.tokenizer, tmp_path / runs.TOKENIZER, SHAPE.positions)
    batches = held_batches(data, 16, 8, 4)
    for stops, stage in ((SWITCH, 0), (10, 1)):
        if stops < 10:
            run_until(tmp_path, data, stops)
        else:
            run_train(tmp_path, data)
        opened = runs.open_model(tmp_path)
        assert (opened.step, opened.model.stage) == (stops, stage)
        assert ("discriminator_loss" in evaluate(opened.model, batches, torch.device("cpu"))) == bool(stage)


def test_a_finished_run_is_left_as_it_is(tmp_path, data):
    run_train(tmp_path, data)
    before = load_newest(tmp_path)
    model = run_train(tmp_path, data)
    assert before is not None
    assert model.stage == 1
    assert are_equal({name: p.detach() for name, p in model.named_parameters()}, before.model)


def test_gradients_of_what_stands_still_are_not_heard():
    """They have no part in the norm that is clipped."""
    norms = []
    for stray in (0.0, 1e3):
        model = nn.ParameterDict({"learns": torch.ones(3), "stands": torch.ones(3)})
        optimizer = Optimizer(model, OptimizerConfig(), scale=lambda name: float(name == "learns"))
        for name, parameter in model.items():
            assert parameter.grad is not None
            parameter.grad += stray if name == "stands" else 0.5
        norms.append(optimizer.update(0.1).norm.item())
        assert model["stands"].tolist() == [1.0] * 3
        assert not any(tensor.any() for name, tensor in optimizer.state().items() if name.endswith("stands"))
        assert (model["learns"] < 1).all()
    assert norms == [pytest.approx(0.75**0.5)] * 2
