import os
import subprocess
import sys

import pytest

from elektron.data.files import locked, new_folder


def test_a_new_folder_takes_the_old_one_s_place_or_leaves_it(tmp_path):
    folder = tmp_path / "model"
    for content in ("old", "new"):
        with new_folder(folder) as unfinished:
            (unfinished / "file").write_text(content)
            assert not folder.exists() or (folder / "file").read_text() == "old"
    assert (folder / "file").read_text() == "new"
    with pytest.raises(OSError, match="nowhere"), new_folder(folder) as unfinished:
        (unfinished / "nowhere" / "file").write_text("half")
    assert (folder / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_is_one_process_s_at_a_time(tmp_path):
    script = (
        "import sys; from pathlib import Path; from elektron.data.files import locked\n"
        "with locked(Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    with locked(tmp_path / "run"):
        done = subprocess.run(command, capture_output=True, text=True)
        assert "is in use by another process" in done.stderr
    assert subprocess.run(command).returncode == 0
    assert not (tmp_path / "run").exists()
