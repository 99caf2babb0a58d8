#!/usr/bin/env python3
"""help_test.py --quire PROGRAM: manual pages and completions say what the commands say, and what reads them can."""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def run(*words, **more) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def plain(roff: str) -> str:
    return re.sub(r"\\f.", "", roff).replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def completed(script: str, *words: str) -> set:
    """What bash would offer for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    asked = f"source '{script}'; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _quire; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return set(run("bash", "-c", asked).split())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    quire = parser.parse_args().quire
    wrong = []

    def expect(so: bool, what: str) -> None:
        if not so:
            wrong.append(what)

    overview = run(quire, "--help")
    commands = re.findall(r"^  ([a-z-]+) {2,}", overview.split("Subcommands:")[1], re.MULTILINE)
    expect(len(commands) > 15 and "help" not in commands, f"commands: {commands}")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        run(quire, "help", "--write", folder)
        pages = {path.name for path in (place / "man1").iterdir()}
        expect(pages == {"quire.1"} | {f"quire-{name}.1" for name in commands}, f"pages: {sorted(pages)}")
        bash = place / "bash" / "quire"
        run("bash", "-n", bash)
        for shell, file in (("zsh", "zsh/_quire"), ("fish", "fish/quire.fish")):
            if shutil.which(shell):
                run(shell, "-n", place / file)
        for name in commands:
            shown = run(quire, name, "--help")
            expect(run(quire, "help", name) == shown, f"quire help {name}")
            options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(re.findall(r"^  (-.*?)(?:  |$)", shown, re.MULTILINE))))
            page = (place / "man1" / f"quire-{name}.1").read_text()
            expect(run(quire, "help", name, "--man") == page, f"quire help {name} --man")
            for option in options:
                expect(option in plain(page), f"{option} is not in quire-{name}.1")
                expect(f"{option}[" in (place / "zsh" / "_quire").read_text(), f"{option} is not in zsh's completion")
                expect(f" -l {option[2:]} " in (place / "fish" / "quire.fish").read_text(), f"{option} is not in fish's completion")
            offered = completed(bash, "quire", name, "--")
            expect(offered == options, f"bash offers for {name}: {sorted(offered ^ options)} differ")
            if shutil.which("groff"):
                said = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z", place / "man1" / f"quire-{name}.1"], capture_output=True, text=True)
                expect(said.returncode == 0 and not said.stderr, f"groff on quire-{name}.1: {said.stderr[:300]}")
        expect(completed(bash, "quire", "se") == {"serve"}, "bash completes se to serve")
        expect("serve" in completed(bash, "quire", ""), "bash offers commands")
        expect({"scalar", "exact"} <= completed(bash, "quire", "run", "--kernels", ""), "bash offers kernels")
    for words in (("help", "nothing"), ("help", "--completion", "tcsh")):
        expect(subprocess.run([quire, *words], capture_output=True).returncode == 2, " ".join(words))

    # Without libcurl everything runs but fetching, which says how to get it.
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "libcurl.so.4").write_text("no library")
        fetched = subprocess.run([quire, "pull", "hf:nobody/nothing"], capture_output=True, text=True,
                                 env={"LD_LIBRARY_PATH": folder, "HF_HUB_CACHE": folder, "HOME": folder, "HF_ENDPOINT": "http://127.0.0.1:9"})
        expect(fetched.returncode == 1 and "apt-get install libcurl4" in fetched.stderr, f"without libcurl: {fetched.stderr}")
        run(quire, "run", "-n", "1", "Hi", env={"LD_LIBRARY_PATH": folder})
    print("\n".join(wrong) or f"{len(commands)} commands, their pages and completions agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
