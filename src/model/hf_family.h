#pragma once

#include <cstdint>
#include <string_view>

namespace quire {

// Which layers of a family look through a window, when its config.json does not list them.
enum class HfWindow : uint8_t {
  none,
  all,          // where a window is given
  all_enabled,  // the same, behind `use_sliding_window`
  late,         // from layer `max_window_layers` on, behind `use_sliding_window`
  rotated_not,  // the layers without rotation, behind `use_sliding_window`
  alternate,    // every other one, beginning with the first
  period,       // all but every n-th: `sliding_window_pattern`
};

// What differs between the families of Hugging Face models, as far as their files are concerned.
struct HfFamily {
  std::string_view model_type;    // as config.json has it
  std::string_view architecture;  // as GGUF has it
  std::string_view activation = "silu";
  double rope_theta = 10000;  // when config.json has none
  double rotated_share = 1;   // of a head, the same
  bool tied = false;          // output matrix = embedding, when config.json does not say
  bool pairs = false;         // GGUF has the rows of Q and K in neighbouring pairs instead of halves
  bool post_norms = false;    // "post_attention_layernorm" comes after attention, not before the MLP
  bool norm_plus_one = false;
  HfWindow window = HfWindow::none;
};

inline constexpr HfFamily kHfFamilies[] = {
    {.model_type = "llama", .architecture = "llama", .pairs = true},
    {.model_type = "mistral", .architecture = "llama", .pairs = true, .window = HfWindow::all},
    {.model_type = "mixtral",
     .architecture = "llama",
     .rope_theta = 1000000,
     .pairs = true,
     .window = HfWindow::all},
    {.model_type = "qwen2", .architecture = "qwen2", .window = HfWindow::late},
    {.model_type = "qwen3", .architecture = "qwen3", .window = HfWindow::late},
    {.model_type = "qwen3_moe", .architecture = "qwen3moe", .window = HfWindow::all_enabled},
    {.model_type = "qwen3_5_text",
     .architecture = "qwen35",
     .rope_theta = 10000000,
     .rotated_share = 0.25,
     .post_norms = true,
     .norm_plus_one = true},
    {.model_type = "gemma2",
     .architecture = "gemma2",
     .activation = "gelu_pytorch_tanh",
     .tied = true,
     .post_norms = true,
     .norm_plus_one = true,
     .window = HfWindow::alternate},
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .activation = "gelu_pytorch_tanh",
     .rope_theta = 1000000,
     .tied = true,
     .post_norms = true,
     .norm_plus_one = true,
     .window = HfWindow::period},
    {.model_type = "phi3", .architecture = "phi3", .window = HfWindow::all},
    {.model_type = "olmo2", .architecture = "olmo2", .post_norms = true},
    {.model_type = "smollm3",
     .architecture = "smollm3",
     .rope_theta = 2000000,
     .tied = true,
     .pairs = true,
     .window = HfWindow::rotated_not},
    {.model_type = "granite", .architecture = "granite", .pairs = true},
    {.model_type = "gpt2", .architecture = "gpt2", .activation = "gelu_new", .tied = true},
    {.model_type = "gpt_oss",
     .architecture = "gpt-oss",
     .rope_theta = 150000,
     .post_norms = true,
     .window = HfWindow::alternate},
};

}  // namespace quire
