# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of the published forms, trained on a text that is there: the same normalizers, pre-tokenizers, models and
decoders as the files of GPT-2, Llama 3, Qwen 3, DeepSeek V3, GPT-4o (o200k) and Llama 2 have; and hostile texts."""
import base64
import random

import tiktoken
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])
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
    t.add_tokens([tokenizers.AddedToken(o, normalized=False) for o in others])
    t.encode_special_tokens = True  # special tokens in a text are text
    return t


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


NASTY = ("\ud7ff\ue000\ufffd\uffff\ufeff\u200b\u200c\u200d\u2060\u00ad\u034f\u180e\u2028\u2029\u0085\u00a0\u1680\u3000\u202f"
         "\U0010ffff\U000e0001\U000e0041\U0001f468\U0001f469\U0001f3fb\ufe0f\ufe0e\u20e3\U0001f1e6\U0001f1ff"
         "\u0300\u0301\u0316\u0327\u0328\u0338\u0340\u0341\u0343\u0344\u0345\u05b0\u05bc\u0f71\u0f72\u0f74\u0f81\u3099\u309a"
         "\u1100\u1161\u11a8\u11a7\u11c2\uac00\uac01\ud7a3\u1113\u0958\u09c7\u09be\u0b47\u0b56\u2126\u212a\u212b\u017f\u0130\u0131"
         "\u1e9b\u0323\u00c5\u00e9e\u0041\u030a\ufb01\uf900\U0002f800\u2adc\u0374\u037e\u00b2\u2460\u216b\u0660\u096f\u4e00\u3042"
         "\u01c5\u02b0\u00aa\u0c55\u0e33\u0e31'\u2019\t\n\r\v\f\x01\x1b\x7f !?.,#-_/\\<>|\"0123456789")
CUTS = ["'s", "'T", "'re", "'VE", "'m", "'lL", "'d", "'\u017f", " 's", "don't", "<|endoftext|>", "<|begin_of_text|>",
        "<think>", "</think>", "<tool_call>", "<|im_start|>", "\r\n", "\n\n", "  ", " \n ", "\t\t", "1234", "<0x41>", "\u2581",
        "<s>", "<unk>"]


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
