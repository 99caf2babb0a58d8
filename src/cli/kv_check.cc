#include <fstream>
#include <iostream>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/kv_check_svg.h"
#include "cli/kv_choice.h"
#include "cli/kv_curve.h"
#include "cli/model_name.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "eval/kv_verdicts.h"

namespace quire::cli {
namespace {

struct KvCheckCommand {
  ModelOptions model;
  CurveFlags curve;
  std::string file;
  std::string svg;
  bool json = false;
  bool remember = false;

  std::string text() const { return file.empty() ? kv_check_text() : read_text(file); }

  void operator()() const {
    if (curve.wanted) return curve.measure(model, json);
    if (remember) check_may_write_beside(model.path());
    ModelOptions windowed = model;
    if (!windowed.context) windowed.context = kDefaultWindow;
    const KvFormats formats = parse_kv_formats(model.kv);
    ModelOptions::Opened opened = windowed.open();
    const LoadedModel& loaded = *opened.model;
    std::vector<TokenId> tokens = loaded.text().tokenizer.encode(text());
    if (tokens.size() < 2) throw Error("the text has {} tokens: too few to compare", tokens.size());
    if (tokens.size() > most_tokens) tokens.resize(most_tokens);
    const KvMeterOptions options{.kv_formats = formats, .window = opened.engine.context};
    KvMeterResult result;
    {
      Progress progress("comparing");
      result = measure_kv(loaded.engine_model(), tokens, options,
                          [&](size_t done) { progress.update(done, tokens.size()); });
    }
    if (!svg.empty()) {
      std::ofstream out(svg, std::ios::binary);
      out << kv_check_svg(result, loaded.spec().name, model.kv);
      if (!out) throw Error("cannot write {}", svg);
    }
    if (remember) {
      const std::string path = KvVerdicts::path_of(model.path());
      KvVerdicts verdicts = KvVerdicts::read(path);
      verdicts.add(model.kv, result);
      verdicts.write(path);
    }
    if (json) {
      std::cout << to_json(result).dump() << "\n";
    } else {
      print(result, loaded.spec().name);
    }
  }

  void print(const KvMeterResult& r, const std::string& name) const {
    fmt::print("{}: KV {} beside f16, {} tokens in windows of {}\n\n", name, model.kv, r.tokens,
               r.spans.back().end);
    fmt::print("{:24}{:>12}{:>12}\n", "", "f16", model.kv);
    fmt::print("{:24}{:>12}{:>12}\n", "bytes per token", r.base_bytes_per_token, r.bytes_per_token);
    fmt::print("{:24}{:>12.4f}{:>12.4f}   {:+.3f} %\n", "perplexity", r.all.perplexity_base(),
               r.all.perplexity(), 100 * r.loss());
    if (r.step_ms > 0) {
      fmt::print("{:24}{:>9.2f} ms{:>9.2f} ms   at {} tokens\n", "a step of decode", r.base_step_ms,
                 r.step_ms, r.spans.back().end);
    }
    fmt::print("{:24}{:>24.5f}   nats, mean; 99th percentile {:.4f}; noise of the kernels {:.5f}\n",
               "divergence", r.divergence_mean, r.divergence_p99, r.noise_divergence);
    fmt::print("{:24}{:>22.2f} %   of places; noise of the kernels {:.2f} %\n\n", "same likeliest token",
               100 * r.agreement, 100 * r.noise_agreement);
    fmt::print("{:>15}{:>12}{:>12}{:>12}{:>14}\n", "tokens", "f16", model.kv, "change", "same token");
    for (const KvMeterResult::Span& span : r.spans) {
      if (span.tokens == 0) continue;
      fmt::print("{:>7} - {:<5}{:>12.3f}{:>12.3f}{:>+10.2f} %{:>12.1f} %\n", span.begin, span.end,
                 span.perplexity_base(), span.perplexity(),
                 100 * (span.perplexity() / span.perplexity_base() - 1),
                 100 * double(span.agreed) / double(span.tokens));
    }
    fmt::print("\n{}\n", r.sentence());
  }

  OrderedJson to_json(const KvMeterResult& r) const {
    OrderedJson spans = OrderedJson::array();
    for (const KvMeterResult::Span& span : r.spans) {
      if (span.tokens == 0) continue;
      spans.push_back({{"begin", span.begin},
                       {"end", span.end},
                       {"perplexity_f16", span.perplexity_base()},
                       {"perplexity", span.perplexity()},
                       {"agreement", double(span.agreed) / double(span.tokens)}});
    }
    return {{"format", model.kv},
            {"tokens", r.tokens},
            {"bytes_per_token_f16", r.base_bytes_per_token},
            {"bytes_per_token", r.bytes_per_token},
            {"perplexity_f16", r.all.perplexity_base()},
            {"perplexity", r.all.perplexity()},
            {"divergence_mean", r.divergence_mean},
            {"divergence_p99", r.divergence_p99},
            {"agreement", r.agreement},
            {"noise_divergence", r.noise_divergence},
            {"noise_agreement", r.noise_agreement},
            {"step_ms_f16", r.base_step_ms},
            {"step_ms", r.step_ms},
            {"by_position", std::move(spans)},
            {"verdict", name(r.verdict())},
            {"sentence", r.sentence()}};
  }

  static constexpr uint32_t kDefaultWindow = 2048;
  uint32_t most_tokens = 8192;
};

}  // namespace

void add_kv_check(CLI::App& app) {
  auto command = std::make_shared<KvCheckCommand>();
  command->model.kv = "int8";
  CLI::App* check = app.add_subcommand("kv-check", "what a KV format costs on a text, beside 16 bit");
  command->model.add_to(*check);
  check->add_option("file", command->file, "the text, or - for stdin (default: stories of the house)");
  check->add_option("--tokens", command->most_tokens, "most tokens of the text that are read")
      ->capture_default_str()
      ->check(CLI::Range(2u, 1u << 24));
  command->curve.add_to(*check);
  check->add_flag("--json", command->json, "print one JSON object");
  check->add_flag(
      "--remember", command->remember,
      "keep the verdict beside the model: serve refuses a format that breaks it, --kv auto need not measure");
  check->add_option("--svg", command->svg, "draw perplexity by position into this file");
  check->callback([command] { (*command)(); });
}

}  // namespace quire::cli
