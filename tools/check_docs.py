#!/usr/bin/env python3
"""Fails if a document names what is not there: a file, a link's target or heading, a `make` target, an option, an endpoint.

Looked at are the words in `backticks` and the links of every Markdown file that git knows, but for CHANGELOG.md and
the records in docs/decisions/ and bench/results/, which speak of their day; of those only the links are.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HISTORY = ("CHANGELOG.md", "docs/decisions/", "bench/results/")
SUFFIXES = "cc|h|py|sh|md|json|jsonl|cmake|svg|png|bin|html|js|css"
# Made by a build or by the reader, and what other programs call theirs.
ELSEWHERE = re.compile(r"build/|models/smollm2/|~|/|\.\./|[A-Z]+\.[a-z]")
OTHERS_FILES = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "compile_commands.json",
                "openapi.json", "chat_template.json", "log.jsonl"}
OTHERS_OPTIONS = {"--gtest_filter", "--gtest_brief", "--help", "--version", "--parallel", "--build", "--preset", "--target"}


def tracked():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def without_fences(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def heading_anchors(text):
    headings = re.findall(r"^#+ +(.*)$", without_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Tree:
    def __init__(self):
        self.files = tracked()
        self.folders = {str(parent) for file in self.files for parent in pathlib.PurePath(file).parents}
        self.targets = set(re.findall(r"^([a-z0-9_\- ]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
        self.targets = {target for line in self.targets for target in line.split()}
        self.options = set(OTHERS_OPTIONS)
        for file in self.files:
            if file.endswith((".cc", ".h", ".py", ".sh")) and not file.endswith("check_docs.py"):
                self.options |= set(re.findall(r"--[a-z][a-z0-9-]*", (ROOT / file).read_text(errors="replace")))
        self.server = "".join((ROOT / file).read_text() for file in self.files if re.match(r"src/server/.*\.cc$", file))

    def has(self, name, beside):
        """`name`: a path from the root, from src/ or from the document's folder, or the end of one; capitals stand for anything."""
        pattern = re.sub(r"\b[A-Z][A-Z_]+\b(?!\.md)", "*", name).rstrip("/")
        places = {pattern, f"src/{pattern}", f"{beside}/{pattern}"}
        if any(place in self.folders for place in places):
            return True
        places.add(f"*/{pattern}")
        return any(fnmatch.fnmatchcase(path, place) for place in places for path in (*self.files, *self.folders))


def path_in(word):
    """The path that a word in backticks is, or nothing: `src/kv/`, `engine.h`, `tests/golden_test.cc`."""
    word = re.sub(r"[:,]\d+$", "", word)
    if not re.fullmatch(r"[\w.*/\-]+", word) or ELSEWHERE.match(word) or word in OTHERS_FILES:
        return None
    in_tree = re.match(r"(src|docs|tests|tools|bench|models|cmake|\.ci)/", word)
    is_file = re.search(rf"[\w*]\.({SUFFIXES})$", word) and not word.startswith(".")
    return word if in_tree or is_file else None


def wrong_words(text, beside, tree):
    for words in re.findall(r"`([^`\n]+)`", without_fences(text)):
        for word in words.split():
            path = path_in(word)
            if path and not tree.has(path, beside):
                yield f"`{word}` is not in the tree"
        if target := re.match(r"make ([a-z0-9_-]+)", words):
            if target[1] not in tree.targets:
                yield f"`{words}`: the Makefile has no {target[1]}"
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", words):
            if option not in tree.options:
                yield f"`{words}`: no program has the option {option}"
        if endpoint := re.match(r"(?:GET|POST|PUT|DELETE) (/[\w/.]*)", words):
            for part in re.findall(r"/([a-z][\w.]*)", endpoint[1]):
                if not re.search(rf"[\"/]{part}[\"/]", tree.server):
                    yield f"`{words}`: the server knows no /{part}"


def wrong_links(text, document):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(text)) + re.findall(r'<img[^>]*src="([^"]+)"', text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists():
            yield f"the link to {target} leads nowhere"
        elif anchor and file.suffix == ".md" and anchor not in heading_anchors(file.read_text()):
            yield f"{path or document.name} has no heading #{anchor}"


def main():
    tree = Tree()
    wrong = []
    for name in tree.files:
        if not name.endswith(".md"):
            continue
        document = ROOT / name
        text = document.read_text()
        found = list(wrong_links(text, document))
        if not name.startswith(HISTORY):
            found += wrong_words(text, str(pathlib.PurePath(name).parent), tree)
        wrong += [f"{name}: {what}" for what in found]
    print("\n".join(wrong) or "the documents name only what is there")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
