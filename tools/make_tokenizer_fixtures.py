#!/usr/bin/env python3
"""Trains tiny tokenizers of every kind with the Hugging Face library and writes what it computes with them.

tests/tokenizers/strings.json           the strings, shared by all
tests/tokenizers/NAME/tokenizer.json    the tokenizer
tests/tokenizers/NAME/expected.json     per string a 24-bit FNV-1a, six hex digits each, in order:
  encode_special   ids with special tokens added and parsed
  encode_plain     ids with neither
  decode_skip      the text of encode_special's ids without special tokens
  decode_keep      the same with them
Six dashes stand where the library lets plain text become a special token, or leaves a special token in the text
it was told to keep them out of: we do neither. Also for rare characters where the library's BERT parts know only
Unicode 8.
  samples          [index, ids of encode_special] for a few, to read

Usage: make_tokenizer_fixtures.py [FOLDER]     (needs the `tokenizers` package)
"""
import base64
import json
import pathlib
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_strings import SAMPLES, strings

COUNT = 2000
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
GPT4O = (f"{LEAD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{LEAD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES)
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|""" + SPACES]
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
          r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s")

CORPUS = list(SAMPLES.values()) + [
    "A quire is a gathering of pages; it sounds like a choir: many voices at once. " * 2,
    "Prefill and decode are the same code over runs of tokens. The cache keeps pages that are shared and measured.",
    "the cat sat on the mat and then the other cat sat there, thinking about the weather in the northern lands",
] * 3

ADDED = [AddedToken(f"<{'n' if n else ''}{'l' if l else ''}{'r' if r else ''}{'w' if w else ''}_{'s' if s else 'u'}>",
                    normalized=n, lstrip=l, rstrip=r, single_word=w, special=s)
         for s in (True, False) for n in (False, True) for l in (False, True) for r in (False, True)
         for w in (False, True)]
ADDED += [AddedToken("Quire", normalized=True), AddedToken("word", single_word=True, normalized=False),
          AddedToken("\n\n\n", normalized=False), AddedToken("\n\n\n\n", normalized=False)]


def split(pattern, behavior="isolated", invert=False, regex=True):
    return pre_tokenizers.Split(Regex(pattern) if regex else pattern, behavior, invert)


def byte_level(steps, size=420, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<bos>", "<eos>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def with_bos(tokenizer):
    bos = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", bos)])
    return tokenizer


def changed(tokenizer, change):
    data = json.loads(tokenizer.to_str())
    change(data)
    return Tokenizer.from_str(json.dumps(data))


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_bpe(normalizer, pre_tokenizer, decoder):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS[:len(CORPUS) // 3], trainers.BpeTrainer(
        vocab_size=520, special_tokens=["<unk>", "<bos>", "<eos>"], limit_alphabet=150, show_progress=False))

    def add_bytes(data):
        model = data["model"]
        trained = sorted(model["vocab"], key=model["vocab"].get)
        tokens = trained[:3] + BYTES + trained[3:]
        model.update(vocab={token: i for i, token in enumerate(tokens)}, byte_fallback=True, fuse_unk=True)
    tokenizer = changed(tokenizer, add_bytes)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    else:
        tokenizer = changed(tokenizer, lambda data: data.update(pre_tokenizer=None))
    tokenizer.decoder = decoder
    return with_bos(tokenizer)


def unigram(byte_fallback, normalizer, pre_tokenizer, decoder):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS[:len(CORPUS) // 3], trainers.UnigramTrainer(
        vocab_size=700, special_tokens=["<unk>", "<bos>", "<eos>"], unk_token="<unk>", show_progress=False))

    def finish(data):
        if byte_fallback:
            data["model"]["vocab"] += [[token, -20.0] for token in BYTES]
        data["model"]["byte_fallback"] = byte_fallback
        data["model"]["vocab"] = [[token, round(score, 6)] for token, score in data["model"]["vocab"]]
    tokenizer = changed(tokenizer, finish)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    eos = tokenizer.token_to_id("<eos>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", eos)])
    return tokenizer


def charsmap(rules):
    """SentencePiece's precompiled map of {from: to}: a double array, found by trying, and the texts."""
    texts, offsets = b"", {}
    for to in rules.values():
        if to not in offsets:
            offsets[to] = len(texts)
            texts += to.encode() + b"\0"
    root = {}
    for source, to in rules.items():
        node = root
        for byte in source.encode():
            node = node.setdefault(byte, {})
        node[0] = offsets[to]
    units, bases = {0: 0}, set()
    work = [(root, 0)]
    while work:
        node, at = work.pop()
        base = 1
        while base in bases or any((base ^ byte) in units for byte in node) or (at ^ base) >= 1 << 21:
            base += 1
        bases.add(base)
        units[at] |= (at ^ base) << 10 | (1 << 8 if 0 in node else 0)
        for byte, child in node.items():
            units[base ^ byte] = child | 1 << 31 if byte == 0 else byte
        work += [(child, base ^ byte) for byte, child in node.items() if byte != 0]
    size = (max(units) // 256 + 1) * 256
    array = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(size))
    return struct.pack("<I", len(array)) + array + texts


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[UNK]", "<bos>", "<eos>"], limit_alphabet=200, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("<eos>", 2), ("<bos>", 1))
    return tokenizer


def tokenizers():
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    mark = "\u2581"
    yield "bpe_gpt2", byte_level([gpt2])
    yield "bpe_prefix_space", byte_level([pre_tokenizers.ByteLevel(add_prefix_space=True)])
    llama3 = with_bos(byte_level([split(LLAMA3), level]))
    yield "bpe_llama3", changed(llama3, lambda data: data["model"].update(ignore_merges=True))
    qwen = byte_level([split(QWEN2), level])
    qwen.normalizer = normalizers.NFC()
    yield "bpe_qwen2", qwen
    yield "bpe_gpt4o", byte_level([split(GPT4O), level])
    yield "bpe_cl100k", byte_level([split(CL100K, "removed", True), level])
    yield "bpe_deepseek", byte_level([split(pattern) for pattern in DEEPSEEK] + [level])
    yield "bpe_falcon", byte_level([pre_tokenizers.Punctuation("contiguous"), gpt2, pre_tokenizers.Digits(),
                                    split("[0-9][0-9][0-9]")])
    yield "bpe_starcoder", byte_level([pre_tokenizers.Digits(True), gpt2])
    yield "bpe_merged", byte_level([split(r"\s+", "merged_with_next"), split(r"[\p{P}\p{S}]", "merged_with_previous"),
                                    split(r"\d+", "contiguous", True), level])
    llama2_decoder = decoders.Sequence([decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse(),
                                        decoders.Strip(" ", 1, 0)])
    yield "spm_prepend", sentencepiece_bpe(normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)]),
                                           None, llama2_decoder)
    yield "spm_metaspace", sentencepiece_bpe(None, pre_tokenizers.Metaspace(mark, "first", False), llama2_decoder)
    yield "spm_replace", sentencepiece_bpe(normalizers.Replace(" ", mark), split(" ", "merged_with_previous", False, False),
                                           decoders.Sequence([decoders.Replace(mark, " "), decoders.ByteFallback(),
                                                              decoders.Fuse()]))
    yield "unigram_bytes", unigram(True, normalizers.NFKC(), pre_tokenizers.Metaspace(),
                                   decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))
    rules = {"ﬁ": "fi", "ﬂ": "fl", "①": "1", "½": "1/2", "\u3000": " ", "\u00a0": " ", "\t": " ", "\n": " ", "é": "e",
             "e\u0301": "e", "Ａ": "A", "㎏": "kg", "…": "...", "ｶ": "カ", "\u200b": "", "\u0301": ""}
    precompiled = normalizers.Precompiled(charsmap(rules))
    yield "unigram_charsmap", unigram(False, normalizers.Sequence([precompiled, normalizers.Replace(Regex(" {2,}"), " ")]),
                                      pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
                                      decoders.Metaspace())
    yield "word_piece", word_piece()


def digest(data):
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value & 0xFFFFFF:06x}"


def digest_ids(ids):
    return digest(b"".join(struct.pack("<I", i) for i in ids))


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "tokenizers"
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else default)
    spellings = [token.content for token in ADDED] + ["<bos>", "<eos>", "Quires", "xword", "sword"]
    texts = strings(20260101, COUNT, spellings)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "strings.json").write_text(json.dumps(texts, ensure_ascii=False, indent=0) + "\n")
    for name, tokenizer in tokenizers():
        tokenizer.add_special_tokens([token for token in ADDED if token.special])
        tokenizer.add_tokens([token for token in ADDED if not token.special])
        source = tokenizer.to_str()
        tokenizer = Tokenizer.from_str(source)
        tokenizer.encode_special_tokens = False
        special = [tokenizer.encode(text).ids for text in texts]
        tokenizer.encode_special_tokens = True
        plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        specials = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}

        unknown = [i for i, text in specials.items() if text in ("<unk>", "[UNK]")]

        def digest_plain(text, ids):
            forged = any(i in specials and i not in unknown for i in ids) or any(specials[i] in text for i in unknown)
            return "------" if forged else digest_ids(ids)

        def digest_skip(ids):
            kept = [i for i in ids if i not in specials]
            text = tokenizer.decode(ids)
            return "------" if text != tokenizer.decode(kept) else digest(text.encode())
        known = set("".join(SAMPLES.values()) + "".join(spellings))
        rare = [name == "word_piece" and not known.issuperset(text) for text in texts]
        expected = {
            "encode_special": "".join(digest_ids(ids) for ids in special),
            "encode_plain": "".join(digest_plain(text, ids) for text, ids in zip(texts, plain)),
            "decode_skip": "".join(digest_skip(ids) for ids in special),
            "decode_keep": "".join(digest(tokenizer.decode(ids, skip_special_tokens=False).encode()) for ids in special),
            "samples": [[i, special[i]] for i in range(COUNT - 5, COUNT)],
        }
        for what in ("encode_special", "encode_plain", "decode_skip", "decode_keep"):
            digests = [expected[what][i * 6:i * 6 + 6] for i in range(COUNT)]
            expected[what] = "".join("------" if rare[i] else digests[i] for i in range(COUNT))
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "tokenizer.json").write_text(json.dumps(json.loads(source), ensure_ascii=False) + "\n")
        (folder / name / "expected.json").write_text(json.dumps(expected) + "\n")
        print(name, tokenizer.get_vocab_size(), "tokens")


if __name__ == "__main__":
    main()
