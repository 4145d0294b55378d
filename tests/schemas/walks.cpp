// Random walks through the grammars of schemas, one JSON line each, for a checker that knows
// nothing of them: moxie_schema_walks FOLDER SEEDS. Walks that do not end within the limit are left
// out.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/grammar_testing.h"

int main(int argc, char** argv) {
  using namespace moxie;
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FOLDER SEEDS\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  grammar::Compiler& compiler = testing::tiny_compiler();
  for (const auto& path : files) {
    std::ifstream file(path);
    std::stringstream schema;
    schema << file.rdbuf();
    const auto grammar = compiler.compile({.text = schema.str()}, path.string());
    if (!grammar) {
      const nlohmann::json line = {{"schema", path.stem().string()},
                                   {"refused", grammar.error().message()}};
      std::puts(line.dump().c_str());
      continue;
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
