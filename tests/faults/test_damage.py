"""Files that are cut off or have a bit flipped: refused by name, or of no consequence; never another result."""

import shutil
from pathlib import Path

import pytest

from elektron.data.files import MANIFEST
from elektron.train.checkpoint import FOLDER, all_steps
from faults.commands import Commands, Ended, Fate, Moment
from faults.conftest import MODEL, PHASES, TUNING, WATCH, contents
from faults.counting import Faults


def damage(path: Path, faults: Faults) -> None:
    """A bit flipped, or, one time in four, all cut off from some place on."""
    content = bytearray(path.read_bytes())
    at = faults.random.randrange(len(content))
    if faults.random.random() < 0.25:
        del content[at:]
    else:
        content[at] ^= 1 << faults.random.randrange(8)
    path.write_bytes(content)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def refused(ended: Ended, path: Path) -> bool:
    """Whether it was, and if so in one sentence that names the file."""
    assert ended.code in (0, 2), ended.said
    assert "Traceback" not in ended.said, ended.said
    if ended.code == 2:
        folder = path.parent.name if path.parent.parent.name == FOLDER else path.name
        assert folder in ended.said.rpartition("elektron: ")[2], f"{path}: {ended.said}"
    return ended.code == 2


@pytest.fixture(scope="module")
def half(workshop: Path, commands: Commands, text_file: Path) -> tuple[Path, dict[str, bytes]]:
    """A run, with all that it needs in its folder, that was stopped after step 8; and what it comes to."""
    run, kept = workshop / "half" / "run", workshop / "half" / "kept"
    words = "pretrain", "--corpus", text_file, "--prepare.vocab-size", 128, "--prepare.processes", 1, "--run", run
    flags = *MODEL, *WATCH, *PHASES
    commands.start(*words, *flags, fate=Fate(moment=Moment(5, ("step-00000012",)))).end()
    assert all_steps(run) == [4, 8]
    for left_behind in (run / FOLDER).glob(".*"):
        shutil.rmtree(left_behind)
    shutil.copytree(run, kept)
    commands.done("pretrain", "--run", run)
    return kept, contents(run)


def test_a_run_with_a_damaged_file(half, commands: Commands, faults: Faults):
    """Any file of its folder, and the run goes on from there. An older checkpoint is offered where there is one."""
    kept, expected = half
    run, files = kept.with_name("run"), files_of(kept)
    for _ in range(faults.times(5, 200)):
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        path = run / faults.random.choice(files).relative_to(kept)
        damage(path, faults)
        with faults.inject("a run with a file cut off or a bit flipped"):
            ended = commands.run("pretrain", "--run", run)
            if refused(ended, path):
                if path.parent.name == "step-00000008":
                    assert "to go on from step 4" in ended.said
                    shutil.rmtree(path.parent)
                    commands.done("pretrain", "--run", run)
                    faults.same(expected, contents(run))
                continue
            own = str(path.relative_to(run))  # some are not read: what was damaged still is
            faults.same(_but(expected, own), _but(contents(run), own))


def _but(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {other: content for other, content in files.items() if other != name}


def test_data_with_a_damaged_file(prepared: Path, commands: Commands, faults: Faults, tmp_path):
    """A new run on it, which nothing but its own checksums can warn."""
    words = "pretrain", *MODEL, "--train.phases", 3, 16, 4, "--data"
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(prepared, data)
    commands.done(*words, data, "--run", run)
    expected, files = contents(run), files_of(prepared)
    for _ in range(faults.times(4, 200)):
        for folder in (data, run):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(prepared, data)
        path = data / faults.random.choice(files).relative_to(prepared)
        damage(path, faults)
        with faults.inject("prepared data with a file cut off or a bit flipped"):
            if not refused(commands.run(*words, data, "--run", run), path):
                faults.same(expected, contents(run))


@pytest.mark.parametrize("with_manifest", [True, False])
def test_an_exported_folder_with_a_damaged_file(
    with_manifest: bool, finished: Path, prepared: Path, commands: Commands, faults: Faults, tmp_path
):
    """Without a manifest, which other people's folders do not have, nobody can tell weights from other weights; but it
    must not crash."""
    to = tmp_path / "out"
    words = "evaluate", to, "--data", prepared, "--rows", 8, "--length", 16, "--json"
    commands.done("export", finished, "--to", to)
    expected = commands.done(*words).said
    shutil.copytree(to, tmp_path / "kept")
    files = [path for path in files_of(to) if with_manifest or path.name != MANIFEST]
    for _ in range(faults.times(3, 100)):
        shutil.rmtree(to)
        shutil.copytree(tmp_path / "kept", to)
        path = faults.random.choice(files)
        damage(path, faults)
        if not with_manifest:
            path.with_name(MANIFEST).unlink(missing_ok=True)
        with faults.inject(f"an exported folder {'' if with_manifest else 'without a manifest '}damaged"):
            ended = commands.run(*words)
            if with_manifest:
                sums = path.with_name(MANIFEST) if path.name == MANIFEST else path
                assert refused(ended, sums) or ended.said == expected, path
            else:
                assert ended.code in (0, 2), ended.said
                assert "Traceback" not in ended.said, f"{path}: {ended.said}"


def test_a_result_with_a_damaged_byte(finished: Path, glue: Path, commands: Commands, faults: Faults, tmp_path):
    """Of fine-tuning, which is not learned again."""
    out = tmp_path / "out"
    words = "finetune", "cola", "--model", finished, "--data", glue, "--out", out, *TUNING
    commands.done(*words)
    path = out / "cola" / "seed-1" / "result.json"
    expected, content = commands.done(*words).said, path.read_bytes()
    for _ in range(faults.times(1, 50)):
        path.write_bytes(content)
        damage(path, faults)
        with faults.inject("a result of fine-tuning damaged"):
            ended = commands.run(*words)
            assert refused(ended, path) or ended.said == expected
