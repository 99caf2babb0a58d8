#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/json.h"

namespace quire {

// What a client is told instead of an answer, in OpenAI's shape.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, std::string param, std::string code, const std::string& message)
      : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  // False: the same again would end the same way, although its status says that the server is to blame.
  bool worth_retrying() const { return code_ != "cancelled" && code_ != "deadline_exceeded"; }
  OrderedJson json() const {
    return {{"error",
             {{"message", message()},
              {"type", type()},
              {"param", param_.empty() ? OrderedJson() : OrderedJson(param_)},
              {"code", code_.empty() ? OrderedJson() : OrderedJson(code_)}}}};
  }

 private:
  // Many quote what was sent, which may be long.
  std::string message() const {
    constexpr size_t kMost = 500;
    const std::string all = what();
    return all.size() <= kMost ? all : all.substr(0, kMost) + "...";
  }
  std::string type() const {
    if (status_ == 401) return "authentication_error";
    if (status_ == 403) return "permission_error";
    if (status_ == 404) return "not_found_error";
    if (status_ == 429) return "rate_limit_error";
    return status_ >= 500 ? "server_error" : "invalid_request_error";
  }

  int status_;
  std::string param_, code_;
};

// A field of a request that is wrong.
template <class... Args>
[[noreturn]] void bad_field(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, field, "invalid_value", fmt::format(format, std::forward<Args>(args)...));
}

// A field that is known and that would change the answer, but is not there yet.
[[noreturn]] inline void not_built(const std::string& field, const char* what) {
  throw ApiError(400, field, "unsupported_parameter",
                 fmt::format("'{}' is not supported yet: {}", field, what));
}

}  // namespace quire
