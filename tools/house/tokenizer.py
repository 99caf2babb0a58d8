#!/usr/bin/env python3
"""Trains the house model's tokenizer: byte-level BPE on the text it will learn from.

    tokenizer.py OUT.json [--vocab 4096] [--conversations 60000] [--seed 1]
"""
import argparse
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from library import Library
from tasks import conversation

BEGIN, END, ROLES = "<|begin|>", "<|end|>", {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
SPECIAL = [BEGIN, END, *ROLES.values()]


def texts(count, seed):
    rng, library = random.Random(seed), Library()
    for _ in range(count):
        for _, pieces in conversation(rng, library, 3000):
            yield "".join(text for text, _ in pieces)


def main():
    parser = argparse.ArgumentParser(description="Trains the house model's tokenizer.")
    parser.add_argument("out")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--conversations", type=int, default=60000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tokenizer = Tokenizer(models.BPE())
    # Digits one by one: a number is copied digit by digit, whatever its length.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=options.vocab, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(texts(options.conversations, options.seed), trainer)
    tokenizer.save(options.out)
    sample = list(texts(2000, options.seed + 1))
    tokens = sum(len(tokenizer.encode(text).ids) for text in sample)
    print(f"{tokenizer.get_vocab_size()} tokens, {sum(map(len, sample)) / tokens:.2f} characters each")


if __name__ == "__main__":
    main()
