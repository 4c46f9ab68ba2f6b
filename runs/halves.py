"""Lists of hypotheses in two halves, one to tune on and one to judge: every other speaker.

    python runs/halves.py dev-clean.am.json tune.json test.json

The file is one object of utterances, whose names begin with their speaker's ("1272-128104-0000").
"""

import json
import sys
from pathlib import Path


def main(lists: str, *halves: str) -> None:
    utterances = json.loads(Path(lists).read_text(encoding="utf-8"))
    speakers = sorted({name.split("-")[0] for name in utterances})
    for number, half in enumerate(halves):
        mine = set(speakers[number :: len(halves)])
        part = {name: hypotheses for name, hypotheses in utterances.items() if name.split("-")[0] in mine}
        Path(half).write_text(json.dumps(part), encoding="utf-8")
        print(f"{half}: {len(part):,} utterances of {len(mine)} speakers")


if __name__ == "__main__":
    main(*sys.argv[1:])
