import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch

from conftest import documents
from elektron.data.batches import Batch
from elektron.data.corpus import Piece
from elektron.data.prepare import ShardsConfig, write_shards
from elektron.data.shards import open_data
from elektron.kernels.counters import row_keys
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.tasks.metrics import area_under_curve
from elektron.train import checkpoint, loop
from elektron.train.checkpoint import all_steps, load_newest
from elektron.train.loop import TrainConfig, WatchConfig, held_batches, train
from elektron.train.metrics import read
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.schedule import ScheduleConfig
from elektron.train.step import Updates, update

SHAPE = EncoderConfig(
    layers=1,
    width=32,
    heads=2,
    feedforward_width=64,
    embedding_width=16,
    positions=40,
    dropout=0.1,
    attention_dropout=0.1,
)
SCHEDULE = ScheduleConfig(learning_rate=1e-3, warmup_steps=2)
WATCH = WatchConfig(log_every=3, evaluate_every=4, evaluate_rows=8, checkpoint_every=5)


def make_model(
    data, shape: EncoderConfig = SHAPE, config: ObjectiveConfig = ObjectiveConfig(generator_width=0.5)
) -> Electra:
    model = Electra(shape, config, Lexicon(data.tokenizer.specials, data.index.vocab_size))
    initialise(model, 0)
    return model


def run_train(run, data, config: TrainConfig, watch: WatchConfig = WATCH, model: Electra | None = None) -> int:
    run.mkdir(exist_ok=True)
    return train(run, model or make_model(data), data, 7, config, SCHEDULE, OptimizerConfig(), watch)


def outcome(run):
    """Everything a run leaves behind that its config decides."""
    saved = load_newest(run)
    assert saved is not None
    records = [{k: v for k, v in record.items() if k != "clock"} for record in read(run)]
    return saved, records


def assert_same(first, second):
    (a, records), (b, other_records) = outcome(first), outcome(second)
    assert records == other_records
    assert (a.step, a.state) == (b.step, b.state)
    for tensors, others in ((a.model, b.model), (a.optimizer, b.optimizer)):
        assert set(tensors) == set(others)
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_few_rows_are_learned_by_heart(data, kind):
    """On four rows, the discriminator soon tells a hot generator's samples from what stood there."""
    shape = replace(SHAPE, width=128, embedding_width=128, feedforward_width=256, dropout=0.0, attention_dropout=0.0)
    model = make_model(data, shape, ObjectiveConfig(generator_width=0.5, temperature=2.0))
    optimizer = Optimizer(model, OptimizerConfig(kind=kind))
    (batch,) = held_batches(data, 24, 4, 4)
    for step in range(250):
        update(model, optimizer, 0, 1, batch, torch.tensor(step, dtype=torch.int32), 1e-3 * min(1, (step + 1) / 40))
    model.eval()
    with torch.no_grad():
        outcomes = [model(batch.original, batch.segments, row_keys(seed, 0, batch.rows)) for seed in range(1, 9)]
    scores, labels = (torch.cat([getattr(o, name).flatten() for o in outcomes]) for name in ("scores", "replaced"))
    auc = area_under_curve(scores, labels)
    assert auc is not None
    assert auc > 0.95


@pytest.mark.parametrize("watch", [WATCH, replace(WATCH, checkpoint_every=4, log_every=5)])
def test_stopped_and_resumed_is_the_same_run(tmp_path, data, watch):
    """Bit for bit: weights, moments, records; also where a record's steps lie on both sides of the stop."""
    config = TrainConfig(phases=((11, 16, 4),))
    run_train(tmp_path / "whole", data, config, watch)
    for steps in (watch.checkpoint_every, 2 * watch.checkpoint_every, 11):
        _run_until(tmp_path / "parts", data, config, watch, steps)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_short_steps_are_part_of_the_run(tmp_path, data):
    """Rows of half, a quarter and an eighth come in turn, as many tokens in each batch; stopped and resumed, too."""
    config = TrainConfig(phases=((11, 40, 2),), short=0.5)
    shapes = []
    real = loop.prefetched

    def watched(make, *steps):
        for batch in real(make, *steps):
            shapes.append(tuple(batch[0].shape))
            yield batch

    loop.prefetched = watched
    try:
        run_train(tmp_path / "whole", data, config)
    finally:
        loop.prefetched = real
    full = (2, 40)
    assert shapes == [full, (4, 20), full, (8, 10), full, (16, 5), full, (4, 20), full, (8, 10), full]
    for steps in (5, 10, 11):
        _run_until(tmp_path / "parts", data, config, WATCH, steps)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    facts = read(tmp_path / "whole")[0]
    assert facts["tokens"] == 11 * 80
    model = make_model(data)
    assert facts["flops"] == 80 * sum(model.flops_per_token(length) for _, length in shapes)


class Stop(Exception):
    pass


def _run_until(run, data, config, watch, steps):
    """A run that dies just after its checkpoint at `steps` was written."""
    real = checkpoint.save

    def save_and_die(folder, saved, keep):
        real(folder, saved, keep)
        if saved.step == steps:
            raise Stop

    checkpoint.save = save_and_die
    try:
        with pytest.raises(Stop):
            run_train(run, data, config, watch)
    finally:
        checkpoint.save = real


def test_accumulation_changes_nothing_but_rounding(tmp_path, data):
    run_train(tmp_path / "one", data, TrainConfig(phases=((4, 16, 8),)))
    run_train(tmp_path / "four", data, TrainConfig(phases=((4, 16, 8),), accumulate=4))
    run_train(tmp_path / "again", data, TrainConfig(phases=((4, 16, 8),), accumulate=4, recompute=True))
    one, four, again = (outcome(tmp_path / name)[0].model for name in ("one", "four", "again"))
    for name in one:
        assert torch.allclose(one[name], four[name], atol=2e-5), name
        assert torch.equal(four[name], again[name]), name


def test_phases_are_one_run(tmp_path, data):
    run_train(
        tmp_path, data, TrainConfig(phases=((4, 16, 4), (3, 32, 2))), replace(WATCH, log_every=1, evaluate_every=1)
    )
    records = [record for record in read(tmp_path) if record["kind"] == "train"]
    assert [record["step"] for record in records] == list(range(1, 8))
    assert outcome(tmp_path)[0].step == 7
    facts = read(tmp_path)[0]
    assert (facts["kind"], facts["steps"], facts["tokens"]) == ("run", 7, 4 * 16 * 4 + 3 * 32 * 2)


def test_a_finished_run_is_left_as_it_is(tmp_path, data):
    config = TrainConfig(phases=((5, 16, 4),))
    run_train(tmp_path, data, config)
    before = outcome(tmp_path)
    assert run_train(tmp_path, data, config) == 0
    assert outcome(tmp_path)[1] == before[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_with_a_checkpoint(tmp_path, data, number):
    def send():
        while not (tmp_path / "metrics.jsonl").exists() or len(read(tmp_path)) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=send, daemon=True).start()
    config = TrainConfig(phases=((100_000, 16, 4),))
    assert run_train(tmp_path, data, config, replace(WATCH, checkpoint_every=100_000)) == 128 + number
    assert signal.getsignal(number) == before
    (step,) = all_steps(tmp_path)
    assert 0 < step < 100_000


def test_what_is_not_finite_stops_the_run_and_spares_the_checkpoint(tmp_path, data, monkeypatch):
    model = make_model(data)
    config = TrainConfig(phases=((40, 16, 4),))
    real, calls = Updates.__call__, 0

    def poisoned(*arguments):
        nonlocal calls
        calls += 1
        if calls == 7:
            with torch.no_grad():
                model.discriminator.head.score.bias.fill_(torch.nan)
        return real(*arguments)

    monkeypatch.setattr(Updates, "__call__", poisoned)
    with pytest.raises(ValueError, match=r"not finite at step 8 .*learning-rate"):
        run_train(tmp_path, data, config, model=model)
    saved, records = outcome(tmp_path)
    assert saved.step == 5
    assert all(torch.isfinite(tensor).all() for tensor in saved.model.values())
    assert records[-1]["kind"] == "health"
    assert "not finite" in records[-1]["message"]


def test_evaluation_is_the_same_every_time(tmp_path, data):
    """Same rows, masks and noise: at a learning rate of nearly nothing, nothing changes."""
    run = tmp_path
    run.mkdir(exist_ok=True)
    schedule = ScheduleConfig(learning_rate=1e-30, warmup_steps=0)
    train(
        run,
        make_model(data),
        data,
        7,
        TrainConfig(phases=((4, 16, 4),)),
        schedule,
        OptimizerConfig(),
        replace(WATCH, evaluate_every=2),
    )
    first, second = ({k: v for k, v in r.items() if k != "step"} for r in read(run) if r["kind"] == "held")
    assert first == pytest.approx(second)


def test_held_batches_do_not_depend_on_their_size(data):
    whole, parts = held_batches(data, 16, 10, 10), held_batches(data, 16, 10, 3)
    assert [len(batch.rows) for batch in parts] == [3, 3, 3, 1]
    for name in Batch._fields:
        assert torch.equal(getattr(whole[0], name), torch.cat([getattr(batch, name) for batch in parts]))
    everything = held_batches(data, 16, 10**9, 64)
    assert sum(len(batch.rows) for batch in everything) == -(-data.held.tokens // 13)


def test_a_corpus_smaller_than_a_batch_is_refused(tmp_path, data):
    with pytest.raises(ValueError, match=r"smaller than one batch: .* rows of 16, a batch has 100000"):
        run_train(tmp_path, data, TrainConfig(phases=((4, 16, 100_000),)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"phases": ()}, "empty"),
        ({"phases": ((0, 16, 4),)}, "at least 1"),
        ({"phases": ((1, 20, 4),), "short": 0.1}, "cuts rows into 8 parts, which 20 tokens are not"),
        ({"phases": ((1, 16, 4),), "short": 1.0}, "a share of the steps"),
        ({"phases": ((1, 16, 4),), "accumulate": 3}, "does not divide a batch of 4 rows"),
    ],
)
def test_impossible_training_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**config)


def test_the_data_order_depends_on_the_seed(data, tmp_path):
    losses = []
    for seed in (1, 2):
        run = tmp_path / str(seed)
        run.mkdir()
        train(run, make_model(data), data, seed, TrainConfig(phases=((3, 16, 4),)), SCHEDULE, OptimizerConfig(), WATCH)
        losses.append(read(run)[1]["loss"])
    assert losses[0] != losses[1]


def test_trouble_is_told_once_its_time_has_come(tmp_path, data):
    """A run that is stuck from the beginning says so at the end of its period of grace, and only then."""
    model = make_model(data, replace(SHAPE, dropout=0.0, attention_dropout=0.0))
    run = tmp_path / "stuck"
    run.mkdir()
    nothing = ScheduleConfig(learning_rate=1e-12, warmup_steps=0)
    watch = replace(WATCH, evaluate_every=1)
    train(run, model, data, 0, TrainConfig(phases=((40, 16, 4),)), nothing, OptimizerConfig(), watch)
    told = [record for record in read(run) if record["kind"] == "health" and "word frequencies" in record["message"]]
    assert [record["step"] for record in told] == [4]


def test_a_run_goes_on_with_the_data_it_began_with(tmp_path, data, small_tokenizer):
    run_train(tmp_path / "run", data, TrainConfig(phases=((5, 16, 4),)))
    write_shards([Piece(text, True) for text in documents(90, 1)], small_tokenizer, tmp_path, ShardsConfig(processes=1))
    with pytest.raises(ValueError, match="the data has changed since step 5"):
        run_train(tmp_path / "run", open_data(tmp_path), TrainConfig(phases=((10, 16, 4),)))
