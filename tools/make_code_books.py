#!/usr/bin/env python3
"""Prints the strings of src/tensor/code_books.cc from the code books in the Python package `gguf` (pip install gguf).

A book is a set of entries; an entry is a number whose digits, lowest first, say which of the book's few magnitudes each value
has. Numbers ascend, so only the gaps between them are written, in base 62: one character each, and a dot for every 62 more.
"""
import numpy as np
from gguf import quants

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LINE = 110


def book(kind):
    kind.init_grid()
    magnitudes = np.array(kind.grid_map, np.float32)
    digits = np.searchsorted(magnitudes, kind.grid.reshape(kind.grid_shape))
    powers = len(magnitudes) ** np.arange(digits.shape[1])
    numbers = (digits * powers).sum(axis=1)
    gaps = np.diff(numbers, prepend=0)
    assert (gaps[1:] > 0).all()
    return "".join("." * (gap // 62) + DIGITS[gap % 62] for gap in gaps)


for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
    text = book(getattr(quants, name))
    print(f"// {name}")
    for begin in range(0, len(text), LINE):
        print(f'    "{text[begin:begin + LINE]}"')
