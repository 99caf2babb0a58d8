#!/usr/bin/env python3
"""Writes the data of `quire eval house`: texts with questions, needles and filler, questions about inference, stories.

    make_eval.py FOLDER [--seed 7]

Nothing here is in the training text: the renderings are new, and the entries of the sets "unseen" and "stories" were kept out whole.
"""
import argparse
import json
import random
from pathlib import Path

from library import Library
from tasks import one_needle

QUESTIONS = 500
NEEDLES = 120
FILLER_CHARACTERS = 60000
STORIES = 24


def write(folder, name, objects):
    with open(folder / f"{name}.jsonl", "w") as file:
        for item in objects:
            file.write(json.dumps(item) + "\n")
    print(f"{name}: {len(objects)}")


def reading(rng, library, entries, name):
    """Texts until there are QUESTIONS questions, every entry in turn."""
    made, count, order = [], 0, []
    while count < QUESTIONS:
        if not order:
            order = rng.sample(entries, len(entries))
        entry = order.pop()
        text = library.render(entry, rng)
        questions = text["questions"][:QUESTIONS - count]
        count += len(questions)
        made.append({"set": name, "entry": entry.title, "from": entry.file, "text": text["text"], "questions": [{"question": q, "answer": a} for q, a in questions]})
    return made


def inference(library):
    path = Path(__file__).resolve().parent / "inference_questions.txt"
    asked = {ask.lower().rstrip("?.! ") for entry in library.topics + library.talks for ask in entry.asks}
    titles = {entry.title for entry in library.inference}
    questions = []
    for line in path.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        question, topics = line.rsplit(" = ", 1)
        topics = [topic.strip() for topic in topics.split("|")]
        assert question.lower().rstrip("?.! ") not in asked, f"in the bank: {question}"
        assert set(topics) <= titles, f"no such topic: {topics}"
        questions.append({"question": question, "topics": topics})
    return questions


def main():
    parser = argparse.ArgumentParser(description="Writes the data of `quire eval house`.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rng, library = random.Random(options.seed), Library()
    seen = library.stories + library.notes
    write(options.folder, "reading", reading(rng, library, seen, "new") + reading(rng, library, library.unseen, "unseen"))
    taken, needles = set(), []
    while len(needles) < NEEDLES:
        sentence, asks, reply = one_needle(rng, taken)
        needles.append({"sentence": sentence, "question": rng.choice(asks), "answer": reply})
    write(options.folder, "needles", needles)
    filler, used = [], 0
    while used < FILLER_CHARACTERS:
        text = library.render(rng.choice(rng.choice([library.stories, library.notes, library.topics])), rng, taken)["text"]
        filler += [{"text": paragraph} for paragraph in text.split("\n\n")]
        used += len(text)
    write(options.folder, "filler", filler)
    write(options.folder, "inference", inference(library))
    write(options.folder, "topics", [{"topic": e.title, "phrasings": [p for beat in e.beats if beat for p in beat]} for e in library.inference])
    unseen_stories = [e for e in library.unseen if e.kind == "plot"]
    write(options.folder, "stories", [{"entry": e.title, "text": library.render(e, rng)["text"]} for e in (unseen_stories * STORIES)[:STORIES]])


if __name__ == "__main__":
    main()
