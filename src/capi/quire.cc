// What a program in C sees: every function looks its handles up, checks what it is given, and lets nothing be thrown.
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include <quire.h>

#include "base/error.h"
#include "capi/asking.h"
#include "capi/handles.h"
#include "capi/library_model.h"
#include "chat/chat_format.h"
#include "openai/api_error.h"
#include "openai/chat_request.h"
#include "openai/openai_response.h"
#include "text/utf8.h"

namespace {

using namespace quire;
using namespace quire::capi;

// Threads that end after main() may still be using them: they are never destroyed.
Handles<LibraryModel, quire_model>& models() {
  static auto* const all = new Handles<LibraryModel, quire_model>;
  return *all;
}
Handles<const LibraryAnswer, quire_answer>& answers() {
  static auto* const all = new Handles<const LibraryAnswer, quire_answer>;
  return *all;
}

constexpr size_t kMostError = 2000;
thread_local char last_error[kMostError + 1] = "";

quire_status fail(quire_status status, const char* why) {
  // Cut between two characters.
  size_t length = std::strlen(why);
  if (length > kMostError) {
    length = kMostError;
    while (length > 0 && (static_cast<unsigned char>(why[length]) & 0xC0) == 0x80) --length;
  }
  std::memcpy(last_error, why, length);
  last_error[length] = '\0';
  return status;
}

// Wrong arguments.
struct Invalid : Error {
  using Error::Error;
};

quire_status status_of(const ApiError& error) {
  if (error.status() < 500) return QUIRE_INVALID;
  const std::string code = error.json()["error"].value("code", "");
  return code == "cancelled" ? QUIRE_CANCELLED : code == "out_of_memory" ? QUIRE_NO_MEMORY : QUIRE_FAILED;
}

template <class Work>
int guarded(Work&& work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail(QUIRE_NO_MEMORY, "there is not enough memory for this");
  } catch (const ApiError& error) {
    return fail(status_of(error), error.what());
  } catch (const Invalid& error) {
    return fail(QUIRE_INVALID, error.what());
  } catch (const CLI::Error& error) {
    return fail(QUIRE_INVALID, error.what());
  } catch (const std::exception& error) {
    return fail(QUIRE_FAILED, error.what());
  } catch (...) {
    return fail(QUIRE_FAILED, "something was thrown that says nothing");
  }
}

std::shared_ptr<LibraryModel> find(const quire_model* handle) {
  auto model = models().find(handle);
  if (handle == nullptr) throw Invalid("the model is NULL");
  if (!model) throw Invalid("this model is not open");
  return model;
}

template <class T>
T* needed(T* pointer, const char* name) {
  if (pointer == nullptr) throw Invalid("{} is NULL", name);
  return pointer;
}

char* copy(const std::string& text) {
  auto* const out = static_cast<char*>(std::malloc(text.size() + 1));
  if (out == nullptr) throw std::bad_alloc();
  std::memcpy(out, text.c_str(), text.size() + 1);
  return out;
}

// Gives what there is, if there is room for it.
template <class T>
int give(std::span<const T> things, T* out, size_t capacity, size_t* count, const char* what) {
  *count = things.size();
  if (things.size() > capacity)
    return fail(QUIRE_TOO_SMALL,
                fmt::format("there are {} {}, and room for {}", things.size(), what, capacity).c_str());
  if (!things.empty()) std::memcpy(needed(out, "the buffer"), things.data(), things.size_bytes());
  return QUIRE_OK;
}

std::vector<TokenId> tokens_of(const uint32_t* ids, size_t count) {
  if (count == 0) return {};
  constexpr size_t kMost = size_t(1) << 32;
  if (count > kMost) throw Invalid("{} tokens are more than any text has", count);
  needed(ids, "ids");
  return {ids, ids + count};
}

}  // namespace

uint32_t quire_abi_version(void) {
  return QUIRE_ABI_VERSION;
}

const char* quire_version(void) {
  return QUIRE_VERSION;
}

const char* quire_last_error(void) {
  return last_error;
}

void quire_free(char* text) {
  std::free(text);
}

int quire_model_open(const char* name, const char* const* options, quire_model** out) {
  return guarded([&] {
    *needed(out, "out") = nullptr;
    if (*needed(name, "the model's name") == '\0') throw Invalid("the model's name is empty");
    OptionList list;
    for (const char* const* word = options; word != nullptr && *word != nullptr; word += 2) {
      if (word[1] == nullptr) throw Invalid("the option '{}' has no value", *word);
      list.emplace_back(word[0], word[1]);
    }
    *out = models().add(std::make_shared<LibraryModel>(name, list));
    return QUIRE_OK;
  });
}

int quire_model_close(quire_model* handle) {
  return guarded([&] {
    if (handle == nullptr) return QUIRE_OK;
    const auto model = models().remove(handle);
    if (!model) throw Invalid("this model is not open");
    model->loop().shut_down(Clock::now());
    return QUIRE_OK;
  });
}

int quire_model_info(quire_model* handle, char** json) {
  return guarded([&] {
    *needed(json, "json") = nullptr;
    *json = copy(dump(find(handle)->info()));
    return QUIRE_OK;
  });
}

int quire_model_stats(quire_model* handle, char** json) {
  return guarded([&] {
    *needed(json, "json") = nullptr;
    *json = copy(dump(find(handle)->stats()));
    return QUIRE_OK;
  });
}

int quire_tokenize(quire_model* handle, const char* text, size_t bytes, uint32_t flags, uint32_t* ids,
                   size_t capacity, size_t* count) {
  return guarded([&] {
    *needed(count, "count") = 0;
    const auto model = find(handle);
    if ((flags & ~(QUIRE_ADD_SPECIAL | QUIRE_PARSE_SPECIAL)) != 0) throw Invalid("{:#x} are no flags", flags);
    const std::string_view all(bytes == 0 ? "" : needed(text, "text"), bytes);
    const std::vector<TokenId> tokens =
        model->loaded().text().tokenizer.encode(all, {.add_special = (flags & QUIRE_ADD_SPECIAL) != 0,
                                                      .parse_special = (flags & QUIRE_PARSE_SPECIAL) != 0});
    return give<TokenId>(tokens, ids, capacity, count, "tokens");
  });
}

int quire_detokenize(quire_model* handle, const uint32_t* ids, size_t count, char* text, size_t capacity,
                     size_t* bytes) {
  return guarded([&] {
    *needed(bytes, "bytes") = 0;
    const auto model = find(handle);
    const std::string all = replace_broken_utf8(
        model->loaded().text().tokenizer.decode(tokens_of(ids, count), Tokenizer::Special::keep));
    return give<char>(all, text, capacity, bytes, "bytes");
  });
}

int quire_apply_template(quire_model* handle, const char* request, char** text) {
  return guarded([&] {
    *needed(text, "text") = nullptr;
    const auto model = find(handle);
    const ServedModel& served = model->served();
    if (!served.format) throw Error("the model has no chat template");
    const OrderedJson body = parse_body(needed(request, "request"));
    const ChatInput chat = to_chat_input(read_conversation(JsonFields(body)));
    *text = copy(served.text->chat_template->render(served.format->adapted(chat)).text);
    return QUIRE_OK;
  });
}

int quire_generate(quire_model* handle, const char* request, quire_on_piece on_piece, void* user,
                   quire_answer** out) {
  return guarded([&] {
    if (out != nullptr) *out = nullptr;
    const auto model = find(handle);
    LibraryAnswer said = answer(*model, needed(request, "request"), on_piece, user);
    const bool cancelled = said.cancelled;
    if (out != nullptr) *out = answers().add(std::make_shared<const LibraryAnswer>(std::move(said)));
    return cancelled ? fail(QUIRE_CANCELLED, "the answer was cancelled") : QUIRE_OK;
  });
}

const char* quire_answer_text(const quire_answer* handle, uint32_t choice) {
  const auto answer = answers().find(handle);
  if (answer && choice < answer->texts.size()) return answer->texts[choice].c_str();
  fail(QUIRE_INVALID, answer ? "the answer has no such choice" : "there is no such answer");
  return nullptr;
}

const char* quire_answer_json(const quire_answer* handle) {
  const auto answer = answers().find(handle);
  if (answer) return answer->json.c_str();
  fail(QUIRE_INVALID, "there is no such answer");
  return nullptr;
}

void quire_answer_free(quire_answer* handle) {
  answers().remove(handle);
}

int quire_logits(quire_model* handle, const uint32_t* ids, size_t count, size_t rows, float* logits,
                 size_t capacity) {
  return guarded([&] {
    const auto model = find(handle);
    if (count == 0 || (rows != 1 && rows != count))
      throw Invalid("rows is {}; it must be 1 or count, which is {}", rows, count);
    const std::vector<TokenId> tokens = tokens_of(ids, count);
    needed(logits, "logits");
    const size_t wanted = rows * model->served().vocab;
    if (capacity < wanted)
      return fail(
          QUIRE_TOO_SMALL,
          fmt::format("the logits are {} floats, and there is room for {}", wanted, capacity).c_str());
    const std::vector<float> all = model->logits(tokens, rows > 1);
    std::memcpy(logits, all.data(), wanted * sizeof(float));
    return QUIRE_OK;
  });
}

int quire_embed(quire_model* handle, const char* request, float* vectors, size_t capacity, size_t* count,
                size_t* width) {
  return guarded([&] {
    *needed(count, "count") = 0;
    *needed(width, "width") = 0;
    const auto model = find(handle);
    const VectorAsk asked = read_vectors(*model, needed(request, "request"));
    const size_t numbers = asked.width != 0 ? asked.width : model->served().width;
    const size_t wanted = asked.ask.prompts.size() * numbers;
    const auto tell = [&] {
      *count = asked.ask.prompts.size();
      *width = numbers;
    };
    if (wanted > capacity) {
      tell();
      return fail(
          QUIRE_TOO_SMALL,
          fmt::format("the vectors are {} floats, and there is room for {}", wanted, capacity).c_str());
    }
    needed(vectors, "vectors");
    const std::vector<std::vector<float>> all = embed(*model, asked, numbers);
    for (size_t i = 0; i < all.size(); ++i)
      std::memcpy(vectors + i * numbers, all[i].data(), numbers * sizeof(float));
    tell();
    return QUIRE_OK;
  });
}

int quire_kv_lookup(quire_model* handle, const char* request, char** json) {
  return guarded([&] {
    *needed(json, "json") = nullptr;
    const auto model = find(handle);
    *json = copy(dump(model->lookup(needed(request, "request"))));
    return QUIRE_OK;
  });
}

int quire_kv_save(quire_model* handle, const char* path) {
  return guarded([&] {
    const auto model = find(handle);
    model->save_kv(needed(path, "path"));
    return QUIRE_OK;
  });
}

int quire_kv_load(quire_model* handle, const char* path, uint64_t* tokens) {
  return guarded([&] {
    if (tokens != nullptr) *tokens = 0;
    const auto model = find(handle);
    const uint64_t loaded = model->load_kv(needed(path, "path"));
    if (tokens != nullptr) *tokens = loaded;
    return QUIRE_OK;
  });
}
