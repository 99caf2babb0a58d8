#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/explain/view.h"
#include "cli/svg_page.h"
#include "explain/kv_rows.h"

namespace quire::cli {
namespace {

std::string changes_table(const RowChanges& changes) {
  std::string table = fmt::format("{:>7} {:>8} {:>15} {:>13} {:>17} {:>13}\n", "layer", "rows",
                                  "K rows changed", "by at most", "V rows changed", "by at most");
  for (uint32_t i = 0; i < changes.layers(); ++i) {
    const RowChanges::Layer layer = changes.layer(i);
    table +=
        fmt::format("{:>7} {:>8} {:>15} {:>11.2f} % {:>17} {:>11.2f} %\n", i, layer.rows, layer.keys_changed,
                    100 * layer.largest_key, layer.values_changed, 100 * layer.largest_value);
  }
  return table;
}

struct Sums {
  uint32_t rows = 0, changed = 0;  // keys and values of all layers
};
Sums sums_of(const RowChanges& changes) {
  Sums sums;
  for (uint32_t i = 0; i < changes.layers(); ++i) {
    const RowChanges::Layer layer = changes.layer(i);
    sums.rows += 2 * layer.rows;
    sums.changed += layer.keys_changed + layer.values_changed;
  }
  return sums;
}

class WhyKvView {
 public:
  WhyKvView(const ExplainInput& input, const CacheProof& proof)
      : tokenizer_(input.model.text().tokenizer),
        proof_(proof),
        tokens_(input.prompt.size()),
        format_(name(*input.engine.kv_formats.only())) {}

  std::string table() const {
    const Sums appended = sums_of(proof_.after_append), changed = sums_of(proof_.after_change);
    std::string table =
        fmt::format("{} tokens of prompt, {} layers, KV in {}; each text is computed anew\n\n", tokens_,
                    proof_.after_append.layers(), format_);
    table += fmt::format("(a) {} is appended: rows of the {} tokens before it, bit for bit\n\n{}\n",
                         quoted(proof_.appended), tokens_, changes_table(proof_.after_append));
    table += fmt::format("(b) the first token {} becomes {}: rows of the {} tokens after it\n\n{}\n",
                         quoted(proof_.replaced), quoted(proof_.replacement), tokens_ - 1,
                         changes_table(proof_.after_change));
    table += fmt::format(
        "(a) {} of {} rows changed: a token sees only what is before it, so what was computed stays right "
        "while "
        "the text grows.\nThat is why there can be a cache.\n",
        appended.changed, appended.rows);
    table += fmt::format(
        "(b) {} of {} rows changed: at layer 0 a row depends on its own token and position alone, deeper on "
        "all "
        "tokens before it.\nThat is why a cache can be shared only from the first token on, as far as the "
        "texts are "
        "the same: as a prefix.\n",
        changed.changed, changed.rows);
    return table;
  }

  OrderedJson json() const {
    const auto token = [&](TokenId id) {
      return OrderedJson{{"id", id}, {"text", token_text(tokenizer_, {&id, 1})}};
    };
    const auto layers = [](const RowChanges& changes) {
      OrderedJson list = OrderedJson::array();
      for (uint32_t i = 0; i < changes.layers(); ++i) {
        const RowChanges::Layer layer = changes.layer(i);
        list.push_back({{"layer", i},
                        {"rows", layer.rows},
                        {"keys_changed", layer.keys_changed},
                        {"values_changed", layer.values_changed},
                        {"largest_key_change", layer.largest_key},
                        {"largest_value_change", layer.largest_value}});
      }
      return list;
    };
    return {{"prompt_tokens", tokens_},
            {"kv_format", format_},
            {"append", {{"token", token(proof_.appended)}, {"layers", layers(proof_.after_append)}}},
            {"change_first",
             {{"from", token(proof_.replaced)},
              {"to", token(proof_.replacement)},
              {"layers", layers(proof_.after_change)}}}};
  }

  std::string svg() const {
    const double panel = 40 + kCell * proof_.after_append.layers();
    SvgPage page(kLeft + kWidth + 40, kTop + 2 * panel + 50,
                 "Which keys and values change when the text does");
    double x = page.key(20, 50, "kept", "the same, bit for bit");
    page.key(x, 50, "changed", "changed; the fuller, the more");
    draw(page, kTop, proof_.after_append, fmt::format("(a) {} is appended", quoted(proof_.appended)));
    draw(page, kTop + panel, proof_.after_change,
         fmt::format("(b) the first token {} becomes {}", quoted(proof_.replaced),
                     quoted(proof_.replacement)));
    page.text(kLeft, kTop + 2 * panel + 10, fmt::format("token 0 to {}", tokens_ - 1), "quiet");
    page.text(
        kLeft, kTop + 2 * panel + 28,
        "A line is a layer: keys above, values below. What comes later changes nothing before it; what comes "
        "first changes all after it but layer 0.",
        "quiet");
    return page.done();
  }

 private:
  static constexpr double kLeft = 70, kWidth = 860, kTop = 90, kCell = 20;

  std::string quoted(TokenId token) const {
    return "\"" + shortened(token_text(tokenizer_, {&token, 1}), 24) + "\"";
  }

  // Many tokens share a place: then the one that changed most is seen.
  void draw(SvgPage& page, double top, const RowChanges& changes, const std::string& title) const {
    page.text(kLeft, top - 8, title);
    const size_t places = std::min<size_t>(tokens_, 215);
    const double width = kWidth / double(places);
    for (uint32_t layer = 0; layer < changes.layers(); ++layer) {
      const double y = top + kCell * layer;
      page.text(kLeft - 10, y + 13, fmt::format("layer {}", layer), "quiet", SvgPage::Anchor::end);
      for (const auto* rows : {&changes.key[layer], &changes.value[layer]}) {
        std::vector<RowChange> most(places);
        for (size_t i = 0; i < rows->size(); ++i) {
          RowChange& place = most[(i + changes.first) * places / tokens_];
          place.changed |= (*rows)[i].changed;
          place.relative = std::max(place.relative, (*rows)[i].relative);
        }
        const double row_y = y + (rows == &changes.key[layer] ? 0 : kCell / 2 - 1);
        const size_t begin = changes.first > 0 && places == tokens_ ? 1 : 0;
        for (size_t p = begin; p < places; ++p) {
          const double gap = width > 5 ? 1 : 0;
          page.rect(kLeft + width * double(p), row_y, width - gap, kCell / 2 - 2,
                    most[p].changed ? "changed" : "kept",
                    most[p].changed ? std::clamp(std::pow(most[p].relative, 0.35), 0.3, 1.0) : 1);
        }
      }
    }
  }

  const Tokenizer& tokenizer_;
  const CacheProof& proof_;
  const size_t tokens_;
  const std::string_view format_;
};

}  // namespace

Shown show_why_kv(const ExplainInput& input) {
  const std::optional<KvFormat> format = input.engine.kv_formats.only();
  if (!format || !is_float(*format))
    wrong_usage("--view why-kv compares rows of floats: --kv f32, f16 or bf16");
  if (input.prompt.size() < 2) throw Error("--view why-kv wants a prompt of two tokens or more");
  const CacheProof proof = prove_cache(input.model.engine_model(), *format, input.prompt);
  if (sums_of(proof.after_append).changed > 0)
    throw Error("appending a token changed rows before it: this is a bug of quire");
  const WhyKvView view(input, proof);
  return {view.table(), view.json(), view.svg()};
}

}  // namespace quire::cli
