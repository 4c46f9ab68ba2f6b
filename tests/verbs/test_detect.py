"""`elektron detect`: lines in, words with probabilities out, and nothing of the text lost."""

import html.parser
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

from elektron.cli import main
from elektron.interop.huggingface import load_encoder, save
from elektron.model.task_heads import Tuned
from elektron.score.sentences import score_of
from elektron.score.words import firsts_of, logits_of
from elektron.verbs.judges import Who, open_judges

transformers.logging.set_verbosity_error()

HARD_LINES = (
    b"The old cat sees a dog.\r\n\tthe cafe\xcc\x81 of a bird\r\n\n  \n"
    + "שלום the cat \U0001f469\u200d\U0001f692 and 中文 fish\u2028dog\n".encode()
    + b"not \xff\xfe utf-8 cat\nthe last line has no end "
    + b"and is longer than the model reads at once, the cat and the dog and the bird and the fish " * 4
)


@pytest.fixture
def detect(untaught, monkeypatch, capfdbinary):
    def run(*words: object) -> bytes:
        monkeypatch.setattr(sys, "argv", ["elektron", "detect", *map(str, words), "--model", str(untaught)])
        main()
        return capfdbinary.readouterr().out

    return run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(HARD_LINES)
    return path


def test_words_have_the_probabilities_of_transformers(detect, untaught, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The old cat, unseenish, sees a dog.\n\nthe bird\n")
    records = [json.loads(line) for line in detect(path, "--json").splitlines()]
    assert [record["text"] for record in records] == ["The old cat, unseenish, sees a dog.", "", "the bird"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(untaught / "discriminator")
    network = transformers.ElectraForPreTraining.from_pretrained(untaught / "discriminator").eval()
    for record in records:
        inputs = tokenizer(record["text"], return_tensors="pt", return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            chances = network(**inputs).logits.sigmoid()[0].tolist()
        for word in record["words"]:
            assert record["text"][word["start"] : word["stop"]] == word["text"]
            inside = [c for c, (a, b) in zip(chances, offsets, strict=True) if word["start"] <= a < b <= word["stop"]]
            assert word["replaced"] == pytest.approx(max(inside), abs=1e-5)
    assert [word["text"] for word in records[0]["words"]] == "The old cat , unseenish , sees a dog .".split()


def test_in_half_precision_it_says_about_the_same(detect, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The old cat sees a dog.\nthe queen of the river\n")
    found = {}
    for precision in ("auto", "float32", "bfloat16"):
        records = map(json.loads, detect(path, "--json", "--suggest", 0, "--precision", precision).splitlines())
        found[precision] = np.array([word["replaced"] for record in records for word in record["words"]])
    assert (found["auto"] == found["float32"]).all(), "on a CPU"
    assert 0 < np.abs(found["bfloat16"] - found["float32"]).max() < 0.05


def test_nothing_of_the_text_is_lost(detect, text):
    coloured = detect(text, "--color", "always", "--suggest", 0)
    assert coloured.count(b"\x1b[48;2;") > 5
    assert re.sub(rb"\x1b\[[0-9;]*m", b"", coloured) == HARD_LINES
    assert detect(text, "--color", "never", "--threshold", 1) == HARD_LINES
    lines = [json.loads(line)["text"] for line in detect(text, "--json").splitlines()]
    assert "\n".join(lines).encode("utf-8", "surrogateescape") == HARD_LINES


def test_long_lines_are_read_whole(detect, text):
    last = json.loads(detect(text, "--json").splitlines()[-1])
    assert [word["text"] for word in last["words"]] == re.findall(r"\w+|,", last["text"])


def test_the_generator_suggests(detect, untaught, tmp_path, small_tokenizer):
    path = tmp_path / "text.txt"
    path.write_text("the unseenish cat sees a DOG\n")
    found = json.loads(detect(path, "--json", "--threshold", 0, "--suggest", 4))
    tokenizer = transformers.AutoTokenizer.from_pretrained(untaught / "generator")
    network = transformers.ElectraForMaskedLM.from_pretrained(untaught / "generator").eval()
    for word in found["words"]:
        masked = f"{found['text'][: word['start']]}[MASK]{found['text'][word['stop'] :]}"
        inputs = tokenizer(masked, return_tensors="pt")
        with torch.no_grad():
            logits = network(**inputs).logits[0, inputs.input_ids[0] == tokenizer.mask_token_id][0]
        ranked = [(tokenizer.convert_ids_to_tokens(i), c.item()) for i, c in enumerate(logits.softmax(-1))]
        ranked = [(t, c) for t, c in ranked if t.isalnum() and t != word["text"].lower()]
        expected = sorted(ranked, key=lambda pair: -pair[1])[:4]
        assert [s[0].lower() for s in word["suggestions"]] == [t for t, _ in expected]
        assert [s[1] for s in word["suggestions"]] == pytest.approx([c for _, c in expected], abs=1e-5)
    assert all(s[0].isupper() for s in found["words"][-1]["suggestions"])
    assert all(s[0].islower() for s in found["words"][0]["suggestions"])
    shown = detect(path, "--color", "never", "--threshold", 0, "--suggest", 1).decode()
    assert shown.startswith(
        f"[the {100 * found['words'][0]['replaced']:.0f}%: {found['words'][0]['suggestions'][0][0]}] ["
    )


class Text(html.parser.HTMLParser):
    """The paragraphs of a page, and the titles in them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag == "p":
            self.lines.append("")
        if tag == "span":
            self.titles.append(dict(attrs)["title"] or "")

    def handle_data(self, data):
        if self.lines and data != "\n":
            self.lines[-1] += data


def test_a_page(detect, tmp_path):
    path, page = tmp_path / "text.txt", tmp_path / "page.html"
    lines = ["the <b>old</b> cat & a dog", "", '"quoted" bird\tfish']
    path.write_text("\n".join(lines))
    assert detect(path, "--html", page) == b""
    found = Text()
    found.feed(page.read_text())
    assert found.lines == lines
    assert len(found.titles) == 18
    assert any(re.fullmatch(r"\d+%: \w+, \w+, \w+", title) for title in found.titles)


def test_records_keep_what_else_they_have(detect, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"id": 7, "text": "the cat"}\n{"text": "a dog", "more": [1]}\n')
    first, second = (json.loads(line) for line in detect(path, "--json").splitlines())
    assert (first["id"], first["text"], len(first["words"])) == (7, "the cat", 2)
    assert second["more"] == [1]


@pytest.mark.parametrize(
    ("content", "words", "sentence"),
    [
        ('{"text": "a"}\nnonsense\n', [], "records.jsonl, line 2: not JSON"),
        ('{"body": "a"}\n', [], "records.jsonl, line 1: no text 'text' (there is: body)"),
        ('{"text": 3}\n', [], "no text 'text'"),
        ('{"text": "a"}\n', ["--threshold", "2"], "--threshold is a probability"),
        ('{"text": "a"}\n', ["--generator", "nowhere"], "nowhere"),
        ('{"text": "a"}\n', ["--html", "nowhere/page.html"], "cannot write nowhere/page.html"),
    ],
)
def test_what_cannot_be_read(content, words, sentence, untaught, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(content)
    command = [sys.executable, "-m", "elektron", "detect", str(path), "--model", str(untaught), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_of_nothing_is_not_begun(detect, tmp_path, capfdbinary):
    """It is the text that is missing, and no page is left half done."""
    with pytest.raises(SystemExit):
        detect(tmp_path / "missing.txt", "--html", tmp_path / "page.html")
    assert f"{tmp_path / 'missing.txt'}: No such file".encode() in capfdbinary.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_from_standard_input(untaught):
    command = [
        sys.executable,
        "-m",
        "elektron",
        "detect",
        "--model",
        str(untaught / "discriminator"),
        "--threshold",
        "1",
    ]
    done = subprocess.run(command, input=HARD_LINES, capture_output=True)
    assert done.stdout == HARD_LINES
    assert re.fullmatch(rb"0 of \d+ words look replaced \(1 or more\)\n", done.stderr)


def test_only_discriminators_detect(data_folder, tmp_path, monkeypatch, capsys):
    micro = [
        *("--preset", "tiny", "--start", "original", "--model.width", 16, "--model.heads", 2, "--model.layers", 1),
        *("--model.feedforward-width", 32, "--model.embedding-width", 16, "--watch.evaluate-rows", 8),
        *("--objective.generator-width", 1.0, "--objective.generator-layers", 1.0, "--train.phases", 10, 16, 4),
    ]
    for kind, generator, sentence in (
        ("mlm", "masked", "has no discriminator, only a masked LM"),
        ("electric", "two-tower", "tells how likely words are"),
    ):
        run = ["pretrain", *micro, "--data", data_folder, "--run", tmp_path / kind, "--objective.kind", kind]
        run += ["--objective.generator", generator]
        for arguments in (run, ["detect", "--model", tmp_path / kind]):
            monkeypatch.setattr(sys, "argv", ["elektron", *map(str, arguments)])
            with pytest.raises(SystemExit) as caught:
                main()
        assert caught.value.code == 2
        assert sentence in capsys.readouterr().err


@pytest.fixture
def tagger(untaught, small_tokenizer, tmp_path):
    """An encoder with tags for correct and incorrect words, which have opinions."""
    network = Tuned(load_encoder(untaught / "discriminator"), "tagging", "transformers", ("c", "i"))
    noise = torch.Generator().manual_seed(0)
    for parameter in network.head.parameters():
        torch.nn.init.normal_(parameter, 0, 1, noise)
    save(network, small_tokenizer, tmp_path / "tagger", "")
    return tmp_path / "tagger"


def test_a_fine_tuned_network_is_asked_about_the_first_token_of_words(tagger, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("The old cat, unseenish, sees a dog.\nqueenly mountains\n")
    monkeypatch.setattr(
        sys, "argv", ["elektron", "detect", str(tmp_path / "text.txt"), "--model", str(tagger), "--json"]
    )
    main()
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tagger)
    network = transformers.ElectraForTokenClassification.from_pretrained(tagger).eval()
    assert network.config.id2label == {0: "c", 1: "i"}
    several = 0
    for record in records:
        inputs = tokenizer(record["text"], return_tensors="pt", return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            chances = network(**inputs).logits.softmax(-1)[0, :, 1].tolist()
        for word in record["words"]:
            inside = [c for c, (a, b) in zip(chances, offsets, strict=True) if word["start"] <= a < b <= word["stop"]]
            assert word["replaced"] == pytest.approx(inside[0], abs=1e-5)
            several += inside[0] < max(inside) - 0.01
    assert several, "words of which another token says more"


def test_a_network_that_gives_other_tags(tagger, tmp_path, monkeypatch, capsys):
    config = json.loads((tagger / "config.json").read_text())
    (tagger / "config.json").write_text(json.dumps(config | {"id2label": {0: "NOUN", 1: "VERB"}}))
    (tagger / "manifest.json").unlink()
    monkeypatch.setattr(sys, "argv", ["elektron", "detect", "--model", str(tagger)])
    with pytest.raises(SystemExit):
        main()
    assert "other tags than c and i (incorrect): NOUN, VERB" in capsys.readouterr().err


def test_words_of_a_file_have_one_token_that_speaks_for_them(tagger):
    """As `finetune` counts them: the first, also where the tokenizer sees several words."""
    judges = open_judges(Who(model=str(tagger)))
    (reading,) = judges.reader("detection").read(["the king's queenly"])
    spans = [(0, 3), (4, 10), (11, 18)]
    firsts = [int(np.flatnonzero(reading.pieces.offsets[:, 0] >= start)[0]) for start, _ in spans]
    assert len(reading.said) > len(firsts)
    assert logits_of(reading, spans).tolist() == reading.said[firsts].tolist()
    whole, pieces = score_of(reading, "detection", "sum"), reading.said[firsts_of(reading)]
    assert whole == pytest.approx(-np.logaddexp(0, pieces.astype(np.float64)).sum())
    assert whole > score_of(reading._replace(of_firsts=False), "detection", "sum")
    worst = logits_of(reading._replace(of_firsts=False), spans)
    assert (worst >= reading.said[firsts]).all()
    assert (worst > reading.said[firsts]).any()
