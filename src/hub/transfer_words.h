#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace quire {

// Bytes with their unit: "807.7 MB".
std::string bytes_in_words(uint64_t bytes);

// How far a transfer is: "[#####.....]  50 %  1.0 GB of 2.0 GB  50.0 MB/s  0:20 left", no longer than so many columns. Without a rate
// it says nothing of the time.
std::string progress_line(uint64_t done, uint64_t total, double bytes_per_second, size_t columns);

}  // namespace quire
