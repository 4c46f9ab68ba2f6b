"""elektron bench measures a run's own updates and keeps what it finds; elektron plan goes by it."""

import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from elektron.train.schedule import Phase
from elektron.train.speed import Speed, made_up_rows, measure
from elektron.verbs import bench, plan
from elektron.verbs.measured import Measured, cache_file, keep, kept, nearest, settings_of, where
from elektron.verbs.pretrain import configure

SHAPE = (
    "--model.layers 1 --model.width 32 --model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 "
    "--model.positions 32 --prepare.vocab-size 128 --device cpu"
).split()
BRIEFLY = ["--repeats", "2", "--seconds", "0"]
ONE = ["--train.phases", "1000", "16", "4"]
BOTH = [*ONE, "10", "32", "2"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """An empty cache, and no runs lying about."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def say(capsys):
    """What a verb prints, in one line."""

    def run(verb, *arguments: str) -> str:
        verb.main([*SHAPE, *arguments])
        return re.sub(r"\s+", " ", capsys.readouterr().out)

    return run


def test_every_phase_is_measured_kept_and_told(say, tmp_path):
    said = say(bench, *BRIEFLY, *BOTH)
    for name in ("matrix product", "copy", "step", "tok/s", "MFU", "first step", "waits for rows", str(cache_file())):
        assert name in said
    assert "4 rows of 16 2 rows of 32" in said
    assert cache_file() == tmp_path / "cache" / "elektron" / "bench.json"
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"]
    measured = list(kept().values())
    assert [(m.settings["rows"], m.settings["length"]) for m in measured] == [(4, 16), (2, 32)]
    for one in measured:
        assert len(one.step_seconds) == 2
        assert one.tokens_per_second == pytest.approx(64 / one.seconds)
        assert one.mfu == pytest.approx(one.flops_per_token * one.tokens_per_second / one.matrix_peak)
        assert 0 <= one.loader_stall < 1
        assert one.first_step_seconds > 0
        assert one.copy_peak > 0


def test_measuring_again_replaces_and_adds(say):
    first = json.loads(say(bench, *BRIEFLY, *ONE, "--json"))["phases"]
    assert first == list(json.loads(cache_file().read_text()).values())
    again = json.loads(say(bench, *BRIEFLY, *BOTH, "--json"))["phases"]
    assert again == list(json.loads(cache_file().read_text()).values())
    assert [phase["settings"] for phase in again][:1] == [first[0]["settings"]]
    assert again[0]["step_seconds"] != first[0]["step_seconds"]


def remember(*flags: str, **values) -> None:
    """Have the phases measured: one second a step, unless told otherwise."""
    config = configure([*SHAPE, *flags], "", "")
    for phase in config.train.phases:
        measured = Measured(
            device=where(CPU),
            date="2001-02-03",
            settings=settings_of(config, Phase(*phase), 128),
            flops_per_token=1e6,
            matrix_peak=1e12,
            copy_peak=1e9,
            step_seconds=(1.0,),
            tokens_per_second=64.0,
            mfu=0.125,
            memory_bytes=0,
            first_step_seconds=1.0,
            loader_stall=0.0,
        )
        keep([replace(measured, **values)])


def test_a_plan_goes_by_what_was_measured(say):
    remember(*BOTH, step_seconds=(1.0, 3.6, 4.0))
    said = say(plan, *BOTH)
    assert "60.6 minutes at 18 tok/s, measured by elektron bench on 2001-02-03" in said  # 1010 steps of 3.6 seconds


@pytest.mark.parametrize(
    "flags", [BOTH, ["--train.phases", "1000", "16", "8"], [*ONE, "--model.layers", "2"], [*ONE, "--train.recompute"]]
)
def test_a_plan_goes_by_what_is_nearest(say, flags):
    remember(*ONE)
    assert "at 12% of 1 TFLOP/s, measured by elektron bench on 2001-02-03 for 4 x 16 at 1.0 MFLOP" in say(plan, *flags)


def test_near_means_model_and_batch():
    for layers, flops in (("1", 1e6), ("4", 4e6)):
        for rows in ("4", "16"):
            remember("--train.phases", "1", "16", rows, "--model.layers", layers, flops_per_token=flops)

    def found(flops: float, tokens: float) -> tuple[int, int]:
        measured = nearest(where(CPU), flops, tokens)
        assert measured is not None
        return measured.settings["model"]["layers"], measured.settings["rows"]

    assert found(1.5e6, 100) == (1, 4)
    assert found(1.5e6, 200) == (1, 16)
    assert found(9e6, 1) == (4, 4)
    assert found(3e6, 1e9) == (4, 16)
    assert nearest("another machine", 1e6, 64) is None


def test_a_plan_guesses_where_nothing_is_known(say):
    assert "measured" not in (said := say(plan, *ONE))
    assert "at 30% of" in said
    remember(*ONE, device="another machine")
    assert "measured" not in say(plan, *ONE)


FREE = ["--cluster.network-bandwidth", "1e300", "--cluster.node-bandwidth", "1e300", "--cluster.layer-seconds", "0"]
"""Nothing is lost to communication but latencies."""


def test_a_plan_for_many(say):
    remember(*ONE, copy_peak=1e300)
    said = say(plan, *ONE, *FREE, "--gpus", "1", "4", "8", "--price-per-gpu-hour", "3.6")
    cut, grown = said.split("the batch cut among the GPUs")[1].split("a batch for each GPU")
    assert "GPUs 1 4 8 rows a GPU 4 1 0.5 step 1 s 250 ms - all-reduce 0 ms" in cut  # four rows are for four
    assert "speed 64 tok/s 256 tok/s - this run 16.7 minutes 4.2 minutes - GPU hours 0.278 0.278 - cost 1 1 - 10" in cut
    assert "rows a GPU 4 4 4 step 1 s 1 s 1 s" in grown
    assert "speed 64 tok/s 256 tok/s 512 tok/s this run 16.7 minutes 4.2 minutes 2.1 minutes GPU" in grown
    assert "computed from a step measured by elektron bench on 2001-02-03" in grown
    # 12 bytes of 15,457 parameters at 1 GB/s, a failure every 50,000 / 8 hours: the root of 2 * 1.85e-4 * 2.25e7
    assert "every 91 seconds (--watch.checkpoint-every 91): 0.00%, if one of 8 GPUs fails every 260.4 days" in grown
    assert "cost" not in say(plan, *ONE, "--gpus", "1").split("the batch cut")[1]


def test_a_plan_for_many_knows_what_two_batch_sizes_cost(say):
    """A second for 4 rows, one and a half for 8: half a second for none."""
    remember(*ONE, copy_peak=1e300)
    remember("--train.phases", "1000", "16", "8", copy_peak=1e300, step_seconds=(1.5,))
    remember("--train.phases", "1000", "16", "8", "--model.layers", "2", copy_peak=1e300, step_seconds=(9.0,))
    assert "step 625 ms all" in say(plan, *ONE, *FREE, "--gpus", "4")


def test_a_plan_for_many_says_what_it_goes_by(say):
    assert "computed from a guess of 30%" in say(plan, *ONE, "--gpus", "2")
    remember(*ONE)
    assert "computed from the nearest to it that elektron bench measured on 2001-02-03" in say(
        plan, "--train.phases", "1000", "16", "8", "--gpus", "2"
    )


@pytest.mark.parametrize("flags", [["--gpus", "12"], ["--gpus", "0"], ["--gpus", "1", "--price-per-gpu-hour", "-1"]])
def test_plans_without_sense(say, flags):
    with pytest.raises((ValueError, SystemExit)):
        say(plan, *ONE, *flags)


@pytest.mark.parametrize("damaged", ["{", "[]", '{"some device: 0": {"mfu": 1}}'])
@pytest.mark.parametrize("verb", [bench, plan])
def test_a_damaged_cache_is_told_in_words(say, damaged, verb):
    remember(*ONE)
    cache_file().write_text(damaged)
    with pytest.raises(ValueError, match="bench.json.*damaged.*remove it"):
        say(verb, *ONE)


@pytest.mark.parametrize("flags", [["--repeats", "0"], ["--seconds", "-1"]])
def test_flags_without_sense(say, flags):
    with pytest.raises((ValueError, SystemExit)):
        say(bench, *ONE, *flags)


def test_made_up_rows_are_ordinary_text(tmp_path):
    rows = made_up_rows(tmp_path, 1000, 32, 8)
    original = torch.cat([rows.batch(step, 8).original for step in range(400)])
    special = (original == 2) | (original == 3)
    assert (special.sum(1) == 3).all()
    counts = np.bincount(original[~special], minlength=1000)
    assert not counts[:5].any()
    assert len(counts) == 1000
    frequencies = counts / counts.sum()
    expected = np.log1p(1 / np.arange(1, 996)) / np.log(996)
    assert np.abs(frequencies[5:15] - expected[:10]).max() < 0.005
    assert frequencies[505:].sum() == pytest.approx(expected[500:].sum(), abs=0.005)
    assert (rows.batch(3, 8).original == made_up_rows(tmp_path, 1000, 32, 8).batch(3, 8).original).all()


def test_runs_are_as_long_as_wanted_and_every_step_has_its_number(tmp_path):
    rows, calls = made_up_rows(tmp_path, 64, 16, 4), []

    def update(batch, step, learning_rate):
        assert batch.original.shape == (4, 16)
        calls.append(step)

    speed = measure(lambda: update, rows, 4, CPU, 3, 0.0)
    assert speed.steps == 1
    assert calls == [*range(6), 0, *range(3)]
    assert isinstance(speed, Speed)
    assert len(speed.runs) == 3
    assert speed.seconds == sorted(speed.runs)[1]
    assert speed.memory == 0


def test_waiting_for_rows_is_seen(tmp_path, monkeypatch):
    """With a loader that takes as long as ten steps, the device waits most of the time."""
    rows = made_up_rows(tmp_path, 64, 16, 4)
    whole, made = rows.batch, []

    def slow(step: int, size: int):
        made.append(step)
        time.sleep(0.05 * (len(made) > 4))  # four are made beforehand
        return whole(step, size)

    monkeypatch.setattr(rows, "batch", slow)
    assert 0.5 < measure(lambda: lambda *_: time.sleep(0.005), rows, 4, CPU, 1, 0.05).stall < 1


def test_what_cannot_be_kept_is_told_all_the_same(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        bench.main([*SHAPE, *BRIEFLY, *ONE])
    assert "tok/s" in capsys.readouterr().out
