#include "cli/kv_curve.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/evaluator_choice.h"
#include "cli/house.h"
#include "cli/progress.h"

namespace quire::cli {
namespace {

std::string policy_name(const KvCurve::Point& point) {
  return point.policy ? std::string(name(*point.policy)) : "all is kept";
}

void print_curve(const KvCurve& curve) {
  fmt::print(
      "of {} facts in prompts of {} tokens and {} questions about short texts that {} with everything kept "
      "answers\n"
      "(asked: {} and {}), those that less answers, where a prompt's question is seen when it is pruned, and "
      "where not\n\n",
      curve.answered.facts, curve.tokens, curve.answered.texts, curve.points.front().format,
      curve.asked.facts, curve.asked.texts);
  fmt::print("{:12} {:18} {:>6} {:>9} {:>7} {:>7} {:>9}\n", "format", "policy", "kept", "question", "facts",
             "texts", "bytes");
  for (const KvCurve::Point& point : curve.points) {
    fmt::print("{:12} {:18} {:>4.0f} % {:>9} {:>7} {:>7} {:>7.1f} %\n", point.format, policy_name(point),
               100 * point.share,
               !point.policy         ? ""
               : point.sees_question ? "seen"
                                     : "not seen",
               point.kept.facts, point.kept.texts, 100 * curve.bytes(point));
  }
}

OrderedJson curve_json(const KvCurve& curve) {
  const auto tally = [](const KvCurve::Tally& t) {
    return OrderedJson{{"facts", t.facts}, {"texts", t.texts}};
  };
  OrderedJson points = OrderedJson::array();
  for (const KvCurve::Point& point : curve.points) {
    points.push_back({{"format", point.format},
                      {"policy", point.policy ? OrderedJson(name(*point.policy)) : OrderedJson()},
                      {"share", point.share},
                      {"question", point.sees_question ? "seen" : "not seen"},
                      {"kept", tally(point.kept)},
                      {"answers", curve.answers(point)},
                      {"bytes", curve.bytes(point)}});
  }
  return {{"tokens", curve.tokens},
          {"asked", tally(curve.asked)},
          {"answered", tally(curve.answered)},
          {"points", std::move(points)}};
}

}  // namespace

void CurveFlags::add_to(CLI::App& command) {
  CLI::App* group = command.add_option_group("--curve");
  group->add_flag(
      "--curve", wanted,
      "measure what is still answered from less of the cache, by policy, format and share, and keep it "
      "beside the model: --kv-keep auto chooses by it");
  group->add_option("--formats", formats, "formats that are compared (default: the usual one and int8)")
      ->delimiter(',');
  group->add_option("--policies", policies, "policies that are compared")
      ->delimiter(',')
      ->capture_default_str();
  group->add_option("--shares", shares, "of a prompt that is kept")->delimiter(',')->capture_default_str();
  group->add_option("--question", question, "prompts are pruned with their question, before it, or both ways")
      ->check(CLI::IsMember({"seen", "not-seen", "both"}))
      ->capture_default_str();
  group->add_option("--cases", cases, "facts, and questions about texts, that are asked")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  group->add_option("--fact-tokens", tokens, "of a prompt that hides a fact")
      ->check(CLI::Range(128u, 1u << 17))
      ->capture_default_str();
  group->add_option("--data", data, "the folder with the questions (default: beside the house model)");
  group->add_flag("--dry", dry, "do not keep it");
}

void CurveFlags::measure(const ModelOptions& model, bool json) const {
  CurveOptions options{
      .formats = formats, .policies = {}, .shares = {}, .tokens = tokens, .facts = cases, .texts = cases};
  if (question != "both") options.questions = {question == "seen"};
  bool asks_heads = false;
  try {
    for (const std::string& policy : policies) {
      options.policies.push_back(pruning_policy_from_name(policy));
      asks_heads |= asks_evaluator(options.policies.back());
    }
    for (const std::string& share : shares) {
      PruningOptions read;
      read_kept(share, read);
      if (read.share == 0) throw Error("--shares wants shares like 50%, not {}", share);
      options.shares.push_back(read.share);
    }
  } catch (const Error& error) {
    wrong_usage("{}", error.what());
  }
  ModelOptions usual = model;
  usual.kv.clear();
  const ModelOptions::Opened opened = usual.open();
  if (formats.empty()) options.formats = {usual.kv, "int8"};
  for (const std::string& format : options.formats) parse_kv_formats(format);
  if (asks_heads) options.evaluator = choose_heads(*opened.model, model.path());
  const HouseData house = read_house_data(data.empty() ? house_path("eval") : data);
  KvCurve curve;
  {
    Progress progress("asking");
    curve = measure_curve(*opened.model, house, options,
                          [&](size_t done, size_t of) { progress.update(done, of); });
  }
  if (json) {
    std::cout << curve_json(curve).dump() << "\n";
  } else {
    print_curve(curve);
  }
  if (dry) return;
  const std::string path = kv_curve_path(model.path());
  write_kv_curve(path, curve, *opened.model);
  if (!json) fmt::print("\nwritten to {}\n", path);
}

KvCurve known_curve(const std::string& model_path) {
  const std::string path = kv_curve_path(model_path);
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    throw Error(
        "nobody has measured yet what this model answers from less of its cache, so --kv-keep auto cannot "
        "choose: quire kv-check --curve does, and writes {}",
        path);
  return read_kv_curve(path, *open_model_file(model_path));
}

KeepChooser make_chooser(const KvCurve& curve, const LoadedModel& model, const std::string& model_path,
                         const std::string& format) {
  const bool asks_heads = std::ranges::any_of(curve.points, [](const KvCurve::Point& point) {
    return point.policy && asks_evaluator(*point.policy);
  });
  return {curve, asks_heads ? choose_heads(model, model_path) : EvaluatorHeads{}, format,
          model.text().tokenizer};
}

}  // namespace quire::cli
