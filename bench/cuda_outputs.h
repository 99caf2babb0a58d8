#pragma once

namespace quire::cuda {

// What the outputs of products cost: microseconds of a product whose rows are stored, of one that goes on with them, and of one whose
// rows a second kernel finishes.
void bench_outputs();

}  // namespace quire::cuda
