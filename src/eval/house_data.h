#pragma once

#include <string>
#include <vector>

namespace quire {

// What the house model is judged on: written by tools/house/make_eval.py, beside the model.
struct HouseData {
  struct Question {
    std::string question, answer;
  };
  struct Reading {
    std::string set;  // "new": a new rendering of a text it learned from; "unseen": a text it never saw
    std::string text;
    std::vector<Question> questions;
  };
  struct Needle {
    std::string sentence;
    Question asked;
  };
  struct Explanation {
    std::string question;
    std::vector<std::string> topics;  // any of which answers it
  };
  struct Topic {
    std::string name;
    std::vector<std::string> phrasings;
  };

  std::vector<Reading> readings;
  std::vector<Needle> needles;
  std::vector<std::string> filler;  // paragraphs
  std::vector<Explanation> explanations;
  std::vector<Topic> topics;
  std::vector<std::string> stories;  // that it never saw
};

// Throws Error naming the file and line that cannot be read.
HouseData read_house_data(const std::string& folder);

}  // namespace quire
