"""quire: a language model in your own program.

>>> import quire
>>> llm = quire.LLM("house")
>>> print(llm.chat("What is a KV cache?").text)
"""
from ._explain import Explanation, Stats
from ._library import CancelledError, InvalidError, QuireError, library as _loaded
from ._llm import LLM, Completion, Piece, SamplingParams, Token

__version__: str = _loaded.quire_version().decode()
__all__ = [
    "LLM",
    "SamplingParams",
    "Completion",
    "Piece",
    "Token",
    "Explanation",
    "Stats",
    "QuireError",
    "InvalidError",
    "CancelledError",
]
