"""`elektron analyze` on real runs, and its page."""

import json
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from conftest import ADJECTIVES, NOUNS, VERBS, sentences
from elektron.cli import main
from elektron.interop.huggingface import save
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator
from elektron.model.initial import initialise
from elektron.score.bands import Band, Cut, Share
from elektron.score.errors import Example
from elektron.score.geometry import Layer
from elektron.verbs.findings import Findings, content, in_html, in_markdown

FLAGS = (
    "--model.layers 2 --model.width 32 --model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 "
    "--model.positions 32 --schedule.warmup-steps 10 --schedule.learning-rate 3e-3 --watch.evaluate-rows 8 "
    "--device cpu --start local --train.phases 300 16 16"
).split()
ROWS = ("--rows", 40, "--batch", 16, "--device", "cpu")
PARTS = {word: tag for tag, some in (("NOUN", NOUNS), ("VERB", VERBS), ("ADJ", ADJECTIVES)) for word in some}


def run(*words: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["elektron", *map(str, words)])
        try:
            main()
        except SystemExit as left:
            if left.code:
                raise


@pytest.fixture
def elektron(capsys):
    def say(*words: object) -> str:
        capsys.readouterr()
        run(*words)
        return capsys.readouterr().out

    return say


@pytest.fixture
def refused(capsys):
    def say(*words: object) -> str:
        with pytest.raises(SystemExit) as caught:
            run(*words)
        assert caught.value.code == 2
        return capsys.readouterr().err

    return say


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_folder) -> dict[str, Path]:
    """A run by each of two objectives."""
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("electra", "mlm"):
        run("pretrain", "--data", data_folder, "--run", folder / kind, "--objective.kind", kind, *FLAGS)
    return {kind: folder / kind for kind in ("electra", "mlm")}


@pytest.fixture(scope="module")
def tags(tmp_path_factory) -> Path:
    """Sentences in columns."""
    path = tmp_path_factory.mktemp("tags") / "tales.txt"
    lines = [[*line.removesuffix(".").split(), "."] for line in sentences(40, seed=3)]
    path.write_text("\n\n".join("\n".join(f"{w}\t{PARTS.get(w, 'X')}" for w in words) for words in lines) + "\n")
    return path


class Page(HTMLParser):
    """What is in a page, with all that must be closed closed in order."""

    CLOSED = ("svg", "g", "figure", "table", "div", "h1", "h2", "script", "style", "title", "ins", "del", "mark", "ul")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.curves: list[str | None] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in self.CLOSED:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.curves += [value for name, value in attrs if name == "data-name"]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.CLOSED:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_run_with_tags_beside_another(elektron, trained, tags, tmp_path):
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    asked = ["--beside", trained["mlm"], "--tagged", tags, "--out", out, "--html", page, *ROWS]
    said = elektron("analyze", trained["electra"], *asked)
    assert f"report: {page}" in said
    found = json.loads(out.read_text())
    evaluated = json.loads(elektron("evaluate", trained["electra"], "--rows", 40, "--batch", 7, "--json"))
    whole, text, ends = found["totals"]
    assert whole["tokens"] == text["tokens"] + ends["tokens"] == 16 * text["tokens"] // 13
    assert whole["auc"]["value"] == pytest.approx(evaluated["detection_auc"], abs=1e-5)
    assert whole["loss"] == pytest.approx(evaluated["discriminator_loss"], abs=1e-5)
    assert whole["replaced"] / whole["tokens"] == pytest.approx(evaluated["replaced_rate"], abs=1e-5)
    assert whole["recall"]["value"] == pytest.approx(evaluated["discriminator_recall"], abs=1e-5)
    assert whole["recall"]["value"] > 0
    assert whole["precision"]["value"] == pytest.approx(evaluated["discriminator_precision"], abs=1e-5)
    *cuts, speech = found["cuts"].items()
    assert len(cuts) == 6
    for title, bands in cuts:
        asked_for = title == "Confidence of the generator"
        counted = sum(band["tokens"] for band in bands)
        assert counted == (found_asked(found) if asked_for else text["tokens"]), title
    assert speech[0] == "Parts of speech, tales.txt"
    counted = {band["name"]: band["tokens"] for band in speech[1]}
    assert list(counted)[:2] == ["X", "NOUN"], "articles and full stops, two nouns, a verb and an adjective a sentence"
    assert counted["X"] / 3 == pytest.approx(counted["NOUN"] / 2, rel=0.1)
    assert counted["VERB"] == pytest.approx(counted["ADJ"], rel=0.1) == pytest.approx(counted["NOUN"] / 2, rel=0.1)
    assert list(found["geometry"]) == ["discriminator", "generator", "mlm"]
    assert [len(layers) for layers in found["geometry"].values()] == [3, 2, 3]
    seen = Page(page.read_text())
    assert seen.tags.count("script") == 1
    assert seen.tags.count("polyline") == 4 * 3
    assert seen.tags.count("table") == 2 + 7 + 2 + 1
    assert seen.tags.count("svg") > 10
    assert "http" not in page.read_text().replace("http://www.w3.org/2000/svg", "")
    for name in ("NOUN", "whole word", "left alone", "100 to 999"):
        assert f"| {name} |" in said
        assert name in seen.text


def found_asked(found) -> int:
    return sum(band["tokens"] for band in found["cuts"]["What the generator did"] if band["name"] != "left alone")


def test_twice_the_same(elektron, trained, tmp_path):
    first, second = (elektron("analyze", trained["electra"], "--html", tmp_path / name, *ROWS) for name in "ab")
    assert first.replace(str(tmp_path / "a"), "") == second.replace(str(tmp_path / "b"), "")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_exported_folder_gives_the_run_s_numbers(elektron, refused, trained, data_folder, tmp_path):
    elektron("export", trained["electra"], "--to", tmp_path / "out")
    own = elektron("analyze", trained["electra"], "--html", tmp_path / "page.html", *ROWS).split("\n\n", 1)[1]
    asked = ["--data", data_folder, "--length", 16, "--html", tmp_path / "page.html", *ROWS]
    assert elektron("analyze", tmp_path / "out", *asked).split("\n\n", 1)[1] == own
    assert "--data" in refused("analyze", tmp_path / "out")


def test_a_masked_lm_has_geometry_alone(elektron, refused, trained, tags, data_folder, tmp_path):
    said = elektron("analyze", trained["mlm"], "--beside", trained["electra"], *ROWS)
    assert "no discriminator and generator that go together (its objective is mlm)" in said
    assert "AUC" not in said
    page = Page((trained["mlm"] / "analysis.html").read_text())
    assert page.tags.count("svg") == 4
    assert "| encoder | embeddings |" in said
    assert "| electra | 2 |" in said
    assert "its objective is mlm" in refused("analyze", trained["mlm"], "--tagged", tags, *ROWS)
    folder = elektron("analyze", trained["mlm"] / "encoder", "--data", data_folder, "--length", 16, *ROWS)
    ours, theirs = (line for text in (said, folder) for line in text.splitlines() if line.startswith("| encoder | 2 |"))
    assert ours == theirs
    assert "--data" in refused("analyze", trained["mlm"] / "encoder")


def test_who_may_stand_beside(elektron, refused, trained, untaught, small_tokenizer, byte_tokenizer, tmp_path):
    """The same name twice is told by its path; one that reads less than a row is refused, unless it has a tokenizer of
    its own, in which no row is the same."""
    copy = shutil.copytree(untaught / "generator", tmp_path / "generator")
    said = elektron("analyze", trained["electra"], "--beside", untaught / "generator", copy, *ROWS)
    assert f"| {copy} | 2 |" in said
    said = elektron("analyze", trained["electra"], "--beside", copy, *ROWS)
    assert f"| {copy} | 2 |" in said
    assert "| generator | 1 |" in said
    shape = EncoderConfig(layers=1, width=16, heads=1, feedforward_width=16, embedding_width=16, positions=12)
    for name, tokens in (("short", small_tokenizer), ("bytes", byte_tokenizer)):
        network = Discriminator(shape, Embeddings(tokens.vocab_size, shape))
        initialise(network, 0)
        save(network, tokens, tmp_path / name, "")
    assert "short reads no more than 12" in refused(
        "analyze", trained["electra"], "--beside", tmp_path / "short", *ROWS
    )
    assert "| bytes | 1 |" in elektron("analyze", trained["electra"], "--beside", tmp_path / "bytes", *ROWS)
    assert "neither a run" in refused("analyze", trained["electra"], "--beside", tmp_path / "nothing", *ROWS)


def test_spacy_tags_the_held_out_text(elektron, refused, trained, tmp_path):
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'elektron[spacy]'")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("attribute_ruler")
    for tag in set(PARTS.values()):
        ruler.add([[{"LOWER": {"IN": [word for word, of in PARTS.items() if of == tag]}}]], {"POS": tag})
    pipeline.to_disk(tmp_path / "rules")
    out = tmp_path / "out.json"
    said = elektron("analyze", trained["electra"], "--spacy", tmp_path / "rules", "--out", out, *ROWS)
    assert "Parts of speech, by rules" in said
    bands = json.loads(out.read_text())["cuts"]["Parts of speech, by rules"]
    shares = {band["name"]: band["tokens"] / sum(band["tokens"] for band in bands) for band in bands}
    assert set(shares) == {"NOUN", "VERB", "ADJ", "none"}
    assert shares["NOUN"] > shares["ADJ"] > 0.1
    assert "no pipeline" in refused("analyze", trained["electra"], "--spacy", tmp_path / "nothing", *ROWS)


@pytest.mark.parametrize("flags", [("--rows", 0), ("--batch", 0), ("--length", -1), ("--examples", -1)])
def test_impossible_sizes_are_refused(refused, trained, flags):
    assert "at least" in refused("analyze", trained["electra"], *flags)


def test_hostile_text_stays_text():
    """Of tokens, tags, names of encoders and of runs."""
    evil = '<script>alert("&amp;")</script>'
    share = Share(0.5, 0.4, 0.6)
    bands = [Band(f"{evil}{n}", 100, 50, 0.5, 0.7, share, 0.5, share, share) for n in range(2)]
    layer = Layer(0.1, 0.2, 3.0, 0.5, 1.0, 8)
    example = Example(evil, evil, evil + "x", evil, 0.9, 0.1)
    found = Findings(evil, evil, bands, [Cut(evil, evil, bands)], [example], [example], {evil: [layer, layer]})
    page = Page(in_html(found))
    assert page.tags.count("script") == 1
    assert page.curves == [evil] * 4
    shown = "".join(page.text)
    assert shown.count("alert") > 20
    assert "<script>" in shown
    assert content(found)["missed"][0]["left"] == evil
    assert evil in in_markdown(found)


def test_vague_shares_are_told_but_not_drawn():
    """A band of few tokens would stretch the scale until nothing else can be seen."""
    sure, vague = Share(0.7, 0.65, 0.75), Share(0.5, 0.0, 1.0)
    known = [Band(name, 500, 80, 0.2, 0.4, sure, 0.3, sure, sure) for name in ("common", "rare")]
    unknown = Band("unheard of", 3, 1, 0.2, 0.4, vague, 0.3, vague, vague)
    page = in_html(Findings("run", "", known, [Cut("By", "", [*known, unknown])]))
    drawn = [part.split("</svg>")[0] for part in page.split("<svg")[1:]]
    assert len(drawn) == 3
    assert all("rare" in part and "unheard of" not in part for part in drawn)
    assert "unheard of" in page
