#include "cli/kv_choice.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/house.h"
#include "cli/model_name.h"
#include "cli/model_options.h"
#include "cli/tell.h"
#include "eval/house_data.h"
#include "eval/kv_verdicts.h"

namespace quire::cli {
namespace {

// By bytes, the smallest first.
constexpr const char* kCandidates[] = {"q4", "k=int8,v=q4", "int8"};
constexpr size_t kTokens = 1024;  // of the text: enough to tell harm from noise

bool is_harmless(KvMeterResult::Verdict verdict) {
  return verdict == KvMeterResult::Verdict::same || verdict == KvMeterResult::Verdict::small;
}

}  // namespace

std::string kv_check_text() {
  std::string text;
  const HouseData data = read_house_data(house_path("eval"));
  for (const HouseData::Reading& reading : data.readings) {
    if (reading.set == "new") text += reading.text + "\n\n";
  }
  for (const std::string& story : data.stories) text += story + "\n\n";
  return text;
}

std::string choose_kv(const std::string& model_path, const LoadOptions& load) {
  const std::string path = KvVerdicts::path_of(model_path);
  KvVerdicts verdicts = KvVerdicts::read(path);
  std::unique_ptr<LoadedModel> model;
  std::vector<TokenId> tokens;
  std::string chosen = usual_kv(*open_backend(load.choice()));
  for (const char* format : kCandidates) {
    if (!verdicts.find(format)) {
      if (!model) {
        tell(fmt::format("--kv auto: measuring on {} tokens, once", kTokens));
        model = std::make_unique<LoadedModel>(model_path, load);
        tokens = model->text().tokenizer.encode(kv_check_text());
        tokens.resize(std::min(tokens.size(), kTokens));
      }
      const KvMeterOptions options{.kv_formats = parse_kv_formats(format),
                                   .window = std::min<uint32_t>(kTokens, model->spec().context),
                                   .speed_steps = 0};
      verdicts.add(format, measure_kv(model->engine_model(), tokens, options));
    }
    if (is_harmless(verdicts.find(format)->verdict)) {
      chosen = format;
      break;
    }
  }
  if (model) {
    try {
      check_may_write_beside(model_path);
      verdicts.write(path);
    } catch (const Error& error) {
      tell(fmt::format("--kv auto will be measured again next time: {}", error.what()));
    }
  }
  tell("--kv auto: " + chosen);
  return chosen;
}

KvWarning kv_warning(const std::string& model_path, const std::string& format) {
  const auto found = KvVerdicts::read(KvVerdicts::path_of(model_path)).find(format);
  if (!found || is_harmless(found->verdict)) return {};
  const bool broken = found->verdict == KvMeterResult::Verdict::broken;
  return {fmt::format("--kv {} {} this model: perplexity {:+.1f} % (quire kv-check)", format,
                      broken ? "breaks" : "noticeably harms", 100 * found->loss),
          broken};
}

}  // namespace quire::cli
