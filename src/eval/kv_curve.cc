#include "eval/kv_curve.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "eval/answers_kept.h"
#include "eval/model_json.h"

namespace quire {
namespace {

const ModelJson kCurveFile{"quire kv-curve 1", "what is kept by how much of the KV cache",
                           "quire kv-check --curve"};

struct AskedCase {
  NeedleCase asked;
  bool is_fact = true;
};

std::vector<AskedCase> curve_cases(const LoadedModel& model, const HouseData& data,
                                   const CurveOptions& options, uint32_t tokens) {
  std::vector<AskedCase> cases;
  for (NeedleCase& one :
       needle_cases(model.text(), data, std::min<size_t>(options.facts, data.needles.size()), tokens))
    cases.push_back({std::move(one), true});
  std::vector<NeedleCase> texts;
  for (const HouseData::Reading& reading : data.readings) {
    for (const HouseData::Question& question : reading.questions)
      texts.push_back({.before = reading.text, .sentence = "\n\n", .after = {}, .asked = question});
  }
  for (const size_t i : spread(texts.size(), std::min<size_t>(options.texts, texts.size())))
    cases.push_back({texts[i], false});
  std::erase_if(cases, [&](const AskedCase& one) {
    return user_prompt(model.text(), one.asked.text() + one.asked.asked.question).size() > tokens;
  });
  if (cases.empty())
    throw Error("a context of {} tokens has no room for the questions", model.spec().context);
  return cases;
}

std::vector<KvCurve::Point> points_of(const CurveOptions& options, const std::string& format,
                                      double bytes_per_token) {
  std::vector<KvCurve::Point> points = {{.format = format, .bytes_per_token = bytes_per_token}};
  for (const bool sees_question : options.questions) {
    for (const PruningPolicy policy : options.policies) {
      for (const double share : options.shares)
        points.push_back({.format = format,
                          .policy = policy,
                          .share = share,
                          .sees_question = sees_question,
                          .bytes_per_token = bytes_per_token * share});
    }
  }
  return points;
}

PruningWay way_of(const KvCurve::Point& point, const EvaluatorHeads& heads) {
  if (!point.policy) return {};
  return {.pruning = PruningOptions{.policy = *point.policy,
                                    .share = point.share,
                                    .window = usual_window(*point.policy),
                                    .evaluator = heads},
          .sees_question = point.sees_question};
}

void count(KvCurve::Tally& tally, bool is_fact) {
  ++(is_fact ? tally.facts : tally.texts);
}

Json json_of(const KvCurve::Tally& tally) {
  return {{"facts", tally.facts}, {"texts", tally.texts}};
}

KvCurve::Tally tally_of(const Json& object) {
  return {whole_number(object, "facts"), whole_number(object, "texts")};
}

}  // namespace

double KvCurve::answers(const Point& point) const {
  return answered.all() == 0 ? 0 : double(point.kept.all()) / answered.all();
}

double KvCurve::bytes(const Point& point) const {
  return point.bytes_per_token / points.front().bytes_per_token;
}

const KvCurve::Point* KvCurve::smallest(double target, bool sees_question, const std::string& format) const {
  const Point* best = nullptr;
  for (const Point& point : points) {
    if (!format.empty() && point.format != format) continue;
    if (point.policy && point.sees_question != sees_question) continue;
    // Each kind of question is to be kept by itself: the one is no excuse for the other.
    const bool keeps =
        point.kept.facts >= target * answered.facts && point.kept.texts >= target * answered.texts;
    if (keeps && (best == nullptr || point.bytes_per_token < best->bytes_per_token)) best = &point;
  }
  return best;
}

KvCurve measure_curve(const LoadedModel& model, const HouseData& data, const CurveOptions& options,
                      const std::function<void(size_t done, size_t of)>& progress) {
  CHECK(!options.formats.empty());
  const uint32_t tokens = std::min(options.tokens, model.spec().context / 4 * 3);
  const std::vector<AskedCase> cases = curve_cases(model, data, options, tokens);
  KvCurve curve{.tokens = tokens};
  std::vector<const AskedCase*> known;
  const size_t work = cases.size() * options.formats.size();
  size_t done = 0;
  for (const std::string& format : options.formats) {
    const KvFormats formats = KvFormats::parse(format);
    AnswersKept kept(model, formats, tokens);
    std::vector<KvCurve::Point> points = points_of(
        options, format, double(make_kv_layout(kv_shapes(model.spec(), formats)).bytes_per_token()));
    std::vector<PruningWay> ways;
    for (const KvCurve::Point& point : points) ways.push_back(way_of(point, options.evaluator));
    const bool is_first = curve.points.empty();
    for (const AskedCase& one : cases) {
      if (progress) progress(++done, work);
      if (is_first) {
        count(curve.asked, one.is_fact);
        if (!kept.ask(one.asked)) continue;
        count(curve.answered, one.is_fact);
        known.push_back(&one);
      } else if (std::ranges::find(known, &one) == known.end()) {
        continue;
      }
      const std::vector<bool> right = kept.ask(one.asked, ways);
      for (size_t i = 0; i < points.size(); ++i) {
        if (right[i]) count(points[i].kept, one.is_fact);
      }
    }
    std::ranges::move(points, std::back_inserter(curve.points));
  }
  return curve;
}

std::string kv_curve_path(const std::string& model_path) {
  return beside_model(model_path, "kv-curve");
}

void write_kv_curve(const std::string& path, const KvCurve& curve, const LoadedModel& model) {
  Json points = Json::array();
  for (const KvCurve::Point& point : curve.points) {
    points.push_back({{"format", point.format},
                      {"policy", point.policy ? name(*point.policy) : "all"},
                      {"share", point.share},
                      {"sees_question", point.sees_question},
                      {"kept", json_of(point.kept)},
                      {"bytes_per_token", point.bytes_per_token}});
  }
  write_model_json(path, kCurveFile,
                   {{"tokens", curve.tokens},
                    {"asked", json_of(curve.asked)},
                    {"answered", json_of(curve.answered)},
                    {"points", std::move(points)}},
                   model);
}

KvCurve read_kv_curve(const std::string& path, const ModelFile& model) {
  const Json object = read_model_json(path, kCurveFile, model);
  try {
    KvCurve curve{.tokens = whole_number(object, "tokens"),
                  .asked = tally_of(object.at("asked")),
                  .answered = tally_of(object.at("answered")),
                  .points = {}};
    for (const Json& point : object.at("points")) {
      KvCurve::Point& added = curve.points.emplace_back();
      added = {.format = point.at("format"),
               .share = point.at("share"),
               .sees_question = point.at("sees_question"),
               .kept = tally_of(point.at("kept")),
               .bytes_per_token = point.at("bytes_per_token")};
      if (point.at("policy") != "all")
        added.policy = pruning_policy_from_name(point.at("policy").get<std::string>());
      if (!(added.share > 0 && added.share <= 1) || !(added.bytes_per_token > 0))
        throw Error("a point has no size");
    }
    if (curve.points.empty()) throw Error("it has no points");
    return curve;
  } catch (const std::exception& problem) {
    throw Error("{} does not say {} ({}): remove it, or \"{}\" writes it anew", path, kCurveFile.says,
                problem.what(), kCurveFile.command);
  }
}

}  // namespace quire
