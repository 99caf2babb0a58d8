#pragma once

namespace quire {

// Memory that is kept for the moment when there is no more: then it is given back, and what has to be undone, told or
// destroyed (a JSON tree takes memory to be destroyed) finds some. Whatever asked for memory is refused if it does not
// suffice. Any thread may call it: the first call begins to keep it, later ones keep it again after it was used.
void keep_memory_reserve();

}  // namespace quire
