#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <quire.h>

#include "capi/library_model.h"

namespace quire::capi {

// An answer that is complete, or was cancelled.
struct LibraryAnswer {
  std::vector<std::string> texts;  // by choice
  std::string json;
  bool cancelled = false;
};

// Answers a request on the caller's thread, which is told of every piece. Throws ApiError if there is no answer.
LibraryAnswer answer(LibraryModel& model, std::string_view request, quire_on_piece on_piece, void* user);

}  // namespace quire::capi
