#!/usr/bin/env python3
"""make_wheel.py --library LIBRARY --folder FOLDER: a wheel of python/quire with the library and the house model in it.

It needs no compiler to be installed: the package reaches the library through ctypes. The wheel's name says which machine it is for; the
glibc that it wants is printed, and said in its description. The same files give the same bytes.
"""
import argparse
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHEN = (2026, 1, 1, 0, 0, 0)


def version_of_project() -> str:
    return re.search(r"project\(quire VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def glibc_of(library: pathlib.Path) -> str:
    """The newest version of glibc whose symbols it asks for."""
    table = subprocess.run(["readelf", "--version-info", "--wide", library], check=True, capture_output=True, text=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_(\d+(?:\.\d+)+)", table)}
    return ".".join(map(str, max(versions)))


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libquire.so.1 as it was built")
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="where the wheel goes")
    parser.add_argument("--without-house", action="store_true", help="leave the house model out: 20 MB less")
    arguments = parser.parse_args()

    version, glibc = version_of_project(), glibc_of(arguments.library)
    tag = f"py3-none-linux_{platform.machine()}"
    about = f"quire-{version}.dist-info"
    files: dict[str, bytes] = {}
    for path in sorted((ROOT / "python" / "quire").iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"quire/{path.name}"] = path.read_bytes()
    files["quire/libquire.so.1"] = arguments.library.read_bytes()
    if not arguments.without_house:
        house = ROOT / "models" / "house"
        for pattern in ("*.gguf", "*.json", "eval/*.jsonl"):
            for path in sorted(house.glob(pattern)):
                files[f"quire/house/{path.relative_to(house)}"] = path.read_bytes()
    for name in ("LICENSE", "NOTICE"):
        files[f"{about}/licenses/{name}"] = (ROOT / name).read_bytes()
    files[f"{about}/METADATA"] = (
        "Metadata-Version: 2.1\n"
        "Name: quire\n"
        f"Version: {version}\n"
        "Summary: Runs large language models, and shows what it does.\n"
        "License: Apache-2.0\n"
        "Requires-Python: >=3.8\n"
        "Provides-Extra: numpy\n"
        'Requires-Dist: numpy; extra == "numpy"\n'
        "Description-Content-Type: text/markdown\n"
        "\n"
        f"A language model in your own program: `quire.LLM(\"house\").chat(\"Hello\")`. For Linux on {platform.machine()} with glibc {glibc} or later.\n"
    ).encode()
    files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = "".join(record_line(name, data) for name, data in files.items())
    files[f"{about}/RECORD"] = (record + f"{about}/RECORD,,\n").encode()

    arguments.folder.mkdir(parents=True, exist_ok=True)
    wheel = arguments.folder / f"quire-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as out:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            out.writestr(entry, data)
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB; glibc {glibc} or later)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
