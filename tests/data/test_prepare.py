import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import documents
from elektron.data import prepare, shards
from elektron.data.corpus import Piece
from elektron.data.prepare import ShardsConfig, write_shards
from elektron.data.shards import INDEX, open_data, read_index, read_shard
from elektron.data.storage import storage
from elektron.data.tokenizer import Tokenizer, TokenizerConfig, train


def as_pieces(texts):
    return [Piece(text, True) for text in texts]


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(prepare, "BLOCK_BYTES", 4000)
    monkeypatch.setattr(prepare, "BATCH_CHARACTERS", 700)


def test_the_stream_is_the_documents(tmp_path, small_tokenizer, small_blocks):
    texts = documents(60)
    write_shards(as_pieces(texts), small_tokenizer, tmp_path, ShardsConfig(held_out=0.2, processes=1))
    data = open_data(tmp_path)
    assert len(data.index.shards) > 2
    expected = {False: [], True: []}
    for text in texts:
        expected[prepare._is_held_out(text.encode(), 0.2)].append(small_tokenizer.encode([text])[0])
    for stream, held in ((data.train, False), (data.held, True)):
        tokens = np.concatenate(expected[held])
        assert stream.tokens == len(tokens)
        assert np.array_equal(stream.read(np.array([0]), stream.tokens)[0], tokens)
        assert stream.ends(stream.tokens).tolist() == np.cumsum([len(part) for part in expected[held]]).tolist()
    assert data.index.documents == len(texts)


@pytest.mark.parametrize("processes", [2, 3])
def test_bytes_do_not_depend_on_the_number_of_processes(tmp_path, small_tokenizer, small_blocks, processes):
    for folder, count in ((tmp_path / "one", 1), (tmp_path / "many", processes)):
        write_shards(as_pieces(documents(60)), small_tokenizer, folder, ShardsConfig(processes=count))
    assert written(tmp_path / "one") == written(tmp_path / "many")


def test_a_second_run_skips_what_is_done(tmp_path, small_tokenizer, small_blocks):
    config = ShardsConfig(processes=1)
    write_shards(as_pieces(documents(60)), small_tokenizer, tmp_path, config)
    before = written(tmp_path)
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*.bin")}
    (tmp_path / "shard-00001.bin").unlink()
    (tmp_path / INDEX).unlink()
    write_shards(as_pieces(documents(60)), small_tokenizer, tmp_path, config)
    assert written(tmp_path) == before
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*.bin")}
    assert [name for name in times if after[name] != times[name]] == ["shard-00001.bin"]


def test_a_corpus_may_grow_and_shrink(tmp_path, small_tokenizer, small_blocks):
    for count in (60, 80, 20):
        write_shards(as_pieces(documents(80)[:count]), small_tokenizer, tmp_path, ShardsConfig(processes=1))
        fresh = tmp_path / "fresh" / str(count)
        write_shards(as_pieces(documents(80)[:count]), small_tokenizer, fresh, ShardsConfig(processes=1))
        found = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        assert found == written(fresh)


def test_a_damaged_shard_is_written_again(tmp_path, small_tokenizer, small_blocks):
    write_shards(as_pieces(documents(60)), small_tokenizer, tmp_path, ShardsConfig(processes=1))
    before = written(tmp_path)
    path = tmp_path / "shard-00000.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    write_shards(as_pieces(documents(60)), small_tokenizer, tmp_path, ShardsConfig(processes=1))
    assert written(tmp_path) == before


def test_another_tokenizer_or_split_does_not_take_over_a_folder(tmp_path, small_tokenizer, text_file):
    write_shards(as_pieces(documents(20)), small_tokenizer, tmp_path, ShardsConfig(processes=1))
    other = train(lambda: iter([text_file.read_text()]), TokenizerConfig(vocab_size=100))
    with pytest.raises(ValueError, match="another tokenizer"):
        write_shards(as_pieces(documents(20)), other, tmp_path, ShardsConfig(processes=1))
    with pytest.raises(ValueError, match=r"--held-out 0\.005"):
        write_shards(as_pieces(documents(20)), small_tokenizer, tmp_path, ShardsConfig(held_out=0.1, processes=1))


@pytest.mark.parametrize("texts", [[], [""], ["\x01\x02"]])
def test_an_empty_corpus_is_an_error(tmp_path, small_tokenizer, texts):
    with pytest.raises(ValueError, match="corpus is empty"):
        write_shards(as_pieces(texts), small_tokenizer, tmp_path, ShardsConfig(processes=1))
    assert not (tmp_path / INDEX).exists()


def test_something_is_always_held_out(tmp_path, small_tokenizer):
    """The last of a few documents; the tail of the only one."""
    texts = documents(5)
    few = write_shards(as_pieces(texts), small_tokenizer, tmp_path / "few", ShardsConfig(held_out=0.0, processes=1))
    last = small_tokenizer.encode(texts[-1:])[0]
    assert few.held_tokens == len(last)
    held = open_data(tmp_path / "few").held
    assert np.array_equal(held.read(np.array([0]), held.tokens)[0], last)
    assert held.ends(held.tokens).tolist() == [len(last)]

    only = write_shards(
        as_pieces(texts[:1]), small_tokenizer, tmp_path / "one", ShardsConfig(held_out=0.0, processes=1)
    )
    tokens = small_tokenizer.encode(texts[:1])[0]
    assert only.held_tokens == max(1, round(prepare.TAIL * len(tokens)))
    data = open_data(tmp_path / "one")
    both = [stream.read(np.array([0]), stream.tokens)[0] for stream in (data.train, data.held)]
    assert np.array_equal(np.concatenate(both), tokens)


def test_one_token_leaves_nothing_to_train_on(tmp_path, small_tokenizer):
    with pytest.raises(ValueError, match="too small"):
        write_shards(as_pieces(["cat"]), small_tokenizer, tmp_path, ShardsConfig(processes=1))


def test_held_out_documents_are_the_share_asked_for_and_stay_on_their_side(tmp_path, small_tokenizer):
    texts = [f"the cat sees {i} dogs" for i in range(3000)]
    held = [text for text in texts if prepare._is_held_out(text.encode(), 0.1)]
    assert 230 < len(held) < 370
    fewer = [text for text in texts if prepare._is_held_out(text.encode(), 0.05)]
    assert set(fewer) < set(held)


def test_a_document_in_pieces_is_one_document(tmp_path, small_tokenizer, small_blocks):
    words = ("the old cat sees a dog . " * 2000).split()
    pieces = [Piece(" ".join(words[i : i + 100]), i + 100 >= len(words)) for i in range(0, len(words), 100)]
    index = write_shards(
        [*pieces, Piece("a bird", True)], small_tokenizer, tmp_path, ShardsConfig(held_out=0.0, processes=1)
    )
    assert index.documents == 2
    assert len(index.shards) > 5
    stream = open_data(tmp_path).train
    whole = small_tokenizer.encode([" ".join(words)])[0]
    assert np.array_equal(stream.read(np.array([0]), stream.tokens)[0], whole)
    assert stream.ends(stream.tokens).tolist() == [len(whole)]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_or_missing_byte_is_noticed(data_folder, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    for path in data_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    shard = folder / "shard-00000.bin"
    content = bytearray(shard.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"shard-00000\.bin"):
        open_data(folder)


def test_a_missing_shard_tokenizer_or_index_is_named(data_folder, tmp_path, small_tokenizer):
    for path in data_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer.json").write_text(small_tokenizer.json.replace('"cat"', '"cta"'))
    with pytest.raises(ValueError, match="not the tokenizer"):
        open_data(tmp_path)
    (tmp_path / "tokenizer.json").write_text(small_tokenizer.json)
    (tmp_path / "shard-00000.bin").unlink()
    with pytest.raises(ValueError, match="missing"):
        open_data(tmp_path)
    (tmp_path / INDEX).write_text('{"version": 1}')
    with pytest.raises(ValueError, match="damaged"):
        read_index(tmp_path)
    (tmp_path / INDEX).write_text('{"version": 99}')
    with pytest.raises(ValueError, match="version 99"):
        read_index(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(ValueError, match="no prepared data"):
        open_data(tmp_path)


def test_large_vocabularies_take_four_bytes(tmp_path, small_tokenizer):
    class Wide(Tokenizer):
        def __init__(self) -> None:
            self.vocab_size, self.specials = 1 << 17, small_tokenizer.specials

    tokens = np.array([1 << 16, 5, 70000])
    shards.write_shard(storage(tmp_path), "shard-00000.bin", tokens, np.array([3]), 3, Wide(), b"x" * 16)
    assert read_shard(tmp_path / "shard-00000.bin")[0].tolist() == tokens.tolist()


def test_unigram_loss_is_the_cross_entropy_of_frequencies(data):
    train, held = (stream.read(np.array([0]), stream.tokens)[0] for stream in (data.train, data.held))
    counts = dict.fromkeys(range(data.index.vocab_size), 1)
    for token in train.tolist():
        counts[token] += 1
    total = sum(counts.values())
    expected = -np.mean([np.log(counts[token] / total) for token in held.tolist()])
    assert data.unigram_loss() == pytest.approx(expected)


SCRIPT = """
import sys
from pathlib import Path
from elektron.data import corpus, prepare, tokenizer
if __name__ == "__main__":
    prepare.BLOCK_BYTES = 20000
    chosen = tokenizer.load(sys.argv[2], tokenizer.TokenizerConfig())
    pieces = corpus.pieces([sys.argv[1]], corpus.ReadingConfig())
    prepare.write_shards(pieces, chosen, Path(sys.argv[3]), prepare.ShardsConfig(processes=2))
"""


def test_killed_and_run_again_it_writes_the_same_bytes(tmp_path, small_tokenizer):
    """A real process, ended with SIGKILL when its first shards are there; its processes do not outlive it."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(documents(3000)))
    (tmp_path / "tokenizer.json").write_text(small_tokenizer.json)
    (tmp_path / "job.py").write_text(SCRIPT)

    def command(out: str) -> list[str]:
        return [
            sys.executable,
            str(tmp_path / "job.py"),
            str(text),
            str(tmp_path / "tokenizer.json"),
            str(tmp_path / out),
        ]

    subprocess.run(command("whole"), check=True)
    killed = subprocess.Popen(command("killed"), start_new_session=True)
    while not list((tmp_path / "killed").glob("shard-*.bin")):
        assert killed.poll() is None
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    deadline = time.time() + 20
    while _group_lives(killed.pid):
        assert time.time() < deadline, "processes outlive their parent"
        time.sleep(0.05)
    assert not (tmp_path / "killed" / INDEX).exists()
    subprocess.run(command("killed"), check=True)
    assert written(tmp_path / "killed") == written(tmp_path / "whole")


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("processes", [1, 4])
def test_a_process_that_dies_is_reported(tmp_path, small_tokenizer, small_blocks, monkeypatch, processes):
    """While a result is awaited, or while text is still being read."""
    monkeypatch.setattr(prepare, "_tokenise", _die)
    with pytest.raises(OSError, match="worker process died"):
        write_shards(_slowly(as_pieces(documents(60))), small_tokenizer, tmp_path, ShardsConfig(processes=processes))


def _slowly(pieces):
    for piece in pieces:
        yield piece
        time.sleep(0.02)


def _die(path, block):
    os._exit(9)
