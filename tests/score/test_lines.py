"""Lines of files, and how far reading them is."""

import os
import pty
import subprocess
import sys
import threading

from elektron.score.lines import lines


def test_it_tells_how_many_bytes_were_read(tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    paths[0].write_text("\u00e4 line\n" * 5000, encoding="utf-8")
    paths[1].write_text("no end")
    told: list[int] = []
    assert sum(1 for _ in lines([str(path) for path in paths], "", told.append)) == 5001
    assert sum(told) == sum(path.stat().st_size for path in paths)
    assert len(told) > 2, "not all at once"


def test_a_pipe_with_a_name_is_read_too(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("the cat\na dog\n",))
    writer.start()
    told: list[int] = []
    assert [line.text for line in lines([str(tmp_path / "pipe")], "", told.append)] == ["the cat", "a dog"]
    writer.join()
    assert not told


def test_a_bar_in_the_terminal_and_the_words_in_the_file(tmp_path):
    """Where standard output goes to a file, and only there."""
    (tmp_path / "text.txt").write_text("the cat\n" * 50)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "elektron", "detect", "text.txt", "--suggest", "0", "--threshold", "1"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with open(tmp_path / "out.txt", "wb") as file:
        subprocess.run(command, stdout=file, stderr=theirs, cwd=tmp_path, env=environment, check=True)
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "bytes" in said
    assert "0 of 100 words look replaced" in said
    assert (tmp_path / "out.txt").read_text() == "the cat\n" * 50
