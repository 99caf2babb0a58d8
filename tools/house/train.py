#!/usr/bin/env python3
"""Trains the house model and its draft model on one GPU (an H200 for 20 minutes), and judges them.

    train.py --tokenizer tokenizer.json --eval FOLDER --out FOLDER [--minutes 17] [--draft-minutes 2] [--seed 1]
    train.py ... --resume FOLDER      goes on with the draft model alone that another run wrote, at a lower rate

Time is the budget: the learning rate and the contexts follow the share of it that has passed. Short contexts and many small steps come
first, long contexts last. The order in which the workers' rows arrive is not fixed, so a repetition gives a model as good, not the same.
"""
import argparse
import functools
import json
import os
import random
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import judge
from model import DRAFT, HOUSE, Llama
from stream import Encoder, Stream, WEIGHT_UNIT

PHASES = [(0.0, 1024, 32, 0.1), (0.6, 4096, 16, 0.05)]  # from this share of the time: context, rows a step, dropout
MUON_RATE, ADAM_RATE, DECAY = 0.004, 0.003, 0.05
DRAFT_RESUME_RATE = 0.6
WARM_UP_STEPS, COOL_DOWN = 200, 0.55  # the rate falls over this last share of the time
SHARD_BYTES = 15 << 20


@torch.compile
def orthogonalize(gradient):
    """The nearest matrices with all singular values near one, by five Newton-Schulz steps: [n, rows, columns]."""
    x = gradient.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon:
    """Momentum whose step is made orthogonal, for the matrices between embedding and head; all of one shape at once."""

    def __init__(self, weights, momentum=0.95):
        shapes = {}
        for weight in weights:
            shapes.setdefault(weight.shape, []).append(weight)
        self.groups = [(group, torch.zeros((len(group), *shape), device="cuda")) for shape, group in shapes.items()]
        self.momentum = momentum

    @torch.no_grad()
    def step(self, rate):
        """rate: a tensor, so that a captured step can be given another one."""
        for weights, average in self.groups:
            gradient = torch.stack([w.grad for w in weights])
            average.lerp_(gradient, 1 - self.momentum)
            update = orthogonalize(gradient.lerp(average, self.momentum)).float() * (rate * 0.2 * max(weights[0].shape) ** 0.5)
            torch._foreach_mul_(weights, 1 - rate * DECAY)
            torch._foreach_sub_(weights, list(update.unbind(0)))


class Optimizer:
    def __init__(self, model):
        matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
        others = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed" in name]
        self.model, self.muon = model, Muon(matrices)
        self.rate = torch.zeros((), device="cuda")  # of Muon's
        self.adam = torch.optim.AdamW(others, lr=torch.zeros((), device="cuda"), betas=(0.9, 0.95), weight_decay=0.0, fused=True, capturable=True)

    def set_rate(self, share):
        self.rate.fill_(MUON_RATE * share)
        for group in self.adam.param_groups:
            group["lr"].fill_(ADAM_RATE * share)

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step(self.rate)
        self.adam.step()


class Step:
    """One training step, captured as a CUDA graph: launching its hundreds of small kernels one by one takes longer than running them.
    compute(ids, targets, weights) gives the loss of rows of `context` tokens."""

    def __init__(self, compute, optimizer, rows, context):
        self.compute, self.optimizer = compute, optimizer
        self.ids = torch.zeros((rows, context + 1), dtype=torch.int32, device="cuda")
        self.weights = torch.zeros((rows, context + 1), dtype=torch.uint8, device="cuda")
        self.pinned = [torch.zeros(self.ids.shape, dtype=torch.int32).pin_memory(), torch.zeros(self.ids.shape, dtype=torch.uint8).pin_memory()]
        optimizer.set_rate(0.0)  # what warms up must not change the weights
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.model.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.run()

    def run(self):
        ids = self.ids.long()
        loss = self.compute(ids[:, :-1], ids[:, 1:], self.weights[:, 1:].float() / WEIGHT_UNIT)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def __call__(self, batch, share):
        """The loss of the step before this one may still be read; this one's is in self.loss."""
        torch.cuda.current_stream().synchronize()  # the pinned copies are free again
        for pinned, target, part in zip(self.pinned, (self.ids, self.weights), batch):
            pinned.copy_(torch.from_numpy(part.astype("int32") if part.dtype == "uint16" else part))
            target.copy_(pinned, non_blocking=True)
        self.optimizer.set_rate(share)
        self.graph.replay()


def rate_share(passed, step):
    return min(1.0, (step + 1) / WARM_UP_STEPS, max(0.0, (1 - passed) / COOL_DOWN))


def train(stream, model, seconds, report):
    def loss_of(ids, targets, weights, dropout):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids, dropout)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1), reduction="none")
        return (loss * weights.reshape(-1)).sum() / weights.sum().clamp(min=1.0)

    compiled, optimizer = torch.compile(loss_of, dynamic=False), Optimizer(model)
    start, step, tokens, shown, phase = time.time(), 0, 0, 0.0, -1
    running, take = None, None
    while (passed := (time.time() - start) / seconds) < 1:
        now = max(i for i, p in enumerate(PHASES) if p[0] <= passed)
        if now != phase:
            phase, (_, context, rows, dropout) = now, PHASES[now]
            stream.set_length(context)
            model.zero_grad(set_to_none=True)
            take = Step(functools.partial(compiled, dropout=dropout), optimizer, rows, context)
        take(stream.batch(rows), rate_share(passed, step))
        step, tokens = step + 1, tokens + rows * context
        if step % 10 == 0:
            running = take.loss.item() if running is None else 0.9 * running + 0.1 * take.loss.item()
        if step % 20 == 0 and time.time() - shown > 15:
            torch.cuda.synchronize()
            shown = time.time()
            print(f"{shown - start:6.0f} s  step {step}  {tokens / 1e6:.0f} M tokens  {tokens / (shown - start) / 1e6:.2f} M/s  loss {running:.4f}  new rows {stream.fresh / max(1, stream.total):.2f}", flush=True)
            report(passed)
    return {"steps": step, "tokens": tokens, "loss": round(running, 4)}


def distill(stream, teacher, draft, seconds, rate=1.0):
    """The draft learns the model's own distribution, on the same rows."""
    def loss_of(ids, _, weights):
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                wanted = teacher(ids).float().log_softmax(-1)
            got = draft(ids).float().log_softmax(-1)
        loss = (wanted.exp() * (wanted - got)).sum(-1)
        return (loss * weights).sum() / weights.sum().clamp(min=1.0)

    start, step, shown = time.time(), 0, 0.0
    take = Step(torch.compile(loss_of, dynamic=False), Optimizer(draft), 32, PHASES[0][1])
    while (passed := (time.time() - start) / seconds) < 1:
        take(stream.batch(32), rate * rate_share(passed, step))
        step += 1
        if step % 20 == 0 and time.time() - shown > 15:
            shown = time.time()
            print(f"draft {shown - start:5.0f} s  step {step}  divergence {take.loss.item():.4f}", flush=True)
    return {"steps": step, "divergence": round(take.loss.item(), 4)}


def save(model, folder, name):
    """Weights as f16, in files of at most SHARD_BYTES."""
    shards, size = [{}], 0
    for key, weight in model.named_for_export().items():
        if size + 2 * weight.numel() > SHARD_BYTES:
            shards, size = shards + [{}], 0
        shards[-1][key] = weight.half().contiguous().cpu()
        size += 2 * weight.numel()
    for i, shard in enumerate(shards, 1):
        save_file(shard, folder / f"{name}-{i:05}-of-{len(shards):05}.safetensors")


def load(model, folder, name):
    weights = {}
    for path in sorted(folder.glob(f"{name}-*.safetensors")):
        weights |= load_file(path)
    model.load_state_dict({key.removeprefix("model."): weight.float() for key, weight in weights.items()})


def main():
    parser = argparse.ArgumentParser(description="Trains the house model and its draft model.")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--eval", type=Path, required=True, help="the folder that make_eval.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=17)
    parser.add_argument("--draft-minutes", type=float, default=2)
    parser.add_argument("--resume", type=Path, help="a folder with the weights to go on with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    options = parser.parse_args()
    # Absolute, because a run outlives the folder it was started from.
    options.tokenizer, options.eval, options.out = (path.resolve() for path in (options.tokenizer, options.eval, options.out))
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    encoder = Encoder(options.tokenizer)
    model, draft = Llama(HOUSE).cuda(), Llama(DRAFT).cuda()
    if options.resume:
        load(model, options.resume, "house")
        load(draft, options.resume, "draft")
    count = lambda m: sum(w.numel() for w in m.parameters())
    print(f"house {count(model) / 1e6:.2f} M parameters, draft {count(draft) / 1e6:.2f} M", flush=True)
    judged = [0.0]

    def report(passed):
        if passed - judged[0] > 0.24:
            judged[0] = passed
            print("        reading", judge.reading(model, encoder, options.eval, 250)[0], "needles", judge.needles(model, encoder, options.eval, most=40), flush=True)
            save(model, options.out, "house")

    result = {"parameters": {"house": count(model), "draft": count(draft)}}
    if not options.resume:
        stream = Stream(str(options.tokenizer), options.seed, options.workers, PHASES[0][1])
        result["house"] = train(stream, model, 60 * options.minutes, report)
        stream.stop()
        save(model, options.out, "house")
    stream = Stream(str(options.tokenizer), options.seed + 1, options.workers, PHASES[0][1], "draft")
    result["draft"] = distill(stream, model, draft, 60 * options.draft_minutes, DRAFT_RESUME_RATE if options.resume else 1.0)
    stream.stop()
    save(draft, options.out, "draft")
    result["reading"], wrong = judge.reading(model, encoder, options.eval)
    result["needles"] = judge.needles(model, encoder, options.eval)
    result["inference"], off_topic = judge.inference(model, encoder, options.eval)
    result["stories"] = judge.stories(model, draft, encoder, options.eval)
    (options.out / "result.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
    random.Random(0).shuffle(wrong)
    print("\n".join(f"{name}: {question} = {wanted!r}, not {given!r}" for name, question, wanted, given in wrong[:60]))
    print("\n".join(f"{question}: {topic}: {text}" for question, topic, text in off_topic))


if __name__ == "__main__":
    main()
