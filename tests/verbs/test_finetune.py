"""elektron finetune, as its user has it: files in, a table out, and folders that open in transformers."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from conftest import ADJECTIVES, NOUNS, VERBS
from elektron.cli import main
from elektron.data.tokenizer import Tokenizer
from elektron.interop.huggingface import save
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator
from elektron.model.initial import initialise
from elektron.model.weights import fingerprint
from elektron.tasks import squad
from elektron.verbs.runs import open_encoder

SHAPE = EncoderConfig(layers=2, width=32, heads=2, feedforward_width=64, embedding_width=32, positions=128)
QUICK = ["--recipe.learning-rate", "3e-3", "--recipe.layer-decay", "1", "--recipe.epochs", "6", "--recipe.batch", "8"]
QUICK += ["--device", "cpu"]


@pytest.fixture(scope="module")
def model(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A discriminator that has learned nothing yet."""
    network = Discriminator(SHAPE, Embeddings(small_tokenizer.vocab_size, SHAPE))
    initialise(network, 0)
    folder = tmp_path_factory.mktemp("models") / "fresh"
    save(network, small_tokenizer, folder, "card")
    return folder


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """CoLA: whether the sentence has a cat in it. RTE: whether both have the same animal."""
    draw = np.random.default_rng(0)
    folder = tmp_path / "glue"
    for name in ("CoLA", "RTE"):
        (folder / name).mkdir(parents=True)
    for file, count in (("train", 160), ("dev", 60)):
        said = [
            f"the {draw.choice(ADJECTIVES)} {draw.choice(['cat', 'dog'])} {draw.choice(VERBS)}." for _ in range(count)
        ]
        cola = [f"x\t{int('cat' in text)}\t\t{text}" for text in said]
        (folder / "CoLA" / f"{file}.tsv").write_text("\n".join(cola) + "\n")
        rte = ["index\tsentence1\tsentence2\tlabel"]
        for i, text in enumerate(said):
            rte.append(f"{i}\t{text}\ta cat\t{'entailment' if 'cat' in text else 'not_entailment'}")
        (folder / "RTE" / f"{file}.tsv").write_text("\n".join(rte) + "\n")
    (folder / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tthe old cat.\ta cat\n1\ta dog.\ta cat\n")
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["elektron", "finetune", *map(str, words)])
    main()


def test_glue_from_end_to_end(model, glue, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = ["glue", "--model", model, "--data", glue, "--out", out, "--seeds", 2, *QUICK]
    run(monkeypatch, *arguments)
    said = capsys.readouterr().out
    assert "cola, seed 0: dev matthews" in said
    assert "rte, seed 1: dev accuracy" in said
    results = json.loads((out / "results.json").read_text())
    assert set(results) == {"cola", "rte"}
    assert [result["seed"] for result in results["cola"]] == [0, 1]
    assert min(result["score"] for result in results["cola"]) > 0.9
    table = (out / "results.md").read_text().splitlines()
    assert table[0].startswith("| task | metric | median | mean | sd | seeds |")
    assert table[2].startswith("| cola | matthews | ")
    assert "| 56.8 |" in table[2]
    lines = (out / "rte" / "seed-0" / "predictions" / "RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in lines[1:]] == ["0", "1"]
    assert len(list((out / "cola").glob("seed-*/model"))) == 1
    header, *losses = (out / "cola" / "seed-1" / "losses.tsv").read_text().splitlines()
    assert header == "step\tloss"
    assert len(losses) == results["cola"][1]["cost"]["steps"]
    assert float(losses[-1].split("\t")[1]) < float(losses[0].split("\t")[1])

    before = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/result.json")}
    run(monkeypatch, *arguments)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    with pytest.raises(SystemExit):
        run(monkeypatch, *arguments, "--recipe.warmup", 0.2)
    assert "was made with other settings (recipe): choose another --out" in capsys.readouterr().err


def test_text_classification_in_transformers(model, glue, tmp_path, monkeypatch):
    run(monkeypatch, "rte", "--model", model, "--data", glue, "--out", tmp_path / "out", *QUICK)
    folder = tmp_path / "out" / "rte" / "seed-0"
    config = json.loads((folder / "model" / "config.json").read_text())
    assert config["hidden_dropout_prob"] == SHAPE.dropout, "as in pre-training"
    classify = transformers.pipeline("text-classification", model=str(folder / "model"))
    asked = [line.split("\t") for line in (glue / "RTE" / "test.tsv").read_text().splitlines()[1:]]
    theirs = [
        classify({"text": first, "text_pair": second})["label"]  # pyright: ignore[reportArgumentType, reportCallIssue]
        for _, first, second in asked
    ]
    ours = [line.split("\t")[1] for line in (folder / "predictions" / "RTE.tsv").read_text().splitlines()[1:]]
    assert theirs == ours
    again = open_encoder(folder / "model").encoder
    fresh = open_encoder(model).encoder
    assert not torch.equal(again.embeddings.word.weight, fresh.embeddings.word.weight)


def test_token_classification_in_transformers(model, tmp_path, monkeypatch):
    draw = np.random.default_rng(1)
    for file, count in (("train", 120), ("dev", 40), ("test", 20)):
        lines = []
        for _ in range(count):
            words = ["the", draw.choice(ADJECTIVES), draw.choice(NOUNS), draw.choice(VERBS)]
            lines += [f"{word}\t{'i' if word in NOUNS else 'c'}" for word in words] + [""]
        (tmp_path / f"{file}.txt").write_text("\n".join(lines))
    own = [*QUICK, "--recipe.dropout", "0.05"]
    run(monkeypatch, "ged", "--model", model, "--data", tmp_path, "--out", tmp_path / "out", *own)
    folder = tmp_path / "out" / "ged" / "seed-0"
    assert json.loads((folder / "model" / "config.json").read_text())["hidden_dropout_prob"] == 0.05
    assert json.loads((folder / "result.json").read_text())["result"]["score"] > 0.9
    tag = transformers.pipeline("token-classification", model=str(folder / "model"), aggregation_strategy="first")
    blocks = (folder / "predictions" / "test.tsv").read_text().strip().split("\n\n")
    for block in blocks:
        words, ours = zip(*(line.split("\t") for line in block.split("\n")), strict=True)
        theirs = [found["entity_group"] for found in tag(" ".join(words)) for _ in found["word"].split()]
        assert theirs == list(ours)


def test_questions_in_transformers(model, small_tokenizer, tmp_path, monkeypatch):
    draw = np.random.default_rng(2)
    for file, count in (("train", 60), ("dev", 20)):
        paragraphs = []
        for n in range(count):
            noun = str(draw.choice(NOUNS))
            context = f"The {draw.choice(ADJECTIVES)} {noun} {draw.choice(VERBS)}."
            answer = {"text": noun, "answer_start": context.index(noun)}
            paragraphs.append({"context": context, "qas": [{"id": str(n), "question": "Who?", "answers": [answer]}]})
        (tmp_path / f"{file}-v1.1.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    dev = tmp_path / "dev-v1.1.json"
    run(
        *(monkeypatch, "squad", "--model", model, "--data", tmp_path, "--out", tmp_path / "out", "--length", 96),
        *("--train", tmp_path / "train-v1.1.json", "--dev", dev, "--test", dev, *QUICK),
    )
    folder = tmp_path / "out" / "squad" / "seed-0"
    theirs = transformers.ElectraForQuestionAnswering.from_pretrained(folder / "model").eval()
    questions = squad.read_squad(dev)
    windows = squad.windows_of(questions, small_tokenizer, 96).windows
    logits = []
    for window in windows:
        tokens = torch.from_numpy(window.row.tokens).long()[None]
        segments = (torch.arange(tokens.shape[1]) >= window.row.second).long()[None]
        with torch.no_grad():
            found = theirs(tokens, token_type_ids=segments)
        logits.append(torch.stack([found.start_logits[0], found.end_logits[0]], -1).numpy())
    expected = squad.predictions(squad.answers_of(logits, windows, questions), None)
    assert json.loads((folder / "predictions" / "test.json").read_text()) == expected


def test_the_original_s_questions(model, tmp_path, monkeypatch):
    """Half of them without an answer; the network knows which, and where the others' answers are."""
    draw = np.random.default_rng(4)
    for file, count in (("train", 150), ("dev", 30)):
        paragraphs = []
        for n in range(count):
            noun, asked = str(draw.choice(["cat", "dog"])), ["cat", "bird"][n % 2]
            context = f"The {draw.choice(ADJECTIVES)} {'cat' if asked == 'cat' else noun} {draw.choice(VERBS)}."
            answer = [{"text": "cat", "answer_start": context.index("cat")}] if asked == "cat" else []
            question = {"id": str(n), "question": f"a {asked}?", "answers": answer, "is_impossible": not answer}
            paragraphs.append({"context": context, "qas": [question]})
        (tmp_path / f"{file}-v2.0.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    out = tmp_path / "out"
    arguments = ["squad2", "--model", model, "--data", tmp_path, "--out", out, "--head", "original", "--length", 80]
    run(monkeypatch, *arguments, *QUICK)
    found = json.loads((out / "squad2" / "seed-0" / "result.json").read_text())["result"]["metrics"]["dev"]
    assert found["best_exact"] > 0.9
    assert found["HasAns_total"] == found["NoAns_total"] == 15


def test_tables_of_one_s_own(model, tmp_path, monkeypatch, capsys):
    draw = np.random.default_rng(3)
    lines = [f"the {noun} sees,{int(noun == 'cat')}" for noun in draw.choice(["cat", "dog"], 150)]
    (tmp_path / "mine.csv").write_text("\n".join(["said,y", *lines]) + "\n")
    files = ["--train", tmp_path / "mine.csv", "--dev", tmp_path / "mine.csv", "--text", "said", "--label", "y"]
    run(monkeypatch, "own", "--model", model, *files, "--out", tmp_path / "out", *QUICK)
    assert "own, seed 0: dev accuracy 100.0, f1 100.0" in capsys.readouterr().out


def test_the_original_s_heads_are_not_exported(model, glue, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    run(monkeypatch, "cola", "--model", model, "--data", glue, "--out", out, "--head", "original", *QUICK)
    assert "no class for the original's heads" in capsys.readouterr().out
    assert not list(out.glob("cola/*/model"))
    assert list(out.glob("cola/*/result.json"))


def test_checkpoints_are_drawn_against_their_steps(glue, text_file, tmp_path, monkeypatch, capsys):
    flags = (
        "--model.layers 1 --model.width 32 --model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 "
        "--model.positions 32 --prepare.vocab-size 128 --prepare.processes 1 --prepare.held-out 0.05 --device cpu "
        "--train.phases 10 16 4 --watch.checkpoint-every 5 --watch.evaluate-rows 8"
    ).split()
    run_folder, out = tmp_path / "tales", tmp_path / "out"
    monkeypatch.setattr(
        sys, "argv", ["elektron", "pretrain", "--corpus", str(text_file), "--run", str(run_folder), *flags]
    )
    with pytest.raises(SystemExit, match="0"):
        main()
    capsys.readouterr()
    checkpoints = sorted((run_folder / "checkpoints").iterdir())
    assert len(checkpoints) == 2
    run(monkeypatch, "glue", "--model", *checkpoints, "--data", glue, "--out", out, *QUICK, "--recipe.epochs", 1)
    said = capsys.readouterr().out
    table = (out / "results.md").read_text().splitlines()
    assert table[0] == "| model | cola | rte |"
    assert [line.split(" | ")[0] for line in table[2:]] == ["| tales-step-00000005", "| tales-step-00000010"]
    results = json.loads((out / "tales-step-00000005" / "results.json").read_text())
    assert results["cola"][0]["step"] == 5
    page = (out / "quality.html").read_text()
    assert page.count("<polyline") == 4  # two tasks, with a published score each
    assert f"5,{100 * results['cola'][0]['score']:.5g};10," in page
    assert "quality.html" in said
    with pytest.raises(SystemExit):
        run(monkeypatch, "cola", "--model", checkpoints[0], checkpoints[0], "--data", glue, "--out", out)
    assert "folders of different names" in capsys.readouterr().err


def networks(out: Path, task: str) -> list[str]:
    return sorted(path.parent.name for path in out.glob(f"{task}/seed-*/model"))


def test_the_last_network_is_never_removed(model, glue, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = ["cola", "--model", model, "--data", glue, "--out", out, *QUICK, "--recipe.epochs", 1]
    run(monkeypatch, *arguments, "--seeds", 3)
    (kept,) = networks(out, "cola")
    for count in (1, 2, 3):
        run(monkeypatch, *arguments, "--seeds", count)
        assert kept in networks(out, "cola")
    capsys.readouterr()
    run(monkeypatch, "rte", *arguments[1:], "--keep", "none")
    assert networks(out, "rte") == []
    run(monkeypatch, "rte", *arguments[1:])
    assert "the network of the median seed, 0, is not there; remove" in capsys.readouterr().out
    table = (out / "results.md").read_text()
    assert "| cola |" in table
    assert "| rte |" in table


def test_all_networks_are_kept_if_asked(model, glue, tmp_path, monkeypatch):
    words = ["--model", model, "--data", glue, "--out", tmp_path, "--seeds", 2, "--keep", "all"]
    run(monkeypatch, "cola", *words, *QUICK, "--recipe.epochs", 1)
    assert networks(tmp_path, "cola") == ["seed-0", "seed-1"]


@pytest.mark.parametrize("change", [["--text", "b"], ["--label", "z"], ["--columns", "0,1"], "swap", "file"])
def test_what_decides_a_result_is_remembered(change, model, tmp_path, monkeypatch, capsys):
    first, second = tmp_path / "1" / "x.csv", tmp_path / "2" / "x.csv"
    for path, rows in ((first, "a,p,1,2\n"), (second, "c,q,2,1\n")):
        path.parent.mkdir()
        path.write_text("a,b,y,z\n" + 8 * ("e,f,1,1\ng,h,2,2\n" + rows))
    files = ["--train", first, "--dev", second]
    words = ["own", "--model", model, "--text", "a", "--label", "y", "--out", tmp_path / "out", *QUICK]
    run(monkeypatch, *words, *files)
    if change == "swap":
        files = ["--train", second, "--dev", first]
    elif change == "file":
        first.write_text(first.read_text() + "g,h,2,2\n")
    else:
        words += change
    with pytest.raises(SystemExit):
        run(monkeypatch, *words, *files)
    assert "was made with other settings" in capsys.readouterr().err


def test_rte_from_mnli(model, glue, tmp_path, monkeypatch, capsys):
    arguments = ["--model", model, "--data", glue, "--out", tmp_path / "out", "--mnli-first", *QUICK]
    with pytest.raises(SystemExit):
        run(monkeypatch, "rte", *arguments)
    assert "has no network that has learned MNLI" in capsys.readouterr().err
    (glue / "MNLI").mkdir()
    rows = (glue / "RTE" / "train.tsv").read_text().replace("not_entailment", "neutral").replace("label", "gold_label")
    for file in ("train", "dev_matched", "dev_mismatched"):
        (glue / "MNLI" / f"{file}.tsv").write_text(rows)
    run(monkeypatch, "glue", *arguments)
    said = capsys.readouterr().out
    assert said.index("mnli, seed 0") < said.index("rte, seed 0")
    weights = {
        task: json.loads((tmp_path / "out" / task / "seed-0" / "result.json").read_text())["settings"]["weights"]
        for task in ("cola", "mnli", "rte")
    }
    assert weights["cola"] == weights["mnli"] != weights["rte"]
    assert weights["rte"] == fingerprint(open_encoder(tmp_path / "out" / "mnli" / "seed-0" / "model").encoder)


def test_embeddings_may_be_more_than_the_tokenizer_s(small_tokenizer, glue, tmp_path, monkeypatch, capsys):
    network = Discriminator(SHAPE, Embeddings(small_tokenizer.vocab_size + 3, SHAPE))
    initialise(network, 0)
    save(network, small_tokenizer, tmp_path / "wide", "card")
    words = ["--data", glue, "--out", tmp_path / "out", *QUICK, "--recipe.epochs", 1]
    run(monkeypatch, "cola", "--model", tmp_path / "wide", *words)
    opened = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out/cola/seed-0/model")
    assert opened.config.vocab_size == small_tokenizer.vocab_size + 3
    network = Discriminator(SHAPE, Embeddings(small_tokenizer.vocab_size - 3, SHAPE))
    save(network, small_tokenizer, tmp_path / "narrow", "card")
    with pytest.raises(SystemExit):
        run(monkeypatch, "cola", "--model", tmp_path / "narrow", *words)
    assert "its tokenizer has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["colla"], "unknown task 'colla'"),
        (["glue", "--data", "nowhere"], "nowhere has none of GLUE's folders"),
        (["sst"], "train.tsv is missing"),
        (["squad"], "train-v1.1.json is missing"),
        (["own"], "needs --train and --dev"),
        (["own", "--train", "no.csv", "--dev", "no.csv"], "no.csv is missing"),
        (["cola", "--seeds", "0"], "--seeds is at least 1, not 0"),
        (["cola", "--length", "129"], "--length 129 is longer than the model's 128 positions"),
        (["cola", "--model", "nothing"], "nothing is neither a run, nor a checkpoint of one"),
    ],
)
def test_bad_input(words, message, model, glue, tmp_path, monkeypatch, capsys):
    own = [] if "--model" in words else ["--model", model]
    with pytest.raises(SystemExit):
        run(monkeypatch, words[0], *own, "--data", glue, "--out", tmp_path / "out", *words[1:])
    assert message in capsys.readouterr().err
