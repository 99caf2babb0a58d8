#!/usr/bin/env python3
"""Compares quire with llama.cpp.

    check_llama_cpp.py [NAME...] [--quire build/release/quire] [--gguf FOLDER]
        Each golden model, turned to a GGUF by `quire quantize --type f32`, is read by llama.cpp, and its logits are compared with
        those of Transformers. This checks the GGUF files quire writes, against a reader that is not ours.
        --gguf keeps the files in FOLDER and uses those already there.
    check_llama_cpp.py --smollm2 FILE [--bank FOLDER] [--kernels SET] [--quire build/release/quire]
        quire and llama.cpp on a real model: tokens, chat template, greedy answers, perplexity.
        --bank is a folder with bank.py and bank/*.txt, which render to the text that is scored.

Exits with 1 if anything differs that is not known to. Needs numpy and llama-cpp-python; llama.cpp runs in processes of its own,
because it ends the process on some errors.
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens"

SAME = 1e-3            # of the largest logit: f32 sums in another order
TABLES = 1e-2          # llama.cpp looks GELU up in a table of f16
PERPLEXITY_SHARE = 0.005
CLOSE_NATS = 0.1       # two best tokens nearer than this may swap between two correct programs
ANSWER_TOKENS = 64
WINDOW_TOKENS = 512
SCORED_TOKENS = 3000

# What llama.cpp is known to do otherwise. `before`: the positions ahead of this one must still agree (the first has nothing to attend
# to but itself, whatever the rotation and the scale). `set`: what llama.cpp does not take from the file and has to be told.
YARN_RANGE = {"before": 1, "why": "llama.cpp always truncates YaRN's range, this model says not to"}
GEMMA_SCALE = {"before": 1, "why": "llama.cpp scales queries by the head's size, not by query_pre_attn_scalar"}
KNOWN = {
    "mistral": {"before": 16, "why": "llama.cpp has no window in its llama architecture"},
    "llama_yarn": {"set": {"yarn_beta_fast": 8.0, "yarn_beta_slow": 1.0}, "why": "llama.cpp does not read YaRN's beta_fast"},
    "gemma2": GEMMA_SCALE,
    "gemma3": GEMMA_SCALE,
    "gpt_oss_mxfp4": YARN_RANGE,
}
LOOSE = {name: TABLES for name in ("gemma2", "gemma2_released", "gemma3", "gemma3_released", "gpt2")}


# ---- llama.cpp -----------------------------------------------------------------------------------------------------------------

class LlamaCpp:
    """One model in llama.cpp, through its C interface: works without a vocabulary too."""

    def __init__(self, path, context_tokens, exact_kv, settings=None):
        import ctypes

        import llama_cpp
        self.c, self.ctypes, self.errors = llama_cpp, ctypes, []
        self.log = llama_cpp.llama_log_callback(self.keep_errors)  # kept here: the library holds only a pointer
        llama_cpp.llama_log_set(self.log, None)
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise RuntimeError(" ".join(self.errors) or "cannot be loaded")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = context_tokens
        options.n_threads = options.n_threads_batch = min(2, os.cpu_count() or 1)  # it spins when cores are busy
        if hasattr(options, "flash_attn_type"):
            options.flash_attn_type = 0
        else:
            options.flash_attn = False
        if exact_kv:
            options.type_k = options.type_v = 0  # f32
        for key, value in (settings or {}).items():
            setattr(options, key, value)
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError(" ".join(self.errors) or "no context can be made")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch = llama_cpp.llama_batch_init(context_tokens, 0, 1)
        self.length = 0

    def keep_errors(self, level, text, _):
        if level == 4:  # error, in ggml's numbering
            self.errors.append(text.decode(errors="replace").strip())

    def restart(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)
        self.length = 0

    def feed(self, ids):
        """Logits of every token fed: [tokens, vocab]."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, self.length + i, 1, 0, 1
        if self.c.llama_decode(self.context, batch) != 0:
            raise RuntimeError(" ".join(self.errors) or "cannot compute")
        self.length += len(ids)
        logits = np.ctypeslib.as_array(self.c.llama_get_logits(self.context), (len(ids), self.vocab_size))
        return logits.copy()

    def tokenize(self, text, parse_special=False, add_special=True):
        data = text.encode()
        ids = (self.c.llama_token * (len(data) + 8))()
        count = self.c.llama_tokenize(self.vocab, data, len(data), ids, len(ids), add_special, parse_special)
        return list(ids[:count])

    def is_end(self, token):
        return self.c.llama_vocab_is_eog(self.vocab, token)

    def metadata(self, key):
        buffer = self.ctypes.create_string_buffer(1 << 20)
        size = self.c.llama_model_meta_val_str(self.model, key.encode(), buffer, len(buffer))
        return buffer.value.decode() if size >= 0 else None

    def judge_choices(self, prompt, chosen):
        """For each token chosen after the prompt: llama.cpp's own choice there, how far (in nats) the chosen one is behind it, and
        how far the second best is."""
        self.restart()
        logits = self.feed(prompt + chosen[:-1])[len(prompt) - 1:]
        ranked = np.sort(logits, 1)
        behind = ranked[:, -1] - logits[np.arange(len(chosen)), chosen]
        return logits.argmax(1).tolist(), behind.tolist(), (ranked[:, -1] - ranked[:, -2]).tolist()


def child_logits(path, prompt, settings):
    """llama.cpp's logits of a prompt, from a process of its own; a string says why there are none."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "logits.npy"
        command = [sys.executable, __file__, "--child-logits", str(path), json.dumps(prompt), json.dumps(settings), str(out)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode == 0:
            return np.load(out)
        said = (result.stderr + result.stdout).strip().splitlines()
        return said[-1] if said else f"ended with {result.returncode}"


def write_child_logits(path, prompt, settings, out):
    prompt = json.loads(prompt)
    try:
        np.save(out, LlamaCpp(path, max(64, len(prompt)), exact_kv=True, settings=json.loads(settings)).feed(prompt))
    except RuntimeError as error:
        sys.exit(str(error))


# ---- goldens -------------------------------------------------------------------------------------------------------------------

def quire_failed(result):
    said = result.stderr.strip().splitlines()
    return said[-1] if said else f"quire ended with {result.returncode}"


def convert(quire, name, folder):
    """The golden's GGUF, or None and why there is none."""
    path = folder / f"{name}.gguf"
    if path.exists():
        return path, None
    command = [quire, "quantize", "-m", str(GOLDENS / name), "--type", "f32", "-o", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    return (path, None) if result.returncode == 0 else (None, quire_failed(result))


def judge(name, logits, reference):
    """(difference, positions with the same best token, verdict, whether it is a fault)"""
    if logits.shape != reference.shape:
        return math.nan, 0, f"{logits.shape[1]} tokens in the vocabulary, not {reference.shape[1]}", True
    by_position = np.abs(logits - reference).max(1) / np.abs(reference).max()
    same_best = int((logits.argmax(1) == reference.argmax(1)).sum())
    difference, limit, known = by_position.max(), LOOSE.get(name, SAME), KNOWN.get(name)
    if difference < limit:
        if known is None:
            return difference, same_best, "agrees", False
        return difference, same_best, f"agrees{', once told' * ('set' in known)}: {known['why']}", False
    if known is None or by_position[:known.get("before", len(by_position))].max() > limit:
        return difference, same_best, "DIFFERS", True
    return difference, same_best, f"known: {known['why']}; the first {known['before']} positions agree", False


def check_goldens(quire, names, folder):
    faults = 0
    print(f"{'model':16} {'difference':>10} {'same best':>9}  verdict")
    for name in names:
        golden = json.loads((GOLDENS / name / "golden.json").read_text())
        reference = np.fromfile(GOLDENS / name / "golden.bin", "<f4").reshape(len(golden["prompt"]), golden["vocab"])
        path, problem = convert(quire, name, folder)
        if path is None:
            print(f"{name:16} {'-':>10} {'-':>9}  NOT CONVERTED: {problem}", flush=True)
            faults += 1
            continue
        logits = child_logits(path, golden["prompt"], KNOWN.get(name, {}).get("set"))
        if isinstance(logits, str):
            print(f"{name:16} {'-':>10} {'-':>9}  NOT LOADED by llama.cpp: {logits}", flush=True)
            faults += 1
            continue
        difference, same_best, verdict, fault = judge(name, logits, reference)
        print(f"{name:16} {difference:10.1e} {same_best:6}/{len(reference)}  {verdict}", flush=True)
        faults += fault
    print(f"{len(names)} models, {faults} faults")
    return faults


# ---- the real model ------------------------------------------------------------------------------------------------------------

TEXTS = [
    "", " ", "a", "Hello, world!", "  two spaces before, two after  ", "tabs\tand\nlines\n\n\nand\r\nmore",
    "it's we've they'll I'D SHE'S don't", "1 12 123 1234 12345678901234567890 3.14159 -2e10 1,000,000",
    "naïve café Ærøskøbing straße e\u0301 ﬁ ½ ²", "Вчера весь день шёл дождь. 春が来た。 안녕하세요 مرحبا שלום नमस्ते",
    "👍 👩‍👩‍👧 🇨🇭 ☃️ \u200b\u00a0\ufeff", "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }\n\treturn sum;  // done",
    "def f(x):\n    if x > 0:\n        return x ** 2\n    return None\n", "https://example.org/a/b?c=d&e=%20#f user@example.org",
    "!!! ??? ... --- *** ((( ))) [[ ]] {{ }} <<>> \\\\ // ~~ `` \"\" ''", "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "ThisIsCamelCaseAndSOMEUPPERCASE with_snake_case and kebab-case", "a" * 300, "\n" * 20, " " * 40 + "x", "\x00\x01\x7f",
]
QUESTIONS = [
    "What is the capital of France?", "Write a short poem about the sea.", "Explain in two sentences why the sky is blue.",
    "List three fruits that are yellow.", "What is 17 plus 25?", "Tell me a story about a fox and a lighthouse.",
    "How do I boil an egg?", "Translate 'good morning' to Spanish.", "Write a Python function that reverses a string.",
    "What should I take along for a day in the mountains?",
]


def quire_run(quire, *arguments, stdin=None):
    result = subprocess.run([quire, *arguments], input=stdin, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join([str(quire), *map(str, arguments)])}: {quire_failed(result)}")
    return result.stdout


def check_tokens(quire, model, llama, texts):
    faults = 0
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    for flags, parse_special in ((), False), (("--special",), True):
        ours = [list(map(int, line.split())) for line in quire_run(quire, "tokenize", "-m", model, "--json-lines", *flags,
                                                                   stdin=lines).splitlines()]
        if len(ours) != len(texts):
            sys.exit(f"quire tokenize --json-lines gave {len(ours)} lines for {len(texts)}")
        for text, mine in zip(texts, ours):
            theirs = llama.tokenize(text, parse_special)
            if mine != theirs:
                at = next((i for i, pair in enumerate(zip(mine, theirs)) if pair[0] != pair[1]), min(len(mine), len(theirs)))
                print(f"  {text[:50]!r}{' with special tokens' * parse_special}: token {at} of {len(theirs)}: "
                      f"quire {mine[at:at + 4]}, llama.cpp {theirs[at:at + 4]}")
                faults += 1
    print(f"tokens: {2 * len(texts) - faults} of {2 * len(texts)} texts the same ({sum(map(len, texts))} characters, "
          "with and without special tokens)")
    return faults


def render_chat(llama, question):
    """The model's own template, by Jinja's own library."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    token_text = lambda key: llama.c.llama_vocab_get_text(llama.vocab, key(llama.vocab)).decode()
    return environment.from_string(llama.metadata("tokenizer.chat_template")).render(
        messages=[{"role": "user", "content": question}], add_generation_prompt=True,
        bos_token=token_text(llama.c.llama_vocab_bos), eos_token=token_text(llama.c.llama_vocab_eos))


def check_answer(quire, model, peers, question, kernels):
    """What came out, in words, and whether it is a fault. llama.cpp follows quire's answer and says at every token what it would
    have chosen. Greedy answers of two correct programs part where the two best tokens are close, and from there on they are answers
    to different texts: so the answers are compared up to the first step at which llama.cpp's own two best are within CLOSE_NATS,
    with either type of its cache (it parts from itself there, too)."""
    llama = peers[0]
    text = render_chat(llama, question)
    conversation = json.dumps({"messages": [{"role": "user", "content": question}]})
    if quire_run(quire, "template", "-m", model, stdin=conversation) != text:
        return "the chat template RENDERS OTHERWISE", True
    answer = json.loads(quire_run(quire, "run", "-m", model, "--json", "--kv", "f32", "--kernels", kernels, "--temperature", "0", "-n",
                                  str(ANSWER_TOKENS), question))
    ours = answer["token_ids"]
    prompt = llama.tokenize(text, parse_special=True, add_special=False)
    theirs, behind, gaps = llama.judge_choices(prompt, ours)
    other_gaps = peers[1].judge_choices(prompt, ours)[2]
    close = next((i for i in range(len(ours)) if min(gaps[i], other_gaps[i]) < CLOSE_NATS), len(ours))
    apart = next((i for i in range(len(ours)) if ours[i] != theirs[i]), None)
    if apart is not None and apart < close:
        return f"DIFFERS at token {apart}: quire {ours[apart]}, llama.cpp {theirs[apart]}, ahead by {behind[apart]:.3f} nats", True
    if len(ours) < ANSWER_TOKENS and not llama.is_end(ours[-1]):
        return f"STOPPED after {len(ours)} tokens without an end token", True
    same = sum(mine == their for mine, their in zip(ours, theirs))
    return f"the same{'' if close == len(ours) else f' up to the first close call, at token {close}'}; " \
        f"{same} of {len(ours)} tokens are llama.cpp's choice, at most {max(behind):.3f} nats behind it", False


def check_answers(quire, model, llama, kernels):
    faults = 0
    peers = llama, LlamaCpp(model, 2048, exact_kv=False)
    for question in QUESTIONS:
        outcome, fault = check_answer(quire, model, peers, question, kernels)
        print(f"  {question[:40]!r}: {outcome}", flush=True)
        faults += fault
    print(f"answers: {len(QUESTIONS) - faults} of {len(QUESTIONS)} as llama.cpp would give them")
    return faults


def bank_text(bank, characters):
    """Stories, notes and explanations rendered from a text bank; the same ones every time."""
    sys.path.insert(0, str(bank))
    from bank import parse, render
    rng = random.Random(1)
    entries = [entry for path in sorted((bank / "bank").glob("*.txt")) if path.name != "more_asks.txt" for entry in parse(path)]
    pieces = []
    while sum(map(len, pieces)) < characters:
        pieces.append(render(rng.choice(entries), rng)["text"])
    return "\n\n".join(pieces) + "\n"


def check_perplexity(quire, model, llama, text):
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "text.txt"
        path.write_text(text)
        ours = json.loads(quire_run(quire, "perplexity", "-m", model, str(path), "--ctx", str(WINDOW_TOKENS), "--kv", "f32", "--json"))
    ids, prefix = llama.tokenize(text, add_special=False), llama.tokenize("", add_special=True)
    fresh = WINDOW_TOKENS - len(prefix)
    nll, scored = 0.0, 0
    for start in range(0, len(ids), fresh):
        window = prefix + ids[start:start + fresh]
        llama.restart()
        logits = llama.feed(window)[:-1].astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        nll -= (logits[np.arange(len(window) - 1), window[1:]] - np.log(np.exp(logits).sum(1))).sum()
        scored += len(window) - 1
    theirs = math.exp(nll / scored)
    difference = ours["perplexity"] / theirs - 1
    fault = abs(difference) > PERPLEXITY_SHARE or ours["scored"] != scored
    print(f"perplexity: quire {ours['perplexity']:.4f} over {ours['scored']} tokens, llama.cpp {theirs:.4f} over {scored}: "
          f"{100 * difference:+.3f} % ({'DIFFERS, ' * fault}at most {100 * PERPLEXITY_SHARE} %)")
    return int(fault)


def check_real_model(quire, model, bank, kernels):
    llama = LlamaCpp(model, 2048, exact_kv=True)
    text = bank_text(bank, 5 * SCORED_TOKENS) if bank else None
    faults = check_tokens(quire, model, llama, TEXTS + (text.split("\n\n") if text else []))
    faults += check_answers(quire, model, llama, kernels)
    if text:
        faults += check_perplexity(quire, model, llama, text)
    else:
        print("perplexity: not compared, for want of --bank")
    return faults


def main():
    if sys.argv[1:2] == ["--child-logits"]:
        return write_child_logits(*sys.argv[2:])
    parser = argparse.ArgumentParser(description="Compares quire with llama.cpp.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="golden models (all unless given)")
    parser.add_argument("--quire", default=str(ROOT / "build" / "release" / "quire"))
    parser.add_argument("--gguf", type=Path, metavar="FOLDER", help="keep the GGUF files here, and use those already here")
    parser.add_argument("--smollm2", metavar="FILE", help="compare on this model instead")
    parser.add_argument("--bank", type=Path, metavar="FOLDER", help="with --smollm2: bank.py and bank/*.txt, for text to score")
    parser.add_argument("--kernels", default="auto", help="with --smollm2: quire's kernels for the answers")
    options = parser.parse_args()
    if not Path(options.quire).exists():
        parser.error(f"{options.quire} is not there; build it, or say where it is with --quire")
    if options.smollm2:
        faults = check_real_model(options.quire, options.smollm2, options.bank, options.kernels)
    else:
        known = sorted(path.parent.name for path in GOLDENS.glob("*/golden.json"))
        unknown = set(options.names) - set(known)
        if unknown:
            parser.error(f"no golden named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        with tempfile.TemporaryDirectory() as scratch:
            folder = options.gguf or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            faults = check_goldens(options.quire, options.names or known, folder)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
