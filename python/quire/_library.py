"""libquire through ctypes: its functions, and what they say as exceptions."""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p

ABI = 1

OK, INVALID, FAILED, NO_MEMORY, CANCELLED, TOO_SMALL = range(6)
TEXT, REASONING, CALL_BEGIN, CALL_ARGUMENTS, CALL_END, TOKEN, NOTHING = range(7)
ADD_SPECIAL, PARSE_SPECIAL = 1, 2


class QuireError(RuntimeError):
    """What could not be done, as a sentence."""


class InvalidError(QuireError, ValueError):
    """An argument, an option or a request that is wrong."""


class CancelledError(QuireError):
    """The answer was cancelled, or the model was closed meanwhile."""


class Alternative(ctypes.Structure):
    _fields_ = [("token", c_uint32), ("logprob", c_float)]


class Piece(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("kind", c_uint32),
        ("choice", c_uint32),
        ("call", c_uint32),
        ("text", c_void_p),
        ("text_bytes", c_size_t),
        ("token", c_uint32),
        ("logprob", c_float),
        ("alternatives", POINTER(Alternative)),
        ("alternative_count", c_size_t),
    ]


OnPiece = ctypes.CFUNCTYPE(c_int, POINTER(Piece), c_void_p)

_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "quire_abi_version": (c_uint32, []),
    "quire_version": (c_char_p, []),
    "quire_last_error": (c_char_p, []),
    "quire_free": (None, [c_void_p]),
    "quire_model_open": (c_int, [c_char_p, POINTER(c_char_p), POINTER(c_void_p)]),
    "quire_model_close": (c_int, [c_void_p]),
    "quire_model_info": (c_int, [c_void_p, POINTER(c_void_p)]),
    "quire_model_stats": (c_int, [c_void_p, POINTER(c_void_p)]),
    "quire_tokenize": (c_int, [c_void_p, c_char_p, c_size_t, c_uint32, POINTER(c_uint32), c_size_t, POINTER(c_size_t)]),
    "quire_detokenize": (c_int, [c_void_p, POINTER(c_uint32), c_size_t, POINTER(c_char), c_size_t, POINTER(c_size_t)]),
    "quire_apply_template": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "quire_generate": (c_int, [c_void_p, c_char_p, OnPiece, c_void_p, POINTER(c_void_p)]),
    "quire_answer_json": (c_char_p, [c_void_p]),
    "quire_answer_free": (None, [c_void_p]),
    "quire_logits": (c_int, [c_void_p, POINTER(c_uint32), c_size_t, c_size_t, c_void_p, c_size_t]),
    "quire_embed": (c_int, [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)]),
    "quire_kv_lookup": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "quire_kv_save": (c_int, [c_void_p, c_char_p]),
    "quire_kv_load": (c_int, [c_void_p, c_char_p, POINTER(c_uint64)]),
}


def _load() -> ctypes.CDLL:
    """QUIRE_LIBRARY if it is set, else the one in the package, else the system's."""
    own = pathlib.Path(__file__).with_name(f"libquire.so.{ABI}")
    name = os.environ.get("QUIRE_LIBRARY") or (str(own) if own.exists() else own.name)
    library = ctypes.CDLL(name)
    for function, (result, arguments) in _FUNCTIONS.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    if library.quire_abi_version() != ABI:
        raise ImportError(f"{name} has version {library.quire_abi_version()} of its interface; this package wants {ABI}")
    return library


library = _load()


def check(status: int) -> None:
    """Raises what a function's status means."""
    if status == OK:
        return
    why = library.quire_last_error().decode("utf-8", "replace")
    if status == NO_MEMORY:
        raise MemoryError(why)
    raise {INVALID: InvalidError, CANCELLED: CancelledError}.get(status, QuireError)(why)


def taken(text: c_void_p) -> str:
    """A text that a function gave, which is freed."""
    try:
        return ctypes.string_at(text.value or 0).decode("utf-8", "replace")
    finally:
        library.quire_free(text)
