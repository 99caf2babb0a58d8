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

// How the router of a family scores its experts, as GGUF numbers it.
enum class HfScore : uint8_t { usual = 0, softmax = 1, sigmoid = 2 };

// What differs between the families of Hugging Face models, as far as their files are concerned.
struct HfFamily {
  std::string_view model_type;    // as config.json has it
  std::string_view architecture;  // as GGUF has it
  std::string_view activation = "silu";
  double rope_theta = 10000;  // when config.json has none
  double rotated = 1;         // share of a head that rotates, when config.json does not say
  bool tied = false;          // output matrix = embedding, when config.json does not say
  bool pairs = false;         // GGUF has the rows of Q and K in neighbouring pairs instead of halves
  bool post_norms = false;    // GGUF calls "post_attention_layernorm" post_attention_norm and not ffn_norm
  bool norm_plus_one = false;
  HfWindow window = HfWindow::none;
  uint64_t window_period = 6;  // of HfWindow::period, when config.json does not say
  // Of experts.
  HfScore score = HfScore::usual;
  bool normalized = true;  // shares sum to 1, when config.json does not say
};

inline constexpr HfFamily kHfFamilies[] = {
    {.model_type = "llama", .architecture = "llama", .pairs = true},
    {.model_type = "mistral", .architecture = "llama", .pairs = true, .window = HfWindow::all},
    {.model_type = "ministral3",
     .architecture = "mistral3",
     .rope_theta = 1000000,
     .pairs = true,
     .window = HfWindow::all},
    {.model_type = "mixtral",
     .architecture = "llama",
     .rope_theta = 1000000,
     .pairs = true,
     .window = HfWindow::all},
    {.model_type = "llama4_text",
     .architecture = "llama4",
     .rope_theta = 500000,
     .score = HfScore::sigmoid,
     .normalized = false},
    {.model_type = "qwen2", .architecture = "qwen2", .window = HfWindow::late},
    {.model_type = "qwen2_vl_text",
     .architecture = "qwen2vl",
     .rope_theta = 1000000,
     .window = HfWindow::late},
    {.model_type = "qwen2_5_vl_text",
     .architecture = "qwen2vl",
     .rope_theta = 1000000,
     .window = HfWindow::late},
    {.model_type = "qwen2_moe", .architecture = "qwen2moe", .window = HfWindow::late, .normalized = false},
    {.model_type = "qwen3", .architecture = "qwen3", .window = HfWindow::late},
    {.model_type = "qwen3_5_text",
     .architecture = "qwen35",
     .rope_theta = 10000000,
     .rotated = 0.25,
     .post_norms = true,
     .norm_plus_one = true},
    {.model_type = "qwen3_5_moe_text",
     .architecture = "qwen35moe",
     .rope_theta = 10000000,
     .rotated = 0.25,
     .post_norms = true,
     .norm_plus_one = true},
    {.model_type = "qwen3_next",
     .architecture = "qwen3next",
     .rotated = 0.25,
     .post_norms = true,
     .norm_plus_one = true},
    {.model_type = "qwen3_vl_text", .architecture = "qwen3vl", .rope_theta = 500000},
    {.model_type = "qwen3_moe",
     .architecture = "qwen3moe",
     .window = HfWindow::all_enabled,
     .normalized = false},
    {.model_type = "qwen3_vl_moe_text", .architecture = "qwen3vlmoe", .rope_theta = 500000},
    {.model_type = "gemma",
     .architecture = "gemma",
     .activation = "gelu_pytorch_tanh",
     .tied = true,
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
    {.model_type = "gemma3n_text",
     .architecture = "gemma3n",
     .activation = "gelu_pytorch_tanh",
     .rope_theta = 1000000,
     .tied = true,
     .post_norms = true,
     .window = HfWindow::period,
     .window_period = 5},
    {.model_type = "gemma4_text",
     .architecture = "gemma4",
     .activation = "gelu_pytorch_tanh",
     .tied = true,
     .post_norms = true,
     .window = HfWindow::period},
    {.model_type = "gemma4_unified_text",
     .architecture = "gemma4",
     .activation = "gelu_pytorch_tanh",
     .tied = true,
     .post_norms = true,
     .window = HfWindow::period},
    {.model_type = "phi", .architecture = "phi2", .activation = "gelu_new", .rotated = 0.5},
    {.model_type = "phi3", .architecture = "phi3", .window = HfWindow::all},
    {.model_type = "phimoe", .architecture = "phimoe", .rope_theta = 1000000, .window = HfWindow::all},
    {.model_type = "olmo2", .architecture = "olmo2", .post_norms = true},
    {.model_type = "olmo3",
     .architecture = "olmo2",
     .rope_theta = 500000,
     .post_norms = true,
     .window = HfWindow::period,
     .window_period = 4},
    {.model_type = "olmoe", .architecture = "olmoe", .normalized = false},
    {.model_type = "smollm3",
     .architecture = "smollm3",
     .rope_theta = 2000000,
     .tied = true,
     .pairs = true,
     .window = HfWindow::rotated_not},
    {.model_type = "granite", .architecture = "granite", .pairs = true},
    {.model_type = "granitemoehybrid", .architecture = "granitehybrid", .pairs = true},
    {.model_type = "granitemoe", .architecture = "granitemoe", .pairs = true},
    {.model_type = "gpt2", .architecture = "gpt2", .activation = "gelu_new", .tied = true},
    {.model_type = "gpt_neox", .architecture = "gptneox", .activation = "gelu", .rotated = 0.25},
    {.model_type = "gpt_oss",
     .architecture = "gpt-oss",
     .rope_theta = 150000,
     .post_norms = true,
     .window = HfWindow::alternate},
    {.model_type = "starcoder2",
     .architecture = "starcoder2",
     .activation = "gelu_pytorch_tanh",
     .tied = true,
     .window = HfWindow::all},
    {.model_type = "falcon", .architecture = "falcon", .activation = "gelu", .tied = true},
    {.model_type = "bloom", .architecture = "bloom", .tied = true},
    {.model_type = "mpt", .architecture = "mpt", .tied = true},
    {.model_type = "glm", .architecture = "chatglm", .rotated = 0.5},
    {.model_type = "glm4", .architecture = "glm4", .rotated = 0.5},
    {.model_type = "glm4_moe",
     .architecture = "glm4moe",
     .rotated = 0.5,
     .post_norms = true,
     .score = HfScore::sigmoid},
    {.model_type = "minimax_m2",
     .architecture = "minimax-m2",
     .rope_theta = 5000000,
     .score = HfScore::sigmoid},
    {.model_type = "deepseek_v2",
     .architecture = "deepseek2",
     .score = HfScore::softmax,
     .normalized = false},
    {.model_type = "deepseek_v3", .architecture = "deepseek2", .score = HfScore::sigmoid},
    {.model_type = "kimi_k2", .architecture = "deepseek2", .score = HfScore::sigmoid},
    {.model_type = "glm4_moe_lite", .architecture = "deepseek2", .score = HfScore::sigmoid},
    {.model_type = "deepseek_v4", .architecture = "deepseek4"},
    {.model_type = "deepseek_v32", .architecture = "deepseek32", .score = HfScore::sigmoid},
    {.model_type = "glm_moe_dsa", .architecture = "glm-dsa", .score = HfScore::sigmoid},
    {.model_type = "kimi_linear", .architecture = "kimi-linear", .score = HfScore::sigmoid},
    {.model_type = "mistral4", .architecture = "mistral4", .score = HfScore::softmax},
    {.model_type = "dots1", .architecture = "dots1", .score = HfScore::sigmoid, .normalized = false},
    {.model_type = "cohere", .architecture = "command-r", .rope_theta = 500000, .tied = true},
    {.model_type = "cohere2",
     .architecture = "cohere2",
     .tied = true,
     .window = HfWindow::period,
     .window_period = 4},
    {.model_type = "cohere2_moe",
     .architecture = "cohere2moe",
     .tied = true,
     .window = HfWindow::period,
     .window_period = 4},
    {.model_type = "mimo_v2_flash",
     .architecture = "mimo2",
     .rope_theta = 5000000,
     .rotated = 0.334,
     .window = HfWindow::all,
     .score = HfScore::sigmoid},
    {.model_type = "exaone4",
     .architecture = "exaone4",
     .post_norms = true,
     .window = HfWindow::period,
     .window_period = 4},
    {.model_type = "seed_oss", .architecture = "seed_oss", .post_norms = true},
    {.model_type = "ernie4_5", .architecture = "ernie4_5", .rope_theta = 500000, .tied = true},
    {.model_type = "ernie4_5_moe", .architecture = "ernie4_5-moe", .rope_theta = 500000, .tied = true},
    {.model_type = "apertus", .architecture = "apertus", .activation = "xielu", .rope_theta = 12000000},
    {.model_type = "hunyuan_v1_dense", .architecture = "hunyuan-dense"},
    {.model_type = "hunyuan_v1_moe", .architecture = "hunyuan-moe"},
    {.model_type = "hy_v3", .architecture = "hy_v3", .rope_theta = 11158840, .score = HfScore::sigmoid},
    {.model_type = "lfm2", .architecture = "lfm2", .rope_theta = 1000000, .tied = true},
    {.model_type = "lfm2_moe",
     .architecture = "lfm2moe",
     .rope_theta = 1000000,
     .tied = true,
     .score = HfScore::sigmoid},
    {.model_type = "nemotron_h", .architecture = "nemotron_h"},
    {.model_type = "nemotron_h_moe",
     .architecture = "nemotron_h_moe",
     .score = HfScore::sigmoid},  // our name
    {.model_type = "mamba", .architecture = "mamba", .tied = true},
    {.model_type = "mamba2", .architecture = "mamba2"},
    {.model_type = "falcon_h1", .architecture = "falcon-h1", .rope_theta = 100000000000},
    {.model_type = "jamba", .architecture = "jamba", .normalized = false},
};

// Models of text and more, of which only the text is read, and the family of the text where they do not name it.
struct HfTextOf {
  std::string_view model_type;
  std::string_view text;
};
inline constexpr HfTextOf kHfTextOf[] = {
    {"gemma4", "gemma4_text"},
    {"gemma4_unified", "gemma4_unified_text"},
    {"gemma3", "gemma3_text"},
    {"gemma3n", "gemma3n_text"},
    {"mistral3", "mistral"},
    {"kimi_k25", "deepseek_v3"},
    {"qwen2_vl", "qwen2_vl_text"},
    {"qwen2_5_vl", "qwen2_5_vl_text"},
    {"qwen3_vl", "qwen3_vl_text"},
    {"qwen3_vl_moe", "qwen3_vl_moe_text"},
    {"llama4", "llama4_text"},
    {"qwen3_5", "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text"},
};

}  // namespace quire
