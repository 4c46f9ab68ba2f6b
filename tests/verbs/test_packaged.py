"""The model that comes with Elektron: there, small, what its card says, and of use without a word said about it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

from elektron.cli import main
from elektron.verbs.judges import PACKAGED, Who, open_judges

transformers.logging.set_verbosity_error()
MOST_BYTES = 8_000_000
FOLDERS = ("discriminator", "generator")


def told(*words: object, text: str = "", where: Path | None = None) -> str:
    command = [sys.executable, "-m", "elektron", *map(str, words)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=where).stdout


def test_it_answers_with_no_training_and_no_flags(tmp_path):
    """Anywhere, about a sentence with errors and the same without."""
    wrong = told("detect", text="She have two cat.\n", where=tmp_path)
    assert "[have " in wrong
    assert told("detect", text="She has two cats.\n", where=tmp_path) == "She has two cats.\n"
    right, worse = told("score", text="She has two cats.\nShe have two cat.\n", where=tmp_path).splitlines()
    assert float(right.split("\t")[0]) > float(worse.split("\t")[0])
    assert not list(tmp_path.iterdir())


def test_it_stays_as_it_is(tmp_path, monkeypatch, capsys):
    before = (PACKAGED / "discriminator" / "calibration.json").read_bytes()
    (tmp_path / "dev.tsv").write_text("She\tc\nhave\ti\ntwo\tc\ncat\ti\n\nShe\tc\nhas\tc\ntwo\tc\ncats\tc\n")
    monkeypatch.setattr(sys, "argv", ["elektron", "calibrate", "--dev", str(tmp_path / "dev.tsv")])
    main()
    assert "not kept" in capsys.readouterr().out
    assert (PACKAGED / "discriminator" / "calibration.json").read_bytes() == before


def test_it_is_small():
    weights = [PACKAGED / folder / "model.safetensors" for folder in FOLDERS]
    assert sum(path.stat().st_size for path in weights) <= MOST_BYTES
    judges = open_judges(Who())
    assert judges.discriminator is not None
    assert 2_000_000 < sum(parameter.numel() for parameter in judges.discriminator.parameters()) < 4_000_000
    assert 7_000 < judges.tokenizer.vocab_size < 9_000
    with safe_open(weights[0], "pt") as file:
        assert all(file.get_tensor(name).dtype == torch.float16 for name in file.keys())  # noqa: SIM118


def test_its_cards_state_the_licence_of_the_text():
    for folder in FOLDERS:
        card = (PACKAGED / folder / "README.md").read_text()
        assert card.startswith("---\nlicense: apache-2.0\n")
        assert "CC BY-SA 3.0" in card
        assert "public domain" in card


def test_it_opens_in_transformers_with_the_same_judgement():
    judges = open_judges(Who(lead=""))
    text = "The boys was playing in a informations."
    (reading,) = judges.reader("detection").read([text])
    tokenizer = transformers.AutoTokenizer.from_pretrained(PACKAGED / "discriminator")
    network = transformers.ElectraForPreTraining.from_pretrained(PACKAGED / "discriminator", dtype=torch.float32)
    with torch.no_grad():
        theirs = network.eval()(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1].numpy()
    assert np.abs(reading.said - theirs).max() < 1e-4
    spoken = transformers.ElectraForMaskedLM.from_pretrained(PACKAGED / "generator", dtype=torch.float32)
    masked = tokenizer("It is [MASK] than it was.", return_tensors="pt")
    with torch.no_grad():
        logits = spoken.eval()(**masked).logits[0]
    best = logits[masked.input_ids[0] == tokenizer.mask_token_id].topk(3).indices[0].tolist()
    assert "more" in tokenizer.convert_ids_to_tokens(best)


AGREEMENT = [
    ("The dogs are in the garden.", "The dogs is in the garden."),
    ("He went to the station yesterday evening.", "He goed to the station yesterday evening."),
    ("I have never seen him before.", "I have never saw him before."),
    ("These books were written by my sister.", "This books were written by my sister."),
    ("She wants to go home with her friends.", "She want to go home with her friends."),
    ("We stayed at home because it was raining.", "We stayed at home because it is rains."),
]


@pytest.mark.parametrize(("right", "wrong"), AGREEMENT)
def test_it_prefers_what_is_right(right, wrong, monkeypatch, capsys, tmp_path):
    (tmp_path / "two.txt").write_text(f"{right}\n{wrong}\n")
    monkeypatch.setattr(sys, "argv", ["elektron", "detect", str(tmp_path / "two.txt"), "--json"])
    main()
    first, second = (json.loads(line)["words"] for line in capsys.readouterr().out.splitlines())
    assert max(word["replaced"] for word in second) > max(word["replaced"] for word in first)
