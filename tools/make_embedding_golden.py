#!/usr/bin/env python3
"""Makes tests/embeddings/qwen3: a tiny random model that makes vectors of texts, as sentence-transformers keeps one, and what
Transformers makes of some texts in f32.

    make_embedding_golden.py [--out tests/embeddings]

Every run gives the same bytes. The names of its tensors have no prefix and it has no output matrix, because the model was saved
without a head; its tokenizer puts <|endoftext|> behind a text. Needs torch, transformers, safetensors and tokenizers.
"""
import argparse
import json
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from make_goldens import SPLIT, TOKENIZER_TEXT, base, rope

VOCABULARY = 300
TEXTS = ["What is a KV cache?", "a page of keys and values, shared by all who begin alike",
         "the cat sat on the mat", "das Haus steht am Rand der Stadt; naïve café", "x", "",
         "one two three four five six seven eight nine ten " * 3]


def make_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator([TOKENIZER_TEXT], trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[AddedToken(text, special=True) for text in specials], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A <|endoftext|> $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("yes", "no")])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"added_tokens_decoder": {str(i): {"content": text, "special": True} for i, text in enumerate(specials)},
              "bos_token": None, "eos_token": specials[2], "pad_token": specials[0],
              "clean_up_tokenization_spaces": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer


def make_model(tokenizer):
    config = transformers.Qwen3Config(**base(head_dim=16, vocab_size=tokenizer.get_vocab_size(), num_hidden_layers=2, bos_token_id=0,
                                             eos_token_id=2, max_position_embeddings=1024, rope_parameters=rope(theta=1000000.0)))
    model = transformers.Qwen3Model(config).eval()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.25 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(1.4 * noise / parameter.shape[-1] ** 0.5)
    return model


def sentence_transformers_files(folder):
    """As version 3 writes them."""
    def module(index, path, kind):
        return {"idx": index, "name": str(index), "path": path, "type": "sentence_transformers.models." + kind}
    modules = [module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling"), module(2, "2_Normalize", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False,
               "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False,
               "pooling_mode_weightedmean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2) + "\n")


# What Qwen3-Reranker is asked, as its model card has it.
BEFORE = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that "
          "the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n")
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def judged(model, tokenizer, query, document):
    """How likely "yes" is beside "no". The model has no output matrix, so its embedding stands for one."""
    text = f"{BEFORE}<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}{AFTER}"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    with torch.no_grad():
        row = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        words = model.embed_tokens.weight[[tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")]]
        return float(f"{torch.softmax(words @ row, 0)[0].item():.6g}")


def vectors(model, ids):
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    pooled = {"last": rows[-1], "mean": rows.mean(0), "cls": rows[0]}
    return {name: [float(f"{value:.7g}") for value in torch.nn.functional.normalize(vector, dim=0).tolist()]
            for name, vector in pooled.items()}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "embeddings")
    folder = arguments.parse_args().out / "qwen3"
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tokenizer = make_tokenizer(folder)
    model = make_model(tokenizer)
    model.save_pretrained(folder)
    sentence_transformers_files(folder)
    expected = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        expected.append({"text": text, "tokens": ids, **vectors(model, ids)})
    query = TEXTS[0]
    scores = [judged(model, tokenizer, query, document) for document in TEXTS[:4]]
    (folder / "judged.json").write_text(json.dumps({"query": query, "documents": TEXTS[:4], "scores": scores}, ensure_ascii=False) + "\n")
    lines = ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in expected)
    (folder / "expected.json").write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
