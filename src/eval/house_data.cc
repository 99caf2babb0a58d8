#include "eval/house_data.h"

#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

void for_each_line(const std::string& folder, const std::string& name,
                   const std::function<void(const Json&)>& take) {
  const std::string path = folder + "/" + name + ".jsonl";
  std::ifstream file(path);
  if (!file) throw Error("cannot open {}", path);
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    const std::string where = path + ":" + std::to_string(++number);
    if (line.empty()) continue;
    const Json object = parse_json(line, where);
    try {
      take(object);
    } catch (const Json::exception& problem) {
      throw Error("{}: {}", where, problem.what());
    }
  }
  if (number == 0) throw Error("{} is empty", path);
}

HouseData::Question question_of(const Json& object) {
  return {object.at("question"), object.at("answer")};
}

}  // namespace

HouseData read_house_data(const std::string& folder) {
  HouseData data;
  for_each_line(folder, "reading", [&](const Json& object) {
    HouseData::Reading reading{object.at("set"), object.at("text"), {}};
    for (const Json& question : object.at("questions")) reading.questions.push_back(question_of(question));
    data.readings.push_back(std::move(reading));
  });
  for_each_line(folder, "needles", [&](const Json& object) {
    data.needles.push_back({object.at("sentence"), question_of(object)});
  });
  for_each_line(folder, "filler", [&](const Json& object) { data.filler.push_back(object.at("text")); });
  for_each_line(folder, "inference", [&](const Json& object) {
    data.explanations.push_back({object.at("question"), object.at("topics")});
  });
  for_each_line(folder, "topics", [&](const Json& object) {
    data.topics.push_back({object.at("topic"), object.at("phrasings")});
  });
  for_each_line(folder, "stories", [&](const Json& object) { data.stories.push_back(object.at("text")); });
  return data;
}

}  // namespace quire
