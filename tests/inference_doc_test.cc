// Executes docs/inference.md. Each fenced block that begins with ```console holds commands, the lines after "$ ", and
// below each what it prints, stdout and stderr together. They run one after the other in one empty folder, with the
// program first in the PATH. What is printed must be what is written, but for the wildcard:
//
//   ...            within a line stands for any text of that line: a time, a rate, an answer's words
//   ...            alone on a line stands for any lines, or none
//
// A picture that the document shows, ![...](pictures/NAME.svg), is made by one of the commands as NAME.svg; the one in
// docs/pictures must be of the same kind and small, but times in it differ.
//
// Blanks at the end of a line and runs of blanks within it, which tables have for the eye, count as one.

#include <sstream>

#include "cli_fixture.h"

namespace quire {
namespace {

struct DocumentedCommand {
  int line = 0;  // of the document
  std::string command;
  std::vector<std::string> expected;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    std::string plain;
    for (const char c : line) {
      if (c != ' ' || (!plain.empty() && plain.back() != ' ')) plain += c;
    }
    while (plain.ends_with(' ')) plain.pop_back();
    lines.push_back(plain);
  }
  return lines;
}

std::vector<DocumentedCommand> commands_of(const std::string& document) {
  std::vector<DocumentedCommand> commands;
  bool inside = false;
  int number = 0;
  for (const std::string& line : lines_of(document)) {
    ++number;
    if (line.starts_with("```")) {
      inside = line == "```console";
    } else if (inside && line.starts_with("$ ")) {
      commands.push_back({number, line.substr(2), {}});
    } else if (inside && !commands.empty()) {
      commands.back().expected.push_back(line);
    }
  }
  return commands;
}

bool line_matches(std::string_view pattern, std::string_view line) {
  const size_t dots = pattern.find("...");
  if (dots == std::string_view::npos) return pattern == line;
  if (!line.starts_with(pattern.substr(0, dots))) return false;
  pattern.remove_prefix(dots + 3);
  for (size_t at = dots; at <= line.size(); ++at) {
    if (line_matches(pattern, line.substr(at))) return true;
  }
  return false;
}

bool lines_match(std::span<const std::string> patterns, std::span<const std::string> lines) {
  if (patterns.empty()) return lines.empty();
  if (patterns.front() == "...") {
    return lines_match(patterns.subspan(1), lines) ||
           (!lines.empty() && lines_match(patterns, lines.subspan(1)));
  }
  return !lines.empty() && line_matches(patterns.front(), lines.front()) &&
         lines_match(patterns.subspan(1), lines.subspan(1));
}

TEST(DocumentWildcards, StandForTextOfALineOrForLines) {
  EXPECT_TRUE(line_matches("a ... c", "a b b c"));
  EXPECT_FALSE(line_matches("a ... c", "a b d"));
  EXPECT_TRUE(line_matches("...", ""));
  const std::vector<std::string> pattern = {"first", "...", "last"};
  const std::vector<std::string> short_one = {"first", "last"}, long_one = {"first", "x", "y", "last"};
  EXPECT_TRUE(lines_match(pattern, short_one));
  EXPECT_TRUE(lines_match(pattern, long_one));
  EXPECT_FALSE(lines_match(pattern, std::span(long_one).first(3)));
}

// The heading of a picture.
std::string title_of(const std::string& svg) {
  const size_t begin = svg.find("class=\"title\"");
  return begin == std::string::npos ? "" : svg.substr(begin, svg.find("</text>", begin) - begin);
}

class InferenceDocument : public Cli {
 protected:
  // Each picture of the document was made anew by its commands.
  void expect_pictures() const {
    constexpr std::string_view kFolder = "](pictures/";
    const std::string document = slurp(QUIRE_SOURCE_DIR "/docs/inference.md");
    int pictures = 0;
    for (size_t at = document.find(kFolder); at != std::string::npos; at = document.find(kFolder, at + 1)) {
      const size_t begin = at + kFolder.size();
      const std::string name = document.substr(begin, document.find(')', begin) - begin);
      const std::string kept = slurp(std::string(QUIRE_SOURCE_DIR "/docs/pictures/") + name);
      const std::string made = slurp(path(name));
      EXPECT_TRUE(made.ends_with("</svg>\n")) << name;
      EXPECT_TRUE(kept.ends_with("</svg>\n")) << name;
      EXPECT_NE(title_of(made), "") << name;
      EXPECT_EQ(title_of(kept), title_of(made)) << name;
      EXPECT_LT(kept.size(), 60000u) << name;
      ++pictures;
    }
    EXPECT_GE(pictures, 5);
  }
};

TEST_F(InferenceDocument, EveryCommandPrintsWhatTheDocumentSays) {
  const auto commands = commands_of(slurp(QUIRE_SOURCE_DIR "/docs/inference.md"));
  EXPECT_GE(commands.size(), 8u);
  for (const DocumentedCommand& documented : commands) {
    write("script", "cd " + folder_ + "\nPATH=" + QUIRE_BINARY_DIR + ":$PATH\n" + documented.command + "\n");
    const int status =
        std::system(("sh " + path("script") + " >" + path("said") + " 2>&1 </dev/null").c_str());
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0) << documented.command;
    const std::string said = slurp(path("said"));
    EXPECT_TRUE(lines_match(documented.expected, lines_of(said)))
        << "docs/inference.md:" << documented.line << ": " << documented.command << "\nprints\n"
        << said;
  }
  expect_pictures();
}

}  // namespace
}  // namespace quire
