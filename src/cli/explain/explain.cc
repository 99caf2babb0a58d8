#include <algorithm>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/explain/view.h"

namespace quire::cli {
namespace {

// A view, and what it takes where the user does not say. A new one is a function in view.h and a line here.
struct View {
  const char* name;
  Shown (*show)(const ExplainInput&);
  uint32_t generated;  // tokens of the answer
  uint32_t doc;        // random tokens instead of a prompt; 0: a question
};
constexpr View kViews[] = {
    {"phases", show_phases, 64, 0},   {"steps", show_steps, 12, 0},       {"why-kv", show_why_kv, 2, 0},
    {"chunks", show_chunks, 16, 600}, {"batching", show_batching, 64, 0}, {"attention", show_attention, 6, 0},
};

std::vector<TokenId> random_tokens(uint32_t count, uint32_t vocab) {
  std::vector<TokenId> tokens;
  uint64_t state = 7;
  for (uint32_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(TokenId((state >> 33) % vocab));
  }
  return tokens;
}

std::vector<TokenId> prompt_tokens(const ExplainOptions& options, uint32_t doc, const LoadedModel& loaded) {
  if (doc > 0) return random_tokens(doc, loaded.spec().vocab);
  const std::string text = options.prompt == "-"    ? read_text("-")
                           : options.prompt.empty() ? "What is a KV cache?"
                                                    : options.prompt;
  if (options.raw || !loaded.text().chat_template) return loaded.text().tokenizer.encode(text);
  ChatInput chat;
  chat.messages = OrderedJson::array();
  chat.messages.push_back({{"role", "user"}, {"content", text}});
  return loaded.text().encode_chat(chat);
}

ModelOptions model_options(const ExplainOptions& options) {
  ModelOptions model = options.model;
  if (options.view != "chunks" && options.chunks.size() > 1)
    wrong_usage("several sizes of --prefill-chunk are for --view chunks");
  if (options.chunks.size() == 1) model.prefill_chunk = options.chunks.front();
  if (options.view == "batching") model.kv_memory.clear();  // there it is what many requests share
  return model;
}

void explain(const ExplainOptions& options) {
  const View& view = *std::ranges::find(kViews, options.view, &View::name);
  const ModelOptions::Opened opened = model_options(options).open();
  const uint32_t doc = options.doc > 0 || !options.prompt.empty() ? options.doc : view.doc;
  const ExplainInput input{.options = options,
                           .model = *opened.model,
                           .engine = opened.engine,
                           .prompt = prompt_tokens(options, doc, *opened.model),
                           .generated = options.generated.value_or(view.generated)};
  show_view(input);
}

void add_model_options(CLI::App& command, ExplainOptions& options) {
  options.model.add_to(command);
  // Here it may be a list.
  command.remove_option(command.get_option("--prefill-chunk"));
  command
      .add_option("--prefill-chunk", options.chunks,
                  "most prompt tokens in one step (512); with --view chunks a list (1,32,512)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1u, 1u << 20));
}

}  // namespace

std::vector<std::string> view_names() {
  std::vector<std::string> names;
  for (const View& view : kViews) names.emplace_back(view.name);
  return names;
}

void show_view(const ExplainInput& input) {
  const ExplainOptions& options = input.options;
  if (input.prompt.size() + input.generated > input.engine.context) {
    throw Error("{} tokens of prompt and {} of answer are more than the context of {}", input.prompt.size(),
                input.generated, input.engine.context);
  }
  const View& view = *std::ranges::find(kViews, options.view, &View::name);
  Shown shown = view.show(input);
  if (options.json) {
    OrderedJson object = {{"view", view.name}};
    object.update(shown.json);
    std::cout << object.dump(2) << "\n";
  } else {
    std::cout << shown.table;
  }
  if (options.svg.empty()) return;
  std::ofstream file(options.svg);
  file << shown.svg;
  if (!file.flush()) throw Error("cannot write {}", options.svg);
}

Request ExplainInput::request() const {
  Request request;
  request.prompt = prompt;
  request.sampling.temperature = options.temperature;
  request.sampling.seed = options.seed;
  if (sampling) request.sampling = *sampling;
  request.choice = choice;
  request.max_tokens = generated;
  request.ignore_end = true;
  return request;
}

void add_explain(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* command = app.add_subcommand(
      "explain", "prefill, decode and the KV cache at work: counted, measured and drawn, in several views");
  add_model_options(*command, *options);
  command
      ->add_option(
          "--view", options->view,
          "phases: with the cache and without; steps: what each pass is fed, adds and draws; why-kv: "
          "which keys and values change when the text does; chunks: a prompt in chunks of several "
          "sizes; batching: many requests, continuous beside static, paged beside contiguous; attention: "
          "where each "
          "token looks with one head")
      ->capture_default_str()
      ->check(CLI::IsMember(view_names()));
  command->add_option("prompt", options->prompt, "the prompt, or - for stdin (default: a question)");
  command->add_option("--doc", options->doc, "instead of a prompt: a document of so many random tokens")
      ->check(CLI::Range(1u, 1u << 24));
  command
      ->add_option(
          "--gen", options->generated,
          "tokens of the answer (phases 64, steps 12, chunks 16, attention 6; batching: of the longest, 64)")
      ->check(CLI::Range(2u, 1u << 20));
  command->add_option("--temperature", options->temperature, "of the answer; 0 is greedy")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the draws, and of batching's arrivals")
      ->capture_default_str();
  command
      ->add_option("--off-seconds", options->off_seconds,
                   "phases: how long to run without the cache before the rest is predicted (0: to the end)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--requests", options->requests, "batching: how many arrive")
      ->capture_default_str()
      ->check(CLI::Range(1u, 10000u));
  command->add_option("--batch", options->at_once, "batching: how many may run together")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1024u));
  command->add_option("--layer", options->attention.layer, "attention: which layer, counted from 0")
      ->capture_default_str();
  command->add_option("--head", options->attention.head, "attention: which query head of it, counted from 0")
      ->capture_default_str();
  command
      ->add_option("--cached", options->attention.cached,
                   "attention: how many tokens of the prompt an earlier request has left in the cache")
      ->capture_default_str();
  command->add_flag("--raw", options->raw, "no chat template");
  command->add_flag("--json", options->json, "print one JSON object");
  command->add_option("--svg", options->svg, "a file to draw the view to");
  command->callback([options] { explain(*options); });
}

}  // namespace quire::cli
