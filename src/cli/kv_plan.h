#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "cli/model_options.h"
#include "engine/memory_plan.h"

namespace quire::cli {

// What would fit if the keys and values were kept in another way.
struct KvPlanRow {
  std::string name;
  KvRoom room;
  bool chosen = false;  // the model as it is
  double ops = 0;       // of attention, for the last token of the context; 0: not told
};

// In `bytes` of memory, by format: the usual ones, and `chosen` if it is none of them. What heads of this size cannot
// have is left out.
std::vector<KvPlanRow> kv_by_format(const ModelSpec& spec, const std::string& chosen, uint32_t context,
                                    size_t bytes);
// By what the layers share and see: as many KV heads as query heads, groups, one, a latent row for all, windows.
std::vector<KvPlanRow> kv_by_attention(ModelSpec spec, const KvFormats& formats, uint32_t context,
                                       size_t bytes);

// `what`: the head of the first column. The chosen row is marked.
std::string kv_table(const std::string& what, const std::vector<KvPlanRow>& rows, uint32_t context);
OrderedJson kv_json(const std::vector<KvPlanRow>& rows);

// "3.125 GiB": powers of two, as contexts and heads are.
std::string binary_bytes(size_t bytes);

}  // namespace quire::cli
