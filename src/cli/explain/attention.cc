#include "explain/attention.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "base/error.h"
#include "cli/explain/view.h"
#include "cli/svg_page.h"

namespace quire::cli {
namespace {

constexpr uint32_t kMostAttended = 2048;  // there is a share for every pair of them
constexpr uint32_t kMostColumns = 32;     // of a picture: more tokens are taken together
constexpr size_t kMostLines = 32;         // of prefill, and as many of decode
constexpr size_t kLabelWidth = 16;

constexpr const char* kShades[] = {"·", "░", "▒", "▓", "█"};
constexpr float kShadeEnds[] = {0.02f, 0.1f, 0.3f, 0.6f};
const char* shade(float share) {
  return kShades[std::ranges::upper_bound(kShadeEnds, share) - std::begin(kShadeEnds)];
}

// One line of the picture: a token, or some of one pass whose shares are averaged.
struct Line {
  std::span<const AttentionRow> rows;
  const AttentionPass* pass = nullptr;
  std::vector<float> cells;     // the share of each column
  uint32_t first = 0, end = 0;  // columns that it sees
  uint32_t fresh = 0;           // the first of them whose keys this pass computed

  const AttentionRow& last() const { return rows.back(); }
  // Keys that its last token reads from the cache.
  uint32_t from_cache() const { return std::max(last().first, pass->begin) - last().first; }
  uint32_t computed() const { return last().position + 1 - last().first - from_cache(); }
};

class AttentionView {
 public:
  AttentionView(const ExplainInput& input, const AttentionTrace& trace)
      : spec_(input.model.spec()),
        tokenizer_(input.model.text().tokenizer),
        trace_(trace),
        step_(uint32_t((trace.tokens.size() + kMostColumns - 1) / kMostColumns)),
        columns_(uint32_t((trace.tokens.size() + step_ - 1) / step_)) {
    std::span<const AttentionRow> rows = trace.rows;
    while (!rows.empty()) {
      size_t count = 1;
      while (count < rows.size() && rows[count].pass == rows[0].pass &&
             rows[count].position / step_ == rows[0].position / step_)
        ++count;
      Line line = line_of(rows.first(count));
      (line.pass->begin < trace.prompt_tokens ? prefill_ : decode_).push_back(std::move(line));
      rows = rows.subspan(count);
    }
  }

  std::string table() const;
  OrderedJson json() const;
  std::string svg() const;

 private:
  Line line_of(std::span<const AttentionRow> rows) const;
  std::string heading() const;
  std::string ruler() const;
  std::string line_text(const Line& line) const;
  std::string most_text(const Line& line) const;
  std::string counts(const char* phase, const std::vector<Line>& lines) const;
  std::string label(const Line& line, size_t width) const {
    const auto tokens = std::span(trace_.tokens).subspan(line.rows.front().position, line.rows.size());
    return "\"" + shortened(token_text(tokenizer_, tokens), width - 2) + "\"";
  }
  void draw(SvgPage& page, const std::vector<Line>& lines, double cell, double left, double& y) const;

  const ModelSpec& spec_;
  const Tokenizer& tokenizer_;
  const AttentionTrace& trace_;
  const uint32_t step_;  // tokens of a column
  const uint32_t columns_;
  std::vector<Line> prefill_, decode_;
};

Line AttentionView::line_of(std::span<const AttentionRow> rows) const {
  Line line;
  line.rows = rows;
  line.pass = &trace_.passes[rows[0].pass];
  line.cells.resize(columns_);
  for (const AttentionRow& row : rows) {
    for (uint32_t p = row.first; p <= row.position; ++p)
      line.cells[p / step_] += row.shares[p] / float(rows.size());
  }
  line.first = rows.front().first / step_;
  line.end = rows.back().position / step_ + 1;
  line.fresh = std::max(line.first, line.pass->begin / step_);  // a column with both counts as computed
  return line;
}

std::string AttentionView::heading() const {
  std::string text =
      fmt::format("Layer {} of {}, query head {} of {}, counted from 0. It reads KV head {} of {}, ",
                  trace_.layer, spec_.layers.size(), trace_.head, spec_.layers[trace_.layer].gqa().heads,
                  trace_.kv_head, spec_.layers[trace_.layer].gqa().kv_heads);
  text += trace_.sharing.size() > 1
              ? fmt::format("which query heads {} share.", fmt::join(trace_.sharing, ", "))
              : "which no other head reads.";
  if (trace_.window > 0) text += fmt::format(" The layer sees a window of {} tokens.", trace_.window);
  return text;
}

// The position of every fifth column, above its shade.
std::string AttentionView::ruler() const {
  std::string ruler(2 * columns_ + 1, ' ');
  for (uint32_t c = 0; c < columns_; c += 5) {
    const std::string number = fmt::format("{}", c * step_);
    if (2 * c + 1 + number.size() <= ruler.size()) ruler.replace(2 * c + 1, number.size(), number);
  }
  return ruler;
}

std::string AttentionView::most_text(const Line& line) const {
  if (line.rows.size() > 1) return "";
  const std::vector<float>& shares = line.last().shares;
  const size_t at = size_t(std::ranges::max_element(shares) - shares.begin());
  return fmt::format("{:.2f} {} \"{}\"", shares[at], at,
                     shortened(token_text(tokenizer_, std::span(trace_.tokens).subspan(at, 1)), 14));
}

std::string AttentionView::line_text(const Line& line) const {
  std::string cells;
  for (uint32_t c = 0; c < line.end; ++c) {
    cells += c == line.fresh && line.fresh > line.first ? "│" : " ";
    cells += c < line.first ? " " : shade(line.cells[c]);
  }
  return fmt::format("{:>4} {:>5}  {} {} {:>6} {:>8}  {}\n", line.last().pass + 1, line.last().position,
                     padded(label(line, kLabelWidth), kLabelWidth), padded(cells, 2 * columns_ + 1),
                     line.from_cache(), line.computed(), most_text(line));
}

// "prefill: 2 passes computed 14 rows of Q, K and V and read 7 rows of K and V from the cache: 105 pairs ..."
std::string AttentionView::counts(const char* phase, const std::vector<Line>& lines) const {
  AttentionPass sum;
  uint32_t passes = 0;
  for (const Line& line : lines) {
    if (line.rows.front().position != line.pass->begin) continue;  // each pass once
    ++passes;
    sum.tokens += line.pass->tokens;
    sum.cached_rows += line.pass->cached_rows;
    sum.computed_pairs += line.pass->computed_pairs;
    sum.cached_pairs += line.pass->cached_pairs;
  }
  return fmt::format(
      "{}: {} {} computed {} {} of Q, K and V and read {} rows of K and V from the cache: {} pairs of query "
      "and key, {} with\na key just computed and {} with one from the cache.\n",
      phase, passes, passes == 1 ? "pass" : "passes", sum.tokens, sum.tokens == 1 ? "row" : "rows",
      sum.cached_rows, exact_count(double(sum.computed_pairs + sum.cached_pairs)),
      exact_count(double(sum.computed_pairs)), exact_count(double(sum.cached_pairs)));
}

std::string AttentionView::table() const {
  std::string table = fmt::format("{} tokens of prompt, {} of answer.\n{}\n", trace_.prompt_tokens,
                                  trace_.answer.size(), heading());
  if (trace_.cached > 0)
    table += fmt::format(
        "The first {} tokens come from the cache: nothing of theirs is computed, and they have no line.\n",
        trace_.cached);
  if (step_ > 1)
    table += fmt::format(
        "A column is {} tokens, whose shares are added; a line of prefill as many, whose shares are "
        "averaged.\n",
        step_);
  table += fmt::format("\n{:>4} {:>5}  {} {} {:>6} {:>8}  {}\n", "pass", "token", padded("", kLabelWidth),
                       ruler(), "cached", "computed", "most");
  for (const std::vector<Line>* lines : {&prefill_, &decode_}) {
    for (size_t i = 0; i < std::min(lines->size(), kMostLines); ++i) table += line_text((*lines)[i]);
    if (lines->size() > kMostLines)
      table += fmt::format("{:>12} and {} more lines\n", "", lines->size() - kMostLines);
    if (lines == &prefill_) table += "\n";
  }
  table += "\nshares: ";
  for (size_t i = 0; i < std::size(kShadeEnds); ++i)
    table += fmt::format("{} below {}, ", kShades[i], kShadeEnds[i]);
  table += fmt::format("{} above. Left of │: keys from the cache; right of it: of this pass.\n", kShades[4]);
  table += trace_.sinks ? "A line sums to less than 1: the head's sink takes the rest.\n"
                        : "A line sums to 1, and nothing is right of its own token.\n";
  return table + counts("prefill", prefill_) + counts("decode", decode_);
}

OrderedJson AttentionView::json() const {
  OrderedJson tokens = OrderedJson::array(), passes = OrderedJson::array(), rows = OrderedJson::array();
  for (const TokenId& token : trace_.tokens)
    tokens.push_back({{"id", token}, {"text", token_text(tokenizer_, {&token, 1})}});
  for (const AttentionPass& pass : trace_.passes) {
    passes.push_back({{"phase", pass.begin < trace_.prompt_tokens ? "prefill" : "decode"},
                      {"begin", pass.begin},
                      {"rows_computed", pass.tokens},
                      {"rows_from_cache", pass.cached_rows},
                      {"pairs_computed", pass.computed_pairs},
                      {"pairs_from_cache", pass.cached_pairs}});
  }
  for (const AttentionRow& row : trace_.rows)
    rows.push_back(
        {{"position", row.position}, {"pass", row.pass + 1}, {"sum", row.sum()}, {"shares", row.shares}});
  return {{"layer", trace_.layer},
          {"head", trace_.head},
          {"kv_head", trace_.kv_head},
          {"heads_sharing", trace_.sharing},
          {"window", trace_.window},
          {"sinks", trace_.sinks},
          {"prompt_tokens", trace_.prompt_tokens},
          {"cached_tokens", trace_.cached},
          {"tokens", tokens},
          {"answer_ids", trace_.answer},
          {"passes", passes},
          {"rows", rows}};
}

void AttentionView::draw(SvgPage& page, const std::vector<Line>& lines, double cell, double left,
                         double& y) const {
  const size_t shown = std::min(lines.size(), kMostLines);
  for (size_t i = 0; i < shown; ++i, y += cell) {
    const Line& line = lines[i];
    page.text(left - 8, y + cell * 0.72, label(line, 20), "", SvgPage::Anchor::end);
    page.rect(left + cell * line.first, y, cell * (line.end - line.first), cell - 1, "wait", 0.4);
    for (uint32_t c = line.first; c < line.end; ++c) {
      // Small shares are most of them, and the eye is no ruler: the root makes them visible.
      const double ink = std::sqrt(std::clamp(double(line.cells[c]), 0.0, 1.0));
      if (ink >= 0.05)
        page.rect(left + cell * c, y, cell - 1, cell - 1, c < line.fresh ? "decode" : "prefill", ink);
    }
    page.text(left + cell * columns_ + 14, y + cell * 0.72,
              fmt::format("pass {}: {} from the cache, {} computed", line.last().pass + 1, line.from_cache(),
                          line.computed()),
              "quiet");
  }
  if (shown == lines.size()) return;
  page.text(left, y + 14, fmt::format("and {} more lines", lines.size() - shown), "quiet");
  y += 22;
}

std::string AttentionView::svg() const {
  constexpr double kLeft = 170, kTop = 106;
  const double cell = std::clamp(560.0 / columns_, 16.0, 22.0);
  const auto height = [&](const std::vector<Line>& lines) {
    return cell * double(std::min(lines.size(), kMostLines)) + (lines.size() > kMostLines ? 22 : 0);
  };
  SvgPage page(std::max(kLeft + cell * columns_ + 290, 800.0), kTop + height(prefill_) + height(decode_) + 60,
               fmt::format("Where each token looks: layer {}, head {}", trace_.layer, trace_.head));
  page.text(20, 46, heading(), "quiet");
  const double x = page.key(20, 70, "prefill", "share of a key that this pass computed");
  page.key(x, 70, "decode", "share of a key from the cache");
  for (uint32_t c = 0; c < columns_; c += 5)
    page.text(kLeft + cell * (c + 0.5), kTop - 8, fmt::format("{}", c * step_), "quiet",
              SvgPage::Anchor::middle);
  double y = kTop;
  draw(page, prefill_, cell, kLeft, y);
  y += 8;
  page.line(20, y, kLeft + cell * columns_ + 250, y, "grid");
  y += 8;
  draw(page, decode_, cell, kLeft, y);
  page.text(20, y + 26,
            step_ > 1
                ? fmt::format(
                      "A column is {} tokens. Above the line prefill, below it a pass for each token.", step_)
                : "Above the line prefill, below it a pass for each token of the answer that was fed.",
            "quiet");
  return page.done();
}

}  // namespace

Shown show_attention(const ExplainInput& input) {
  const ModelSpec& spec = input.model.spec();
  const AttentionChoice& choice = input.options.attention;
  if (choice.layer >= spec.layers.size())
    wrong_usage("there is no layer {}: the model has {}, counted from 0", choice.layer, spec.layers.size());
  const uint32_t heads = spec.layers[choice.layer].gqa().heads;
  if (choice.head >= heads)
    wrong_usage("there is no head {}: a layer has {}, counted from 0", choice.head, heads);
  if (choice.cached >= input.prompt.size())
    wrong_usage("--cached {} of {} tokens of prompt: at least the last one is always computed", choice.cached,
                input.prompt.size());
  if (input.prompt.size() + input.generated > kMostAttended)
    throw Error("the view of attention has a share for every pair of tokens: at most {} of them",
                kMostAttended);
  Request request = input.request();
  request.ignore_end = false;
  const AttentionTrace trace = trace_attention(input.model.engine_model(), input.engine, request, choice);
  const AttentionView view(input, trace);
  return {view.table(), view.json(), view.svg()};
}

}  // namespace quire::cli
