#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace quire::cuda {

// Host memory that the device's copies can reach by themselves. Getting it takes long, so blocks are used again: a block that
// nobody holds any more goes back. One thread.
class PinnedMemory {
 public:
  using Block = std::shared_ptr<std::byte>;

  // At least so many bytes. Throws Error if there are none.
  Block take(size_t bytes);

 private:
  struct Owned {
    Block memory;
    size_t bytes;
  };
  std::vector<Owned> blocks_;
};

}  // namespace quire::cuda
