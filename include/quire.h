/* libquire: a language model in your own program. C11; any language that can call C can use it.
 *
 *   quire_model* model;
 *   if (quire_model_open("house", NULL, &model) != QUIRE_OK) return fprintf(stderr, "%s\n", quire_last_error());
 *   quire_generate(model, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}", print_it, NULL, NULL);
 *   quire_model_close(model);
 *
 * What holds everywhere:
 *   - Functions return a quire_status. If it is not QUIRE_OK, quire_last_error() has a sentence for people, and what a
 *     function would have given is NULL or 0.
 *   - Any thread may call any function, several at once and on one model; one thread of the model computes all answers together.
 *   - Handles are numbers that are looked up: NULL, or one that has been closed, is QUIRE_INVALID. Other pointers are yours.
 *   - Texts that come in are UTF-8 and end with a zero, unless their length is given. Texts that go out are UTF-8 and end
 *     with a zero; bytes of a token that are no character yet are kept until they are one.
 *   - Nothing is written to stdout or stderr, no signal is caught, no exception comes out. A fork() without exec() takes no
 *     model along.
 *   - docs/library.md tells it at length. What requests may say is what the server's do: docs/server.md. */
#ifndef QUIRE_H
#define QUIRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif

/* Grows when programs that were compiled for the version before would not run any more; it is the library's soname too.
 * Functions may be added without it, and members at the end of structs, which say their size. */
#define QUIRE_ABI_VERSION 1

typedef enum quire_status {
  QUIRE_OK = 0,
  QUIRE_INVALID = 1, /* an argument or a request that is wrong: the same again would be too */
  QUIRE_FAILED = 2,  /* no such file, not a model, a device that is gone, a disk that is full */
  QUIRE_NO_MEMORY = 3,
  QUIRE_CANCELLED = 4, /* the callback said so, or the model was closed meanwhile */
  QUIRE_TOO_SMALL = 5  /* the buffer; what it should hold is told */
} quire_status;

typedef struct quire_model quire_model;
typedef struct quire_answer quire_answer;

/* Of the library that is loaded; compare it with QUIRE_ABI_VERSION. */
QUIRE_API uint32_t quire_abi_version(void);
/* "0.1.0" */
QUIRE_API const char* quire_version(void);
/* Why the last function that failed in this thread did; until the next fails. Never NULL. */
QUIRE_API const char* quire_last_error(void);
/* A text that a function gave. NULL is allowed. */
QUIRE_API void quire_free(char* text);

/* Opens a model: a .gguf file, a folder with config.json and *.safetensors, hf:ORG/NAME, ollama:NAME, or "house", the small
 * model that lies beside the library. `options`: NULL, or names and values in turn and a NULL behind them: the options of
 * `quire serve` about models without their dashes ("ctx", "4096", "kv", "int8", "threads", "2", "draft", "lookup",
 * "offline", "true"; docs/library.md lists them). */
QUIRE_API int quire_model_open(const char* model, const char* const* options, quire_model** out);
/* What runs is cancelled. NULL is allowed, and nothing. */
QUIRE_API int quire_model_close(quire_model* model);
/* JSON, to be freed: name, context, vocabulary, formats, kernels, and what was told while the model was opened. */
QUIRE_API int quire_model_info(quire_model* model, char** json);
/* JSON, to be freed: what runs and waits, what the KV cache holds and where, and what the steps since the start took. */
QUIRE_API int quire_model_stats(quire_model* model, char** json);

/* The ids of a text of `bytes` bytes. `count` becomes how many there are; QUIRE_TOO_SMALL if they are more than `capacity`, of
 * which none is written then. `ids` may be NULL if `capacity` is 0. */
#define QUIRE_ADD_SPECIAL 1u   /* what the model's tokenizer puts before and behind a text */
#define QUIRE_PARSE_SPECIAL 2u /* special tokens that are written out in the text are taken for themselves */
QUIRE_API int quire_tokenize(quire_model* model, const char* text, size_t bytes, uint32_t flags,
                             uint32_t* ids, size_t capacity, size_t* count);
/* The text of tokens, without a zero behind it: `bytes` is how long it is. Otherwise the same. */
QUIRE_API int quire_detokenize(quire_model* model, const uint32_t* ids, size_t count, char* text,
                               size_t capacity, size_t* bytes);
/* The text that the model sees of a conversation, to be freed. `request`: JSON with `messages`, and `tools` if there are any. */
QUIRE_API int quire_apply_template(quire_model* model, const char* request, char** text);

/* A piece of an answer, as it comes. It and what it points to are gone when the callback returns. */
enum {
  QUIRE_TEXT = 0,
  QUIRE_REASONING = 1,      /* that comes before the text, where the model's template tells them apart */
  QUIRE_CALL_BEGIN = 2,     /* the name of a tool */
  QUIRE_CALL_ARGUMENTS = 3, /* JSON, or a piece of it */
  QUIRE_CALL_END = 4,
  QUIRE_TOKEN = 5,  /* the token whose text follows; only if `logprobs` or `return_token_ids` ask for it */
  QUIRE_NOTHING = 6 /* nothing new, for a tenth of a second: a chance to cancel */
};
typedef struct quire_alternative {
  uint32_t token;
  float logprob;
} quire_alternative;
typedef struct quire_piece {
  uint32_t size; /* of this struct, as the library knows it */
  uint32_t kind;
  uint32_t choice; /* of several answers to one request, from 0 */
  uint32_t call;   /* which call of the answer, from 0 */
  const char* text;
  size_t text_bytes;
  uint32_t token; /* of QUIRE_TOKEN, as what follows */
  float logprob;
  const quire_alternative* alternatives; /* if top_logprobs asks for them, the likeliest first */
  size_t alternative_count;
} quire_piece;
/* In the thread that asked. What it returns other than 0 cancels the answer. */
typedef int (*quire_on_piece)(const quire_piece* piece, void* user);

/* Answers a request: JSON as POST /v1/chat/completions takes it if it has `messages`, else as POST /v1/completions does (`prompt`:
 * a text, ids, or several). Sampling: temperature, top_p, top_k, min_p, seed, penalties, logit_bias, n; stop, max_tokens;
 * logprobs and top_logprobs; response_format, guided_json, guided_regex, guided_grammar; tools; "quire": {"report": true} for an
 * account of the time and the cache. `on_piece` and `answer` may be NULL. With QUIRE_CANCELLED there is an answer too: what
 * had come. Returns when all is said. */
QUIRE_API int quire_generate(quire_model* model, const char* request, quire_on_piece on_piece, void* user,
                             quire_answer** answer);
/* The text of one choice; NULL if there is no such answer or choice. Until the answer is freed, as the next. */
QUIRE_API const char* quire_answer_text(const quire_answer* answer, uint32_t choice);
/* All of it, as the server would have sent it: choices, usage, finish reasons, calls, logprobs, the report. */
QUIRE_API const char* quire_answer_json(const quire_answer* answer);
/* NULL is allowed. */
QUIRE_API void quire_answer_free(quire_answer* answer);

/* The logits of `count` tokens, after each (`rows` = count) or after the last alone (`rows` = 1): rows * vocabulary floats. They are
 * computed at once, from nothing, between two steps of what else runs. */
QUIRE_API int quire_logits(quire_model* model, const uint32_t* ids, size_t count, size_t rows, float* logits,
                           size_t capacity);

/* Texts as vectors of length 1, one behind the other. `request`: JSON as POST /v1/embeddings takes it (`input`: a text, ids, or a
 * list of them; `dimensions`). `count` becomes how many vectors there are, `width` how many numbers each has; QUIRE_TOO_SMALL if they
 * are more than `capacity` together, and nothing is computed then. `vectors` may be NULL if `capacity` is 0. */
QUIRE_API int quire_embed(quire_model* model, const char* request, float* vectors, size_t capacity,
                          size_t* count, size_t* width);

/* JSON, to be freed: how much of a prompt (`request`: JSON with `prompt` or `messages`) is cached, and why not more. */
QUIRE_API int quire_kv_lookup(quire_model* model, const char* request, char** json);
/* Saves the keys and values that are cached. The file is written beside and takes its name when it is whole. Nothing cached is
 * QUIRE_FAILED. */
QUIRE_API int quire_kv_save(quire_model* model, const char* path);
/* Fills the cache from such a file: all of it or, if anything does not fit this model and its options, nothing. `tokens`
 * may be NULL. Nothing may run meanwhile: then it is QUIRE_FAILED. */
QUIRE_API int quire_kv_load(quire_model* model, const char* path, uint64_t* tokens);

#ifdef __cplusplus
}
#endif

#endif
