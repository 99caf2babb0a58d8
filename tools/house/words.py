"""Words to compose facts from, and made-up ones, so that an answer has to be read and cannot be known."""
import re

from bank import BOYS, GIRLS, article

MORE_NAMES = """Alba Anton Aya Basil Birgit Boris Celia Cyrus Dalia Darius Edgar Elif Enzo Esme Fatima Felix Flora Gareth Gina Hamid Heidi Henry Igor Ilse Imran Ingrid Ismail Ivan Jasper
Juno Kamal Karin Kofi Lars Leila Linus Lotte Magnus Malik Marta Mateo Mei Mona Nadia Nils Noor Odin Olive Oscar Paula Pedro Petra Priya Quinn Ravi Rita Rolf Ronja Sadie Samir Sven Tessa Thor
Uma Ursula Victor Wanda Willa Xavier Yasmin Yusuf Zelda Agnes Bertha Conrad Dmitri Elsa Fergus Gloria Harriet Isaac Jemima Kurt Lydia Morris Nell Oliver Prudence Ralph Stella Trudy Vince""".split()
THINGS = """key|ring|coin|lamp|book|map|kite|drum|ball|rope|ladder|bucket|basket|bottle|hammer|spoon|pillow|blanket|button|candle|mirror|clock|watch|whistle|umbrella|scarf|hat|glove|boot|coat|
letter|parcel|stamp|photo|painting|puzzle|doll|puppet|robot|toy train|wooden horse|paper boat|shell|feather|stone|pebble|acorn|pumpkin|flute|violin|guitar|trumpet|bell|compass|telescope|lantern|
backpack|suitcase|wallet|purse|notebook|pencil|brush|comb|cup|plate|teapot|kettle|pan|jar|box|chest|barrel|wheel|cart|sled|bicycle|scooter|skateboard|tent|net|fishing rod|shovel|rake|broom|saw|
axe|nail|needle|thread|ribbon|necklace|crown|medal|trophy|flag|banner|postcard|newspaper|magnet|marble|dice|card|chess set|jigsaw|snow globe|music box|bird house|flower pot|watering can|oar|
anchor|raft|canoe|mask|cape|belt|sock|apron|vest|cushion|carpet|curtain|stool|bench|shelf|desk|vase|bowl|fork|tray|torch|battery|radio|camera|phone|calendar|diary|stapler|ruler|crayon""".replace("\n", "").split("|")
ANIMALS = """cat|dog|fox|rabbit|mouse|owl|crow|hen|duck|goose|goat|sheep|cow|horse|donkey|pig|hedgehog|squirrel|badger|beaver|otter|frog|toad|turtle|snail|lizard|parrot|robin|sparrow|swan|heron|bear|wolf|
deer|lion|tiger|monkey|elephant|camel|penguin|seal|whale|dolphin|crab|octopus|bat|mole|hamster|pony|lamb|calf|kitten|puppy|peacock|stork|pelican|zebra|giraffe|koala|kangaroo|panda|llama|raccoon|weasel|
hare|eagle|pigeon|turkey|rooster|bee|beetle|spider|ant|butterfly|goldfish|salmon|newt""".replace("\n", "").split("|")
JOBS = """baker|farmer|teacher|sailor|painter|doctor|nurse|pilot|cook|tailor|gardener|fisherman|carpenter|librarian|postman|driver|miller|shepherd|clown|singer|dancer|writer|judge|guard|builder|plumber|
butcher|dentist|beekeeper|blacksmith|captain|waiter|farmhand|firefighter|inventor|juggler|mechanic|musician|potter|shoemaker|watchmaker|weaver|zookeeper|ranger|barber|florist|jeweller|locksmith|vet""".replace("\n", "").split("|")
PLACES = """park|garden|kitchen|school|library|market|station|harbor|forest|meadow|river|lake|beach|mountain|cave|castle|tower|bridge|mill|barn|stable|attic|cellar|shop|bakery|museum|theatre|church|square|
playground|hospital|office|workshop|farm|field|orchard|island|village|town hall|post office|hotel|cafe|zoo|circus|stadium|swimming pool|airport|lighthouse|garage|greenhouse|bathroom|bedroom|hall|gym|
train|bus|boat|shed|well|fountain|gate|cinema|bank|factory|quarry|valley|desert|swamp|waterfall""".replace("\n", "").split("|")
SPOTS = """table|bed|bench|chair|sofa|stairs|tree|bush|roof|wall|window|door|carpet|shelf|cupboard|oven|fence|hedge|rock|log|wagon|stove|piano|mat|desk|pillow|barrel|rug""".replace("\n", "").split("|")
FOODS = """bread|soup|cheese|apple pie|pancakes|honey|rice|noodles|fish|salad|plums|cherries|carrots|beans|potatoes|porridge|jam|butter|nuts|pears|grapes|corn|eggs|mushrooms|cake|pudding|biscuits|waffles|
raisins|tomatoes|figs|lemons|peaches|onions|cabbage|peas|popcorn|yoghurt|dumplings|lentils|berries|toast|muffins|sausages|melon|pizza|olives|chocolate""".replace("\n", "").split("|")
DRINKS = "milk|tea|water|apple juice|cocoa|lemonade|coffee|grape juice|mint tea|cold milk|orange juice|ginger tea".split("|")
COLOURS = "red|blue|green|yellow|white|black|brown|orange|purple|pink|grey|golden|silver|violet|turquoise|cream".split("|")
MATERIALS = "wood|paper|glass|stone|silver|gold|wool|leather|clay|iron|straw|copper|silk|cotton|ice|bone|brass|felt|cardboard|tin|marble|wax".split("|")
ADJECTIVES = """old|new|small|big|tiny|heavy|broken|shiny|dusty|warm|cold|soft|round|long|strange|pretty|rusty|lost|empty|full|clean|wet|dry|funny|plain|striped|spotted|crooked|thin|thick|flat|loud|quiet|
sweet|sour|smooth|rough|torn|painted|secret""".replace("\n", "").split("|")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = "spring summer autumn winter".split()
NUMBERS = "two three four five six seven eight nine ten eleven twelve thirteen fifteen twenty thirty forty fifty".split()
HOURS = "one two three four five six seven eight nine ten eleven noon midnight".split()
TOWNS = """Aldermoor|Brindle|Cawdale|Dunmere|Eastwick|Fernhill|Glenrock|Hazelton|Ironbridge|Kelby|Lakeside|Marlow|Northgate|Oakham|Pinewood|Quarley|Redcliff|Stonebury|Thornby|Upton|Westhaven|Yarrow|
Ashford|Birchwood|Coldwater|Deepdale|Elmsworth|Foxley|Greenfield|Highcastle|Little Hopping|Millbrook|Port Selby|Sandy Cove|Silver Lake|Winterton""".replace("\n", "").split("|")
STREETS = "Mill Lane|River Road|Church Street|Garden Street|Station Road|King Street|Oak Avenue|Hill Road|Bridge Street|Market Lane|Rose Lane|Tower Street|Pond Road|Long Street".split("|")
HOBBIES = """painting|swimming|chess|dancing|singing|reading|fishing|running|skating|cooking|knitting|climbing|football|tennis|drawing|gardening|riding|sailing|juggling|baking|hiking|photography|table tennis|
pottery|cycling|bird watching|magic tricks|origami""".replace("\n", "").split("|")
INSTRUMENTS = "piano|flute|violin|guitar|trumpet|drums|harp|cello|recorder|banjo|organ|clarinet".split("|")
REASONS = """it was raining|the door was locked|the bus was late|the bridge was closed|it was too dark|the road was wet|the shop was closed|it was very cold|the wind was too strong|the light went out|there was no milk left|
the clock had stopped|it was a holiday|the river was high|the baby was asleep|a wheel was broken|the key did not fit|the soup was too hot|the snow was deep|the roof leaked|the dog was ill|nobody had money|the train was full|
it was so hot|the floor was wet|the school was closed|the ice was thin|the oven was cold|the phone was broken|everybody was hungry""".replace("\n", "").split("|")
FEELINGS = "happy|sad|tired|proud|angry|hungry|sleepy|scared|surprised|bored|shy|cheerful|worried|thirsty|lonely|excited".split("|")

ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pl qu r s sh sk sl st t tr v w y z th gl bl cr".split()
VOWELS = "a e i o u a e i o u ai ea oo ee ou".split()
CODAS = "n r l s t k m p d x sh ck nd rt lm nk ff th b g".split() + [""] * 10


def made_up(rng, low=2, high=3):
    """A word that no text has: 'brelond', 'tiskoo'."""
    while True:
        word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + (rng.choice(CODAS) if rng.random() < 0.5 else "") for _ in range(rng.randint(low, high)))
        if 3 <= len(word) <= 9:
            return word


def person(rng, taken, invented=0.4):
    """A name that nobody in `taken` has."""
    while True:
        name = made_up(rng).capitalize() if rng.random() < invented else rng.choice(rng.choice((GIRLS, BOYS, MORE_NAMES)))
        if name not in taken:
            taken.add(name)
            return name


def thing(rng, taken=(), invented=0.06, adjectives=0.25):
    """A thing, mostly a known one, sometimes with an adjective, none twice."""
    while True:
        noun = made_up(rng) if rng.random() < invented else rng.choice(THINGS)
        if noun not in taken:
            if hasattr(taken, "add"):
                taken.add(noun)
            return f"{rng.choice(ADJECTIVES)} {noun}" if rng.random() < adjectives else noun


def pick(rng, words, taken):
    """A word of the list that was not taken yet."""
    for _ in range(20):
        word = rng.choice(words)
        if word not in taken:
            break
    taken.add(word)
    return word


def is_plural(word):
    return bool(re.search(r"[^s]s$", word)) and word not in ("bus", "compass", "dice", "chess", "grass", "glass")


__all__ = [name for name in dir() if name.isupper()] + ["made_up", "person", "thing", "pick", "is_plural", "article"]
