#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/pruning/pruning_options.h"
#include "eval/house_data.h"

namespace quire {

struct CurveOptions {
  std::vector<std::string>
      formats;  // as --kv names them; what the first gives when all is kept counts as what the model knows
  std::vector<PruningPolicy> policies;
  std::vector<double> shares;
  std::vector<bool> questions = {true, false};  // prompts are pruned with their question, or before it
  uint32_t tokens = 1024;                       // of a prompt that hides a fact
  uint32_t facts = 50, texts = 50;              // that are asked for, and questions about short texts
  EvaluatorHeads evaluator = {};
};

// What a model still answers from less of its KV cache: policies, formats and shares, measured on the same questions.
struct KvCurve {
  struct Tally {
    uint32_t facts = 0, texts = 0;
    uint32_t all() const { return facts + texts; }
  };
  struct Point {
    std::string format;
    std::optional<PruningPolicy> policy = {};  // nothing: all is kept
    double share = 1;                          // of a prompt that is kept
    bool sees_question = true;
    Tally kept = {};             // right answers, of the answered
    double bytes_per_token = 0;  // of the prompt
  };
  uint32_t tokens = 0;
  Tally asked = {}, answered = {};  // by all of the cache in the first format
  std::vector<Point> points = {};

  // The share of the answers that a point keeps, and of the bytes: of the first format with everything kept.
  double answers(const Point& point) const;
  double bytes(const Point& point) const;
  // The smallest point that keeps so many of the answers; of these formats only, unless there are none. `sees_question`: a prompt's
  // question is at its end. Nothing if no point does.
  const Point* smallest(double target, bool sees_question, const std::string& format = "") const;
};

// `progress` is told how many questions of all formats are done.
KvCurve measure_curve(const LoadedModel& model, const HouseData& data, const CurveOptions& options,
                      const std::function<void(size_t done, size_t of)>& progress = {});

std::string kv_curve_path(const std::string& model_path);
void write_kv_curve(const std::string& path, const KvCurve& curve, const LoadedModel& model);
// Throws Error, a sentence, if there is none, or it is another model's or damaged.
KvCurve read_kv_curve(const std::string& path, const ModelFile& model);

}  // namespace quire
