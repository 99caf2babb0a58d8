#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <quire.h>

#include "capi/library_model.h"
#include "openai/vector_request.h"

namespace quire::capi {

// An answer that is complete, or was cancelled.
struct LibraryAnswer {
  std::vector<std::string> texts;  // by choice
  std::string json;
  bool cancelled = false;
};

// Answers a request on the caller's thread, which is told of every piece. Throws ApiError if there is no answer.
LibraryAnswer answer(LibraryModel& model, std::string_view request, quire_on_piece on_piece, void* user);

// What a request for vectors asks. Throws ApiError naming what is wrong with it.
VectorAsk read_vectors(const LibraryModel& model, std::string_view request);
// A vector of `width` numbers for each prompt. Throws ApiError if there are none.
std::vector<std::vector<float>> embed(LibraryModel& model, const VectorAsk& asked, size_t width);

}  // namespace quire::capi
