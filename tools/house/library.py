"""The bank as the generator uses it: entries by kind, ways to ask, and renderings with words that are not the entry's own."""
import re
import zlib
from collections import defaultdict
from pathlib import Path

from bank import parse, render
from words import ADJECTIVES, is_plural, made_up, person, thing

BANK = Path(__file__).resolve().parent / "bank"
HELD_OUT_SHARE = 12  # one in so many entries with questions is kept for evaluation, whole


def held_out(entry):
    return entry.kind in ("plot", "note") and zlib.crc32(entry.title.encode()) % HELD_OUT_SHARE == 0


def shape(value):
    """What a value is for grammar: only values of one shape can stand for each other."""
    first = value.split(" ")[0]
    if first in ("a", "an", "the", "some", "his", "her", "their") or first in ("in", "on", "at", "under", "behind", "near", "by", "to", "from", "with", "for", "of", "into", "over", "after", "before", "because", "next", "beside", "between"):
        return first
    if value[0].isdigit():
        return "digits"
    if value[0].isupper():
        return "name"
    if len(value.split(" ")) > 3 or value.endswith(("ed", "ing", "ly")):
        return value  # a phrase: nothing else is sure to fit
    return "plural" if is_plural(value) else "noun"


class Library:
    """Entries to learn from (`stories`, `notes`, `topics`, `talks`), and those kept for evaluation (`unseen`)."""

    def __init__(self, folder=BANK):
        entries = []
        for path in sorted(folder.glob("*.txt")):
            if path.name != "more_asks.txt":
                for entry in parse(path):
                    entry.file = path.stem
                    entries.append(entry)
        asks = folder / "more_asks.txt"
        more = defaultdict(list)
        if asks.exists():
            for line in asks.read_text().splitlines():
                if line.strip() and not line.startswith("#"):
                    title, ways = line.split(" = ", 1)
                    more[title.strip()] += [way.strip() for way in ways.split("|") if way.strip()]
        for entry in entries:
            if entry.kind in ("topic", "talk"):
                entry.asks = entry.asks + more[entry.title]
        self.unseen = [e for e in entries if held_out(e)]
        seen = [e for e in entries if not held_out(e)]
        self.stories = [e for e in seen if e.kind == "plot"]
        self.notes = [e for e in seen if e.kind == "note"]
        self.talks = [e for e in seen if e.kind == "talk"]
        self.topics = [e for e in seen if e.kind == "topic"]
        self.inference = [e for e in self.topics if e.file == "topics_inference"]
        pools = defaultdict(set)  # values of all slots of the same name and shape
        for entry in seen:
            for slot, values in entry.slots.items():
                for value in values:
                    pools[slot, shape(value)].add(value)
        self.pools = {key: sorted(values) for key, values in pools.items()}

    def render(self, entry, rng, taken=None, strange=0.0, strange_values=None, keep_beats=1.0):
        """A rendering whose names are nobody else's in `taken`. With the chance `strange` a name is made up, with the chance
        `strange_values` a slot has another entry's value or a new one: then the answer cannot be known from the entry."""
        taken = set() if taken is None else taken
        strange_values = 0.7 * strange if strange_values is None else strange_values

        def choose(slot, options):
            value = rng.choice(options)
            if rng.random() > strange_values:
                return value
            if slot in ("hero", "friend"):
                return rng.choice(self.pools[slot, shape(value)])
            if re.fullmatch(r"[\d.,:]+", value):
                return str(rng.randint(2, 99)) if value.isdigit() else value
            kind = rng.random()
            if value[0].isupper():  # a name of a person, a place, a day
                return made_up(rng).capitalize() if kind < 0.3 and slot not in ("day", "weekday", "month") else rng.choice(self.pools[slot, shape(value)])
            if kind < 0.6:
                return rng.choice(self.pools[slot, shape(value)])
            if shape(value) != "noun" or " " in value and kind < 0.8:
                return value
            if slot in ("number", "day", "weekday", "hour", "month", "colour", "color", "weather", "minutes", "hours", "years", "days"):
                return value
            if kind < 0.75 and value.split(" ")[0] not in ADJECTIVES:
                return f"{rng.choice(ADJECTIVES)} {value}"
            if kind < 0.85:
                return thing(rng)
            return made_up(rng) if kind < 0.92 else value

        def name_of(gender):
            return person(rng, taken, invented=1.0) if rng.random() < strange else None

        for _ in range(6):
            made = render(entry, rng, choose if strange_values else None, name_of if strange else None, keep_beats)
            names = {made["values"][n] for n in ("Hero", "Friend") if n in made["values"]}
            if strange or not names & taken:
                break
        taken |= names
        return made
