/* The library as a program in C sees it: capi_test MODEL FOLDER [LOADS]. Ends with 0 if everything is as include/quire.h says. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire.h"

static int failures = 0;

#define EXPECT(what)                                                                     \
  do {                                                                                   \
    if (!(what)) {                                                                       \
      fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #what, \
              quire_last_error());                                                       \
      ++failures;                                                                        \
    }                                                                                    \
  } while (0)

static const char* const kChat =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is a KV "
    "cache?\"}],\"temperature\":0,\"max_tokens\":24}";

typedef struct Heard {
  char text[4096];
  size_t bytes, pieces, tokens, alternatives;
  uint32_t first_token;
  float first_logprob;
  size_t cancel_after; /* pieces of text; 0: never */
} Heard;

static int listen(const quire_piece* piece, void* user) {
  Heard* heard = user;
  if (piece->size < sizeof(quire_piece) || piece->text[piece->text_bytes] != '\0') return 1;
  if (piece->kind == QUIRE_TOKEN) {
    if (heard->tokens++ == 0) {
      heard->first_token = piece->token;
      heard->first_logprob = piece->logprob;
    }
    heard->alternatives += piece->alternative_count;
  }
  if (piece->kind != QUIRE_TEXT || heard->bytes + piece->text_bytes >= sizeof(heard->text)) return 0;
  memcpy(heard->text + heard->bytes, piece->text, piece->text_bytes);
  heard->bytes += piece->text_bytes;
  heard->text[heard->bytes] = '\0';
  return ++heard->pieces == heard->cancel_after;
}

static quire_model* open_model(const char* name) {
  static const char* const kOptions[] = {"ctx", "512", "threads", "2", "kv", "f16", NULL};
  quire_model* model = NULL;
  if (quire_model_open(name, kOptions, &model) != QUIRE_OK) {
    fprintf(stderr, "%s\n", quire_last_error());
    exit(1);
  }
  return model;
}

/* To be freed. */
static char* ask(quire_model* model, const char* request) {
  quire_answer* answer = NULL;
  EXPECT(quire_generate(model, request, NULL, NULL, &answer) == QUIRE_OK);
  const char* text = answer == NULL ? NULL : quire_answer_text(answer, 0);
  char* copy = calloc(1, text == NULL ? 1 : strlen(text) + 1);
  if (text != NULL) strcpy(copy, text);
  quire_answer_free(answer);
  return copy;
}

static void nonsense_is_an_error(quire_model* model) {
  quire_model* other = (quire_model*)1;
  char* text = (char*)1;
  size_t count = 1;
  quire_answer* answer = (quire_answer*)1;
  EXPECT(quire_model_open(NULL, NULL, &other) == QUIRE_INVALID && other == NULL);
  EXPECT(quire_model_open("", NULL, &other) == QUIRE_INVALID);
  EXPECT(quire_model_open("house", NULL, NULL) == QUIRE_INVALID);
  EXPECT(quire_model_open("/no/such.gguf", NULL, &other) == QUIRE_FAILED && other == NULL);
  EXPECT(strstr(quire_last_error(), "/no/such.gguf") != NULL);
  static const char* const kWrong[][3] = {
      {"colour", "red", NULL}, {"ctx", "many", NULL},  {"ctx", NULL, NULL},    {"model", "house", NULL},
      {"kv", "f17", NULL},     {"--ctx", "512", NULL}, {"help", "true", NULL}, {"ctx=512", "", NULL}};
  for (size_t i = 0; i < sizeof(kWrong) / sizeof(kWrong[0]); ++i) {
    EXPECT(quire_model_open("house", kWrong[i], &other) == QUIRE_INVALID && other == NULL);
    EXPECT(quire_last_error()[0] != '\0');
  }
  quire_model* const never = (quire_model*)(uintptr_t)0x123456;
  EXPECT(quire_model_info(NULL, &text) == QUIRE_INVALID && text == NULL);
  EXPECT(quire_model_info(never, &text) == QUIRE_INVALID);
  EXPECT(quire_model_info(model, NULL) == QUIRE_INVALID);
  EXPECT(quire_model_stats(never, &text) == QUIRE_INVALID);
  EXPECT(quire_model_close(never) == QUIRE_INVALID && quire_model_close(NULL) == QUIRE_OK);
  EXPECT(quire_tokenize(model, "a", 1, 0, NULL, 0, NULL) == QUIRE_INVALID);
  EXPECT(quire_tokenize(model, NULL, 1, 0, NULL, 0, &count) == QUIRE_INVALID && count == 0);
  EXPECT(quire_tokenize(model, "a", 1, 77, NULL, 0, &count) == QUIRE_INVALID);
  EXPECT(quire_tokenize(model, "a", 1, 0, NULL, 100, &count) == QUIRE_INVALID);
  EXPECT(quire_detokenize(model, NULL, 3, NULL, 0, &count) == QUIRE_INVALID);
  EXPECT(quire_generate(model, NULL, NULL, NULL, &answer) == QUIRE_INVALID && answer == NULL);
  static const char* const kRequests[] = {"",
                                          "{",
                                          "[]",
                                          "{}",
                                          "null",
                                          "{\"messages\":[]}",
                                          "{\"prompt\":[1,-2]}",
                                          "{\"prompt\":[4000000000]}",
                                          "{\"prompt\":\"a\",\"temperature\":-1}",
                                          "{\"prompt\":\"a\",\"max_tokens\":\"x\"}",
                                          "{\"prompt\":\"a\",\"guided_regex\":\"(\"}",
                                          "{\"prompt\":\"a\",\"model\":\"other\"}",
                                          "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}",
                                          "{\"prompt\":\"a\",\"cache_salt\":\"x\"}"};
  for (size_t i = 0; i < sizeof(kRequests) / sizeof(kRequests[0]); ++i) {
    EXPECT(quire_generate(model, kRequests[i], NULL, NULL, &answer) == QUIRE_INVALID && answer == NULL);
    EXPECT(quire_last_error()[0] != '\0');
  }
  EXPECT(quire_answer_text(NULL, 0) == NULL && quire_answer_json((quire_answer*)7777) == NULL);
  quire_answer_free(NULL);
  quire_answer_free((quire_answer*)7777);
  quire_free(NULL);
  float logit;
  const uint32_t wrong = 4000000000u;
  EXPECT(quire_logits(model, NULL, 1, 1, &logit, 1) == QUIRE_INVALID);
  EXPECT(quire_logits(model, &wrong, 1, 1, &logit, 1) == QUIRE_TOO_SMALL);
  EXPECT(quire_logits(model, &wrong, 1, 2, &logit, 1) == QUIRE_INVALID);
  EXPECT(quire_logits(model, &wrong, 0, 0, &logit, 1) == QUIRE_INVALID);
  EXPECT(quire_kv_save(model, NULL) == QUIRE_INVALID);
  EXPECT(quire_kv_load(model, "/no/such/file", NULL) == QUIRE_FAILED);
  EXPECT(quire_apply_template(model, "{\"messages\":7}", &text) == QUIRE_INVALID && text == NULL);
}

static void texts_become_tokens_and_texts_again(quire_model* model) {
  static const char kText[] = "Pages of keys and values: \xc3\xbc, \xf0\x9f\x93\x84.";
  uint32_t ids[64];
  char text[256];
  size_t count = 0, bytes = 0;
  EXPECT(quire_tokenize(model, kText, strlen(kText), 0, NULL, 0, &count) == QUIRE_TOO_SMALL && count > 3);
  EXPECT(quire_tokenize(model, kText, strlen(kText), 0, ids, 64, &count) == QUIRE_OK);
  EXPECT(quire_detokenize(model, ids, count, text, sizeof(text), &bytes) == QUIRE_OK);
  EXPECT(bytes == strlen(kText) && memcmp(text, kText, bytes) == 0);
  EXPECT(quire_tokenize(model, "", 0, 0, ids, 64, &count) == QUIRE_OK && count == 0);
}

static void an_answer_comes_in_pieces_and_whole(quire_model* model) {
  char* prompt = NULL;
  EXPECT(quire_apply_template(model, kChat, &prompt) == QUIRE_OK);
  EXPECT(prompt != NULL && strstr(prompt, "What is a KV cache?") != NULL);
  quire_free(prompt);
  Heard heard = {0};
  quire_answer* answer = NULL;
  EXPECT(quire_generate(model, kChat, listen, &heard, &answer) == QUIRE_OK);
  EXPECT(heard.pieces > 3 && heard.tokens == 0);
  EXPECT(strcmp(heard.text, quire_answer_text(answer, 0)) == 0);
  EXPECT(quire_answer_text(answer, 1) == NULL);
  EXPECT(strstr(quire_answer_json(answer), "\"object\":\"chat.completion\"") != NULL);
  EXPECT(strstr(quire_answer_json(answer), "\"completion_tokens\":24") != NULL);
  quire_answer_free(answer);
  EXPECT(quire_answer_text(answer, 0) == NULL); /* it is known to be gone */
}

static void what_is_asked_for_is_heeded(quire_model* model) {
  char* text = ask(model, "{\"prompt\":\"Is it so? \",\"guided_regex\":\"yes|no\",\"temperature\":0}");
  EXPECT(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
  free(text);
  text = ask(model,
             "{\"prompt\":\"An age: \",\"temperature\":0,\"guided_json\":{\"type\":\"object\",\"properties\":"
             "{\"age\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9}},\"required\":[\"age\"],"
             "\"additionalProperties\":false}}");
  EXPECT(strncmp(text, "{\"age\"", 6) == 0 || strncmp(text, "{ \"age\"", 7) == 0);
  free(text);
  text =
      ask(model, "{\"prompt\":\"One: \",\"temperature\":0,\"guided_grammar\":\"root ::= \\\"ab\\\" [0-9]\"}");
  EXPECT(strlen(text) == 3 && strncmp(text, "ab", 2) == 0);
  free(text);

  char* whole = ask(model, kChat);
  const char* space = strchr(whole + 1, ' ');
  EXPECT(space != NULL);
  text = ask(model,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"What is a KV cache?\"}],\"temperature\":0,"
             "\"max_tokens\":24,\"stop\":[\" \"]}");
  EXPECT(strncmp(whole, text, strlen(text)) == 0 && strchr(text, ' ') == NULL &&
         strlen(text) < strlen(whole));
  free(text);
  free(whole);

  text = ask(model, "{\"prompt\":\"Once\",\"max_tokens\":8,\"temperature\":1,\"seed\":7}");
  char* again = ask(model, "{\"prompt\":\"Once\",\"max_tokens\":8,\"temperature\":1,\"seed\":7}");
  EXPECT(strcmp(text, again) == 0);
  free(text);
  free(again);

  Heard heard = {0};
  quire_answer* answer = NULL;
  EXPECT(quire_generate(model,
                        "{\"prompt\":\"Once\",\"max_tokens\":4,\"temperature\":0,\"logprobs\":2,\"ignore_"
                        "eos\":true,\"n\":2,"
                        "\"quire\":{\"report\":true}}",
                        listen, &heard, &answer) == QUIRE_OK);
  EXPECT(heard.tokens == 8 && heard.alternatives >= 16 && heard.first_logprob <= 0);
  EXPECT(quire_answer_text(answer, 1) != NULL &&
         strcmp(quire_answer_text(answer, 0), quire_answer_text(answer, 1)) == 0);
  EXPECT(strstr(quire_answer_json(answer), "\"ttft_ms\"") != NULL);
  quire_answer_free(answer);

  uint32_t ids[8];
  size_t count = 0;
  EXPECT(quire_tokenize(model, "Once", 4, QUIRE_ADD_SPECIAL, ids, 8, &count) == QUIRE_OK && count > 0);
  char* info = NULL;
  EXPECT(quire_model_info(model, &info) == QUIRE_OK);
  const char* vocabulary = strstr(info, "\"vocabulary\":");
  const size_t vocab = vocabulary == NULL ? 0 : strtoul(vocabulary + 13, NULL, 10);
  quire_free(info);
  float* logits = malloc(vocab * count * sizeof(float));
  EXPECT(vocab > 0 && quire_logits(model, ids, count, 1, logits, vocab) == QUIRE_OK);
  size_t best = 0;
  double sum = 0;
  for (size_t i = 0; i < vocab; ++i)
    if (logits[i] > logits[best]) best = i;
  for (size_t i = 0; i < vocab; ++i) sum += exp((double)logits[i] - logits[best]);
  EXPECT(best == heard.first_token && fabs(-log(sum) - heard.first_logprob) < 1e-3);
  const float last = logits[best];
  if (count > 1) {
    EXPECT(quire_logits(model, ids, count, count, logits, vocab * count) == QUIRE_OK);
    EXPECT(logits[(count - 1) * vocab + best] == last);
  }
  free(logits);
}

static void who_has_heard_enough_says_so(quire_model* model) {
  Heard heard = {.cancel_after = 3};
  quire_answer* answer = NULL;
  EXPECT(quire_generate(model,
                        "{\"prompt\":\"Once\",\"max_tokens\":400,\"temperature\":0,\"ignore_eos\":true}",
                        listen, &heard, &answer) == QUIRE_CANCELLED);
  EXPECT(heard.pieces == 3 && answer != NULL);
  EXPECT(answer != NULL && strncmp(quire_answer_text(answer, 0), heard.text, heard.bytes) == 0);
  EXPECT(answer != NULL && strstr(quire_answer_json(answer), "\"cancelled\"") != NULL);
  quire_answer_free(answer);
  char* stats = NULL;
  EXPECT(quire_model_stats(model, &stats) == QUIRE_OK);
  EXPECT(strstr(stats, "\"running\":0,") != NULL && strstr(stats, "\"held_pages\":0,") != NULL);
  quire_free(stats);
}

typedef struct Asker {
  quire_model* model;
  const char* expected;
  int wrong;
} Asker;

static void* ask_again_and_again(void* user) {
  Asker* asker = user;
  for (int i = 0; i < 3; ++i) {
    Heard heard = {0};
    quire_answer* answer = NULL;
    if (quire_generate(asker->model, kChat, listen, &heard, &answer) != QUIRE_OK ||
        strcmp(heard.text, asker->expected) != 0)
      ++asker->wrong;
    quire_answer_free(answer);
    if (quire_generate(asker->model, "{\"prompt\":3}", NULL, NULL, NULL) != QUIRE_INVALID) ++asker->wrong;
  }
  return NULL;
}

static void many_threads_get_what_one_gets(quire_model* model) {
  char* alone = ask(model, kChat);
  enum { kThreads = 8 };
  pthread_t threads[kThreads];
  Asker askers[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    askers[i] = (Asker){model, alone, 0};
    pthread_create(&threads[i], NULL, ask_again_and_again, &askers[i]);
  }
  for (int i = 0; i < kThreads; ++i) {
    pthread_join(threads[i], NULL);
    EXPECT(askers[i].wrong == 0);
  }
  free(alone);
}

static void a_cache_is_saved_and_loaded(quire_model* model, const char* name, const char* folder) {
  char path[1024];
  snprintf(path, sizeof(path), "%s/capi_test.kv", folder);
  char* text = ask(model, kChat);
  EXPECT(quire_kv_save(model, path) == QUIRE_OK);
  quire_model* other = open_model(name);
  EXPECT(quire_kv_save(other, path) == QUIRE_FAILED); /* and the file stays as it was */
  uint64_t tokens = 0;
  char* found = NULL;
  EXPECT(quire_kv_load(other, path, &tokens) == QUIRE_OK && tokens > 8);
  EXPECT(quire_kv_lookup(other, kChat, &found) == QUIRE_OK);
  EXPECT(strstr(found, "\"cached_tokens\":0,") == NULL);
  quire_free(found);
  char* again = ask(other, kChat);
  EXPECT(strcmp(text, again) == 0);
  free(text);
  free(again);
  EXPECT(quire_model_close(other) == QUIRE_OK);
  EXPECT(quire_model_close(other) == QUIRE_INVALID);
  EXPECT(quire_generate(other, kChat, NULL, NULL, NULL) == QUIRE_INVALID);
  remove(path);
}

static void texts_become_vectors(quire_model* model) {
  size_t count = 7, width = 7, i, v;
  EXPECT(quire_embed(model, "{\"input\":[\"pages of keys\",\"a cat\",\"pages of keys\"]}", NULL, 0, &count,
                     &width) == QUIRE_TOO_SMALL);
  EXPECT(count == 3 && width > 1);
  float* vectors = calloc(count * width, sizeof(float));
  EXPECT(quire_embed(model, "{\"input\":[\"pages of keys\",\"a cat\",\"pages of keys\"]}", vectors,
                     count * width, &count, &width) == QUIRE_OK);
  for (v = 0; v < 3; ++v) {
    double squares = 0;
    for (i = 0; i < width; ++i) squares += (double)vectors[v * width + i] * vectors[v * width + i];
    EXPECT(fabs(squares - 1) < 1e-4);
  }
  EXPECT(memcmp(vectors, vectors + 2 * width, width * sizeof(float)) == 0);
  EXPECT(memcmp(vectors, vectors + width, width * sizeof(float)) != 0);
  float* alone = calloc(width, sizeof(float));
  EXPECT(quire_embed(model, "{\"input\":\"a cat\"}", alone, width, &count, &width) == QUIRE_OK && count == 1);
  EXPECT(memcmp(alone, vectors + width, width * sizeof(float)) == 0);
  EXPECT(quire_embed(model, "{\"input\":\"a cat\",\"dimensions\":4}", alone, width, &count, &width) ==
             QUIRE_OK &&
         width == 4);
  EXPECT(quire_embed(model, "{\"input\":[]}", alone, 4, &count, &width) == QUIRE_INVALID && count == 0);
  EXPECT(quire_embed(model, "{\"input\":\"a\",\"cache_salt\":\"x\"}", alone, 4, &count, &width) ==
         QUIRE_INVALID);
  EXPECT(quire_embed(model, NULL, alone, 4, &count, &width) == QUIRE_INVALID);
  EXPECT(quire_embed(model, "{\"input\":\"a\"}", NULL, 1 << 20, &count, &width) == QUIRE_INVALID);
  EXPECT(quire_embed(model, "{\"input\":\"a\"}", alone, 4, NULL, &width) == QUIRE_INVALID);
  free(vectors);
  free(alone);
}

/* What a load leaves behind is found by the sanitizer that this is compiled with, or by how the process grows. */
static void many_models_come_and_go(int loads) {
  static const char* const kOptions[] = {"ctx", "64", "threads", "1", "max-seqs", "2", NULL};
  while (loads-- > 0) {
    quire_model* model = NULL;
    EXPECT(quire_model_open("house-draft", kOptions, &model) == QUIRE_OK);
    free(ask(model, "{\"prompt\":[1,2,3],\"max_tokens\":2,\"temperature\":0}"));
    EXPECT(quire_model_close(model) == QUIRE_OK);
  }
}

static void* close_it(void* model) {
  quire_model_close(model);
  return NULL;
}

static int close_at_once(const quire_piece* piece, void* user) {
  pthread_t thread;
  if (piece->kind != QUIRE_TEXT || *(int*)user != 0) return 0;
  *(int*)user = pthread_create(&thread, NULL, close_it, *(quire_model**)((char*)user + sizeof(void*))) == 0;
  pthread_detach(thread);
  return 0;
}

static void a_model_can_be_closed_while_it_answers(const char* name) {
  struct {
    int closed;
    quire_model* model;
  } user = {0, open_model(name)};
  EXPECT(quire_generate(user.model,
                        "{\"prompt\":\"Once\",\"max_tokens\":500,\"temperature\":0,\"ignore_eos\":true}",
                        close_at_once, &user, NULL) == QUIRE_CANCELLED);
  EXPECT(user.closed == 1);
}

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return fprintf(stderr, "capi_test MODEL FOLDER [LOADS]\n"), 2;
  EXPECT(quire_abi_version() == QUIRE_ABI_VERSION && quire_version()[0] != '\0');
  quire_model* model = open_model(argv[1]);
  nonsense_is_an_error(model);
  texts_become_tokens_and_texts_again(model);
  an_answer_comes_in_pieces_and_whole(model);
  what_is_asked_for_is_heeded(model);
  who_has_heard_enough_says_so(model);
  many_threads_get_what_one_gets(model);
  texts_become_vectors(model);
  a_cache_is_saved_and_loaded(model, argv[1], argv[2]);
  EXPECT(quire_model_close(model) == QUIRE_OK);
  a_model_can_be_closed_while_it_answers(argv[1]);
  many_models_come_and_go(argc == 4 ? atoi(argv[3]) : 10);
  if (failures == 0) puts("the library does what its header says");
  return failures == 0 ? 0 : 1;
}
