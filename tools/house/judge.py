"""The evaluations of `quire eval house`, on the model in training: what to expect of it before it is exported."""
import json
import random
import re

import torch

from bank import plain

ANSWER_TOKENS = 20


def load(folder, name):
    return [json.loads(line) for line in open(f"{folder}/{name}.jsonl")]


@torch.no_grad()
def greedy(model, prompts, tokens, end, batch_tokens=1 << 19):
    """The model's answers (lists of tokens) by recomputing everything each step, prompts of like length together."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers = [None] * len(prompts)
    while order:
        rows = max(1, batch_tokens // (len(prompts[order[-1]]) + tokens))
        chosen, order = order[-rows:], order[:-rows]
        longest = max(len(prompts[i]) for i in chosen)
        ids = torch.zeros((len(chosen), longest + tokens), dtype=torch.long, device="cuda")
        at = torch.tensor([len(prompts[i]) for i in chosen], device="cuda")
        for row, i in enumerate(chosen):
            ids[row, :len(prompts[i])] = torch.tensor(prompts[i])
        every = torch.arange(len(chosen), device="cuda")
        for step in range(tokens):
            with torch.autocast("cuda", torch.bfloat16):
                hidden = model.hidden(ids[:, :longest + step])
                best = (hidden[every, at - 1].float() @ model.embed_tokens.weight.T).argmax(-1)
            ids[every, at] = best
            at = at + 1
        for row, i in enumerate(chosen):
            new = ids[row, len(prompts[i]):len(prompts[i]) + tokens].tolist()
            answers[i] = new[:new.index(end)] if end in new else new
    return answers


def share_right(model, encoder, prompts, wanted):
    given = [encoder.tokenizer.decode(ids) for ids in greedy(model, prompts, ANSWER_TOKENS, encoder.end)]
    return sum(plain(g) == plain(w) for g, w in zip(given, wanted)) / len(wanted), given


def reading(model, encoder, folder, most=10**9):
    """Share of exact answers by set, and by file for entries never seen; the wrong ones."""
    result, wrong = {}, []
    for name in ("new", "unseen"):
        cases = [(text["from"], encoder.prompt(f"{text['text']}\n\n{q['question']}"), q["question"], q["answer"]) for text in load(folder, "reading") if text["set"] == name for q in text["questions"]]
        cases = cases[:: max(1, len(cases) // most)]
        share, given = share_right(model, encoder, [c[1] for c in cases], [c[3] for c in cases])
        result[name] = round(share, 4)
        by_file = {}
        for case, answer in zip(cases, given):
            right = plain(answer) == plain(case[3])
            by_file.setdefault(case[0], []).append(right)
            if not right:
                wrong.append((name, case[2], case[3], answer))
        if name == "unseen":
            result["by file"] = {key: f"{sum(v)}/{len(v)}" for key, v in by_file.items()}
    return result, wrong


def needles(model, encoder, folder, lengths=(1024, 2048, 3900), most=10**9):
    told, filler, rng, result = load(folder, "needles"), load(folder, "filler"), random.Random(3), {}
    for length in lengths:
        prompts = []
        for i, needle in enumerate(told[:most]):
            paragraphs, used = [], 0
            order = rng.sample(filler, len(filler))
            while used < length - 150:
                paragraphs.append(order.pop()["text"])
                used += len(encoder.plain(paragraphs[-1])) + 2
            paragraphs.insert(round(i / (len(told[:most]) - 1) * len(paragraphs)), needle["sentence"])
            prompts.append(encoder.prompt("\n\n".join(paragraphs) + "\n\n" + needle["question"]))
        result[length], _ = share_right(model, encoder, prompts, [n["answer"] for n in told[:most]])
        result[length] = round(result[length], 3)
    return result


def trigrams(text):
    words = re.findall(r"[a-z0-9']+", text.lower())
    return set(zip(words, words[1:], words[2:]))


def inference(model, encoder, folder):
    """How many of the questions about inference are answered on the right topic: the one whose phrasings share most with the answer."""
    topics = {t["topic"]: set().union(*(trigrams(p) for p in t["phrasings"])) for t in load(folder, "topics")}
    cases = load(folder, "inference")
    answers = [encoder.tokenizer.decode(ids) for ids in greedy(model, [encoder.prompt(c["question"]) for c in cases], 80, encoder.end)]
    right, wrong = 0, []
    for case, text in zip(cases, answers):
        best = max(topics, key=lambda t: len(topics[t] & trigrams(text)))
        if best in case["topics"]:
            right += 1
        else:
            wrong.append((case["question"], best, text[:90]))
    return right, wrong


@torch.no_grad()
def stories(model, draft, encoder, folder):
    """Loss on stories never seen, and how often the draft's best token is the model's: on these texts, and on the model's own."""
    loss = agree = count = 0
    texts = [[encoder.begin, *encoder.plain(s["text"]), encoder.end] for s in load(folder, "stories")]
    for ids in texts:
        row = torch.tensor([ids], device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(row)[0].float()
            guess = draft(row)[0].argmax(-1) if draft else None
        loss += torch.nn.functional.cross_entropy(logits[:-1], row[0, 1:], reduction="sum").item()
        count += len(ids) - 1
        if draft:
            agree += (guess == logits.argmax(-1))[:-1].sum().item()
    result = {"loss": round(loss / count, 4)}
    if draft:
        result["agreement on the texts"] = round(agree / count, 3)
        prompts = [ids[:40] for ids in texts]
        same = total = 0
        for prompt, new in zip(prompts, greedy(model, prompts, 200, encoder.end)):
            row = torch.tensor([prompt + new], device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                guess = draft(row)[0].argmax(-1)
            same += (guess[len(prompt) - 1:-1] == row[0, len(prompt):]).sum().item()
            total += len(new)
        result["agreement on the model's own"] = round(same / total, 3)
    return result
