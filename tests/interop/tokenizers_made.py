# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of the published forms, trained on a text that is there: the same normalizers, pre-tokenizers, models and
decoders as the files of GPT-2, Llama 3, Qwen 3, DeepSeek V3, GPT-4o (o200k), Llama 2, BERT, T5, XLNet and ALBERT have; and
hostile texts."""
import base64
import json
import random
import struct
import unicodedata

import tiktoken
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
O200K = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])
FAMILIES = {"gpt2": GPT2, "cl100k": CL100K, "o200k": O200K, "llama3": LLAMA3, "llama4": O200K, "qwen": QWEN}
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" "\r\n" r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[""" "\r\n" r"""]*|\s*[""" "\r\n" r"""]+|\s+(?!\S)|\s+"""]


def split(*patterns):
    steps = [pre_tokenizers.Split(tokenizers.Regex(p), behavior="isolated") for p in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


BYTE_LEVEL = {  # name: (normalizer, pre-tokenizer, ignore_merges, special tokens, other added tokens)
    "gpt2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False), False, ["<|endoftext|>"], []),
    "gpt2_prefix": (None, pre_tokenizers.ByteLevel(add_prefix_space=True), False, ["<|endoftext|>"], []),
    "llama3": (None, split(LLAMA3), True, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], []),
    "qwen3": (normalizers.NFC(), split(QWEN), False, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
              ["<think>", "</think>", "<tool_call>"]),
    "neox": (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False), False, ["<|endoftext|>", "<|padding|>"],
             [tokenizers.AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)]),
    "deepseek": (None, split(*DEEPSEEK), False,
                 ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"], []),
    "o200k": (None, split(O200K), True, ["<|endoftext|>"], []),
}


def byte_level(name, lines, size=2048):
    normalizer, pre_tokenizer, whole, special, others = BYTE_LEVEL[name]
    t = tokenizers.Tokenizer(models.BPE(ignore_merges=whole))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer, t.decoder = pre_tokenizer, decoders.ByteLevel()
    t.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_tokens([o if isinstance(o, tokenizers.AddedToken) else tokenizers.AddedToken(o, normalized=False) for o in others])
    t.encode_special_tokens = True  # special tokens in a text are text
    return t


def added(rng, normalizer):
    """A tokenizer of a few merges, with added tokens that take white space, stand alone or are normalized, or not; and texts
    that are made of them."""
    parts = ["ab", "AB", "Ab\u00c9", "a", "B", " ", "  ", "\n", "\u00e9", "e\u0301", "E", "x1", "_", "-", "<x>", "[y]", "\u2581", "\u3000",
             "\u0301", "\u24b6", "\u200d", "\u203f", "\u0967", "\u2167", "\u00b2", "\u4e00", "\U0001f170", "\ufe0f"]
    t = byte_level("gpt2", ["some text about abab ab b  a x1 <x>"], 300)
    t.normalizer = normalizer
    names = sorted({"".join(rng.choices(parts, k=rng.randrange(1, 4))) for _ in range(rng.randrange(1, 9))})
    strips, seen = rng.random() < 0.5, set()  # tokenizers panics where one token takes the white space that is another one
    for name in names:
        some = {flag: rng.random() < 0.4 for flag in ("single_word", "lstrip", "rstrip", "normalized")}
        some["rstrip"] &= strips
        form = normalizer.normalize_str(name) if normalizer and some["normalized"] else name
        some["lstrip"] &= not (strips and form[:1].isspace())
        if form and form not in seen:  # of two that are one it takes any, what is empty it finds everywhere
            t.add_tokens([tokenizers.AddedToken(name, **some)])
        seen.add(form)
    return t, ["".join(rng.choice((rng.choice(names), rng.choice(parts), rng.choice(parts)))
                       for _ in range(rng.randrange(1, 10))) for _ in range(50)]


def characters(lines, size=1500):
    """Llama 2's form: characters, what is none in bytes."""
    t = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")  # for training only: words
    t.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
        show_progress=False))
    t.pre_tokenizer = None
    t.encode_special_tokens = True
    return t


WORDPIECE = {  # name: (normalizer, pre-tokenizer)
    "bert": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "bert_cased": (normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()),
    "bert_accents": (normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False),
                     pre_tokenizers.BertPreTokenizer()),
    "words": (normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
              pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous")])),
}


def wordpiece(name, lines, size=1500):
    t = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100 if name == "bert" else 20))
    t.normalizer, t.pre_tokenizer = WORDPIECE[name]
    t.decoder = decoders.WordPiece(cleanup=name != "words")
    t.train_from_iterator(lines, trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    return t


def charsmap(table):
    """The precompiled_charsmap of a table from texts to texts: a double array, as SentencePiece writes it."""
    root, texts, starts = {}, bytearray(), {}
    for key, value in table.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        if value not in starts:
            starts[value] = len(texts)
            texts += value.encode() + b"\0"
        node[0] = starts[value]
    units, free, pending = {0: 0}, 1, [(root, 0)]
    while pending:
        node, at = pending.pop()
        while free in units:
            free += 1
        base = free
        while any(base ^ label in units for label in node):
            base += 1
        units[at] |= (at ^ base) << 10 | (0 in node) << 8
        for label, child in node.items():
            units[base ^ label] = 1 << 31 | child if label == 0 else label
            if label:
                pending.append((child, base ^ label))
    array = bytearray(4 * (max(units) | 255) + 4)
    for at, unit in units.items():
        struct.pack_into("<I", array, 4 * at, unit)
    return struct.pack("<I", len(array)) + bytes(array + texts)


def compatible_characters(last=0x10000):
    """Like SentencePiece's nmt_nfkc: characters and pairs to their normal form KC, what is not seen to spaces or nothing."""
    table = {chr(c): "" for c in (*range(1, 9), 11, *range(14, 32), 127)} | {c: " " for c in "\t\n\r\u200b\u200e\u2028\ufeff"}
    for one in map(chr, range(0x80, last)):
        text = unicodedata.normalize("NFKC", one)
        pair = unicodedata.decomposition(one).split()
        if text != one and not "\ud800" <= one <= "\udfff":
            table[one] = text
        elif len(pair) == 2 and not pair[0].startswith("<"):
            table["".join(chr(int(p, 16)) for p in pair)] = one
    table |= {kana + mark: unicodedata.normalize("NFKC", kana + mark) for kana in "\uff76\uff77\uff8a" for mark in "\uff9e\uff9f"}
    return table


def unigram_forms(last=0x10000):
    """name: (normalizer, pre-tokenizer, byte_fallback)"""
    spaces = normalizers.Replace(tokenizers.Regex(" {2,}"), "\u2581")
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    precompiled = normalizers.Precompiled(charsmap(compatible_characters(last)))
    mark = pre_tokenizers.Metaspace()
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    return {
        "t5": (normalizers.Sequence([precompiled, normalizers.Strip(left=False, right=True), spaces]), mark, False),
        "t5_words": (precompiled, words, False),
        "xlnet": (normalizers.Sequence([*quotes, normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                        precompiled]), words, False),
        "sentencepiece": (normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                                normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]), mark, True),
        "whole": (normalizers.Sequence([normalizers.Strip(), normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
                  None, True),
    }


def unigram(form, lines, size=1500):
    normalizer, pre_tokenizer, fallback = form
    t = tokenizers.Tokenizer(models.Unigram())
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre_tokenizer or pre_tokenizers.Metaspace(), decoders.Metaspace()
    t.train_from_iterator(lines, trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    file = json.loads(t.to_str())
    if fallback:
        file["model"]["vocab"] += [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
        file["model"]["byte_fallback"] = True
    if not pre_tokenizer:
        file["pre_tokenizer"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(file))


def without_special(text):
    """The tokenizer of a file's text, with special tokens that no text spells: these models find them otherwise."""
    file = json.loads(text)
    model, names = file["model"], {m["content"]: f"\U0010fffe{'x' * 60}{m['id']}" for m in file["added_tokens"] if m["special"]}
    file["added_tokens"] = [m for m in file["added_tokens"] if not m["special"]]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
        model["unk_token"] = names[model["unk_token"]]
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    return tokenizers.Tokenizer.from_str(json.dumps(file))


def ranks(lines, size=2048, pattern=LLAMA3):
    """{bytes: rank} of a byte-level tokenizer trained on the lines, as tiktoken has them."""
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = split(pattern)
    t.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    byte_of = {}  # the letters of the alphabet, in the order of what they stand for
    others = 0
    for byte in range(256):
        prints = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte
        byte_of[chr(byte if prints else 256 + others)] = byte
        others += not prints
    tokens = sorted(t.get_vocab().items(), key=lambda item: item[1])
    return {bytes(byte_of[c] for c in token): rank for rank, (token, _) in enumerate(tokens)}


def write_ranks(table, path):
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in table.items()))


def tiktoken_of(table, pattern=LLAMA3):
    return tiktoken.Encoding("made", pat_str=pattern, mergeable_ranks=table, special_tokens={})


def family_ids(table, family):
    """What a list of texts becomes: Qwen's tokenizers bring text to normal form C first, as tokenizers does it."""
    t, form = tiktoken_of(table, FAMILIES[family]), normalizers.NFC() if family == "qwen" else None
    return lambda texts: [t.encode_ordinary(form.normalize_str(s) if form else s) for s in texts]


def tekken(table, special, more=10):
    """A tekken.json: its ids begin behind `special` special ones, and of the ranks the last ones are not used."""
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode(errors="replace")}
             for token, rank in table.items()]
    return {"config": {"pattern": TEKKEN, "num_vocab_tokens": len(table), "default_vocab_size": len(table) - more + special,
                       "default_num_special_tokens": special, "version": "v3"}, "vocab": vocab}


def tekken_ids(file):
    config = file["config"]
    special = config["default_num_special_tokens"]
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in file["vocab"][:config["default_vocab_size"] - special]}
    t = tiktoken_of(ranks, config["pattern"])
    return lambda texts: [[i + special for i in t.encode_ordinary(s)] for s in texts]


NASTY = ("\ud7ff\ue000\ufffd\uffff\ufeff\u200b\u200c\u200d\u2060\u00ad\u034f\u180e\u2028\u2029\u0085\u00a0\u1680\u3000\u202f"
         "\U0010ffff\U000e0001\U000e0041\U0001f468\U0001f469\U0001f3fb\ufe0f\ufe0e\u20e3\U0001f1e6\U0001f1ff"
         "\u0300\u0301\u0316\u0327\u0328\u0338\u0340\u0341\u0343\u0344\u0345\u05b0\u05bc\u0f71\u0f72\u0f74\u0f81\u3099\u309a"
         "\u1100\u1161\u11a8\u11a7\u11c2\uac00\uac01\ud7a3\u1113\u0958\u09c7\u09be\u0b47\u0b56\u2126\u212a\u212b\u017f\u0130\u0131"
         "\u1e9b\u0323\u00c5\u00e9e\u0041\u030a\ufb01\uf900\U0002f800\u2adc\u0374\u037e\u00b2\u2460\u216b\u0660\u096f\u4e00\u3042"
         "\u01c5\u02b0\u00aa\u0c55\u0e33\u0e31'\u2019\t\n\r\v\f\x01\x1b\x7f !?.,#-_/\\<>|\"0123456789")
CUTS = ["'s", "'T", "'re", "'VE", "'m", "'lL", "'d", "'\u017f", " 's", "don't", "<|endoftext|>", "<|begin_of_text|>",
        "<think>", "</think>", "<tool_call>", "<|im_start|>", "\r\n", "\n\n", "  ", " \n ", "\t\t", "1234", "<0x41>", "\u2581",
        "<s>", "<unk>", "</s>", "<pad>", "[SEP]", "[UNK]", "[MASK]", "##ing", "``", "''"]


def character(rng):
    while True:
        code = rng.choice((rng.randrange(1, 0x80), rng.randrange(1, 0x3100), rng.randrange(1, 0x110000)))
        if not 0xd800 <= code <= 0xdfff:
            return chr(code)


def text(rng, words):
    """A text without NUL characters, mostly short."""
    parts = []
    for _ in range(rng.choice((1, 2, 4, 8, 16))):
        kind = rng.randrange(7)
        if kind == 0:
            parts.append("".join(character(rng) for _ in range(rng.randrange(1, 12))))
        elif kind == 1:
            parts.append("".join(rng.choices(NASTY, k=rng.randrange(1, 12))))
        elif kind == 2:
            one = rng.choice((character(rng), rng.choice(NASTY), rng.choice(" a\n1")))
            parts.append(one * rng.choice((2, 3, 5, 17, 64, 65, 66, 130, 300)))
        elif kind == 3:
            parts.append(rng.choice(CUTS))
        elif kind == 4:
            parts.append(rng.choice(words).upper())
        else:
            parts.append(rng.choice(("", " ")) + rng.choice(words))
    return "".join(parts)


def texts(seed, n, words):
    rng = random.Random(seed)
    return [text(rng, words) for _ in range(n)]
