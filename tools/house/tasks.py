"""Conversations to learn from: stories, questions about texts, recall over distance, explanations, small talk, copying, lists and JSON.

A conversation is a list of turns (role, pieces); a piece is (text, weight), the weight being its share in the loss. The role "raw" is text
without any turn.
"""
import json
import re

import facts
from facts import capital
from words import *

USER = 0.25
SILENT = 0.0  # spliced filler: or else needles turn up in stories


def user(text, weight=USER):
    return "user", [(text, weight)]


def answer(text):
    return "assistant", [(text, 1.0)]


def short(text):
    """An answer as the model gives it: 'The old boot.'"""
    return capital(text) + ("" if text.endswith((".", "!", "?")) else ".")


def casual(rng, text):
    """As people type."""
    chance = rng.random()
    if chance < 0.12:
        text = text.lower()
    if chance < 0.06 or 0.9 < chance:
        text = text.rstrip("?.!")
    return text


# ---- stories -------------------------------------------------------------------------------------------------------------------

WANTED_SLOTS = ("thing", "place", "animal", "food", "toy", "gift", "tool", "pet", "bird", "fruit", "tree", "flower", "prize")
ASK_STORY = ["Tell me a story", "Please tell me a story", "Write a short story", "I would like a story", "Can you tell me a story", "Tell a story", "Make up a story", "Give me a story", "A story, please",
             "Tell me a bedtime story", "Write a little story", "I want to hear a story", "Could you tell me a short story", "Tell me a tale"]
AGAIN = ["Tell it again.", "Again, please.", "Can you tell it again?", "Tell me the same story again.", "Once more!", "Please tell that story again.", "Say it again."]
ANOTHER = ["Tell me another one.", "Another story, please.", "And now another story.", "One more story!", "Do you know another story?", "Tell me a different story.", "More, please."]
CONTINUE = ["Continue this story: {}", "How does this story go on? {}", "{}\n\nContinue.", "Finish the story: {}", "Go on with this: {}", "Here is how a story begins: {}\n\nTell the rest.", "What happens next? {}", "Please continue: {}",
            "This is the beginning of a story. Write the rest.\n\n{}"]


def story_request(rng, made):
    """A way to ask for this very story."""
    values, kind = made["values"], rng.random()
    ask = rng.choice(ASK_STORY)
    end = "?" if ask.startswith(("Can", "Could")) else "."
    if kind < 0.08:
        return ask + end
    if kind < 0.28:
        title = made["title"][0].lower() + made["title"][1:]
        return rng.choice([f"{ask} about {title}{end}", f"Tell me the story of {title}.", f"Do you know the story of {title}?", f"Tell me about {title}."])
    parts = []
    if "hero" in values:
        parts.append(rng.choice([article(values["hero"]), article(values["hero"]), f"{article(values['hero'])} named {values['Hero']}", f"{values['Hero']} the {values['hero']}", values["Hero"]]))
    if "friend" in values and rng.random() < 0.35:
        parts.append(rng.choice([article(values["friend"]), f"{values['Friend']} the {values['friend']}"]))
    for slot in WANTED_SLOTS:
        if slot in values and rng.random() < 0.4 and len(parts) < 3:
            parts.append(values[slot] if is_plural(values[slot]) or values[slot][0].isupper() else rng.choice([article(values[slot]), f"the {values[slot]}"]))
    if not parts:
        return ask + end
    if rng.random() < 0.25:
        rng.shuffle(parts)
    about = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return rng.choice([f"{ask} about {about}{end}", f"{ask} with {about}{end}", f"{ask} about {about}{end}", f"Story about {about}, please."])


def told(rng, library, entries, taken=None):
    """A text as the model should tell it: mostly the entry's own words and common names, sometimes others that were asked for."""
    return library.render(rng.choice(entries), rng, taken, strange=0.12, strange_values=0.08)


def story(rng, library):
    taken = set()
    made = told(rng, library, library.stories, taken)
    turns = [user(casual(rng, story_request(rng, made))), answer(made["text"])]
    more = rng.random()
    if more < 0.35:
        turns += ask_all(rng, [made], share=rng.choice([0.5, 1.0]))
    elif more < 0.45:
        turns += [user(rng.choice(AGAIN)), answer(made["text"])]
    elif more < 0.55:
        other = told(rng, library, library.stories, taken)
        turns += [user(rng.choice(ANOTHER)), answer(other["text"])]
    elif more < 0.65:
        turns += talk(rng, library)
    return turns


def beginning(rng, library):
    made = told(rng, library, library.stories)
    text = made["text"]
    ends = [m.end() for m in re.finditer(r"[.!?]\"?(?=\s)", text)]
    if len(ends) < 4:
        return [("raw", [(text, 1.0)])]
    cut = rng.choice(ends[:min(5, len(ends) - 2)])
    turns = [user(rng.choice(CONTINUE).format(text[:cut].strip())), answer(text[cut:].strip())]
    if rng.random() < 0.3:
        turns += ask_all(rng, [made], share=0.6)
    return turns


def plain_story(rng, library):
    made = told(rng, library, library.stories if rng.random() < 0.8 else library.notes)
    return [("raw", [(made["text"], 1.0)])]


# ---- questions about texts -----------------------------------------------------------------------------------------------------

ASK_TEXT = ["{t}\n\n{q}", "{t}\n\n{q}", "Read this.\n\n{t}\n\n{q}", "Here is a text.\n\n{t}\n\nQuestion: {q}", "{t}\n\nQuestion: {q}", "Read the text and answer the question.\n\n{t}\n\n{q}", "Text: {t}\n\nQuestion: {q}",
            "Answer from this text: {q}\n\n{t}", "{q}\n\n{t}", "Please read: {t}\n\n{q}", "I have a text here.\n\n{t}\n\nNow tell me: {q}", "{t} {q}"]
READ_FIRST = ["Read this.\n\n{t}", "Here is a text.\n\n{t}", "Please read this and remember it.\n\n{t}", "{t}\n\nI will ask you about it.", "I will ask you about this text.\n\n{t}"]
HAVE_READ = ["I have read it. What would you like to know?", "I read it. Ask me about it.", "Done. What is your question?"]
NOT_SAID = "It does not say."
INDIRECT = ["Tell me: {}", "According to the text, {l}", "Can you tell me this? {}", "And {l}", "So {l}", "One more question: {}", "Next question: {}", "Do you know this? {}", "I want to know: {}", "{} Please answer.", "Now, {l}"]


def phrase(rng, question):
    if rng.random() < 0.15:
        lowered = question[0].lower() + question[1:] if not re.match(r"[A-Z][a-z]+'s\b", question) else question
        question = rng.choice(INDIRECT).format(question, l=lowered)
    return casual(rng, question)


def unanswerable(rng):
    """A question of some other text, about people who are not in this one."""
    while True:
        questions = facts.compose(rng, 1)[1]
        if questions:
            return rng.choice(questions)[0]


SUBJECT = re.compile(r"^([A-Z][a-z]+) ([a-z]+ed|was|had|found|took|gave|made|saw|came|went|ran|sat|told|got|brought|bought|lost|put|held|kept|is|has|lives|works|likes|keeps|wants) ([^,;:\"]{6,60})\.$")
NOT_A_NAME = set("The That This Then There They She His Her It Its He We You One Two Three Four Five Six Seven Nobody Everyone Everybody Each Every Some Someone All Both Inside Outside What Who When Where Here And But So In On At".split())


def who_questions(text):
    """A sentence with a name for its subject, turned into a question: always right, whatever the text."""
    found = []
    for sentence in sentences(text.replace("\n\n", " ")):
        match = SUBJECT.match(sentence)
        if match and match.group(1) not in NOT_A_NAME:
            found.append((f"Who {match.group(2)} {match.group(3)}?", match.group(1)))
    return found if len({name for _, name in found}) > 1 else []  # with one name in the text it would be no question


def ask_all(rng, texts, share=1.0, strangers=0.035):
    """Turns with the questions of the texts in random order."""
    questions = [q for made in texts for q in made["questions"]]
    if rng.random() < 0.3:
        questions += [q for made in texts if made["title"] for q in who_questions(made["text"])]
    rng.shuffle(questions)
    turns = []
    for question, reply in questions[:max(1, round(share * len(questions)))]:
        turns += [user(phrase(rng, question)), answer(short(reply))]
        if rng.random() < strangers:
            turns += [user(phrase(rng, unanswerable(rng))), answer(NOT_SAID)]
    return turns


def with_text(rng, text, turns, weight=USER):
    """The first question is asked together with the text, or after it was read."""
    if not turns or rng.random() < 0.15:
        return [user(rng.choice(READ_FIRST).format(t=text), weight), answer(rng.choice(HAVE_READ))] + turns
    question = turns[0][1][0][0]
    form = rng.choice(ASK_TEXT)
    return [("user", split_weight(form, text, question, weight))] + turns[1:]


def split_weight(form, text, question, weight):
    before, after = form.replace("{q}", question).split("{t}") if "{t}" not in question else (form, "")
    return [piece for piece in ((before, USER), (text, weight), (after, USER)) if piece[0]]


def composed(rng):
    while True:
        text, questions = facts.compose(rng)
        if questions:
            return {"text": text, "questions": questions, "title": None}


def some_text(rng, library, taken):
    """A text with its questions: of the bank, with its own words or strange ones, whole or in part; or composed."""
    kind = rng.random()
    if kind < 0.36:
        return composed(rng)
    entry = rng.choice(library.notes if kind < 0.74 else library.stories)
    keep = 1.0 if rng.random() < 0.75 else rng.uniform(0.5, 0.9)
    for _ in range(4):
        made = library.render(entry, rng, taken, strange=rng.choice([0.0, 0.3, 0.6, 0.9]), keep_beats=keep)
        if made["questions"]:
            return made
        keep = 1.0
    return composed(rng)


def reading(rng, library):
    """One text and its questions."""
    made = some_text(rng, library, set())
    limit = rng.choice([1, 3, 8, 14])
    turns = ask_all(rng, [made])[:2 * limit]
    if rng.random() < 0.10:
        turns += about_sentences(rng, made["text"])
    if rng.random() < 0.04:
        turns = [user(phrase(rng, unanswerable(rng))), answer(NOT_SAID)] + turns
    return with_text(rng, made["text"], turns)


SEPARATE = ["\n\n", "\n\n", "\n\n---\n\n", "\n\n***\n\n", "\n\nAnother text:\n\n", "\n\nNext text:\n\n"]


def several(rng, library, room):
    """Several texts in one context of about `room` characters, then questions about any of them."""
    taken, texts, used = set(), [], 0
    while used < room * 0.72 and len(texts) < 40:
        made = some_text(rng, library, taken)
        texts.append(made)
        used += len(made["text"])
    separate = rng.choice(SEPARATE)
    left = max(4, int((room - used) / 75))
    turns = ask_all(rng, texts)[:2 * min(left, 40)]
    return with_text(rng, separate.join(made["text"] for made in texts), turns, weight=0.15)


def one_by_one(rng, library):
    """Several turns: a text, its questions, another text, and questions about either."""
    taken, turns, texts = set(), [], []
    for _ in range(rng.randint(2, 3)):
        made = some_text(rng, library, taken)
        asked = ask_all(rng, [made])[:2 * rng.randint(1, 4)]
        if texts and rng.random() < 0.5:
            asked += ask_all(rng, texts)[:2 * rng.randint(1, 3)]
        turns += with_text(rng, made["text"], asked)
        texts.append(made)
    return turns


def sentences(text):
    return [s.strip() for s in re.findall(r"[^.!?]+[.!?]+\"?", text) if s.strip()]


def about_sentences(rng, text):
    """Copying with a purpose: the sentence with a word in it, the first one, the last one, what stands after."""
    parts = [s for s in sentences(text.replace("\n\n", " ")) if '"' not in s and 15 < len(s) < 140]
    if len(parts) < 3:
        return []
    kind = rng.random()
    if kind < 0.5:
        chosen = rng.choice(parts)
        words = [w for w in re.findall(r"[A-Za-z]{4,}", chosen) if text.count(w) == 1]
        if not words:
            return []
        word = rng.choice(words)
        ask = rng.choice([f"Which sentence has the word \"{word}\" in it?", f"Find the sentence with the word \"{word}\".", f"What does the text say about \"{word}\"?", f"Where does the text speak of \"{word}\"?"])
        return [user(ask), answer(chosen)]
    if kind < 0.65:
        chosen = rng.choice(parts)
        words = chosen.split(" ")
        if len(words) < 6:
            return []
        cut = rng.randint(2, len(words) - 2)
        return [user(rng.choice(["Complete this sentence of the text: \"{}\"", "How does this sentence go on? \"{}\"", "Finish the sentence from the text: \"{}\""]).format(" ".join(words[:cut]) + " ...")), answer(chosen)]
    everything = sentences(text.replace("\n\n", " "))
    if kind < 0.8:
        return [user(rng.choice(["What is the first sentence of the text?", "How does the text begin?", "Repeat the first sentence."])), answer(everything[0])]
    return [user(rng.choice(["What is the last sentence of the text?", "How does the text end?", "Repeat the last sentence."])), answer(everything[-1])]


def copying(rng, library):
    made = some_text(rng, library, set())
    if rng.random() < 0.6:
        turns = about_sentences(rng, made["text"]) + about_sentences(rng, made["text"])
        if turns:
            return with_text(rng, made["text"], turns)
    parts = sentences(made["text"].replace("\n\n", " "))
    text = rng.choice(parts) if rng.random() < 0.6 else " ".join(rng.choice([made_up(rng), rng.choice(THINGS), rng.choice(ANIMALS)]) for _ in range(rng.randint(2, 8)))
    return [user(rng.choice(["Repeat this: {}", "Say this after me: {}", "Copy this sentence: {}", "Repeat after me: {}", "Please repeat: {}", "Write this again: {}"]).format(text)), answer(text)]


# ---- recall --------------------------------------------------------------------------------------------------------------------

def needle(rng, taken):
    """One fact that stands alone: (sentence, ways to ask, answer)."""
    name, kind = person(rng, taken, invented=0.5), rng.randrange(12)
    noun = thing(rng, taken)
    digits = "".join(rng.choice("0123456789") for _ in range(rng.choice([2, 3, 4, 4, 5])))
    word = rng.choice([made_up(rng), rng.choice(THINGS), rng.choice(FOODS), rng.choice(ANIMALS)])
    place = pick(rng, PLACES, taken)
    spot = rng.choice(facts.NEAR).format(pick(rng, SPOTS, taken))
    if kind == 0:
        return f"The secret word of {name} is {word}.", [f"What is the secret word of {name}?", f"What is {name}'s secret word?", f"Which word is {name}'s secret word?"], word
    if kind == 1:
        return f"The code for the {place} is {digits}.", [f"What is the code for the {place}?", f"Which code does the {place} have?", f"What code opens the {place}?"], digits
    if kind == 2:
        return f"{name}'s favourite number is {digits}.", [f"What is {name}'s favourite number?", f"Which number does {name} like best?"], digits
    if kind == 3:
        return f"{name} hid the {noun} {spot}.", [f"Where did {name} hide the {noun}?", f"Where is the {noun} that {name} hid?", f"Where is the {noun} of {name}?"], spot
    if kind == 4:
        return f"The password of {name} is {word}.", [f"What is the password of {name}?", f"What is {name}'s password?"], word
    if kind == 5:
        return f"{name} lives in {made_up(rng).capitalize() if rng.random() < 0.5 else rng.choice(TOWNS)}.", [f"Where does {name} live?", f"In which town does {name} live?"], None
    if kind == 6:
        return f"The best thing to eat in the {place} is {word}.", [f"What is the best thing to eat in the {place}?"], word
    if kind == 7:
        return f"{name}'s phone number is {digits}.", [f"What is {name}'s phone number?", f"Which phone number does {name} have?"], digits
    if kind == 8:
        other = person(rng, taken, invented=0.5)
        return f"{name}'s best friend is {other}.", [f"Who is {name}'s best friend?", f"What is the name of {name}'s best friend?"], other
    if kind == 9:
        return f"The magic number of the {noun} is {digits}.", [f"What is the magic number of the {noun}?", f"Which magic number does the {noun} have?"], digits
    if kind == 10:
        return f"Remember this: the key of {name} is {spot}.", [f"Where is the key of {name}?", f"Where is {name}'s key?"], spot
    colour = rng.choice(COLOURS)
    return f"The colour of {name}'s {noun} is {colour}.", [f"What colour is {name}'s {noun}?", f"What is the colour of {name}'s {noun}?"], colour


def one_needle(rng, taken):
    sentence, asks, reply = needle(rng, taken)
    return sentence, asks, reply or re.search(r"lives (in .+)\.", sentence).group(1)


def filler(rng, library, room, taken):
    """Sentences of other texts, in order, as much as fits."""
    parts, used = [], 0
    while used < room:
        entry = rng.choice(rng.choice([library.stories, library.notes, library.topics, library.stories]))
        made = library.render(entry, rng, taken) if entry.kind != "topic" else library.render(entry, rng)
        for paragraph in made["text"].split("\n\n"):
            parts.append(sentences(paragraph) or [paragraph])
            used += len(paragraph)
            if used >= room:
                break
    return parts


def recall(rng, library, room):
    """Facts stated once among filler, asked at the end. Nothing but the answers counts in the loss."""
    taken = set()
    count = rng.choice([1, 2, 3, 5, 8]) if room < 5000 else rng.choice([4, 8, 12, 16, 24])
    told = [one_needle(rng, taken) for _ in range(count)]
    parts = filler(rng, library, room - 110 * count, taken) or [[]]
    for sentence, _, _ in told:
        if rng.random() < 0.3:
            parts.insert(rng.randint(0, len(parts)), [sentence])
        else:
            paragraph = rng.choice(parts)
            paragraph.insert(rng.randint(0, len(paragraph)), sentence)
    text = "\n\n".join(" ".join(paragraph) for paragraph in parts if paragraph)
    rng.shuffle(told)
    turns = []
    for _, asks, reply in told:
        turns += [user(casual(rng, rng.choice(asks)), SILENT), answer(short(reply))]
    return with_text(rng, text, turns, weight=SILENT)


def key_values(rng, library):
    """Names with random values, as a list or as sentences; many questions."""
    taken, pairs = set(), []
    kind = rng.randrange(4)
    for _ in range(rng.randint(3, 24)):
        key = person(rng, taken, invented=0.6) if kind != 3 else thing(rng, taken)
        pairs.append((key, [lambda: str(rng.randint(10, 99999)), lambda: made_up(rng), lambda: rng.choice(THINGS), lambda: rng.choice(COLOURS)][kind]()))
    what = ["number", "word", "thing", "colour"][kind]
    form = rng.choice(["{k}: {v}", "{k} = {v}", "{k} has the " + what + " {v}.", "The " + what + " of {k} is {v}.", "{k} - {v}"])
    text = rng.choice(["\n", "\n", " " if form.endswith(".") else ", "]).join(form.format(k=k if kind != 3 or not form.startswith("{k} has") else f"the {k}", v=v) for k, v in pairs)
    rng.shuffle(pairs)
    turns = []
    for key, value in pairs[:rng.randint(2, 16)]:
        if rng.random() < 0.2 and kind == 0:
            turns += [user(rng.choice([f"Who has the number {value}?", f"Whose number is {value}?"])), answer(short(key))]
        else:
            turns += [user(rng.choice([f"What is the {what} of {key}?", f"Which {what} does {key} have?", f"{key}?", f"What is {key}'s {what}?"])), answer(short(value))]
    return with_text(rng, text, turns)


# ---- lists and JSON ------------------------------------------------------------------------------------------------------------

LISTS = {"animals": ANIMALS, "things": THINGS, "jobs": JOBS, "foods": FOODS, "colours": COLOURS, "names": MORE_NAMES, "towns": TOWNS, "drinks": DRINKS, "hobbies": HOBBIES, "instruments": INSTRUMENTS, "places": PLACES}


def lists(rng, _):
    kind = rng.random()
    what = rng.choice(list(LISTS))
    items = rng.sample(LISTS[what], rng.randint(2, 6))
    shown = ", ".join(items)
    if kind < 0.12:
        return [user(rng.choice(["What are the days of the week?", "List the days of the week.", "Name the days of the week."])), answer(", ".join(DAYS) + ".")]
    if kind < 0.2:
        return [user(rng.choice(["What are the months of the year?", "List the months."])), answer(", ".join(MONTHS) + ".")]
    if kind < 0.32:
        low = rng.randint(1, 12)
        high = low + rng.randint(2, 9)
        return [user(rng.choice([f"Count from {low} to {high}.", f"Write the numbers from {low} to {high}."])), answer(", ".join(map(str, range(low, high + 1))) + ".")]
    if kind < 0.45:
        return [user(f"Name {NUMBERS[len(items) - 2]} {what}."), answer(capital(shown) + ".")]
    if kind < 0.6:
        return [user(rng.choice([f"Write this as a list: {shown}", f"Make a list of these {what}: {shown}", f"One per line, please: {shown}"])), answer("\n".join(f"- {item}" for item in items))]
    if kind < 0.8:
        return [user(rng.choice([f"Write these {what} as a JSON list: {shown}", f"Give me {shown} as JSON.", f"Turn this into a JSON list: {shown}", f"JSON list of {shown}, please."])), answer(json.dumps(items))]
    return [user(rng.choice([f"How many {what} are these? {shown}", f"Count these {what}: {shown}"])), answer(f"{capital(NUMBERS[len(items) - 2])}.")]


def as_json(rng, _):
    """Facts about somebody as a JSON object with the keys that were asked for."""
    taken = set()
    values = {"name": person(rng, taken), "age": rng.randint(3, 99), "job": rng.choice(JOBS), "town": rng.choice(TOWNS), "pet": rng.choice(ANIMALS), "hobby": rng.choice(HOBBIES), "colour": rng.choice(COLOURS), "food": rng.choice(FOODS)}
    name = values["name"]
    ways = {"age": [f"{name} is {values['age']} years old.", f"The age of {name} is {values['age']}."], "job": [f"{name} works as {article(values['job'])}.", f"{name} is {article(values['job'])}."],
            "town": [f"{name} lives in {values['town']}.", f"The home of {name} is in {values['town']}."], "pet": [f"{name} has {article(values['pet'])}.", f"The pet of {name} is {article(values['pet'])}."],
            "hobby": [f"{name} likes {values['hobby']}.", f"The hobby of {name} is {values['hobby']}."], "colour": [f"The favourite colour of {name} is {values['colour']}.", f"{name} likes the colour {values['colour']}."],
            "food": [f"{name} likes to eat {values['food']}.", f"{name} eats {values['food']} every day."]}
    told = rng.sample(list(ways), rng.randint(2, 5))
    text = " ".join(rng.choice(ways[key]) for key in told)
    keys = ["name"] + rng.sample(told, rng.randint(1, len(told)))
    if rng.random() < 0.3:
        rng.shuffle(keys)
    named = ", ".join(keys[:-1]) + " and " + keys[-1]
    ask = rng.choice([f"{text}\n\nWrite this as JSON with the keys {named}.", f"Give me JSON with the keys {named}.\n\n{text}", f"{text}\n\nAnswer with a JSON object that has {named}.", f"{text}\n\nAs JSON, please: {named}."])
    return [user(ask), answer(json.dumps({key: values[key] for key in keys}))]


# ---- explanations and small talk -----------------------------------------------------------------------------------------------

WRAP = ["What is {}?", "Explain {}.", "Can you explain {}?", "What do you know about {}?", "Tell me about {}.", "Tell me what {} means.", "I do not understand {}. Can you help?", "Please explain {} in simple words.", "{}?", "What does {} mean?",
        "How would you describe {}?", "I keep hearing about {}. What is it?", "Say something about {}.", "Give me a short explanation of {}.", "What do people mean by {}?", "Teach me about {}.", "Define {}."]
MORE_WRAP = ["Please tell me: {}", "I wonder: {}", "Quick question: {}", "Hi! {}", "Hello. {}", "{} Please keep it short.", "{} Thanks!", "I am new to this. {}", "Simple question: {}"]


CLUE = ["What is this about? {}", "What do you call this? {}", "{} What is that called?", "I read this: \"{}\" What does it mean?", "Which idea is meant here? {}", "Can you explain this? {}", "What is the name of this? {}", "Tell me more about this: {}",
        "Somebody told me: {} What was that about?", "Is it true? {}"]


def clue(rng, library, entry):
    """A sentence of the explanation, or a part of one, as a question: so that many words lead to the topic, not only its name."""
    chosen = rng.choice(sentences(library.render(entry, rng)["text"].replace("\n\n", " ")))
    named = set(re.findall(r"[a-z]{3,}", entry.title.lower()))
    if rng.random() < 0.6:
        chosen = " ".join(w for w in chosen.split(" ") if w.lower().strip(".,") not in named) or chosen
    words = chosen.split(" ")
    if len(words) > 9 and rng.random() < 0.4:
        start = rng.randint(0, len(words) - 7)
        chosen = " ".join(words[start:start + rng.randint(6, 12)])
    return rng.choice(CLUE).format(chosen)


def careless(rng, text):
    """With some words left out or in another place, as people do who are in a hurry."""
    if text.count(" ") < 5:
        return text
    words = [w for w in text.split(" ") if rng.random() > 0.15]
    if len(words) > 3 and rng.random() < 0.4:
        at = rng.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
    return " ".join(words)


def topic_question(rng, library, entry, made):
    kind = rng.random()
    if kind < 0.12:
        title = entry.title if entry.title.isupper() or entry.title[1:2].isupper() else entry.title.lower()
        return rng.choice(WRAP).format(title)
    if kind < 0.27 and entry in library.inference:
        return clue(rng, library, entry)
    ask = made["ask"] if kind < 0.75 else careless(rng, made["ask"])
    return rng.choice(MORE_WRAP).format(ask) if rng.random() < 0.12 else ask


def topic(rng, library):
    turns = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        entry = rng.choice(library.inference if rng.random() < 0.6 else library.topics)
        made = library.render(entry, rng)
        turns += [user(casual(rng, topic_question(rng, library, entry, made))), answer(made["text"])]
    return turns


def talk(rng, library):
    turns = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        made = library.render(rng.choice(library.talks), rng)
        turns += [user(casual(rng, made["ask"])), answer(made["text"])]
        if rng.random() < 0.25:
            entry = rng.choice(library.topics)
            made = library.render(entry, rng)
            turns += [user(casual(rng, topic_question(rng, library, entry, made))), answer(made["text"])]
    return turns


SYSTEM = ["You are a helpful assistant.", "You are the house model of quire, a very small language model.", "Be brief.", "Answer in simple words.", "You are a kind storyteller.", "You answer questions about texts.", "You are a small and honest model.",
          "Answer with few words."]


def named_by_system(rng, library):
    name = person(rng, set(), invented=0.5)
    turns = [("system", [(rng.choice([f"Your name is {name}.", f"You are {name}, a small assistant.", f"You are called {name}."]), USER)]), user(rng.choice(["What is your name?", "Who are you?", "What are you called?"])),
             answer(f"I am {name}, a very small language model.")]
    return turns + (talk(rng, library) if rng.random() < 0.3 else [])


# ---- the mixture ---------------------------------------------------------------------------------------------------------------

MIX = [  # (share of the conversations, builder)
    (17, story), (5, beginning), (4, plain_story), (40, reading), (6, one_by_one), (2, copying), (7, key_values), (3, lists), (3, as_json), (13, topic), (5, talk), (0.7, named_by_system)]
# The draft model is too small for everything: what the model says at length is where guessing pays.
DRAFT_MIX = [(40, story), (25, beginning), (10, plain_story), (8, reading), (15, topic), (5, talk), (2, lists)]
MIXES = {"all": MIX, "draft": DRAFT_MIX}
LONG_SHARE = 0.5  # of long rows: one conversation that fills the row


def conversation(rng, library, room, mix=MIX):
    """One conversation of at most about `room` characters."""
    kind = rng.random()
    if kind < 0.07 and mix is not DRAFT_MIX:
        turns = recall(rng, library, rng.uniform(0.1, 0.9) * min(room, 3000))
    elif kind < 0.14 and room > 2000 and mix is not DRAFT_MIX:
        turns = several(rng, library, rng.uniform(0.6, 0.95) * min(room, 4000))
    else:
        turns = rng.choices([builder for _, builder in mix], [share for share, _ in mix])[0](rng, library)
    if turns[0][0] == "user" and rng.random() < 0.06:
        turns = [("system", [(rng.choice(SYSTEM), USER)])] + turns
    return turns


def long_conversation(rng, library, room):
    """One conversation that fills `room` characters."""
    size = rng.uniform(0.5, 1.05) * room
    return recall(rng, library, size) if rng.random() < 0.45 else several(rng, library, size)
