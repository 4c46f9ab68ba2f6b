"""Shards from a datatrove pipeline: its readers, filters and deduplication before them, its executors (local, Slurm,
Ray) around them.

    ShardWriter    ends the pipeline of every task: tokenises what arrives and writes the task's shards
    ShardIndex     a pipeline of one task after all of these: index.json

Shards are named by the rank of their task. A task that is done leaves a note beside them, which says what they are; so
the index knows whether all tasks are done, whatever an executor says, and reads no shard. Killed and run again, a task
writes the same bytes, and no shard twice.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatch
from pathlib import Path

from elektron.data import tokenizer
from elektron.data.corpus import clean, whole_documents
from elektron.data.files import as_json, fields_of
from elektron.data.prepare import (
    Block,
    ShardsConfig,
    Share,
    dealt_blocks,
    refuse_other,
    tokenise,
    write_index,
    write_tokenizer,
)
from elektron.data.shards import INDEX, Index, Shard, finished_shard
from elektron.data.storage import Storage, storage
from elektron.data.tokenizer import Tokenizer, TokenizerConfig

try:
    from datatrove.data import Document
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise ImportError("datatrove is missing: `pip install 'elektron[cluster]'`") from error


@dataclass(frozen=True)
class Note:
    """What a task that is done says of itself."""

    tokenizer_sha256: str
    special_tokens: dict[str, str]
    held_out: float
    shards: tuple[Shard, ...]


def _note_file(rank: int, tasks: int) -> str:
    return f"task-{rank:05d}-of-{tasks:05d}.json"


class ShardWriter(PipelineStep):
    """The documents that arrive, as a task's shards. They go on to the next step, if there is one."""

    type = "Elektron"
    name = "shard writer"

    def __init__(self, out: str | Path, tokenizer: str | Path, held_out: float = ShardsConfig.held_out) -> None:
        """`out` is a folder or its URL, the same for all tasks; `tokenizer` what `elektron prepare --tokenizer` takes;
        `held_out` the share of the documents kept out of training."""
        super().__init__()
        ShardsConfig(held_out=held_out)
        self.out, self.tokenizer, self.held_out = str(out), str(tokenizer), held_out

    def run(self, data: Iterable[Document] | None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the tasks are the parallelism
        share, config = Share(rank, world_size), ShardsConfig(held_out=self.held_out)
        folder, chosen = storage(self.out, share.writer), tokenizer.load(self.tokenizer, TokenizerConfig())
        with folder.occupied():
            refuse_other(folder, chosen, config)
            write_tokenizer(folder, chosen, share)
            folder.remove(_note_file(rank, world_size))
            shards, waiting = [], []
            for block in dealt_blocks(whole_documents(_texts(data or (), waiting)), chosen, config):
                with self.track_time("shard"):
                    shards.append(self._shard(folder, f"shard-{rank:05d}-{block.number:05d}.bin", block, chosen))
                yield from waiting
                waiting.clear()
            yield from waiting
            note = Note(chosen.hash, chosen.names, self.held_out, tuple(shards))
            folder.write(_note_file(rank, world_size), as_json(asdict(note)))

    def _shard(self, folder: Storage, file: str, block: Block, chosen: Tokenizer) -> Shard:
        shard = finished_shard(folder, file, block.made_from)
        if shard is None:
            folder.remove(INDEX)
            shard = tokenise(block, chosen, folder, file)
        self.stat_update("tokens", value=shard.tokens, unit="shard")
        return shard


def _texts(documents: Iterable[Document], seen: list[Document]) -> Iterator[str]:
    for document in documents:
        seen.append(document)
        yield clean(document.text)


class ShardIndex(PipelineStep):
    """index.json over the shards of all tasks: what makes the folder ready to train on."""

    type = "Elektron"
    name = "shard index"

    def __init__(self, out: str | Path, tasks: int) -> None:
        """`out` is what the writers had, `tasks` how many of them there were."""
        super().__init__()
        self.out, self.tasks = str(out), tasks

    def run(self, data: Iterable[Document] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        if world_size != 1:
            raise ValueError(f"one task makes the index, not {world_size}: give it a pipeline of its own")
        yield from data or ()
        index = finish(self.out, self.tasks)
        self.stat_update("tokens", value=index.train_tokens + index.held_tokens, unit="index")


def finish(out: str, tasks: int) -> Index:
    """Write the index of what `tasks` tasks have written."""
    folder = storage(out)
    names = set(folder.names())
    missing = [rank for rank in range(tasks) if _note_file(rank, tasks) not in names]
    if missing:
        some = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise ValueError(f"{out}: {len(missing)} of {tasks} tasks are not done ({some}): run them again first")
    notes = [_read_note(folder, _note_file(rank, tasks)) for rank in range(tasks)]
    first = notes[0]
    chosen = Tokenizer(folder.read(tokenizer.FILE).decode(), first.special_tokens)
    for rank, note in enumerate(notes):
        if (note.tokenizer_sha256, note.held_out) != (chosen.hash, first.held_out):
            raise ValueError(f"{out}: task {rank} had another tokenizer or held_out than the others: run it again")
    shards = [shard for note in notes for shard in note.shards]
    if lost := [shard.file for shard in shards if shard.file not in names]:
        raise ValueError(f"{out}/{lost[0]} is missing: run its task again")
    index = write_index(folder, shards, chosen, first.held_out)
    for name in names:
        if fnmatch(name, "task-*-of-*.json") and not fnmatch(name, f"task-*-of-{tasks:05d}.json"):
            folder.remove(name)  # of another number of tasks
    return index


def _read_note(folder: Storage, name: str) -> Note:
    try:
        record = fields_of(json.loads(folder.read(name)), [f.name for f in fields(Note)], f"{folder}/{name}")
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder}/{name}: damaged ({error}): run its task again") from error
    names = [f.name for f in fields(Shard)]
    record["shards"] = tuple(Shard(**fields_of(shard, names, f"{folder}/{name}")) for shard in record["shards"])
    return Note(**record)
