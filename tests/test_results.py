"""The tables of docs/results.md are those that the stored runs make."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tables(root: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, root / "runs" / "tables.py", *flags], capture_output=True, text=True)


def test_the_tables_are_what_the_runs_say():
    done = tables(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_a_number_that_is_not_the_runs_is_found_and_mended(tmp_path):
    for name in ("runs/tables.py", "docs/results.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs" / "experiments" / "runs", tmp_path / "docs" / "experiments" / "runs")
    page, before = tmp_path / "docs" / "results.md", (ROOT / "docs" / "results.md").read_text()
    assert "70.7 (69.1 to 71.2)" in before
    page.write_text(before.replace("70.7 (69.1 to 71.2)", "80.7 (69.1 to 71.2)"))
    assert tables(tmp_path, "--check").returncode == 1
    assert tables(tmp_path).returncode == 0
    assert page.read_text() == before
