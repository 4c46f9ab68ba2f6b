"""Our reading of texts beside transformers' pipeline-by-hand: the same discriminator, the same texts, in one run.

    python benchmarks/score.py --model FOLDER --texts FILE [--lines 2000] [--rounds 3] [--precision bfloat16]

FOLDER is a Hugging Face folder of an ELECTRA discriminator, FILE has a text a line. Theirs is AutoTokenizer and
ElectraForPreTraining in padded batches as the texts come, of the size that is fastest on some of them, in bfloat16 on a
GPU; ours is `score/reader.py` as `elektron detect` uses it: logits with offsets, and with words in a line of its own.
Tokens are counted without padding. Rounds alternate; told are medians, and how far the two are apart in what they say.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from elektron.score.words import words_of
from elektron.train.device import choose_device, describe, keep_freed_memory
from elektron.verbs.judges import Who, open_judges

_SIZES = (1, 4, 8, 16, 32, 64, 128, 256, 1024)


class Theirs:
    def __init__(self, folder: Path, device: torch.device) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model: Any = transformers.ElectraForPreTraining.from_pretrained(folder, dtype=dtype)
        self._model = model.eval().to(device)
        self._device, self.size = device, 1

    @torch.inference_mode()
    def __call__(self, texts: list[str]) -> list[np.ndarray]:
        found = []
        for first in range(0, len(texts), self.size):
            inputs = self._tokenizer(
                texts[first : first + self.size], padding=True, truncation=True, return_tensors="pt"
            )
            logits = self._model(**inputs.to(self._device)).logits.float().cpu().numpy()
            lengths = inputs["attention_mask"].sum(1).tolist()
            found += [row[1 : length - 1] for row, length in zip(logits, lengths, strict=True)]
        return found

    def choose(self, texts: list[str]) -> None:
        self.size = min(_SIZES, key=lambda size: self._timed(size, texts))

    def _timed(self, size: int, texts: list[str]) -> float:
        self.size = size
        self(texts[:size])
        return timed(lambda: self(texts))[0]


def timed(act: Callable[[], list[np.ndarray]]) -> tuple[float, list[np.ndarray]]:
    begin = time.perf_counter()
    found = act()
    return time.perf_counter() - begin, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto", help="ours")
    options = parser.parse_args()
    device = choose_device("auto")
    if device.type == "cpu":
        keep_freed_memory()
    texts = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line.strip()][: options.lines]
    judges = open_judges(Who(model=str(options.model), lead="", precision=options.precision))
    reader = judges.reader("detection")

    def ours() -> list[np.ndarray]:
        return [reading.said for reading in reader.read(texts)]

    def with_words() -> list[np.ndarray]:
        return [np.array([word.replaced for word in words_of(reading)]) for reading in reader.read(texts)]

    theirs = Theirs(options.model, device)
    theirs.choose(texts[: max(64, len(texts) // 8)])
    ours()
    ways = {"theirs": lambda: theirs(texts), "ours": ours, "and words": with_words}
    seconds: dict[str, list[float]] = {who: [] for who in ways}
    said: dict[str, list[np.ndarray]] = {}
    for _ in range(options.rounds):
        for who, act in ways.items():
            took, said[who] = timed(act)
            seconds[who].append(took)
    tokens = {who: sum(map(len, said["theirs" if who == "theirs" else "ours"])) for who in ways}
    pairs = zip(said["ours"], said["theirs"], strict=True)
    apart = np.concatenate([a[: len(b)] - b for a, b in pairs])  # theirs cut what is too long
    print(f"{describe(device)}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{len(texts):,} texts, {tokens['ours']:,} tokens; their best batch has {theirs.size}")
    print(f"logits {np.sqrt(np.square(apart).mean()):.1e} apart (root mean square), {np.abs(apart).max():.1e} at most")
    rates = {who: tokens[who] / statistics.median(took) for who, took in seconds.items()}
    for who, rate in rates.items():
        print(f"{who:10}{rate:12,.0f} tokens/s{rate / rates['theirs']:8.2f}x")


if __name__ == "__main__":
    main()
