#!/usr/bin/env python3
"""symbols_test.py LIBRARY HEADER: the library shows what the header declares and nothing else, under its version, and needs glibc alone."""
import re
import subprocess
import sys

GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}


def main() -> int:
    library, header = sys.argv[1:]
    declared = set(re.findall(r"^QUIRE_API [^;]*?\b(quire_\w+)\(", open(header).read(), re.MULTILINE))
    version = re.search(r"#define QUIRE_ABI_VERSION (\d+)", open(header).read()).group(1)
    table = subprocess.run(["readelf", "--dyn-syms", "--wide", library], check=True, capture_output=True, text=True).stdout
    shown, stray = set(), set()
    for line in table.splitlines():
        field = line.split()
        if len(field) < 8 or not field[0].endswith(":") or field[4] not in ("GLOBAL", "WEAK", "UNIQUE") or field[6] == "UND":
            continue
        name, _, under = field[7].partition("@@")
        if under == f"QUIRE_{version}":
            shown.add(name)
        elif not field[7].startswith(f"QUIRE_{version}"):
            stray.add(field[7])
    dynamic = subprocess.run(["readelf", "--dynamic", "--wide", library], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    soname = re.search(r"\(SONAME\).*\[(.*)\]", dynamic).group(1)
    wrong = []
    if shown != declared:
        wrong.append(f"shown and not declared: {sorted(shown - declared)}; declared and not shown: {sorted(declared - shown)}")
    if stray:
        wrong.append(f"shown under no version: {sorted(stray)[:10]}")
    if soname != f"libquire.so.{version}":
        wrong.append(f"its soname is {soname}")
    strangers = {name for name in needed - GLIBC if not name.startswith("ld-linux") and "san.so" not in name}
    sanitized = any("san.so" in name for name in needed)
    if strangers and not sanitized:
        wrong.append(f"it needs {sorted(strangers)}")
    print("\n".join(wrong) or f"{len(shown)} functions, and nothing else; it needs {', '.join(sorted(needed))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
