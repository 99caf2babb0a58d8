#!/usr/bin/env python3
"""Fails if a folder of src/ includes one that it must not see. Dependencies point down only (README.md)."""
import pathlib
import re
import sys

ALLOWED = {
    "base": set(),
    "tensor": {"base"},
    "ranks": {"base", "tensor"},
    "text": {"base"},
    "chat": {"base", "text"},
    "grammar": {"base"},
    "hub": {"base"},
    "kv": {"base", "tensor"},
    "cluster": {"base", "tensor", "kv"},
    "remote": {"base", "tensor", "kv"},
    "backend": {"base", "tensor", "kv"},
    "device": {"base", "tensor", "kv", "backend"},
    "model": {"base", "tensor", "kv", "ranks", "backend"},
    "runner": {"base", "tensor", "kv", "ranks", "backend", "model"},
    "engine": {"base", "tensor", "kv", "ranks", "backend", "device", "model", "runner", "text", "grammar"},
    "eval": {"base", "tensor", "kv", "ranks", "backend", "device", "model", "runner", "text", "grammar", "engine"},
    "explain": {"base", "tensor", "kv", "backend", "model", "runner", "engine"},
    "openai": {"base", "text", "chat", "grammar", "engine"},
    "wire": {"base", "text", "chat", "grammar", "engine", "openai"},
    "replay": {"base", "kv", "text", "grammar", "engine"},
    "server": {"base", "kv", "text", "chat", "grammar", "engine", "openai", "wire", "replay", "cluster"},
    "cli": {"base", "tensor", "kv", "ranks", "backend", "device", "model", "runner", "text", "chat", "grammar", "engine", "eval", "explain", "replay", "server", "hub", "cluster", "remote"},
    # Of cli what opens a model (quire_opening).
    "capi": {"base", "text", "chat", "engine", "openai", "cli"},
}
# Of kv, a backend may know only where rows sit in pages.
BACKEND_SEES_OF_KV = {"kv/layout/kv_layout.h", "kv/layout/kv_view.h"}


def main() -> int:
    source = pathlib.Path(__file__).resolve().parent.parent / "src"
    wrong = []
    for path in sorted(source.rglob("*")):
        if path.suffix not in {".cc", ".h", ".cu", ".cuh"}:
            continue
        folder = path.relative_to(source).parts[0]
        if folder not in ALLOWED:
            wrong.append(f"{path.relative_to(source)}: the folder {folder} is not known to this check")
            continue
        for include in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            seen = include.split("/")[0]
            hidden = folder == "backend" and seen == "kv" and include not in BACKEND_SEES_OF_KV
            if path.name.endswith(("_test.cc", "_case.h")):  # of tests only
                hidden = False
            if (seen != folder and seen not in ALLOWED[folder]) or hidden:
                wrong.append(f"src/{path.relative_to(source)} must not include {include}")
    print("\n".join(wrong) or "dependencies point down")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
