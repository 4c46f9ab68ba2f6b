"""Every objective as a run: it trains, resumes to the bit, and what comes out opens in transformers."""

from dataclasses import replace

import pytest
import torch
import transformers

from elektron.interop.huggingface import role_of, save
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.choices import as_needed, check
from elektron.objectives.lexicon import lexicon_of
from elektron.objectives.objective import Objective, ObjectiveConfig
from elektron.objectives.table import OBJECTIVES, build
from elektron.train import checkpoint
from elektron.train.checkpoint import load_newest
from elektron.train.loop import TrainConfig, WatchConfig, train
from elektron.train.metrics import read
from elektron.train.optimizer import OptimizerConfig
from elektron.train.schedule import ScheduleConfig

SHAPE = EncoderConfig(
    layers=1,
    width=32,
    heads=2,
    feedforward_width=32,
    embedding_width=16,
    positions=32,
    dropout=0.1,
    attention_dropout=0.1,
)
PLAIN = ObjectiveConfig(generator_width=0.5)
CHOICES = {
    **{kind: as_needed(PLAIN, kind) for kind in OBJECTIVES},
    "gdes": replace(PLAIN, sharing="gdes"),
    "frozen": replace(PLAIN, generator="frozen", sharing="none", first_temperature=2.0),
    "tied": replace(PLAIN, generator="tied"),
    "sentences": replace(PLAIN, sentence_weight=1.0, masking="whole-word"),
    "gdes of a language model": replace(as_needed(PLAIN, "all-tokens-mlm"), sharing="gdes"),
}


class Stop(Exception):
    pass


def make_model(data, config: ObjectiveConfig) -> Objective:
    model = build(SHAPE, check(config), lexicon_of(data.tokenizer, data.train.counts(data.index.vocab_size)))
    initialise(model, 0)
    return model


def run_train(run, data, config: ObjectiveConfig, stop: int = 0) -> Objective:
    """A run of ten steps, or one that dies just after its checkpoint at `stop`."""
    run.mkdir(exist_ok=True)
    real, model = checkpoint.save, make_model(data, config)

    def save_and_die(folder, saved, keep):
        real(folder, saved, keep)
        if saved.step == stop:
            raise Stop

    watch = WatchConfig(log_every=3, evaluate_every=4, evaluate_rows=4, checkpoint_every=2)
    settings = TrainConfig(phases=((10, 16, 4),)), ScheduleConfig(warmup_steps=2), OptimizerConfig(), watch
    checkpoint.save = save_and_die
    try:
        train(run, model, data, 7, *settings)
    except Stop:
        assert stop
    finally:
        checkpoint.save = real
    return model


@pytest.mark.parametrize("name", CHOICES)
def test_stopped_and_resumed_is_the_same_run(name, data, tmp_path):
    run_train(tmp_path / "whole", data, CHOICES[name])
    for stop in (4, 6, 0):
        run_train(tmp_path / "parts", data, CHOICES[name], stop)
    whole, parts = (load_newest(tmp_path / run) for run in ("whole", "parts"))
    assert whole is not None
    assert parts is not None
    assert (whole.step, whole.state) == (parts.step, parts.state)
    for tensors, others in ((whole.model, parts.model), (whole.optimizer, parts.optimizer)):
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[key], others[key]) for key in tensors)
    records, others = (
        [{key: value for key, value in record.items() if key != "clock"} for record in read(tmp_path / run)]
        for run in ("whole", "parts")
    )
    assert records == others


@pytest.mark.parametrize("name", CHOICES)
def test_what_comes_out_opens_in_transformers(name, data, tmp_path):
    model = run_train(tmp_path / "run", data, CHOICES[name]).eval()
    rows = torch.randint(5, data.index.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    segments = (torch.arange(16) > 7).long().repeat(2, 1)
    classes = {"discriminator": transformers.ElectraForPreTraining, "generator": transformers.ElectraForMaskedLM}
    for folder, network in model.networks().items():
        save(network, data.tokenizer, tmp_path / folder, "")
        theirs = classes[role_of(network)].from_pretrained(tmp_path / folder).eval()
        with torch.no_grad():
            expected = network(rows, segments)
            found = theirs(input_ids=rows, token_type_ids=segments).logits
        assert torch.allclose(found, expected, atol=1e-5), folder
    encoder = transformers.AutoModel.from_pretrained(tmp_path / next(iter(model.networks()))).eval()
    with torch.no_grad():
        found = encoder(input_ids=rows, token_type_ids=segments).last_hidden_state
        assert torch.allclose(found, model.encoder(rows, segments), atol=1e-5)
