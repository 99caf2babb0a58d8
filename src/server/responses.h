#pragma once

#include <string>
#include <utility>

#include "base/json.h"
#include "openai/openai_response.h"
#include "server/http.h"

namespace quire {

// Whole responses, for all who answer.
inline HttpResponse text_response(std::string type, std::string body) {
  HttpResponse response;
  response.type = std::move(type);
  response.body = std::move(body);
  return response;
}

inline HttpResponse json_response(const OrderedJson& json, int status = 200) {
  return {.status = status, .body = dump(json)};
}

}  // namespace quire
