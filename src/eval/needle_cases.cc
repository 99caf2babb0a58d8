#include "eval/needle_cases.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>

#include "base/json.h"

namespace quire {
namespace {

constexpr size_t kFactsOfAText = 4;  // where many are asked: what is computed of a text serves all of them

std::vector<size_t> shuffled(size_t n, uint32_t seed) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t(0));
  std::mt19937 random(seed);
  for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace

std::vector<size_t> spread(size_t n, size_t count) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(i * n / count);
  return chosen;
}

std::vector<TokenId> user_prompt(const ModelText& model, const std::string& text) {
  if (!model.chat_template) return model.tokenizer.encode(text);
  ChatInput chat;
  chat.messages = OrderedJson::array({{{"role", "user"}, {"content", text}}});
  return model.encode_chat(chat);
}

namespace {

// Texts of about `tokens` tokens, each of which states some of the needles: one after the other, `together` at a time.
std::vector<NeedleCase> cases_of(const ModelText& model, const HouseData& data,
                                 std::span<const size_t> chosen, uint32_t tokens, size_t together = 1) {
  std::vector<size_t> lengths;
  for (const std::string& paragraph : data.filler)
    lengths.push_back(model.tokenizer.encode("\n\n" + paragraph, {.add_special = false}).size());
  const size_t texts = (chosen.size() + together - 1) / together;
  std::vector<NeedleCase> cases;
  for (size_t text = 0; text < texts; ++text) {
    const auto stated = chosen.subspan(text * together, std::min(together, chosen.size() - text * together));
    size_t used = 0;
    for (const size_t i : stated) {
      const HouseData::Needle& needle = data.needles[i];
      used += user_prompt(model, needle.sentence + "\n\n" + needle.asked.question).size();
    }
    std::vector<std::string> parts;
    for (size_t i : shuffled(data.filler.size(), uint32_t(text))) {
      if (used + lengths[i] > tokens) continue;
      used += lengths[i];
      parts.push_back(data.filler[i]);
    }
    // Facts of the first texts are early, of the last late; those of one text are spread over it.
    const size_t paragraphs = parts.size();
    for (size_t k = stated.size(); k-- > 0;) {
      const size_t rank = k * texts + text;
      const size_t depth =
          chosen.size() > 1 ? std::min(rank * paragraphs / (chosen.size() - 1), paragraphs) : 0;
      parts.insert(parts.begin() + ptrdiff_t(depth), data.needles[stated[k]].sentence);
    }
    for (const size_t i : stated) {
      const HouseData::Needle& needle = data.needles[i];
      NeedleCase one{.before = {}, .sentence = needle.sentence + "\n\n", .after = {}, .asked = needle.asked};
      bool is_before = true;
      for (const std::string& part : parts) {
        if (is_before && part == needle.sentence) {
          is_before = false;
        } else {
          (is_before ? one.before : one.after) += part + "\n\n";
        }
      }
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

}  // namespace

std::vector<NeedleCase> needle_cases(const ModelText& model, const HouseData& data, size_t count,
                                     uint32_t tokens) {
  return cases_of(model, data, spread(data.needles.size(), count), tokens);
}

NeedleSplit split_needle_cases(const ModelText& model, const HouseData& data, size_t first, size_t second,
                               uint32_t tokens) {
  const size_t all = data.needles.size();
  const auto fits = [&](const NeedleCase& one) {
    return user_prompt(model, one.text() + one.asked.question).size() <= tokens;
  };
  std::vector<size_t> of_first = spread(all, std::min(first, all)), others, of_second;
  for (size_t i = 0; i < all; ++i) {
    if (!std::ranges::binary_search(of_first, i)) others.push_back(i);
  }
  for (const size_t i : spread(others.size(), std::min(second, others.size())))
    of_second.push_back(others[i]);
  NeedleSplit split{cases_of(model, data, of_first, tokens, kFactsOfAText),
                    cases_of(model, data, of_second, tokens, kFactsOfAText)};
  for (auto* cases : {&split.first, &split.second})
    std::erase_if(*cases, [&](const NeedleCase& one) { return !fits(one); });
  return split;
}

}  // namespace quire
