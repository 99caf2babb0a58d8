"""Strings that are hard for tokenizers, the same for the same seed."""
import random

SAMPLES = {
    "english": "The quick brown fox jumps over the lazy dog. She said: \"don't you dare!\" It wasn't me; we'll see, "
               "they're late, I'd've gone. HELLO WORLD, IT'S FINE, YOU'LL SEE. iPhone camelCase snake_case",
    "latin": "Ça va très bien, où est l'école? ÉCOLE ÀÉÎÕÜ Straße Åse Øre naïve façade ñandú žluťoučký kůň łódź İstanbul ısı ǅ",
    "greek": "Η γρήγορη καφέ αλεπού ΣΟΦΟΣ σοφός",
    "cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю. МОСКВА Ёлка",
    "hebrew": "שלום עולם, מה שלומך? שָׁלוֹם",
    "arabic": "مرحبا بالعالم، كيف حالك؟ السَّلَامُ عَلَيْكُمْ ١٢٣٤٥",
    "hindi": "नमस्ते दुनिया, आप कैसे हैं? क्षत्रिय ज्ञान १२३",
    "bengali": "হ্যালো বিশ্ব, আপনি কেমন আছেন?",
    "tamil": "வணக்கம் உலகம், எப்படி இருக்கிறீர்கள்?",
    "thai": "สวัสดีชาวโลก คุณสบายดีไหม ๑๒๓",
    "chinese": "你好，世界！今天天气怎么样？我们去北京吧。龘靐齉",
    "japanese": "こんにちは世界。カタカナとひらがな、漢字もあります。ｶﾀｶﾅ ㍻",
    "korean": "안녕하세요 세계! 한국어 테스트입니다. ㄱㄴㄷ 한글",
    "georgian": "გამარჯობა მსოფლიო", "armenian": "Բարեւ աշխարհ", "amharic": "ሰላም ለዓለም", "khmer": "សួស្តី​ពិភពលោក",
    "emoji": "😀😂🤣👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪🇯🇵❤️☺️1️⃣🧑🏿‍🚀",
    "math": "∑∫√∞≠≤≥±×÷→⇒∀∃ x² + y³ = z¹ ½ ¼ ¾ Ⅷ ⅻ ① ⑳ ㊿ ℵ ℝ 𝔸𝕓𝒞",
    "punct": "... !!! ??? -- --- ___ *** ### $$$ %% && @@ «quote» „low“ ‘single’ “double” … · • ¿¡ § ¶ † ‡ ‰ € £ ¥ ₹ ™ © ®",
    "code": "def f(x):\n    return x**2 + 1  # comment\n\nfor (int i = 0; i < 10; ++i) {\n\tprintf(\"%d\\n\", i);\n}\n"
            "<div class=\"a\">&amp;</div> a->b::c != d; x := y; /* c */ //d\r\nSELECT * FROM t WHERE a='b';",
    "urls": "https://example.com/a/b?c=d&e=f#g user.name+tag@mail.example.org 192.168.0.1 2024-01-31T23:59:59Z 3.14159e-10",
    "digits": "0 1 12 123 1234 12345 123456 1234567 12,345,678.90 1_000_000 0xDEADBEEF 007 ٣٤٥ ๓๔",
    "spaces": " a  b   c    d     e\tf\t\tg\n\nh\r\ni\r\rj\n \n k \n\n\n   l\u00a0m\u2003n\u3000o\u200bp\u2028q\u2029r\u0085s\u180et\u1680u\u202fv\u205fw\ufeffx",
    "controls": "".join(chr(c) for c in range(1, 32)) + "\x7f\x80\x81\x9f\xad\u200c\u200d\u200e\u200f\u202a\u2060\ufffc\ufffd\ufffe",
    "combining": "e\u0301 a\u0308 o\u0302\u0301 n\u0303 c\u0327\u0301 A\u030a \u1e9b\u0323 \u0041\u030a\u0301 q\u0307\u0323 Z\u0351\u036b\u0343\u036a\u0302",
    "compat": "ﬁ ﬂ ﬀ ﬅ ﷺ ㎏ Ⅳ ｆｕｌｌｗｉｄｔｈ ＡＢＣ１２３ ｱｲｳ ﾊﾟ Å Ω K ſ ẛ",
    "rare": "\U00010348\U0001D11E\U00020000\U0002A6D6\U000E0001\U0010FFFD\uE000 ᏣᎳᎩ ᚠᚢᚦ 𐐷 ꙮ ﷽ ⸻",
    "marks": "▁ ▁▁ a▁b ▁a Ġ Ċ ĠĠ Ģ <0x0A> <0xFF> <unk> [UNK] ##ing </w> @@",
    "contractions": "I'm i'M I'S it'S 'TIS we'RE We've WE'VE she'll SHE'LL he'd HE'D 's 't 're 've 'm 'll 'd ''s x's' ʼs 'ſ",
}


def strings(seed, count, specials=()):
    """`count` strings; `specials` are spellings of added tokens to strew in."""
    rng = random.Random(seed)
    out = ["", " ", "  ", "\n", "\n\n", "\t", "a", "A", "0", "'", " a", "a ", " a ", "\u0301", "\u200d", "é", "e\u0301"]
    out += list(SAMPLES.values())
    out += [c * n for c in ("a", " ", "\n", "\t", "\r\n", "0", "!", "é", "中", "😀", "ab", "=", "-", "_", "▁", "\u0301")
            for n in (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 200)]
    words = [w for text in SAMPLES.values() for w in text.split(" ") if w]
    joiners = ["", " ", "  ", "\n", "\n\n", "\t", "\r\n", "   ", ", ", "'", "-", "\u00a0", "\u3000", " \n", "\n "]
    everything = "".join(SAMPLES.values())
    while len(out) < count:
        kind = rng.randrange(10)
        if kind < 4:  # words of any scripts, joined in any way
            text = ""
            for _ in range(rng.randrange(1, 12)):
                text += rng.choice(words) + rng.choice(joiners)
        elif kind < 6:  # a slice of one sample
            sample = rng.choice(list(SAMPLES.values()))
            begin = rng.randrange(len(sample))
            text = sample[begin:begin + rng.randrange(1, 60)]
        elif kind < 8:  # characters at random
            text = "".join(rng.choice(everything) for _ in range(rng.randrange(1, 40)))
        elif kind < 9 or not specials:  # any code points at all
            text = ""
            for _ in range(rng.randrange(1, 20)):
                top = rng.choice([0x80, 0x300, 0x3000, 0xD800, 0x20000, 0x110000])
                code = rng.randrange(1, top)
                text += chr(code) if not 0xD800 <= code < 0xE000 else "\ufffd"
        else:
            text = ""
            for _ in range(rng.randrange(1, 8)):
                text += rng.choice([rng.choice(list(specials)), rng.choice(words), rng.choice(joiners)])
                text += rng.choice(["", "", " ", "\n"])
        out.append(text)
    return out[:count]
