#include "capi/library_model.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "cli/model_name.h"
#include "cli/tell.h"
#include "engine/text_runner.h"
#include "openai/api_error.h"

namespace quire::capi {
namespace {

constexpr size_t kSliceBytes = size_t(8) << 20;  // of a snapshot, that are copied between two steps
constexpr uint32_t kLogitsChunk = 128;

// The options are those of the command line, read by the same words and with the same checks.
void read_options(const OptionList& given, cli::ModelOptions& options, std::string& pooling) {
  CLI::App app("", "");
  app.set_help_flag();
  options.add_to(app);
  options.add_draft_to(app);
  app.add_option("--max-seqs", options.max_sequences)->check(CLI::Range(1u, 4096u));
  app.add_option("--pooling", pooling)->check(CLI::IsMember({"last", "mean", "cls"}));
  app.remove_option(app.get_option("--model"));
  std::vector<std::string> words;
  for (const auto& [name, value] : given) {
    const auto is_letter = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    };
    const bool is_name = !name.empty() && name.front() != '-' && std::ranges::all_of(name, is_letter);
    if (!is_name || app.get_option_no_throw("--" + name) == nullptr)
      cli::wrong_usage("there is no option '{}'", name.substr(0, 100));
    words.push_back("--" + name + "=" + value);
  }
  std::ranges::reverse(words);  // as CLI11 wants them
  app.parse(words);
}

}  // namespace

void throw_closed() {
  throw ApiError(503, "", "cancelled", "the model was closed");
}

LibraryModel::LibraryModel(const std::string& name, const OptionList& options) {
  const cli::Listening listening([this](const std::string& sentence) { told_.push_back(sentence); });
  options_.max_sequences = 16;
  std::string pooling;
  read_options(options, options_, pooling);
  options_.model = name;
  opened_ = options_.open();
  path_ = options_.path();
  formats_ = opened_.engine.kv_formats;
  std::unique_ptr<Engine> engine = opened_.make_engine();
  served_ = with_chat_format({cli::served_name(name), &loaded().text(), loaded().spec().vocab,
                              engine->context(), seconds_since_1970()});
  served_.pooling = pooling.empty() ? said_pooling(loaded().file()) : pooling_from_name(pooling);
  served_.width = uint32_t(loaded().spec().dim);
  fingerprint_ = fmt::format("quire-{}-{}-{}", QUIRE_VERSION, loaded().kernels(), options_.kv);
  loop_ = std::make_unique<EngineLoop>(std::move(engine));
}

OrderedJson LibraryModel::info() const {
  return {{"name", served_.name},
          {"path", path_},
          {"context", served_.context},
          {"vocabulary", served_.vocab},
          {"width", served_.width},
          {"layers", loaded().spec().layers.size()},
          {"kv", options_.kv},
          {"kernels", loaded().kernels()},
          {"max_seqs", options_.max_sequences},
          {"chat_template", served_.format != nullptr},
          {"told", told_}};
}

OrderedJson LibraryModel::stats() {
  struct Look {
    Engine::Load load;
    KvCache::Stats kv;
    uint64_t steps;
    StepCost cost;
    double ms, unused;
    std::string lost;
  };
  const Look look = ask([](Engine& engine) {
    return Look{engine.load(),       engine.kv().stats(),   engine.steps().total(), engine.steps().cost(),
                engine.steps().ms(), engine.unused_share(), engine.lost()};
  });
  return {{"running", look.load.running},
          {"waiting", look.load.waiting},
          {"preemptions", look.load.preemptions},
          {"kv",
           {{"capacity_pages", look.kv.capacity_pages},
            {"held_pages", look.kv.held_pages},
            {"cached_pages", look.kv.cached_pages},
            {"free_pages", look.kv.free_pages},
            {"capacity_bytes", look.kv.capacity_bytes},
            {"held_bytes", look.kv.held_bytes},
            {"cached_bytes", look.kv.cached_bytes},
            {"shared_bytes", look.kv.shared_bytes},
            {"unused_share", look.unused}}},
          {"steps", {{"count", look.steps}, {"ms", look.ms}}},
          {"lost", look.lost.empty() ? OrderedJson() : OrderedJson(look.lost)}};
}

OrderedJson LibraryModel::lookup(std::string_view request) {
  const std::vector<TokenId> prompt = parse_prompt(parse_body(request), served_);
  const PrefixMatch match = ask([prompt](Engine& engine) { return engine.lookup(prompt); });
  return {{"prompt_tokens", prompt.size()}, {"cached_tokens", match.tokens}, {"why", match.miss.text()}};
}

std::vector<float> LibraryModel::logits(std::vector<TokenId> tokens, bool all_rows) {
  if (tokens.empty() || tokens.size() > served_.context)
    throw ApiError(400, "", "",
                   fmt::format("there are {} tokens; 1 to {} are allowed", tokens.size(), served_.context));
  for (const TokenId token : tokens) {
    if (token >= served_.vocab)
      throw ApiError(400, "", "", fmt::format("{} is no token: there are {}", token, served_.vocab));
  }
  return ask([this, tokens = std::move(tokens), all_rows](Engine&) {
    using Wanted = TextRunner::Wanted;
    const auto count = uint32_t(tokens.size());
    TextRunner runner(loaded().engine_model(), formats_, count, std::min(count, kLogitsChunk));
    std::vector<float> rows;
    for (uint32_t done = 0; done < count;) {
      const auto next = std::span(tokens).subspan(done, std::min(kLogitsChunk, count - done));
      StepOutput output = runner.compute(next, all_rows ? Wanted::all_rows : Wanted::last_row);
      done += uint32_t(next.size());
      if (!all_rows) rows.clear();
      rows.insert(rows.end(), output.logits.begin(), output.logits.end());
    }
    return rows;
  });
}

void LibraryModel::save_kv(const std::string& path) {
  // Made, used and destroyed on the engine's thread.
  struct Source {
    std::unique_ptr<KvExport> nodes;
    KvLayout layout;
  };
  const auto source = std::make_shared<Source>();
  const auto take = [source](Engine& engine) {
    if (!source->nodes) {
      source->nodes = std::make_unique<KvExport>(engine.kv());
      source->layout = engine.kv().layout();
    }
    return source->nodes->take(kSliceBytes, engine.make_moves());
  };
  struct Release {
    EngineLoop& loop;
    std::shared_ptr<Source> source;
    ~Release() {
      loop.post([kept = source](Engine&) { kept->nodes.reset(); });
    }
  } release{*loop_, source};
  std::vector<KvNode> first = ask(take);
  if (first.empty()) throw Error("nothing is cached yet that could be saved");
  const auto next = [&] { return first.empty() ? ask(take) : std::exchange(first, {}); };
  save_snapshot(path, loaded().kv_identity(), source->layout, next);
}

uint64_t LibraryModel::load_kv(const std::string& path) {
  const KvIdentity identity = loaded().kv_identity();
  return ask([&](Engine& engine) {
    const Engine::Load load = engine.load();
    if (load.running + load.waiting > 0)
      throw Error("{} answers are being computed: a snapshot is loaded while nothing runs",
                  load.running + load.waiting);
    return restore_snapshot(engine.kv(), engine.make_moves(), identity, path).tokens;
  });
}

}  // namespace quire::capi
