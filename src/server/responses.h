#pragma once

#include <string>
#include <string_view>
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

// The head of a stream: nobody on the way is to keep it, or to wait for its end.
inline HttpResponse stream_head(std::string_view type) {
  HttpResponse head;
  head.type = type;
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  return head;
}

inline HttpResponse json_response(const OrderedJson& json, int status = 200) {
  return {.status = status, .body = dump(json)};
}

}  // namespace quire
