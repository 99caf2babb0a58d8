#!/usr/bin/env python3
"""The text bank of the house model: read it, check it, render it.

    bank.py check FILE...            format, slots, and that every answer stands in its text
    bank.py show FILE [N] [SEED]     N random renderings, as a reader would see them
    bank.py stats FILE...            how much there is

A bank file holds entries separated by blank lines. README.md beside this file describes the format.
"""
import random
import re
import sys

GIRLS = """Ada Anna Asha Bea Bella Clara Cleo Cora Dora Edie Ella Eva Fay Freya Greta Hana Hope Ida Ines Iris Ivy Jana June Kira Lena Lila Mabel Maya Mia Mina Nina Nora Olga
Opal Penny Pia Poppy Rosa Ruby Sara Selma Sofia Suki Tara Tilda Una Vera Violet Yara Zara Zoe""".split()
BOYS = """Abel Amos Arlo Ben Bruno Carl Dan Eli Emil Finn Gil Gus Hugo Ira Jack Joe Jonah Kai Leo Luca Luis Milo Ned Noah Omar Otto Pablo Rafa Remy Rex Sam Simon Theo Tim Toby Tom
Vito Walt Wes Will Yan Zeke""".split()
FEMALE = set("girl queen princess grandmother mother aunt witch hen mare duchess".split())
MALE = set("boy king prince grandfather father uncle wizard rooster knight duke".split())
PRONOUNS = {"she": {"he": "she", "him": "her", "his": "her"}, "he": {"he": "he", "him": "him", "his": "his"}}
SLOT = re.compile(r"\{([^{}]*)\}")
ARTICLES = ("a ", "A ")


class Entry:
    def __init__(self, where):
        self.where, self.kind, self.title = where, None, None
        self.slots, self.asks, self.beats, self.questions = {}, [], [], []  # beats: list of alternatives, or None for a new paragraph


def fail(where, text):
    raise ValueError(f"{where}: {text}")


def alternatives(text):
    return [part.strip() for part in text.split("|") if part.strip()]


def parse(path):
    entries, entry = [], None
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        line, where = line.rstrip("\n"), f"{path}:{number}"
        if not line.strip():
            entry = None
            continue
        if line.startswith("#"):
            continue
        if not line.isascii():
            fail(where, "not plain ASCII")
        if entry is None:
            entry = Entry(where)
            entries.append(entry)
        if line == "--":
            entry.beats.append(None)
        elif line.startswith("- "):
            entry.beats.append(alternatives(line[2:]))
        elif line.startswith("? "):
            if " = " not in line:
                fail(where, "a question needs ' = ' and its answer")
            question, answer = line[2:].rsplit(" = ", 1)
            entry.questions.append((alternatives(question), answer.strip()))
        else:
            match = re.match(r"(\w+): (.+)$", line)
            if not match:
                fail(where, f"cannot read this line: {line[:60]}")
            key, value = match.groups()
            if key in ("plot", "note", "topic", "talk"):
                entry.kind, entry.title = key, value
            elif key == "ask":
                entry.asks += alternatives(value)
            elif re.fullmatch(r"\d+\.\.\d+", value):
                low, high = map(int, value.split(".."))
                entry.slots[key] = [str(n) for n in range(low, high + 1)]
            else:
                entry.slots[key] = alternatives(value)
    return entries


def article(word):
    return ("an " if re.match(r"(?i)(?!uni|use|eu|one)([aeiou]|hour|honest)", word) else "a ") + word


def render(entry, rng, choose=None, name_of=None, keep_beats=1.0):
    """One text, its questions with answers, and one way a user may have asked for it.

    choose(slot, options) may give a value of its own for a slot, name_of(gender) a name; keep_beats is the share of the beats that are told,
    and questions whose answer is then not in the text are left out.
    """
    values, taken = {}, set()
    for name, options in entry.slots.items():
        free = [o for o in options if o not in taken] or options
        values[name] = choose(name, free) if choose else rng.choice(free)
        taken.add(values[name])
    for name, suffix in (("hero", ""), ("friend", "2")):
        if name not in values:
            continue
        kind = values[name].split()[-1]
        gender = "she" if kind in FEMALE else "he" if kind in MALE else rng.choice(["she", "he"])
        pool = [n for n in (GIRLS if gender == "she" else BOYS) if n not in values.values()]
        values[name.capitalize()] = (name_of and name_of(gender)) or rng.choice(pool)
        for key, word in PRONOUNS[gender].items():
            values[key + suffix] = word
            values[key.capitalize() + suffix] = word.capitalize()

    def fill(match):
        key = match.group(1)
        if key.startswith(ARTICLES):
            text = article(values[key[2:]])
            return text[0].upper() + text[1:] if key[0] == "A" else text
        return values[key]

    put = lambda text: SLOT.sub(fill, text)
    paragraphs = [[]]
    for beat in entry.beats:
        if beat is None:
            paragraphs.append([])
        elif keep_beats == 1.0 or rng.random() < keep_beats:
            paragraphs[-1].append(put(rng.choice(beat)))
    text = "\n\n".join(" ".join(p) for p in paragraphs if p)
    asked = put(rng.choice(entry.asks)) if entry.asks else None
    questions = [(put(rng.choice(q)), put(a)) for q, a in entry.questions]
    if keep_beats < 1.0:
        questions = [(q, a) for q, a in questions if plain(a) in plain(text)]
    return {"kind": entry.kind, "title": entry.title, "ask": asked, "text": text, "questions": questions, "values": values}


def plain(text):
    return re.sub(r"^(a|an|the) ", "", re.sub(r"[^a-z0-9' ]", " ", text.lower()).strip())


def check(entry):
    where = entry.where
    if entry.kind is None:
        fail(where, "an entry starts with plot:, note:, topic: or talk:")
    beats = [b for b in entry.beats if b is not None]
    least = {"plot": (9, 2), "note": (3, 3), "topic": (2, 3), "talk": (1, 3)}[entry.kind]
    if len(beats) < least[0]:
        fail(where, f"{entry.title}: {len(beats)} beats, at least {least[0]} wanted")
    for beat in beats:
        if len(beat) < least[1]:
            fail(where, f"{entry.title}: only {len(beat)} ways to say: {beat[0][:50]}")
        for text in beat:
            if not re.search(r"[.!?:\"']$", text):
                fail(where, f"{entry.title}: does not end: {text[-40:]}")
            if text.count('"') % 2:
                fail(where, f"{entry.title}: open quote: {text[:60]}")
    if entry.kind in ("topic", "talk") and len(entry.asks) < 2:
        fail(where, f"{entry.title}: at least two ways to ask")
    if entry.kind in ("plot", "note") and len(entry.questions) < 2:
        fail(where, f"{entry.title}: at least two questions")
    known = set(entry.slots)
    for name, suffix in (("hero", ""), ("friend", "2")):
        if name in entry.slots:
            known |= {name.capitalize()} | {w + suffix for w in ("he", "him", "his", "He", "Him", "His")}
    pieces = [t for b in beats for t in b] + [t for q, a in entry.questions for t in q + [a]] + entry.asks
    for text in pieces:
        for key in SLOT.findall(text):
            name = key[2:] if key.startswith(ARTICLES) else key
            if name not in known:
                fail(where, f"{entry.title}: unknown slot {{{key}}}")
        if re.search(r"[{}]", SLOT.sub("", text)):
            fail(where, f"{entry.title}: broken braces: {text[:60]}")
    for seed in range(40):
        made = render(entry, random.Random(seed))
        for question, answer in made["questions"]:
            if plain(answer) not in plain(made["text"]):
                fail(where, f"{entry.title}: the answer '{answer}' to '{question}' is not in: {made['text'][:2000]}")


def main():
    command, files = sys.argv[1], sys.argv[2:]
    if command == "show":
        entries, count, seed = parse(files[0]), int(files[1]) if len(files) > 1 else 3, int(files[2]) if len(files) > 2 else 0
        rng = random.Random(seed)
        for _ in range(count):
            made = render(rng.choice(entries), rng)
            print(f"== {made['kind']}: {made['title']}" + (f"\n>> {made['ask']}" if made["ask"] else "") + f"\n{made['text']}")
            for question, answer in made["questions"]:
                print(f"   Q {question}\n   A {answer}")
            print()
        return
    bad = total = sentences = words = 0
    for path in files:
        try:
            entries = parse(path)
        except ValueError as error:
            print(error)
            bad += 1
            continue
        titles = set()
        for entry in entries:
            total += 1
            pieces = [t for b in entry.beats if b for t in b]
            sentences += len(pieces)
            words += sum(len(t.split()) for t in pieces)
            try:
                if entry.title in titles:
                    fail(entry.where, f"title twice: {entry.title}")
                titles.add(entry.title)
                check(entry)
            except (ValueError, KeyError) as error:
                print(error)
                bad += 1
    print(f"{total} entries, {sentences} phrasings, {words} words, {bad} faults")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
