"""QQP as GLUE has it, from the whole public release of Quora's question pairs: `quora_duplicate_questions.tsv`.

    python runs/qqp.py quora_duplicate_questions.tsv glue/QQP

GLUE's own split is not public apart from GLUE. Ours is fixed: of all pairs in the order of the SHA-256 of their id, the
first 40,430 (as many as GLUE's development set has) are dev.tsv, the others train.tsv.
"""

import csv
import hashlib
import sys
from pathlib import Path

DEV = 40_430


def main(release: str, folder: str) -> None:
    csv.field_size_limit(1 << 24)
    with open(release, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    rows = [[" ".join(field.split()) for field in row] for row in rows]
    rows = [row for row in rows if len(row) == len(header) and row[5] in ("0", "1")]
    rows.sort(key=lambda row: hashlib.sha256(row[0].encode()).hexdigest())
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, part in (("dev", rows[:DEV]), ("train", rows[DEV:])):
        lines = ["\t".join(header), *("\t".join(row) for row in part)]
        Path(folder, f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(part):,} pairs, {sum(row[5] == '1' for row in part) / len(part):.1%} duplicates")


if __name__ == "__main__":
    main(*sys.argv[1:])
