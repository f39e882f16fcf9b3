"""Makes token ids of real text, for `warprow plan --trace tokens:…`. Needs the packages tokenizers and numpy; no network.

    python bench/ngram/tokens.py --to FOLDER NAME=PATH[,PATH…] [NAME=PATH…]

Each NAME is a kind of text, of all text files below its paths. A byte-level BPE is trained on equal parts of all kinds. The folder gets

- `NAME.u32`: the kind's tokens, a raw u32 each: whole documents in an order drawn by `--seed`, each with token 0 (`<end>`) behind it;
- `all.u32`: documents of all kinds, in an order drawn by the seed;
- `words.u32`: for each token the number that DeepSeek's hash takes in its place, its word: tokens that are written alike (case, accents and
  white space aside) have one, by the normalisation that the model's reference names;
- `facts.json`: documents, bytes and tokens of each kind, the vocabulary and its words.

Files that are equal count once. Of HTML the text counts, without tags; of manual pages the text, without requests of roff.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

END = "<end>"
#: Words that a hash of DeepSeek's has room for.
MOST_WORDS = 99_092
ENDINGS = {".html", ".htm", ".xhtml", ".txt", ".md", ".rst", ".rs", ".py", ".c", ".h"}
MANUAL = re.compile(r"\.[1-8](\.gz)?$")
LONGEST = 1 << 19


def text_of(path: Path) -> str | None:
    """The text of a file; None: it is none of these kinds."""
    manual = MANUAL.search(path.name) is not None
    ending = Path(path.name.removesuffix(".gz")).suffix
    if not manual and ending not in ENDINGS and path.name.lower() not in ("readme", "news"):
        return None
    body = path.read_bytes()
    if path.suffix == ".gz":
        body = gzip.decompress(body)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    if manual:
        text = re.sub(r'^[.\'](\\"|so\b|de\b).*$', "", text, flags=re.M)
        text = re.sub(r"^\.\s*[A-Za-z]+ ?", "", text, flags=re.M)
        text = re.sub(r"\\f(\[[^]]*\]|\(..|.)|\\[&/,:%|^]|\\m\[[^]]*\]", "", text).replace("\\-", "-").replace("\\(aq", "'")
    elif ending in (".html", ".htm", ".xhtml"):
        text = re.sub(r"(?is)<(script|style|head|nav)\b.*?</\1>", " ", text)
        text = html.unescape(re.sub(r"(?s)<[^>]*>", " ", text))
        text = re.sub(r"[ \t]+", " ", re.sub(r"\s*\n\s*", "\n", text))
    text = text.strip()
    # Very long files are lists and generated code.
    return text if 200 <= len(text) <= LONGEST else None


def documents(paths: list[Path]) -> Iterator[str]:
    """The texts below some paths, each once, in the order of their names."""
    seen = set()
    for above in paths:
        for path in sorted(above.rglob("*")) if above.is_dir() else [above]:
            if path.is_symlink() or not path.is_file():
                continue
            text = text_of(path)
            if text is None:
                continue
            digest = hashlib.sha256(text.encode()).digest()
            if digest not in seen:
                seen.add(digest)
                yield text


def trained(kinds: dict[str, list[str]], vocabulary: int, sample: int) -> Tokenizer:
    """A BPE of `sample` bytes of each kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )

    def parts() -> Iterator[str]:
        for texts in kinds.values():
            left = sample
            for text in texts:
                if left <= 0:
                    break
                yield text[:left]
                left -= len(text)

    tokenizer.train_from_iterator(parts(), trainer)
    return tokenizer


def words_of(tokenizer: Tokenizer) -> np.ndarray:
    """For each token its word: tokens that are alike once they are normalised have one."""
    space = "\ue000"
    normal = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), space),
            normalizers.Strip(),
            normalizers.Replace(space, " "),
        ]
    )
    words: dict[str, int] = {}
    found = np.empty(tokenizer.get_vocab_size(), np.uint32)
    for token in range(len(found)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        # A part of a character is a word of its own.
        name = tokenizer.id_to_token(token) if "\ufffd" in text else normal.normalize_str(text) or text
        found[token] = words.setdefault(name, len(words))
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("kinds", nargs="+", metavar="NAME=PATH,…")
    arguments.add_argument("--to", type=Path, required=True)
    arguments.add_argument("--vocabulary", type=int, default=120_000)
    arguments.add_argument("--sample", type=int, default=12 << 20, help="bytes of each kind that the BPE is trained on")
    arguments.add_argument("--tokens", type=int, default=4_000_000, help="the most tokens of a kind")
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    kinds = {}
    for kind in given.kinds:
        name, paths = kind.split("=", 1)
        kinds[name] = list(documents([Path(path) for path in paths.split(",")]))
        random.Random(given.seed).shuffle(kinds[name])
        print(f"{name}: {len(kinds[name])} documents, {sum(map(len, kinds[name])) / 1e6:.1f} million characters", flush=True)
    tokenizer = trained(kinds, given.vocabulary, given.sample)
    words = words_of(tokenizer)
    if words.max() >= MOST_WORDS:
        raise SystemExit(f"the vocabulary has {words.max() + 1} words, and {MOST_WORDS} fit: give a smaller --vocabulary")
    tokenizer.save(str(given.to / "tokenizer.json"))
    words.tofile(given.to / "words.u32")
    facts: dict[str, object] = {"seed": given.seed, "vocabulary": len(words), "words": int(words.max()) + 1, "kinds": {}}
    end, pieces = tokenizer.token_to_id(END), []
    for name, texts in kinds.items():
        tokens, count, characters = [], 0, 0
        for text, found in zip(texts, tokenizer.encode_batch(texts)):
            if count + len(found.ids) + 1 > given.tokens:
                break
            tokens.append(np.array([*found.ids, end], np.uint32))
            count, characters = count + len(found.ids) + 1, characters + len(text)
        np.concatenate(tokens).tofile(given.to / f"{name}.u32")
        pieces += tokens
        facts["kinds"][name] = {"documents": len(tokens), "tokens": count, "characters": characters}
        print(f"{name}: {count} tokens", flush=True)
    random.Random(given.seed).shuffle(pieces)
    np.concatenate(pieces).tofile(given.to / "all.u32")
    (given.to / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
