#include "eval/needle_cases.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>

#include "base/json.h"

namespace quire {
namespace {

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

std::vector<NeedleCase> cases_of(const ModelText& model, const HouseData& data,
                                 std::span<const size_t> chosen, uint32_t tokens) {
  std::vector<size_t> lengths;
  for (const std::string& paragraph : data.filler)
    lengths.push_back(model.tokenizer.encode("\n\n" + paragraph, {.add_special = false}).size());
  std::vector<NeedleCase> cases;
  for (size_t k = 0; k < chosen.size(); ++k) {
    const HouseData::Needle& needle = data.needles[chosen[k]];
    size_t used = user_prompt(model, needle.sentence + "\n\n" + needle.asked.question).size();
    std::vector<std::string> paragraphs;
    for (size_t i : shuffled(data.filler.size(), uint32_t(k))) {
      if (used + lengths[i] > tokens) continue;
      used += lengths[i];
      paragraphs.push_back(data.filler[i]);
    }
    const size_t depth = chosen.size() > 1 ? k * paragraphs.size() / (chosen.size() - 1) : 0;
    NeedleCase one{.before = {}, .sentence = needle.sentence + "\n\n", .after = {}, .asked = needle.asked};
    for (size_t i = 0; i < paragraphs.size(); ++i)
      (i < depth ? one.before : one.after) += paragraphs[i] + "\n\n";
    cases.push_back(std::move(one));
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
  NeedleSplit split{cases_of(model, data, of_first, tokens), cases_of(model, data, of_second, tokens)};
  for (auto* cases : {&split.first, &split.second})
    std::erase_if(*cases, [&](const NeedleCase& one) { return !fits(one); });
  return split;
}

}  // namespace quire
