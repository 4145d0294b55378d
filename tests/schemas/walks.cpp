// Random walks through the grammars of schemas, one JSON line each, for a checker that knows
// nothing of them: moxie_schema_walks FOLDER SEEDS [TEXTS]. Walks that do not end within the limit
// are left out. TEXTS/NAME.json is a list of texts for the schema FOLDER/NAME.json: a line says
// which of them the grammar admits.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/grammar_testing.h"

namespace {

using namespace moxie;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void print_admitted(const std::string& name, const std::filesystem::path& texts,
                    const grammar::GrammarPtr& grammar) {
  nlohmann::json admitted = nlohmann::json::array();
  for (const auto& text : nlohmann::json::parse(read_file(texts))) {
    admitted.push_back(
        testing::accepts(testing::tiny_tokenizer(), grammar, text.get<std::string>()));
  }
  std::puts(nlohmann::json({{"schema", name}, {"admitted", admitted}}).dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: %s FOLDER SEEDS [TEXTS]\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  grammar::Compiler& compiler = testing::tiny_compiler();
  for (const auto& path : files) {
    const auto grammar = compiler.compile({.text = read_file(path)}, path.string());
    if (!grammar) {
      const nlohmann::json line = {{"schema", path.stem().string()},
                                   {"refused", grammar.error().message()}};
      std::puts(line.dump().c_str());
      continue;
    }
    if (argc == 4) {
      const auto texts = std::filesystem::path(argv[3]) / path.filename();
      print_admitted(path.stem().string(), texts, *grammar);
    }
    for (int seed = 1; seed <= std::atoi(argv[2]); ++seed) {
      const auto walk = testing::random_text(*compiler.vocabulary(), *grammar,
                                             static_cast<uint64_t>(seed) * 7919, 600);
      CHECK(walk.fault.empty(), path.string() + ": " + walk.fault);
      if (!walk.ended) continue;
      const nlohmann::json line = {
          {"schema", path.stem().string()}, {"seed", seed}, {"text", walk.text}};
      std::puts(line.dump().c_str());
    }
  }
  return 0;
}
