// Fuzzes requests for structured output. The first byte chooses: 0 a JSON Schema, 1 a regular
// expression, 2 EBNF, 3 choices (one a line), 4 a tool's name and schema. Every grammar that
// compiles is walked: a token of the mask must be accepted, and a schema's finished text must be
// valid JSON under the schema.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "text/grammar_schema_node.h"
#include "text/grammar_testing.h"
#include "text/harmony_testing.h"

namespace {

using namespace moxie;

constexpr int kMaxTokens = 60;

void walk_schema(const grammar::GrammarPtr& grammar, const std::string& schema, uint64_t seed) {
  const auto walk =
      testing::random_text(*testing::byte_compiler().vocabulary(), grammar, seed, kMaxTokens);
  CHECK(walk.fault.empty(), walk.fault + " after " + walk.text);
  if (!walk.ended) return;
  const auto value = nlohmann::ordered_json::parse(walk.text, nullptr, false);
  CHECK(!value.is_discarded(), walk.text);
  const auto root = nlohmann::ordered_json::parse(schema);
  grammar::SchemaReader reader(root, "");
  CHECK(reader.holds(value, grammar::Conjunction{&root}), walk.text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  set_log_level(LogLevel::kOff);
  // Larger inputs only cost time: the limits have tests of their own.
  if (size < 2 || size > 4096) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  using Kind = grammar::Source::Kind;
  grammar::Source source{.text = text};
  switch (data[0]) {
    case 0:
    case '0':
      break;
    case 1:
    case '1':
      source.kind = Kind::kRegex;
      break;
    case 2:
    case '2':
      source.kind = Kind::kEbnf;
      break;
    case 3:
    case '3': {
      source = {.kind = Kind::kChoice};
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        source.choices.push_back(text.substr(begin, end - begin));
        begin = end + 1;
      }
      break;
    }
    default: {
      const size_t end = std::min(text.find('\n'), text.size());
      const grammar::AnswerSpec spec = {
          .tools = {{.name = text.substr(0, end),
                     .parameters = end < text.size() ? text.substr(end + 1) : "{}",
                     .strict = data[0] % 2 == 0}}};
      auto answer = grammar::AnswerConstraint::create(testing::byte_compiler(), spec, nullptr);
      if (!answer) return 0;
      const auto walk =
          testing::random_answer(testing::byte_tokenizer(), *testing::byte_compiler().vocabulary(),
                                 **answer, size, kMaxTokens);
      CHECK(walk.fault.empty(), walk.fault + " after " + walk.text);
      return 0;
    }
  }
  const auto grammar = testing::byte_compiler().compile(source, "fuzz");
  if (!grammar) {
    CHECK(!grammar.error().what.empty());
    return 0;
  }
  if (source.kind == Kind::kJsonSchema) {
    for (uint64_t seed = 0; seed < 3; ++seed) walk_schema(*grammar, text, seed + size);
    return 0;
  }
  const auto walk =
      testing::random_text(*testing::byte_compiler().vocabulary(), *grammar, size, kMaxTokens);
  // A user's EBNF may reach a dead end; a grammar made here must not.
  CHECK(walk.fault.empty() || source.kind == Kind::kEbnf, walk.fault + " after " + walk.text);
  return 0;
}
