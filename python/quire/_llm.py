"""A model, and what it is asked."""
from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import queue
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union, overload

from . import _library as c
from ._explain import Explanation, Stats

Message = Dict[str, Any]
Prompt = Union[str, Sequence[int]]


@dataclasses.dataclass
class SamplingParams:
    """How an answer is drawn and what it keeps to. What is None is as the model has it."""

    max_tokens: Optional[int] = None
    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    min_p: Optional[float] = None
    seed: Optional[int] = None
    stop: Union[str, Sequence[str], None] = None
    n: Optional[int] = None
    repetition_penalty: Optional[float] = None
    presence_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    logit_bias: Optional[Dict[int, float]] = None
    ignore_eos: Optional[bool] = None
    #: The log-probability of each token, and of so many others; 0 for its own alone.
    logprobs: Optional[int] = None
    json_schema: Optional[Dict[str, Any]] = None
    regex: Optional[str] = None
    grammar: Optional[str] = None
    choice: Optional[Sequence[str]] = None
    #: Whatever else a request of the server's API may say.
    extra: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def request(self, *, chat: bool) -> Dict[str, Any]:
        renamed = {"json_schema": "guided_json", "regex": "guided_regex", "grammar": "guided_grammar", "choice": "guided_choice"}
        said: Dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in ("extra", "logprobs"):
                said[renamed.get(field.name, field.name)] = value
        if self.logit_bias is not None:
            said["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.logprobs is not None:
            said.update({"logprobs": True, "top_logprobs": self.logprobs} if chat else {"logprobs": self.logprobs})
        return {**said, **self.extra}


@dataclasses.dataclass
class Token:
    """One token of an answer, where log-probabilities were asked for."""

    id: int
    logprob: float
    #: The likeliest tokens and their log-probabilities.
    top: Dict[int, float]


@dataclasses.dataclass
class Piece:
    """What has come of an answer."""

    text: str
    #: "text", "reasoning", "call_begin", "call_arguments" or "call_end"
    kind: str = "text"
    choice: int = 0


@dataclasses.dataclass
class Completion:
    """An answer that is complete."""

    text: str
    finish_reason: str
    reasoning: str = ""
    tool_calls: List[Dict[str, Any]] = dataclasses.field(default_factory=list)
    tokens: List[Token] = dataclasses.field(default_factory=list)
    usage: Dict[str, Any] = dataclasses.field(default_factory=dict)
    explain: Optional[Explanation] = None
    #: All choices, as the server's API has them.
    raw: Dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def choices(self) -> List[str]:
        return [_said(choice)["content"] or "" for choice in self.raw["choices"]]

    def __str__(self) -> str:
        return self.text


_KINDS = ["text", "reasoning", "call_begin", "call_arguments", "call_end"]
_OPTION = {True: "true", False: "false"}


def _said(choice: Dict[str, Any]) -> Dict[str, Any]:
    return choice["message"] if "message" in choice else {"content": choice["text"]}


class LLM:
    """A language model. Any thread may ask it, many at once: they are computed together.

    >>> with quire.LLM("house") as llm:
    ...     for piece in llm.stream("What is a KV cache?"):
    ...         print(piece.text, end="")

    `model`: a .gguf file, a folder with config.json and *.safetensors, "hf:ORG/NAME", "ollama:NAME", or "house". Options are those of
    `quire serve` about models, with _ for -: ctx=4096, kv="int8", threads=2, max_seqs=8, draft="lookup", offline=True.
    """

    def __init__(self, model: Union[str, "os.PathLike[str]"] = "house", **options: Union[str, int, float, bool]):
        words: List[Optional[bytes]] = []
        for name, value in options.items():
            text = _OPTION[value] if isinstance(value, bool) else str(value)
            words += [name.replace("_", "-").encode(), text.encode()]
        array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        self._handle = ctypes.c_void_p()
        c.check(c.library.quire_model_open(os.fsencode(model), array, ctypes.byref(self._handle)))
        #: Its name, context, vocabulary, KV format, kernels, and what was told while it was opened.
        self.info: Dict[str, Any] = self._json(c.library.quire_model_info)

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            c.library.quire_model_close(handle)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def __repr__(self) -> str:
        return f"<quire.LLM {self.info['name']}: context {self.info['context']}, kv {self.info['kv']}, {self.info['kernels']}>"

    @property
    def stats(self) -> Stats:
        """What it is doing now."""
        return Stats(self._json(c.library.quire_model_stats))

    # Asking

    @overload
    def generate(self, prompt: Prompt, params: Optional[SamplingParams] = ..., *, explain: bool = ...) -> Completion: ...

    @overload
    def generate(self, prompt: Sequence[str], params: Optional[SamplingParams] = ..., *, explain: bool = ...) -> List[Completion]: ...

    def generate(self, prompt, params=None, *, explain=False):  # type: ignore[no-untyped-def]
        """Continues a text (or token ids) as it is; of a list of texts, each, all at once."""
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], str):
            answers: List[Any] = [None] * len(prompt)
            self._at_once(
                [lambda i=i, one=one: answers.__setitem__(i, self.generate(one, params, explain=explain)) for i, one in enumerate(prompt)]
            )
            return answers
        return self._answer(self._request({"prompt": prompt}, params, explain), None)

    def chat(
        self,
        messages: Union[str, Sequence[Message]],
        params: Optional[SamplingParams] = None,
        *,
        tools: Optional[Sequence[Dict[str, Any]]] = None,
        explain: bool = False,
    ) -> Completion:
        """Answers a conversation, or one message of a user's."""
        return self._answer(self._request(_conversation(messages, tools), params, explain), None)

    def stream(
        self,
        messages: Union[str, Sequence[Message]],
        params: Optional[SamplingParams] = None,
        *,
        tools: Optional[Sequence[Dict[str, Any]]] = None,
    ) -> Iterator[Piece]:
        """The same, piece by piece. Who stops listening cancels the answer."""
        request = self._request(_conversation(messages, tools), params, False)
        pieces: "queue.Queue[Union[Piece, BaseException, None]]" = queue.Queue()
        left = threading.Event()

        def take(piece: Optional[Piece]) -> bool:
            if piece is not None:
                pieces.put(piece)
            return not left.is_set()

        def work() -> None:
            try:
                self._answer(request, take)
                pieces.put(None)
            except BaseException as problem:  # it is raised where somebody listens
                pieces.put(problem)

        thread = threading.Thread(target=work, name="quire", daemon=True)
        thread.start()
        try:
            while True:
                piece = pieces.get()
                if isinstance(piece, BaseException):
                    raise piece
                if piece is None:
                    return
                yield piece
        finally:
            left.set()
            thread.join()

    def explain(self, messages: Union[str, Sequence[Message]], params: Optional[SamplingParams] = None) -> Explanation:
        """Answers, and tells where the time went and what was cached. Shown as a table in notebooks."""
        explanation = self.chat(messages, params, explain=True).explain
        assert explanation is not None
        return explanation

    # Texts and tokens

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> List[int]:
        data = text.encode("utf-8", "replace")
        flags = (c.ADD_SPECIAL if add_special else 0) | (c.PARSE_SPECIAL if parse_special else 0)
        count, capacity = ctypes.c_size_t(), len(data) + 8
        while True:
            ids = (ctypes.c_uint32 * capacity)()
            status = c.library.quire_tokenize(self._open(), data, len(data), flags, ids, capacity, ctypes.byref(count))
            if status != c.TOO_SMALL:
                c.check(status)
                return list(ids[: count.value])
            capacity = count.value

    def detokenize(self, tokens: Sequence[int]) -> str:
        ids = (ctypes.c_uint32 * len(tokens))(*tokens)
        count, capacity = ctypes.c_size_t(), 8 * len(tokens) + 8
        while True:
            text = ctypes.create_string_buffer(capacity)
            status = c.library.quire_detokenize(self._open(), ids, len(tokens), text, capacity, ctypes.byref(count))
            if status != c.TOO_SMALL:
                c.check(status)
                return text.raw[: count.value].decode("utf-8", "replace")
            capacity = count.value

    def apply_template(self, messages: Union[str, Sequence[Message]], tools: Optional[Sequence[Dict[str, Any]]] = None) -> str:
        """What the model sees of a conversation."""
        text = ctypes.c_void_p()
        request = json.dumps(_conversation(messages, tools)).encode()
        c.check(c.library.quire_apply_template(self._open(), request, ctypes.byref(text)))
        return c.taken(text)

    def logits(self, tokens: Sequence[int], *, all_rows: bool = False) -> Any:
        """The logits after the last token, or [tokens, vocabulary] after each: a numpy array, or without numpy a memoryview."""
        rows, vocab = len(tokens) if all_rows else 1, self.info["vocabulary"]
        ids = (ctypes.c_uint32 * len(tokens))(*tokens)
        values = (ctypes.c_float * (rows * vocab))()
        c.check(c.library.quire_logits(self._open(), ids, len(tokens), rows, values, rows * vocab))
        return _array(values, (rows, vocab) if all_rows else (vocab,))

    def embed(self, texts: Union[str, Sequence[str]], *, dimensions: Optional[int] = None) -> Any:
        """What a text means to the model, as a vector of length 1; of a list of texts, [texts, width]: as `logits`, numpy's if it is there."""
        request: Dict[str, Any] = {"input": texts if isinstance(texts, str) else list(texts)}
        if dimensions is not None:
            request["dimensions"] = dimensions
        count, width, capacity = ctypes.c_size_t(), ctypes.c_size_t(), 1 if isinstance(texts, str) else len(texts)
        capacity *= dimensions or self.info["width"]
        values = (ctypes.c_float * capacity)()
        body = json.dumps(request).encode()
        c.check(c.library.quire_embed(self._open(), body, values, capacity, ctypes.byref(count), ctypes.byref(width)))
        return _array(values, (width.value,) if isinstance(texts, str) else (count.value, width.value))

    # The cache

    def cached(self, messages: Union[str, Sequence[Message]]) -> Dict[str, Any]:
        """How much of a conversation's prompt is cached, and why not more."""
        return self._json(c.library.quire_kv_lookup, json.dumps(_conversation(messages, None)).encode())

    def save_kv(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Saves the keys and values that are cached."""
        c.check(c.library.quire_kv_save(self._open(), os.fsencode(path)))

    def load_kv(self, path: Union[str, "os.PathLike[str]"]) -> int:
        """Fills the cache from such a file; says with how many tokens."""
        tokens = ctypes.c_uint64()
        c.check(c.library.quire_kv_load(self._open(), os.fsencode(path), ctypes.byref(tokens)))
        return tokens.value

    # Within

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise c.InvalidError("this model was closed")
        return self._handle

    def _json(self, function: Any, *arguments: Any) -> Dict[str, Any]:
        text = ctypes.c_void_p()
        c.check(function(self._open(), *arguments, ctypes.byref(text)))
        return json.loads(c.taken(text))

    def _request(self, what: Dict[str, Any], params: Optional[SamplingParams], explain: bool) -> Dict[str, Any]:
        said = (params or SamplingParams()).request(chat="messages" in what)
        if explain:
            own = said.get("quire")
            said["quire"] = {**(own if isinstance(own, dict) else {}), "report": True}
        return {**said, **what}

    def _answer(self, request: Dict[str, Any], take: Optional[Callable[[Optional[Piece]], bool]]) -> Completion:
        tokens: List[Token] = []
        problem: List[BaseException] = []

        def hear(piece: Any) -> None:
            if piece.kind == c.TOKEN and piece.choice == 0:
                top = {a.token: a.logprob for a in piece.alternatives[: piece.alternative_count]} if piece.alternative_count else {}
                tokens.append(Token(piece.token, piece.logprob, top))

        def on_piece(pointer: Any, _: Any) -> int:
            try:
                piece = pointer.contents
                hear(piece)
                if take is None:
                    return 0
                text = ctypes.string_at(piece.text, piece.text_bytes).decode("utf-8", "replace")
                told = Piece(text, _KINDS[piece.kind], piece.choice) if piece.kind < len(_KINDS) else None
                return 0 if take(told) else 1
            except BaseException as raised:  # no exception goes through C
                problem.append(raised)
                return 1

        handle = ctypes.c_void_p()
        body = json.dumps(request, default=_plain).encode()
        status = c.library.quire_generate(self._open(), body, c.OnPiece(on_piece), None, ctypes.byref(handle))
        try:
            if problem:
                raise problem[0]
            if status != c.CANCELLED or not handle:
                c.check(status)
            raw = json.loads(c.library.quire_answer_json(handle).decode("utf-8", "replace"))
        finally:
            c.library.quire_answer_free(handle)
        first = raw["choices"][0]
        said = _said(first)
        return Completion(
            text=said["content"] or "",
            finish_reason=first["finish_reason"],
            reasoning=said.get("reasoning_content") or "",
            tool_calls=said.get("tool_calls") or [],
            tokens=tokens,
            usage=raw.get("usage", {}),
            explain=Explanation(raw["quire"]) if raw.get("quire") else None,
            raw=raw,
        )

    @staticmethod
    def _at_once(works: Sequence[Callable[[], None]]) -> None:
        problems: List[BaseException] = []

        def guard(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=guard, args=(work,), name="quire", daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]


def _array(values: Any, shape: Sequence[int]) -> Any:
    """A numpy array, or without numpy a memoryview."""
    try:
        import numpy
    except ImportError:
        return memoryview(values).cast("B").cast("f", shape)
    return numpy.ctypeslib.as_array(values).reshape(shape)


def _plain(value: Any) -> Any:
    """numpy's arrays and numbers as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a request cannot have a {type(value).__name__}")


def _conversation(messages: Union[str, Sequence[Message]], tools: Optional[Sequence[Dict[str, Any]]]) -> Dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    said: Dict[str, Any] = {"messages": list(messages)}
    if tools:
        said["tools"] = list(tools)
    return said
