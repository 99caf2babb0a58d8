#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace quire {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "quire: a bug: %s does not hold (%s:%d). Please report it.\n", condition, file, line);
  std::abort();
}

}  // namespace quire
