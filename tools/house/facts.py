"""Composed facts: short texts about random people and things, with every question that they answer.

The bank's texts can be known by heart; these cannot. Who did what, with what, to whom, where, when, how many, of which colour, in what
order, and why is drawn anew each time, said in many ways and asked with the same words or with others.
"""
from words import *

# Verbs by meaning. A text takes one of a group, a question may take another: base, past.
DEEDS = [
    [("find", "found"), ("discover", "discovered"), ("come across", "came across")],
    [("buy", "bought"), ("get", "got"), ("pay for", "paid for")],
    [("sell", "sold")],
    [("lose", "lost")],
    [("break", "broke"), ("damage", "damaged")],
    [("mend", "mended"), ("repair", "repaired"), ("fix", "fixed")],
    [("hide", "hid"), ("put away", "put away")],
    [("paint", "painted")],
    [("build", "built"), ("make", "made")],
    [("steal", "stole"), ("take", "took")],
    [("bring", "brought"), ("carry", "carried")],
    [("see", "saw"), ("notice", "noticed"), ("spot", "spotted")],
    [("choose", "chose"), ("pick", "picked"), ("want", "wanted")],
    [("clean", "cleaned"), ("wash", "washed"), ("polish", "polished")],
    [("throw away", "threw away")],
    [("borrow", "borrowed")],
    [("win", "won")],
    [("catch", "caught")],
    [("drop", "dropped")],
    [("open", "opened")],
    [("forget", "forgot"), ("leave behind", "left behind")],
    [("draw", "drew")],
    [("keep", "kept")],
    [("pull", "pulled"), ("drag", "dragged")],
    [("need", "needed")],
    [("hold", "held")],
    [("wear", "wore")],
    [("study", "studied"), ("look at", "looked at"), ("watch", "watched")],
    [("bury", "buried")],
    [("collect", "collected"), ("gather", "gathered")],
    [("push", "pushed")],
    [("touch", "touched")],
    [("hang up", "hung up")],
    [("dig up", "dug up")],
    [("fetch", "fetched"), ("pick up", "picked up")],
    [("sew", "sewed")],
    [("measure", "measured")],
    [("try out", "tried out"), ("test", "tested"), ("use", "used")],
]
GIFTS = [[("give", "gave"), ("hand", "handed"), ("pass", "passed")], [("send", "sent"), ("mail", "mailed")], [("lend", "lent")], [("show", "showed")], [("sell", "sold")],
         [("bring", "brought")], [("promise", "promised")], [("offer", "offered")], [("throw", "threw")]]
WENT = [("go", "went"), ("walk", "walked"), ("run", "ran"), ("hurry", "hurried"), ("travel", "travelled"), ("ride", "rode"), ("drive", "drove"), ("sail", "sailed")]
INSIDE = ["in the {}", "at the {}", "near the {}", "behind the {}", "in front of the {}", "outside the {}", "beside the {}", "not far from the {}"]
NEAR = ["under the {}", "on the {}", "behind the {}", "beside the {}", "next to the {}", "in front of the {}", "above the {}", "near the {}", "against the {}"]


def capital(text):
    return text[:1].upper() + text[1:]


def say(rng, *ways):
    return capital(rng.choice(ways)) if ways else ""


def number(rng, low=2, high=60):
    return rng.choice(NUMBERS) if rng.random() < 0.5 else str(rng.randint(low, high))


def when(rng):
    return rng.choice([
        lambda: f"on {rng.choice(DAYS)}", lambda: f"in {rng.choice(MONTHS)}", lambda: f"at {rng.choice(HOURS[:11])} o'clock", lambda: f"last {rng.choice(SEASONS)}",
        lambda: f"on {rng.choice(DAYS)} {rng.choice(['morning', 'evening', 'afternoon'])}", lambda: rng.choice(["yesterday", "last night", "last week", "this morning", "at noon", "at midnight"]),
        lambda: f"{rng.choice(NUMBERS[:10])} days ago", lambda: f"before {rng.choice(['breakfast', 'lunch', 'dinner', 'school', 'sunrise'])}",
        lambda: f"after {rng.choice(['breakfast', 'lunch', 'dinner', 'school', 'sunset', 'the storm', 'the party'])}"])()


def where(rng, taken):
    if rng.random() < 0.5:
        return rng.choice(INSIDE).format(pick(rng, PLACES, taken))
    return rng.choice(NEAR).format(pick(rng, SPOTS, taken))


class World:
    """Who and what is in one text; nothing twice, so that every answer is the only one."""

    def __init__(self, rng):
        self.rng, self.taken = rng, set()
        self.people = [person(rng, self.taken) for _ in range(rng.randint(2, 5))]
        kinds = rng.random()
        self.kind = {}
        for name in self.people:
            if kinds < 0.5:
                self.kind[name] = pick(rng, JOBS if rng.random() < 0.5 else ANIMALS, self.taken)
        self.pronoun = {name: rng.choice(["he", "she"]) for name in self.people}
        self.told = set()

    def claim(self, *facts):
        """Whether none of these facts was told yet; if so they are now. A fact is (who, what sort): somebody finds one thing in a text, not two."""
        if self.told & set(facts):
            return False
        self.told |= set(facts)
        return True

    def who(self, name, first):
        """The person as subject: introduced with what they are the first time."""
        kind = self.kind.get(name)
        if first and kind and self.rng.random() < 0.7:
            return self.rng.choice([f"{name} the {kind}", f"{article(kind)} named {name}", f"{name}, {article(kind)},", f"{article(kind)} called {name}"])
        return name


def deed(world, rng, names):
    """Somebody does something to a thing."""
    who = rng.choice(names)
    group = rng.choice(DEEDS)
    if not world.claim((who, group[0][0])):
        return None
    base, past = rng.choice(group)
    asked = rng.choice(group)[0]
    asked_past = dict(group)[asked]
    noun = thing(rng, world.taken)
    colour = rng.choice(COLOURS) if rng.random() < 0.3 else None
    material = rng.choice(MATERIALS) if rng.random() < 0.15 else None
    count = number(rng) if rng.random() < 0.2 and " " not in noun and not is_plural(noun) else None
    short = noun.split(" ", 1)[1] if noun.split(" ")[0] in ADJECTIVES else noun
    described = f"{colour} {noun}" if colour else noun
    if count:
        described, short, noun = f"{described}s", f"{short}s", f"{noun}s"
    full = f"{count} {described}" if count else described if is_plural(described) else article(described)
    if material:
        full += f" made of {material}"
    place, time = (where(rng, world.taken) if rng.random() < 0.6 else None), (when(rng) if rng.random() < 0.5 else None)
    reason = rng.choice(REASONS) if rng.random() < 0.12 else None
    tool = article(thing(rng, world.taken, adjectives=0)) if rng.random() < 0.12 else None
    companion = rng.choice([n for n in world.people if n != who]) if rng.random() < 0.15 else None
    subject = world.who(who, rng.random() < 0.4)
    middle = f"{past} {full}"
    if tool and not is_plural(tool):
        middle += rng.choice([f" with {tool}", f" with the help of {tool}"])
    if companion:
        middle += f" together with {companion}"
    ends = [e for e in (place, time) if e]
    rng.shuffle(ends)
    front = ends.pop() if ends and rng.random() < 0.5 else None
    sentence = f"{capital(front)}{rng.choice([',', ''])} " if front else ""
    sentence += (subject if front else capital(subject)) + " " + middle + "".join(f" {e}" for e in ends)
    if reason:
        sentence += f" because {reason}"
    sentence += "."
    ways = rng.random()
    verb_past = past.split(" ")
    if ways < 0.12 and not (tool or companion or reason or front) and len(verb_past) == 1:
        sentence = f"It was {who} who {past} {full}{''.join(f' {e}' for e in ends)}."
    it = "They" if count else "It"
    was = "were" if count else "was"
    the = f"the {short}"
    questions = [(say(rng, f"what did {who} {asked}{rng.choice(['', f' {time}' if time else '', f' {place}' if place else ''])}?", f"which thing did {who} {asked}?", f"what was it that {who} {asked_past}?"), full.split(" made of")[0])]
    questions.append((say(rng, f"who {asked_past} {the}?", f"who was it that {asked_past} {the}?", f"who {asked_past} {rng.choice([the, full.split(' made of')[0]])}?"), who))
    if place:
        questions.append((say(rng, f"where did {who} {asked} {the}?", f"in what place did {who} {asked} {the}?", f"where {was} {the} when {who} {asked_past} {'them' if count else 'it'}?"), place))
    if time:
        questions.append((say(rng, f"when did {who} {asked} {the}?", f"at what time did {who} {asked} {the}?"), time))
    if colour:
        questions.append((say(rng, f"what colour {was} {the}?", f"which colour did {the} have?", f"what color {was} {the} that {who} {asked_past}?", f"of what colour {was} {the}?"), colour))
    if count:
        questions.append((say(rng, f"how many {short} did {who} {asked}?", f"how many {short} {was} there?"), count))
    if material:
        questions.append((say(rng, f"what {was} {the} made of?", f"of what {was} {the} made?", f"which material {was} {the} made of?"), material))
    if reason:
        questions.append((say(rng, f"why did {who} {asked} {the}?", f"for what reason did {who} {asked} {the}?"), f"because {reason}"))
    if tool and "with" in middle:
        questions.append((say(rng, f"what did {who} use to {base} {the}?", f"with what did {who} {asked} {the}?", f"what did {who} {asked} {the} with?"), tool))
    if companion:
        questions.append((say(rng, f"who helped {who}?" if rng.random() < 0.4 else f"with whom did {who} {asked} {the}?", f"who {asked_past} {the} together with {who}?"), companion))
    if rng.random() < 0.25 and not material and not colour:
        extra = rng.choice(COLOURS)
        sentence += " " + say(rng, f"{it} {was} {extra}.", f"{the} {was} {extra}.", f"{it} had a {extra} colour." if extra[0] not in "aeiou" else f"{it} {was} {extra}.")
        questions.append((say(rng, f"what colour {was} {the}?", f"which colour did {the} have?"), extra))
    return sentence, questions


def gift(world, rng, names):
    """Something passes from one to another."""
    giver, taker = rng.sample(world.people, 2)
    group = rng.choice(GIFTS)
    if not world.claim((giver, taker)):
        return None
    base, past = rng.choice(group)
    asked, asked_past = rng.choice(group)
    noun = thing(rng, world.taken)
    colour = rng.choice(COLOURS) if rng.random() < 0.3 else None
    full = f"{colour} {noun}" if colour else noun
    full = full if is_plural(full) else article(full)
    short = noun.split(" ", 1)[1] if noun.split(" ")[0] in ADJECTIVES else noun
    time, place = (when(rng) if rng.random() < 0.4 else None), (where(rng, world.taken) if rng.random() < 0.3 else None)
    ends = "".join(f" {e}" for e in (place, time) if e)
    sentence = say(rng, f"{world.who(giver, rng.random() < 0.3)} {past} {taker} {full}{ends}.", f"{world.who(giver, rng.random() < 0.3)} {past} {full} to {taker}{ends}.",
                   f"{taker} got {full} from {giver}{ends}." if past in ("gave", "sent", "handed", "brought") else f"{giver} {past} {full} to {taker}{ends}.",
                   f"{full} was what {giver} {past} to {taker}{ends}." if not is_plural(noun) else f"{giver} {past} {taker} {full}{ends}.")
    questions = [(say(rng, f"who {asked_past} {taker} the {short}?", f"who {asked_past} the {short} to {taker}?", f"from whom did {taker} get the {short}?" if past not in ("showed", "promised", "offered") else f"who {asked_past} the {short} to {taker}?"), giver),
                 (say(rng, f"to whom did {giver} {asked} the {short}?", f"who did {giver} {asked} the {short} to?", f"who got the {short} from {giver}?" if past not in ("showed", "promised", "offered") else f"to whom did {giver} {asked} the {short}?"), taker),
                 (say(rng, f"what did {giver} {asked} to {taker}?", f"what did {giver} {asked} {taker}?", f"what did {taker} get from {giver}?" if past not in ("showed", "promised", "offered") else f"what did {giver} {asked} to {taker}?"), full)]
    if colour:
        questions.append((say(rng, f"what colour was the {short}?", f"which colour did the {short} have?"), colour))
    if time:
        questions.append((say(rng, f"when did {giver} {asked} the {short} to {taker}?", f"when did {taker} get the {short}?" if past not in ("showed", "promised", "offered") else f"when did {giver} {asked} the {short} to {taker}?"), time))
    if place:
        questions.append((say(rng, f"where did {giver} {asked} the {short} to {taker}?"), place))
    return sentence, questions


def journey(world, rng, names):
    """Somebody goes to two or three places in order and does something there."""
    who = rng.choice(names)
    if not world.claim((who, "find"), (who, "see"), (who, "buy"), (who, "go")):
        return None
    stops = [pick(rng, PLACES, world.taken) for _ in range(rng.randint(2, 3))]
    found = [article(thing(rng, world.taken, adjectives=0.1)) for _ in stops]
    base, past = rng.choice(WENT)
    he = world.pronoun[who]
    first = rng.choice(["First", "In the morning", "To begin with", "At first"])
    last = rng.choice(["At last", "In the end", "Finally", "Last of all"])
    between = rng.choice(["Then", "After that", "Next", "Later"])
    lines = [f"{first} {who} {past} to the {stops[0]}" + rng.choice([f" and found {found[0]} there.", f". There {he} found {found[0]}."])]
    if len(stops) == 3:
        lines.append(f"{between} {he} {past} to the {stops[1]}" + rng.choice([f" and saw {found[1]}.", f", where {he} saw {found[1]}."]))
    lines.append(f"{last} {he} came to the {stops[-1]}" + rng.choice([f" and bought {found[-1]}.", f", where {he} bought {found[-1]}."]))
    questions = [(say(rng, f"where did {who} go first?", f"to which place did {who} {base} first?"), f"to the {stops[0]}"),
                 (say(rng, f"where did {who} go last?", f"where did {who} come in the end?"), f"to the {stops[-1]}"),
                 (say(rng, f"what was the first place {who} went to?", f"which place did {who} visit first?"), f"the {stops[0]}"), (say(rng, f"what was the last place that {who} came to?"), f"the {stops[-1]}"),
                 (say(rng, f"what did {who} find at the {stops[0]}?", f"what was it that {who} found at the {stops[0]}?", f"which thing did {who} find in the {stops[0]}?"), found[0]),
                 (say(rng, f"what did {who} buy?", f"what did {who} buy at the {stops[-1]}?", f"what did {who} pay for in the {stops[-1]}?"), found[-1]),
                 (say(rng, f"where did {who} buy {found[-1]}?", f"where did {who} get {found[-1]}?"), f"at the {stops[-1]}")]
    if len(stops) == 3:
        questions += [(say(rng, f"what did {who} see at the {stops[1]}?", f"what was at the {stops[1]}?"), found[1]),
                      (say(rng, f"where did {who} go after the {stops[0]}?", f"where did {who} go next, after the {stops[0]}?"), f"to the {stops[1]}"),
                      (say(rng, f"where did {who} go just before the {stops[-1]}?", f"where did {who} go before coming to the {stops[-1]}?"), f"to the {stops[1]}")]
    return " ".join(lines), questions


def life(world, rng, names):
    """Facts about one person: what they are, where they live, what they have and like."""
    who = rng.choice(names)
    if who in world.kind or not world.claim((who, "life")):
        return None
    he, his = world.pronoun[who], {"he": "his", "she": "her"}[world.pronoun[who]]
    He, His = capital(he), capital(his)
    facts = []

    def fact(ways, *questions):
        facts.append((rng.choice(ways), [(say(rng, *q), a) for q, a in questions]))

    job, town, age, hobby, food, colour = pick(rng, JOBS, world.taken), pick(rng, TOWNS, world.taken), number(rng, 5, 90), pick(rng, HOBBIES, world.taken), pick(rng, FOODS, world.taken), pick(rng, COLOURS, world.taken)
    pet, pet_name, instrument, street, drink = pick(rng, ANIMALS, world.taken), person(rng, world.taken), pick(rng, INSTRUMENTS, world.taken), pick(rng, STREETS, world.taken), pick(rng, DRINKS, world.taken)
    relative, kin = person(rng, world.taken), rng.choice(["brother", "sister", "uncle", "aunt", "cousin", "father", "mother", "neighbour", "teacher", "best friend"])
    options = [
        lambda: fact([f"{who} is {article(job)}.", f"{who} works as {article(job)}.", f"{He} earns {his} money as {article(job)}.", f"{who} has been {article(job)} for many years."],
                     ((f"what is {who}'s job?", f"what does {who} work as?", f"what does {who} do for a living?", f"what kind of work does {who} do?"), article(job))),
        lambda: fact([f"{who} lives in {town}.", f"{His} home is in {town}.", f"{He} lives in a small house in {town}.", f"{who} comes from {town}."],
                     ((f"where does {who} live?", f"in which town is {who} at home?", f"where is {who}'s home?"), f"in {town}")),
        lambda: fact([f"{who} is {age} years old.", f"{He} turned {age} this year.", f"{His} age is {age}."],
                     ((f"how old is {who}?", f"what is {who}'s age?"), age)),
        lambda: fact([f"{His} hobby is {hobby}.", f"In {his} free time {he} enjoys {hobby}.", f"{who} loves {hobby} more than anything.", f"What {he} likes to do best is {hobby}."],
                     ((f"what is {who}'s hobby?", f"what does {who} like to do?", f"what does {who} do in {his} free time?"), hobby)),
        lambda: fact([f"{His} favourite food is {food}.", f"{He} likes {food} best of all.", f"Every day {he} eats {food}.", f"{who} could eat {food} every day."],
                     ((f"what is {who}'s favourite food?", f"what does {who} like to eat?", f"which food does {who} eat?"), food)),
        lambda: fact([f"{He} drinks {drink} every morning.", f"For breakfast {he} drinks {drink}.", f"{who} never drinks anything but {drink}."],
                     ((f"what does {who} drink?", f"which drink does {who} have?"), drink)),
        lambda: fact([f"{His} favourite colour is {colour}.", f"{He} likes the colour {colour} best.", f"{who} paints everything {colour}."],
                     ((f"what is {who}'s favourite colour?", f"which colour does {who} like?"), colour)),
        lambda: fact([f"{who} has {article(pet)} named {pet_name}.", f"{He} keeps {article(pet)}, and its name is {pet_name}.", f"{His} pet is {article(pet)} called {pet_name}.", f"With {him_of(he)} lives {article(pet)} that is called {pet_name}."],
                     ((f"what is the name of {who}'s {pet}?", f"what is the {pet} called?", f"what is {who}'s pet called?"), pet_name),
                     ((f"what kind of pet does {who} have?", f"which animal does {who} keep?", f"what animal is {pet_name}?"), article(pet))),
        lambda: fact([f"{He} plays the {instrument}.", f"{who} can play the {instrument}.", f"In the evening you can hear {him_of(he)} play the {instrument}."],
                     ((f"which instrument does {who} play?", f"what does {who} play?", f"what kind of music does {who} make?"), f"the {instrument}")),
        lambda: fact([f"{His} {kin} is called {relative}.", f"{relative} is {his} {kin}.", f"{He} has {article(kin)} named {relative}."],
                     ((f"what is the name of {who}'s {kin}?", f"who is {who}'s {kin}?", f"what is {who}'s {kin} called?"), relative)),
        lambda: fact([f"{His} house stands in {street}.", f"You find {his} house in {street}.", f"{He} moved to {street} last year."],
                     ((f"in which street does {who} live?", f"where is {who}'s house?"), f"in {street}")),
    ]
    chosen = rng.sample(range(len(options)), rng.randint(2, 5))
    if 1 in chosen and 10 in chosen:
        chosen.remove(10)  # both answer "where does X live?"
    for i in chosen:
        options[i]()
    text = " ".join(f[0] for f in facts)
    if who not in text.split(".")[0]:
        text = rng.choice([f"This is {who}. ", f"Let me tell you about {who}. ", f"Everybody knows {who}. ", f"There is a person called {who}. "]) + text
    return text, [q for f in facts for q in f[1]]


def him_of(he):
    return {"he": "him", "she": "her"}[he]


def room(world, rng, _):
    """What stands where."""
    lines, questions = [], []
    place = pick(rng, PLACES, world.taken)
    for i in range(rng.randint(2, 4)):
        noun, spot = thing(rng, world.taken), rng.choice(NEAR).format(pick(rng, SPOTS, world.taken))
        short = noun.split(" ", 1)[1] if noun.split(" ")[0] in ADJECTIVES else noun
        full = article(noun)
        verb = rng.choice(["is", "stands", "lies", "was", "stood", "lay"])
        lines.append(say(rng, f"{spot} {verb} {full}.", f"{full} {verb} {spot}.", f"there is {full} {spot}.", f"you can see {full} {spot}." ) if i else
                     say(rng, f"in the {place} there is {full} {spot}.", f"{spot} in the {place} {verb} {full}."))
        questions += [(say(rng, f"where is the {short}?", f"where can you find the {short}?", f"where does the {short} lie?"), spot), (say(rng, f"what is {spot}?", f"what can you find {spot}?", f"which thing is {spot}?"), full)]
    return " ".join(lines), questions


def trade(world, rng, names):
    """Prices, numbers and times."""
    who, noun, price = rng.choice(names), thing(rng, world.taken), number(rng)
    if not world.claim((who, "buy"), (who, "get")):
        return None
    coin = rng.choice(["coins", "dollars", "euros", "pennies", "silver coins"])
    short = noun.split(" ", 1)[1] if noun.split(" ")[0] in ADJECTIVES else noun
    shop = pick(rng, PLACES, world.taken)
    sentence = say(rng, f"at the {shop}, {who} paid {price} {coin} for {article(noun)}.", f"{who} bought {article(noun)} at the {shop} for {price} {coin}.", f"{article(noun)} at the {shop} cost {who} {price} {coin}.")
    questions = [(say(rng, f"how much did {who} pay for the {short}?", f"how much did the {short} cost?", f"what was the price of the {short}?", f"how many {coin} did {who} pay?"), f"{price} {coin}"),
                 (say(rng, f"what did {who} buy at the {shop}?", f"what did {who} pay {price} {coin} for?"), article(noun)),
                 (say(rng, f"where did {who} buy the {short}?", f"where did {who} get the {short}?"), f"at the {shop}"), (say(rng, f"who bought the {short}?", f"who paid for the {short}?"), who)]
    return sentence, questions


def timetable(world, rng, _):
    """Things that leave or begin at a time."""
    if not world.claim("timetable"):
        return None
    kind = rng.choice(["train", "bus", "boat", "class", "show", "film", "concert", "race", "market", "meeting", "party", "lesson"])
    ride = kind in ("train", "bus", "boat")
    lines, questions = [], []
    for _ in range(rng.randint(2, 3)):
        hour, day = f"{rng.choice(HOURS[:11])} o'clock" if rng.random() < 0.6 else f"{rng.randint(6, 22)}:{rng.choice(['00', '15', '30', '45', '10', '20'])}", rng.choice(DAYS)
        if ride:
            town, platform = pick(rng, TOWNS, world.taken), str(rng.randint(1, 20))
            place = f"{rng.choice(['platform', 'gate', 'stop'])} {platform}"
            lines.append(say(rng, f"the {kind} to {town} leaves at {hour} from {place}.", f"at {hour} the {kind} to {town} leaves from {place}.", f"from {place} a {kind} goes to {town} at {hour}."))
            questions += [(say(rng, f"when does the {kind} to {town} leave?", f"at what time does the {kind} go to {town}?"), f"at {hour}"), (say(rng, f"from where does the {kind} to {town} leave?", f"where do you get on the {kind} to {town}?"), f"from {place}"),
                          (say(rng, f"where does the {kind} at {hour} go?", f"to which town does the {kind} of {hour} go?"), town)]
        else:
            host, place = person(rng, world.taken), pick(rng, PLACES, world.taken)
            lines.append(say(rng, f"{host}'s {kind} is on {day} at {hour} in the {place}.", f"on {day} at {hour}, the {kind} of {host} takes place in the {place}.", f"the {kind} of {host} begins at {hour} on {day}. It is in the {place}."))
            questions += [(say(rng, f"when is {host}'s {kind}?", f"on which day is the {kind} of {host}?", f"which day is {host}'s {kind} on?"), f"on {day}"), (say(rng, f"at what time does {host}'s {kind} begin?", f"at what time is the {kind} of {host}?"), f"at {hour}"),
                          (say(rng, f"where is {host}'s {kind}?", f"in what place is the {kind} of {host}?"), f"in the {place}")]
    return " ".join(lines), questions


def speech(world, rng, names):
    """What people say they will bring, want, fear or have seen."""
    lines, questions = [], []
    speakers = rng.sample(world.people, min(len(world.people), rng.randint(2, 3)))
    kind = rng.choice(["bring", "want", "see", "like", "feel"])
    group = {"want": "choose", "like": "life"}.get(kind, kind)
    if not world.claim(*((name, group) for name in speakers)):
        return None
    for name in speakers:
        noun = thing(rng, world.taken)
        food, feeling = pick(rng, FOODS, world.taken), pick(rng, FEELINGS, world.taken)
        said = rng.choice(["said", "answered", "called", "cried", "whispered"])
        if kind == "bring":
            lines.append(rng.choice([f"\"I will bring {article(noun)},\" {said} {name}.", f"{name} {said}: \"I can bring {article(noun)}.\"", f"\"{article(noun).capitalize()} is what I will bring,\" {said} {name}."]))
            questions += [(say(rng, f"what will {name} bring?", f"what did {name} promise to bring?"), article(noun)), (say(rng, f"who will bring {article(noun)}?", f"who promised to bring {article(noun)}?"), name)]
        elif kind == "want":
            lines.append(rng.choice([f"\"I want {article(noun)},\" {said} {name}.", f"{name} {said}: \"I wish I had {article(noun)}.\"", f"\"What I need is {article(noun)},\" {said} {name}."]))
            questions += [(say(rng, f"what does {name} want?", f"what did {name} wish for?", f"what did {name} want to have?"), article(noun)), (say(rng, f"who wants {article(noun)}?", f"who wished for {article(noun)}?"), name)]
        elif kind == "see":
            spot = rng.choice(NEAR).format(pick(rng, SPOTS, world.taken))
            lines.append(rng.choice([f"\"I saw {article(noun)} {spot},\" {said} {name}.", f"{name} {said}: \"There was {article(noun)} {spot}.\""]))
            questions += [(say(rng, f"what did {name} see?", f"what did {name} see {spot}?"), article(noun)), (say(rng, f"where did {name} see {article(noun)}?", f"where was the {noun}?"), spot), (say(rng, f"who saw {article(noun)}?", f"who spoke of {article(noun)}?"), name)]
        elif kind == "like":
            lines.append(rng.choice([f"\"I like {food} best,\" {said} {name}.", f"{name} {said}: \"Nothing is better than {food}.\"", f"\"Give me {food}, please,\" {said} {name}."]))
            questions += [(say(rng, f"what does {name} like?", f"what did {name} want to eat?", f"which food did {name} speak of?"), food), (say(rng, f"who likes {food}?", f"who wanted {food}?"), name)]
        else:
            lines.append(rng.choice([f"\"I am so {feeling},\" {said} {name}.", f"{name} felt {feeling}.", f"{name} was {feeling} all day."]))
            questions += [(say(rng, f"how did {name} feel?", f"how was {name}?"), feeling), (say(rng, f"who was {feeling}?", f"who felt {feeling}?"), name)]
    return " ".join(lines), questions


def compare(world, rng, names):
    """Two people compared."""
    if not world.claim("compared"):
        return None
    a, b = rng.sample(world.people, 2)
    more, less = rng.choice([("taller", "shorter"), ("older", "younger"), ("faster", "slower"), ("stronger", "weaker"), ("louder", "quieter"), ("richer", "poorer")])
    word = rng.choice([more, less])
    sentence = say(rng, f"{a} is {word} than {b}.", f"compared to {b}, {a} is {word}.", f"of the two, {a} and {b}, {a} is {word}.", f"{a} is much {word} than {b}.")
    other = less if word == more else more
    return sentence, [(say(rng, f"who is {word}?", f"who is {word}, {a} or {b}?", f"who is {word}, {b} or {a}?"), a), (say(rng, f"who is {other}?", f"who is {other}, {a} or {b}?", f"who is {other}, {b} or {a}?"), b)]


def contest(world, rng, names):
    """Who came first, second, third, and with what."""
    if not world.claim("contest"):
        return None
    people = rng.sample(world.people, min(len(world.people), 3))
    event = rng.choice(["race", "contest", "game", "chess match", "cooking contest", "swimming race", "singing contest", "quiz"])
    prize = article(thing(rng, world.taken))
    ranks = ["first", "second", "third"]
    lines = [say(rng, f"{people[0]} won the {event}.", f"in the {event}, {people[0]} came first.", f"the winner of the {event} was {people[0]}.")]
    questions = [(say(rng, f"who won the {event}?", "who came first?", f"who was the winner of the {event}?"), people[0])]
    for name, rank in list(zip(people, ranks))[1:]:
        lines.append(say(rng, f"{name} came {rank}.", f"{name} took {rank} place.", f"{rank} was {name}."))
        questions.append((say(rng, f"who came {rank}?", f"who took {rank} place?"), name))
    lines.append(say(rng, f"the prize was {prize}.", f"{people[0]} got {prize} as a prize.", f"for this, {people[0]} got {prize}."))
    questions.append((say(rng, "what was the prize?", f"what did {people[0]} win?", f"what did the winner get?"), prize))
    if rng.random() < 0.5:
        points = number(rng)
        lines.append(say(rng, f"{people[0]} had {points} points.", f"the winner had {points} points."))
        questions.append((say(rng, "how many points did the winner have?", f"how many points did {people[0]} get?"), points))
    return " ".join(lines), questions


KINDS = [deed] * 6 + [gift] * 3 + [journey] * 2 + [life] * 4 + [room] * 2 + [trade, timetable, timetable, speech, speech, compare, contest]
LINKS = ["", "", "", "", "", "Then ", "Meanwhile, ", "Later, ", "One day, ", "Soon ", "After that, "]


def compose(rng, parts=None):
    """A text and its questions: [(question, answer)]."""
    world = World(rng)
    pieces, questions = [], []
    for i in range(parts or rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6, 7])):
        told = rng.choice(KINDS)(world, rng, world.people)
        if told is None:
            continue
        text, asked = told
        link = rng.choice(LINKS) if pieces else ""
        first = text.split(" ")[0].rstrip(",'s")
        if link and not (first in world.people or first in ("In", "On", "At")):
            link = ""
        if link and first not in world.people:
            text = text[0].lower() + text[1:]
        pieces.append(link + text)
        questions += asked
    if not pieces:
        return compose(rng, parts)
    # A question asked twice with two answers is not a question of this text.
    seen = {}
    for question, answer in questions:
        seen.setdefault(question, set()).add(answer)
    questions = [(q, a) for q, a in questions if len(seen[q]) == 1]
    text = pieces[0]
    for piece in pieces[1:]:
        text += ("\n\n" if rng.random() < 0.15 else " ") + piece
    return text, questions


if __name__ == "__main__":
    import random
    import sys
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for _ in range(4):
        text, questions = compose(rng)
        print(text)
        for question, answer in questions:
            print(f"   {question} = {answer}")
        print()
