"""Tokenizers: WordPiece trained here, or any that the `tokenizers` library reads, with the ids ELECTRA needs."""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from elektron.data.files import genuine, read_json, write_atomically, write_json, write_manifest
from elektron.data.storage import is_url, storage

FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
VOCABULARY = "vocab.txt"
ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""The five special tokens and their usual names."""
SMALLEST = 16
"""Tokens of a vocabulary worth training: the special ones and a few letters."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How a tokenizer is trained, or which one is taken."""

    tokenizer: str = "train"
    """A tokenizer.json (or its URL), a vocab.txt or a Hugging Face folder; 'train' makes a WordPiece tokenizer from the
    corpus."""
    vocab_size: int = 30522
    """Tokens of the vocabulary to train."""
    lowercase: bool = True
    """Fold case, when training or reading a vocab.txt."""
    strip_accents: bool = True
    """Drop combining marks, when training or reading a vocab.txt."""
    character_coverage: float = 0.9999
    """Share of the text's characters that get a token of their own, whatever the script; the rest becomes [UNK]."""
    sample_megabytes: int = 512
    """Text to train on at the most, taken evenly from all of the corpus."""

    def __post_init__(self) -> None:
        if self.vocab_size < SMALLEST:
            raise ValueError(f"--vocab-size {self.vocab_size} is too small: at least {SMALLEST}")
        if not 0 < self.character_coverage <= 1:
            raise ValueError(f"--character-coverage lies in (0, 1], not {self.character_coverage}")
        if self.sample_megabytes < 1:
            raise ValueError(f"--sample-megabytes must be at least 1, not {self.sample_megabytes}")


class Specials(NamedTuple):
    """The ids of the special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Pieces(NamedTuple):
    """The tokens of a text, and where in it they are."""

    ids: np.ndarray  # [n]
    offsets: np.ndarray  # [n, 2] the first of the characters it came from, and the one after the last
    words: np.ndarray  # [n] the number of its word; -1 where the tokenizer knows of none


class Tokenizer:
    """A tokenizer, its special ids and the hash that names it. `json` is what is written to tokenizer.json."""

    def __init__(self, text: str, names: dict[str, str] = ROLES) -> None:
        self.json = text
        self.names = names
        """The special token of each role."""
        self._tokenizer = _plain(text)
        self.hash = hashlib.sha256(_canonical(text).encode()).hexdigest()
        vocabulary = self._tokenizer.get_vocab()
        missing = [name for name in names.values() if name not in vocabulary]
        if missing:
            raise ValueError(f"the vocabulary has no {', '.join(missing)}; ELECTRA needs {', '.join(names.values())}")
        self.vocab_size = max(vocabulary.values()) + 1
        self.specials = Specials(**{role: vocabulary[name] for role, name in names.items()})
        pad, unk, cls, sep, mask = self.specials
        self._from_text = np.arange(self.vocab_size, dtype=np.uint32)
        self._from_text[[pad, cls, sep, mask]] = unk

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the texts one after the other, and how many each has.

        Specials other than [UNK] never come out of text: a literal '[MASK]' is three words like any others, and where a
        tokenizer splits at spaces alone and would look it up as a word, it is unknown.
        """
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        parts = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        return self._from_text[np.concatenate([np.empty(0, np.uint32), *parts])], lengths

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._tokenizer.id_to_token(i) or "" for i in ids]

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Each token as it stands in text, without the marks of where words begin."""
        return [self._tokenizer.decode([i], skip_special_tokens=False).strip() for i in ids]

    def text(self, ids: Sequence[int]) -> str:
        """The tokens as text: their words, if not always the spaces and capitals that were there."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def split(self, texts: Sequence[str]) -> list[Pieces]:
        """The tokens of each text, and where in it they are."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ids = self._from_text[_flat((encoding.ids for encoding in encodings), np.int64)].astype(np.int32)
        offsets = _flat((chain.from_iterable(encoding.offsets) for encoding in encodings), np.int32).reshape(-1, 2)
        words = _flat(((-1 if n is None else n for n in encoding.word_ids) for encoding in encodings), np.int32)
        ends = np.cumsum([0, *map(len, encodings)]).tolist()
        found = [Pieces(ids[a:b], offsets[a:b], words[a:b]) for a, b in pairwise(ends)]
        return [p if t.isascii() else _with_marks(p, t) for p, t in zip(found, texts, strict=True)]


def _flat(parts: Iterable[Iterable[int]], kind: type) -> np.ndarray:
    """The numbers of all texts at once: an array for each would take longer than its numbers."""
    return np.fromiter(chain.from_iterable(parts), kind)


def _with_marks(pieces: Pieces, text: str) -> Pieces:
    """Accents that the tokenizer strips belong to the letter before them."""
    offsets = pieces.offsets.copy()
    limits = np.append(offsets[1:, 0], len(text))
    for i in np.flatnonzero(offsets[:, 1] < limits):
        while offsets[i, 1] < limits[i] and unicodedata.category(text[offsets[i, 1]]).startswith("M"):
            offsets[i, 1] += 1
    return pieces._replace(offsets=offsets)


def save(tokenizer: Tokenizer, folder: Path, longest: int) -> None:
    """Write a tokenizer as transformers and `load` read it; `longest` is how many tokens its model can take."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **{f"{role}_token": name for role, name in tokenizer.names.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FILE, tokenizer.json.encode())
    write_json(folder / SETTINGS, settings)
    write_manifest(folder)


def load(source: str | Path, config: TokenizerConfig) -> Tokenizer:
    """The tokenizer in a file or a Hugging Face folder, or in a tokenizer.json behind a URL."""
    if is_url(source):
        return _from_url(str(source))
    path = Path(source)
    if path.is_dir():
        return _from_folder(path, config)
    if not path.is_file():
        raise ValueError(f"no such tokenizer: {str(source)!r} is neither a file nor a folder")
    if path.suffix == ".json":
        return _from_json(path, ROLES)
    return _from_vocabulary(path, config.lowercase, config.strip_accents)


def _from_url(url: str) -> Tokenizer:
    folder, _, name = url.rpartition("/")
    try:
        return Tokenizer(storage(folder).read(name).decode())
    except FileNotFoundError:
        raise ValueError(f"no such tokenizer: {url}") from None
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from error


def _from_json(path: Path, names: dict[str, str]) -> Tokenizer:
    try:
        return Tokenizer(_text(path), names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _text(path: Path) -> str:
    try:
        return genuine(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text, so neither a tokenizer.json nor a vocab.txt ({error})") from error


def _from_folder(folder: Path, config: TokenizerConfig) -> Tokenizer:
    settings = _settings(folder / "special_tokens_map.json") | _settings(folder / SETTINGS)
    names = {role: _token_text(settings.get(f"{role}_token", usual), folder) for role, usual in ROLES.items()}
    if (folder / FILE).is_file():
        return _from_json(folder / FILE, names)
    if (folder / VOCABULARY).is_file():
        lowercase = settings.get("do_lower_case", config.lowercase)
        accents = settings.get("strip_accents")
        return _from_vocabulary(folder / VOCABULARY, lowercase, lowercase if accents is None else accents)
    raise ValueError(f"no tokenizer in folder {str(folder)!r}: expected {FILE} or {VOCABULARY}")


def _settings(path: Path) -> dict[str, Any]:
    found = read_json(genuine(path)) if path.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path}: damaged (no JSON object)")
    return found


def _token_text(token: Any, path: Path) -> str:  # noqa: ANN401
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError(f"{path}: {token!r} is no special token")
    return text


def _from_vocabulary(path: Path, lowercase: bool, strip_accents: bool) -> Tokenizer:
    words = _text(path).removesuffix("\n").split("\n")  # not splitlines: it takes U+2028, a token, for a line's end
    vocabulary = {word: i for i, word in enumerate(words)}
    if len(vocabulary) < len(words):
        twice = next(word for i, word in enumerate(words) if vocabulary[word] != i)
        raise ValueError(f"{path}: not a vocabulary: {twice[:40]!r} stands in it more than once")
    missing = [name for name in ROLES.values() if name not in vocabulary]
    if missing:
        raise ValueError(
            f"{path}: the vocabulary has no {', '.join(missing)}; ELECTRA needs {', '.join(ROLES.values())}"
        )
    cased = next((w for w in words if w != w.lower() and w not in ROLES.values() and not w.startswith("[unused")), None)
    if lowercase and cased:
        raise ValueError(
            f"{path}: a cased vocabulary (it has {cased!r}) cannot be used lower-cased; pass --no-lowercase"
        )
    return _word_piece(vocabulary, lowercase, strip_accents)


def train(texts: Callable[[], Iterator[str]], config: TokenizerConfig) -> Tokenizer:
    """WordPiece from text. `texts` is called twice: once for the alphabet, once for the pieces.

    The library numbers the characters inside words as it meets them in a hash table and breaks ties by number, so two
    runs on the same text differ. Naming these characters beforehand makes the vocabulary a function of the text.
    """
    normalizer, splitter = _normalizer(config.lowercase, config.strip_accents), pre_tokenizers.BertPreTokenizer()
    alphabet = _alphabet(texts(), normalizer, config)
    inside = [c for c in alphabet if [w for w, _ in splitter.pre_tokenize_str(f"a{c}")] == [f"a{c}"]]
    raw = tokenizers.Tokenizer(models.WordPiece(unk_token=ROLES["unk"]))  # pyright: ignore[reportCallIssue]
    raw.normalizer, raw.pre_tokenizer = normalizer, splitter
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[*ROLES.values(), *(f"##{c}" for c in inside)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    raw.train_from_iterator(texts(), trainer)
    return _word_piece(raw.get_vocab(), config.lowercase, config.strip_accents)


def _alphabet(texts: Iterator[str], normalizer: normalizers.Normalizer, config: TokenizerConfig) -> list[str]:
    """The commonest characters that make up `character_coverage` of the text, at most a third of the vocabulary."""
    raw: Counter[int] = Counter()
    for text in texts:
        codes, times = np.unique(np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32), return_counts=True)
        raw.update(dict(zip(codes.tolist(), times.tolist(), strict=True)))
    counts: Counter[str] = Counter()
    for code, count in raw.items():
        for character in "".join(normalizer.normalize_str(chr(code)).split()):
            counts[character] += count
    if not counts:
        raise ValueError("the corpus is empty: no text to train a tokenizer on")
    ranked = sorted(counts, key=lambda c: (-counts[c], c))
    covered = np.cumsum([counts[c] for c in ranked]) >= config.character_coverage * counts.total()
    return ranked[: min(int(covered.argmax()) + 1, config.vocab_size // 3)]


def _normalizer(lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )


def _word_piece(vocabulary: dict[str, int], lowercase: bool, strip_accents: bool) -> Tokenizer:
    """BERT's tokenizer around a vocabulary, rows laid out [CLS] A [SEP] B [SEP]."""
    model = models.WordPiece(vocabulary, unk_token=ROLES["unk"], max_input_chars_per_word=200)  # pyright: ignore[reportCallIssue]
    raw = tokenizers.Tokenizer(model)
    raw.normalizer = _normalizer(lowercase, strip_accents)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece(prefix="##")
    raw.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ROLES.values()])
    cls, sep = ROLES["cls"], ROLES["sep"]
    raw.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    return Tokenizer(raw.to_str())


def _plain(text: str) -> tokenizers.Tokenizer:
    try:
        raw = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"not a tokenizer.json that the tokenizers library can read: {error}") from error
    raw.no_padding()
    raw.no_truncation()
    raw.encode_special_tokens = True
    return raw


def _canonical(text: str) -> str:
    """The parts of tokenizer.json that decide which ids come out, in one spelling."""
    content = json.loads(text)
    return json.dumps({k: v for k, v in content.items() if k not in ("padding", "truncation")}, sort_keys=True)
