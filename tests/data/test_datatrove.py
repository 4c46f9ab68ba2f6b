"""A real datatrove pipeline with its own executors: read, filter, deduplicate, write shards, index, train-ready."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from datatrove.data import Document

from conftest import documents
from elektron.data import prepare
from elektron.data.datatrove import ShardIndex, ShardWriter, finish
from elektron.data.prepare import ShardsConfig, write_shards
from elektron.data.shards import INDEX, open_data
from elektron.data.tokenizer import Tokenizer

TASKS = 3


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(prepare, "BLOCK_BYTES", 4000)


@pytest.fixture
def tokenizer_file(tmp_path, small_tokenizer) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(small_tokenizer.json)
    return path


def as_documents(texts: list[str]) -> list[Document]:
    return [Document(text=text, id=str(number)) for number, text in enumerate(texts)]


def write(folder: Path, tokenizer_file: Path, texts: list[str], rank: int = 0, tasks: int = 1, **options) -> list:
    return list(ShardWriter(folder, tokenizer_file, **options).run(iter(as_documents(texts)), rank, tasks))


def tokens_of(stream) -> list[int]:
    return stream.read(np.array([0]), stream.tokens)[0].tolist()


def test_one_task_s_shards_hold_what_prepare_s_do(tmp_path, small_tokenizer, tokenizer_file, small_blocks):
    texts = documents(60)
    passed = write(tmp_path / "trove", tokenizer_file, texts, held_out=0.1)
    assert [document.text for document in passed] == texts
    assert not (tmp_path / "trove" / INDEX).exists()
    list(ShardIndex(tmp_path / "trove", 1).run())
    pieces = [prepare.Piece(text, True) for text in texts]
    write_shards(pieces, small_tokenizer, tmp_path / "own", ShardsConfig(held_out=0.1, processes=1))
    trove, own = open_data(tmp_path / "trove"), open_data(tmp_path / "own")
    assert len(trove.index.shards) > 2
    assert [shard.sha256 for shard in trove.index.shards] == [shard.sha256 for shard in own.index.shards]
    assert trove.index.digest == own.index.digest
    assert tokens_of(trove.held) == tokens_of(own.held)


def test_the_index_waits_for_every_task(tmp_path, tokenizer_file, small_blocks):
    texts, out = documents(60), tmp_path / "out"
    for rank in (2, 0):
        write(out, tokenizer_file, texts[rank::TASKS], rank, TASKS)
    with pytest.raises(ValueError, match=r"1 of 3 tasks are not done \(1\)"):
        finish(str(out), TASKS)
    write(out, tokenizer_file, texts[1::TASKS], 1, TASKS)
    index = finish(str(out), TASKS)
    assert index.documents == len(texts)
    ranks = [int(shard.file.split("-")[1]) for shard in index.shards]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}
    assert open_data(out).index == index


def test_a_task_run_again_writes_nothing_twice_and_what_changed_anew(tmp_path, tokenizer_file, small_blocks):
    texts, out = documents(90), tmp_path / "out"
    for rank in range(TASKS):
        write(out, tokenizer_file, texts[rank::TASKS], rank, TASKS)
    finish(str(out), TASKS)
    before = written(out)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("shard-*")}
    (out / "shard-00001-00000.bin").unlink()
    write(out, tokenizer_file, texts[1::TASKS], 1, TASKS)
    assert not (out / INDEX).exists()
    finish(str(out), TASKS)
    assert written(out) == before
    changed = [name for name in times if (out / name).stat().st_mtime_ns != times[name]]
    assert changed == ["shard-00001-00000.bin"]
    write(out, tokenizer_file, texts[1::TASKS][:10], 1, TASKS)  # fewer documents: a shard too many is removed
    index = finish(str(out), TASKS)
    assert {path.name for path in out.glob("shard-*")} == {shard.file for shard in index.shards}
    assert len(index.shards) < len(times)


def test_other_tokenizers_settings_and_numbers_of_tasks(tmp_path, tokenizer_file, byte_tokenizer):
    out, other = tmp_path / "out", tmp_path / "other.json"
    other.write_text(byte_tokenizer.json)
    write(out, tokenizer_file, documents(20), 0, 2)
    with pytest.raises(ValueError, match=r"another tokenizer\.json"):
        write(out, other, documents(20), 1, 2)
    write(out, tokenizer_file, documents(20), 1, 2, held_out=0.5)
    with pytest.raises(ValueError, match="task 1 had another tokenizer or held_out"):
        finish(str(out), 2)
    write(out, tokenizer_file, documents(20), 1, 2)
    finish(str(out), 2)
    with pytest.raises(ValueError, match="one task makes the index"):
        list(ShardIndex(out, 2).run(None, 0, 2))
    with pytest.raises(ValueError, match="--held-out"):
        ShardWriter(out, tokenizer_file, held_out=1.5)
    write(out, tokenizer_file, documents(20))
    assert finish(str(out), 1).documents == 20
    assert [path.name for path in out.glob("task-*")] == ["task-00000-of-00001.json"]


def test_half_a_character_is_replaced(tmp_path, tokenizer_file):
    write(tmp_path / "out", tokenizer_file, ["the cat \ud800 sees a dog", *documents(3)])
    assert finish(str(tmp_path / "out"), 1).documents == 4


def script() -> str:
    """The pipeline of docs/guide.md."""
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    (found,) = re.findall(r"```python\n(import sys\n.*?ShardIndex.*?)```", guide, re.S)
    return found


def write_corpus(folder: Path) -> set[str]:
    """Files in which texts stand again and some are too short. Returns what is to be left of them."""
    (folder / "in").mkdir()
    texts = documents(60)
    for number in range(4):
        lines = [*texts[number::4], *texts[:5], "too short"]
        records = [json.dumps({"text": text, "id": f"{number}-{i}"}) for i, text in enumerate(lines)]
        (folder / "in" / f"{number}.jsonl").write_text("\n".join(records) + "\n")
    return set(texts)


def check(folder: Path, texts: set[str], tokenizer: Tokenizer) -> None:
    data = open_data(folder)
    assert data.index.documents == len(texts)
    expected = sorted(token for text in texts for token in tokenizer.encode([text])[0].tolist())
    assert sorted(tokens_of(data.train) + tokens_of(data.held)) == expected


def run(folder: Path, text: str) -> None:
    (folder / "corpus.py").write_text(text)
    words = ["corpus.py", "in", "data", "tokenizer.json"]
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_guide_s_pipeline_on_the_local_executor(tmp_path, tokenizer_file, small_tokenizer):
    """And a task whose shards and marks are lost is run again, it alone, to the same bytes."""
    texts = write_corpus(tmp_path)
    run(tmp_path, script())
    check(tmp_path / "data", texts, small_tokenizer)
    before = written(tmp_path / "data")
    assert len([name for name in before if name.startswith("shard-")]) == 4
    for mark in ("write/completions/00002", "index/completions/00000"):
        (tmp_path / "logs" / mark).unlink()
    (tmp_path / "data" / "shard-00002-00000.bin").unlink()
    run(tmp_path, script())
    assert written(tmp_path / "data") == before


def test_the_guide_s_pipeline_on_ray(tmp_path, tokenizer_file, small_tokenizer):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'elektron[cluster]'")
    texts = write_corpus(tmp_path)
    begin = "import ray\nray.init(num_cpus=2, include_dashboard=False, _memory=8 << 30)\n"
    run(tmp_path, begin + script().replace("LocalPipelineExecutor", "RayPipelineExecutor"))
    check(tmp_path / "data", texts, small_tokenizer)
