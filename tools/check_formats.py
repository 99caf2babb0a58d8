#!/usr/bin/env python3
"""Compares the block formats with the Python package `gguf` (pip install gguf).

    tools/check_formats.py build/release/src/tensor/tensor_test

Dequantization: random bytes of every type must give the same values, bit for bit (NaN equals NaN).
Quantization: the bytes must be equal for the types whose definition is a plain formula; for the others the
relative RMS error of both is printed where the package can quantize.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

TYPES = {name: T[name.upper()] for name in (
    "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 "
    "iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq1_s iq1_m tq1_0 tq2_0 nvfp4").split()}
SAME_BYTES = {"f32", "f16", "bf16", "q4_0", "q5_0", "q8_0"}


def relative_rms(values, reference):
    return float(np.sqrt(np.mean((values - reference) ** 2.0) / np.mean(reference.astype(np.float64) ** 2)))


def main():
    program = os.path.abspath(sys.argv[1])
    rng = np.random.default_rng(20)
    values = rng.standard_normal(256 * 400).astype(np.float32)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        values.tofile(path("values"))
        for name, kind in TYPES.items():
            rng.integers(0, 256, 1000 * GGML_QUANT_SIZES[kind][1], dtype=np.uint8).tofile(path(name + ".blocks"))
        subprocess.run([program, "--gtest_filter=FormatFiles.*"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "QUIRE_FORMATS_DIR": folder})
        for name, kind in TYPES.items():
            blocks = np.fromfile(path(name + ".blocks"), np.uint8)
            with np.errstate(all="ignore"):
                expected = dequantize(blocks.reshape(1000, -1), kind).astype(np.float32).ravel()
            actual = np.fromfile(path(name + ".blocks.f32"), np.float32)
            same = (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
            failed |= not same.all()
            line = f"{name:8} dequantize: {(~same).sum()} of {same.size} values differ"

            if not os.path.exists(path(name + ".quantized")):
                print(line)
                continue
            packed = np.fromfile(path(name + ".quantized"), np.uint8)
            ours = relative_rms(dequantize(packed.reshape(1, -1), kind).astype(np.float32).ravel(), values)
            line += f"; quantize: relative RMS error {ours:.5f}"
            try:
                theirs = np.ascontiguousarray(quantize(values.reshape(1, -1), kind)).view(np.uint8).ravel()
            except NotImplementedError:
                print(line)
                continue
            reference = relative_rms(dequantize(theirs.reshape(1, -1), kind).astype(np.float32).ravel(), values)
            line += f", gguf {reference:.5f}, {(packed != theirs).sum()} bytes differ"
            failed |= name in SAME_BYTES and bool((packed != theirs).any())
            print(line)
    print("FAILED" if failed else "all as expected")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
