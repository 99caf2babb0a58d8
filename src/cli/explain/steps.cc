#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "cli/explain/view.h"
#include "cli/svg_page.h"
#include "explain/passes.h"

namespace quire::cli {
namespace {

constexpr uint32_t kRivals = 4;
constexpr size_t kFedWidth = 28, kDrawnWidth = 14, kIdsWidth = 18;

class StepsView {
 public:
  StepsView(const ExplainInput& input, const PassTrace& trace)
      : spec_(input.model.spec()), tokenizer_(input.model.text().tokenizer), trace_(trace) {}

  std::string table() const;
  OrderedJson json() const;
  std::string svg() const;

 private:
  std::string quoted(std::span<const TokenId> tokens, size_t width) const {
    return "\"" + shortened(token_text(tokenizer_, tokens), width - 2) + "\"";
  }
  // "17 342 … 9"
  static std::string ids(const std::vector<TokenId>& tokens) {
    if (tokens.size() <= 4) return fmt::format("{}", fmt::join(tokens, " "));
    return fmt::format("{} {} … {}", tokens[0], tokens[1], tokens.back());
  }
  std::string draw_text(const Pass& pass) const;
  std::string closing() const;
  size_t rows(const Pass& pass) const { return pass.fed.size() * spec_.layers.size(); }

  // Of all layers.
  size_t heads(const Pass& pass, uint32_t GqaSpec::*which) const {
    size_t sum = 0;
    for (const LayerSpec& layer : spec_.layers) sum += layer.gqa().*which;
    return pass.fed.size() * sum;
  }

  const ModelSpec& spec_;
  const GqaSpec& gqa_ = spec_.layers.front().gqa();  // what is said of a row is said of the first layer's
  const Tokenizer& tokenizer_;
  const PassTrace& trace_;
};

std::string StepsView::draw_text(const Pass& pass) const {
  if (!pass.drawn) return "nothing: the prompt goes on";
  const TokenId token = pass.drawn->token;
  std::string text =
      padded(fmt::format("{} {:.3f}", quoted({&token, 1}, kDrawnWidth), pass.drawn->probability), 21);
  const char* separator = "";
  for (const TokenLogprob& rival : pass.drawn->rivals) {
    const double probability = std::exp(double(rival.logprob));
    if (probability < 0.0005) break;  // would be shown as nothing
    text += fmt::format("{}{} {:.3f}", separator, quoted({&rival.token, 1}, kDrawnWidth), probability);
    separator = ", ";
  }
  return text;
}

std::string StepsView::closing() const {
  const uint32_t prompt = trace_.prompt_tokens, drawn = uint32_t(trace_.answer.size());
  const auto first = std::ranges::find_if(trace_.passes, [](const Pass& p) { return p.drawn.has_value(); });
  return fmt::format(
      "The first token of the answer came from the last row of prefill (pass {}, the row of token {} of {}): "
      "no "
      "pass was needed\nfor it alone. {} drawn tokens leave {} + {} - 1 = {} entries: the last one was drawn "
      "and "
      "never fed.\n",
      first - trace_.passes.begin() + 1, first->entries_after, prompt, drawn, prompt, drawn,
      trace_.entries_left());
}

std::string StepsView::table() const {
  std::string table = fmt::format(
      "{} tokens of prompt; {} layers. A row of Q is {} heads of {} numbers, a row of K {} heads of {}, of V "
      "{} of "
      "{}.\n\n",
      trace_.prompt_tokens, spec_.layers.size(), gqa_.heads, gqa_.key_dim, gqa_.kv_heads, gqa_.key_dim,
      gqa_.kv_heads, gqa_.value_dim);
  table += fmt::format("{:>4}  {} {} {:>20} {:>15}   {} {}\n", "pass", padded("fed", kFedWidth + 7),
                       padded("ids", kIdsWidth), "rows of Q, K, V each", "KV entries", padded("drawn", 20),
                       "rivals");
  for (size_t i = 0; i < trace_.passes.size(); ++i) {
    const Pass& pass = trace_.passes[i];
    const std::string fed = fmt::format("{:>4} × {}", pass.fed.size(), quoted(pass.fed, kFedWidth));
    const std::string id_text = ids(pass.fed);
    table += fmt::format("{:>4}  {} {} {:>20} {:>6} → {:<6}   {}\n", i + 1, padded(fed, kFedWidth + 7),
                         padded(id_text, kIdsWidth),
                         fmt::format("{} x {} = {}", pass.fed.size(), spec_.layers.size(), rows(pass)),
                         pass.entries_before, pass.entries_after, draw_text(pass));
  }
  return table + "\n" + closing();
}

OrderedJson StepsView::json() const {
  const auto token = [&](TokenId id, double probability) {
    return OrderedJson{{"id", id}, {"text", token_text(tokenizer_, {&id, 1})}, {"probability", probability}};
  };
  OrderedJson passes = OrderedJson::array();
  for (const Pass& pass : trace_.passes) {
    OrderedJson row = {{"fed", {{"ids", pass.fed}, {"text", token_text(tokenizer_, pass.fed)}}},
                       {"rows", rows(pass)},
                       {"query_heads_computed", heads(pass, &GqaSpec::heads)},
                       {"key_heads_computed", heads(pass, &GqaSpec::kv_heads)},
                       {"value_heads_computed", heads(pass, &GqaSpec::kv_heads)},
                       {"entries_before", pass.entries_before},
                       {"entries_after", pass.entries_after},
                       {"ms", pass.ms},
                       {"drawn", nullptr}};
    if (pass.drawn) {
      row["drawn"] = token(pass.drawn->token, pass.drawn->probability);
      row["drawn"]["rivals"] = OrderedJson::array();
      for (const TokenLogprob& rival : pass.drawn->rivals)
        row["drawn"]["rivals"].push_back(token(rival.token, std::exp(double(rival.logprob))));
    }
    passes.push_back(row);
  }
  return {{"prompt_tokens", trace_.prompt_tokens},
          {"layers", spec_.layers.size()},
          {"heads", gqa_.heads},
          {"kv_heads", gqa_.kv_heads},
          {"key_dim", gqa_.key_dim},
          {"value_dim", gqa_.value_dim},
          {"passes", passes},
          {"answer_ids", trace_.answer},
          {"entries_left", trace_.entries_left()},
          {"finish_reason", name(trace_.finish_reason)}};
}

// A stair: each pass is a line, each position a place in it.
std::string StepsView::svg() const {
  constexpr double kLeft = 60, kWidth = 620, kTop = 84, kLine = 18;
  constexpr size_t kMostLines = 48;
  const size_t lines = std::min(trace_.passes.size(), kMostLines);
  const double cell = std::min(18.0, kWidth / double(trace_.passes[lines - 1].entries_after + 1));
  SvgPage page(1000, kTop + kLine * double(lines) + 60,
               "What each pass computes, what it finds in the cache, and what it draws");
  double x = page.key(20, 50, "kept", "entries found in the cache");
  x = page.key(x, 50, "prefill", "computed: prompt");
  x = page.key(x, 50, "decode", "computed: answer");
  page.key(x, 50, "drawn", "drawn from the last row, fed in the next pass");
  page.text(kLeft, kTop - 8, "position in the sequence", "quiet");
  page.text(kLeft - 10, kTop - 8, "pass", "quiet", SvgPage::Anchor::end);
  const double gap = cell > 4 ? 1 : 0;
  for (size_t i = 0; i < lines; ++i) {
    const Pass& pass = trace_.passes[i];
    const double y = kTop + kLine * double(i);
    page.text(kLeft - 10, y + 12, fmt::format("{}", i + 1), "quiet", SvgPage::Anchor::end);
    const bool prompt = pass.begin < trace_.prompt_tokens;
    if (pass.entries_before > 0) page.rect(kLeft, y, cell * pass.entries_before - gap, kLine - 3, "kept");
    const uint32_t step = gap > 0 ? 1 : uint32_t(pass.fed.size());  // thin ones are drawn as one
    for (uint32_t p = pass.entries_before; p < pass.entries_after; p += step) {
      page.rect(kLeft + cell * p, y, std::max(0.8, cell * step - gap), kLine - 3,
                prompt ? "prefill" : "decode");
    }
    const double end = kLeft + cell * pass.entries_after;
    std::string note = fmt::format("{} → {} entries", pass.entries_before, pass.entries_after);
    if (pass.drawn) {
      page.rect(end + 1, y + 1, std::max(2.0, cell - 2), kLine - 5, "drawn");
      note += fmt::format(", draws {} ({:.0f} %)", quoted({&pass.drawn->token, 1}, 20),
                          100 * pass.drawn->probability);
    }
    page.text(kLeft + kWidth + 24, y + 12, note);
  }
  const double below = kTop + kLine * double(lines) + 22;
  if (lines < trace_.passes.size())
    page.text(kLeft, below, fmt::format("and {} more passes", trace_.passes.size() - lines), "quiet");
  page.text(kLeft, below + 18,
            fmt::format("{} tokens of prompt and {} drawn ones leave {} + {} - 1 = {} entries",
                        trace_.prompt_tokens, trace_.answer.size(), trace_.prompt_tokens,
                        trace_.answer.size(), trace_.entries_left()));
  return page.done();
}

}  // namespace

Shown show_steps(const ExplainInput& input) {
  Request request = input.request();
  request.ignore_end = false;
  const PassTrace trace = trace_passes(input.model.engine_model(), input.engine, request, kRivals);
  const StepsView view(input, trace);
  return {view.table(), view.json(), view.svg()};
}

}  // namespace quire::cli
