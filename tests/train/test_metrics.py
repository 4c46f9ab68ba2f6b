import pytest
import torch

from elektron.train.metrics import SINKS, Clock, Metrics, Sink, Tally, read


def record(step: int, **more):
    return {"kind": "train", "step": step, **more}


def test_records_past_the_checkpoint_are_cut_off(tmp_path):
    shown = []
    log = Metrics(tmp_path, 0, [Sink(shown.append)])
    for step in (1, 2, 3, 4):
        log.write(record(step))
    log.sync()
    log.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')  # a crash in the middle of a line
    again = Metrics(tmp_path, 2, [])
    again.write(record(3, again=True))
    again.close()
    assert read(tmp_path) == [record(1), record(2), record(3, again=True)]
    assert again.last == {"train": record(3, again=True)}
    assert shown == [record(step) for step in (1, 2, 3, 4)]


def test_a_run_from_the_beginning_forgets_what_was_there(tmp_path):
    for _ in range(2):
        log = Metrics(tmp_path, 0, [])
        log.write(record(1))
        log.close()
    assert read(tmp_path) == [record(1)]


def test_what_is_no_number_is_not_written(tmp_path):
    log = Metrics(tmp_path, 0, [])
    with pytest.raises(ValueError, match="JSON"):
        log.write(record(1, loss=float("nan")))


def test_tallies_add_up():
    tally = Tally(("loss", "hits"))
    for value in (1.0, 2.5):
        tally.add(torch.tensor([value, 1.0], dtype=torch.float64))
    assert (tally.read(), tally.steps) == ({"loss": 3.5, "hits": 2.0}, 2)
    resumed = Tally(("loss", "hits"), tally.read(), tally.steps)
    resumed.add(torch.tensor([0.5, 0.0], dtype=torch.float64))
    assert (resumed.read(), resumed.steps) == ({"loss": 4.0, "hits": 2.0}, 3)
    tally.clear()
    assert (tally.read(), tally.steps) == ({}, 0)


def test_the_clock_counts_training_alone(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    clock = Clock(torch.device("cpu"))
    clock.count(100, 2.0)
    now = 1.0
    with clock.stopped():
        now = 50.0
    now = 51.0
    assert clock.lap(1000.0) == {"seconds": 2.0, "tokens_per_second": 50.0, "mfu": 0.1}
    clock.count(10, 2.0)
    now = 52.0
    assert clock.lap(None) == {"seconds": 1.0, "tokens_per_second": 10.0}


def test_tensorboard_reads_the_same_records(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = Metrics(tmp_path, 0, [SINKS["tensorboard"](tmp_path)])
    for step in (1, 2):
        log.write(record(step, loss=1.0 / step, clock={"tokens_per_second": 10.0 * step}))
    log.write({"kind": "health", "step": 2, "message": "words"})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["train/loss", "train/tokens_per_second"]
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 1.0), (2, 0.5)]


def test_weights_and_biases_offline(tmp_path):
    import wandb

    sink = SINKS["wandb"](tmp_path)
    sink.show(record(1, loss=0.5))
    assert wandb.run is not None
    assert wandb.run.summary["train/loss"] == 0.5
    sink.close()
    assert list((tmp_path / "wandb").glob("offline-run-*"))


def test_records_are_lines_of_json(tmp_path):
    log = Metrics(tmp_path, 0, [])
    log.write(record(1, loss=0.1))
    log.close()
    assert read(tmp_path) == [record(1, loss=0.1)]


def test_a_digit_that_has_changed_is_noticed(tmp_path):
    metrics = Metrics(tmp_path, 0, [])
    for step in (1, 2):
        metrics.write(record(step, loss=0.1))
    metrics.close()
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace("0.1", "0.7", 1))
    with pytest.raises(ValueError, match="metrics.jsonl, line 1: damaged"):
        read(tmp_path)
