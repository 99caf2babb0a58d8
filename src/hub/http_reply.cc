#include "hub/http_client.h"

namespace quire {

std::string HttpReply::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

}  // namespace quire
