#!/usr/bin/env python3
"""install_test.py --build BUILD: what is installed works where it comes to lie, and the service's unit is one."""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    build = parser.parse_args().build
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "place"
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, capture_output=True)
        for name in ("bin/quire", "share/quire/house/house.gguf", "share/man/man1/quire-serve.1", "share/bash-completion/completions/quire",
                     "share/zsh/vendor-completions/_quire", "share/fish/vendor_completions.d/quire.fish", "lib/systemd/system/quire.service",
                     "etc/default/quire", "lib/libquire.so.1", "lib/libquire.so", "include/quire.h", "lib/pkgconfig/quire.pc"):
            if not (prefix / name).exists():
                print(f"{name} is not installed")
                return 1
        said = subprocess.run([prefix / "bin" / "quire", "run", "-n", "4", "--temperature", "0", "Hello"], cwd="/", capture_output=True, text=True)
        if said.returncode != 0 or not said.stdout.strip():
            print(f"the installed program: {said.stderr}")
            return 1
        # A program that is compiled against what is installed finds the house model beside the library.
        source = pathlib.Path(folder) / "hello.c"
        source.write_text('#include <quire.h>\n#include <stdio.h>\nint main(void) { quire_model* model; if (quire_model_open("house", NULL, &model)) '
                          'return puts(quire_last_error()), 1; return quire_model_close(model); }\n')
        program = pathlib.Path(folder) / "hello"
        subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", source, f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-lquire", "-o", program], check=True)
        said = subprocess.run([program], capture_output=True, text=True)
        if said.returncode != 0 or said.stdout or said.stderr:
            print(f"a program with the installed library: {said.stdout}{said.stderr}")
            return 1
        unit = prefix / "lib" / "systemd" / "system" / "quire.service"
        if f"ExecStart={prefix}/bin/quire serve" not in unit.read_text() or "@BIN@" in unit.read_text() or "@ETC@" in unit.read_text():
            print(unit.read_text())
            return 1
        if shutil.which("systemd-analyze"):
            verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
            complaints = [line for line in verified.stderr.splitlines() if "quire.service" in line]
            if verified.returncode != 0 and complaints:
                print(verified.stderr)
                return 1
    print("it works where it is installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
