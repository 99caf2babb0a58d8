#include "backend/cpu/matmul/panel_scratch.h"

#include "tensor/buffer.h"

namespace quire {

std::byte* panel_scratch(size_t bytes) {
  thread_local Buffer memory;
  if (memory.size() < bytes) memory = Buffer(bytes);
  return memory.data();
}

}  // namespace quire
